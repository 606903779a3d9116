// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Scores so large that a step of float32 at lse is not small beside 1. All scores are exact in float32 here, so that
// what is measured is what the passes make of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attn/cpu/cpu_backend.hpp"
#include "attn/cpu/random_attention.hpp"

namespace tangram {
namespace {

using test::make_random;
using test::RandomAttention;
using test::RandomConfig;
using test::values_of;

struct LargeCase {
  std::string name;
  std::string isa;
  DType dtype;
};

std::vector<LargeCase> large_cases() {
  std::vector<LargeCase> cases;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    cases.push_back({"reference", "", dtype});
    for (const std::string& isa : CpuBackend::available_isas()) cases.push_back({"cpu", isa, dtype});
  }
  return cases;
}

class LargeScores : public testing::TestWithParam<LargeCase> {};

INSTANTIATE_TEST_SUITE_P(Isa, LargeScores, testing::ValuesIn(large_cases()), [](const auto& instance) {
  const LargeCase& one = instance.param;
  return fmt::format("{}_{}", one.isa.empty() ? one.name : one.isa, to_string(one.dtype));
});

RandomConfig config_of(DType dtype) {
  RandomConfig config;
  config.shape = {.seqlen_q = 150,
                  .seqlen_k = 210,
                  .num_heads_q = 4,
                  .num_heads_kv = 2,
                  .head_dim = 40,
                  .head_dim_v = 24,
                  .dtype = dtype};
  config.poison = false;
  return config;
}

/// Elements of a row that scores come from: the first of q and k; the others of k are 0.
template <class QueryValue, class KeyValue>
void set_scores(RandomAttention& r, QueryValue query_value, KeyValue key_value) {
  const AttnShape& shape = r.config.shape;
  size_t at = 0;
  for (int64_t i = 0; i < shape.seqlen_q; ++i) {
    for (int h = 0; h < shape.num_heads_q; ++h) {
      for (int d = 0; d < shape.head_dim; ++d, ++at) {
        if (d < 2) r.q.set(i, h, d, query_value(i, h, d));
        r.problem.q[at] = r.q.at(i, h, d);
      }
    }
  }
  at = 0;
  for (int64_t j = 0; j < shape.seqlen_k; ++j) {
    for (int h = 0; h < shape.num_heads_kv; ++h) {
      for (int d = 0; d < shape.head_dim; ++d, ++at) {
        r.k.set(j, h, d, d < 2 ? key_value(j, h, d) : 0);
        r.problem.k[at] = r.k.at(j, h, d);
      }
    }
  }
}

/// Scores of a row differ by `scale` or more: each row is its largest score alone.
RandomAttention distinct_scores(const RandomConfig& config, const std::vector<AttnSlice>& slices) {
  RandomAttention r = make_random(config, slices, 11);
  std::mt19937 rng(12);
  std::vector<int> places(static_cast<size_t>(config.shape.seqlen_k));
  std::iota(places.begin(), places.end(), 1);
  std::shuffle(places.begin(), places.end(), rng);
  set_scores(
      r, [&](int64_t i, int h, int d) { return d == 0 ? 1.0f + static_cast<float>((i + h) % 3) : 0.5f; },
      [&](int64_t j, int, int d) { return d == 0 ? static_cast<float>(places[static_cast<size_t>(j)]) : 0.0f; });
  return r;
}

std::vector<std::vector<AttnSlice>> masks() {
  return {{AttnSlice::causal({0, 150}, {0, 210})},
          {{{0, 150}, {0, 210}}},
          {AttnSlice::causal({0, 70}, {0, 90}), AttnSlice::causal({70, 150}, {90, 210})},  // packed documents
          {AttnSlice({0, 150}, {0, 210}, -20, 30)}};                                       // a window
}

/// |actual - wanted| over |wanted| and over the size of the products that cancel in it.
void expect_gradient(const char* name, const std::vector<double>& actual, const std::vector<double>& wanted,
                     double tolerance, double products, const std::string& what) {
  const test::Distance d = test::distance(actual, wanted);
  EXPECT_LE(d.error, tolerance * d.norm + 2e-6 * products * std::sqrt(static_cast<double>(wanted.size())))
      << name << ": " << what << ", of " << d.norm;
}

void expect_gradients(RandomAttention& r, double tolerance, const std::string& what) {
  const reference::DenseResult exact = reference::dense_attention(r.problem);
  const auto largest = [](const std::vector<double>& values) {
    return std::abs(
        *std::max_element(values.begin(), values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
  };
  const double of_scores = r.problem.scale * largest(r.problem.dout) * largest(r.problem.v) * 8;
  expect_gradient("out", values_of(r.out_view(), r.out), exact.out, tolerance, 1, what);
  expect_gradient("dv", values_of(r.dv_view(), r.dv), exact.dv, tolerance, 1, what);
  if (r.dq.rows() > 0) {
    expect_gradient("dq", values_of(r.dq_view(), r.dq), exact.dq, tolerance, of_scores * largest(r.problem.k), what);
  }
  expect_gradient("dk", values_of(r.dk_view(), r.dk), exact.dk, tolerance, of_scores * largest(r.problem.q), what);
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isinf(exact.lse[i])) continue;
    ASSERT_NEAR(r.lse[i], exact.lse[i], 1e-6 + std::abs(exact.lse[i]) * 1e-6) << what << " " << i;
  }
}

// Scores were scaled by log2(e), which rounds, before lse was subtracted: of the one probability of a row that is not 0
// half of lse's step was missing, and with it as much of dv, and dk and dq were what a wrong out left of 0.
TEST_P(LargeScores, OfARowThatIsItsLargestScoreGradientsAreExact) {
  const auto backend = make_attn_backend(GetParam().name, {2, GetParam().isa});
  const double tolerance = GetParam().dtype == DType::kFloat32 ? 1e-5 : 5e-3;
  const float scales[] = {77.7f, 333.0f, 3333.0f, 7777.0f};  // lse 5e4, 2e5, 2e6, 5e6
  const auto all_masks = masks();
  for (size_t n = 0; n < all_masks.size(); ++n) {
    const bool capped = n % 2 == 1;
    RandomConfig config = config_of(GetParam().dtype);
    config.scale = scales[n];
    config.softcap = capped ? 1200 * scales[n] : 0;
    config.seqlen_sink = capped ? 1 : 0;
    RandomAttention r = distinct_scores(config, all_masks[n]);
    run(*backend, r);
    expect_gradients(r, tolerance, fmt::format("scale {} capped {}", scales[n], capped));
  }
}

// Stages add to each other by lse: what is left of a row is in one of them.
TEST_P(LargeScores, StagesAddUpToTheSame) {
  const auto backend = make_attn_backend(GetParam().name, {2, GetParam().isa});
  for (const float scale : {77.7f, 3333.0f}) {
    RandomConfig config = config_of(GetParam().dtype);
    config.scale = scale;
    RandomAttention r = distinct_scores(config, {{{0, 150}, {0, 210}}});
    const std::vector<AttnSlice> parts[] = {{{{0, 150}, {0, 64}}}, {{{0, 150}, {64, 100}}}, {{{0, 150}, {100, 210}}}};
    for (const auto& slices : parts) {
      AttnForwardArgs args = r.forward_args();
      args.accumulate = &slices != &parts[0];
      backend->forward(*make_mask_slot(*backend, slices, config.shape), args);
    }
    for (const auto& slices : parts) {
      AttnBackwardArgs args = r.backward_args();
      args.accumulate_dq = args.accumulate_dkv = &slices != &parts[0];
      backend->backward(*make_mask_slot(*backend, slices, config.shape), args);
    }
    expect_gradients(r, GetParam().dtype == DType::kFloat32 ? 1e-5 : 5e-3, fmt::format("scale {}", scale));
  }
}

// Where several keys share a row, lse in float32 says their sum to half a step and no better; that is all that is lost.
TEST_P(LargeScores, OfKeysThatShareARowGradientsAreWithinAStepOfLse) {
  if (GetParam().dtype == DType::kBFloat16) return;  // gradients of scores are rounded, and their sum is not 0
  const auto backend = make_attn_backend(GetParam().name, {2, GetParam().isa});
  const float larges[] = {128, 512, 1024, 2048};
  const auto all_masks = masks();
  for (size_t n = 0; n < all_masks.size(); ++n) {
    const float large = larges[n];
    RandomConfig config = config_of(GetParam().dtype);
    config.scale = 0.125f;
    RandomAttention r = make_random(config, all_masks[n], 13);
    std::mt19937 rng(14);
    set_scores(
        r, [&](int64_t, int, int d) { return d == 0 ? large : static_cast<float>(rng() % 4); },
        [&](int64_t, int, int d) { return d == 0 ? large : static_cast<float>(rng() % 8); });
    run(*backend, r);
    const float lse = large * large * 0.125f;
    const double step = std::nextafter(lse, 2 * lse) - lse;
    expect_gradients(r, 1e-5 + step, fmt::format("lse {} step {}", lse, step));
  }
}

/// Rows of which `ties` keys, anywhere, have the largest score; the others are out of reach below them.
RandomAttention tied_scores(const RandomConfig& config, const std::vector<AttnSlice>& slices, int ties, float large) {
  RandomAttention r = make_random(config, slices, 15);
  std::mt19937 rng(16);
  std::vector<int> order(static_cast<size_t>(config.shape.seqlen_k));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng);
  set_scores(
      r, [&](int64_t, int, int d) { return d == 0 ? large : 0; },
      [&](int64_t j, int, int d) { return d == 0 && order[static_cast<size_t>(j)] < ties ? large : 0; });
  return r;
}

/// Kernels with bfloat16 products round probabilities and gradients of scores to it; others compute in float32.
bool rounds_products(const LargeCase& one) { return one.dtype == DType::kBFloat16 && one.isa == "avx512_bf16"; }

/// In ties all keys are equal: dq is the rounding error of a sum that is 0, and is not compared if products are
/// rounded.
void expect_gradients_of_ties(RandomAttention& r, const LargeCase& one, const std::string& what) {
  if (rounds_products(one)) r.dq = HostTensor();
  expect_gradients(r, rounds_products(one) ? 4e-3 : 2e-5, what);
}

struct TiedCase {
  int ties;
  float large;  // lse 4e4 with 568, 1e5 with 896
  float softcap;
  int64_t seqlen_sink;
};
constexpr TiedCase kTied[] = {{2, 896, 0, 0}, {3, 568, 0, 2}, {100, 896, 0, 1}, {3, 896, 2e5f, 0}, {2, 568, 2e5f, 0}};

RandomAttention make_tied(DType dtype, const TiedCase& one, const std::vector<AttnSlice>& slices) {
  RandomConfig config = config_of(dtype);
  config.scale = 0.125f;
  config.softcap = one.softcap;
  config.seqlen_sink = one.seqlen_sink;
  RandomAttention r = tied_scores(config, slices, one.ties, one.large);
  const float top = one.large * one.large * config.scale.value();
  for (size_t i = 0; i < r.sink.size(); ++i) r.problem.sink[i] = r.sink[i] = top - static_cast<float>(i % 3);
  return r;
}

// lse was rounded to float32 before probabilities were made from it: 2^-8 of each at an lse of 1e5, and of dk as much.
TEST_P(LargeScores, OfTiedKeysGradientsAreExact) {
  if (GetParam().dtype == DType::kFloat16) return;  // ends at 65,504
  const auto backend = make_attn_backend(GetParam().name, {2, GetParam().isa});
  const auto all_masks = masks();
  for (size_t n = 0; n < std::size(kTied); ++n) {
    const TiedCase& one = kTied[n];
    RandomAttention r = make_tied(GetParam().dtype, one, all_masks[n % all_masks.size()]);
    run(*backend, r);
    const std::string what = fmt::format("ties {} large {} softcap {}", one.ties, one.large, one.softcap);
    expect_gradients_of_ties(r, GetParam(), what);
    expect_gradient("dsink", {r.dsink.begin(), r.dsink.end()}, reference::dense_attention(r.problem).dsink,
                    rounds_products(GetParam()) ? 4e-3 : 2e-5, 1, what);
  }
}

// Keys that are equal, but whose scores are rounded: all alike, in both passes.
TEST_P(LargeScores, OfEqualKeysWithRoundedScoresGradientsAreExact) {
  if (GetParam().dtype == DType::kFloat16) return;
  const auto backend = make_attn_backend(GetParam().name, {2, GetParam().isa});
  RandomConfig config = config_of(GetParam().dtype);
  RandomAttention r = make_random(config, masks()[0], 17);
  const AttnShape& shape = config.shape;
  const auto set_row = [&](HostTensor& tensor, std::vector<double>& values, int64_t row, int heads, auto value) {
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < shape.head_dim; ++d) {
        tensor.set(row, h, d, value(h, d));
        values[static_cast<size_t>((row * heads + h) * shape.head_dim + d)] = tensor.at(row, h, d);
      }
    }
  };
  // A query is a large multiple of what is near the one key that is there over and over.
  for (int64_t i = 0; i < shape.seqlen_q; ++i) {
    set_row(r.q, r.problem.q, i, shape.num_heads_q,
            [&](int h, int d) { return 300 * r.k.at(0, h / 2, d) + r.q.at(i, h, d); });
  }
  for (int64_t j = 1; j < shape.seqlen_k; ++j) {
    const bool equal = j % 7 < 2;
    set_row(r.k, r.problem.k, j, shape.num_heads_kv, [&](int h, int d) { return equal ? r.k.at(0, h, d) : 0.0f; });
  }
  for (int64_t j = 0; j < shape.seqlen_k; ++j) {
    set_row(r.k, r.problem.k, j, shape.num_heads_kv, [&](int h, int d) { return 64 * r.k.at(j, h, d); });
  }
  run(*backend, r);
  expect_gradients_of_ties(r, GetParam(), fmt::format("lse {}", r.lse.back()));
}

// A stage that has all large keys of a row knows what lse lost; one that has some of them is within a step of it.
TEST_P(LargeScores, OfTiedKeysInOneStageGradientsAreExactAndInSeveralWithinAStep) {
  if (GetParam().dtype == DType::kFloat16) return;
  const auto backend = make_attn_backend(GetParam().name, {2, GetParam().isa});
  for (const bool in_one : {true, false}) {
    RandomConfig config = config_of(GetParam().dtype);
    config.scale = 0.125f;
    RandomAttention r = make_random(config, {{{0, 150}, {0, 210}}}, 18);
    set_scores(
        r, [&](int64_t, int, int d) { return d == 0 ? 896 : 0; },
        [&](int64_t j, int, int d) { return d == 0 && (in_one ? j > 64 && j < 68 : j % 70 == 1) ? 896 : 0; });
    const std::vector<AttnSlice> parts[] = {{{{0, 150}, {0, 64}}}, {{{0, 150}, {64, 100}}}, {{{0, 150}, {100, 210}}}};
    for (const auto& slices : parts) {
      AttnForwardArgs args = r.forward_args();
      args.accumulate = &slices != &parts[0];
      backend->forward(*make_mask_slot(*backend, slices, config.shape), args);
    }
    for (const auto& slices : parts) {
      AttnBackwardArgs args = r.backward_args();
      args.accumulate_dq = args.accumulate_dkv = &slices != &parts[0];
      backend->backward(*make_mask_slot(*backend, slices, config.shape), args);
    }
    if (in_one) {
      expect_gradients_of_ties(r, GetParam(), "in one");
      continue;
    }
    const reference::DenseResult exact = reference::dense_attention(r.problem);
    expect_gradient("out", values_of(r.out_view(), r.out), exact.out, 0x1p-7, 0, "in three");
    expect_gradient("dv", values_of(r.dv_view(), r.dv), exact.dv, 0x1p-7, 0, "in three");
    expect_gradient("dk", values_of(r.dk_view(), r.dk), exact.dk, 0x1p-7, 0, "in three");
  }
}

}  // namespace
}  // namespace tangram
