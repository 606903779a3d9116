// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Keys that the Hopper kernels read from other tensors than k and v. Needs a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attn/gpu/abilities.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

constexpr int64_t kRowsElsewhere = 3000;
// In another order there, with neighbours here that are none there, borders off every tile and a short one.
const std::vector<LocalKvRange> kLocalRanges = {
    {{0, 500}, 2400}, {{500, 1111}, 300}, {{1111, 1200}, 0}, {{1303, 1900}, 1000}, {{2000, 2048}, 2950}};

/// Moves what kernels may only read elsewhere there, leaving NaN in its place.
void move_elsewhere(const TensorView& here, const TensorView& there) {
  const auto row_bytes = static_cast<size_t>(here.row_stride * 2);
  const auto row = [&](const TensorView& view, int64_t i) {
    return static_cast<char*>(view.data) + i * static_cast<int64_t>(row_bytes);
  };
  cuda::check(cudaMemset(there.data, 0xff, static_cast<size_t>(there.rows) * row_bytes), "cudaMemset");
  for (const LocalKvRange& local_range : kLocalRanges) {
    const int64_t count = local_range.keys.size(), inner = count - 2 * kLocalKvHalo;
    cuda::check(cudaMemcpy(row(there, local_range.row), row(here, local_range.keys.begin),
                           static_cast<size_t>(count) * row_bytes, cudaMemcpyDeviceToDevice),
                "cudaMemcpy");
    if (inner <= 0) continue;
    cuda::check(
        cudaMemset(row(here, local_range.keys.begin + kLocalKvHalo), 0xff, static_cast<size_t>(inner) * row_bytes),
        "cudaMemset");
  }
}

class LocalRanges : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::check_tested().found) GTEST_SKIP() << test::check_tested().text;
  }
  const test::TestedBackend backend;

  void expect_equal(const std::vector<AttnSlice>& slices) {
    int index = 0;
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const test::HeadDims dims : test::kHeadDims) {
        for (const float softcap : {0.0f, 20.0f}) {
          // Classes without kernels for exactly their dimensions run some cases in turn.
          if (++index % 3 != 0 && !sm90::has_exact_kernels(dims.qk, dims.v)) continue;
          SCOPED_TRACE(::testing::Message() << to_string(dtype) << ", " << dims << ", softcap " << softcap);
          test::RandomConfig config;
          config.shape = test::shape_of(1024, 2048, 8, 2, dims, dtype);
          config.softcap = softcap;
          test::RandomAttention problem = test::make_random(config, slices, 5);
          test::OnDevice on(problem);
          on.backward.options.deterministic = true;
          const auto run = [&] {
            const auto mask = make_mask_slot(backend, slices, config.shape, {.local_ranges = kLocalRanges});
            on.poison_outputs();
            backend.forward(*mask, on.forward);
            backend.backward(*mask, on.backward);
            cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
            return on.output_bytes();
          };
          const std::vector<char> expected = run();  // without the other tensors: all keys from k and v
          std::vector<cuda::DeviceBuffer> memory;
          const auto like = [&](const ConstTensorView& view) {
            memory.emplace_back(static_cast<size_t>(kRowsElsewhere * view.row_stride) * 2);
            return TensorView{{memory.back().as<void>(), view.dtype, kRowsElsewhere, view.heads, view.dim,
                               view.row_stride, view.head_stride}};
          };
          const TensorView k = like(on.forward.k), v = like(on.forward.v);
          const auto writable = [](const ConstTensorView& view) {
            return TensorView{{const_cast<void*>(view.data), view.dtype, view.rows, view.heads, view.dim,
                               view.row_stride, view.head_stride}};
          };
          move_elsewhere(writable(on.forward.k), k);
          move_elsewhere(writable(on.forward.v), v);
          on.forward.k_local = on.backward.k_local = k;
          on.forward.v_local = on.backward.v_local = v;
          EXPECT_TRUE(run() == expected);
        }
      }
    }
  }
};

TEST_F(LocalRanges, ResultsAreBitwiseThoseOfKeysInOnePlace) {
  expect_equal({AttnSlice::causal({0, 700}, {0, 2000}), AttnSlice::full({700, 1024}, {333, 2048})});
}

// Runs of them are gathered (schedule/gather_runs.hpp), by boxes of 64 and of 16 keys.
TEST_F(LocalRanges, ResultsOfBlocksAreBitwiseThoseOfKeysInOnePlace) {
  std::vector<AttnSlice> blocks;
  for (int64_t q = 0; q < 960; q += 192) {
    for (int64_t k = q % 5; k + 80 <= 2048; k += 160) blocks.push_back(AttnSlice::full({q, q + 192}, {k, k + 80}));
  }
  expect_equal(blocks);
}

TEST_F(LocalRanges, TensorsThatDoNotFitAreRefused) {
  const std::vector<AttnSlice> slices = {AttnSlice::full({0, 256}, {0, 2048})};
  test::RandomConfig config;
  config.shape = {256, 2048, 8, 2, 128, 128, DType::kBFloat16};
  test::RandomAttention problem = test::make_random(config, slices, 6);
  test::OnDevice on(problem);
  const auto mask = make_mask_slot(backend, slices, config.shape, {.local_ranges = kLocalRanges});
  on.forward.k_local = on.forward.k;  // 2048 rows of 2998
  on.forward.v_local = on.forward.v;
  EXPECT_THROW(backend.forward(*mask, on.forward), InvalidArgument);
  const std::vector<LocalKvRange> outside{{{0, 2049}, 0}};
  EXPECT_THROW(make_mask_slot(backend, slices, config.shape, {.local_ranges = outside}), InvalidArgument);
}

}  // namespace
}  // namespace tangram
