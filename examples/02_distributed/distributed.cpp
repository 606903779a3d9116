// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention over four ranks, each a thread with its own memory, compared with the same mask on one device.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <tangram/backends.hpp>
#include <tangram/mask_builders.hpp>
#include <tangram/tangram.hpp>
#include <vector>

namespace {

constexpr int kNumRanks = 4;
constexpr int64_t kSeqlen = 2048;
constexpr tangram::HeadConfig kHeads{
    .num_heads_q = 4, .num_heads_kv = 2, .head_dim = 64, .head_dim_v = 64, .dtype = tangram::DType::kFloat32};

tangram::HostTensor random_tensor(int heads, unsigned seed) {
  tangram::HostTensor tensor(tangram::DType::kFloat32, kSeqlen, heads, kHeads.head_dim);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::generate_n(tensor.data<float>(), tensor.size(), [&] { return normal(rng); });
  return tensor;
}

}  // namespace

int main() {
  const tangram::Mask mask = tangram::sliding_window_mask(kSeqlen, {.left = 256, .right = 0});
  const tangram::HostTensor q = random_tensor(kHeads.num_heads_q, 1);
  const tangram::HostTensor k = random_tensor(kHeads.num_heads_kv, 2);
  const tangram::HostTensor v = random_tensor(kHeads.num_heads_kv, 3);

  // One device.
  const auto backend = tangram::make_attn_backend("cpu");
  tangram::HostTensor expected = q.clone();
  std::vector<float> expected_lse(kSeqlen * kHeads.num_heads_q);
  tangram::FlexAttention attention(mask, kHeads, *backend);
  attention.forward({.q = q, .k = k, .v = v, .out = expected, .lse = expected_lse.data()});

  // Four ranks. Each dispatches its shard, computes with the others and gives its rows back.
  tangram::DistAttnConfig config;
  config.cp_size = kNumRanks;
  config.heads = kHeads;
  const auto plan = std::make_shared<const tangram::Plan>(tangram::make_plan(mask, config));
  tangram::HostTensor result = q.clone();
  tangram::run_local_ranks(kNumRanks, [&](tangram::Communicator& communicator) {
    const auto rank_backend = tangram::make_attn_backend("cpu", {.num_threads = 1});
    tangram::DistAttention dist(plan, communicator, *rank_backend);
    const auto shard_of = [&](const tangram::HostTensor& global) {
      tangram::HostTensor shard(global.dtype(), dist.q_rows(), global.heads(), global.dim());
      tangram::dispatch_rows(plan->q_dispatch, dist.rank(), global, shard);
      return shard;
    };
    const tangram::HostTensor q_shard = shard_of(q), k_shard = shard_of(k), v_shard = shard_of(v);
    tangram::HostTensor out = q_shard.clone();
    std::vector<float> lse(dist.q_rows() * kHeads.num_heads_q);
    dist.forward({.q = q_shard, .k = k_shard, .v = v_shard, .out = out, .lse = lse.data()});

    tangram::HostTensor gathered = q.clone();
    tangram::undispatch_rows(plan->q_dispatch, communicator, out, gathered);
    if (dist.rank() == 0) result = std::move(gathered);
  });

  float largest = 0;
  for (int64_t i = 0; i < result.size(); ++i) {
    largest = std::max(largest, std::abs(result.data<float>()[i] - expected.data<float>()[i]));
  }
  std::printf("%d ranks, %lld rows moved, largest difference %.2e\n", kNumRanks,
              static_cast<long long>(plan->rows_moved()), largest);
  return largest < 1e-5f ? 0 : 1;
}
