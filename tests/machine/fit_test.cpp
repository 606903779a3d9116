// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Fits get back the constants that made the samples.
#include "machine/fit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tangram/error.hpp"

namespace tangram {
namespace {

constexpr double kFlops = 512;
constexpr int kWorkers = 4;

std::vector<AttnSlice> random_slices(std::mt19937& rng) {
  std::vector<AttnSlice> slices;
  const int count = 1 + static_cast<int>(rng() % 5);
  for (int i = 0; i < count; ++i) {
    const int64_t q = static_cast<int64_t>(rng() % 2000), k = static_cast<int64_t>(rng() % 2000);
    const Range rows{q, q + 1 + static_cast<int64_t>(rng() % 1500)};
    const Range keys{k, k + rows.size() + static_cast<int64_t>(rng() % 1500)};
    slices.push_back(AttnSlice::from_type(static_cast<MaskType>(rng() % 4), rows, keys));
  }
  return slices;
}

std::vector<KernelSample> samples_of(const KernelModel& truth, double noise) {
  std::mt19937 rng(11);
  std::uniform_real_distribution<double> error(1 - noise, 1 + noise);
  std::vector<KernelSample> samples;
  for (int i = 0; i < 40; ++i) {
    const KernelWork work = count_work(random_slices(rng), truth);
    const double heads = 1 + static_cast<double>(rng() % 8);
    samples.push_back({work, heads, call_seconds(truth, work, {heads, kFlops, kWorkers}) * error(rng)});
  }
  return samples;
}

TEST(Fit, KernelConstantsComeBack) {
  const KernelModel truth{16, 32, 128, 3e11, 0.6, 2e-6, 5e-5, 0.4};
  const KernelFit fit =
      fit_kernel({.tile_rows = 16, .tile_cols = 32, .item_rows = 128}, samples_of(truth, 0), kFlops, kWorkers);
  EXPECT_NEAR(fit.model.flops_per_s, truth.flops_per_s, 1e-6 * truth.flops_per_s);
  EXPECT_NEAR(fit.model.masked_tile_cost, truth.masked_tile_cost, 1e-6);
  EXPECT_NEAR(fit.model.item_s, truth.item_s, 1e-6 * truth.item_s);
  EXPECT_NEAR(fit.model.call_s, truth.call_s, 1e-6 * truth.call_s);
  EXPECT_NEAR(fit.model.tail, truth.tail, 1e-6);
  EXPECT_LT(fit.max_error, 1e-9);
}

TEST(Fit, NoiseShowsAsError) {
  const KernelModel truth{16, 32, 128, 3e11, 0.6, 2e-6, 5e-5, 0.4};
  const KernelFit fit =
      fit_kernel({.tile_rows = 16, .tile_cols = 32, .item_rows = 128}, samples_of(truth, 0.05), kFlops, kWorkers);
  EXPECT_NEAR(fit.model.flops_per_s, truth.flops_per_s, 0.05 * truth.flops_per_s);
  EXPECT_GT(fit.rms_error, 0.01);
  EXPECT_LT(fit.rms_error, 0.05);  // uniform in +- 5 %: 2.9 %
  EXPECT_GE(fit.max_error, fit.rms_error);
}

TEST(Fit, NothingBecomesNegative) {
  // Less time for more work tiles: only a negative constant would explain it.
  std::vector<KernelSample> samples;
  for (int i = 1; i <= 10; ++i) {
    KernelWork work;
    work.area = work.issued = 1e6;
    work.items = i;
    samples.push_back({work, 1, 1e-3 - 1e-5 * i});
  }
  const KernelFit fit = fit_kernel({.tile_rows = 16, .tile_cols = 32, .item_rows = 128}, samples, kFlops, 1);
  EXPECT_EQ(fit.model.item_s, 0);
  EXPECT_GT(fit.model.flops_per_s, 0);
}

TEST(Fit, LinkConstantsComeBack) {
  std::vector<LinkSample> samples;
  for (const double bytes : {1e3, 1e5, 1e7}) {
    for (const double copies : {1.0, 16.0, 256.0})
      samples.push_back({bytes, copies, bytes / 2e9 + copies * 3e-6 + 4e-5});
  }
  const LinkFit fit = fit_link(samples);
  EXPECT_NEAR(fit.link.bytes_per_s, 2e9, 1);
  EXPECT_NEAR(fit.link.latency_s, 3e-6, 1e-12);
  EXPECT_NEAR(fit.call_s, 4e-5, 1e-11);
}

TEST(Fit, RefusesSamplesThatMeanNothing) {
  const std::vector<LinkSample> one{{1, 1, 1}};
  EXPECT_THROW(fit_link(one), InvalidArgument);
  const std::vector<LinkSample> timeless{{1, 1, 1}, {2, 1, 0}};
  EXPECT_THROW(fit_link(timeless), InvalidArgument);
  const std::vector<LinkSample> nothing{{0, 1, 1}, {2, 1, 1}};
  EXPECT_THROW(fit_link(nothing), InvalidArgument);
}

}  // namespace
}  // namespace tangram
