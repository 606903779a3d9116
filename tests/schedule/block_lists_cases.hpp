// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random tables of blocks for buffers that gather, their images as one thread of the host builds them, and what lists
// of the host show.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "schedule/block_image.hpp"
#include "schedule/build_cases.hpp"
#include "schedule/builder/block_build.hpp"
#include "schedule/serial_build.hpp"

namespace tangram::schedule::builder {

struct BlockCase {
  AttnShape shape;
  int tile_rows = 16;
  MaskCapacity capacity;
  std::optional<ForwardTiles> forward = {};
  GpuModel gpu = {};
};

inline BlockCase block_case(int64_t rows, int64_t keys, int heads_q, int heads_kv, int tile_rows, int64_t block,
                            int head_groups, AttnPasses passes = AttnPasses::kBoth) {
  return {{rows, keys, heads_q, heads_kv, 128, 128, DType::kBFloat16},
          tile_rows,
          {.max_slices = 40'000, .passes = passes, .block_size = block, .head_groups = head_groups}};
}

/// With tiles of the forward pass that begin anew with each block.
inline BlockCase aligned_case(const BlockCase& of, int forward_rows) {
  BlockCase c = of;
  c.forward = ForwardTiles{{forward_rows, 128, false, static_cast<int>(c.capacity.block_size)}};
  return c;
}

/// Case of blocks that are not gathered forward.
inline BlockCase plain_case(const BlockCase& of, int anew_every = 0) {
  BlockCase c = of;
  const int rows = anew_every > 0 ? c.tile_rows * 3 / 2 : c.tile_rows;
  c.forward = ForwardTiles{{rows, 128, false, anew_every}, false};
  return c;
}

/// Case of the KV-stationary kernel, with `head_dim` and few multiprocessors, for which few head splits are enough.
inline BlockCase kv_stationary_case(const BlockCase& of, int head_dim = 128) {
  BlockCase c = plain_case(of);
  c.shape.head_dim = c.shape.head_dim_v = head_dim;
  c.gpu.multiprocessors = 4;
  return c;
}

/// Heads that are packed by eight, one, two, four and thirty-two; masks for all heads and for groups of them.
inline std::vector<BlockCase> gathered_cases() {
  return {block_case(1024, 1024, 16, 2, 16, 16, 1),
          block_case(1024, 1024, 16, 2, 16, 16, 2),
          block_case(1000, 1024, 16, 2, 16, 32, 2),
          block_case(1024, 1024, 2, 2, 128, 128, 2),
          block_case(1008, 1008, 8, 4, 64, 64, 4),
          block_case(1008, 1008, 8, 4, 64, 64, 2),
          block_case(528, 528, 12, 3, 32, 32, 3),
          block_case(528, 528, 64, 2, 4, 16, 2),
          block_case(700, 2512, 12, 1, 32, 32, 1),
          block_case(0, 512, 8, 1, 16, 16, 1),
          block_case(512, 0, 8, 2, 32, 32, 2),
          aligned_case(block_case(1000, 1024, 16, 2, 16, 64, 1), 24),
          aligned_case(block_case(1024, 1024, 16, 2, 16, 48, 2), 24),
          aligned_case(block_case(1024, 1024, 16, 4, 32, 96, 2), 48),
          plain_case(block_case(3000, 3008, 16, 2, 16, 128, 2)),
          plain_case(block_case(2048, 2048, 2, 2, 128, 128, 1)),
          plain_case(block_case(2000, 2000, 16, 2, 16, 128, 2), 128),
          kv_stationary_case(block_case(1000, 1008, 16, 4, 32, 256, 2), 64),
          kv_stationary_case(block_case(2000, 2000, 24, 8, 128, 128, 4)),
          block_case(1024, 4000, 12, 4, 64, 128, 2, AttnPasses::kBackward),
          plain_case(block_case(0, 512, 8, 2, 32, 128, 2)),
          plain_case(block_case(512, 0, 8, 2, 32, 128, 2)),
          block_case(1024, 1024, 16, 2, 16, 128, 2, AttnPasses::kForward),
          block_case(1024, 1024, 16, 2, 16, 16, 2, AttnPasses::kForward),
          block_case(1024, 1024, 16, 2, 16, 16, 1, AttnPasses::kBackward)};
}

/// A table for each head group, of blocks of the capacity's size or of a multiple.
struct BlockChoice {
  std::vector<Choice> of_groups;  // of one block, width and causal
  std::vector<int32_t> indices;   // of all

  BlockTable table() const {
    return {.indices = indices.data(),
            .is_int64 = false,
            .width = of_groups[0].width,
            .block_size = of_groups[0].block,
            .causal = of_groups[0].causal,
            .head_groups = static_cast<int>(of_groups.size())};
  }
};

inline BlockChoice random_block_choice(std::mt19937& rng, const BlockCase& c) {
  const ImageCase as_image{.shape = c.shape, .forward = {}, .capacity = {}};
  constexpr int32_t kTimes[] = {1, 1, 1, 2, 4, 8};
  const auto block = static_cast<int32_t>(c.capacity.block_size) * kTimes[number(rng, 0, 5)];
  BlockChoice result;
  Choice first = random_choice(rng, as_image, block);
  for (int g = 0; g < c.capacity.head_groups; ++g) {
    Choice choice = random_choice(rng, as_image, block, first.width);
    choice.causal = first.causal;
    result.indices.insert(result.indices.end(), choice.indices.begin(), choice.indices.end());
    result.of_groups.push_back(std::move(choice));
  }
  return result;
}

/// What a head group sees, whole blocks and those on the diagonal apart, as tiles list them.
inline std::vector<AttnSlice> slices_apart(const Choice& choice, const AttnShape& shape) {
  const int64_t block = choice.block, rows = (shape.seqlen_q + block - 1) / block;
  std::vector<AttnSlice> slices;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < choice.width; ++i) {
      const int64_t index = choice.indices[static_cast<size_t>(row * choice.width + i)];
      if (index < 0 || (choice.causal && index > row)) continue;
      AttnSlice slice = AttnSlice::full({row * block, std::min((row + 1) * block, shape.seqlen_q)},
                                        {index * block, std::min((index + 1) * block, shape.seqlen_k)});
      if (choice.causal && index == row) slice.max_diag = 0;
      slices.push_back(slice);
    }
  }
  return slices;
}

inline void run_build(const BlockBuild& build, const BlockLists& lists) {
  const SerialTeam team;
  clear_lists(team, build, lists, 0, 1);
  for (int64_t entry = 0; entry < int64_t{lists.num_lines} * lists.width; ++entry) {
    mark_choice(team, build, lists, entry);
  }
  for (int64_t at = 0; at < num_counts(build, lists); ++at) count_choice(team, build, lists, at);
  place_choices(team, build, lists);
  for (int64_t part = 0; part < num_block_parts(build, lists); ++part) fill_block_part(team, build, lists, part);
}

/// An image as those who read it see it: indices followed to what they name.
struct SeenBlocks {
  struct Forward {
    int32_t head_group, row_begin, row_end;
    std::vector<int32_t> keys;      // of the groups of the gathered run
    std::vector<TileRange> others;  // runs that are not gathered
    friend bool operator==(const Forward&, const Forward&) = default;
  };
  struct Backward {
    int32_t head_group, row_begin, row_end;
    std::vector<int32_t> keys;
    std::vector<uint32_t> masks;  // words of those of the last groups
    friend bool operator==(const Backward&, const Backward&) = default;
  };
  /// Lists of the KV-stationary kernel.
  struct Keys {
    WorkTile work_tile;  // without places of runs
    std::vector<TileRange> runs;
    std::vector<std::pair<int32_t, int32_t>> tiles;  // of each
    friend bool operator==(const Keys& a, const Keys& b) {
      return std::memcmp(&a.work_tile, &b.work_tile, sizeof(WorkTile)) == 0 && a.runs == b.runs && a.tiles == b.tiles;
    }
  };
  std::vector<Forward> forward;
  std::vector<Backward> backward;
  std::vector<Keys> keys;
  std::vector<std::pair<int32_t, int32_t>> q_tiles;

  SeenBlocks(const BlockImageLayout& layout, const std::byte* image) {
    const auto* const groups = reinterpret_cast<const int32_t*>(image);
    const auto keys_of = [&](int32_t begin, int32_t count) {
      std::vector<int32_t> keys;
      for (int32_t i = begin; i < begin + count; ++i) {
        const int32_t key = groups[i] < 0 ? ~groups[i] : groups[i];
        keys.push_back(key);
        // What is loaded at once must be what the list says, as far as it goes.
        for (int32_t j = 1; groups[i] < 0 && j < 4 && i + j < begin + count; ++j) {
          const int32_t next = groups[i + j] < 0 ? ~groups[i + j] : groups[i + j];
          EXPECT_EQ(next, key + j * kGroupKeys);
        }
      }
      return keys;
    };
    const bool has_forward = layout.capacity().passes != AttnPasses::kBackward;
    const bool has_backward = layout.capacity().passes != AttnPasses::kForward && !layout.kv_stationary();
    if (layout.kv_stationary()) see_keys(layout.keys(), image);
    for (int64_t i = 0; has_forward && i < layout.num_work_tiles(0); ++i) {
      const MaskTile& work_tile = reinterpret_cast<const MaskTile*>(image + layout.forward_work_tiles())[i];
      const int32_t group = reinterpret_cast<const int32_t*>(image + layout.work_tile_groups())[i];
      Forward seen{group, work_tile.row_begin, work_tile.row_end, {}, {}};
      for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
        const TileRange& run = reinterpret_cast<const TileRange*>(image + layout.runs())[r];
        if (run.group_begin < 0) {
          seen.others.push_back(run);
        } else {
          EXPECT_TRUE(run.full_begin == 0 && run.full_end == run.k_end);
          seen.keys = keys_of(run.group_begin, run.k_end / kGroupKeys);
        }
      }
      forward.push_back(std::move(seen));
    }
    for (int64_t i = 0; has_backward && i < layout.num_work_tiles(1); ++i) {
      const GroupWorkTile& work_tile = reinterpret_cast<const GroupWorkTile*>(image + layout.backward_work_tiles())[i];
      Backward seen{work_tile.head_group,
                    work_tile.row_begin,
                    work_tile.row_end,
                    keys_of(work_tile.group_begin, work_tile.num_groups),
                    {}};
      const int rows_of_mask = (work_tile.row_end - work_tile.row_begin) * (kBlockTileRows / layout.tile_rows());
      for (int32_t m = work_tile.mask_begin; m < work_tile.mask_begin + work_tile.num_masked; ++m) {
        for (const RowBits& key : reinterpret_cast<const GroupMask*>(image)[m].keys) {
          for (int r = 0; r < rows_of_mask; ++r) seen.masks.push_back(key.words[r / 32] >> r % 32 & 1);
        }
      }
      backward.push_back(std::move(seen));
    }
  }

 private:
  void see_keys(const KeyImage& at, const std::byte* image) {
    for (int32_t i = 0; i < at.schedule().num_work_tiles(); ++i) {
      Keys seen{reinterpret_cast<const WorkTile*>(image + at.work_tiles())[i], {}, {}};
      for (int32_t r = seen.work_tile.run_begin; r < seen.work_tile.run_end; ++r) {
        const RangeQueryTiles& tiles = reinterpret_cast<const RangeQueryTiles*>(image + at.run_tiles())[r];
        seen.runs.push_back(reinterpret_cast<const TileRange*>(image + at.runs())[r]);
        seen.tiles.emplace_back(tiles.first, tiles.end);
      }
      seen.work_tile.run_begin = seen.work_tile.run_end = 0;
      keys.push_back(std::move(seen));
    }
    for (int32_t i = 0; i < at.num_q_tiles(); ++i) {
      const QueryTile& tile = reinterpret_cast<const QueryTile*>(image + at.q_tiles())[i];
      q_tiles.emplace_back(tile.row_begin, tile.row_end);
    }
  }
};

/// One built image after the other in the same memory.
class BuiltBlocks {
 public:
  explicit BuiltBlocks(const BlockCase& c)
      : layout_(c.shape, c.tile_rows, c.capacity, c.gpu, c.forward),
        work_(block_build_bytes(layout_), std::byte{0}),
        built_(layout_.bytes(), std::byte{0}),
        wanted_(layout_.bytes(), std::byte{0}) {}

  const BlockImageLayout& layout() const { return layout_; }
  std::byte* image() { return built_.data(); }

  /// Calls run(build, lists), which builds; returns what is reported so far.
  template <class Run>
  Report build(const BlockTable& table, const Run& run) {
    std::memset(built_.data(), 0, layout_.bytes());
    const BlockBuild build = block_build_at(layout_, work_.data(), built_.data());
    run(build, block_lists_of(layout_, table));
    return build.state->report;
  }
  Report build(const BlockTable& table) {
    return build(table, [](const BlockBuild& build, const BlockLists& lists) { run_build(build, lists); });
  }
  /// `by_keys`: of the same cells, with runs along the queries of a block of keys, where keys rest.
  void expect_as_host(const std::vector<std::vector<AttnSlice>>& slices,
                      const std::vector<std::vector<AttnSlice>>& by_keys = {}) {
    std::vector<BlockMask> masks;
    for (const auto& of_group : slices) masks.push_back(layout_.make(of_group));
    for (size_t g = 0; layout_.kv_stationary() && g < by_keys.size(); ++g)
      masks[g].keys = layout_.keys().make(by_keys[g]);
    layout_.check(masks);
    std::memset(wanted_.data(), 0, layout_.bytes());
    EXPECT_LE(layout_.write(wanted_.data(), masks), layout_.bytes());
    const SeenBlocks built(layout_, built_.data()), wanted(layout_, wanted_.data());
    EXPECT_TRUE(built.forward == wanted.forward);
    EXPECT_TRUE(built.backward == wanted.backward);
    EXPECT_TRUE(built.keys == wanted.keys);
    EXPECT_TRUE(built.q_tiles == wanted.q_tiles);
  }
  void expect_as_host(const BlockChoice& choice) {
    std::vector<std::vector<AttnSlice>> slices, by_keys;
    const ImageCase as_image{.shape = layout_.shape(), .forward = {}, .capacity = {}};
    for (const Choice& of_group : choice.of_groups) {
      slices.push_back(layout_.gathers() ? slices_apart(of_group, layout_.shape())
                                         : slices_of(of_group, as_image).by_rows);
      by_keys.push_back(slices_of(of_group, as_image).by_keys);
    }
    expect_as_host(slices, by_keys);
  }

 private:
  BlockImageLayout layout_;
  AlignedBytes work_, built_, wanted_;
};

}  // namespace tangram::schedule::builder
