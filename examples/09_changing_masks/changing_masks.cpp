// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A block-sparse mask that is another one at every step, as when a router picks the blocks that a query block looks at.
// Rows stay where they were sharded; every step plans anew which queries move, and runs forward and backward.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <tangram/backends.hpp>
#include <tangram/mask_builders.hpp>
#include <tangram/tangram.hpp>
#include <utility>
#include <vector>

namespace {

constexpr int kNumRanks = 4;
constexpr int kNumSteps = 5;
constexpr int64_t kSeqlen = 1024;
constexpr int64_t kBlock = 64;
constexpr int kBlocksSeen = 4;
constexpr tangram::HeadConfig kHeads{
    .num_heads_q = 4, .num_heads_kv = 2, .head_dim = 32, .head_dim_v = 32, .dtype = tangram::DType::kFloat32};

tangram::HostTensor random_tensor(int64_t rows, int heads, unsigned seed) {
  tangram::HostTensor tensor(tangram::DType::kFloat32, rows, heads, kHeads.head_dim);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::generate_n(tensor.data<float>(), tensor.size(), [&] { return normal(rng); });
  return tensor;
}

/// Every query block sees its own block and some earlier ones.
tangram::Mask mask_of_step(unsigned step) {
  std::mt19937 rng(step);
  std::vector<std::pair<int64_t, int64_t>> blocks;
  for (int64_t q = 0; q < kSeqlen / kBlock; ++q) {
    std::vector<int64_t> earlier(static_cast<size_t>(q));
    for (int64_t k = 0; k < q; ++k) earlier[static_cast<size_t>(k)] = k;
    std::shuffle(earlier.begin(), earlier.end(), rng);
    earlier.resize(std::min<size_t>(earlier.size(), kBlocksSeen - 1));
    for (const int64_t k : earlier) blocks.emplace_back(q, k);
    blocks.emplace_back(q, q);
  }
  return tangram::block_sparse_mask(kSeqlen, kSeqlen, kBlock, kBlock, blocks);
}

struct Tensors {
  tangram::HostTensor q, k, v, dout, out, lse, dq, dk, dv;
};

Tensors make_tensors(int64_t rows, unsigned seed) {
  Tensors t;
  t.q = random_tensor(rows, kHeads.num_heads_q, seed);
  t.k = random_tensor(rows, kHeads.num_heads_kv, seed + 1);
  t.v = random_tensor(rows, kHeads.num_heads_kv, seed + 2);
  t.dout = random_tensor(rows, kHeads.num_heads_q, seed + 3);
  t.out = t.q.clone();
  t.lse = tangram::HostTensor(tangram::DType::kFloat32, rows, kHeads.num_heads_q, 1);
  t.dq = t.q.clone();
  t.dk = t.k.clone();
  t.dv = t.v.clone();
  return t;
}

/// Forward and backward of all steps on one rank, its results undispatched into `steps`.
void run_rank(const std::vector<Tensors>& inputs, std::vector<Tensors>& results, tangram::Communicator& communicator) {
  const auto backend = tangram::make_attn_backend("cpu", {.num_threads = 1});
  tangram::DistAttnConfig config;
  config.cp_size = kNumRanks;
  config.heads = kHeads;
  config.movement.algorithm = tangram::Movement::kQo;
  config.dispatch.chunk_size = kBlock;
  // Rows are sharded once, by a mask that is known beforehand.
  config.dispatch.algorithm = tangram::DispatchAlgorithm::kZigzag;
  const tangram::Dispatch dispatch = tangram::make_plan(tangram::causal_mask(kSeqlen, kSeqlen), config).q_dispatch;

  for (unsigned step = 0; step < kNumSteps; ++step) {
    // Every rank plans on its own, and all come to the same.
    const auto begin = std::chrono::steady_clock::now();
    const auto plan =
        std::make_shared<const tangram::Plan>(tangram::make_plan(mask_of_step(step), config, dispatch, dispatch));
    const std::chrono::duration<double, std::milli> planning = std::chrono::steady_clock::now() - begin;
    tangram::DistAttention dist(plan, communicator, *backend);
    Tensors shard = make_tensors(dist.q_rows(), 0);
    const Tensors& whole = inputs[step];
    for (const auto& [from, to] : {std::pair(&whole.q, &shard.q), std::pair(&whole.k, &shard.k),
                                   std::pair(&whole.v, &shard.v), std::pair(&whole.dout, &shard.dout)}) {
      tangram::dispatch_rows(dispatch, dist.rank(), *from, *to);
    }
    dist.forward({.q = shard.q, .k = shard.k, .v = shard.v, .out = shard.out, .lse = shard.lse.data<float>()});
    dist.backward({.q = shard.q,
                   .k = shard.k,
                   .v = shard.v,
                   .out = shard.out,
                   .lse = shard.lse.data<float>(),
                   .dout = shard.dout,
                   .dq = shard.dq,
                   .dk = shard.dk,
                   .dv = shard.dv});
    Tensors gathered = make_tensors(kSeqlen, 0);
    for (const auto& [from, to] : {std::pair(&shard.out, &gathered.out), std::pair(&shard.dq, &gathered.dq),
                                   std::pair(&shard.dk, &gathered.dk), std::pair(&shard.dv, &gathered.dv)}) {
      tangram::undispatch_rows(dispatch, communicator, *from, *to);
    }
    if (dist.rank() != 0) continue;
    const auto traffic = tangram::movement_traffic(*plan, {kHeads.dtype, kHeads.dtype, kHeads.dtype, false});
    std::printf("step %u: planned in %.2f ms, balance %.2f, %.2f MiB received\n", step, planning.count(),
                plan->balance(), static_cast<double>(traffic.forward_bytes + traffic.backward_bytes) / (1 << 20));
    results.push_back(std::move(gathered));
  }
}

float largest_difference(const tangram::HostTensor& a, const tangram::HostTensor& b) {
  float largest = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a.data<float>()[i] - b.data<float>()[i]));
  }
  return largest;
}

}  // namespace

int main() {
  std::vector<Tensors> inputs, results;
  for (unsigned step = 0; step < kNumSteps; ++step) inputs.push_back(make_tensors(kSeqlen, 10 * step));
  tangram::run_local_ranks(kNumRanks,
                           [&](tangram::Communicator& communicator) { run_rank(inputs, results, communicator); });

  const auto backend = tangram::make_attn_backend("cpu");
  float largest = 0;
  for (unsigned step = 0; step < kNumSteps; ++step) {
    Tensors& t = inputs[step];
    tangram::FlexAttention attention(mask_of_step(step), kHeads, *backend);
    attention.forward({.q = t.q, .k = t.k, .v = t.v, .out = t.out, .lse = t.lse.data<float>()});
    attention.backward({.q = t.q,
                        .k = t.k,
                        .v = t.v,
                        .out = t.out,
                        .lse = t.lse.data<float>(),
                        .dout = t.dout,
                        .dq = t.dq,
                        .dk = t.dk,
                        .dv = t.dv});
    for (const auto& [a, b] : {std::pair(&t.out, &results[step].out), std::pair(&t.dq, &results[step].dq),
                               std::pair(&t.dk, &results[step].dk), std::pair(&t.dv, &results[step].dv)}) {
      largest = std::max(largest, largest_difference(*a, *b));
    }
  }
  std::printf("%d ranks, %d masks, largest difference from one device %.2e\n", kNumRanks, kNumSteps, largest);
  return largest < 1e-4f ? 0 : 1;
}
