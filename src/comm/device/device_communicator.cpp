// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/device_communicator.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "comm/copy_engine/copy_engine_communicator.hpp"
#include "comm/device/pass_check.hpp"
#include "comm/nccl/nccl_communicator.hpp"
#include "comm/nodes/device_node_work.hpp"
#include "comm/nodes/node_communicator.hpp"
#include "comm/nodes/node_controls.hpp"
#include "comm/nodes/node_map.hpp"
#include "core/require.hpp"
#include "cuda/workspace.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

/// Alike on all ranks: a rank without a GPU makes all of them throw, instead of letting them wait for it.
void require_gpus(Communicator& control) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  float lacking = status == cudaSuccess && count > 0 ? 0 : 1;
  control.all_reduce({&lacking, 1}, ReduceOp::kMax, "make_device_communicator");
  if (lacking == 0) return;
  throw NotAvailable(fmt::format("make_device_communicator: every rank needs a GPU (got {} on rank {}: {})", count,
                                 control.rank(), cudaGetErrorString(status)));
}

}  // namespace

cuda::Workspace& DeviceCommunicator::workspace() {
  if (workspace_ == nullptr) workspace_ = std::make_shared<cuda::Workspace>();
  return *workspace_;
}

namespace {

std::unique_ptr<DeviceCommunicator> make_level(Communicator& control, const DeviceCommunicatorConfig& config) {
  switch (config.transport) {
    case DeviceTransport::kCopyEngine: return std::make_unique<comm::CopyEngineCommunicator>(control, config);
    case DeviceTransport::kNccl: return std::make_unique<comm::NcclCommunicator>(control, config);
  }
  throw InternalError("make_device_communicator: unknown transport");
}

std::unique_ptr<DeviceCommunicator> make_levels(Communicator& world, const DeviceCommunicatorConfig& config,
                                                const comm::NodeMap& map) {
  const comm::NodeLayout nodes{world.size(), config.ranks_per_node};
  const auto name_of = [&](int rank) {
    return config.rank_names.empty() ? rank : config.rank_names[static_cast<size_t>(rank)];
  };
  DeviceCommunicatorConfig node = config, across = config;
  node.transport = DeviceTransport::kCopyEngine;
  // Who waits for a relay must not lose patience before the relay does, or it would blame the relay.
  constexpr double kAcrossShare = 0.75;
  across.timeout_s = kAcrossShare * (config.timeout_s == 0 ? Env::get().timeout_s : config.timeout_s);
  const auto pick = [&](DeviceCommunicatorConfig& level, auto&& is_part) {
    level.ranks_per_node = 0;
    level.rank_names.clear();
    level.node_names.clear();
    for (int rank = 0; rank < world.size(); ++rank) {
      if (!is_part(rank)) continue;
      level.rank_names.push_back(name_of(rank));
      if (!config.node_names.empty()) level.node_names.push_back(config.node_names[static_cast<size_t>(rank)]);
    }
  };
  pick(node, [&](int rank) { return nodes.node_of(rank) == nodes.node_of(world.rank()); });
  pick(across, [&](int rank) { return nodes.place_of(rank) == nodes.place_of(world.rank()); });
  const auto controls = std::make_shared<comm::NodeControls>(world, nodes, map, config.timeout_s);
  comm::NodeCommunicator::Levels levels;
  levels.kept = controls;
  levels.node = make_level(controls->node(), node);
  levels.across = make_level(controls->across(), across);
  levels.work = std::make_shared<comm::DeviceNodeWork>(config.exact_memory);
  return std::make_unique<comm::NodeCommunicator>(world, nodes, std::move(levels));
}

/// `config` with nodes as they are found, if it says nothing of them. Throws, alike on all ranks, where it asks for
/// what these cannot do.
DeviceCommunicatorConfig with_nodes(DeviceCommunicatorConfig config, const comm::NodeMap& map) {
  if (map.num_nodes() == 1) return config;
  if (config.node_names.empty()) config.node_names = map.names_of_ranks();
  if (config.ranks_per_node == 0) {
    if (config.transport == DeviceTransport::kNccl) return config;  // each pair of ranks
    config.ranks_per_node = map.ranks_per_node();
    config.transport = DeviceTransport::kNccl;
    return config;
  }
  require(map.ranks_per_node() % config.ranks_per_node == 0,
          "make_device_communicator: ranks_per_node must divide the number of ranks of every node, or be 0 (got {}, "
          "where nodes have a multiple of {})",
          config.ranks_per_node, map.ranks_per_node());
  require(config.transport == DeviceTransport::kNccl,
          "make_device_communicator: transport must be nccl between {} nodes (got {})", map.num_nodes(),
          to_string(config.transport));
  return config;
}

}  // namespace

std::unique_ptr<DeviceCommunicator> make_device_communicator(Communicator& control,
                                                             const DeviceCommunicatorConfig& given) {
  require_gpus(control);
  require(given.ranks_per_node >= 0 && (given.ranks_per_node == 0 || control.size() % given.ranks_per_node == 0),
          "make_device_communicator: ranks_per_node must divide the number of ranks (got {} for {})",
          given.ranks_per_node, control.size());
  control.require_agreement(static_cast<uint64_t>(given.ranks_per_node), "ranks_per_node");
  control.require_agreement(static_cast<uint64_t>(given.transport), "transport");
  const comm::NodeMap map = comm::NodeMap::of(control);
  const DeviceCommunicatorConfig config = with_nodes(given, map);
  comm::require_group_size(control.size(), config.ranks_per_node);
  const bool has_levels = config.ranks_per_node > 0 && config.ranks_per_node < control.size();
  return has_levels ? make_levels(control, config, map) : make_level(control, config);
}

}  // namespace tangram
