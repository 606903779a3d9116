// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What long work says of itself on stderr: a bar on a terminal, a line now and then in a log. A backend that counts
// what passes through it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "tangram/attention.hpp"

namespace tangram::cli {

/// Seconds between lines of a log.
inline constexpr double kLogSeconds = 30;

/// Progress display. On a terminal a bar, once work lasts longer than a moment; elsewhere a line on stderr every
/// `log_seconds`. Thread-safe.
class ProgressBar {
 public:
  /// `total` units of work are to come. `what`: it, as in "comparing with the reference".
  explicit ProgressBar(double total, std::string what = "computing", double log_seconds = kLogSeconds);
  /// Removes the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(double units);

 private:
  double total_;
  std::string what_;
  double log_seconds_;
  bool is_terminal_;
  std::chrono::steady_clock::time_point begin_;
  std::mutex mutex_;
  double done_ = 0;
  double logged_s_ = 0;  // when the last line was written
  bool drawn_ = false;
};

/// Says that work of unknown length goes on, from a thread of its own: on a terminal each second, elsewhere a line
/// every `log_seconds`.
class WaitNotice {
 public:
  /// `what`: the work, as in "planning 1,048,576 tokens over 64 ranks".
  explicit WaitNotice(std::string what, double log_seconds = kLogSeconds);
  /// Removes what a terminal shows.
  ~WaitNotice();
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;

 private:
  void watch();

  std::string what_;
  double interval_s_;
  bool is_terminal_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  bool drawn_ = false;
  std::thread thread_;
};

/// Weight of a cell of the backward pass against one of the forward pass.
inline constexpr double kBackwardWeight = 2.5;

/// `backend` with every pass over a slice list reported to `bar` in cells. Both must outlive the object.
class CountingBackend final : public AttnBackend {
 public:
  CountingBackend(const AttnBackend& backend, ProgressBar& bar) : backend_(&backend), bar_(&bar) {}

  AttnCaps caps() const override { return backend_->caps(); }
  void check(const AttnShape& shape) const override { backend_->check(shape); }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override;
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity) const override;
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const override;
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const override;
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream) const override;

 private:
  const AttnBackend* backend_;
  ProgressBar* bar_;
};

}  // namespace tangram::cli
