// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NcclPass: one pass over NCCL, prepared. Rows that lie in many pieces are packed and unpacked by kernels.
#pragma once

#include <memory>
#include <vector>

#include "comm/device/pass_layout.hpp"
#include "comm/device/slot_pool.hpp"
#include "comm/nccl/messages.hpp"
#include "comm/nccl/nccl_group.hpp"
#include "cuda/packed_arrays.hpp"

namespace tangram::comm {

/// Receive buffers of some passes. Only this rank's own receives write there, in stream order: slots need no credits.
class NcclRecvBuffer {
 public:
  /// Receive buffers in `shared`, all slots in one place, or, if that is null, in memory of their own.
  NcclRecvBuffer(const std::vector<RecvTensor>& tensors, int num_slots, SharedBuffer* shared);

  SlotPool& slots() { return slots_; }
  int num_slots() const { return slots_.size(); }
  /// Addresses of the tensors in a slot; of all slots, one after the other.
  std::span<char* const> tensors(int slot) const;
  const std::vector<char*>& addresses() const { return addresses_; }
  int64_t own_bytes() const { return own_bytes_; }

 private:
  size_t num_tensors_;
  SlotPool slots_;
  std::shared_ptr<cuda::DeviceBuffer> memory_;
  int64_t own_bytes_ = 0;         // of memory_, where it is not shared
  std::vector<char*> addresses_;  // [slot, tensor]
};

/// All transfers are on the group's one stream, in call order, as NCCL wants it. They take multiprocessors: beside
/// kernels that fill the device they run when those leave some (AttnOptions::sm_margin).
class NcclPass final : public DevicePass {
 public:
  /// Collective, unless the spec is agreed; the specs of all ranks fit together.
  NcclPass(std::shared_ptr<NcclGroup> group, const DevicePassSpec& spec);

  using DevicePass::begin;
  int begin(std::span<const ConstTensorView> own, void* stream) override;
  int begin_kept(KeptSlot kept, void* stream) override;
  TensorView recv_buffers(int tensor, int slot) const override;
  int num_slots() const override { return recv_buffers_->num_slots(); }
  int64_t own_bytes() const override;
  void cast(int stage, std::span<const ConstTensorView> sources, void* stream) override;
  void wait_group_cast(int stage, void* stream) override;
  void wait_send(int stage, void* stream) override;
  void release_credit(int stage, void*) override { epoch_.release_credit(stage); }
  void wait_started(int stage, void* stream) override;
  int transfer_sms() const override { return group_->max_ctas(); }
  KvReadyFlags ready_flags() const override { return {}; }
  void reduce(int stage, std::span<const ConstTensorView> partials, void* stream) override;
  std::vector<ReturnTarget> return_targets(int, int, int) const override { return {}; }
  int return_slot() const override { return spec_.reduces.empty() || !epoch_.is_open() ? -1 : 0; }
  void signal_returned(int stage, void* stream) override;
  void finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void* stream) override;
  void end(void* stream) override;
  KeptSlot end_kept(void* stream) override;
  void drop_kept(KeptSlot kept) override;

  int number() const { return number_; }
  bool shares_recv_buffer(const NcclGroup& group, const std::vector<RecvTensor>& recv_buffers) const {
    return &group == group_.get() && recv_buffers == spec_.recv_buffers;
  }

 private:
  /// A stage's messages with what kernels need of them in device memory.
  struct Stage {
    StageMessages messages;
    cuda::PackedArray pack, convert, unpack;
    OwnedEvent started;  // nothing but the exchange is before the stream
    OwnedEvent done;
  };

  /// Whether memory is shared, which needs at most two slots, as in CopyEnginePass.
  bool shares_memory() const { return spec_.shares_memory && spec_.num_slots <= 2; }
  void take_staging();
  std::vector<Stage> name_stages(std::vector<StageMessages> stages);
  /// Uploads the tables of kernels, in one copy.
  void upload();
  bool meets() const { return spec_.agreed == nullptr || !group_->agrees_later(); }
  /// The tensors of the open slot, as a table in device memory.
  char* const* device_tensors() const;
  /// Packs, exchanges and unpacks, on the group's stream behind what is on `stream`.
  void transfer(const Stage& stage, cuda::WaitKind kind, int stage_idx, std::span<const ConstTensorView> sources,
                std::span<char* const> targets, char* const* device_targets, cudaStream_t stream);
  void open();
  void close(cudaStream_t stream);

  const std::shared_ptr<NcclGroup> group_;
  const DevicePassSpec spec_;
  const int number_;
  PassLayout layout_;
  EpochState epoch_;
  std::shared_ptr<NcclRecvBuffer> recv_buffers_;
  std::vector<Stage> casts_;
  std::vector<Stage> reduces_;
  std::shared_ptr<cuda::DeviceBuffer> send_staging_, recv_staging_;  // of one stage at a time, in stream order
  std::shared_ptr<cuda::DeviceBuffer> returned_;                     // the return area
  std::vector<char*> returned_addresses_;                            // by tensor
  cuda::PackedArrays tables_;
  cuda::PackedArray send_base_;         // a table of one address
  cuda::PackedArray tensor_addresses_;  // [slot, tensor]
  cuda::PackedArray merge_begin_, merge_entries_, merge_before_;
  cuda::PackedArray own_chunks_;  // of own_rows
  size_t num_own_chunks_ = 0;
  OwnedEvent fork_, join_;
  int slot_ = -1;
  bool used_ = false;
};

}  // namespace tangram::comm
