// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward: q, k and v go out to where the plan computes, out and lse come back and are joined by lse. Backward: q,
// dout, lse and delta go out with k and v; parts of dq, dk and dv come back and are added by their owner.
//
// Rows of the shard are taken by groups of heads, one group after the other, as the tables count them.
//
// On streams casts read the arena alone and do not add. Rows that other ranks fetch are copied there. Parts that come
// back have rows of their own (RecvBufferRows), which the owner joins at the end.
#include <limits>
#include <utility>

#include "core/require.hpp"
#include "plan/program/emitters.hpp"
#include "plan/program/movement_writer.hpp"

namespace tangram {

Program MovementWriter::forward() {
  begin(call_.keeps, true);
  make_keys();
  if (!on_stream()) fill_keys();
  find_recv_buffer_rows();
  const int64_t own_rows = groups_ * given_.q.rows;
  const PartialRef own{sum_of(given_.out, call_.out), sum_of(given_.lse, DType::kFloat32)};
  const PartialRef fetched{sendable(DType::kFloat32, fetched_rows(), given_.out),
                           on_stream() && sends_columns_as_they_are()
                               ? arena_floats(fetched_rows())
                               : work(DType::kFloat32, rank_.remote_q_rows, given_.lse)};
  PartialRef sent = fetched, others;  // others: what other ranks compute for rows of this one
  if (on_stream()) {
    if (!sends_columns_as_they_are()) sent.lse = arena_floats(fetched_rows());
    others = {arena(DType::kFloat32, recv_buffers_.most_rows, given_.out), arena_floats(recv_buffers_.most_rows)};
  } else {
    const int64_t rows = lends_q_ ? own_rows : 0;
    others = {work(DType::kFloat32, rows, given_.out), work(DType::kFloat32, rows, given_.lse)};
  }
  if (!on_stream() && lends_q_) {
    writer_.zero(others.out);
    writer_.copy_floats(
        {{{}, floats_of_rows(others.lse), own_rows, others.lse.heads, -std::numeric_limits<float>::infinity()}});
  }
  make_maxima();
  std::vector<int64_t> next_maximum(maxima_.size(), 1);
  add_casts({{q_.sent, fetched_q_}}, "q stage", true);
  if (on_stream()) fill_keys();
  const auto attend = [&](const MovementCall& call, size_t mask) {
    AttendOp op = attend_to(call, mask);
    const PartialRef& results = call.fetched ? fetched : own;
    op.out = results.out.slice(call.rows);
    op.lse = floats_of_rows(results.lse.slice(call.rows));
    const auto group = static_cast<size_t>(call.group);
    op.max_logits = maxima_[group];
    if (call.fetched) op.max_logits.offset = op.max_logits.stride * next_maximum[group]++;
    writer_.attend(op);
  };
  play_stages([](size_t) {}, attend,
              [&](size_t stage) {
                if (!steps_[stage].moves_q) return;
                if (sent.lse != fetched.lse) {
                  std::vector<FloatCopyOp> copies;
                  append_float_copies(copies, fetched.lse.slice(fetched_in(stage)), sent.lse.slice(fetched_in(stage)));
                  writer_.copy_floats(std::move(copies));
                }
                GroupCast cast = return_cast(stage, {{sent.out, others.out}, {sent.lse, others.lse}}, "out stage");
                cast.by_lse = cast.adds;
                writer_.cast(writer_.add_cast(std::move(cast)));
              });
  writer_.wait_for_all();
  writer_.begin_step(kAtEnd);
  const RowListsRef lists = add_lists();
  for (int group = 0; group < groups_; ++group) {
    const Range rows = rows_of_group(group);
    const FloatRef& from = maxima_[static_cast<size_t>(group)];
    const int heads = given_.q.heads / groups_;
    writer_.append(
        {LargestOp{from, {Memory::kMaxLogits, group * heads, heads}, num_maxima_[static_cast<size_t>(group)], heads}});
    MergeOp merge{own.out.slice(rows), own.lse.slice(rows), {}, {}, sink_of(Memory::kSink, group)};
    if (lends_q_ && on_stream()) {
      merge.other_out = others.out;
      merge.other_lse = others.lse;
      merge.other_lse.heads = heads;
      merge.other_rows = {lists.lists, rows.begin};
    } else if (lends_q_) {
      merge.other_out = others.out.slice(rows);
      merge.other_lse = others.lse.slice(rows);
    }
    if (lends_q_ || call_.seqlen_sink > 0) writer_.append(merge);
  }
  write_groups(own.out, {}, {}, given_.out);
  if (groups_ > 1) copy_lse(own.lse, false);
  return writer_.take();
}

Program MovementWriter::backward(bool kept) {
  const DType move = plan_.config.reduce_dtype;
  const int64_t own_rows = groups_ * given_.q.rows;
  begin(kept, !kept);
  if (!kept) make_keys();
  if (!kept && !on_stream()) fill_keys();
  find_recv_buffer_rows();
  std::vector<RowSumOp> copies;
  const Operand dout = operand(given_.dout, moves_q_, lends_q_, copies);
  writer_.sum_rows(std::move(copies));
  const Operand lse = float_operand(grouped_lse()), delta = float_operand(floats_by_groups());
  for (int group = 0; group < groups_; ++group) {
    writer_.append(
        DeltaOp{of_group(given_.out, group), of_group(given_.dout, group), delta.own.slice(rows_of_group(group))});
  }
  send_floats(lse);
  send_floats(delta);
  const TensorRef fetched_dout = arena(dout.own.dtype, fetched_rows(), given_.dout);
  const TensorRef landed_lse = arena_floats(fetched_rows()), landed_delta = arena_floats(fetched_rows());
  const TensorRef fetched_lse = calls_floats(landed_lse), fetched_delta = calls_floats(landed_delta);
  std::vector<std::pair<TensorRef, TensorRef>> with_queries = {
      {dout.sent, fetched_dout}, {lse.sent, landed_lse}, {delta.sent, landed_delta}};
  if (!kept) with_queries.emplace_back(q_.sent, fetched_q_);
  add_casts(with_queries, "dout stage", !kept);
  if (!kept && on_stream()) fill_keys();

  const TensorRef own_dq = sum_of(given_.dq, call_.dq);
  TensorRef fetched_dq, sent_dq, dq_of_others;
  if (move == DType::kFloat32) {
    fetched_dq = sent_dq = sendable(move, fetched_rows(), given_.dq);
  } else {
    fetched_dq = work(DType::kFloat32, rank_.remote_q_rows, given_.dq);
    sent_dq = sendable(move, fetched_rows(), given_.dq);
  }
  if (on_stream()) {
    dq_of_others = arena(move, recv_buffers_.most_rows, given_.dq);
  } else {
    dq_of_others = work(move, lends_q_ ? own_rows : 0, given_.dq);
    if (lends_q_) writer_.zero(dq_of_others);
  }
  const auto key_gradients = [&]() -> KeyGradients {
    const int64_t shard_rows = groups_ * given_.keys.k.rows;
    if (!on_stream()) {
      return {writer_, layout_, key_heads_, move, moves_kv_, lends_kv_ ? shard_rows : 0};
    }
    return {writer_,
            layout_,
            key_heads_,
            move,
            moves_kv_,
            recv_buffer_rows(pass_, self_, &MovementStage::kv, shard_rows),
            arena_rows([](const MovementRank& rank) { return rank.kv_rows; })};
  };
  KeyGradients grads = key_gradients();

  const size_t first_mask = movement_calls(plan_, plan_.movement()->forward[self_]).size();
  const auto attend = [&](const MovementCall& call, size_t number) {
    AttendOp op = attend_to(call, first_mask + number);
    const auto rows_of = [&](const TensorRef& own, const TensorRef& fetched) {
      return (call.fetched ? fetched : own).slice(call.rows);
    };
    op.backward = true;
    op.lse = floats_of_rows(rows_of(lse.own, fetched_lse));
    op.delta = floats_of_rows(rows_of(delta.own, fetched_delta));
    op.dout = rows_of(dout.own, fetched_dout);
    op.dq = rows_of(own_dq, fetched_dq);
    op.dk = grads.computed().k;
    op.dv = grads.computed().v;
    op.accumulate_kv = true;
    writer_.attend(op);
  };
  const auto arrive = [&](size_t stage) {
    if (fetched_lse == landed_lse) return;
    std::vector<FloatCopyOp> columns;
    append_float_copies(columns, landed_lse.slice(fetched_in(stage)), fetched_lse.slice(fetched_in(stage)));
    append_float_copies(columns, landed_delta.slice(fetched_in(stage)), fetched_delta.slice(fetched_in(stage)));
    writer_.copy_floats(std::move(columns));
  };
  play_stages(arrive, attend, [&](size_t stage) {
    if (steps_[stage].moves_q) {
      std::vector<RowSumOp> rounded;
      const Range rows = fetched_in(stage);
      if (sent_dq != fetched_dq) rounded.push_back({fetched_dq.slice(rows), {}, sent_dq.slice(rows)});
      writer_.sum_rows(std::move(rounded));
      writer_.cast(writer_.add_cast(return_cast(stage, {{sent_dq, dq_of_others}}, "dq stage")));
    }
    for (const size_t complete : steps_[stage].complete_kv) {
      grads.send_back(writer_, rank_.stages[complete].kv, complete);
    }
  });
  writer_.begin_step(kAtEnd);
  for (int group = 0; group < groups_ && call_.seqlen_sink > 0 && call_.wants_dsink; ++group) {
    const Range rows = rows_of_group(group);
    writer_.append(SinkGradOp{lse.own.slice(rows), delta.own.slice(rows), sink_of(Memory::kSink, group),
                              sink_of(Memory::kDsink, group)});
  }
  writer_.wait_for_all();
  const RowListsRef lists = add_lists();
  write_groups(own_dq, on_stream() && !lends_q_ ? TensorRef{} : dq_of_others, lists, given_.dq);
  grads.finish(writer_, given_.key_grads, groups_);
  return writer_.take();
}

std::vector<ProgramMask> movement_masks(const Plan& plan, int rank) {
  const HeadConfig& h = plan.config.heads;
  const int groups = plan.movement()->head_groups;
  const auto cp_size = static_cast<size_t>(plan.cp_size());
  TANGRAM_ASSERT(plan.movement()->forward.size() == cp_size && plan.movement()->backward.size() == cp_size);
  std::vector<ProgramMask> masks;
  for (const bool backward : {false, true}) {
    const MovementRank& of =
        (backward ? plan.movement()->backward : plan.movement()->forward)[static_cast<size_t>(rank)];
    for (MovementCall& call : movement_calls(plan, of)) {
      masks.push_back({{call.rows.size(), of.kv_rows, h.num_heads_q / groups, h.num_heads_kv / groups, h.head_dim,
                        h.head_dim_v, h.dtype},
                       std::move(call.slices),
                       true,
                       backward ? AttnPasses::kBackward : AttnPasses::kForward});
    }
  }
  return masks;
}

Program movement_forward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target) {
  return MovementWriter(plan, rank, false, call, target).forward();
}

Program movement_backward(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept) {
  return MovementWriter(plan, rank, true, call, target).backward(kept);
}

}  // namespace tangram
