// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans a packed batch for eight ranks and prints who computes and receives what. No GPU, no ranks: a plan is a value.
#include <cstdio>
#include <tangram/mask_builders.hpp>
#include <tangram/tangram.hpp>
#include <vector>

int main() {
  // Four documents, packed; each token sees the tokens before it in its own document.
  const std::vector<int64_t> cu_seqlens{0, 40960, 57344, 106496, 131072};
  const tangram::Mask mask = tangram::varlen_mask(cu_seqlens, /*causal=*/true);

  tangram::DistAttnConfig config;
  config.cp_size = 8;
  config.heads = {.num_heads_q = 64, .num_heads_kv = 8, .head_dim = 128, .head_dim_v = 128};
  const tangram::Plan plan = tangram::make_plan(mask, config);

  std::printf("%s", tangram::explain(plan).c_str());
  return 0;
}
