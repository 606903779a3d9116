// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a stream would run, run at once or recorded as a graph records it, by threads that are ranks; and an attention
// backend with buffers for it, over host memory that it takes for a device's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/device/host_kernels.hpp"
#include "runtime/device/stream_backend.hpp"

namespace tangram::testing {

/// Of the thread that makes it, as long as it lives: all that is put on streams.
class Recording {
 public:
  /// `captures`: nothing runs.
  explicit Recording(bool captures) : captures_(captures) { current() = this; }
  ~Recording() { current() = nullptr; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  const std::vector<HostKernel>& kernels() const { return kernels_; }
  /// As a graph would, once the recording has ended.
  static void replay(const std::vector<HostKernel>& kernels) {
    for (const HostKernel& kernel : kernels) {
      if (kernel.run) kernel.run();
    }
  }

  /// Runs or records what this thread puts on a stream.
  static void put(HostKernel kernel) {
    Recording* const recording = current();
    if ((recording == nullptr || !recording->captures_) && kernel.run) kernel.run();
    if (recording != nullptr) recording->kernels_.push_back(std::move(kernel));
  }

 private:
  static Recording*& current() {
    thread_local Recording* recording = nullptr;
    return recording;
  }
  const bool captures_;
  std::vector<HostKernel> kernels_;
};

/// StreamBackend with buffers, whose calls a Recording records.
class BufferBackend final : public AttnBackend {
 public:
  std::string_view name() const override { return "buffers"; }
  MemoryKind memory() const override { return MemoryKind::kDevice; }
  std::optional<TileShape> tile_shape(const AttnShape&) const override { return TileShape{16, 16}; }
  std::optional<TileShape> backward_tile_shape(const AttnShape&) const override { return TileShape{16, 16}; }
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice>, const AttnShape&, const TileList*) const override {
    throw InternalError("BufferBackend: has buffers alone");
  }
  bool can_wait_for_keys() const override { return true; }
  bool has_buffers() const override { return true; }
  std::unique_ptr<PreparedMask> make_buffer(const AttnShape& shape, const MaskCapacity&) const override {
    auto buffer = std::make_unique<Buffer>();
    buffer->shape = shape;
    return buffer;
  }
  void set_mask(PreparedMask& buffer, std::span<const AttnSlice> slices, int64_t num_keys, void*) const override {
    auto& prepared = static_cast<Buffer&>(buffer);
    prepared.mask = stream_.prepare(slices, prepared.shape, nullptr);
    for (const AttnSlice& slice : slices) EXPECT_LE(canonical(slice).k_range.end, num_keys);
  }
  int64_t local_kv_table_bytes(int64_t seqlen_k) const override {
    return static_cast<int64_t>(sizeof(int64_t)) + seqlen_k * static_cast<int64_t>(sizeof(LocalKvRange));
  }
  void write_local_kv_table(std::span<const LocalKvRange> local_ranges, int64_t, std::byte* to) const override {
    const auto count = static_cast<int64_t>(local_ranges.size());
    std::memcpy(to, &count, sizeof(count));
    std::memcpy(to + sizeof(count), local_ranges.data(), local_ranges.size_bytes());
  }

  void forward(PreparedMask& mask, const AttnForwardArgs& args, void*) const override {
    Recording::put(
        {"attention forward", {}, [this, &mask, args] { stream_.forward(as_of_now(mask, args), args, {}); }});
  }
  void backward(PreparedMask& mask, const AttnBackwardArgs& args, void*) const override {
    EXPECT_NE(args.keys_ready, nullptr) << "rows come beside the pass, on a stream that it must wait for";
    Recording::put(
        {"attention backward", {}, [this, &mask, args] { stream_.backward(as_of_now(mask, args), args, {}); }});
  }

 private:
  struct Buffer final : PreparedMask {
    AttnShape shape;
    std::unique_ptr<PreparedMask> mask;
  };
  /// The mask that is set when a call runs, with the ranges of its table.
  template <class Args>
  PreparedMask& as_of_now(PreparedMask& buffer, const Args& args) const {
    PreparedMask& mask = *static_cast<Buffer&>(buffer).mask;
    int64_t count = 0;
    const auto* table = static_cast<const std::byte*>(args.local_kv_table);
    std::memcpy(&count, table, sizeof(count));
    stream_.prepare_local_kv(
        mask, {reinterpret_cast<const LocalKvRange*>(table + sizeof(count)), static_cast<size_t>(count)});
    return mask;
  }

  StreamBackend stream_;
};

}  // namespace tangram::testing
