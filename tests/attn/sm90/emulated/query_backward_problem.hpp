// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A call of the backward kernels for gathered keys, run by the emulator.
#pragma once

#include <bit>
#include <limits>
#include <numbers>
#include <vector>

#include "attn/sm90/emulated/backward_problem.hpp"
#include "attn/sm90/query_backward/edges.cuh"
#include "attn/sm90/query_backward/kernel.cuh"

namespace tangram::test::emulated_query_backward {

namespace query = sm90::query_backward;
using emulated::Order;

/// What the main kernel walks.
struct Lists {
  const schedule::GroupItem* items = nullptr;
  const int32_t* groups = nullptr;
  const schedule::RowBits* masks = nullptr;
  int32_t num_items = 0;
  bool named = false;  ///< whether items name their head groups
  int32_t groups_per_section = 1;
};

inline query::EdgeParams edge_of(RandomAttention& r, int pack) {
  const AttnShape& s = r.config.shape;
  query::EdgeParams edge{};
  edge.out = r.out_view().data;
  edge.dout = r.dout_view().data;
  edge.lse = r.lse.data();
  edge.dk = r.dk_view().data;
  edge.dv = r.dv_view().data;
  edge.out_row_stride = r.out_view().row_stride, edge.out_head_stride = r.out_view().head_stride;
  edge.dout_row_stride = r.dout_view().row_stride, edge.dout_head_stride = r.dout_view().head_stride;
  edge.dk_row_stride = r.dk_view().row_stride, edge.dk_head_stride = r.dk_view().head_stride;
  edge.dv_row_stride = r.dv_view().row_stride, edge.dv_head_stride = r.dv_view().head_stride;
  edge.seqlen_q = static_cast<int32_t>(s.seqlen_q), edge.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  edge.num_heads_q = s.num_heads_q, edge.num_heads_kv = s.num_heads_kv;
  const int64_t rows = query::kRows / pack;
  edge.num_tiles = static_cast<int32_t>((s.seqlen_q + rows - 1) / rows);
  edge.num_head_groups = s.num_heads_q / pack;
  edge.num_key_groups = static_cast<int32_t>((s.seqlen_k + query::kGroupKeys - 1) / query::kGroupKeys);
  edge.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  edge.softmax_scale = static_cast<float>(r.problem.scale);
  edge.out_float32 = r.config.out_dtype == DType::kFloat32;
  edge.dkv_type =
      r.config.grad_dtype == DType::kFloat32 ? sm90::backward::GradType::kFloat32 : sm90::backward::GradType::kInput;
  return edge;
}

/// `blocks`: of the grid; `delta`: null, or in the place of out.
template <typename Element, int kHeadDim>
void run_call(RandomAttention& r, const Lists& lists, uint32_t blocks, const float* delta, const Order& order) {
  using Traits = query::Traits<Element, kHeadDim>;
  const AttnShape& s = r.config.shape;
  const int pack = s.num_heads_q / s.num_heads_kv;
  query::EdgeParams edge = edge_of(r, pack);
  const auto num_sums = static_cast<size_t>(s.num_heads_kv * edge.num_key_groups) * query::kGroupFloats<kHeadDim>;
  // Memory in which a call computes begins with anything in it.
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> sums(2 * num_sums, kNan);
  const auto tiles = static_cast<uint32_t>(edge.num_tiles * edge.num_head_groups);
  std::vector<float> stats(size_t{tiles} * query::kStatsFloats, kNan);
  int32_t ticket = -1;
  edge.stats = stats.data();
  edge.dk_sums = sums.data();
  edge.ticket = &ticket;
  if (delta != nullptr) edge.delta = delta, edge.out = nullptr, edge.out_float32 = false;
  query::Params params{};
  constexpr auto kPanels = emulated::Columns::kPanels;
  params.q_map = emulated::heads_first_map(r.q_view(), query::kRows / pack, pack, kHeadDim / 64, kPanels);
  params.dout_map = emulated::heads_first_map(r.dout_view(), query::kRows / pack, pack, kHeadDim / 64, kPanels);
  for (const int large : {0, 1}) {
    params.maps[0][large] = emulated::rows_first_map(r.k_view(), large ? 64 : 16, kPanels, 1);
    params.maps[1][large] = emulated::rows_first_map(r.v_view(), large ? 64 : 16, kPanels, 1);
  }
  params.items = lists.items;
  params.groups = lists.groups;
  params.masks = lists.masks;
  params.stats = stats.data();
  params.dk_sums = sums.data();
  params.dv_sums = sums.data() + num_sums;
  params.ticket = &ticket;
  params.dq = r.dq_view().data;
  params.dq_row_stride = r.dq_view().row_stride, params.dq_head_stride = r.dq_view().head_stride;
  params.num_items = lists.num_items;
  params.num_tiles = edge.num_tiles;
  params.num_head_groups = lists.named ? 1 : edge.num_head_groups;
  params.groups_per_section = lists.named ? 1 : lists.groups_per_section;
  params.pack_log2 = edge.pack_log2;
  params.heads_per_kv = pack;
  params.num_key_groups = edge.num_key_groups;
  params.softmax_scale = edge.softmax_scale;
  params.scale_log2 = edge.softmax_scale * std::numbers::log2e_v<float>;
  params.dq_type = edge.dkv_type;
  static_assert(sizeof(query::Smem<Traits>) <= emulated::kSharedBytes);
  const auto groups = static_cast<uint32_t>(2 * s.num_heads_kv * edge.num_key_groups);
  emulated::run_one_by_one({std::max(tiles, 1u), query::kEdgeThreads, order},
                           [&] { query::before_kernel<Element, kHeadDim>(edge); });
  emulated::run({blocks, Traits::kThreads, order}, [&] { query::query_backward_kernel<Traits>(params); });
  emulated::run_one_by_one({(groups + query::kGroupsOfCta - 1) / query::kGroupsOfCta, query::kEdgeThreads, order},
                           [&] { query::after_kernel<Element, kHeadDim>(edge); });
}

}  // namespace tangram::test::emulated_query_backward
