// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/token_backward/launch.hpp"
#include "attn/sm90/token_backward/lists.cuh"

namespace tangram::sm90::token_backward {

void launch_lists(const ListParams& params, int32_t num_items, cudaStream_t stream) {
  allow_shared_memory<list_kernel, sizeof(ListSmem)>("cudaFuncSetAttribute(sm90 token lists)");
  launch_kernel(list_kernel, params, num_items, kListThreads, sizeof(ListSmem), false, stream,
                "sm90 token backward: launch of the kernel of lists");
}

}  // namespace tangram::sm90::token_backward
