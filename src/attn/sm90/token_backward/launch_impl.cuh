// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one set of instances: the preprocess kernel, lists and main kernel for each part of the call, the
// postprocess kernel. Deterministic calls have the collecting kernel for each part, too.
#pragma once

#include <algorithm>

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/token_backward/kernel.cuh"
#include "attn/sm90/token_backward/launch.hpp"
#include "attn/sm90/token_backward/pre_posts.cuh"

namespace tangram::sm90::token_backward {

/// Lists and main kernel of each part, and for kOrdered the kernel that adds up what it stores.
template <typename KernelTraits>
void launch_split_kv(const Call& call, int64_t work_tiles, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(typename KernelTraits::SmemType);
  allow_shared_memory<token_backward_kernel<KernelTraits>, kSmemBytes>("cudaFuncSetAttribute(sm90 token backward)");
  for (int32_t part = 0; part < call.pre_post.num_parts; ++part) {
    Params params = call.params;
    const int64_t first = int64_t{part} * call.work_tiles_of_part;
    params.lists.first_work_tile = static_cast<int32_t>(first);
    params.num_work_tiles = static_cast<int32_t>(std::min<int64_t>(work_tiles - first, call.work_tiles_of_part));
    params.ticket = call.pre_post.tickets + part;
    if constexpr (KernelTraits::kOrdered) params.dk_sums = call.shares[0], params.dv_sums = call.shares[1];
    if (KernelTraits::kOrdered || params.lists.packing.tokens > 1) {
      launch_lists(params.lists, params.num_work_tiles, stream);
    }
    launch_kernel(token_backward_kernel<KernelTraits>, params, std::min(call.num_ctas, params.num_work_tiles),
                  KernelTraits::kThreads, kSmemBytes, false, stream, "sm90 token backward: main kernel launch");
    if constexpr (KernelTraits::kOrdered) {
      launch_collect({.lists = params.lists,
                      .shares = {call.shares[0], call.shares[1]},
                      .sums = {call.params.dk_sums, call.params.dv_sums},
                      .num_work_tiles = params.num_work_tiles},
                     stream);
    }
  }
}

template <typename Element, int kHeadDim>
void launch_dim(const Call& call, cudaStream_t stream) {
  const PrePostParams& pre_post = call.pre_post;
  const int64_t work_tiles = int64_t{pre_post.num_heads_kv} * pre_post.packing.parts * pre_post.work_tiles_per_group;
  constexpr int64_t kZeroingCtas = 1024;  // few queries may see many keys
  launch_kernel(before_kernel<Element, kHeadDim>, pre_post, std::max(work_tiles, kZeroingCtas), kPrePostThreads, 0,
                false, stream, "sm90 token backward: first kernel launch");
  if (call.shares[0] == nullptr) {
    launch_split_kv<Traits<Element, kHeadDim>>(call, work_tiles, stream);
  } else if constexpr (kHeadDim == kOrderedHeadDim) {
    launch_split_kv<OrderedTraits<Element, kHeadDim>>(call, work_tiles, stream);
  }
  const int64_t vectors = int64_t{2} * pre_post.num_heads_kv * pre_post.seqlen_k * (kHeadDim / 4);
  if (vectors == 0) return;
  launch_kernel(after_kernel<Element, kHeadDim>, pre_post, (vectors + kPrePostThreads - 1) / kPrePostThreads,
                kPrePostThreads, 0, true, stream, "sm90 token backward: last kernel launch");
}

template <typename Element>
void launch_element(int head_dim, const Call& call, cudaStream_t stream) {
  (head_dim == 64 ? launch_dim<Element, 64> : launch_dim<Element, 128>)(call, stream);
}

}  // namespace tangram::sm90::token_backward
