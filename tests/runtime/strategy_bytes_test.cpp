// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The bytes that the other strategies move against their closed forms, and these against formulas worked out by hand.
#include <gtest/gtest.h>

#include <atomic>
#include <span>

#include "runtime/strategy_cases.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using testing::kSeqlen;
using testing::kStrategies;
using testing::plan_of;

HeadConfig heads_of(int cp_size, int variant, DType dtype = DType::kFloat32) {
  return testing::heads_of(cp_size, variant, 4, 3, dtype);
}

void expect_bytes_of_closed_forms(const Mask& mask, std::span<const Strategy> strategies) {
  const DenseBackend backend;
  support::Sample sample(5);
  for (const Strategy strategy : strategies) {
    for (const int cp_size : {2, 3, 4, 8}) {
      for (int variant = 0; variant < 3; ++variant) {
        const HeadConfig heads = heads_of(cp_size, variant, DType::kBFloat16);
        for (const bool use_kept : {true, false}) {
          if (!sample.takes_next()) continue;
          SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size << ", K/V heads "
                                            << heads.num_heads_kv << ", kept " << use_kept);
          const auto plan = plan_of(mask, heads, cp_size, {strategy, 0, 0, {}});
          std::atomic<int64_t> forward_bytes = 0, backward_bytes = 0;
          run_local_ranks(cp_size, [&](Communicator& comm) {
            DistAttention attention(plan, comm, backend);
            HostTensor q(DType::kBFloat16, attention.q_rows(), heads.num_heads_q, 4), dq = q.clone();
            HostTensor k(DType::kBFloat16, attention.k_rows(), heads.num_heads_kv, 4), dk = k.clone();
            HostTensor v(DType::kBFloat16, attention.k_rows(), heads.num_heads_kv, 3), dv = v.clone();
            HostTensor out(DType::kBFloat16, attention.q_rows(), heads.num_heads_q, 3), dout = out.clone();
            HostTensor lse(DType::kFloat32, attention.q_rows(), heads.num_heads_q, 1);
            for (HostTensor* tensor : {&q, &k, &v, &dout}) tensor->fill(1);
            KeptKv kept;
            KeptKv* const kept_pointer = use_kept ? &kept : nullptr;
            comm.reset_counters();
            attention.forward({q, k, v, out, lse.data<float>(), nullptr, {}, kept_pointer, {}});
            forward_bytes += comm.counters().bytes_received;
            comm.reset_counters();
            attention.backward(
                {q, k, v, out, lse.data<float>(), dout, dq, dk, dv, nullptr, {}, DsinkReduce::kSum, kept_pointer, {}});
            backward_bytes += comm.counters().bytes_received;
          });
          const GridTraffic expected =
              grid_traffic(*plan, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, use_kept});
          EXPECT_EQ(forward_bytes, expected.forward_bytes);
          EXPECT_EQ(backward_bytes, expected.backward_bytes);
        }
      }
    }
  }
}

TEST(StrategyBytes, BytesEqualTheClosedForms) {
  expect_bytes_of_closed_forms(causal_mask(kSeqlen, kSeqlen), kStrategies);
}

TEST(StrategyBytes, BytesOfDocumentsEqualTheClosedForms) {
  constexpr Strategy kOfDocuments[] = {Strategy::kHybridCp};
  expect_bytes_of_closed_forms(varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true), kOfDocuments);
}

// The closed forms against the formulas of docs/design/strategies.md, worked out by hand for one case:
// 240 rows, 4 ranks, 8 query heads, 4 K/V heads, dims 4 and 3, bfloat16.
TEST(StrategyBytes, ClosedFormsByHand) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const HeadConfig heads{8, 4, 4, 3, DType::kBFloat16};
  const auto traffic = [&](const StrategyConfig& strategy) {
    return grid_traffic(*plan_of(mask, heads, 4, strategy),
                        {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, true});
  };
  constexpr int64_t kQ = 240 * 8 * 4 * 2, kOut = 240 * 8 * 3 * 2, kLse = 240 * 8 * 4, kKv = 240 * 4 * 7 * 2;
  const GridTraffic ulysses = traffic({Strategy::kUlysses, 0, 0, {}});
  EXPECT_EQ(ulysses.forward_bytes, (kQ + kKv + kOut + kLse) * 3 / 4);
  EXPECT_EQ(ulysses.backward_bytes, (kOut + kQ + kKv) * 3 / 4);
  const GridTraffic ring = traffic({Strategy::kRing, 0, 0, {}});
  EXPECT_EQ(ring.forward_bytes, 3 * kKv);
  EXPECT_EQ(ring.backward_bytes, 3 * kKv + 4 * 2 * kKv);  // gradients in float32
  const GridTraffic gather = traffic({Strategy::kAllGather, 0, 0, {}});
  EXPECT_EQ(gather.forward_bytes, 3 * kKv);
  EXPECT_EQ(gather.backward_bytes, 3 * kKv + 3 * 2 * kKv);
  const GridTraffic usp = traffic({Strategy::kUsp, 2, 0, {}});
  EXPECT_EQ(usp.forward_bytes, (kQ + kKv + kOut + kLse) / 2 + kKv);
  // One document is a ring of all ranks, whose gradients save the hop that begins with nothing.
  const GridTraffic hybrid = traffic({Strategy::kHybridCp, 0, 0, {}});
  EXPECT_EQ(hybrid.forward_bytes, 3 * kKv);
  EXPECT_EQ(hybrid.backward_bytes, 3 * kKv + 3 * 2 * kKv);
  // 120 of 240 rows are on two of four ranks; other documents are whole.
  const Mask documents = varlen_mask(std::vector<int64_t>{0, 120, 180, 240}, false);
  const GridTraffic shared = grid_traffic(*plan_of(documents, heads, 4, {Strategy::kHybridCp, 0, 0, {}, 60}), {});
  EXPECT_EQ(shared.forward_bytes, kKv / 2);
  EXPECT_EQ(shared.backward_bytes, kKv / 2 + kKv);
}

TEST(StrategyBytes, BytesOfSinksOfSingleRowsEqualTheClosedForm) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  const HeadConfig heads = heads_of(4, 1);
  constexpr int64_t kNumSinks = 3;
  for (const Strategy strategy : {Strategy::kUlysses, Strategy::kHcms, Strategy::kUsp}) {
    for (const bool use_kept : {true, false}) {
      SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", kept " << use_kept);
      const auto plan = plan_of(mask, heads, 4, {strategy, 0, 0, {}});
      std::atomic<int64_t> forward_bytes = 0, backward_bytes = 0;
      run_local_ranks(4, [&](Communicator& comm) {
        DistAttention attention(plan, comm, backend);
        HostTensor q(DType::kFloat32, attention.q_rows(), heads.num_heads_q, 4), dq = q.clone();
        HostTensor k(DType::kFloat32, attention.k_rows(), heads.num_heads_kv, 4), dk = k.clone();
        HostTensor v(DType::kFloat32, attention.k_rows(), heads.num_heads_kv, 3), dv = v.clone();
        HostTensor out(DType::kFloat32, attention.q_rows(), heads.num_heads_q, 3), dout = out.clone();
        HostTensor lse(DType::kFloat32, attention.q_rows(), heads.num_heads_q, 1);
        for (HostTensor* tensor : {&q, &k, &v, &dout}) tensor->fill(1);
        std::vector<float> sinks(static_cast<size_t>(attention.q_rows() * kNumSinks * heads.num_heads_q));
        std::vector<float> dsinks = sinks;
        const Sink sink{sinks.data(), kNumSinks, SinkLayout::kSsh};
        KeptKv kept;
        KeptKv* const kept_pointer = use_kept ? &kept : nullptr;
        comm.reset_counters();
        attention.forward({q, k, v, out, lse.data<float>(), nullptr, sink, kept_pointer, {}});
        forward_bytes += comm.counters().bytes_received;
        comm.reset_counters();
        attention.backward({q,
                            k,
                            v,
                            out,
                            lse.data<float>(),
                            dout,
                            dq,
                            dk,
                            dv,
                            dsinks.data(),
                            sink,
                            DsinkReduce::kSum,
                            kept_pointer,
                            {}});
        backward_bytes += comm.counters().bytes_received;
      });
      const GridTraffic expected =
          grid_traffic(*plan, {DType::kFloat32, DType::kFloat32, DType::kFloat32, use_kept, kNumSinks});
      EXPECT_EQ(forward_bytes, expected.forward_bytes);
      EXPECT_EQ(backward_bytes, expected.backward_bytes);
    }
  }
}

}  // namespace
}  // namespace tangram
