// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What strategies are made of: work of kernels and transfers, in seconds of a machine. How the steps of ranks play out
// in time is the clock's (plan/clock).
//
// To add a strategy whose plan is a GridPlan: its name in simulate.cpp and, if its rows move in a new way, a pass in
// simulate_grid.cpp. For others a function of their own: it says for each rank what is computed (count_work), what is
// received (Transfer) and what is held.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "machine/kernel_work.hpp"
#include "plan/clock/clock.hpp"
#include "plan/stages.hpp"
#include "tangram/simulate.hpp"
#include "tangram/slice.hpp"

namespace tangram::sim {

constexpr int kMaxPlannedRanks = 1024;  ///< whole plans grow with the square of the ranks

struct SimInput {
  const Mask& mask;
  const DistAttnConfig& config;
  const MachineModel& machine;

  int cp_size() const { return config.cp_size; }
  int node_of(int rank) const { return rank / machine.ranks_per_node; }
  int num_nodes() const { return (cp_size() + machine.ranks_per_node - 1) / machine.ranks_per_node; }
  const KernelModel& kernel(AttnPass pass) const {
    return pass == AttnPass::kForward ? machine.forward : machine.backward;
  }
};

using Work = KernelWork;

/// Seconds of one kernel call over `work` for `num_heads` query heads; 0 for no work. `comm_active`: rows move
/// meanwhile, which takes workers from the kernel when they do the moving.
double work_seconds(const SimInput& input, AttnPass pass, const Work& work, double num_heads, bool comm_active);

struct LinkLoad {
  double bytes = 0;
  double copies = 0;

  LinkLoad& operator+=(const LinkLoad& other);
};
/// Bytes and copies that one rank receives (or sends) over both kinds of link, which work side by side.
struct Transfer {
  LinkLoad inside;
  LinkLoad between;

  bool empty() const { return inside.bytes + between.bytes == 0; }
  double bytes() const { return inside.bytes + between.bytes; }
  Transfer& operator+=(const Transfer& other);
};
/// Transfer with as many copies, its bytes scaled by bytes_factor.
Transfer scaled(const Transfer& transfer, double bytes_factor);
double transfer_seconds(const MachineModel& machine, const Transfer& transfer);
/// Bytes per second of a rank's share of its node's network cards and the spine, if all ranks transfer at once without
/// relays.
double between_rate(const MachineModel& machine);
/// Where the kernels' own cores move the rows, nothing hides behind anything.
bool hides_transfers(const MachineModel& machine);
/// Seconds to copy `bytes` within a rank's memory.
double copy_seconds(const MachineModel& machine, double bytes);
/// Seconds to read and write `bytes` around a transfer: heads put together or taken apart, gradients added.
double packing_seconds(const MachineModel& machine, double bytes);

/// Seconds that a further step adds for `q_rows` rows of `num_heads` heads, see further_call_bytes. It reads and writes
/// out (dq) in float32 once more.
double accumulate_seconds(const SimInput& input, AttnPass pass, int64_t q_rows, double num_heads);
/// Seconds of rounding out (dq) at the end.
double rounding_seconds(const SimInput& input, AttnPass pass, int64_t q_rows, double num_heads);

/// Largest area of a rank (or row group) ÷ mean, `slices` as cut_by_rank gives them.
double balance_of(const SimInput& input, const std::vector<std::vector<AttnSlice>>& slices);

/// A pass of the slowest rank.
struct SlowestPass {
  double total_s = 0;
  double compute_s = 0;  // of the rank that computes longest
  double exposed_s = 0;

  void take(const RankTime& time);
  void take(const std::vector<RankTime>& times);
};
void set_times(StrategyPrediction& prediction, const SlowestPass& forward, const SlowestPass& backward);

StrategyPrediction simulate_tangram(const SimInput& input);
/// Tangram's plan with relays; rows that several ranks of a node need cross nodes once, on their owners' rails, and are
/// passed on.
StrategyPrediction simulate_tangram_hierarchical(const SimInput& input);
/// A plan that knows the nodes, its rows crossing once on rails that are evened.
StrategyPrediction simulate_tangram_nodes(const SimInput& input);
/// HybridCP, `input.config` naming it. Throws InvalidArgument for what it cannot do.
StrategyPrediction simulate_documents(const SimInput& input);
/// All strategies of a grid (plan/grid/grid.hpp), HybridCP among them.
StrategyPrediction simulate_grid(const SimInput& input, Strategy strategy);

}  // namespace tangram::sim
