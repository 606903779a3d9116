// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HybridCP: each rank computes what its shard holds of both sides of the mask, then the rings of all sub-groups turn at
// once. The rows of the next turn come while one computes; backward, gradients follow their rows and then go home.
#include <algorithm>
#include <utility>

#include "core/require.hpp"
#include "plan/program/rows.hpp"

namespace tangram {

namespace {

const SubRingStep& sub_ring_step(const GridRank& rank, size_t step) { return rank.steps()[step].sub_rings; }

/// Rows that any rank holds in a step: memory is alike on all ranks.
int64_t most_rows(const GridRank& rank, size_t step) {
  int64_t rows = 0;
  for (const auto& steps : rank.grid().steps) rows = std::max(rows, steps[step].sub_rings.rows);
  return rows;
}

int64_t most_home_rows(const GridRank& rank, size_t step) {
  int64_t rows = 0;
  for (const auto& steps : rank.grid().steps) rows = std::max(rows, steps[step].sub_rings.home.rows_received());
  return rows;
}

/// Whether gradients of some ranks go home after this step. The same on every rank.
bool ends_ring(const GridRank& rank, size_t step) {
  return std::any_of(rank.grid().levels.begin(), rank.grid().levels.end(),
                     [step](const SubGroupLevel& level) { return level.ranks == static_cast<int>(step) + 1; });
}

PairRef first_rows(const PairRef& pair, int64_t rows) { return {pair.k.slice({0, rows}), pair.v.slice({0, rows})}; }

/// The rows of each step, and the casts that bring them.
struct StepRows {
  std::vector<PairRef> rows;
  std::vector<std::vector<int>> casts;
};

StepRows make_step_rows(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const DType dtype = rank.plan.config.heads.dtype;
  const PairRef own{rows.call.k, rows.call.v};
  const bool sends = rank.steps().size() > 1;  // else there is no epoch, and so no arena
  StepRows steps{{sends ? sendable(writer, own, dtype) : own}, {{}}};
  for (size_t s = 1; s < rank.steps().size(); ++s) {
    steps.rows.push_back(arena_pair(writer, dtype, most_rows(rank, s), steps.rows[0]));
    std::vector<int>& casts = steps.casts.emplace_back();
    for (const Exchange& exchange : sub_ring_step(rank, s).casts) {
      casts.push_back(add_pair_cast(writer, borrowed(exchange), steps.rows[s - 1], steps.rows[s], "sub-ring kv",
                                    {{}, false, static_cast<int>(s)}));
    }
  }
  return steps;
}

void advance(ProgramWriter& writer, const StepRows& steps, size_t step) {
  for (const int cast : steps.casts[step]) writer.wait(cast);
  if (step + 1 == steps.casts.size()) return;
  for (const int cast : steps.casts[step + 1]) writer.cast(cast);
}

PairRef held_rows(const GridRank& rank, const StepRows& steps, size_t step) {
  return step == 0 ? steps.rows[0] : first_rows(steps.rows[step], sub_ring_step(rank, step).rows);
}

/// Gradients of one step on their way: to the next holder, and home.
struct Leaving {
  PairRef onward, home;
  std::vector<int> casts;
};

Leaving send_grads(ProgramWriter& writer, const GridRank& rank, size_t step, const PairRef& made,
                   const PairRef& before) {
  const DType dtype = rank.plan.config.reduce_dtype;
  const int64_t rows = sub_ring_step(rank, step).rows;
  const PairRef sent = arena_pair(writer, dtype, most_rows(rank, step), made);
  const PairRef some = first_rows(sent, rows);
  const bool has_before = before.k.memory != Memory::kNone;
  const PairRef added = has_before ? first_rows(before, rows) : PairRef{};
  writer.sum_rows({{made.k, added.k, some.k}, {made.v, added.v, some.v}});
  Leaving leaving;
  const auto send = [&](const Exchange& exchange, int64_t target_rows, const char* label) {
    const PairRef target = arena_pair(writer, dtype, target_rows, made);
    leaving.casts.push_back(
        add_pair_cast(writer, borrowed(exchange), sent, target, label, {{}, true, static_cast<int>(step)}));
    writer.cast(leaving.casts.back());
    return target;
  };
  if (step + 1 < rank.steps().size()) {
    TANGRAM_ASSERT(sub_ring_step(rank, step + 1).casts.size() == 1);
    leaving.onward = send(sub_ring_step(rank, step + 1).casts.front(), most_rows(rank, step + 1), "sub-ring dkv");
  }
  if (ends_ring(rank, step))
    leaving.home = send(sub_ring_step(rank, step).home, most_home_rows(rank, step), "sub-ring dkv home");
  return leaving;
}

/// Adds what has come home after `step` into the gradients of the shard.
void finish_grads(ProgramWriter& writer, const GridRank& rank, const Leaving& leaving, size_t step,
                  const PairRef& own) {
  for (const int cast : leaving.casts) writer.wait(cast);
  if (leaving.home.k.memory == Memory::kNone) return;
  int64_t row = 0;
  std::vector<RowSumOp> sums;
  for (const Range& rows : sub_ring_step(rank, step).home_rows) {
    const Range come = {row, row + rows.size()};
    const TensorRef k = own.k.slice(rows), v = own.v.slice(rows);
    sums.push_back({k, leaving.home.k.slice(come), k});
    sums.push_back({v, leaving.home.v.slice(come), v});
    row += rows.size();
  }
  writer.sum_rows(std::move(sums));
}

}  // namespace

void write_sub_rings_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const StepRows steps = make_step_rows(writer, rank, rows);
  write_steps_forward(
      writer, rank, rows, [&](size_t s) { advance(writer, steps, s); },
      [&](size_t s) { return held_rows(rank, steps, s); });
}

void write_sub_rings_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const size_t num_steps = rank.steps().size();
  const StepRows steps = make_step_rows(writer, rank, rows);
  const TensorRef dq = sum_for(writer, rows.call.dq, rows.result_dtype);
  const PairRef own = work_pair(writer, DType::kFloat32, rank.block_rows(), steps.rows[0]);
  Leaving leaving;
  for (size_t s = 0; s < num_steps; ++s) {
    writer.begin_step(s);
    advance(writer, steps, s);
    const PairRef made = s == 0 ? own : work_pair(writer, DType::kFloat32, sub_ring_step(rank, s).rows, own);
    write_step_backward(writer, rank, rows, s, held_rows(rank, steps, s), dq, made);
    if (s == 0) continue;
    if (s > 1) finish_grads(writer, rank, leaving, s - 1, own);
    leaving = send_grads(writer, rank, s, made, s > 1 ? leaving.onward : PairRef{});
  }
  if (dq != rows.call.dq) writer.copy_rows(dq, rows.call.dq);
  if (num_steps > 1) finish_grads(writer, rank, leaving, num_steps - 1, own);
  writer.sum_rows({{own.k, {}, rows.call.dk}, {own.v, {}, rows.call.dv}});
}

}  // namespace tangram
