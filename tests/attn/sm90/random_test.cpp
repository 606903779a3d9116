// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Both Hopper passes on random slice sets with random options, tensors with gaps, NaN in everything that must not be
// read, against dense attention in float64. Needs a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "attn/sm90/on_device.hpp"

namespace tangram {
namespace {

using test::make_random;
using test::OnDevice;
using test::RandomAttention;
using test::RandomConfig;

class Draw {
 public:
  explicit Draw(unsigned seed) : rng_(seed) {}
  int operator()(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  bool one_in(int n) { return (*this)(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[(*this)(0, static_cast<int>(values.size()) - 1)];
  }

 private:
  std::mt19937 rng_;
};

/// Disjoint by construction: a grid of random fields, in most of them one of the published types or a random band.
std::vector<AttnSlice> draw_slices(Draw& draw, int64_t rows, int64_t keys) {
  std::vector<AttnSlice> slices;
  const int max_rows = draw.of({10, 60, 200}), max_keys = draw.of({20, 100, 300});
  for (int64_t q0 = 0; q0 < rows;) {
    const int64_t q1 = std::min<int64_t>(rows, q0 + draw(1, max_rows));
    for (int64_t k0 = 0; k0 < keys;) {
      const int64_t k1 = std::min<int64_t>(keys, k0 + draw(1, max_keys));
      if (draw.one_in(4)) {
        const int64_t low = k0 - q1 + draw(0, 100);
        slices.push_back({{q0, q1}, {k0, k1}, low, low + draw(0, 150)});
      } else if (!draw.one_in(3)) {
        slices.push_back(AttnSlice::from_type(static_cast<MaskType>(draw(0, 3)), {q0, q1}, {k0, k1}));
      }
      k0 = k1;
    }
    q0 = q1;
  }
  return slices;
}

struct HeadDims {
  int qk, v;
};
/// Head dims of any class: the largest of the class, or smaller.
HeadDims draw_dims(Draw& draw) {
  const HeadDims most = draw.of<HeadDims>({{32, 32}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}});
  if (draw.one_in(2)) return most;
  return {8 * draw(1, most.qk / 8), 8 * draw(1, most.v / 8)};
}

RandomConfig draw_config(Draw& draw) {
  RandomConfig config;
  const int heads_kv = draw(1, 2);
  const HeadDims dims = draw.one_in(2) ? draw.of<HeadDims>({{64, 64}, {128, 128}}) : draw_dims(draw);
  const DType dtype = draw.of({DType::kBFloat16, DType::kFloat16});
  config.shape = {draw(1, 180), draw(1, 250), heads_kv * draw.of({1, 2, 3, 4, 5, 6, 7, 12}), heads_kv, dims.qk,
                  dims.v,       dtype};
  if (draw.one_in(4)) config.softcap = 5.0f;
  if (draw.one_in(3)) config.scale = 0.05f;
  if (draw.one_in(3)) config.seqlen_sink = draw(1, 3);
  config.sink_layout = draw.of({SinkLayout::kSh, SinkLayout::kSsh});
  config.strided = draw.one_in(2);
  config.gap = 8;  // 16 bytes
  config.grad_dtype = draw.of({dtype, DType::kFloat32});
  config.out_dtype = draw.of({dtype, DType::kFloat32});
  return config;
}

/// `x` with `bits` bits of fraction and the leading one, but none below 2^min_exponent.
double rounded(double x, int bits, int min_exponent) {
  if (!std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - bits, min_exponent));
  return std::nearbyint(x / unit) * unit;
}
double to_bfloat16(double x) { return rounded(x, 8, -133); }
double to_float16(double x) { return rounded(x, 11, -24); }

/// What a naive pass in the problem's dtype is off by, as norms; see DenseProblem::round.
reference::DenseResult naive_result(reference::DenseProblem problem, DType dtype) {
  problem.round = dtype == DType::kBFloat16 ? to_bfloat16 : to_float16;
  return reference::dense_attention(problem);
}

/// At most twice the error of a naive pass, and a bound for where that one happens to be exact: half a unit of the
/// dtype for each element (2^-9, 2^-12), since what is stored is rounded.
void expect_within(const char* name, const std::vector<double>& actual, const std::vector<double>& wanted,
                   const std::vector<double>& naive, DType dtype, double noise) {
  const test::Distance ours = test::distance(actual, wanted), theirs = test::distance(naive, wanted);
  const double unit = dtype == DType::kBFloat16 ? 1.0 / 512 : 1.0 / 4096;
  EXPECT_LE(ours.error, std::max(2 * theirs.error, 1.5 * unit * ours.norm) + noise) << name;
}

void expect_right(RandomAttention& r) {
  const reference::DenseResult wanted = reference::dense_attention(r.problem);
  const reference::DenseResult naive = naive_result(r.problem, r.config.shape.dtype);
  const DType dtype = r.config.shape.dtype;
  // Where a gradient cancels exactly (rows that see one key), both passes are left with rounding: the kernels with that
  // of out, which enters delta as the sum of dim terms of half a unit, sqrt(dim) * unit / sqrt(3) a row. Over few rows
  // chance decides which of the two is larger: three deviations of one row.
  const double unit = dtype == DType::kBFloat16 ? 1.0 / 512 : 1.0 / 4096;
  const double noise = 3 * unit * r.problem.scale * r.problem.dim;
  expect_within("out", test::values_of(r.out_view(), r.out), wanted.out, naive.out, dtype, 0);
  expect_within("dq", test::values_of(r.dq_view(), r.dq), wanted.dq, naive.dq, dtype, noise);
  expect_within("dk", test::values_of(r.dk_view(), r.dk), wanted.dk, naive.dk, dtype, noise);
  expect_within("dv", test::values_of(r.dv_view(), r.dv), wanted.dv, naive.dv, dtype, 0);
  test::expect_logits(r, wanted);
  // Sums over rows (of one row with kSsh) of exp(sink - lse) * delta, delta as above: more than three deviations.
  const double sums = r.config.sink_layout == SinkLayout::kSh ? static_cast<double>(r.config.shape.seqlen_q) : 1.0;
  for (size_t i = 0; i < r.dsink.size(); ++i) {
    EXPECT_NEAR(r.dsink[i], wanted.dsink[i], 2 * unit * std::sqrt(sums * r.problem.dim)) << "dsink " << i;
  }
}

/// Whether all gaps between heads and rows are still NaN, as make_random left them.
bool gaps_are_untouched(const TensorView& view, const HostTensor& tensor) {
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    for (int head = 0; head < tensor.heads(); ++head) {
      for (int d = head < view.heads ? view.dim : 0; d < tensor.dim(); ++d) {
        if (!std::isnan(tensor.at(row, head, d))) return false;
      }
    }
  }
  return true;
}

TEST(Sm90Random, BothPassesAgreeWithFloat64OnRandomSliceSets) {
  if (!check_hopper().found) GTEST_SKIP() << check_hopper().text;
  const Sm90Backend backend;
  const int rounds = test::num_rounds(500);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    Draw draw(static_cast<unsigned>(round));
    const RandomConfig config = draw_config(draw);
    RandomAttention r = make_random(config, draw_slices(draw, config.shape.seqlen_q, config.shape.seqlen_k),
                                    static_cast<unsigned>(round));
    const auto mask = test::prepare_sm90(backend, r.slices, config.shape);
    OnDevice device(r);
    device.backward.options.deterministic = draw.one_in(3);
    if (draw.one_in(3)) device.forward.max_logits = nullptr;  // another path through the softmax
    test::poison_workspace(*mask);
    backend.forward(*mask, device.forward);
    backend.backward(*mask, device.backward);
    device.fetch();
    if (device.forward.max_logits == nullptr) r.max_logits.clear();
    expect_right(r);
    EXPECT_TRUE(gaps_are_untouched(r.out_view(), r.out) && gaps_are_untouched(r.dq_view(), r.dq) &&
                gaps_are_untouched(r.dk_view(), r.dk) && gaps_are_untouched(r.dv_view(), r.dv));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tangram
