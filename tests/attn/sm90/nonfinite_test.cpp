// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NaN and infinities through both Hopper passes: as in the reference backend they reach whatever sees them, and they
// stay among the heads and documents that they lie in. Needs a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "tangram/backends.hpp"

namespace tangram {
namespace {

using test::HeadDims;
using test::kHeadDims;
using test::make_random;
using test::OnDevice;
using test::RandomAttention;
using test::RandomConfig;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kDocument = 384;  // begins and ends with a tile of either pass
constexpr Range kMiddle{kDocument, 2 * kDocument};

/// One element of q, k, v or dout that becomes `value`.
struct Poison {
  enum Tensor { kQ, kK, kV, kDout };
  Tensor tensor;
  int64_t row;
  int head, column;
  float value;

  void apply(RandomAttention& r) const {
    HostTensor* const tensors[] = {&r.q, &r.k, &r.v, &r.dout};
    tensors[tensor]->set(row, head, column, value);
  }
  bool is_of_queries() const { return tensor == kQ || tensor == kDout; }
};
const char* const kNames[] = {"q", "k", "v", "dout"};

class Sm90Nonfinite : public testing::Test {
 protected:
  void SetUp() override {
    if (!check_hopper().found) GTEST_SKIP() << check_hopper().text;
  }
  /// Both passes, the backward one deterministic.
  void run(MaskSlot& mask, RandomAttention& r, bool max_logits) {
    OnDevice device(r);
    if (!max_logits) device.forward.max_logits = nullptr;  // another path through the softmax
    device.backward.options.deterministic = true;
    backend_.forward(mask, device.forward);
    backend_.backward(mask, device.backward);
    device.fetch();
  }

  Sm90Backend backend_;
  std::unique_ptr<AttnBackend> reference_ = make_attn_backend("reference", {});
};

struct Output {
  const char* name;
  std::vector<double> values;  // [rows, heads, dim]
  int heads, dim, heads_per_kv;
};
std::vector<Output> outputs_of(RandomAttention& r) {
  const AttnShape& s = r.config.shape;
  const int group = s.num_heads_q / s.num_heads_kv;
  return {{"out", test::values_of(r.out_view(), r.out), s.num_heads_q, s.head_dim_v, group},
          {"lse", {r.lse.begin(), r.lse.end()}, s.num_heads_q, 1, group},
          {"dq", test::values_of(r.dq_view(), r.dq), s.num_heads_q, s.head_dim, group},
          {"dk", test::values_of(r.dk_view(), r.dk), s.num_heads_kv, s.head_dim, 1},
          {"dv", test::values_of(r.dv_view(), r.dv), s.num_heads_kv, s.head_dim_v, 1}};
}

/// What is not finite by the reference is not finite here. Neighbours in a tile may be so as well: masked cells are
/// zeros times what is there.
void expect_seen(RandomAttention& got, RandomAttention& reference) {
  const std::vector<Output> ours = outputs_of(got), theirs = outputs_of(reference);
  for (size_t o = 0; o < ours.size(); ++o) {
    for (size_t i = 0; i < ours[o].values.size(); ++i) {
      ASSERT_TRUE(!std::isfinite(ours[o].values[i]) || std::isfinite(theirs[o].values[i]))
          << ours[o].name << " " << i << " is " << ours[o].values[i] << ", should be " << theirs[o].values[i];
    }
  }
  for (size_t i = 0; i < got.dsink.size(); ++i) {
    EXPECT_TRUE(!std::isfinite(got.dsink[i]) || std::isfinite(reference.dsink[i])) << "dsink " << i;
  }
}

/// Rows of other documents and heads of other KV heads are bitwise what they are without poison.
void expect_kept_apart(RandomAttention& got, RandomAttention& clean, int kv_head) {
  const std::vector<Output> with = outputs_of(got), without = outputs_of(clean);
  for (size_t o = 0; o < with.size(); ++o) {
    for (size_t i = 0; i < with[o].values.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / (with[o].heads * with[o].dim);
      const int head = static_cast<int>(i) / with[o].dim % with[o].heads / with[o].heads_per_kv;
      if (kMiddle.contains(row) && head == kv_head) continue;
      ASSERT_EQ(with[o].values[i], without[o].values[i]) << with[o].name << " " << i;
    }
  }
}

TEST_F(Sm90Nonfinite, ReachWhatSeesThemAndNothingBeyondTheirDocument) {
  // All combinations for head dims 128 and 64, then two for each other class.
  constexpr int kExact = 8, kCombinations = kExact + 2 * (static_cast<int>(std::size(kHeadDims)) - 2);
  for (int combination = 0; combination < kCombinations; ++combination) {
    const DType dtype = combination % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    const HeadDims dims = kHeadDims[combination < kExact ? combination / 2 % 2 : 2 + (combination - kExact) / 2];
    const bool is_window = combination / 4 % 2 == 0;
    RandomConfig config;
    config.shape = test::shape_of(3 * kDocument, 3 * kDocument, 4, 2, dims, dtype);
    config.softcap = combination % 3 == 2 ? 5.0f : 0.0f;
    config.seqlen_sink = combination % 4 == 1 ? 1 : 0;
    config.out_dtype = config.grad_dtype = combination % 2 == combination / 4 % 2 ? DType::kFloat32 : dtype;
    std::vector<AttnSlice> slices;
    for (int64_t begin = 0; begin < 3 * kDocument; begin += kDocument) {
      const Range rows{begin, begin + kDocument};
      slices.push_back(is_window || rows != kMiddle ? AttnSlice{rows, rows, -47, 0} : AttnSlice::full(rows, rows));
    }
    const auto mask = test::prepare_sm90(backend_, slices, config.shape);
    const auto problem = [&] { return make_random(config, slices, static_cast<unsigned>(combination)); };
    RandomAttention clean = problem();
    run(*mask, clean, combination % 2 == 0);
    for (const int tensor : {0, 1, 2, 3}) {
      // Infinities away from rows that see one key, whose softmax over nothing but -inf is a matter of taste.
      const float value = std::array{kNan, kInf, -kInf}[static_cast<size_t>(combination + tensor) % 3];
      const int64_t row = std::isnan(value) ? (combination % 2 == 0 ? kMiddle.begin : kMiddle.end - 1)
                                            : kMiddle.begin + 100 + 17 * (combination % 8);
      Poison poison{static_cast<Poison::Tensor>(tensor), row, 1, 7 * combination % dims.v, value};
      SCOPED_TRACE(testing::Message() << "combination " << combination << ", " << dims << ", " << value << " in "
                                      << kNames[tensor] << " row " << row);
      RandomAttention got = problem(), reference = problem();
      poison.apply(got), poison.apply(reference);
      run(*mask, got, combination % 2 == 0);
      test::run(*reference_, reference);
      expect_seen(got, reference);
      expect_kept_apart(got, clean, poison.is_of_queries() ? poison.head / 2 : poison.head);
      if (HasFailure()) return;
    }
  }
}

TEST_F(Sm90Nonfinite, SurviveTheMergeOfTilesInParts) {
  int index = 0;
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config;
    config.shape = test::shape_of(48, 4096, 2, 1, dims);
    config.poison = false;
    const std::vector<AttnSlice> slices{AttnSlice::full({0, 48}, {0, 4096})};
    const auto mask = test::prepare_sm90(backend_, slices, config.shape);
    ASSERT_GT(backend_.workspace_bytes(*mask, AttnPass::kForward), 0) << "the test must be of a mask in parts";
    for (const Poison& poison : {Poison{Poison::kQ, 5, 1, 3, kNan}, Poison{Poison::kK, 2100, 0, 0, kNan},
                                 Poison{Poison::kV, 4095, 0, dims.v - 1, kNan}}) {
      if (index++ % 3 != 0 && !dims.is_128()) continue;  // in turn: the reference takes a second
      SCOPED_TRACE(kNames[poison.tensor]);
      RandomAttention got = make_random(config, slices, 3), reference = make_random(config, slices, 3);
      poison.apply(got), poison.apply(reference);
      run(*mask, got, false);
      test::run(*reference_, reference);
      expect_seen(got, reference);
    }
  }
}

// Stages: what one of them computed stays NaN when the next adds to it, and also where nothing was before.
TEST_F(Sm90Nonfinite, SurviveAccumulation) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    const std::vector<AttnSlice> first{AttnSlice::full({0, 64}, {0, 128})},
        second{AttnSlice::full({0, 128}, {128, 256})};
    const std::vector<AttnSlice> third{AttnSlice::full({128, 192}, {0, 256})};
    RandomConfig config;
    config.shape = test::shape_of(192, 256, 2, 1, dims);
    std::vector<std::unique_ptr<MaskSlot>> masks;
    std::vector<AttnSlice> all;
    for (const auto& slices : {first, second, third}) {
      masks.push_back(test::prepare_sm90(backend_, slices, config.shape));
      all.insert(all.end(), slices.begin(), slices.end());
    }
    struct Case {
      Poison poison;
      Range rows;  // that see it
    };
    for (const Case& c :
         {Case{{Poison::kK, 64, 0, 2, kNan}, {0, 64}}, Case{{Poison::kK, 200, 0, 2, kNan}, {0, 128}},
          Case{{Poison::kV, 200, 0, 2, kNan}, {0, 128}}, Case{{Poison::kQ, 100, 1, 2, kNan}, {100, 101}}}) {
      SCOPED_TRACE(testing::Message() << kNames[c.poison.tensor] << " row " << c.poison.row);
      RandomAttention r = make_random(config, all, 4);
      c.poison.apply(r);
      OnDevice device(r);
      for (const auto& mask : masks) {
        backend_.forward(*mask, device.forward);
        device.forward.accumulate = true;
      }
      device.fetch();
      const bool of_values = c.poison.tensor == Poison::kV;
      for (int64_t row = 0; row < 192; ++row) {
        // Keys 64 and 200 are seen by the third mask's rows, too.
        const bool seen = c.rows.contains(row) || (row >= 128 && !c.poison.is_of_queries());
        ASSERT_EQ(std::isnan(r.out.at(row, 1, 2)), seen) << "out " << row;
        ASSERT_EQ(std::isnan(r.lse[static_cast<size_t>(row * 2 + 1)]), seen && !of_values) << "lse " << row;
      }
    }
  }
}

TEST_F(Sm90Nonfinite, SinksThatAreNanReachTheResultsOfTheirHead) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    const std::vector<AttnSlice> slices{AttnSlice::causal({0, 200}, {0, 200})};
    for (const SinkLayout layout : {SinkLayout::kSh, SinkLayout::kSsh}) {
      for (const int64_t nan_sink : {0, 1}) {  // the first of them, or what is added to it
        SCOPED_TRACE(testing::Message() << (layout == SinkLayout::kSh ? "shared" : "per row") << ", sink " << nan_sink);
        RandomConfig config;
        config.shape = test::shape_of(200, 200, 2, 1, dims);
        config.seqlen_sink = 2;
        config.sink_layout = layout;
        const auto mask = test::prepare_sm90(backend_, slices, config.shape);
        RandomAttention r = make_random(config, slices, 6);
        const int64_t row = layout == SinkLayout::kSh ? 0 : 77, only_row = layout == SinkLayout::kSh ? -1 : 77;
        const auto sink = static_cast<size_t>((row * 2 + nan_sink) * 2 + 1);  // of head 1
        r.sink[sink] = kNan;
        run(*mask, r, false);
        for (int64_t i = 0; i < 200; ++i) {
          const bool seen = only_row < 0 || i == only_row;
          ASSERT_EQ(std::isnan(r.out.at(i, 1, 9)), seen) << "row " << i;
          ASSERT_EQ(std::isnan(r.dq.at(i, 1, 9)), seen) << "row " << i;
          ASSERT_EQ(std::isnan(r.lse[static_cast<size_t>(i * 2 + 1)]), seen) << "row " << i;
          ASSERT_TRUE(std::isfinite(r.out.at(i, 0, 9)) && std::isfinite(r.dq.at(i, 0, 9))) << "row " << i;
        }
        EXPECT_TRUE(std::isnan(r.dsink[sink]));
        EXPECT_TRUE(std::isfinite(r.dsink[sink - 1]));
      }
    }
  }
}

}  // namespace
}  // namespace tangram
