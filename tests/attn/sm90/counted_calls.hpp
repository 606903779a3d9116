// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What tests over the counting runtime call backends with: packs of 4,096 rows, and tensors for 16 and 2 heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/counting_runtime.hpp"
#include "tangram/attention.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::counted {

inline constexpr int64_t kRows = 4096;

/// Causal documents, other ones for each seed.
inline Mask make_pack(unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<int64_t> ends = {0};
  while (ends.back() < kRows) {
    ends.push_back(std::min(kRows, ends.back() + std::uniform_int_distribution<int64_t>(40, 900)(rng)));
  }
  return varlen_mask(ends, true);
}

/// Operands that the runtime never looks at.
struct Operands {
  int head_dim = 128, head_dim_v = 128;  // at most 256
  int heads_kv = 2;                      // at most 16
  std::vector<float> memory = std::vector<float>(static_cast<size_t>(kRows) * 16 * 128 + 64);

  TensorView view(int heads, int dim) {
    const auto address = (reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256;
    return {{reinterpret_cast<void*>(address), DType::kBFloat16, kRows, heads, dim, heads * dim, dim}};
  }
  float* lse() { return static_cast<float*>(view(1, 8).data); }
  AttnForwardArgs forward() {
    return {view(16, head_dim), view(heads_kv, head_dim), view(heads_kv, head_dim_v), view(16, head_dim_v), lse()};
  }
  AttnBackwardArgs backward() {
    return {
        view(16, head_dim),   view(heads_kv, head_dim), view(heads_kv, head_dim_v), view(16, head_dim_v),      lse(),
        view(16, head_dim_v), view(16, head_dim),       view(heads_kv, head_dim),   view(heads_kv, head_dim_v)};
  }
};

/// What happened since `before`.
inline testing::RuntimeCounts since(const testing::RuntimeCounts& before) {
  testing::RuntimeCounts now = testing::runtime_counts();
  now.allocations -= before.allocations;
  now.host_allocations -= before.host_allocations;
  now.frees -= before.frees;
  now.copies -= before.copies;
  now.waits -= before.waits;
  now.stream_waits -= before.stream_waits;
  now.launches -= before.launches;
  now.device_queries -= before.device_queries;
  now.live_bytes -= before.live_bytes;
  return now;
}

}  // namespace tangram::counted
