// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/query_backward/call.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/sm90/backward/pre_post_arguments.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/query_backward/launch.hpp"

namespace tangram::sm90::query_backward {
namespace {

float softmax_scale_of(const AttnBackwardArgs& args) {
  return args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(args.q.dim)));
}

void fill_maps(Params& params, const AttnShape& shape, const AttnBackwardArgs& args) {
  const auto panels = static_cast<uint32_t>(shape.head_dim) / 64;
  const auto pack = static_cast<uint32_t>(packed_heads(shape));
  if (args.q.rows > 0) {
    params.q_map = token_map(args.q, {kRows / pack, pack, panels}, true);
    params.dout_map = token_map(args.dout, {kRows / pack, pack, panels}, true);
  }
  if (args.k.rows == 0) return;  // maps of what is never loaded are empty
  for (const bool large : {false, true}) {
    params.maps[0][large] = token_map(args.k, {large ? 64u : 16u, 1, 1}, false);
    params.maps[1][large] = token_map(args.v, {large ? 64u : 16u, 1, 1}, false);
  }
}

}  // namespace

bool takes(const AttnBackwardArgs& args, bool awaited_keys) {
  const CallOptions call = call_options(args);
  return call.plain && !call.deterministic && !awaited_keys;
}

void enqueue(const GroupListView& lists, const AttnShape& shape, const AttnBackwardArgs& args, void* workspace,
             cudaStream_t stream) {
  Params params{};
  PrePostParams pre_post{};
  fill(params, pre_post, lists, shape, workspace);
  fill_maps(params, shape, args);
  backward::fill_rows(pre_post, args);
  backward::fill_key_gradients(pre_post, args);
  pre_post.delta = args.delta;
  pre_post.softmax_scale = softmax_scale_of(args);
  params.dq = args.dq.data;
  params.dq_row_stride = args.dq.row_stride;
  params.dq_head_stride = args.dq.head_stride;
  params.dq_type = backward::grad_type(args.dq);
  params.softmax_scale = pre_post.softmax_scale;
  params.scale_log2 = params.softmax_scale * std::numbers::log2e_v<float>;
  const int64_t free_sms = std::max(gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  launch(shape.dtype == DType::kFloat16, shape.head_dim, params, pre_post,
         static_cast<int>(std::min(free_sms, lists.num_all_work_tiles())), stream);
}

}  // namespace tangram::sm90::query_backward
