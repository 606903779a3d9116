// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Planning grows about linearly in slices and chunks. Whatever is quadratic in one of them would take 64 times as long
// for 8 times as much; what is held against that bound is processor time of the fastest of a few runs, so that other
// work on the machine does not matter.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "plan/tile_list.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

constexpr double kGrowth = 8;
// Linear is 8; sorting adds a little, caches that no longer hold everything up to a factor of two.
constexpr double kMostAllowed = 24;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Function>
double fastest_seconds(const Function& function) {
  double fastest = 1e30;
  for (int i = 0; i < 5; ++i) {
    const double begin = thread_seconds();
    function();
    fastest = std::min(fastest, thread_seconds() - begin);
  }
  return fastest;
}

// Documents of unlike lengths around `mean`.
std::vector<int64_t> documents(int64_t count, int64_t mean) {
  std::vector<int64_t> cu_seqlens{0};
  for (int64_t i = 0; i < count; ++i) cu_seqlens.push_back(cu_seqlens.back() + mean / 2 + i * 7919 % mean);
  const int64_t unit = 8 * 1024;
  cu_seqlens.push_back((cu_seqlens.back() / unit + 1) * unit);
  return cu_seqlens;
}

double plan_seconds(int64_t num_documents, int64_t mean_length, int64_t chunk_size) {
  const Mask mask = varlen_mask(documents(num_documents, mean_length), true);
  DistAttnConfig config;
  config.cp_size = 8;
  config.dispatch = {DispatchAlgorithm::kTangram, chunk_size, 0};
  return fastest_seconds([&] {
    const std::vector<AttnSlice> slices(mask.slices().begin(), mask.slices().end());
    const Plan plan = make_plan(Mask(mask.seqlen_q(), mask.seqlen_k(), slices), config);
    build_tile_list(plan.ranks[0].slices, plan.q_dispatch.rows_per_rank(), plan.ranks[0].kv_rows, {128, 128});
  });
}

TEST(PlanGrowth, IsAboutLinearInSlices) {
  // Slices and chunks grow together: the same documents, more of them.
  const double few = plan_seconds(500, 512, 0);
  const double many = plan_seconds(static_cast<int64_t>(500 * kGrowth), 512, 0);
  EXPECT_LT(many, few * kMostAllowed) << few << " s and " << many << " s";
}

TEST(PlanGrowth, IsAboutLinearInChunks) {
  // The same slices, cut into more chunks.
  const double coarse = plan_seconds(200, 4096, 1024);
  const double fine = plan_seconds(200, 4096, static_cast<int64_t>(1024 / kGrowth));
  EXPECT_LT(fine, coarse * kMostAllowed) << coarse << " s and " << fine << " s";
}

TEST(PlanGrowth, ValidationIsAboutLinearInSlices) {
  const auto seconds = [](int64_t count) {
    const Mask mask = varlen_mask(documents(count, 64), false);
    const std::vector<AttnSlice> slices(mask.slices().begin(), mask.slices().end());
    return fastest_seconds([&] { Mask(mask.seqlen_q(), mask.seqlen_k(), slices); });
  };
  const double few = seconds(4000);
  const double many = seconds(static_cast<int64_t>(4000 * kGrowth));
  EXPECT_LT(many, few * kMostAllowed) << few << " s and " << many << " s";
}

}  // namespace
}  // namespace tangram
