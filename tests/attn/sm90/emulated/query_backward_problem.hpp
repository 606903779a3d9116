// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A call of the backward kernels for gathered keys, run by the emulator.
#pragma once

#include <bit>
#include <limits>
#include <numbers>
#include <vector>

#include "attn/sm90/emulated/backward_problem.hpp"
#include "attn/sm90/query_backward/kernel.cuh"
#include "attn/sm90/query_backward/pre_posts.cuh"

namespace tangram::test::emulated_query_backward {

namespace query = sm90::query_backward;
using emulated::Order;

/// What the main kernel walks.
struct Lists {
  const schedule::GroupWorkTile* work_tiles = nullptr;
  const int32_t* groups = nullptr;
  const schedule::RowBits* masks = nullptr;
  int32_t num_work_tiles = 0;
  bool named = false;  ///< whether work tiles name their head groups
  int32_t groups_per_section = 1;
};

inline query::PrePostParams edge_of(RandomAttention& r, int pack) {
  const AttnShape& s = r.config.shape;
  query::PrePostParams pre_post{};
  pre_post.out = r.out_view().data;
  pre_post.dout = r.dout_view().data;
  pre_post.lse = r.lse.data();
  pre_post.dk = r.dk_view().data;
  pre_post.dv = r.dv_view().data;
  pre_post.out_row_stride = r.out_view().row_stride, pre_post.out_head_stride = r.out_view().head_stride;
  pre_post.dout_row_stride = r.dout_view().row_stride, pre_post.dout_head_stride = r.dout_view().head_stride;
  pre_post.dk_row_stride = r.dk_view().row_stride, pre_post.dk_head_stride = r.dk_view().head_stride;
  pre_post.dv_row_stride = r.dv_view().row_stride, pre_post.dv_head_stride = r.dv_view().head_stride;
  pre_post.seqlen_q = static_cast<int32_t>(s.seqlen_q), pre_post.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  pre_post.num_heads_q = s.num_heads_q, pre_post.num_heads_kv = s.num_heads_kv;
  const int64_t rows = query::kRows / pack;
  pre_post.num_tiles = static_cast<int32_t>((s.seqlen_q + rows - 1) / rows);
  pre_post.num_head_groups = s.num_heads_q / pack;
  pre_post.num_key_groups = static_cast<int32_t>((s.seqlen_k + query::kGroupKeys - 1) / query::kGroupKeys);
  pre_post.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  pre_post.softmax_scale = static_cast<float>(r.problem.scale);
  pre_post.out_float32 = r.config.out_dtype == DType::kFloat32;
  pre_post.dkv_type =
      r.config.grad_dtype == DType::kFloat32 ? sm90::backward::GradType::kFloat32 : sm90::backward::GradType::kInput;
  return pre_post;
}

/// `blocks`: of the grid; `delta`: null, or in the place of out.
template <typename Element, int kHeadDim>
void run_call(RandomAttention& r, const Lists& lists, uint32_t blocks, const float* delta, const Order& order) {
  using Traits = query::Traits<Element, kHeadDim>;
  const AttnShape& s = r.config.shape;
  const int pack = s.num_heads_q / s.num_heads_kv;
  query::PrePostParams pre_post = edge_of(r, pack);
  const auto num_sums = static_cast<size_t>(s.num_heads_kv * pre_post.num_key_groups) * query::kGroupFloats<kHeadDim>;
  // Memory in which a call computes begins with anything in it.
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> sums(2 * num_sums, kNan);
  const auto tiles = static_cast<uint32_t>(pre_post.num_tiles * pre_post.num_head_groups);
  std::vector<float> stats(size_t{tiles} * query::kStatsFloats, kNan);
  int32_t ticket = -1;
  pre_post.stats = stats.data();
  pre_post.dk_sums = sums.data();
  pre_post.ticket = &ticket;
  if (delta != nullptr) pre_post.delta = delta, pre_post.out = nullptr, pre_post.out_float32 = false;
  query::Params params{};
  constexpr auto kPanels = emulated::Columns::kPanels;
  params.q_map = emulated::heads_first_map(r.q_view(), query::kRows / pack, pack, kHeadDim / 64, kPanels);
  params.dout_map = emulated::heads_first_map(r.dout_view(), query::kRows / pack, pack, kHeadDim / 64, kPanels);
  for (const int large : {0, 1}) {
    params.maps[0][large] = emulated::rows_first_map(r.k_view(), large ? 64 : 16, kPanels, 1);
    params.maps[1][large] = emulated::rows_first_map(r.v_view(), large ? 64 : 16, kPanels, 1);
  }
  params.work_tiles = lists.work_tiles;
  params.groups = lists.groups;
  params.masks = lists.masks;
  params.stats = stats.data();
  params.dk_sums = sums.data();
  params.dv_sums = sums.data() + num_sums;
  params.ticket = &ticket;
  params.dq = r.dq_view().data;
  params.dq_row_stride = r.dq_view().row_stride, params.dq_head_stride = r.dq_view().head_stride;
  params.num_work_tiles = lists.num_work_tiles;
  params.num_tiles = pre_post.num_tiles;
  params.num_head_groups = lists.named ? 1 : pre_post.num_head_groups;
  params.groups_per_section = lists.named ? 1 : lists.groups_per_section;
  params.pack_log2 = pre_post.pack_log2;
  params.heads_per_kv = pack;
  params.num_key_groups = pre_post.num_key_groups;
  params.softmax_scale = pre_post.softmax_scale;
  params.scale_log2 = pre_post.softmax_scale * std::numbers::log2e_v<float>;
  params.dq_type = pre_post.dkv_type;
  static_assert(sizeof(query::Smem<Traits>) <= emulated::kSharedBytes);
  const auto groups = static_cast<uint32_t>(2 * s.num_heads_kv * pre_post.num_key_groups);
  emulated::run_one_by_one({std::max(tiles, 1u), query::kPrePostThreads, order},
                           [&] { query::before_kernel<Element, kHeadDim>(pre_post); });
  emulated::run({blocks, Traits::kThreads, order}, [&] { query::query_backward_kernel<Traits>(params); });
  emulated::run_one_by_one({(groups + query::kGroupsOfCta - 1) / query::kGroupsOfCta, query::kPrePostThreads, order},
                           [&] { query::after_kernel<Element, kHeadDim>(pre_post); });
}

}  // namespace tangram::test::emulated_query_backward
