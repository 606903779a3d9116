// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "comm/device/pass_check.hpp"
#include "comm/nodes/all_tables.hpp"
#include "comm/nodes/node_pass.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr std::chrono::milliseconds kLookInterval{10};
constexpr int kMaxRanks = kMaxRanksOfLevel * kMaxRanksOfLevel;

/// The tables of all ranks for each stage, from the plan or gathered from the ranks.
class AllTables {
 public:
  /// Tables from the plan if `agreed` has them; else collective.
  AllTables(Communicator& world, const std::vector<Exchange>& stages,
            const std::vector<std::vector<const Exchange*>>* agreed) {
    if (agreed != nullptr) {
      tables_ = *agreed;
      return;
    }
    for (const Exchange& exchange : stages) gathered_.push_back(exchanges_of(gather_sends(world, exchange.sends)));
    for (const std::vector<Exchange>& ranks : gathered_) {
      std::vector<const Exchange*>& pointers = tables_.emplace_back();
      for (const Exchange& exchange : ranks) pointers.push_back(&exchange);
    }
  }
  AllTables(const AllTables&) = delete;
  AllTables& operator=(const AllTables&) = delete;
  const StageTables& tables() const { return tables_; }

 private:
  std::vector<std::vector<Exchange>> gathered_;
  StageTables tables_;
};

/// The error of `level`, or empty if it has not failed.
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
    : world_(world), nodes_(nodes), levels_(std::move(levels)) {
  find_abilities();
  watcher_ = std::thread([this] { watch(); });
}

void NodeCommunicator::find_abilities() {
  Agreement *const node = levels_.node->agreement(), *const across = levels_.across->agreement();
  const std::optional<bool> shares = levels_.node->shares_gpus();
  float lacks[] = {node == nullptr || across == nullptr ? 1.F : 0.F, shares ? 0.F : 1.F,
                   shares.value_or(false) ? 1.F : 0.F};
  world_.all_reduce(lacks, ReduceOp::kMax, "nodes: what ranks can do");
  if (lacks[0] == 0) agreement_.emplace(*node, *across);
  if (lacks[1] == 0) shares_gpus_ = lacks[2] != 0;
}

NodeCommunicator::~NodeCommunicator() {
  stopping_ = true;
  watcher_.join();
  pass_on_failure();  // ranks of the other level may still wait for this one
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
  // All ranks have agreed on the plan, which holds every rank's tables. So this call makes no collective.
  const bool alone = spec.agreed != nullptr && agreement_.has_value();
  const auto refuse = [&](const std::string& reason) {
    if (!alone) world_.refuse(reason);
    require(false, "{}", reason);
  };
  const auto* shared = dynamic_cast<const NodePass*>(spec.recv_buffers_of.get());
  if (spec.recv_buffers_of != nullptr &&
      (shared == nullptr || !shared->shares_recv_buffer(*levels_.work, spec.recv_buffers))) {
    refuse(
        fmt::format("prepare_pass '{}': recv_buffers_of must be a pass of this communicator with equal receive buffers",
                    spec.label));
  }
  if (!spec.credited.empty() || spec.reuses_sources) {
    refuse(fmt::format("prepare_pass '{}': over several nodes no memory is reused in a pass", spec.label));
  }
  if (alone) {
    require_valid(size(), spec, kMaxRanks);
  } else {
    check_pass_spec(world_, spec, shared == nullptr ? -1 : 0, kMaxRanks);
  }
  const bool has_tables = spec.agreed != nullptr && spec.agreed->casts.size() == spec.casts.size() &&
                          spec.agreed->reduces.size() == spec.reduces.size();
  TANGRAM_ASSERT(has_tables || !alone);
  const AllTables casts(world_, spec.casts, has_tables ? &spec.agreed->casts : nullptr),
      reduces(world_, spec.reduces, has_tables ? &spec.agreed->reduces : nullptr);
  const bool in_order = levels_.across->kernel_transfers().recv_buffer_reuse == RecvBufferReuse::kInOrder;
  NodeSpecs specs = make_node_specs(nodes_, world_.rank(), spec, casts.tables(), reduces.tables(), in_order);
  require_room(spec, specs);
  if (shared != nullptr) specs.node.recv_buffers_of = shared->parts().node;
  NodePass::Parts parts;
  parts.node = levels_.node->prepare_pass(specs.node);
  if (!specs.relay.reduces.empty()) parts.relay = levels_.node->prepare_pass(specs.relay);
  if (!specs.across.casts.empty() || !specs.across.reduces.empty()) {
    parts.across = levels_.across->prepare_pass(specs.across);
  }
  return std::make_shared<NodePass>(spec, std::move(specs), std::move(parts), levels_.work, counters_);
}

void NodeCommunicator::require_room(const DevicePassSpec& spec, const NodeSpecs& specs) {
  const int64_t needed = specs.num_hops == 0 ? 0 : relay_bytes(spec, relay_rows(specs));
  const int64_t held = spec.shares_memory ? levels_.across->shared_bytes() + levels_.work->shared_bytes() : 0;
  if (spec.shares_memory && needed <= std::max(held, room_found_)) return;
  const int64_t free = levels_.work->free_bytes();  // asks the driver: too slow for every runtime key
  if (needed <= free + held) {
    if (spec.shares_memory) room_found_ = needed;
    return;
  }
  constexpr double kGigabyte = 1e9;
  throw NotAvailable(fmt::format(
      "prepare_pass '{}': rows that rank {} relays for its node must fit into the GPU's memory (got {:.1f} GB for {} "
      "rows of keys and {} of gradients, {:.1f} GB are free); use more stages (OverlapConfig), a plan that knows nodes "
      "(CostModel::ranks_per_node), shorter packs, or TransportConfig(inside=\"nccl\"), which relays nothing",
      spec.label, rank(), static_cast<double>(needed) / kGigabyte, specs.cast_relay_rows, specs.return_relay_rows,
      static_cast<double>(free + held) / kGigabyte));
}

void NodeCommunicator::all_reduce(float* device_values, int count, ReduceOp op, void* stream) {
  levels_.node->all_reduce(device_values, count, op, stream);
  levels_.across->all_reduce(device_values, count, op, stream);
}

void NodeCommunicator::check() {
  pass_on_failure();  // the caller may give the communicator up before the watcher looks
  if (DeviceCommunicator* const level = failed_first_.load()) level->check();  // its error, not the other level's
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
