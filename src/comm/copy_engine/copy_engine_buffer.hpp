// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// CopyEngineBuffer: both passes over tables that change under captured epochs, between the GPUs of one host.
#pragma once

#include <memory>
#include <vector>

#include "comm/copy_engine/copy_engine_communicator.hpp"
#include "comm/copy_engine/slot_area.hpp"
#include "comm/device/buffered_image.hpp"
#include "comm/device/streams.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/pinned_ring.hpp"

namespace tangram::comm {

/// NOTE [buffered epochs] The protocol is that of the other passes (docs/design/transports.md), with what depends on
/// tables taken from an image (NOTE [buffered image]). Copy engines would need a node of a graph for each copy; kernels
/// move rows instead, on the caller's stream or beside it. All that a rank sends, it has sent before it waits, so that
/// epochs end by the same induction. Slots are fixed, 0 for forward epochs and 1 for backward ones, as graphs that hold
/// one pass or both need: a rank may be one pass ahead of its peers.
class CopyEngineBuffer final : public BufferedPass {
 public:
  /// Collective; the specs of all ranks are alike and valid.
  CopyEngineBuffer(std::shared_ptr<CopyEngineGroup> group, const BufferedPassSpec& spec);

  void set(const BufferedTables& tables, const std::function<void(std::byte*)>& write, void* stream) override;
  const std::byte* user_data() const override { return memory_->as<std::byte>() + image_.user(); }
  void begin(AttnPass pass, std::span<const ConstTensorView> sources, void* stream) override;
  void* begin_beside(AttnPass pass, std::span<const ConstTensorView> sources, void* stream) override;
  TensorView recv_buffers(AttnPass pass, int tensor) const override;
  void* const* return_areas(int tensor) const override;
  void finish_reduce_and_end(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                             void* stream) override;
  void end(void* stream) override;
  int64_t device_bytes() const override;

 private:
  static constexpr int kSlots = 2;
  static int slot_of(AttnPass pass) { return static_cast<int>(pass); }

  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(memory_->as<std::byte>() + offset);
  }
  const BufferedCounts* counts() const { return at<BufferedCounts>(image_.counts()); }
  bool has_returns() const { return open_ == AttnPass::kBackward; }
  uint64_t peers() const;
  EpochParams epoch_params() const;
  /// Wait for the flags of all peers; this rank must have raised its own at theirs before.
  WaitParams wait_params(cuda::WaitKind kind) const;
  void require_open(const char* function) const;
  void check_begin(AttnPass pass, std::span<const ConstTensorView> sources) const;

  const std::shared_ptr<CopyEngineGroup> group_;
  const BufferedPassSpec spec_;
  const BufferedImage image_;
  int numbers_[kSlots] = {};  // of the passes
  std::vector<int64_t> tensor_offsets_;
  std::unique_ptr<SlotTensors> recv_buffers_;
  /// One slot, with flags: arrivals of all ranks, then returns.
  std::unique_ptr<SlotTensors> returns_;
  std::shared_ptr<cuda::DeviceBuffer> memory_;  // of images; graphs that were captured with it hold it, too
  cuda::DeviceBuffer zeros_;
  cuda::DeviceBuffer exchange_;      // what blocks of the kernel that exchanges rows tell each other
  cuda::DeviceBuffer peers_;         // the list of all flags of one kind, then a count of thread blocks
  cuda::DeviceBuffer return_areas_;  // [tensors, ranks]
  cuda::PinnedRing ring_;
  OwnedStream beside_;
  OwnedEvent forked_, begun_;

  bool is_set_ = false;
  bool is_open_ = false;
  AttnPass open_ = AttnPass::kForward;
  uint32_t fingerprint_tag_ = 0;  // of the call whose epoch is open
  int64_t rows_sent_ = 0, rows_received_ = 0;
};

}  // namespace tangram::comm
