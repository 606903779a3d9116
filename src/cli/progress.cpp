// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "cli/text_table.hpp"

namespace tangram::cli {

namespace {

struct CountedMetadata final : MaskMetadata {
  CountedMetadata(std::unique_ptr<MaskMetadata> of, double of_cells)
      : MaskMetadata(of->parts()), inner(std::move(of)), cells(of_cells) {}

  std::unique_ptr<MaskMetadata> inner;
  double cells;
};

struct CountedSlot final : MaskSlot {
  void add(MaskParts parts) { add_parts(parts); }

  std::unique_ptr<MaskSlot> inner;
  double cells = 0;
};

}  // namespace

ProgressBar::ProgressBar(double total, std::string what, double log_seconds)
    : total_(total),
      what_(std::move(what)),
      log_seconds_(log_seconds),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::advance(double units) {
  constexpr double kQuietSeconds = 0.5;
  constexpr int kWidth = 40;
  const std::lock_guard lock(mutex_);
  done_ += units;
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (elapsed < kQuietSeconds || total_ <= 0) return;
  const double fraction = std::min(1.0, done_ / total_);
  const double left_s = elapsed * (1 - fraction) / std::max(fraction, 1e-9);
  if (!is_terminal_) {
    if (elapsed - logged_s_ < log_seconds_) return;
    logged_s_ = elapsed;
    std::fputs(
        fmt::format("tangram: {}: {:.0f} % after {:.0f} s, {:.0f} s left\n", what_, 100 * fraction, elapsed, left_s)
            .c_str(),
        stderr);
    return;
  }
  const std::string line =
      fmt::format("\r  {} {:3.0f} %  {:.0f} s left\x1b[K", bar_text(fraction, kWidth), 100 * fraction, left_s);
  std::fputs(line.c_str(), stderr);
  drawn_ = true;
}

WaitNotice::WaitNotice(std::string what, double log_seconds)
    : what_(std::move(what)),
      interval_s_(log_seconds),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      thread_([this] { watch(); }) {}

WaitNotice::~WaitNotice() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  thread_.join();
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void WaitNotice::watch() {
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double> interval(is_terminal_ ? 1.0 : interval_s_);
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, interval, [this] { return is_over_; })) {
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const std::string text = is_terminal_ ? fmt::format("\r  {}: {:.0f} s\x1b[K", what_, elapsed)
                                          : fmt::format("tangram: {}: {:.0f} s so far\n", what_, elapsed);
    std::fputs(text.c_str(), stderr);
    drawn_ = is_terminal_;
  }
}

std::unique_ptr<MaskMetadata> CountingBackend::build(const MaskRequest& request) const {
  double cells = 0;
  for (const std::span<const AttnSlice> slices : request.masks) {
    for (const AttnSlice& slice : slices) cells += static_cast<double>(area(slice));
  }
  return std::make_unique<CountedMetadata>(backend_->build(request), cells);
}

std::unique_ptr<MaskSlot> CountingBackend::make_slot(const AttnShape& shape, const MaskCapacity* capacity) const {
  auto slot = std::make_unique<CountedSlot>();
  slot->inner = backend_->make_slot(shape, capacity);
  return slot;
}

void CountingBackend::install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const {
  auto& counted = dynamic_cast<CountedSlot&>(slot);
  auto& built = dynamic_cast<CountedMetadata&>(*metadata);
  counted.cells = built.cells;
  counted.add(built.parts());
  backend_->install(*counted.inner, std::move(built.inner), stream);
}

void CountingBackend::forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const {
  auto& counted = dynamic_cast<CountedSlot&>(slot);
  backend_->forward(*counted.inner, args, stream);
  bar_->advance(counted.cells);
}

void CountingBackend::backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream) const {
  auto& counted = dynamic_cast<CountedSlot&>(slot);
  backend_->backward(*counted.inner, args, stream);
  bar_->advance(kBackwardWeight * counted.cells);
}

}  // namespace tangram::cli
