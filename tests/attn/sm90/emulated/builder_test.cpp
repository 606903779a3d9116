// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels that build lists of masks, with warps in random order: as one thread of the host builds them, bit for bit.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "attn/sm90/emulated/machine.hpp"
#include "attn/sm90/emulated/device.hpp"

#include "attn/sm90/builder/kernels.cuh"
#include "schedule/build_cases.hpp"
#include "schedule/serial_build.hpp"

namespace tangram::sm90::builder {
namespace {

using namespace schedule::builder;

/// The steps behind the first one.
void finish(const Build& build, const emulated::Order& order) {
  const auto blocks = [](int64_t warps) { return static_cast<uint32_t>((warps + 7) / 8); };
  const int64_t tiles = int64_t{build.passes[0].max_tiles} + build.passes[1].max_tiles;
  emulated::run_one_by_one({blocks(tiles), kWarpThreads, order}, [&] { count_tiles_kernel(build); });
  emulated::run_one_by_one({1, 128, order}, [&] { place_lists_kernel<128>(build); });
  emulated::run_one_by_one({blocks(num_parts(build)), kWarpThreads, order}, [&] { fill_image_kernel(build); });
}

TEST(Sm90EmulatedBuilder, DocumentsAreAsTheHostBuildsThem) {
  std::mt19937 rng(3);
  int seed = 0;
  for (const ImageCase& c : document_cases()) {
    BuiltImages images(c);
    for (int round = 0; round < (support::is_long_run() ? 20 : 2); ++round) {
      const Pack pack = random_pack(rng, c);
      const emulated::Order order = emulated::order(seed++);
      const Report report = images.build([&](const Build& build) {
        emulated::run_one_by_one({1, 128, order}, [&] { begin_documents_kernel<128>({build, documents_of(pack)}); });
        finish(build, order);
      });
      ASSERT_EQ(report.problem, Problem::kNone);
      images.expect_as_host(slices_of(pack));
      ASSERT_FALSE(HasFailure()) << "case " << seed;
    }
  }
}

}  // namespace
}  // namespace tangram::sm90::builder
