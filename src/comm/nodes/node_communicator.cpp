// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_communicator.hpp"

#include <fmt/format.h>

#include <chrono>

#include "comm/device/pass_check.hpp"
#include "comm/nodes/all_tables.hpp"
#include "comm/nodes/node_pass.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr std::chrono::milliseconds kLookInterval{10};

/// The tables of all ranks for each stage.
StageTables gather_stages(Communicator& world, const std::vector<Exchange>& stages) {
  StageTables all;
  for (const Exchange& exchange : stages) all.push_back(exchanges_of(gather_sends(world, exchange.sends)));
  return all;
}

/// What `level` has to say, empty: all is well.
std::string failure_of(DeviceCommunicator& level) {
  try {
    level.check();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

NodeCommunicator::NodeCommunicator(Communicator& world, const NodeLayout& nodes, Levels levels)
    : world_(world), nodes_(nodes), levels_(std::move(levels)), watcher_([this] { watch(); }) {}

NodeCommunicator::~NodeCommunicator() {
  stopping_ = true;
  watcher_.join();
  pass_on_failure();  // others still wait
}

void NodeCommunicator::watch() {
  while (!stopping_ && !pass_on_failure()) std::this_thread::sleep_for(kLookInterval);
}

bool NodeCommunicator::pass_on_failure() noexcept {
  DeviceCommunicator* const levels[] = {levels_.node.get(), levels_.across.get()};
  for (const size_t from : {size_t{0}, size_t{1}}) {
    const std::string failure = failure_of(*levels[from]);
    if (failure.empty()) continue;
    DeviceCommunicator* none = nullptr;
    failed_first_.compare_exchange_strong(none, levels[from]);
    levels[1 - from]->abort(failure);
    return true;
  }
  return false;
}

std::shared_ptr<DevicePass> NodeCommunicator::prepare_pass(const DevicePassSpec& spec) {
  check();
  const auto* shared = dynamic_cast<const NodePass*>(spec.recv_buffers_of.get());
  if (spec.recv_buffers_of != nullptr &&
      (shared == nullptr || !shared->shares_recv_buffer(*levels_.work, spec.recv_buffers))) {
    const std::string reason =
        fmt::format("prepare_pass '{}': recv_buffers_of must be a pass of this communicator with equal receive buffers",
                    spec.label);
    world_.refuse(reason);
    require(false, "{}", reason);
  }
  if (!spec.credited.empty() || spec.reuses_sources) {
    const std::string reason =
        fmt::format("prepare_pass '{}': over several nodes no memory is reused in a pass", spec.label);
    world_.refuse(reason);
    require(false, "{}", reason);
  }
  check_pass_spec(world_, spec, shared == nullptr ? -1 : 0);
  const StageTables casts = gather_stages(world_, spec.casts), reduces = gather_stages(world_, spec.reduces);
  NodeSpecs specs = make_node_specs(nodes_, world_.rank(), spec, casts, reduces);
  if (shared != nullptr) specs.node.recv_buffers_of = shared->parts().node;
  NodePass::Parts parts;
  parts.node = levels_.node->prepare_pass(specs.node);
  if (!specs.relay.reduces.empty()) parts.relay = levels_.node->prepare_pass(specs.relay);
  if (!specs.across.casts.empty() || !specs.across.reduces.empty()) {
    parts.across = levels_.across->prepare_pass(specs.across);
  }
  return std::make_shared<NodePass>(spec, std::move(specs), std::move(parts), levels_.work, counters_);
}

void NodeCommunicator::all_reduce(float* device_values, int count, ReduceOp op, void* stream) {
  levels_.node->all_reduce(device_values, count, op, stream);
  levels_.across->all_reduce(device_values, count, op, stream);
}

void NodeCommunicator::check() {
  pass_on_failure();  // the caller may give the communicator up before the watcher looks
  if (DeviceCommunicator* const level = failed_first_.load()) level->check();  // who has waited in vain throws Timeout
  levels_.node->check();
  levels_.across->check();
}

void NodeCommunicator::abort(std::string_view reason) noexcept {
  levels_.node->abort(reason);
  levels_.across->abort(reason);
}

void NodeCommunicator::reset_counters() {
  counters_ = {};
  levels_.node->reset_counters();
  levels_.across->reset_counters();
}

}  // namespace tangram::comm
