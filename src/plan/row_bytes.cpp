// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/row_bytes.hpp"

#include "plan/cost.hpp"

namespace tangram {

RowBytes row_bytes(const DistAttnConfig& config, AttnPass pass) {
  const HeadConfig& heads = config.heads;
  const int64_t element = static_cast<int64_t>(size_of(heads.dtype));
  const int64_t q = int64_t{heads.num_heads_q} * heads.head_dim, out = int64_t{heads.num_heads_q} * heads.head_dim_v;
  const int64_t float_bytes = 4;
  if (pass == AttnPass::kForward) {
    return {q * element, (out + heads.num_heads_q) * float_bytes, kv_row_bytes(heads), 0};
  }
  return {(q + out) * element + 2 * heads.num_heads_q * float_bytes,
          q * static_cast<int64_t>(size_of(config.reduce_dtype)), kv_row_bytes(heads),
          kv_grad_row_bytes(heads, config.reduce_dtype)};
}

}  // namespace tangram
