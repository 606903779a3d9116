// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/tokens/check_kernel.cuh"
#include "attn/sm90/tokens/launch.hpp"

namespace tangram::sm90::tokens {

void launch_check(const CheckParams& params, int num_sms, cudaStream_t stream) {
  constexpr int kMostBytes = kCheckWarps * kMostWindow / 8;
  allow_shared_memory<check_kernel, kMostBytes>("cudaFuncSetAttribute(sm90 token check)");
  const int bytes = kCheckWarps * (params.window / 8);
  // CTAs: as many as fit into a multiprocessor's shared memory and threads.
  const int ctas = std::max(std::min(kSharedMemoryLimit / (bytes + 1024), 2048 / (kCheckWarps * 32)), 1);
  const int64_t lists = int64_t{params.seqlen_q} * params.num_heads_kv;
  launch_kernel(check_kernel, params,
                std::min<int64_t>(int64_t{num_sms} * ctas, (lists + kCheckWarps - 1) / kCheckWarps), kCheckWarps * 32,
                static_cast<size_t>(bytes), false, stream, "sm90 token check launch");
}

}  // namespace tangram::sm90::tokens
