// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// CopyEngineCommunicator: rows move as pushes of copy engines into the peers' memory, each followed by a flag.
// Protocol and orderings: docs/design/transports.md.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/copy_engine/kernel_transfers.hpp"
#include "comm/copy_engine/slot_area.hpp"
#include "comm/device/group_state.hpp"
#include "comm/device/kernels.hpp"
#include "comm/device/streams.hpp"
#include "comm/heap/symmetric_heap.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// NOTE [batches]: a stage's copies go to the driver in one call where it has one. Its inner streams may share hardware
/// queues with others. That delays copies. It cannot stop them while work that peers wait for is enqueued before work
/// that waits for peers. The calls of ranks that share a GPU are not ordered, so there each copy is a call of its own.

/// NOTE [lockstep]: streams share hardware queues, and work that waits for an event keeps what is behind it in its
/// queue from running. Within a rank no call waits for a later one, so any queues will do. Ranks that share a GPU could
/// block each other; host barriers keep them from running ahead. Nothing is enqueued behind a kernel that waits before
/// all ranks have enqueued what it waits for.

/// State that passes share: the group, its memory, and the places of its control words.
struct CopyEngineGroup {
  CopyEngineGroup(Communicator& control, const DeviceCommunicatorConfig& config);
  /// Ends when the own transfers have.
  ~CopyEngineGroup();

  const cuda::WaitContext* context() const { return context_.as<cuda::WaitContext>(); }
  /// Common part of an epoch's parameters.
  EpochParams epoch_params(int pass) const;
  bool keeps_step() const { return lockstep_; }
  /// Returns when all ranks have come here; at once unless ranks are to keep step (NOTE [lockstep]).
  void keep_step() const {
    if (lockstep_) state.control().barrier("copy engines: in step");
  }

  /// Memory for partial rows of return tensor `tensor` in another dtype, of one epoch at a time: at least `bytes`.
  std::shared_ptr<cuda::DeviceBuffer> converted_rows(size_t tensor, size_t bytes);

  GroupState state;
  SymmetricHeap heap;
  /// Areas of passes that share memory. A pass that is open beside another has memory of its own.
  std::array<SharedSlotArea, 2> recv_buffers, returns;
  std::unique_ptr<SymmetricBlock> control_block;
  cuda::DeviceBuffer tables;    // [4][size] pointers: abort words, order rings, all_reduce flags, inboxes
  cuda::DeviceBuffer counters;  // epochs; all_reduces
  OwnedStream cast_stream;      // returns must not queue behind casts that wait for their sources, nor vice versa
  OwnedStream return_stream;
  StreamWord casts_sent;
  bool batch_copies = false;
  /// Ranks find out what each of them makes without meeting. Not if they share a GPU, which must get no work that waits
  /// for a rank that still allocates. Not if everything is compared before rows move, either.
  bool agrees_later = false;
  // Events of all passes. One pass at a time is open, and a wait refers to the event's last record before it, so passes
  // can share them.
  OwnedEvent cast_fork, return_fork, cast_join, return_join;

 private:
  const bool lockstep_;
  cuda::DeviceBuffer context_;
  std::array<std::shared_ptr<cuda::DeviceBuffer>, 4> converted_;
};

class CopyEngineCommunicator final : public DeviceCommunicator {
 public:
  CopyEngineCommunicator(Communicator& control, const DeviceCommunicatorConfig& config)
      : group_(std::make_shared<CopyEngineGroup>(control, config)) {}

  int rank() const override { return group_->state.rank(); }
  int size() const override { return group_->state.size(); }
  std::string_view name() const override { return to_string(DeviceTransport::kCopyEngine); }
  int device() const override { return group_->heap.device(); }
  Communicator& control() override { return group_->state.control(); }
  KernelTransfers kernel_transfers() const override { return kCopyEngineTransfers; }

  Agreement* agreement() override { return group_->agrees_later ? &group_->state.agreement() : nullptr; }
  std::optional<bool> shares_gpus() const override { return group_->heap.shares_gpus(); }

  std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) override;
  /// None if ranks share a GPU: a rank that waits there may keep others from sending.
  std::unique_ptr<BufferedPass> make_buffered_pass(const BufferedPassSpec& spec) override;
  void set_call_fingerprint(const CallFingerprint& fingerprint) override {
    group_->state.set_call_fingerprint(fingerprint);
  }
  void all_reduce(float* device_values, int count, ReduceOp op, void* stream) override;
  void check() override { group_->state.check(); }
  void abort(std::string_view reason) noexcept override { group_->state.give_up(reason); }
  TrafficCounters counters() const override { return group_->state.counters(); }
  void reset_counters() override { group_->state.reset_counters(); }
  int64_t shared_bytes() const override {
    int64_t bytes = 0;
    for (const auto* areas : {&group_->recv_buffers, &group_->returns}) {
      for (const SharedSlotArea& area : *areas) bytes += area.bytes(rank());
    }
    return bytes;
  }

 private:
  std::shared_ptr<CopyEngineGroup> group_;
};

}  // namespace tangram::comm
