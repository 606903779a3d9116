// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodeCommunicator: ranks on several nodes; each row crosses to a node once. It is made of two levels: the device
// communicator of the rank's node (`node`) and that of its rail (`across`), each of any transport.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "comm/nodes/node_specs.hpp"
#include "comm/nodes/node_work.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// NOTE [agreement of two levels]: a rank announces what it is about to make to the ranks of its node and of its rail.
/// If another rank makes something else, it differs from a rank of its node or rail. That rank fails, and its failure
/// reaches all ranks.
class NodeAgreement final : public Agreement {
 public:
  NodeAgreement(Agreement& node, Agreement& across) : levels_{&node, &across} {}
  void agree(const CallFingerprint& fingerprint, uint64_t options) override {
    for (Agreement* level : levels_) level->agree(fingerprint, options);
  }
  void refuse(std::string_view reason) override {
    for (Agreement* level : levels_) level->refuse(reason);
  }
  void meet() override {
    for (Agreement* level : levels_) level->meet();
  }

 private:
  Agreement* levels_[2];
};

/// NOTE [failures of two levels]: when a rank is lost, the ranks of its node and of its rail notice. A watcher thread
/// of each rank polls both levels. When one level fails it aborts the other, so that the failure reaches all ranks.
class NodeCommunicator final : public DeviceCommunicator {
 public:
  /// The communicators that move rows. `node` connects the ranks of this rank's node, `across` those of its rail. Both
  /// number their ranks in ascending order.
  struct Levels {
    std::shared_ptr<void> kept;  // object that `node` and `across` use, so it outlives them; or null
    std::unique_ptr<DeviceCommunicator> node;
    std::unique_ptr<DeviceCommunicator> across;
    std::shared_ptr<NodeWork> work;
  };
  /// `world` connects all ranks, for agreement alone, and must outlive the communicator. Collective over it.
  NodeCommunicator(Communicator& world, const NodeLayout& nodes, Levels levels);
  ~NodeCommunicator() override;

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::string_view name() const override { return "hierarchical"; }
  int device() const override { return levels_.node->device(); }
  Communicator& control() override { return world_; }
  /// Not null if both levels of all ranks have an agreement.
  Agreement* agreement() override { return agreement_ ? &*agreement_ : nullptr; }
  std::optional<bool> shares_gpus() const override { return shares_gpus_; }

  std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) override;
  void set_call_fingerprint(const CallFingerprint& fingerprint) override {
    levels_.node->set_call_fingerprint(fingerprint);
    levels_.across->set_call_fingerprint(fingerprint);
  }
  /// Reduces inside each node, then between nodes.
  void all_reduce(float* device_values, int count, ReduceOp op, void* stream) override;
  void check() override;
  void abort(std::string_view reason) noexcept override;
  TrafficCounters counters() const override { return counters_; }
  TrafficCounters within_node() const override { return levels_.node->counters(); }
  TrafficCounters across_nodes() const override { return levels_.across->counters(); }
  void reset_counters() override;
  int64_t shared_bytes() const override {
    return levels_.node->shared_bytes() + levels_.across->shared_bytes() + levels_.work->shared_bytes();
  }

 private:
  /// Finds whether ranks agree without a barrier, and whether any share a GPU. The result is the same on all ranks.
  void find_abilities();
  /// Throws NotAvailable on this rank alone, unless relayed rows fit into GPU memory.
  void require_room(const DevicePassSpec& spec, const NodeSpecs& specs);
  void watch();
  /// Aborts a level if the other has failed. Returns whether one has failed.
  bool pass_on_failure() noexcept;

  Communicator& world_;
  const NodeLayout nodes_;
  const Levels levels_;
  std::optional<NodeAgreement> agreement_;
  std::optional<bool> shares_gpus_;
  int64_t room_found_ = 0;  // relay bytes of the largest pass that shares memory
  TrafficCounters counters_;
  std::atomic<DeviceCommunicator*> failed_first_ = nullptr;  // the level that failed first; the other was aborted
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace tangram::comm
