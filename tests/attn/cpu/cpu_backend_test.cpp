// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The CPU backends against dense attention in float64. Each instruction set that this machine has is a backend of its
// own; the float64 reference backend is held to the same.
#include "attn/cpu/cpu_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "attn/cpu/random_attention.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using test::make_random;
using test::RandomAttention;
using test::RandomConfig;
using test::values_of;

// float32 sums of up to a few hundred products: each rounding is 6e-8, and they add up like a random walk.
constexpr double kFloatTolerance = 1e-5;

struct BackendCase {
  std::string name;
  std::string isa;
};

std::vector<BackendCase> backend_cases() {
  std::vector<BackendCase> cases{{"reference", ""}};
  for (const std::string& isa : CpuBackend::available_isas()) cases.push_back({"cpu", isa});
  return cases;
}

std::unique_ptr<AttnBackend> make(const BackendCase& backend, int num_threads = 2) {
  return make_attn_backend(backend.name, {num_threads, backend.isa});
}

class CpuAttention : public testing::TestWithParam<BackendCase> {};

INSTANTIATE_TEST_SUITE_P(Isa, CpuAttention, testing::ValuesIn(backend_cases()), [](const auto& instance) {
  return instance.param.isa.empty() ? instance.param.name : instance.param.isa;
});

TEST_P(CpuAttention, RandomSlicesEqualDenseReference) {
  const auto backend = make(GetParam());
  std::mt19937 rng(7);
  const auto draw = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  const int dims[] = {1, 3, 8, 17, 32, 33, 64, 72, 80, 96, 128, 130, 192, 256};
  const std::pair<int, int> heads[] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}};
  for (unsigned n = 0; n < 60; ++n) {
    RandomConfig config;
    config.shape.seqlen_q = draw(1, 300);
    config.shape.seqlen_k = draw(1, 300);
    std::tie(config.shape.num_heads_q, config.shape.num_heads_kv) = heads[draw(0, 3)];
    config.shape.head_dim = dims[draw(0, 13)];
    config.shape.head_dim_v = dims[draw(0, 13)];
    config.shape.dtype = DType::kFloat32;
    config.softcap = n % 3 == 0 ? 2.0f : 0.0f;
    if (n % 4 == 0) config.scale = 0.3f;
    config.seqlen_sink = draw(-2, 3);
    if (config.seqlen_sink < 0) config.seqlen_sink = 0;
    config.sink_layout = n % 2 == 0 ? SinkLayout::kSh : SinkLayout::kSsh;
    config.strided = n % 5 == 0;
    RandomAttention r = make_random(
        config, reference::random_disjoint_slices(rng, config.shape.seqlen_q, config.shape.seqlen_k, draw(0, 12)), n);
    run(*backend, r);
    std::string what = fmt::format("case {}", n);
    for (const AttnSlice& slice : r.slices) what.append(" ").append(to_string(slice));
    test::expect_close(r, kFloatTolerance, what);
  }
}

RandomConfig small_config(DType dtype = DType::kFloat32) {
  RandomConfig config;
  config.shape = {.seqlen_q = 150,
                  .seqlen_k = 210,
                  .num_heads_q = 4,
                  .num_heads_kv = 2,
                  .head_dim = 40,
                  .head_dim_v = 24,
                  .dtype = dtype};
  return config;
}

/// Head dims of keys and of values: those with GPU kernels, and others.
constexpr std::pair<int, int> kHeadDims[] = {{40, 24}, {80, 80}, {96, 96}, {192, 128}, {256, 256}, {128, 64}};

double round_to_bfloat16(double x) { return bfloat16_to_float(float_to_bfloat16(static_cast<float>(x))); }
double round_to_float16(double x) { return float16_to_float(float_to_float16(static_cast<float>(x))); }

// The error against float64 may be twice that of a pass that rounds scores, probabilities and gradients to the dtype.
TEST_P(CpuAttention, SixteenBitErrorIsAtMostTwiceThatOfANaivePass) {
  const auto backend = make(GetParam());
  std::mt19937 rng(11);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (unsigned n = 0; n < 8; ++n) {
      RandomConfig config = small_config(dtype);
      config.out_dtype = n % 2 == 0 ? dtype : DType::kFloat32;
      config.grad_dtype = n % 4 < 2 ? dtype : DType::kFloat32;
      config.softcap = n % 3 == 0 ? 5.0f : 0.0f;
      config.shape.head_dim = n == 5 ? 33 : 64;
      config.shape.head_dim_v = n == 6 ? 17 : 64;
      config.seqlen_sink = n % 2;
      RandomAttention r = make_random(config, reference::random_disjoint_slices(rng, 150, 210, 10), n);
      run(*backend, r);
      const reference::DenseResult exact = reference::dense_attention(r.problem);
      reference::DenseProblem rounded = r.problem;
      rounded.round = dtype == DType::kBFloat16 ? round_to_bfloat16 : round_to_float16;
      const reference::DenseResult naive = reference::dense_attention(rounded);
      const auto check = [&](const char* name, const std::vector<double>& actual, const std::vector<double>& wanted,
                             const std::vector<double>& of_naive) {
        EXPECT_LE(test::distance(actual, wanted).error, 2 * test::distance(of_naive, wanted).error)
            << name << " " << to_string(dtype) << " case " << n;
      };
      check("out", values_of(r.out_view(), r.out), exact.out, naive.out);
      check("dq", values_of(r.dq_view(), r.dq), exact.dq, naive.dq);
      check("dk", values_of(r.dk_view(), r.dk), exact.dk, naive.dk);
      check("dv", values_of(r.dv_view(), r.dv), exact.dv, naive.dv);
    }
  }
}

TEST_P(CpuAttention, StagesAddUpToOnePass) {
  const auto backend = make(GetParam());
  std::mt19937 rng(5);
  for (unsigned n = 0; n < 6; ++n) {
    RandomConfig config = small_config();
    std::tie(config.shape.head_dim, config.shape.head_dim_v) = kHeadDims[n];
    config.seqlen_sink = n % 3;
    config.sink_layout = n % 2 == 0 ? SinkLayout::kSh : SinkLayout::kSsh;
    config.softcap = n == 4 ? 3.0f : 0.0f;
    RandomAttention r = make_random(config, reference::random_disjoint_slices(rng, 150, 210, 12), n);
    constexpr size_t kNumStages = 3;
    std::vector<std::unique_ptr<MaskSlot>> masks;
    for (size_t stage = 0; stage < kNumStages; ++stage) {
      std::vector<AttnSlice> part;
      for (size_t i = stage; i < r.slices.size(); i += kNumStages) part.push_back(r.slices[i]);
      masks.push_back(make_mask_slot(*backend, part, config.shape));
    }
    for (size_t stage = 0; stage < kNumStages; ++stage) {
      AttnForwardArgs args = r.forward_args();
      args.accumulate = stage > 0;
      if (stage + 1 < kNumStages) args.sink = {};
      backend->forward(*masks[stage], args);
    }
    for (size_t stage = 0; stage < kNumStages; ++stage) {
      AttnBackwardArgs args = r.backward_args();
      args.accumulate_dq = args.accumulate_dkv = stage > 0;
      if (stage != 1) args.dsink = nullptr;
      backend->backward(*masks[stage], args);
    }
    test::expect_close(r, kFloatTolerance, fmt::format("case {}", n));
  }
}

TEST_P(CpuAttention, GivenDeltaReplacesOut) {
  const auto backend = make(GetParam());
  std::mt19937 rng(13);
  for (unsigned n = 0; n < 6; ++n) {
    RandomConfig config = small_config();
    std::tie(config.shape.head_dim, config.shape.head_dim_v) = kHeadDims[n];
    config.seqlen_sink = n % 2;
    config.strided = n == 3;
    RandomAttention r = make_random(config, reference::random_disjoint_slices(rng, 150, 210, 12), n);
    const auto mask = make_mask_slot(*backend, r.slices, config.shape);
    backend->forward(*mask, r.forward_args());
    AttnBackwardArgs args = r.backward_args();
    const std::vector<double> out = values_of(r.out_view(), r.out), dout = values_of(r.dout_view(), r.dout);
    std::vector<float> delta(out.size() / static_cast<size_t>(config.shape.head_dim_v));
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] == 0) continue;  // rows without keys have poison for dout
      delta[i / static_cast<size_t>(config.shape.head_dim_v)] += static_cast<float>(out[i] * dout[i]);
    }
    args.out = {};
    args.delta = delta.data();
    backend->backward(*mask, args);
    test::expect_close(r, kFloatTolerance, fmt::format("case {}", n));
  }
}

// Keys ever larger: the reference of the exponentials has to move again and again. Scores reach about 60, so that their
// rounding (6e-8 of 60) becomes a relative error of 4e-6 in each probability, several times that in the gradients.
TEST_P(CpuAttention, GrowingScoresKeepTheirPrecision) {
  const auto backend = make(GetParam());
  RandomConfig config = small_config();
  config.shape.seqlen_k = 1000;
  config.scale = 1.0f;
  RandomAttention r = make_random(config, {AttnSlice::causal({0, 150}, {0, 1000})}, 3);
  for (size_t i = 0; i < r.problem.k.size(); ++i) {
    const float value = r.k.data<float>()[i] * 4e-3f * static_cast<float>(i / 80);
    r.k.data<float>()[i] = value;
    r.problem.k[i] = value;
  }
  run(*backend, r);
  test::expect_close(r, 5e-5, "growing");
}

TEST_P(CpuAttention, GradientsAreTheSlopesOfTheForwardPass) {
  const auto backend = make(GetParam());
  for (const SinkLayout layout : {SinkLayout::kSh, SinkLayout::kSsh}) {
    RandomConfig config;
    config.shape = {.seqlen_q = 4,
                    .seqlen_k = 5,
                    .num_heads_q = 2,
                    .num_heads_kv = 1,
                    .head_dim = 3,
                    .head_dim_v = 2,
                    .dtype = DType::kFloat32};
    config.softcap = 1.5f;
    config.seqlen_sink = 2;
    config.sink_layout = layout;
    config.poison = false;
    RandomAttention r = make_random(config, {AttnSlice::causal({0, 4}, {0, 5})}, 1);
    run(*backend, r);
    const auto loss = [&r](const reference::DenseProblem& p) {
      const reference::DenseResult result = reference::dense_attention(p);
      double sum = 0;
      for (size_t i = 0; i < result.out.size(); ++i) sum += result.out[i] * r.problem.dout[i];
      return sum;
    };
    const auto check = [&](const char* name, std::vector<double> reference::DenseProblem::* input,
                           const std::vector<double>& gradient) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        constexpr double kStep = 1e-5;  // central differences: error about step^2, far below float32
        reference::DenseProblem p = r.problem;
        (p.*input)[i] += kStep;
        const double above = loss(p);
        (p.*input)[i] -= 2 * kStep;
        EXPECT_NEAR(gradient[i], (above - loss(p)) / (2 * kStep), 2e-6) << name << " " << i;
      }
    };
    check("dq", &reference::DenseProblem::q, values_of(r.dq_view(), r.dq));
    check("dk", &reference::DenseProblem::k, values_of(r.dk_view(), r.dk));
    check("dv", &reference::DenseProblem::v, values_of(r.dv_view(), r.dv));
    check("dsink", &reference::DenseProblem::sink, {r.dsink.begin(), r.dsink.end()});
  }
}

TEST_P(CpuAttention, NothingVisibleGivesZerosAndSinkOnlyRowsTheirLse) {
  const auto backend = make(GetParam());
  for (const int64_t seqlen_sink : {0, 2}) {
    RandomConfig config = small_config();
    config.seqlen_sink = seqlen_sink;
    RandomAttention r = make_random(config, {}, 1);
    run(*backend, r);
    for (const float lse : r.lse) EXPECT_EQ(std::isinf(lse), seqlen_sink == 0);
    test::expect_close(r, kFloatTolerance, "nothing visible");
  }
  RandomConfig config = small_config();
  config.shape.seqlen_k = 0;
  RandomAttention r = make_random(config, {}, 1);
  run(*backend, r);
  test::expect_close(r, kFloatTolerance, "no keys at all");
}

// Training notices a NaN only where it comes through: a key, a query or a score that is none must not drop out of sums.
TEST_P(CpuAttention, NanThatIsSeenReachesWhatSeesIt) {
  const auto backend = make(GetParam());
  const uint32_t patterns[] = {0x7fc00000, 0x7fffffff, 0xffc00001};  // of x86, of GPUs, with a payload
  for (const uint32_t pattern : patterns) {
    float nan;
    std::memcpy(&nan, &pattern, sizeof(nan));
    RandomConfig config = small_config();
    config.shape.seqlen_q = config.shape.seqlen_k = 150;
    config.shape.num_heads_q = config.shape.num_heads_kv = 1;
    const auto results = [&](const AttnBackend& by) {
      RandomAttention r = make_random(config, {AttnSlice::causal({0, 150}, {0, 150})}, 2);
      r.q.data<float>()[100 * config.shape.head_dim] = nan;
      r.k.data<float>()[120 * config.shape.head_dim + 3] = nan;
      run(by, r);
      return r;
    };
    const RandomAttention got = results(*backend), expected = results(*make_attn_backend("reference", {}));
    // Gradients of neighbours in a tile may become NaN as well: masked cells are zeros times what is there.
    const auto expect_nan = [&](const char* name, std::span<const float> values, std::span<const float> by) {
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_TRUE(std::isnan(values[i]) || !std::isnan(by[i])) << name << " " << i << " pattern " << pattern;
      }
    };
    const auto floats = [](const HostTensor& tensor) {
      return std::span(tensor.data<float>(), static_cast<size_t>(tensor.size()));
    };
    expect_nan("lse", got.lse, expected.lse);
    EXPECT_EQ(std::count_if(got.lse.begin(), got.lse.end(), [](float x) { return std::isnan(x); }), 31);
    expect_nan("out", floats(got.out), floats(expected.out));
    expect_nan("dq", floats(got.dq), floats(expected.dq));
    expect_nan("dk", floats(got.dk), floats(expected.dk));
    expect_nan("dv", floats(got.dv), floats(expected.dv));
  }
}

// A score of 1e30 minus itself left 1e22, by rounding: rows became NaN, or as if they saw nothing. What is left of a
// softmax is its largest score; gradients need probabilities that float32 no longer holds, and must not be invented.
TEST_P(CpuAttention, HugeScoresLeaveTheLargest) {
  const auto backend = make(GetParam());
  for (const float scale : {1e8f, 1e30f}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      RandomConfig config = small_config(dtype);
      config.scale = scale;
      config.poison = false;
      config.out_dtype = DType::kFloat32;
      RandomAttention r = make_random(config, {AttnSlice::causal({0, 150}, {0, 210})}, 4);
      run(*backend, r);
      const reference::DenseResult exact = reference::dense_attention(r.problem);
      EXPECT_LT(test::distance(values_of(r.out_view(), r.out), exact.out).error, dtype == DType::kFloat32 ? 1e-5 : 4e-3)
          << scale << " " << to_string(dtype);
      for (size_t i = 0; i < r.lse.size(); ++i) ASSERT_NEAR(r.lse[i] / exact.lse[i], 1, 1e-5) << scale << " " << i;
      if (GetParam().isa.empty()) continue;  // the reference backend is exact where lse is
      const std::vector<double> dv = values_of(r.dv_view(), r.dv);
      int64_t num_known = 0;
      for (size_t i = 0; i < dv.size(); ++i) {
        if (std::isnan(dv[i])) continue;
        ++num_known;
        ASSERT_NEAR(dv[i], exact.dv[i], 0.02) << scale << " " << to_string(dtype) << " " << i;
      }
      EXPECT_GT(num_known, 0) << "keys that no row has as its largest";
    }
  }
}

// Stages whose largest scores are equal share the row, however large the scores are.
TEST_P(CpuAttention, StagesOfEqualHugeScoresShareTheRow) {
  if (GetParam().isa.empty()) return;  // the reference backend compares in float64 with an lse that has been rounded
  const auto backend = make(GetParam());
  RandomConfig config = small_config();
  config.scale = 1e30f;
  config.shape.seqlen_q = 1;
  config.shape.seqlen_k = 2;
  RandomAttention r = make_random(config, {{{0, 1}, {0, 2}}}, 5);
  const AttnShape& shape = config.shape;
  for (int h = 0; h < shape.num_heads_kv; ++h) {
    for (int d = 0; d < shape.head_dim; ++d) r.k.set(1, h, d, r.k.at(0, h, d));
  }
  for (const int64_t key : {0, 1}) {
    const std::vector<AttnSlice> slices{{{0, 1}, {key, key + 1}}};
    AttnForwardArgs args = r.forward_args();
    args.accumulate = key > 0;
    backend->forward(*make_mask_slot(*backend, slices, shape), args);
  }
  for (int h = 0; h < shape.num_heads_q; ++h) {
    for (int d = 0; d < shape.head_dim_v; ++d) {
      const int kv_head = h / 2;
      ASSERT_NEAR(r.out.at(0, h, d), (r.v.at(0, kv_head, d) + r.v.at(1, kv_head, d)) / 2, 1e-5) << h << " " << d;
    }
  }
}

// A sink that was NaN, or infinite, dropped out of the sum: results looked as if there were no sink.
TEST_P(CpuAttention, NanInASinkReachesTheRowsOfItsHead) {
  const auto cpu = make(GetParam());
  const auto reference = make_attn_backend("reference", {});
  for (const AttnBackend* backend : {cpu.get(), reference.get()}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const int64_t at : {0, 1}) {
        RandomConfig config = small_config();
        config.shape.seqlen_q = config.shape.seqlen_k = 40;
        config.shape.num_heads_q = config.shape.num_heads_kv = 2;
        config.seqlen_sink = at + 1;
        RandomAttention r = make_random(config, {AttnSlice::causal({0, 40}, {0, 40})}, 3);
        r.sink[static_cast<size_t>(2 * at)] = bad;  // [sink, head]: of head 0
        run(*backend, r);
        for (size_t row = 0; row < 40; ++row) {
          EXPECT_TRUE(std::isnan(r.lse[2 * row])) << row;
          EXPECT_TRUE(std::isnan(r.out.at(static_cast<int64_t>(row), 0, 0))) << row;
          EXPECT_FALSE(std::isnan(r.lse[2 * row + 1])) << row;
          EXPECT_FALSE(std::isnan(r.out.at(static_cast<int64_t>(row), 1, 0))) << row;
        }
        EXPECT_TRUE(std::isnan(r.dsink[0]));
        EXPECT_FALSE(std::isnan(r.dsink[1]));
      }
    }
  }
}

TEST_P(CpuAttention, ResultsDoNotDependOnThreads) {
  RandomConfig config = small_config();
  config.shape.seqlen_q = config.shape.seqlen_k = 700;
  config.shape.num_heads_q = config.shape.num_heads_kv = 1;  // one head: all key tiles add to the same dq
  std::vector<RandomAttention> results;
  for (const int num_threads : {1, 2, 5}) {
    const auto backend = make(GetParam(), num_threads);
    for (int repeat = 0; repeat < 3; ++repeat) {
      results.push_back(make_random(config, {AttnSlice::causal({0, 700}, {0, 700})}, 1));
      run(*backend, results.back());
    }
  }
  for (RandomAttention& r : results) {
    EXPECT_EQ(values_of(r.out_view(), r.out), values_of(results[0].out_view(), results[0].out));
    EXPECT_EQ(values_of(r.dq_view(), r.dq), values_of(results[0].dq_view(), results[0].dq));
    EXPECT_EQ(values_of(r.dk_view(), r.dk), values_of(results[0].dk_view(), results[0].dk));
    EXPECT_EQ(values_of(r.dv_view(), r.dv), values_of(results[0].dv_view(), results[0].dv));
  }
}

}  // namespace
}  // namespace tangram
