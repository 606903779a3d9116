// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NcclCommunicator: rows move as grouped sends and receives of NCCL. The portable path, and the reference for others.
#pragma once

#include <memory>

#include "comm/nccl/nccl_group.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(Communicator& control, const DeviceCommunicatorConfig& config)
      : group_(std::make_shared<NcclGroup>(control, config)) {}

  int rank() const override { return group_->state().rank(); }
  int size() const override { return group_->state().size(); }
  std::string_view name() const override { return to_string(DeviceTransport::kNccl); }
  int device() const override { return group_->device(); }
  Communicator& control() override { return group_->state().control(); }
  KernelTransfers kernel_transfers() const override { return {.recv_buffer_reuse = RecvBufferReuse::kInOrder}; }

  Agreement* agreement() override { return group_->agrees_later() ? &group_->state().agreement() : nullptr; }
  /// Ranks of a node have a GPU each (NcclGroup).
  std::optional<bool> shares_gpus() const override { return false; }

  std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) override;
  void set_call_fingerprint(const CallFingerprint& fingerprint) override {
    group_->state().set_call_fingerprint(fingerprint);
  }
  void all_reduce(float* device_values, int count, ReduceOp op, void* stream) override;
  void check() override { group_->state().check(); }
  void abort(std::string_view reason) noexcept override { group_->state().give_up(reason); }
  TrafficCounters counters() const override { return group_->state().counters(); }
  void reset_counters() override { group_->state().reset_counters(); }
  int64_t shared_bytes() const override { return group_->shared().bytes(); }

 private:
  std::shared_ptr<NcclGroup> group_;
};

}  // namespace tangram::comm
