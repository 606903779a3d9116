// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What `tangram doctor --measure` makes of times: these come from known constants.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "cli/measure/kernel_fit.hpp"
#include "plan/cost.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;

constexpr int kSampledHeads = 64;

/// Times as `entry` says, each off by up to `noise`.
std::vector<TimedCalls> timed_calls(const KernelEntry& entry, double noise) {
  const HeadConfig heads{kSampledHeads, 8, entry.head_dim, entry.head_dim, entry.dtype};
  std::mt19937 rng(3);
  std::uniform_real_distribution<double> error(1 - noise, 1 + noise);
  std::vector<TimedCalls> calls;
  for (std::vector<AttnSlice>& slices : sample_masks(16384, 512)) {
    const auto keys = static_cast<double>(shape_of_call(slices, heads).seqlen_k);
    const auto seconds = [&](const KernelModel& kernel, Pass pass) {
      return error(rng) * call_seconds(kernel, of_one_call(count_work(slices, kernel), keys, kernel),
                                       {kSampledHeads, flops_per_head_cell(heads, pass), entry.workers});
    };
    const double forward_s = seconds(entry.forward, Pass::kForward);
    const double backward_s = seconds(entry.backward, Pass::kBackward);
    calls.push_back({std::move(slices), forward_s, backward_s});
  }
  return calls;
}

KernelEntry tiles_of(KernelEntry entry) {
  for (KernelModel* kernel : {&entry.forward, &entry.backward}) {
    *kernel = {.tile_rows = kernel->tile_rows,
               .tile_cols = kernel->tile_cols,
               .item_rows = kernel->item_rows,
               .items_by_keys = kernel->items_by_keys};
  }
  return entry;
}

void expect_near(const KernelModel& found, const KernelModel& known, double share) {
  const auto near = [&](double a, double b) { EXPECT_NEAR(a, b, share * b); };
  near(found.flops_per_s, known.flops_per_s);
  near(found.masked_tile_cost, known.masked_tile_cost);
  near(found.item_s, known.item_s);
  near(found.call_s, known.call_s);
  near(found.tail, known.tail);
  EXPECT_EQ(found.item_rows, known.item_rows);
  EXPECT_EQ(found.items_by_keys, known.items_by_keys);
}

TEST(KernelMeasurement, MasksTellAllConstantsApart) {
  const KernelEntry known = builtin_machine_file().kernels[0];
  const KernelMeasurement found = fit_entry(tiles_of(known), timed_calls(known, 0), kSampledHeads);
  expect_near(found.entry.forward, known.forward, 1e-6);
  expect_near(found.entry.backward, known.backward, 1e-6);
  EXPECT_LT(found.forward.max_error, 1e-6);
  EXPECT_THAT(errors_text(found), HasSubstr("0.0 % and 0.0 % (root mean square)"));
}

// Medians of times differ by about 1 % from run to run. Constants then differ more, which make up for each other, but
// not the times that they give.
TEST(KernelMeasurement, NoiseOfTimesMovesConstantsLittle) {
  const KernelEntry known = builtin_machine_file().kernels[0];
  const KernelMeasurement found = fit_entry(tiles_of(known), timed_calls(known, 0.01), kSampledHeads);
  expect_near(found.entry.forward, known.forward, 0.5);
  expect_near(found.entry.backward, known.backward, 0.5);
  EXPECT_LT(found.forward.max_error, 0.02);
  EXPECT_LT(found.backward.max_error, 0.02);
  const std::vector<TimedCalls> quiet = timed_calls(known, 0), fitted = timed_calls(found.entry, 0);
  for (size_t i = 0; i < quiet.size(); ++i) {
    EXPECT_NEAR(fitted[i].forward_s, quiet[i].forward_s, 0.01 * quiet[i].forward_s) << i;
    EXPECT_NEAR(fitted[i].backward_s, quiet[i].backward_s, 0.01 * quiet[i].backward_s) << i;
  }
}

}  // namespace
}  // namespace tangram::cli
