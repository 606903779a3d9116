// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/text_table.hpp"

namespace tangram::cli {

namespace {

struct CountedMask final : PreparedMask {
  std::unique_ptr<PreparedMask> inner;
  double cells = 0;
};

}  // namespace

ProgressBar::ProgressBar(double total)
    : total_(total), is_terminal_(isatty(STDERR_FILENO) == 1), begin_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::advance(double units) {
  if (!is_terminal_) return;
  constexpr double kQuietSeconds = 0.5;
  constexpr int kWidth = 40;
  const std::lock_guard lock(mutex_);
  done_ += units;
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (elapsed < kQuietSeconds || total_ <= 0) return;
  const double fraction = std::min(1.0, done_ / total_);
  const std::string line = fmt::format("\r  {} {:3.0f} %  {:.0f} s left\x1b[K", bar_text(fraction, kWidth),
                                       100 * fraction, elapsed * (1 - fraction) / std::max(fraction, 1e-9));
  std::fputs(line.c_str(), stderr);
  drawn_ = true;
}

std::unique_ptr<PreparedMask> CountingBackend::prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                                       const TileList* tiles) const {
  auto mask = std::make_unique<CountedMask>();
  mask->inner = backend_->prepare(slices, shape, tiles);
  for (const AttnSlice& slice : slices) mask->cells += static_cast<double>(area(slice));
  return mask;
}

void CountingBackend::prepare_backward(PreparedMask& mask, const TileList& transposed_tiles,
                                       BackwardCalls calls) const {
  backend_->prepare_backward(*dynamic_cast<CountedMask&>(mask).inner, transposed_tiles, calls);
}

void CountingBackend::forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream) const {
  auto& counted = dynamic_cast<CountedMask&>(mask);
  backend_->forward(*counted.inner, args, stream);
  bar_->advance(counted.cells);
}

void CountingBackend::backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream) const {
  auto& counted = dynamic_cast<CountedMask&>(mask);
  backend_->backward(*counted.inner, args, stream);
  bar_->advance(kBackwardWeight * counted.cells);
}

}  // namespace tangram::cli
