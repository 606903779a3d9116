// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What moves with a row, in bytes of all heads.
#pragma once

#include <cstdint>

#include "plan/stages.hpp"
#include "tangram/config.hpp"

namespace tangram {

struct RowBytes {
  int64_t q_in = 0;     // of a query to the rank that computes for it: q; backward also dout, lse and delta
  int64_t q_back = 0;   // of its result to the owner: out and lse in float32; backward dq
  int64_t kv_in = 0;    // of k and v
  int64_t kv_back = 0;  // of dk and dv, backward
};
RowBytes row_bytes(const DistAttnConfig& config, AttnPass pass);

}  // namespace tangram
