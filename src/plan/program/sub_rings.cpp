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

int64_t most_rows_of_any_step(const GridRank& rank) {
  int64_t rows = 0;
  for (size_t s = 1; s < rank.steps().size(); ++s) rows = std::max(rows, most_rows(rank, s));
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

bool reuses(const ProgramWriter& writer) { return writer.target().ring_buffer_steps >= 0; }

/// The rows of each step, and the casts that bring them.
struct StepRows {
  std::vector<PairRef> rows;
  std::vector<std::vector<int>> casts;
  std::vector<std::vector<int>> gives;  ///< casts to memory that the step before was the last to use
};

StepRows make_step_rows(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const DType dtype = rank.plan.config.heads.dtype;
  const PairRef own{rows.call.k, rows.call.v};
  const size_t num_steps = rank.steps().size();
  const bool sends = num_steps > 1;  // else there is no epoch, and so no arena
  StepRows steps{{sends ? sendable(writer, own, dtype) : own}, {{}}, std::vector<std::vector<int>>(num_steps + 1)};
  // Memory of one step serves any other.
  const int64_t most = most_rows_of_any_step(rank);
  std::vector<PairRef> memory = {steps.rows[0]};
  std::vector<bool> is_taken = {steps.rows[0].k == own.k || own.k.rows < most};
  for (size_t s = 1; s < num_steps; ++s) {
    const int reused = reusable_block(writer, rank, is_taken, s);
    memory.push_back(reused < 0 ? arena_pair(writer, dtype, reuses(writer) ? most : most_rows(rank, s), own)
                                : memory[static_cast<size_t>(reused)]);
    is_taken.push_back(false);
    steps.rows.push_back(slice(memory[s], {0, most_rows(rank, s)}));
    std::vector<int>& casts = steps.casts.emplace_back();
    for (const Exchange& exchange : sub_ring_step(rank, s).casts) {
      casts.push_back(add_pair_cast(writer, borrowed(exchange), steps.rows[s - 1], steps.rows[s], "sub-ring kv",
                                    {.step = static_cast<int>(s), .credited = reused >= 0}));
    }
    if (reused < 0) continue;
    is_taken[static_cast<size_t>(reused)] = true;
    std::vector<int>& gives = steps.gives[static_cast<size_t>(reused) + 1];
    gives.insert(gives.end(), casts.begin(), casts.end());
  }
  return steps;
}

void advance(ProgramWriter& writer, const StepRows& steps, size_t step) {
  for (const int cast : steps.casts[step]) writer.wait(cast);
  if (!steps.gives[step].empty()) {
    for (const int cast : steps.casts[step]) writer.sent(cast);
    for (const int cast : steps.gives[step]) writer.release_credit(cast);
  }
  if (step + 1 == steps.casts.size()) return;
  for (const int cast : steps.casts[step + 1]) writer.cast(cast);
}

PairRef held_rows(const GridRank& rank, const StepRows& steps, size_t step) {
  return step == 0 ? steps.rows[0] : slice(steps.rows[step], {0, sub_ring_step(rank, step).rows});
}

/// Gradients of a step on their way: to the next holder, and home.
struct Leaving {
  PairRef sent, onward, home;
  int onward_cast = -1, home_cast = -1;

  std::vector<int> casts() const {
    std::vector<int> numbers;
    for (const int cast : {onward_cast, home_cast}) {
      if (cast >= 0) numbers.push_back(cast);
    }
    return numbers;
  }
};

/// Gradients that leave, by step from 1 on. Gradients of one step have left before the next one's are made. So with
/// reused memory all leave from one place, and arrive where gradients arrived that have been added since.
std::vector<Leaving> make_leaving(ProgramWriter& writer, const GridRank& rank, const PairRef& like) {
  const DType dtype = rank.plan.config.reduce_dtype;
  const auto blocks = static_cast<size_t>(std::max(writer.target().ring_buffer_steps + 1, 0));
  const int64_t most = most_rows_of_any_step(rank);
  std::vector<Leaving> all(rank.steps().size());
  for (size_t s = 1; s < all.size(); ++s) {
    Leaving& leaving = all[s];
    leaving.sent = reuses(writer) && s > 1
                       ? all[1].sent
                       : arena_pair(writer, dtype, reuses(writer) ? most : most_rows(rank, s), like);
    const auto add = [&](const Exchange& exchange, const PairRef& target, const char* label, bool credited) {
      return add_pair_cast(writer, borrowed(exchange), leaving.sent, target, label,
                           {.results = true, .step = static_cast<int>(s), .credited = credited});
    };
    if (s + 1 < all.size()) {
      TANGRAM_ASSERT(sub_ring_step(rank, s + 1).casts.size() == 1);
      const bool credited = reuses(writer) && s > blocks;
      leaving.onward = credited ? all[s - blocks].onward
                                : arena_pair(writer, dtype, reuses(writer) ? most : most_rows(rank, s + 1), like);
      leaving.onward_cast = add(sub_ring_step(rank, s + 1).casts.front(), leaving.onward, "sub-ring dkv", credited);
    }
    if (!ends_ring(rank, s)) continue;
    leaving.home = arena_pair(writer, dtype, most_home_rows(rank, s), like);
    leaving.home_cast = add(sub_ring_step(rank, s).home, leaving.home, "sub-ring dkv home", false);
  }
  return all;
}

/// Sends what `step` made, with what came from the holder before.
void send_grads(ProgramWriter& writer, const GridRank& rank, const std::vector<Leaving>& all, size_t step,
                const PairRef& made) {
  const int64_t rows = sub_ring_step(rank, step).rows;
  const PairRef some = slice(all[step].sent, {0, rows});
  const PairRef added = step > 1 ? slice(all[step - 1].onward, {0, rows}) : PairRef{};
  if (reuses(writer)) {
    for (const int cast : all[step - 1].casts()) writer.sent(cast);
  }
  writer.sum_rows({{made.k, added.k, some.k}, {made.v, added.v, some.v}});
  const size_t next = step + static_cast<size_t>(std::max(writer.target().ring_buffer_steps, 0));
  if (reuses(writer) && step > 1 && next + 1 < all.size()) writer.release_credit(all[next].onward_cast);
  for (const int cast : all[step].casts()) writer.cast(cast);
}

/// Adds what has come home after `step` into the gradients of the shard.
void finish_grads(ProgramWriter& writer, const GridRank& rank, const Leaving& leaving, size_t step,
                  const PairRef& own) {
  for (const int cast : leaving.casts()) writer.wait(cast);
  if (leaving.home.k.memory == Memory::kNone) return;
  int64_t row = 0;
  std::vector<RowSumOp> sums;
  for (const Range& rows : sub_ring_step(rank, step).home_rows) {
    const Range come = {row, row + rows.size()};
    const PairRef to = slice(own, rows), home = slice(leaving.home, come);
    sums.push_back({to.k, home.k, to.k});
    sums.push_back({to.v, home.v, to.v});
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
  const std::vector<Leaving> leaving = make_leaving(writer, rank, own);
  int64_t most_made = 0;
  for (size_t s = 1; s < num_steps; ++s) most_made = std::max(most_made, sub_ring_step(rank, s).rows);
  PairRef made_rows;  // the host frees them
  if (!writer.target().sends_from_anywhere) made_rows = work_pair(writer, DType::kFloat32, most_made, own);
  for (size_t s = 0; s < num_steps; ++s) {
    writer.begin_step(s);
    advance(writer, steps, s);
    const int64_t num_rows = sub_ring_step(rank, s).rows;
    const PairRef made = s == 0                                ? own
                         : writer.target().sends_from_anywhere ? work_pair(writer, DType::kFloat32, num_rows, own)
                                                               : slice(made_rows, {0, num_rows});
    write_step_backward(writer, rank, rows, s, held_rows(rank, steps, s), dq, made);
    if (s == 0) continue;
    if (s > 1) finish_grads(writer, rank, leaving[s - 1], s - 1, own);
    send_grads(writer, rank, leaving, s, made);
  }
  if (dq != rows.call.dq) writer.copy_rows(dq, rows.call.dq);
  if (num_steps > 1) finish_grads(writer, rank, leaving.back(), num_steps - 1, own);
  writer.sum_rows({{own.k, {}, rows.call.dk}, {own.v, {}, rows.call.dv}});
}

}  // namespace tangram
