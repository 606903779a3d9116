// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one set of instances: the kernel before, lists and main kernel for each part of the call (of deterministic
// calls the kernel that collects, too), the kernel after.
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
      launch_lists(params.lists, params.num_items, stream);
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

template <typename Element, int kHeadDim>
void launch_dim(const Call& call, cudaStream_t stream) {
  const EdgeParams& edge = call.edge;
  const int64_t items = int64_t{edge.num_heads_kv} * edge.packing.parts * edge.items_per_group;
  constexpr int64_t kZeroingCtas = 1024;  // few queries may see many keys
  launch_kernel(before_kernel<Element, kHeadDim>, edge, std::max(items, kZeroingCtas), kEdgeThreads, 0, false, stream,
                "sm90 token backward: first kernel launch");
  if (call.shares[0] == nullptr) {
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
