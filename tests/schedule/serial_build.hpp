// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Images of masks as the code of GPU threads builds them, run by one thread of the host, and as the host's own lists
// have them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "schedule/builder/blocks.hpp"
#include "schedule/builder/build_layout.hpp"
#include "schedule/builder/documents.hpp"
#include "schedule/builder/emit_work_tiles.hpp"
#include "schedule/builder/fill_image.hpp"
#include "schedule/builder/ranges.hpp"
#include "schedule/builder/turns.hpp"
#include "schedule/mask_image.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::schedule::builder {

/// Memory of any content, aligned.
class AlignedBytes {
 public:
  AlignedBytes(size_t bytes, std::byte content) : memory_(bytes + 256, content) {}
  std::byte* data() { return memory_.data() + (256 - reinterpret_cast<uintptr_t>(memory_.data()) % 256); }

 private:
  std::vector<std::byte> memory_;
};

/// What images are of.
struct ImageCase {
  AttnShape shape;
  TileShape forward;
  TileShape backward{128, 64, true};
  MaskCapacity capacity;
  GpuModel gpu = {};
};

/// A slice list for each pass: they show the same cells.
struct SliceLists {
  std::vector<AttnSlice> by_rows, by_keys;  ///< both with queries as rows
};

/// The image that the host makes of them, scheduled by the heuristic; returns its bytes.
inline size_t write_host_image(std::byte* to, const ImageLayout& layout, const ImageCase& c, const SliceLists& slices) {
  const AttnShape& s = c.shape;
  TileList forward;
  WorkList work;
  if (c.capacity.passes != AttnPasses::kBackward) {
    forward = build_tile_list(slices.by_rows, s.seqlen_q, s.seqlen_k, c.forward);
  }
  if (c.capacity.passes != AttnPasses::kForward) {
    std::vector<AttnSlice> keys_first;
    for (const AttnSlice& slice : slices.by_keys) keys_first.push_back(schedule::transposed(slice));
    const TileList tiles = build_tile_list(keys_first, s.seqlen_k, s.seqlen_q, c.backward);
    work = make_work_list(tiles, slices.by_rows, s, c.gpu, {},
                          {.calls = c.capacity.deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault,
                           .given = {},
                           .by_rule = true});
  }
  layout.check(forward, work);
  return layout.write(to, forward, work);
}

/// The steps behind the first one.
inline void finish_build(const TurnBuild& build) {
  const SerialTeam team;
  const bool has_turns = build.turns.max_segments > 0;
  const auto visit = [&](int32_t count, const auto& step) {
    for (int32_t at = 0; has_turns && at < count; ++at) step(team, build, at);
  };
  const int32_t key_tiles = build.passes[1].max_tiles;
  for (int pass = 0; pass < 2; ++pass) {
    for (int32_t tile = 0; tile < build.passes[pass].max_tiles; ++tile) count_tile(team, build, pass, tile);
  }
  place_lists(team, build);
  visit(key_tiles, [](const auto&... of) { order_runs(of...); });
  visit(build.max_q_tiles, [](const auto&... of) { count_turns(of...); });
  if (has_turns) place_turns(team, build);
  for (int32_t part = 0; part < num_parts(build); ++part) fill_part(team, build, part);
  visit(build.max_q_tiles, [](const auto&... of) { list_turns(of...); });
  visit(key_tiles, [](const auto&... of) { fill_turns(of...); });
}

/// All steps.
inline void run_build(const TurnBuild& build, const Documents& documents) {
  begin_documents(SerialTeam(), build, documents);
  finish_build(build);
}
inline void run_build(const TurnBuild& build, const Blocks& blocks) {
  const SerialTeam team;
  clear_blocks(team, build, blocks, 0, 1);
  for (int64_t entry = 0; entry < int64_t{blocks.lines[0].num_lines} * blocks.width; ++entry) {
    mark_block(team, build, blocks, entry);
  }
  const auto visit_lines = [&](const auto& visit) {
    for (int side = 0; side < 2; ++side) {
      for (int32_t line = 0; line < blocks.lines[side].num_lines; ++line) visit(side, line);
    }
  };
  visit_lines([&](int side, int32_t line) { count_line(team, blocks, side, line); });
  begin_blocks(team, build, blocks);
  visit_lines([&](int side, int32_t line) { slice_line(team, build, blocks, side, line); });
  finish_build(build);
}

inline void run_build(const SortBuild& build, const Ranges& ranges) {
  const SerialTeam team;
  begin_ranges(team, build);
  for (int32_t i = 0; i < ranges.count; ++i) read_range(team, build, ranges, i);
  place_buckets(team, build);
  for (int32_t i = 0; i < ranges.count; ++i) list_range(team, build, i);
  for (int32_t at = 0; at < ranges.count; ++at) sort_slice(team, build, at);
  for (int side = 0; side < 2; ++side) {
    for (int32_t at = 0; at < ranges.count; ++at) check_slice(team, build, side, at);
  }
  finish_ranges(team, build, ranges);
  finish_build(build);
}

/// Bytes of BackwardMaskInfo are compared one by one, since it has some of no meaning.
inline void expect_equal_images(const std::byte* built, const std::byte* wanted, size_t bytes) {
  const auto& a = *reinterpret_cast<const BackwardMaskInfo*>(built);
  const auto& b = *reinterpret_cast<const BackwardMaskInfo*>(wanted);
  EXPECT_EQ(a.num_work_tiles, b.num_work_tiles);
  EXPECT_EQ(a.walk.descending, b.walk.descending);
  EXPECT_EQ(a.walk.heads_innermost, b.walk.heads_innermost);
  EXPECT_EQ(a.zeroed_sums, b.zeroed_sums);
  EXPECT_EQ(std::memcmp(built + sizeof(BackwardMaskInfo), wanted + sizeof(BackwardMaskInfo),
                        bytes - sizeof(BackwardMaskInfo)),
            0);
}

/// One built image after the other in the same memory.
class BuiltImages {
 public:
  explicit BuiltImages(const ImageCase& c)
      : case_(c),
        layout_(c.shape, c.forward, c.backward, c.capacity),
        build_layout_(layout_, c.shape, c.forward, c.backward, c.capacity, c.gpu),
        work_(build_layout_.bytes(), std::byte{0}),
        built_(layout_.bytes(), std::byte{0}),
        wanted_(layout_.bytes(), std::byte{0}) {}

  /// Calls run(build), which builds; returns what is reported so far.
  template <class Run>
  Report build(const Run& run) {
    std::memset(built_.data(), 0, layout_.bytes());  // also what lies between arrays
    const SortBuild build = build_layout_.at(work_.data(), built_.data());
    run(build);
    return build.state->report;
  }
  void expect_as_host(const SliceLists& slices) {
    std::memset(wanted_.data(), 0, layout_.bytes());
    expect_equal_images(built_.data(), wanted_.data(), write_host_image(wanted_.data(), layout_, case_, slices));
  }

 private:
  ImageCase case_;
  ImageLayout layout_;
  BuildLayout build_layout_;
  AlignedBytes work_, built_, wanted_;
};

}  // namespace tangram::schedule::builder
