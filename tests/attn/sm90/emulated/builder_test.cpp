// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels that build lists of masks, with warps in random order: as one thread of the host builds them, bit for
// bit.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "attn/gpu/builder/kernels.cuh"
#include "attn/sm90/emulated/machine.hpp"
#include "schedule/build_cases.hpp"
#include "schedule/serial_build.hpp"

namespace tangram::gpu::builder {
namespace {

using namespace schedule::builder;

/// The steps behind the first one.
void finish(const TurnBuild& build, const emulated::Order& order) {
  const auto blocks = [](int64_t warps) { return static_cast<uint32_t>((warps + 7) / 8); };
  const bool has_turns = build.turns.max_segments > 0;
  const auto run = [&](int32_t warps, const auto& kernel) {
    if (has_turns && warps > 0) {
      emulated::run_one_by_one({blocks(warps), kWarpThreads, order}, [&] { kernel(build); });
    }
  };
  const int32_t key_tiles = build.passes[1].max_tiles;
  const int64_t tiles = int64_t{build.passes[0].max_tiles} + build.passes[1].max_tiles;
  emulated::run_one_by_one({blocks(tiles), kWarpThreads, order}, [&] { count_tiles_kernel(build); });
  emulated::run_one_by_one({1, 128, order}, [&] { place_lists_kernel<128>(build); });
  run(key_tiles, [](const auto& b) { order_runs_kernel(b); });
  run(build.max_q_tiles, [](const auto& b) { count_turns_kernel(b); });
  if (has_turns) emulated::run_one_by_one({1, 128, order}, [&] { place_turns_kernel<128>(build); });
  emulated::run_one_by_one({blocks(num_parts(build)), kWarpThreads, order}, [&] { fill_image_kernel(build); });
  run(build.max_q_tiles, [](const auto& b) { list_turns_kernel(b); });
  run(key_tiles, [](const auto& b) { fill_turns_kernel(b); });
}

void run_blocks(const TurnBuild& build, const Blocks& chosen, const emulated::Order& order) {
  const BlockParams params{build, chosen};
  const auto blocks = [](int64_t count, int64_t each) { return static_cast<uint32_t>((count + each - 1) / each); };
  const BlockLines* lines = params.blocks.lines;
  const uint32_t of_lines = blocks(lines[0].num_lines + lines[1].num_lines, 8);
  const auto run = [&](uint32_t count, uint32_t threads, const auto& kernel) {
    emulated::run_one_by_one({count, threads, order}, [&] { kernel(params); });
  };
  run(3, kWarpThreads, [](const auto& p) { clear_blocks_kernel(p); });
  run(blocks(int64_t{lines[0].num_lines} * params.blocks.width, kWarpThreads), kWarpThreads,
      [](const auto& p) { mark_blocks_kernel(p); });
  run(of_lines, kWarpThreads, [](const auto& p) { count_lines_kernel(p); });
  run(1, 128, [](const auto& p) { begin_blocks_kernel<128>(p); });
  run(of_lines, kWarpThreads, [](const auto& p) { slice_lines_kernel(p); });
  finish(build, order);
}

TEST(Sm90EmulatedBuilder, DocumentsAreAsTheHostBuildsThem) {
  std::mt19937 rng(3);
  int seed = 0;
  for (const ImageCase& c : document_cases()) {
    BuiltImages images(c);
    for (int round = 0; round < (support::is_long_run() ? 20 : 2); ++round) {
      const Pack pack = random_pack(rng, c);
      const emulated::Order order = emulated::order(seed++);
      const Report report = images.build([&](const TurnBuild& build) {
        emulated::run_one_by_one({1, 128, order}, [&] { begin_documents_kernel<128>({build, documents_of(pack)}); });
        finish(build, order);
      });
      ASSERT_EQ(report.problem, Problem::kNone);
      images.expect_as_host(slices_of(pack));
      ASSERT_FALSE(HasFailure()) << "case " << seed;
    }
  }
}

TEST(Sm90EmulatedBuilder, BlocksAreAsTheHostBuildsThem) {
  std::mt19937 rng(4);
  int seed = 100;
  for (const ImageCase& c : block_cases()) {
    BuiltImages images(c);
    for (int round = 0; round < (support::is_long_run() ? 20 : 2); ++round) {
      const Choice choice = random_choice(rng, c);
      const emulated::Order order = emulated::order(seed++);
      std::vector<std::byte> memory;
      const Blocks blocks = blocks_of(choice, c, memory);
      const Report report = images.build([&](const TurnBuild& build) { run_blocks(build, blocks, order); });
      ASSERT_EQ(report.problem, Problem::kNone);
      images.expect_as_host(slices_of(choice, c));
      ASSERT_FALSE(HasFailure()) << "case " << seed;
    }
  }
}

TEST(Sm90EmulatedBuilder, RangesAreAsTheHostBuildsThem) {
  std::mt19937 rng(5);
  int seed = 200;
  for (const ImageCase& c : range_cases()) {
    BuiltImages images(c);
    for (int round = 0; round < (support::is_long_run() ? 20 : 2); ++round) {
      const TypedRanges typed = random_ranges(rng, c);
      const emulated::Order order = emulated::order(seed++);
      const Report report = images.build([&](const SortBuild& build) {
        const RangeParams params{build, ranges_of(typed)};
        const auto blocks = [](int64_t warps) { return static_cast<uint32_t>((warps + 7) / 8); };
        const auto run = [&](uint32_t count, uint32_t threads, const auto& kernel) {
          if (count > 0) emulated::run_one_by_one({count, threads, order}, [&] { kernel(params); });
        };
        const auto by_threads = static_cast<uint32_t>((params.ranges.count + kWarpThreads - 1) / kWarpThreads);
        run(1, 128, [](const auto& p) { begin_ranges_kernel<128>(p); });
        run(by_threads, kWarpThreads, [](const auto& p) { read_ranges_kernel(p); });
        run(1, 128, [](const auto& p) { place_buckets_kernel<128>(p); });
        run(by_threads, kWarpThreads, [](const auto& p) { list_ranges_kernel(p); });
        run(blocks(params.ranges.count), kWarpThreads, [](const auto& p) { sort_slices_kernel(p); });
        run(blocks(2 * params.ranges.count), kWarpThreads, [](const auto& p) { check_slices_kernel(p); });
        run(1, 128, [](const auto& p) { finish_ranges_kernel<128>(p); });
        finish(build, order);
      });
      ASSERT_EQ(report.problem, Problem::kNone);
      images.expect_as_host(slices_of(typed));
      ASSERT_FALSE(HasFailure()) << "case " << seed;
    }
  }
}

}  // namespace
}  // namespace tangram::gpu::builder
