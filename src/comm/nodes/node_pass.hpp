// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodePass: one device pass between ranks on several nodes, as passes inside the node and between nodes.
#pragma once

#include <memory>
#include <vector>

#include "comm/device/slot_pool.hpp"
#include "comm/nodes/node_specs.hpp"
#include "comm/nodes/node_work.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Relayed rows are handed on by a stream of their own, which waits for the network where the caller's does not. Own
/// rows of a node are sent first in all stages: what is handed on would hold them up in the transport's queue. Where
/// relayed rows land on those of two stages before, that stream also receives them, once those have been handed on.
class NodePass final : public DevicePass {
 public:
  /// What the pass is made of; `relay` and `across` are null where they have no stages.
  struct Parts {
    std::shared_ptr<DevicePass> node;
    std::shared_ptr<DevicePass> relay;
    std::shared_ptr<DevicePass> across;
  };
  /// Local; `parts` were prepared with `specs`, which were made from `spec`.
  NodePass(const DevicePassSpec& spec, NodeSpecs specs, Parts parts, std::shared_ptr<NodeWork> work,
           TrafficCounters& counters);

  using DevicePass::begin;
  int begin(std::span<const ConstTensorView> own, void* stream) override;
  int begin_kept(KeptSlot kept, void* stream) override;
  TensorView recv_buffers(int tensor, int slot) const override { return parts_.node->recv_buffers(tensor, slot); }
  int num_slots() const override { return parts_.node->num_slots(); }
  int64_t own_bytes() const override;
  void cast(int stage, std::span<const ConstTensorView> sources, void* stream) override;
  void wait_group_cast(int stage, void* stream) override;
  void wait_started(int stage, void* stream) override;
  int transfer_sms() const override;
  KvReadyFlags ready_flags() const override { return {}; }
  void reduce(int stage, std::span<const ConstTensorView> partials, void* stream) override;
  std::vector<ReturnTarget> return_targets(int, int, int) const override { return {}; }
  int return_slot() const override { return parts_.node->return_slot(); }
  void signal_returned(int stage, void* stream) override;
  void finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void* stream) override;
  void end(void* stream) override;
  KeptSlot end_kept(void* stream) override;
  void drop_kept(KeptSlot kept) override { parts_.node->drop_kept(kept); }

  const Parts& parts() const { return parts_; }
  /// Whether passes of `work`, which each communicator has one of, may receive into this pass's `recv_buffers`.
  bool shares_recv_buffer(const NodeWork& work, const std::vector<RecvTensor>& recv_buffers) const {
    return &work == work_.get() && recv_buffers == spec_.recv_buffers;
  }

 private:
  /// Memory for a tensor of each return.
  struct Buffers {
    std::vector<std::shared_ptr<void>> memory;
    std::vector<TensorView> views;
    int64_t bytes() const;
  };

  using MovesByStage = std::vector<std::unique_ptr<NodeWork::Moves>>;  // null: nothing

  MovesByStage prepare_own_casts();
  MovesByStage prepare_own_returns();
  /// `first_shared`: the number of the first tensor's memory where passes share it.
  Buffers make_buffers(int64_t rows, const std::vector<DType>& dtypes, size_t first_shared);
  void leave_absent_rows();
  /// The forward stages of a stage.
  Range forward(int stage) const { return {int64_t{stage} * specs_.num_hops, int64_t{stage + 1} * specs_.num_hops}; }
  bool has_across() const { return specs_.num_hops > 0; }
  /// Throws NotAvailable before anything is enqueued.
  void refuse_capture(void* stream) const;
  void open(void* stream);
  void close(void* stream);
  /// Puts on the relay stream what has to be handed on of the stages that were cast.
  void hand_on(void* stream);
  void hand_on_stage(int stage, std::span<const ConstTensorView> relayed);
  /// Whether rows of `next_across_` may come before more has been handed on.
  bool may_cross() const;
  void cross(void* stream);

  const DevicePassSpec spec_;
  const NodeSpecs specs_;
  const Parts parts_;
  const std::shared_ptr<NodeWork> work_;
  TrafficCounters& counters_;
  std::vector<int64_t> source_rows_;  // by stage: what sources must have
  EpochState epoch_;
  MovesByStage own_casts_, own_returns_;
  std::vector<std::unique_ptr<NodeWork::Mark>> handed_on_;  // by stage
  std::unique_ptr<NodeWork::Mark> fork_;
  Buffers relay_own_, relay_sums_, node_sums_;
  std::vector<std::vector<ConstTensorView>> sources_;  // by stage that was cast
  int next_stage_ = 0;                                 // to be cast
  int next_across_ = 0;                                // whose rows are to come across
  int next_handed_on_ = 0;
  int slot_ = -1;
  int across_slot_ = -1;
};

}  // namespace tangram::comm
