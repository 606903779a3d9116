// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HybridCP: documents assigned and rings as in plans; only the seconds of kernels and links come from the machine
// model.
#include <algorithm>

#include "plan/clock/grid_time.hpp"
#include "plan/cost.hpp"
#include "plan/grid/grid.hpp"
#include "plan/grid/sub_ring_layout.hpp"
#include "plan/simulate/plan_sketch.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

namespace {

constexpr double kTensors = 2;  // K and V, or their gradients

struct DocumentsSim {
  const SimInput& input;
  AssignedRows rows;
  SubRingLayout layout;
  std::vector<std::vector<AttnSlice>> slices;  // by rank, keys in global rows
  // Complete once a pass was played.
  bool computes_later = false;      // some rank, after the first step
  std::vector<bool> computes_last;  // by rank, in the last step

  int64_t rows_per_rank(const std::vector<OwnedRun>& runs) const { return runs.back().global.end / input.cp_size(); }

  void add(Transfer& transfer, size_t level, int rank, const SubRingPart& part, double row_bytes, double copies) const {
    if (part.rows == 0) return;
    const bool near = input.node_of(rank) == input.node_of(layout.neighbour(level, rank, -1));
    (near ? transfer.inside : transfer.between) +=
        LinkLoad{static_cast<double>(part.rows) * row_bytes, copies * kTensors};
  }

  // Rows for `step` > 0. The first come piece by piece out of the neighbour's shard, later ones as one.
  Transfer cast(int rank, int step) const {
    const double row_bytes = static_cast<double>(kv_row_bytes(input.config.heads));
    Transfer transfer;
    for (size_t level = 1; level < layout.sizes.size(); ++level) {
      if (!layout.moves(level, step)) continue;
      const SubRingPart& part = layout.part_in_step(level, rank, step);
      add(transfer, level, rank, part, row_bytes, step == 1 ? static_cast<double>(part.ranges.size()) : 1);
    }
    return transfer;
  }

  // Gradients that the rank receives after `step` > 0: of the next step's rows, or its own that come home.
  Transfer gradients(int rank, int step) const {
    const double row_bytes = static_cast<double>(kv_grad_row_bytes(input.config.heads, input.config.reduce_dtype));
    Transfer transfer;
    for (size_t level = 1; level < layout.sizes.size(); ++level) {
      if (layout.moves(level, step)) {
        add(transfer, level, rank, layout.part_in_step(level, rank, step + 1), row_bytes, 1);
      }
    }
    return transfer;
  }

  std::vector<SubRingSeconds> seconds_of(int rank, AttnPass pass) {
    std::vector<Work> work(static_cast<size_t>(layout.num_steps()));
    for_each_sub_ring_piece(layout, rank, slices[static_cast<size_t>(rank)],
                            [&](int step, const AttnSlice& piece, const SubRingKeys&) {
                              work[static_cast<size_t>(step)] += count_work(piece, input.kernel(pass));
                            });
    bool sums = false;
    for (size_t step = 1; step < work.size(); ++step) sums = sums || work[step].area > 0;
    computes_later = computes_later || sums;
    computes_last[static_cast<size_t>(rank)] = work.back().area > 0;
    const double heads = input.config.heads.num_heads_q;
    const double grad_bytes = static_cast<double>(kv_grad_row_bytes(input.config.heads, input.config.reduce_dtype));
    std::vector<SubRingSeconds> result;
    for (int step = 0; step < layout.num_steps(); ++step) {
      const int64_t keys = step == 0 ? rows_per_rank(rows.k) : layout.rows_in_step(rank, step);
      const Work own = of_one_call(work[static_cast<size_t>(step)], static_cast<double>(keys), input.kernel(pass));
      SubRingSeconds of_step;
      of_step.attend_s = work_seconds(input, pass, own, input.config.heads.num_heads_q, layout.num_steps() > 1);
      if (step > 0 && own.area > 0) {
        of_step.attend_s += input.machine.stage_overhead_s +
                            accumulate_seconds(input, pass, rows_per_rank(rows.q), input.config.heads.num_heads_q);
      }
      if (step == 0 && sums) of_step.attend_s += rounding_seconds(input, pass, rows_per_rank(rows.q), heads);
      if (step > 0 &&
          pass == AttnPass::kBackward) {  // gradients that come are read, added to those of the step, written
        const double bytes = grad_bytes * static_cast<double>(layout.rows_in_step(rank, step));
        of_step.attend_s += packing_seconds(input.machine, 3 * bytes);
      }
      if (step + 1 < layout.num_steps()) of_step.next_s = transfer_seconds(input.machine, cast(rank, step + 1));
      if (pass == AttnPass::kBackward && step > 0) {
        of_step.grads_s = transfer_seconds(input.machine, gradients(rank, step));
      }
      result.push_back(of_step);
    }
    return result;
  }

  SlowestPass play(AttnPass pass) {
    std::vector<std::vector<SubRingSeconds>> seconds;
    for (int rank = 0; rank < input.cp_size(); ++rank) seconds.push_back(seconds_of(rank, pass));
    SlowestPass slowest;
    slowest.take(time_of(seconds, pass == AttnPass::kBackward, hides_transfers(input.machine)));
    return slowest;
  }

  // What follows from the rows of steps: bytes of single ranks and of links, memory.
  void count(StrategyPrediction& prediction) const {
    for (int rank = 0; rank < input.cp_size(); ++rank) {
      Transfer received;
      for (int step = 1; step < layout.num_steps(); ++step) {
        received += scaled(cast(rank, step), 2);  // in both passes
        received += gradients(rank, step);
      }
      prediction.between_bytes += received.between.bytes;
      prediction.max_rank_bytes = std::max(prediction.max_rank_bytes, received.bytes());
    }
    prediction.peak_bytes = static_cast<double>(largest_peak_bytes(
        {input.config, layout, rows_per_rank(rows.q), rows_per_rank(rows.k), computes_later, computes_last}));
    const GridTraffic traffic = sub_ring_traffic(input.config, layout.levels);
    prediction.forward_bytes = static_cast<double>(traffic.forward_bytes);
    prediction.backward_bytes = static_cast<double>(traffic.backward_bytes);
    for (const SubGroupLevel& level : layout.levels) prediction.kv_rows_moved += (level.ranks - 1) * level.k_rows;
    prediction.balance = balance_of(input, slices);
  }
};

}  // namespace

StrategyPrediction simulate_documents(const SimInput& input) {
  DocumentsSim sim{input, assign_document_rows(input.mask, input.config), {}, {}};
  sim.computes_last.resize(static_cast<size_t>(input.cp_size()));
  sim.layout = lay_out_sub_rings(find_documents(input.mask, 1), sim.rows.q, sim.rows.k, input.cp_size());
  sim.slices = cut_by_rank(input.mask, sim.rows.q, input.cp_size());
  StrategyPrediction prediction;
  set_times(prediction, sim.play(AttnPass::kForward), sim.play(AttnPass::kBackward));
  sim.count(prediction);
  return prediction;
}

}  // namespace tangram::sim
