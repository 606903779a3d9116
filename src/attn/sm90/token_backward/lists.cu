// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/token_backward/collect.cuh"
#include "attn/sm90/token_backward/launch.hpp"
#include "attn/sm90/token_backward/lists.cuh"

namespace tangram::sm90::token_backward {

void launch_lists(const ListParams& params, int32_t num_work_tiles, cudaStream_t stream) {
  allow_shared_memory<list_kernel, sizeof(ListSmem)>("cudaFuncSetAttribute(sm90 token lists)");
  launch_kernel(list_kernel, params, num_work_tiles, kListThreads, sizeof(ListSmem), false, stream,
                "sm90 token backward: launch of the kernel of lists");
}

void launch_collect(const CollectParams& params, cudaStream_t stream) {
  constexpr int kKeys = kCollectThreads / 32;  // of a CTA
  const int64_t keys = int64_t{params.lists.num_heads_kv} * params.lists.seqlen_k;
  if (keys == 0) return;
  launch_kernel(collect_kernel<kOrderedHeadDim>, params, (keys + kKeys - 1) / kKeys, kCollectThreads, 0, false, stream,
                "sm90 token backward: launch of the kernel that collects");
}

}  // namespace tangram::sm90::token_backward
