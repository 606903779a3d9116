// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/query_backward/call.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "attn/gpu/backward_scratch.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/sm90/backward/pre_post_arguments.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/query_backward/launch.hpp"
#include "schedule/choose_kernels.hpp"

namespace tangram::sm90::query_backward {
namespace {

using schedule::packed_heads;

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

void fill_lists(Params& params, PrePostParams& pre_post, const gpu::SparseView& lists, const AttnShape& shape,
                const schedule::KernelTable& kernels, void* workspace) {
  const gpu::SparseScratch scratch = gpu::place_sparse(shape, kernels, workspace);
  const int pack = packed_heads(shape);
  params.stats = pre_post.stats = scratch.stats;
  params.dk_sums = pre_post.dk_sums = scratch.dk_sums;
  params.dv_sums = scratch.dv_sums;
  params.ticket = pre_post.ticket = scratch.ticket;
  params.work_tiles = lists.work_tiles;
  params.groups = lists.groups;
  params.masks = lists.masks;
  params.num_work_tiles = lists.num_work_tiles;
  params.num_head_groups = lists.num_head_groups;
  params.groups_per_section = lists.groups_per_section;
  pre_post.num_head_groups = shape.num_heads_q / pack;
  params.num_tiles = pre_post.num_tiles = static_cast<int32_t>(gpu::num_sparse_tiles(shape, kernels));
  params.num_key_groups = pre_post.num_key_groups = gpu::num_key_groups(shape);
  params.pack_log2 = pre_post.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  params.heads_per_kv = shape.num_heads_q / shape.num_heads_kv;
  pre_post.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  pre_post.seqlen_k = static_cast<int32_t>(shape.seqlen_k);
  pre_post.num_heads_q = shape.num_heads_q;
  pre_post.num_heads_kv = shape.num_heads_kv;
}

}  // namespace

void enqueue(const gpu::GpuSlot& slot, const AttnBackwardArgs& args, void* workspace, cudaStream_t stream) {
  const AttnShape& shape = slot.shape();
  const gpu::SparseView lists = slot.sparse_view();
  Params params{};
  PrePostParams pre_post{};
  fill_lists(params, pre_post, lists, shape, slot.kernels(), workspace);
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
  const int64_t free_sms = std::max(gpu::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  launch(shape.dtype == DType::kFloat16, shape.head_dim, params, pre_post,
         static_cast<int>(std::min(free_sms, lists.num_all_work_tiles())), stream);
}

}  // namespace tangram::sm90::query_backward
