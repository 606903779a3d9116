// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a pass checks before it posts anything, so that a bad argument ends in an error on every rank.
#include "attn/arguments.hpp"
#include "core/require.hpp"
#include "runtime/rank_context.hpp"

namespace tangram {

namespace {

void check_input(const char* function, DType dtype, const ConstTensorView& view, const ExpectedTensor& expected) {
  validate_tensor(function, view, expected);
  require(view.dtype == dtype, "{}: {} must be {} as planned (got {})", function, expected.name, to_string(dtype),
          to_string(view.dtype));
}

void check_result(const char* function, DType dtype, const ConstTensorView& view, const ExpectedTensor& expected) {
  validate_tensor(function, view, expected);
  require(view.dtype == dtype || view.dtype == DType::kFloat32, "{}: {} must be {} or float32 (got {})", function,
          expected.name, to_string(dtype), to_string(view.dtype));
}

// What forward and backward share.
template <class Args>
void check_common(const char* function, const RankContext& context, const Args& args) {
  const HeadConfig& heads = context.plan->config.heads;
  const int64_t q_rows = context.shape.seqlen_q, k_rows = context.k_shard_rows();
  check_input(function, heads.dtype, args.q, {"q", q_rows, heads.num_heads_q, heads.head_dim});
  check_input(function, heads.dtype, args.k, {"k", k_rows, heads.num_heads_kv, heads.head_dim});
  check_input(function, heads.dtype, args.v, {"v", k_rows, heads.num_heads_kv, heads.head_dim_v});
  check_result(function, heads.dtype, args.out, {"out", q_rows, heads.num_heads_q, heads.head_dim_v});
  require(args.lse != nullptr, "{}: lse must have memory (got null)", function);
  validate_options(function, args.options);
  validate_sink(function, args.sink);
}

// What forward keeps of each chunk of heads: q, k, v, out, lse, and sinks of single rows where there are such.
size_t kept_tensors_of_chunk(const Sink& sink) { return !sink.empty() && sink.layout == SinkLayout::kSsh ? 6 : 5; }

void check_kept_heads(const char* function, const GridPlan& grid, const DistBackwardArgs& args) {
  const KeptKv* const kept = args.kept;
  if (kept == nullptr || !kept->valid) return;
  const size_t of_chunk = kept_tensors_of_chunk(args.sink);
  const size_t expected = grid.ulysses_degree > 1 ? of_chunk * grid.head_chunks.size() : 0;
  require(kept->tensors.size() == expected, "{}: kept must be what forward left ({} tensors, got {})", function,
          expected, kept->tensors.size());
  for (size_t out = 3; out < expected; out += of_chunk) {
    require(kept->tensors[out].dtype() == args.out.dtype,
            "{}: out must have the dtype of the out that was kept, {} (got {})", function,
            to_string(kept->tensors[out].dtype()), to_string(args.out.dtype));
  }
}

void check_kept_rows(const char* function, const MovementRank& rank, const KeptKv* kept) {
  if (kept == nullptr || !kept->valid) return;
  const int64_t rows[] = {rank.remote_q_rows, rank.kv_rows, rank.kv_rows};
  bool fits = kept->tensors.size() == std::size(rows);
  for (size_t i = 0; fits && i < std::size(rows); ++i) fits = kept->tensors[i].rows() == rows[i];
  require(fits, "{}: kept must be what forward left: q, k and v of {}, {} and {} rows (got {} tensors)", function,
          rows[0], rows[1], rows[2], kept->tensors.size());
}

}  // namespace

void validate(const RankContext& context, const DistForwardArgs& args) {
  const char* function = "DistAttention::forward";
  check_common(function, context, args);
}

void validate(const RankContext& context, const DistBackwardArgs& args) {
  const char* function = "DistAttention::backward";
  const HeadConfig& heads = context.plan->config.heads;
  const int64_t q_rows = context.shape.seqlen_q, k_rows = context.k_shard_rows();
  check_common(function, context, args);
  check_result(function, heads.dtype, args.dout, {"dout", q_rows, heads.num_heads_q, heads.head_dim_v});
  check_result(function, heads.dtype, args.dq, {"dq", q_rows, heads.num_heads_q, heads.head_dim});
  check_result(function, heads.dtype, args.dk, {"dk", k_rows, heads.num_heads_kv, heads.head_dim});
  check_result(function, heads.dtype, args.dv, {"dv", k_rows, heads.num_heads_kv, heads.head_dim_v});
  require(args.dsink == nullptr || !args.sink.empty(), "{}: dsink needs the sink (got seqlen_sink=0)", function);
  if (const MovementPlan* movement = context.plan->movement()) {
    check_kept_rows(function, movement->backward[static_cast<size_t>(context.rank)], args.kept);
    return;
  }
  if (const GridPlan* grid = context.plan->grid()) {
    check_kept_heads(function, *grid, args);
    return;
  }
  if (args.kept != nullptr && args.kept->valid) {
    const std::vector<Stage>& stages = context.rank_plan().backward;
    require(stages.back().kept, "{}: kept must be null unless the plan keeps remote K/V (got rows)", function);
    const int64_t rows = stages.back().exchange.rows_received();
    const std::vector<HostTensor>& kept = args.kept->tensors;
    require(kept.size() == 2, "{}: kept must be what forward left: K and V (got {} tensors)", function, kept.size());
    check_input(function, heads.dtype, kept[0], {"kept K", rows, heads.num_heads_kv, heads.head_dim});
    check_input(function, heads.dtype, kept[1], {"kept V", rows, heads.num_heads_kv, heads.head_dim_v});
  }
}

}  // namespace tangram
