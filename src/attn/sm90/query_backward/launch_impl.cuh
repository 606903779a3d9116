// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launch of one set of instances: before, main and after kernel, chained by programmatic dependent launch.
#pragma once

#include <algorithm>

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/query_backward/kernel.cuh"
#include "attn/sm90/query_backward/launch.hpp"
#include "attn/sm90/query_backward/pre_posts.cuh"

namespace tangram::sm90::query_backward {

template <typename Element, int kHeadDim>
void launch_dim(const Params& params, const PrePostParams& pre_post, int num_ctas, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(Smem<Traits<Element, kHeadDim>>);
  allow_shared_memory<query_backward_kernel<Traits<Element, kHeadDim>>, kSmemBytes>(
      "cudaFuncSetAttribute(sm90 query backward)");
  const int64_t tiles = int64_t{pre_post.num_tiles} * pre_post.num_head_groups;
  const int64_t groups = int64_t{2} * pre_post.num_heads_kv * pre_post.num_key_groups;
  launch_kernel(before_kernel<Element, kHeadDim>, pre_post, std::max<int64_t>(tiles, 1), kPrePostThreads, 0, false,
                stream, "sm90 query backward: first kernel launch");
  if (num_ctas > 0) {
    launch_kernel(query_backward_kernel<Traits<Element, kHeadDim>>, params, num_ctas,
                  Traits<Element, kHeadDim>::kThreads, kSmemBytes, true, stream,
                  "sm90 query backward: main kernel launch");
  }
  if (groups > 0) {
    launch_kernel(after_kernel<Element, kHeadDim>, pre_post, (groups + kGroupsOfCta - 1) / kGroupsOfCta,
                  kPrePostThreads, 0, true, stream, "sm90 query backward: last kernel launch");
  }
}

template <typename Element>
void launch_element(int head_dim, const Params& params, const PrePostParams& pre_post, int num_ctas,
                    cudaStream_t stream) {
  (head_dim == 64 ? launch_dim<Element, 64> : launch_dim<Element, 128>)(params, pre_post, num_ctas, stream);
}

}  // namespace tangram::sm90::query_backward
