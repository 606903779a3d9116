// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/hierarchical_group.hpp"

#include <fmt/format.h>

#include "comm/hierarchical/hierarchical_transport.hpp"
#include "core/require.hpp"

namespace tangram {

namespace {

std::string level_problem(const char* name, const Communicator* level, int size, int rank) {
  if (level == nullptr || (level->size() == size && level->rank() == rank)) return "";
  return fmt::format("HierarchicalGroup: {} must have {} ranks of which this one is {} (got {} and {})", name, size,
                     rank, level->size(), level->rank());
}

/// What is wrong with the config on this rank, empty when nothing is.
std::string find_problem(const Communicator& world, const HierarchicalConfig& config) {
  const int per_node = config.ranks_per_node;
  if (per_node < 1 || world.size() % per_node != 0) {
    return fmt::format("HierarchicalGroup: ranks_per_node must divide the number of ranks (got {} for {})", per_node,
                       world.size());
  }
  const std::string problem = level_problem("node", config.node, per_node, world.rank() % per_node);
  if (!problem.empty()) return problem;
  return level_problem("across", config.across, world.size() / per_node, world.rank() / per_node);
}

const HierarchicalConfig& checked(Communicator& world, const HierarchicalConfig& config) {
  const std::string problem = find_problem(world, config);
  if (!problem.empty()) world.refuse(problem);
  require(problem.empty(), "{}", problem);
  const int levels = (config.node != nullptr ? 1 : 0) + (config.across != nullptr ? 2 : 0);
  world.require_agreement(static_cast<uint64_t>(config.ranks_per_node) * 4 + static_cast<uint64_t>(levels),
                          "HierarchicalGroup: ranks_per_node and levels");
  return config;
}

}  // namespace

class HierarchicalGroup::Impl {
 public:
  Impl(Communicator& world, const HierarchicalConfig& config)
      : Impl(std::make_unique<comm::HierarchicalTransport>(world, checked(world, config))) {}

  const MadeHere made_here;
  comm::HierarchicalTransport* transport;  // the communicator's
  comm::ProgressCommunicator communicator;

 private:
  explicit Impl(std::unique_ptr<comm::HierarchicalTransport> owned)
      : transport(owned.get()), communicator(std::move(owned)) {}
};

HierarchicalGroup::HierarchicalGroup(Communicator& world, const HierarchicalConfig& config)
    : impl_(std::make_unique<Impl>(world, config)) {}
HierarchicalGroup::~HierarchicalGroup() { leave_to_parent(impl_); }  // NOTE [after a fork]
HierarchicalGroup::HierarchicalGroup(HierarchicalGroup&&) noexcept = default;
HierarchicalGroup& HierarchicalGroup::operator=(HierarchicalGroup&&) noexcept = default;

Communicator& HierarchicalGroup::communicator() { return impl_->communicator; }
TrafficCounters HierarchicalGroup::within_node() const { return impl_->transport->within_node(); }
TrafficCounters HierarchicalGroup::across_nodes() const { return impl_->transport->across_nodes(); }

}  // namespace tangram
