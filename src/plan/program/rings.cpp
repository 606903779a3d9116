// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs round a ring (arXiv 2310.01889) or a ring of rings (LoongTrain, arXiv 2406.18485). A block computes here
// while the next one arrives, and the gradients of a block follow it round the ring.
//
// NOTE [blocks of a ring]: on streams the host frees nothing. So blocks reuse memory of earlier ones if the transport
// can (ProgramTarget::ring_buffer_steps), and a pass takes equally much for any number of ranks. The rank that a block
// comes to says when its memory is free (ReleaseCreditOp), the one that sends takes that (GroupCast::credited). If a
// block is freed only when the next rank needs to send, ranks run in lockstep. Each further block lets them be a step
// apart.
#include <algorithm>

#include "plan/program/rows.hpp"

namespace tangram {

namespace {

/// All rows to one rank, all rows from one rank.
std::shared_ptr<const Exchange> whole_block(int target, int source, int64_t rows) {
  return shared({{{target, {0, rows}, 0}}, {{source, {0, rows}, 0}}});
}

/// The blocks of a ring by step, and the cast that brings each.
struct Ring {
  std::vector<PairRef> blocks;
  std::vector<int> casts;
  std::vector<std::vector<int>> gives;  ///< by step: casts to memory that the step before was the last to use
};

Ring make_ring(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const DType dtype = rank.plan.config.heads.dtype;
  const PairRef own{rows.call.k, rows.call.v};
  const auto& steps = rank.steps();
  Ring ring{{sendable(writer, own, dtype)}, {-1}, std::vector<std::vector<int>>(steps.size() + 1)};
  std::vector<bool> is_taken = {ring.blocks[0].k == own.k};  // memory of the own block may be kept, or the caller's
  for (size_t s = 1; s < steps.size(); ++s) {
    const int reused = reusable_block(writer, rank, is_taken, s);
    ring.blocks.push_back(reused < 0 ? arena_pair(writer, dtype, rank.block_rows(), ring.blocks[0])
                                     : ring.blocks[static_cast<size_t>(reused)]);
    is_taken.push_back(false);
    const auto exchange = whole_block(rank.rank_of(steps[s].target), rank.rank_of(steps[s].source), rank.block_rows());
    ring.casts.push_back(add_pair_cast(writer, exchange, ring.blocks[static_cast<size_t>(steps[s].posted)],
                                       ring.blocks[s], "ring kv",
                                       {.step = static_cast<int>(s), .credited = reused >= 0}));
    if (reused < 0) continue;
    is_taken[static_cast<size_t>(reused)] = true;
    ring.gives[static_cast<size_t>(reused) + 1].push_back(ring.casts.back());
  }
  return ring;
}

/// Calls `visit(cast)` for the casts of blocks that are sent for before a step computes.
template <class Visit>
void for_each_posted(const GridRank& rank, const Ring& ring, size_t step, const Visit& visit) {
  for (size_t s = step + 1; s < ring.blocks.size(); ++s) {
    if (static_cast<size_t>(rank.steps()[s].posted) == step) visit(ring.casts[s]);
  }
}

/// Waits for the block of a step, gives memory of the one before back, and sends for those that are sent for now.
void advance(ProgramWriter& writer, const GridRank& rank, const Ring& ring, size_t step) {
  if (step > 0) writer.wait(ring.casts[step]);
  if (!ring.gives[step].empty()) {
    for_each_posted(rank, ring, step - 1, [&](int cast) { writer.sent(cast); });
    for (const int cast : ring.gives[step]) writer.release_credit(cast);
  }
  for_each_posted(rank, ring, step, [&](int cast) { writer.cast(cast); });
}

/// Gradients of blocks by step: as they leave, as they come, and the cast in between. A rank has added what came to
/// what it sends next before it sends that, a step later than it needs the memory again.
struct GradRing {
  std::vector<PairRef> sent, come;
  std::vector<int> casts;
};

GradRing make_grad_ring(ProgramWriter& writer, const GridRank& rank, const PairRef& made) {
  const DType move = rank.plan.config.reduce_dtype;
  const auto& steps = rank.steps();
  const int ring_buffer_steps = writer.target().ring_buffer_steps;
  GradRing ring;
  for (size_t s = 0; s < steps.size(); ++s) {
    const bool reuses = ring_buffer_steps >= 0;
    const auto blocks = static_cast<size_t>(ring_buffer_steps + 1);
    const bool credited = reuses && s >= blocks;
    ring.sent.push_back(reuses && s > 0 ? ring.sent[0] : arena_pair(writer, move, rank.block_rows(), made));
    ring.come.push_back(credited ? ring.come[s - blocks] : arena_pair(writer, move, rank.block_rows(), made));
    const auto exchange =
        whole_block(rank.rank_of(steps[s].grad_target), rank.rank_of(steps[s].grad_source), rank.block_rows());
    ring.casts.push_back(add_pair_cast(writer, exchange, ring.sent[s], ring.come[s], "ring dkv",
                                       {.results = true, .step = static_cast<int>(s), .credited = credited}));
  }
  return ring;
}

}  // namespace

int reusable_block(const ProgramWriter& writer, const GridRank& rank, const std::vector<bool>& is_taken, size_t next) {
  const int ring_buffer_steps = writer.target().ring_buffer_steps;
  if (ring_buffer_steps < 0) return -1;
  const int last_step = rank.steps()[next].posted - 1 - ring_buffer_steps;
  const auto found = std::find(is_taken.begin(), is_taken.end(), false);
  const auto block = static_cast<int>(found - is_taken.begin());
  return found != is_taken.end() && block <= last_step ? block : -1;
}

void write_ring_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const Ring ring = make_ring(writer, rank, rows);
  write_steps_forward(
      writer, rank, rows, [&](size_t s) { advance(writer, rank, ring, s); }, [&](size_t s) { return ring.blocks[s]; });
}

void write_ring_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows) {
  const size_t num_steps = rank.steps().size();
  const int ring_buffer_steps = writer.target().ring_buffer_steps;
  const Ring ring = make_ring(writer, rank, rows);
  const TensorRef dq = sum_for(writer, rows.call.dq, rows.result_dtype);
  const PairRef made = work_pair(writer, DType::kFloat32, rank.block_rows(), ring.blocks[0]);
  const GradRing grads = make_grad_ring(writer, rank, made);
  for (size_t s = 0; s < num_steps; ++s) {
    writer.begin_step(s);
    advance(writer, rank, ring, s);
    write_step_backward(writer, rank, rows, s, ring.blocks[s], dq, made);
    PairRef before;
    if (s > 0) {
      before = grads.come[s - 1];
      writer.wait(grads.casts[s - 1]);
      if (ring_buffer_steps >= 0) writer.sent(grads.casts[s - 1]);
    }
    writer.sum_rows({{made.k, before.k, grads.sent[s].k}, {made.v, before.v, grads.sent[s].v}});
    const size_t next = s + static_cast<size_t>(std::max(ring_buffer_steps, 0));
    if (ring_buffer_steps >= 0 && s > 0 && next < num_steps) writer.release_credit(grads.casts[next]);
    writer.cast(grads.casts[s]);
  }
  if (dq != rows.call.dq) writer.copy_rows(dq, rows.call.dq);
  writer.wait(grads.casts.back());
  writer.sum_rows({{grads.come.back().k, {}, rows.call.dk}, {grads.come.back().v, {}, rows.call.dv}});
}

}  // namespace tangram
