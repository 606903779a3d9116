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

  std::string_view name() const override { return backend_->name(); }
  MemoryKind memory() const override { return backend_->memory(); }
  std::optional<TileShape> tile_shape(const AttnShape& shape) const override { return backend_->tile_shape(shape); }
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                        const TileList* tiles) const override;
  std::optional<TileShape> backward_tile_shape(const AttnShape& shape) const override {
    return backend_->backward_tile_shape(shape);
  }
  bool takes_delta() const override { return backend_->takes_delta(); }
  void prepare_backward(PreparedMask& mask, const TileList& transposed_tiles, BackwardCalls calls) const override;
  void forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream) const override;
  void backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream) const override;

 private:
  const AttnBackend* backend_;
  ProgressBar* bar_;
};

}  // namespace tangram::cli
