// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// AttnShape: the sizes of one attention call, which schedules, programs and backends share.
#pragma once

#include <cstdint>

#include "tangram/dtype.hpp"

namespace tangram {

/// Sizes of one attention call. `num_heads_q % num_heads_kv == 0`.
struct AttnShape {
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int num_heads_q = 1;
  int num_heads_kv = 1;
  int head_dim = 128;
  int head_dim_v = head_dim;
  DType dtype = DType::kBFloat16;

  friend bool operator==(const AttnShape&, const AttnShape&) = default;
};

/// `kSh`: sink `[seqlen_sink, num_heads_q]`; `kSsh`: `[seqlen_q, seqlen_sink, num_heads_q]`. float32, contiguous.
enum class SinkLayout : int { kSh = 0, kSsh = 1 };

}  // namespace tangram
