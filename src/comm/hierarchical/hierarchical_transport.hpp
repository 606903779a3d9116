// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HierarchicalTransport: operations in two levels, each step of which is a group_cast of another communicator.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/hierarchical/two_level.hpp"
#include "comm/progress_communicator.hpp"
#include "tangram/hierarchical_group.hpp"

namespace tangram::comm {

/// NOTE [who is missing]: ranks meet in `world` before rows move, so that a rank that does not come is named as by any
/// flat transport. When a level of its own fails later, the rank that noticed meets the others in `world` once more. A
/// lost rank does not come there, and ranks that went on hear of the failure at their next operation.
class HierarchicalTransport final : public Transport {
 public:
  HierarchicalTransport(Communicator& world, const HierarchicalConfig& config);

  Caller caller() const override { return {world_.rank(), world_.size()}; }
  std::string_view name() const override { return "hierarchical"; }
  void execute(Operation& operation, double& started_s) override;
  void abort(std::string_view reason) noexcept override;

  TrafficCounters within_node() const;
  TrafficCounters across_nodes() const;

 private:
  /// A communicator that moves rows, and the ranks of the group that it connects, ascending.
  struct Level {
    Communicator* comm = nullptr;
    std::vector<int> ranks;
    TrafficCounters counters;
  };
  /// A step under way.
  struct Step {
    std::unique_ptr<CommHandle> handle;
    std::string name;  // as the level's errors call it
  };
  using Tables = std::shared_ptr<const TwoLevelTables>;

  void meet(const Operation& operation);
  void move(Operation& operation);
  std::vector<Signature> exchange_signatures(const Signature& own);
  Tables tables_for(const Operation& operation);
  std::vector<Exchange> gather_tables(const Operation& operation);

  void cast(const Operation& operation, const TwoLevelTables& tables);
  void reduce(const Operation& operation, const TwoLevelTables& tables);
  void all_reduce(Operation& operation);

  Step start(Level& level, const Exchange& exchange, const std::vector<ConstTensorView>& sources,
             const std::vector<TensorView>& targets, const char* label);
  void wait(const Step& step);
  /// Makes an error of a level one of the operation's.
  [[noreturn]] void fail(const Operation& operation, const std::string& text, bool is_timeout);

  Communicator& world_;
  const NodeLayout nodes_;
  Level node_;
  Level across_;
  const bool has_levels_;  // of their own, that may fail without the world

  std::vector<Signature> signatures_;  // of the operation, by rank
  std::deque<std::pair<uint64_t, Tables>> known_tables_;
  std::string step_name_;  // of the step that is waited for

  mutable std::mutex mutex_;  // over the levels' counters
};

}  // namespace tangram::comm
