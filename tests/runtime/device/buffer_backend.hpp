// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a stream would run, run at once or recorded as a graph records it, by threads that are ranks; and an attention
// backend with buffers for it, over host memory that it takes for a device's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/device/host_kernels.hpp"
#include "runtime/device/stream_backend.hpp"
#include "schedule/local_kv_table.hpp"

namespace tangram::testing {

/// Records all that the constructing thread puts on streams, for the lifetime of the object.
class Recording {
 public:
  /// `captures`: nothing runs.
  explicit Recording(bool captures) : captures_(captures) { current() = this; }
  ~Recording() { current() = nullptr; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  const std::vector<HostKernel>& kernels() const { return kernels_; }
  /// Runs recorded kernels as a graph would, once the recording has ended.
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
  AttnCaps caps() const override {
    return {.name = "buffers",
            .memory = MemoryKind::kDevice,
            .delta = true,
            .padded_slots = true,
            .max_ready_flags = 64,
            .local_kv_halo = 127};
  }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override {
    EXPECT_NE(request.into, nullptr) << "has padded slots alone";
    for (const AttnSlice& slice : request.masks[0]) EXPECT_LE(canonical(slice).k_range.end, request.num_keys);
    return stream_.build(request);
  }
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity) const override {
    EXPECT_NE(capacity, nullptr);
    return stream_.make_slot(shape, nullptr);
  }
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const override {
    stream_.install(slot, std::move(metadata), stream);
  }

  void forward(MaskSlot& slot, const AttnForwardArgs& args, void*) const override {
    Recording::put(
        {"attention forward", {}, [this, &slot, args] { stream_.forward(as_of_now(slot, args), args, {}); }});
  }
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void*) const override {
    EXPECT_NE(args.keys_ready, nullptr) << "rows come beside the pass, on a stream that it must wait for";
    Recording::put(
        {"attention backward", {}, [this, &slot, args] { stream_.backward(as_of_now(slot, args), args, {}); }});
  }

 private:
  /// With the ranges that the table of a call names when it runs.
  template <class Args>
  MaskSlot& as_of_now(MaskSlot& slot, const Args& args) const {
    const auto* table = static_cast<const GranuleRange*>(args.local_kv_table);
    std::vector<LocalKvRange> ranges;
    for (int64_t key = 0; key < args.k.rows; key += kLocalKvGranule) {
      const GranuleRange& of = table[key / kLocalKvGranule];
      const LocalKvRange range{{of.begin, of.end}, of.begin + of.shift};
      if (of.shift != kNoLocalRange && (ranges.empty() || ranges.back() != range)) ranges.push_back(range);
    }
    stream_.set_local_ranges(slot, std::move(ranges));
    return slot;
  }

  StreamBackend stream_;
};

}  // namespace tangram::testing
