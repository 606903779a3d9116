// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A progress bar for long work, by area: a backend that counts what passes through it.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>

#include "tangram/attention.hpp"

namespace tangram::cli {

/// Draws a bar on stderr while it is a terminal and work lasts longer than a moment; otherwise does nothing.
/// Thread-safe.
class ProgressBar {
 public:
  /// `total` units of work are to come.
  explicit ProgressBar(double total);
  /// Removes the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(double units);

 private:
  double total_;
  bool is_terminal_;
  std::chrono::steady_clock::time_point begin_;
  std::mutex mutex_;
  double done_ = 0;
  bool drawn_ = false;
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
