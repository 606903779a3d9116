// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one set of instances: the kernel before, lists and main kernel for each part of the call (of deterministic
// calls the kernel that collects, too; where keys are walked in ranges for each of these, and then the kernel that
// joins them), the kernel after.
#pragma once

#include <algorithm>

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/token_backward/edges.cuh"
#include "attn/sm90/token_backward/kernel.cuh"
#include "attn/sm90/token_backward/launch.hpp"

namespace tangram::sm90::token_backward {

/// Lists and main kernel of each part, and for kOrdered the kernel that adds up what it stores.
template <typename KernelTraits>
void launch_parts(const Call& call, int64_t items, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(typename KernelTraits::SmemType);
  allow_shared_memory<token_backward_kernel<KernelTraits>, kSmemBytes>("cudaFuncSetAttribute(sm90 token backward)");
  for (int32_t part = 0; part < call.edge.num_parts; ++part) {
    Params params = call.params;
    const int64_t first = int64_t{part} * call.items_of_part;
    params.lists.first_item = static_cast<int32_t>(first);
    params.num_items = static_cast<int32_t>(std::min<int64_t>(items - first, call.items_of_part));
    params.ticket = call.edge.tickets + part;
    if constexpr (KernelTraits::kOrdered) params.dk_sums = call.shares[0], params.dv_sums = call.shares[1];
    if (KernelTraits::kOrdered || params.lists.packing.tokens > 1) {
      launch_lists({params.lists, 0, params.lists.seqlen_k}, params.num_items, stream);
    }
    launch_kernel(token_backward_kernel<KernelTraits>, params, std::min(call.num_ctas, params.num_items),
                  KernelTraits::kThreads, kSmemBytes, false, stream, "sm90 token backward: main kernel launch");
    if constexpr (KernelTraits::kOrdered) {
      launch_collect({.lists = params.lists,
                      .shares = {call.shares[0], call.shares[1]},
                      .sums = {call.params.dk_sums, call.params.dv_sums},
                      .num_items = params.num_items},
                     stream);
    }
  }
}

/// The same through ranges of keys: all items of a part walk one range, then the next, while its keys, values and sums
/// are in the L2 cache. Each range's dq is stored beside those of the others, and then added up.
template <typename KernelTraits>
void launch_ranges(const Call& call, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(typename KernelTraits::SmemType), kHeadDim = KernelTraits::kHeadDim;
  allow_shared_memory<token_backward_kernel<KernelTraits>, kSmemBytes>("cudaFuncSetAttribute(sm90 token backward)");
  const EdgeParams& edge = call.edge;
  const Packing& packing = edge.packing;
  int32_t* ticket = edge.tickets;
  for (int32_t group = 0; group < edge.num_heads_kv * packing.parts; ++group) {
    for (int32_t first = 0; first < edge.items_per_group; first += call.items_of_part) {
      Params params = call.params;
      params.lists.first_item = group * edge.items_per_group + first;
      params.num_items = std::min(edge.items_per_group - first, call.items_of_part);
      const int32_t first_query = first * packing.tokens, first_head = group * packing.heads;
      const int64_t num_queries = std::min(edge.seqlen_q - first_query, params.num_items * packing.tokens);
      params.dq_head_stride = kHeadDim;
      params.dq_row_stride = int64_t{packing.heads} * kHeadDim;
      params.dq_type = GradType::kFloat32;
      // Rows are counted from the call's first query and head, which lie before those of the part.
      const int64_t before = first_query * params.dq_row_stride + first_head * params.dq_head_stride;
      for (int32_t range = 0; range < call.num_ranges; ++range) {
        const int64_t share = range * num_queries * params.dq_row_stride - before;
        params.dq = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(call.dq_shares) +
                                            static_cast<uintptr_t>(share * int64_t{sizeof(float)}));
        params.ticket = ticket++;
        const int32_t first_key = range * call.range_keys;
        launch_lists({params.lists, first_key, std::min(first_key + call.range_keys, edge.seqlen_k)}, params.num_items,
                     stream);
        launch_kernel(token_backward_kernel<KernelTraits>, params, std::min(call.num_ctas, params.num_items),
                      KernelTraits::kThreads, kSmemBytes, false, stream, "sm90 token backward: main kernel launch");
      }
      const int64_t dq = first_query * call.params.dq_row_stride + first_head * call.params.dq_head_stride;
      const int64_t bytes = call.params.dq_type == GradType::kFloat32 ? 4 : 2;
      launch_join(__is_same(typename KernelTraits::Element, __half),
                  {.shares = call.dq_shares,
                   .dq = static_cast<char*>(call.params.dq) + dq * bytes,
                   .dq_row_stride = call.params.dq_row_stride,
                   .dq_head_stride = call.params.dq_head_stride,
                   .num_ranges = call.num_ranges,
                   .num_queries = static_cast<int32_t>(num_queries),
                   .heads = packing.heads,
                   .head_dim = kHeadDim,
                   .dq_type = call.params.dq_type},
                  stream);
    }
  }
}

template <typename Element, int kHeadDim>
void launch_dim(const Call& call, cudaStream_t stream) {
  const EdgeParams& edge = call.edge;
  const int64_t items = int64_t{edge.num_heads_kv} * edge.packing.parts * edge.items_per_group;
  constexpr int64_t kZeroingCtas = 1024;  // few queries may see many keys
  launch_kernel(before_kernel<Element, kHeadDim>, edge, std::max(items, kZeroingCtas), kEdgeThreads, 0, false, stream,
                "sm90 token backward: first kernel launch");
  if (call.num_ranges > 1) {
    launch_ranges<Traits<Element, kHeadDim>>(call, stream);
  } else if (call.shares[0] == nullptr) {
    launch_parts<Traits<Element, kHeadDim>>(call, items, stream);
  } else if constexpr (kHeadDim == kOrderedHeadDim) {
    launch_parts<OrderedTraits<Element, kHeadDim>>(call, items, stream);
  }
  const int64_t vectors = int64_t{2} * edge.num_heads_kv * edge.seqlen_k * (kHeadDim / 4);
  if (vectors == 0) return;
  launch_kernel(after_kernel<Element, kHeadDim>, edge, (vectors + kEdgeThreads - 1) / kEdgeThreads, kEdgeThreads, 0,
                true, stream, "sm90 token backward: last kernel launch");
}

template <typename Element>
void launch_element(int head_dim, const Call& call, cudaStream_t stream) {
  (head_dim == 64 ? launch_dim<Element, 64> : launch_dim<Element, 128>)(call, stream);
}

}  // namespace tangram::sm90::token_backward
