// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Strategies that split ranks into a grid, with the shape, rows, bytes and order in time of their plans and executors.
// Only the seconds of kernels and links come from the machine model.
#include <algorithm>
#include <utility>

#include "plan/clock/grid_time.hpp"
#include "plan/cost.hpp"
#include "plan/grid/choose_strategy.hpp"
#include "plan/grid/grid_cost.hpp"
#include "plan/runs.hpp"
#include "plan/simulate/plan_sketch.hpp"
#include "plan/simulate/strategies.hpp"
#include "plan/validate.hpp"
#include "tangram/error.hpp"

namespace tangram::sim {

namespace {

struct GridSim {
  const SimInput& input;
  GridSizes sizes;
  // Per row group the mask's slices, keys in global rows, and the runs of keys with the groups that own them.
  std::vector<std::vector<AttnSlice>> slices;
  std::vector<OwnedRun> key_runs;
  std::vector<int> head_chunks;
  std::vector<bool> computes = {true};  // by step: some row group; complete once a pass was played

  const GridShape& shape() const { return sizes.shape; }
  size_t groups() const { return static_cast<size_t>(shape().row_groups); }
  int rank_of(size_t group, int member) const { return static_cast<int>(group) * shape().ulysses_degree + member; }
  int64_t group_q_rows() const { return sizes.q_rows * shape().ulysses_degree; }
  double block_rows() const { return static_cast<double>(sizes.k_rows * shape().ulysses_degree); }
  double heads_q() const { return local_heads_q(sizes.config.heads, shape().ulysses_degree); }

  // Ranks of a row group that are on the node of one of them, itself not counted.
  int near_peers(int rank) const {
    const int first = rank / shape().ulysses_degree * shape().ulysses_degree;
    const int node_begin = input.node_of(rank) * input.machine.ranks_per_node;
    const int begin = std::max(first, node_begin);
    const int end = std::min(first + shape().ulysses_degree, node_begin + input.machine.ranks_per_node);
    return end - begin - 1;
  }

  // A head exchange: equally much from each rank of the row group.
  Transfer exchange(int rank, int64_t bytes, int copies) const {
    const double peers = shape().ulysses_degree - 1, near = near_peers(rank), far = peers - near;
    const double total = static_cast<double>(bytes);
    return {{total * near / peers, near * copies}, {total * far / peers, far * copies}};
  }

  double slowest_exchange(int64_t bytes, int copies) const {
    double slowest = 0;
    for (int rank = 0; rank < input.cp_size(); ++rank) {
      slowest = std::max(slowest, transfer_seconds(input.machine, exchange(rank, bytes, copies)));
    }
    return slowest;
  }

  // Ranks of `group` that are on another node than their counterpart in `source`.
  int crossing(size_t group, size_t source) const {
    int count = 0;
    for (int member = 0; member < shape().ulysses_degree; ++member) {
      if (input.node_of(rank_of(group, member)) != input.node_of(rank_of(source, member))) ++count;
    }
    return count;
  }

  HopSeconds hop(size_t group, size_t source, AttnPass pass) const {
    const BlockBytes block = block_bytes(sizes);
    HopSeconds seconds;
    seconds.between = crossing(group, source) > 0;
    const auto move = [&](int64_t bytes) {
      Transfer transfer;
      (seconds.between ? transfer.between : transfer.inside) = {static_cast<double>(bytes), 2};
      return transfer_seconds(input.machine, transfer);
    };
    seconds.block_s = move(block.kv);
    if (pass == AttnPass::kBackward) {  // gradients that come are read, added to those of the step, and written
      seconds.grads_s = move(block.dkv) + packing_seconds(input.machine, 3 * static_cast<double>(block.dkv));
    }
    return seconds;
  }

  struct Neighbours {
    size_t inner, outer, diagonal;
  };
  Neighbours neighbours(size_t group) const {
    const size_t inner = static_cast<size_t>(shape().inner_ring_size), outer = groups() / inner;
    const size_t before_o = (group / inner + outer - 1) % outer, before_i = (group % inner + inner - 1) % inner;
    return {group / inner * inner + before_i, before_o * inner + group % inner, before_o * inner + before_i};
  }

  // Work of a group with the block of each row group.
  std::vector<Work> block_work(size_t group, AttnPass pass) const {
    std::vector<Work> work(groups());
    for (const AttnSlice& slice : slices[group]) {
      for_each_key_part(slice, key_runs, [&](size_t run, const AttnSlice& part) {
        work[static_cast<size_t>(key_runs[run].owner)] += count_work(part, input.kernel(pass));
      });
    }
    for (Work& block : work) block = of_one_call(block, block_rows(), input.kernel(pass));
    return work;
  }

  void set_ring(AttnPass pass, GridPass& grid) {
    computes.resize(groups());
    grid.attend_s.resize(groups() * groups());
    const size_t inner = static_cast<size_t>(shape().inner_ring_size), outer = groups() / inner;
    for (size_t g = 0; g < groups(); ++g) {
      const Neighbours from = neighbours(g);
      grid.hops.push_back({hop(g, from.inner, pass), hop(g, from.outer, pass), hop(g, from.diagonal, pass)});
      const std::vector<Work> work = block_work(g, pass);
      const double accumulate_s = accumulate_seconds(input, pass, group_q_rows(), heads_q());
      bool sums = false;
      for (size_t block = 0; block < groups(); ++block) sums = sums || (block != g && work[block].area > 0);
      for (size_t s = 0; s < groups(); ++s) {
        const size_t block = (g / inner + outer - s / inner) % outer * inner + (g % inner + inner - s % inner) % inner;
        double& seconds = grid.attend_s[s * groups() + g];
        seconds = work_seconds(input, pass, work[block], heads_q(), true);
        if (s > 0 && work[block].area > 0) {
          computes[s] = true;
          seconds += input.machine.stage_overhead_s + accumulate_s;
        }
        if (s == 0 && sums) seconds += rounding_seconds(input, pass, group_q_rows(), heads_q());
      }
    }
  }

  // Over network cards of all ranks of a node together, so that a row crosses once for a node.
  Transfer gathered(int64_t bytes) const {
    const double ranks = input.cp_size(), per_node = input.machine.ranks_per_node;
    const double block = static_cast<double>(bytes);
    const double crossing = input.num_nodes() > 1 ? (ranks - per_node) / per_node : 0;
    return {{block * (ranks - 1 - crossing), 2 * (ranks - 1 - crossing)}, {block * crossing, 2 * crossing}};
  }

  void set_gather(AttnPass pass, GridPass& grid) {
    computes.resize(2);
    const BlockBytes block = block_bytes(sizes);
    grid.gather_s = transfer_seconds(input.machine, gathered(block.kv));
    const double summed = static_cast<double>(block.dkv) * static_cast<double>(groups() + 1);
    grid.scatter_s = transfer_seconds(input.machine, gathered(block.dkv)) + packing_seconds(input.machine, summed);
    grid.attend_s.resize(2 * groups());
    const double accumulate_s = accumulate_seconds(input, pass, group_q_rows(), heads_q());
    const double rounding_s = rounding_seconds(input, pass, group_q_rows(), heads_q());
    for (size_t g = 0; g < groups(); ++g) {
      std::vector<Work> work = block_work(g, pass);
      const Work own = std::exchange(work[g], Work{});
      Work others;
      for (const Work& block_of : work) others += block_of;
      if (others.area > 0) computes[1] = true;
      const double overhead = others.area > 0 ? input.machine.stage_overhead_s + accumulate_s + rounding_s : 0;
      grid.attend_s[g] = work_seconds(input, pass, own, heads_q(), true);
      grid.attend_s[groups() + g] = work_seconds(input, pass, others, heads_q(), false) + overhead;
    }
  }

  // The attention of each chunk of heads, where all rows of the sequence are here.
  void set_chunks(AttnPass pass, GridPass& grid) const {
    const double all_heads = local_heads_kv(sizes.config.heads, shape().ulysses_degree);
    const Work work = of_one_call(count_work(slices[0], input.kernel(pass)), block_rows(), input.kernel(pass));
    const bool beside = head_chunks.size() > 1;  // transfers go on while it computes
    for (const int heads : head_chunks) {
      const double overhead = grid.attend_s.empty() ? 0 : input.machine.stage_overhead_s;
      grid.attend_s.push_back(work_seconds(input, pass, work, heads_q() * heads / all_heads, beside) + overhead);
    }
  }

  void set_exchanges(AttnPass pass, GridPass& grid) const {
    if (shape().ulysses_degree == 1) return;
    const auto copy_s = [&](int64_t exchanged) {
      return packing_seconds(input.machine, static_cast<double>(head_copy_bytes(exchanged, shape().ulysses_degree)));
    };
    for (const int heads : head_chunks) {
      const HeadBytes bytes = head_bytes(sizes, predicted_call(sizes.config.heads), pass, heads);
      grid.exchanges.push_back({slowest_exchange(bytes.in, bytes.in_copies),
                                slowest_exchange(bytes.back, bytes.back_copies), copy_s(bytes.in), copy_s(bytes.back)});
    }
  }

  RankTime play(AttnPass pass) {
    GridPass grid{.shape = shape(), .backward = pass == AttnPass::kBackward, .hides = hides_transfers(input.machine)};
    if (groups() == 1) {
      set_chunks(pass, grid);
    } else if (shape().row_move == RowMove::kGather) {
      set_gather(pass, grid);
    } else {
      set_ring(pass, grid);
    }
    set_exchanges(pass, grid);
    return slowest_of(time_of(grid));
  }

  // Bytes into other nodes in both passes.
  double between_bytes() const {
    double sum = 0;
    const int heads_kv = local_heads_kv(sizes.config.heads, shape().ulysses_degree);
    const GridCall call = predicted_call(sizes.config.heads);
    if (shape().ulysses_degree > 1) {
      const HeadBytes forward = head_bytes(sizes, call, AttnPass::kForward, heads_kv);
      const HeadBytes backward = head_bytes(sizes, call, AttnPass::kBackward, heads_kv);
      for (int rank = 0; rank < input.cp_size(); ++rank) {
        sum += exchange(rank, forward.in + forward.back + backward.in + backward.back, 1).between.bytes;
      }
    }
    if (groups() == 1) return sum;
    const BlockBytes block = block_bytes(sizes);
    if (shape().row_move == RowMove::kGather) {
      return sum + input.cp_size() * gathered(2 * block.kv + block.dkv).between.bytes;
    }
    // Hops of each kind in a pass, of blocks and of gradients, which come home with one more.
    const double outer = static_cast<double>(groups()) / shape().inner_ring_size;
    const double inner_hops = outer * (shape().inner_ring_size - 1);
    const double kv = 2 * static_cast<double>(block.kv), dkv = static_cast<double>(block.dkv);
    for (size_t g = 0; g < groups(); ++g) {
      const Neighbours from = neighbours(g);
      sum += crossing(g, from.inner) * inner_hops * (kv + dkv);
      sum += crossing(g, from.outer) * (outer - 1) * kv + crossing(g, from.diagonal) * outer * dkv;
    }
    return sum;
  }
};

// Where a strategy has no use for what the configuration says for others, the planner's default stands.
DistAttnConfig config_of(const SimInput& input, Strategy name) {
  DistAttnConfig config = input.config;
  const StrategyConfig given = config.strategy;
  config.strategy = {};
  config.strategy.name = name;
  if (name == Strategy::kUsp || name == Strategy::kLoongTrain) config.strategy.ulysses_degree = given.ulysses_degree;
  if (name == Strategy::kLoongTrain) config.strategy.inner_ring_size = given.inner_ring_size;
  if (name == Strategy::kHcms) config.strategy.head_chunks = given.head_chunks;
  if (name == Strategy::kHybridCp) config.strategy.document_rows = given.document_rows;
  const DispatchAlgorithm algorithm = config.dispatch.algorithm;
  const bool in_order = algorithm == DispatchAlgorithm::kSequential || algorithm == DispatchAlgorithm::kZigzag;
  if (!in_order || name == Strategy::kHybridCp) {
    config.dispatch.algorithm = DispatchAlgorithm::kAuto;
  }
  return config;
}

StrategyPrediction simulate_shape(const SimInput& input, const DistAttnConfig& config) {
  constexpr const char* kFunction = "simulate";
  const GridShape shape = grid_shape(config, kFunction);
  const Dispatch q_dispatch = grid_dispatch(config, shape, input.mask.seqlen_q(), kFunction);
  const Dispatch k_dispatch = grid_dispatch(config, shape, input.mask.seqlen_k(), kFunction);
  const auto runs_of_groups = [&](const Dispatch& dispatch) {
    Dispatch groups{shape.row_groups, dispatch.chunk_size, {}};
    for (const int owner : dispatch.rank_of_chunk) groups.rank_of_chunk.push_back(owner / shape.ulysses_degree);
    return owned_runs(groups);
  };
  GridSim sim{input, {config, shape, q_dispatch.rows_per_rank(), k_dispatch.rows_per_rank()}, {}, {}, {}};
  sim.slices = cut_by_rank(input.mask, runs_of_groups(q_dispatch), shape.row_groups);
  sim.key_runs = runs_of_groups(k_dispatch);
  sim.head_chunks = head_chunks_of({sim.sizes, {input.mask.area()}}, kFunction);

  const RankTime forward = sim.play(AttnPass::kForward);
  const RankTime backward = sim.play(AttnPass::kBackward);
  const GridTraffic traffic = grid_traffic(sim.sizes, predicted_call(config.heads));
  StrategyPrediction prediction;
  prediction.forward_s = forward.total_s;
  prediction.backward_s = backward.total_s;
  prediction.compute_s = forward.busy_s + backward.busy_s;
  prediction.exposed_s = forward.exposed_s() + backward.exposed_s();
  prediction.forward_bytes = static_cast<double>(traffic.forward_bytes);
  prediction.backward_bytes = static_cast<double>(traffic.backward_bytes);
  prediction.between_bytes = sim.between_bytes();
  prediction.max_rank_bytes = (prediction.forward_bytes + prediction.backward_bytes) / input.cp_size();
  prediction.kv_rows_moved = shape.ulysses_degree == 1 ? input.mask.seqlen_k() * (shape.row_groups - 1) : 0;
  prediction.peak_bytes =
      static_cast<double>(largest_peak_bytes({config, shape, q_dispatch, k_dispatch, sim.head_chunks, sim.computes}));
  prediction.balance = balance_of(input, sim.slices);
  return prediction;
}

}  // namespace

StrategyPrediction simulate_grid(const SimInput& input, Strategy strategy) {
  const DistAttnConfig config = config_of(input, strategy);
  try {
    validate_config(config, "simulate");
    if (strategy == Strategy::kHybridCp) return simulate_documents({input.mask, config, input.machine});
    return simulate_shape(input, config);
  } catch (const InvalidArgument& error) {
    StrategyPrediction prediction;
    prediction.infeasible = error.requirement();
    return prediction;
  }
}

}  // namespace tangram::sim
