// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/tokens/sm90_tokens.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attn/gpu/argument_checks.hpp"
#include "attn/gpu/call_workspace.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/sm90/common/kernel_sample.hpp"
#include "attn/sm90/hopper_check.hpp"
#include "attn/sm90/token_backward/call.hpp"
#include "attn/sm90/tokens/check.hpp"
#include "attn/sm90/tokens/launch.hpp"
#include "attn/tokens/token_arguments.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"

namespace tangram::sm90 {
namespace {

/// Checks a result like an input; its dtype is the input's or float32.
void check_output(const char* function, const char* name, const TensorView& view, const AttnShape& shape, int64_t rows,
                  int heads) {
  gpu::check_view(function, name, view, rows, heads, tokens::kHeadDim);
  require(view.dtype == shape.dtype || view.dtype == DType::kFloat32, "{}: {} must be {} or float32 (got {})", function,
          name, to_string(shape.dtype), to_string(view.dtype));
}

constexpr const char* kForward = "Sm90Tokens::forward";
constexpr const char* kBackward = "Sm90Tokens::backward";

/// Work tiles of the query heads that share a list.
int32_t parts_of(const AttnShape& shape) {
  return (shape.num_heads_q / shape.num_heads_kv + tokens::kMostRows - 1) / tokens::kMostRows;
}

/// The counts, in front of whatever else a call needs.
int64_t counts_room(const AttnShape& shape) {
  cuda::ScratchLayout layout;
  layout.take<int32_t>(static_cast<size_t>(shape.seqlen_q * shape.num_heads_kv));
  return static_cast<int64_t>(layout.bytes());
}

template <typename Args>
void check(const char* function, const AttnShape& shape, const TokenIndices& indices, const Args& args) {
  check_tokens(function, shape, indices, args);
  const std::string refusal = Sm90Tokens().refusal(shape, indices.topk);
  require(refusal.empty(), "{}: needs {}", function, refusal);
  gpu::check_inputs(function, shape, args);
  for (const ConstTensorView& view : {args.q, args.k, args.v}) {
    require(view.dtype == shape.dtype, "{}: q, k and v must be {} (got {})", function, to_string(shape.dtype),
            to_string(view.dtype));
  }
  gpu::check_softmax(function, shape, args);
  require_hopper();
  tokens::throw_refused(function);
}

tokens::Params params_of(const AttnShape& shape, const TokenIndices& indices, const AttnForwardArgs& args,
                         const int32_t* counts) {
  tokens::Params params{};
  params.q = args.q.data;
  params.k = args.k.data;
  params.v = args.v.data;
  params.out = args.out.data;
  params.lse = args.lse;
  params.indices = indices.indices;
  params.counts = counts;
  params.q_row_stride = args.q.row_stride;
  params.q_head_stride = args.q.head_stride;
  params.k_row_stride = args.k.row_stride;
  params.k_head_stride = args.k.head_stride;
  params.v_row_stride = args.v.row_stride;
  params.v_head_stride = args.v.head_stride;
  params.out_row_stride = args.out.row_stride;
  params.out_head_stride = args.out.head_stride;
  params.topk = indices.topk;
  params.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  params.num_heads_q = shape.num_heads_q;
  params.num_heads_kv = shape.num_heads_kv;
  params.heads_per_kv = shape.num_heads_q / shape.num_heads_kv;
  params.parts = parts_of(shape);
  params.num_work_tiles = static_cast<int32_t>(shape.seqlen_q * shape.num_heads_kv * params.parts);
  const float scale = args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
  params.scale_log2 = scale * std::numbers::log2e_v<float>;
  constexpr float kSlackLog2 = 8.0f;  // probabilities up to 2^8: float16 holds them, and float32 their sums
  params.rescale_threshold = kSlackLog2 / params.scale_log2;
  params.out_is_float32 = args.out.dtype == DType::kFloat32;
  return params;
}

}  // namespace

std::string Sm90Tokens::refusal(const AttnShape& shape, int64_t topk) const {
  if (shape.dtype != DType::kBFloat16 && shape.dtype != DType::kFloat16) {
    return "bfloat16 or float16 (got " + std::string(to_string(shape.dtype)) + ")";
  }
  if (shape.head_dim != tokens::kHeadDim || shape.head_dim_v != tokens::kHeadDim) {
    return "head_dim and head_dim_v 128 (got " + std::to_string(shape.head_dim) + " and " +
           std::to_string(shape.head_dim_v) + ")";
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (shape.seqlen_q * shape.num_heads_q > kMost || shape.seqlen_k > kMost || topk > kMost / 2) {
    return "rows times heads, keys and topk of 31 bits (got seqlen_q=" + std::to_string(shape.seqlen_q) +
           ", seqlen_k=" + std::to_string(shape.seqlen_k) + ", topk=" + std::to_string(topk) + ")";
  }
  return {};
}

int64_t Sm90Tokens::forward_workspace_bytes(const AttnShape& shape, int64_t /*topk*/) const {
  return counts_room(shape);
}

int64_t Sm90Tokens::backward_workspace_bytes(const AttnShape& shape, int64_t topk, bool deterministic) const {
  return counts_room(shape) + token_backward::workspace_bytes(shape, topk, deterministic);
}

void Sm90Tokens::forward(const AttnShape& shape, const TokenIndices& indices, const AttnForwardArgs& args,
                         void* stream) const {
  check(kForward, shape, indices, args);
  check_output(kForward, "out", args.out, shape, shape.seqlen_q, shape.num_heads_q);
  if (shape.seqlen_q == 0) return;
  const auto cuda_stream = cuda::as_stream(stream);
  const gpu::CallWorkspace workspace(kForward, args.workspace, forward_workspace_bytes(shape, indices.topk),
                                     cuda_stream);
  const cuda::ProfileRange range("tangram: token attention forward");
  auto* counts = static_cast<int32_t*>(workspace.data());
  tokens::enqueue_check(shape, indices, counts, cuda_stream);
  const int num_sms = std::max(gpu::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const tokens::Params params = params_of(shape, indices, args, counts);
  TANGRAM_SM90_OF_ELEMENT(shape.dtype == DType::kFloat16, tokens::launch)(params, num_sms, cuda_stream);
}

void Sm90Tokens::backward(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs& args,
                          void* stream) const {
  check(kBackward, shape, indices, args);
  const std::string refusal = token_backward::refusal(shape, indices.topk);
  require(refusal.empty(), "{}: needs {}", kBackward, refusal);
  gpu::check_view(kBackward, "out", args.out, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  gpu::check_view(kBackward, "dout", args.dout, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  require(args.dout.dtype == shape.dtype && (args.out.dtype == shape.dtype || args.out.dtype == DType::kFloat32),
          "{}: dout must be {}, out too or float32 (got {} and {})", kBackward, to_string(shape.dtype),
          to_string(args.dout.dtype), to_string(args.out.dtype));
  check_output(kBackward, "dq", args.dq, shape, shape.seqlen_q, shape.num_heads_q);
  check_output(kBackward, "dk", args.dk, shape, shape.seqlen_k, shape.num_heads_kv);
  check_output(kBackward, "dv", args.dv, shape, shape.seqlen_k, shape.num_heads_kv);
  require(args.dk.dtype == args.dv.dtype, "{}: dk and dv must have one dtype (got {} and {})", kBackward,
          to_string(args.dk.dtype), to_string(args.dv.dtype));
  token_backward::check_taken(args);
  const auto cuda_stream = cuda::as_stream(stream);
  const int64_t needed = backward_workspace_bytes(shape, indices.topk, args.options.deterministic);
  const gpu::CallWorkspace workspace(kBackward, args.workspace, needed, cuda_stream);
  const cuda::ProfileRange range("tangram: token attention backward");
  auto* counts = static_cast<int32_t*>(workspace.data());
  tokens::enqueue_check(shape, indices, counts, cuda_stream);
  token_backward::enqueue(shape, indices, args, counts, static_cast<char*>(workspace.data()) + counts_room(shape),
                          cuda_stream);
}

void Sm90Tokens::check_errors() const {
  if (check_hopper().found) tokens::throw_refused("TokenAttention::check_errors");
}

}  // namespace tangram::sm90
