// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodeCommunicator: ranks on several nodes; each row crosses to a node once. Made of device communicators inside the
// node and between nodes, of whichever transport.
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

/// NOTE [agreement of two levels]: a rank says what it is about to make to those of its node and to those of its rail.
/// A rank that makes something else differs from one of these, and through them all ranks hear of it.
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

/// NOTE [failures of two levels]: a rank that is lost is noticed by those of its node and by those in its place of
/// other nodes. A thread of each rank looks at both levels and gives one up when the other has failed, so that the rest
/// hears of it from them.
class NodeCommunicator final : public DeviceCommunicator {
 public:
  /// Who moves rows. The ranks of `node` are those of this rank's node, those of `across` are in its place of each
  /// node; both in ascending order.
  struct Levels {
    std::shared_ptr<void> kept;  // what `node` and `across` need and outlives them, or null
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
  /// Where both levels of all ranks have one.
  Agreement* agreement() override { return agreement_ ? &*agreement_ : nullptr; }
  std::optional<bool> shares_gpus() const override { return shares_gpus_; }

  std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) override;
  void set_call_fingerprint(const CallFingerprint& fingerprint) override {
    levels_.node->set_call_fingerprint(fingerprint);
    levels_.across->set_call_fingerprint(fingerprint);
  }
  /// Sums those of each node, then those sums by node.
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
  /// Alike on all ranks: whether they agree without meeting, and whether any share a GPU.
  void find_abilities();
  /// Throws NotAvailable, on this rank alone.
  void require_room(const DevicePassSpec& spec, const NodeSpecs& specs);
  void watch();
  /// Gives a level up when the other has failed, and says whether one has.
  bool pass_on_failure() noexcept;

  Communicator& world_;
  const NodeLayout nodes_;
  const Levels levels_;
  std::optional<NodeAgreement> agreement_;
  std::optional<bool> shares_gpus_;
  int64_t room_found_ = 0;  // of passes that share memory: what the largest of them needed
  TrafficCounters counters_;
  std::atomic<DeviceCommunicator*> failed_first_ = nullptr;  // the level that did not learn it from the other
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace tangram::comm
