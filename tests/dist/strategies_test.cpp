// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The strategies other than Tangram's own: results against one rank, bytes against their closed forms, order of
// transfers and computing, and what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>

#include "dist/dense_backend.hpp"
#include "dist/mask_families.hpp"
#include "dist/step.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using ::testing::HasSubstr;
using testing::kSeqlen;
using testing::NamedMask;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

// Rows that were not received are NaN in every build of these tests.
[[maybe_unused]] const int kPoison = setenv("TANGRAM_SANITY_CHECK", "1", 1);

// As in dist_attention_test: partial results are rounded to float32 once a step, and sums once per contribution.
constexpr double kFloat32Tolerance = 2e-6;

constexpr Strategy kStrategies[] = {Strategy::kUlysses, Strategy::kHcms,       Strategy::kRing,    Strategy::kAllGather,
                                    Strategy::kUsp,     Strategy::kLoongTrain, Strategy::kHybridCp};

#if defined(__SANITIZE_THREAD__)
constexpr int kCpSizes[] = {2, 3};
#else
constexpr int kCpSizes[] = {2, 3, 4, 8};
#endif

/// MHA, GQA and MQA with heads that divide by cp_size where a strategy needs that.
HeadConfig heads_of(int cp_size, int variant, DType dtype = DType::kFloat32) {
  const int num_heads_q = 2 * cp_size;
  const int num_heads_kv = variant == 0 ? num_heads_q : variant == 1 ? cp_size : 1;
  return {num_heads_q, num_heads_kv, 4, 3, dtype};
}

std::shared_ptr<const Plan> plan_of(const Mask& mask, const HeadConfig& heads, int cp_size,
                                    const StrategyConfig& strategy, DType reduce_dtype = DType::kFloat32) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.strategy = strategy;
  config.reduce_dtype = reduce_dtype;
  return std::make_shared<const Plan>(make_plan(mask, config));
}

class StrategyMasks : public ::testing::TestWithParam<NamedMask> {};

TEST_P(StrategyMasks, DistributedEqualsSingleRank) {
  const Mask& mask = GetParam().mask;
  const DenseBackend backend;
  for (const int cp_size : kCpSizes) {
    for (int variant = 0; variant < 3; ++variant) {
      StepOptions options;
      options.heads = heads_of(cp_size, variant);
      // Sinks and the backward pass without kept tensors meet every strategy over the families.
      options.seqlen_sink = (cp_size + variant) % 2;
      options.use_kept = variant != 1;
      const StepInputs inputs = testing::make_inputs(mask, options);
      const StepResults expected = testing::single_step(mask, options, inputs, backend);
      for (const Strategy strategy : kStrategies) {
        SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size << ", heads "
                                          << options.heads.num_heads_q << "/" << options.heads.num_heads_kv);
        const auto plan = plan_of(mask, options.heads, cp_size, {strategy, 0, 0, {}});
        testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dist, StrategyMasks, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Strategies, EveryShapeOfTheGrid) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(8, 0);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  for (const StrategyConfig& strategy :
       {StrategyConfig{Strategy::kUsp, 1, 0, {}}, StrategyConfig{Strategy::kUsp, 2, 0, {}},
        StrategyConfig{Strategy::kUsp, 8, 0, {}}, StrategyConfig{Strategy::kLoongTrain, 1, 1, {}},
        StrategyConfig{Strategy::kLoongTrain, 1, 2, {}}, StrategyConfig{Strategy::kLoongTrain, 1, 4, {}},
        StrategyConfig{Strategy::kLoongTrain, 2, 2, {}}, StrategyConfig{Strategy::kLoongTrain, 1, 8, {}}}) {
    SCOPED_TRACE(::testing::Message() << to_string(strategy.name) << " " << strategy.head_ranks << " "
                                      << strategy.inner_ring);
    const auto plan = plan_of(mask, options.heads, 8, strategy);
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
  }
}

TEST(Strategies, AutoRunsWhatItChose) {
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 0);
  std::vector<Strategy> chosen;
  for (const Mask& mask : {full_mask(kSeqlen, kSeqlen), sliding_window_mask(kSeqlen, {8, 0})}) {
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = testing::single_step(mask, options, inputs, backend);
    DistAttnConfig config;
    config.cp_size = 4;
    config.heads = options.heads;
    config.strategy.name = Strategy::kAuto;
    config.cost = {1e12, 1e12, 1e6, 0, 0};  // bytes decide
    const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
    chosen.push_back(plan->config.strategy.name);
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
  }
  EXPECT_NE(chosen[0], Strategy::kTangram);
  EXPECT_EQ(chosen[1], Strategy::kTangram);
}

TEST(Strategies, CrossAttentionAndGivenDispatches) {
  const Mask mask = causal_mask(120, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 1);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  const Dispatch q_dispatch{4, 10, {2, 0, 1, 3, 3, 0, 2, 1, 0, 1, 2, 3}};
  const Dispatch k_dispatch{4, 30, {1, 0, 3, 2, 0, 3, 1, 2}};
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(to_string(strategy));
    const auto plan = plan_of(mask, options.heads, 4, {strategy, 0, 0, {}});
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
    const auto scattered = std::make_shared<const Plan>(make_plan(mask, plan->config, q_dispatch, k_dispatch));
    testing::expect_close(testing::distributed_step(scattered, options, inputs, backend), expected, kFloat32Tolerance);
  }
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data<char>(), b.data<char>(), static_cast<size_t>(a.bytes())) == 0;
}

TEST(Strategies, HcmsHasTheBitsOfUlysses) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {16, 8, 4, 4, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto step = [&](const StrategyConfig& strategy) {
    return testing::distributed_step(plan_of(mask, options.heads, 2, strategy), options, inputs, backend);
  };
  const StepResults ulysses = step({Strategy::kUlysses, 0, 0, {}});
  for (const std::vector<int>& chunks : {std::vector<int>{4}, {2, 2}, {1, 2, 1}, {1, 1, 1, 1}, {3, 1}, {}}) {
    const StepResults hcms = step({Strategy::kHcms, 0, 0, chunks});
    EXPECT_TRUE(same_bits(hcms.out, ulysses.out));
    EXPECT_TRUE(same_bits(hcms.lse, ulysses.lse));
    EXPECT_TRUE(same_bits(hcms.dq, ulysses.dq));
    EXPECT_TRUE(same_bits(hcms.dk, ulysses.dk));
    EXPECT_TRUE(same_bits(hcms.dv, ulysses.dv));
  }
}

size_t index_of(const std::vector<TraceEvent>& trace, AttnPass pass, TraceKind kind, int stage, size_t nth = 0) {
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace[i].pass == pass && trace[i].kind == kind && trace[i].stage == stage && nth-- == 0) return i;
  }
  ADD_FAILURE() << "no " << to_string(kind) << " of stage " << stage;
  return 0;
}

TEST(Strategies, ChunksOfHcmsTravelWhileOthersCompute) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {12, 6, 4, 4, DType::kFloat32};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 2, {Strategy::kHcms, 0, 0, {1, 1, 1}});
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int chunk = 0; chunk < 3; ++chunk) {
        const size_t compute = index_of(trace, pass, TraceKind::kCompute, chunk);
        if (chunk < 2) {
          EXPECT_LT(index_of(trace, pass, TraceKind::kPostCast, chunk + 1), compute);
        }
        const size_t results = index_of(trace, pass, TraceKind::kPostReduce, chunk);
        EXPECT_LT(compute, results);
        if (chunk < 2) {
          EXPECT_LT(results, index_of(trace, pass, TraceKind::kCompute, chunk + 1));
        }
        EXPECT_LT(index_of(trace, pass, TraceKind::kCompute, 2), index_of(trace, pass, TraceKind::kWaitReduce, chunk));
      }
    }
  });
}

TEST(Strategies, RingSendsBlocksBeforeItComputes) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {2, 1, 4, 4, DType::kFloat32};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 4, {Strategy::kRing, 0, 0, {}});
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int step = 0; step < 3; ++step) {
        EXPECT_LT(index_of(trace, pass, TraceKind::kPostCast, step + 1),
                  index_of(trace, pass, TraceKind::kCompute, step));
      }
    }
    for (int step = 0; step < 3; ++step) {  // gradients come while the next block computes
      EXPECT_LT(index_of(trace, AttnPass::kBackward, TraceKind::kCompute, step + 1),
                index_of(trace, AttnPass::kBackward, TraceKind::kWaitReduce, step));
    }
  });
}

TEST(Strategies, HybridCpSendsRowsAndGradientsBehindComputing) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 140, 180, 240}, true);  // over four ranks, one, one
  const DenseBackend backend;
  StepOptions options;
  options.heads = {2, 1, 4, 4, DType::kFloat32};
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 4, {Strategy::kHybridCp, 0, 0, {}, 60});
  ASSERT_EQ(plan->grid.levels.back().ranks, 4);
  testing::distributed_step(plan, options, inputs, backend, [&](Communicator&, const DistAttention& attention) {
    const std::vector<TraceEvent>& trace = attention.trace();
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (int step = 0; step < 3; ++step) {
        EXPECT_LT(index_of(trace, pass, TraceKind::kPostCast, step + 1),
                  index_of(trace, pass, TraceKind::kCompute, step));
      }
    }
    for (int step = 1; step < 3; ++step) {
      EXPECT_LT(index_of(trace, AttnPass::kBackward, TraceKind::kCompute, step + 1),
                index_of(trace, AttnPass::kBackward, TraceKind::kWaitReduce, step));
    }
  });
}

// Lengths of all kinds: on one rank, on sub-groups of several sizes at once, and padding that nobody sees.
TEST(Strategies, HybridCpOfRandomDocuments) {
  std::mt19937 rng(23);
  const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  const DenseBackend backend;
  for (int n = 0; n < 12; ++n) {
    const int cp_size = kCpSizes[static_cast<size_t>(n) % std::size(kCpSizes)];
    std::vector<AttnSlice> slices;
    for (int64_t row = 0; row < kSeqlen - 3;) {
      const int64_t end = std::min(kSeqlen - 3, row + draw(1, draw(0, 2) == 0 ? 120 : 25));
      slices.push_back(n % 2 == 0 ? AttnSlice::causal({row, end}, {row, end})
                                  : AttnSlice::full({row, end}, {row, end}));
      row = end;
    }
    const Mask mask(kSeqlen, kSeqlen, slices);
    StepOptions options;
    options.heads = heads_of(cp_size, n % 3);
    options.seqlen_sink = n % 2;
    options.sink_layout = n % 4 == 1 ? SinkLayout::kSsh : SinkLayout::kSh;
    const StepInputs inputs = testing::make_inputs(mask, options, static_cast<uint32_t>(n));
    const StepResults expected = testing::single_step(mask, options, inputs, backend);
    for (const int64_t document_rows : {0, 1, 12}) {
      SCOPED_TRACE(::testing::Message() << n << ", cp_size " << cp_size << ", document_rows " << document_rows);
      const auto plan = plan_of(mask, options.heads, cp_size, {Strategy::kHybridCp, 0, 0, {}, document_rows});
      testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
    }
  }
}

void expect_bytes_of_closed_forms(const Mask& mask, std::span<const Strategy> strategies) {
  const DenseBackend backend;
  for (const Strategy strategy : strategies) {
    for (const int cp_size : {2, 3, 4, 8}) {
      for (int variant = 0; variant < 3; ++variant) {
        const HeadConfig heads = heads_of(cp_size, variant, DType::kBFloat16);
        for (const bool use_kept : {true, false}) {
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

TEST(Strategies, BytesEqualTheClosedForms) { expect_bytes_of_closed_forms(causal_mask(kSeqlen, kSeqlen), kStrategies); }

TEST(Strategies, BytesOfDocumentsEqualTheClosedForms) {
  constexpr Strategy kOfDocuments[] = {Strategy::kHybridCp};
  expect_bytes_of_closed_forms(varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true), kOfDocuments);
}

// The closed forms against the formulas of docs/design/strategies.md, worked out by hand for one case:
// 240 rows, 4 ranks, 8 query heads, 4 K/V heads, dims 4 and 3, bfloat16.
TEST(Strategies, ClosedFormsByHand) {
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
  // Of 240 rows 120 on two of four ranks, the others whole.
  const Mask documents = varlen_mask(std::vector<int64_t>{0, 120, 180, 240}, false);
  const GridTraffic shared = grid_traffic(*plan_of(documents, heads, 4, {Strategy::kHybridCp, 0, 0, {}, 60}), {});
  EXPECT_EQ(shared.forward_bytes, kKv / 2);
  EXPECT_EQ(shared.backward_bytes, kKv / 2 + kKv);
}

TEST(Strategies, HalfPrecisionGradientsTravelInReduceDtype) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(4, 2, DType::kBFloat16);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = testing::single_step(mask, options, inputs, backend);
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(to_string(strategy));
    const auto plan = plan_of(mask, options.heads, 4, {strategy, 0, 0, {}}, DType::kBFloat16);
    // bfloat16 keeps 8 bits; up to five roundings of sums whose terms are of the size of the result.
    testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, 4e-2);
  }
}

void expect_refused(const StrategyConfig& strategy, const HeadConfig& heads, int cp_size, const std::string& text,
                    DispatchAlgorithm algorithm = DispatchAlgorithm::kAuto) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.strategy = strategy;
  config.dispatch.algorithm = algorithm;
  try {
    make_plan(full_mask(kSeqlen, kSeqlen), config);
    ADD_FAILURE() << "expected: " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Strategies, WhatTheyCannotDoIsRefusedByThePlan) {
  const HeadConfig six{6, 6, 4, 4, DType::kFloat32};
  expect_refused({Strategy::kUlysses, 0, 0, {}}, six, 4, "needs num_heads_q to be a multiple of these");
  expect_refused({Strategy::kUlysses, 0, 0, {}}, {12, 6, 4, 4, DType::kFloat32}, 4,
                 "needs num_heads_kv to be a multiple or a divisor of these (got num_heads_kv=6)");
  expect_refused({Strategy::kUsp, 3, 0, {}}, six, 4, "needs head_ranks that divide cp_size (got 3 and 4)");
  expect_refused({Strategy::kLoongTrain, 1, 3, {}}, six, 4, "needs an inner_ring that divides");
  expect_refused({Strategy::kRing, 2, 0, {}}, six, 4, "strategy.head_ranks is for usp and loong_train");
  expect_refused({Strategy::kUsp, 2, 2, {}}, six, 4, "strategy.inner_ring is for loong_train");
  expect_refused({Strategy::kUlysses, 0, 0, {1, 2}}, six, 2, "strategy.head_chunks is for hcms");
  expect_refused({Strategy::kHcms, 0, 0, {1, 1}}, six, 2, "must add up to the 3 K/V heads of a rank (got 2)");
  expect_refused({Strategy::kHcms, 0, 0, {4, -1}}, six, 2, "strategy.head_chunks must be positive (got -1)");
  expect_refused({Strategy::kRing, 0, 0, {}, 7}, six, 2, "strategy.document_rows is for hybrid_cp (got 7 for ring)");
  expect_refused({Strategy::kHybridCp, 0, 0, {}, -1}, six, 2, "strategy.document_rows must not be negative (got -1)");
  expect_refused({Strategy::kHybridCp, 0, 0, {}}, six, 2,
                 "hybrid_cp deals rows by documents (got dispatch.algorithm=zigzag)", DispatchAlgorithm::kZigzag);
  expect_refused({Strategy::kRing, 0, 0, {}}, six, 2,
                 "deals rows sequential or zigzag (got dispatch.algorithm=min_heap)", DispatchAlgorithm::kMinHeap);
}

TEST(Strategies, SinksOfSingleRowsTravelWithTheHeads) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  for (const int cp_size : {2, 4}) {
    for (int variant = 0; variant < 3; ++variant) {
      for (const bool use_kept : {true, false}) {
        StepOptions options;
        options.heads = heads_of(cp_size, variant);
        options.seqlen_sink = 3;
        options.sink_layout = SinkLayout::kSsh;
        options.use_kept = use_kept;
        const StepInputs inputs = testing::make_inputs(mask, options);
        const StepResults expected = testing::single_step(mask, options, inputs, backend);
        for (const Strategy strategy : kStrategies) {
          SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size << ", K/V heads "
                                            << options.heads.num_heads_kv << ", kept " << use_kept);
          const auto plan = plan_of(mask, options.heads, cp_size, {strategy, 0, 0, {}});
          testing::expect_close(testing::distributed_step(plan, options, inputs, backend), expected, kFloat32Tolerance);
        }
      }
    }
  }
}

TEST(Strategies, BytesOfSinksOfSingleRowsEqualTheClosedForm) {
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

TEST(Strategies, RanksOfDifferentStrategiesFindOut) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  const HeadConfig heads = heads_of(2, 0);
  const auto ring = plan_of(mask, heads, 2, {Strategy::kRing, 0, 0, {}});
  const auto gather = plan_of(mask, heads, 2, {Strategy::kAllGather, 0, 0, {}});
  run_local_ranks(2, [&](Communicator& comm) {
    EXPECT_THROW(DistAttention(comm.rank() == 0 ? ring : gather, comm, backend), InvalidArgument);
  });
}

TEST(Strategies, PlansSurviveJson) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  for (const Strategy strategy : kStrategies) {
    const auto plan = plan_of(mask, heads_of(4, 0), 4, {strategy, 0, 0, {}});
    EXPECT_EQ(plan_from_json(plan_to_json(*plan)), *plan) << to_string(strategy);
    EXPECT_THAT(explain(*plan), HasSubstr("strategy: " + std::string(to_string(strategy))));
  }
  const Mask documents = varlen_mask(std::vector<int64_t>{0, 120, 180, 240}, false);
  const auto hybrid = plan_of(documents, heads_of(4, 0), 4, {Strategy::kHybridCp, 0, 0, {}, 60});
  EXPECT_EQ(plan_from_json(plan_to_json(*hybrid)), *hybrid);
  EXPECT_THAT(explain(*hybrid), HasSubstr("whole on one rank, without communication: 2 document(s) of 120 query rows"));
  EXPECT_THAT(explain(*hybrid), HasSubstr("zigzag over sub-groups of 2 ranks: 1 document(s) of 120 query rows"));
}

TEST(Strategies, NamesGoBothWays) {
  for (const Strategy strategy : kStrategies) EXPECT_EQ(parse_strategy(to_string(strategy)), strategy);
  EXPECT_THROW(parse_strategy("rings"), InvalidArgument);
}

}  // namespace
}  // namespace tangram
