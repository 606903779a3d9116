// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/head_lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "reference/cells.hpp"
#include "reference/tile_runs.hpp"
#include "schedule/gather_runs.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::schedule {
namespace {

constexpr TileShape kKeysFirst{128, 64, true};

struct HeadProblem {
  const char* name;
  AttnShape shape;
  std::vector<std::vector<AttnSlice>> masks;
  int multiprocessors = 132;

  int num_masks() const { return static_cast<int>(masks.size()); }
  GpuModel gpu() const {
    GpuModel gpu;
    gpu.multiprocessors = multiprocessors;
    return gpu;
  }
};

AttnShape shape_of_heads(int64_t rows, int64_t keys, int heads_q, int heads_kv) {
  return {rows, keys, heads_q, heads_kv, 128, 128, DType::kBFloat16};
}

std::vector<AttnSlice> chosen_blocks(const AttnShape& shape, int64_t block, double share, std::mt19937& random) {
  std::vector<AttnSlice> slices;
  std::bernoulli_distribution visible(share);
  for (int64_t q = 0; q < shape.seqlen_q; q += block) {
    for (int64_t k = 0; k + block <= shape.seqlen_k; k += block) {
      if (visible(random)) slices.push_back(AttnSlice::full({q, std::min(q + block, shape.seqlen_q)}, {k, k + block}));
    }
  }
  return slices;
}

std::vector<HeadProblem> head_problems() {
  std::mt19937 random(2);
  const std::vector<AttnSlice> causal{AttnSlice::causal({0, 500}, {0, 500})},
      documents{AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 300}, {130, 300}),
                AttnSlice::causal({300, 333}, {300, 333})},
      inverse{AttnSlice::inv_causal({0, 500}, {0, 500})};
  const AttnShape four = shape_of_heads(500, 500, 4, 4), by_document = shape_of_heads(500, 500, 16, 4);
  const AttnShape few = shape_of_heads(16, 9000, 16, 2), blocks = shape_of_heads(256, 512, 16, 2);
  std::vector<HeadProblem> all{
      {"a head each", four, {causal, documents, {}, inverse}},
      {"four query heads each", by_document, {causal, documents, {}, inverse}, 8},
      {"two K/V heads each", by_document, {documents, inverse}},
      {"few rows", few, {{AttnSlice::full({0, 16}, {0, 9000})}, {AttnSlice::full({3, 9}, {0, 4000})}}},
      {"blocks", blocks, {}},
  };
  for (int g = 0; g < 2; ++g) all.back().masks.push_back(chosen_blocks(blocks, 16, 0.3, random));
  return all;
}

TileList transposed_list(const std::vector<AttnSlice>& slices, const AttnShape& shape) {
  std::vector<AttnSlice> keys_first;
  for (const AttnSlice& slice : slices) keys_first.push_back(transposed(slice));
  return build_tile_list(keys_first, shape.seqlen_k, shape.seqlen_q, kKeysFirst);
}

WorkList joined_work(const HeadProblem& p, BackwardCalls calls) {
  std::vector<TileList> tiles;
  for (const auto& mask : p.masks) tiles.push_back(transposed_list(mask, p.shape));
  const std::vector<std::span<const AttnSlice>> slices(p.masks.begin(), p.masks.end());
  return join_work(tiles, slices, p.shape, p.gpu(), calls);
}

/// The key that position `k` of a run stands for.
int32_t key_of(const ForwardLists& lists, const TileRange& run, int32_t k) {
  if (run.group_begin < 0) return k;
  const int32_t entry = lists.key_groups[static_cast<size_t>(run.group_begin + k / kGroupKeys)];
  return (entry < 0 ? ~entry : entry) + k % kGroupKeys;
}

TEST(HeadLists, EveryHeadGroupShowsTheCellsOfItsMaskOnce) {
  int in_parts = 0, gathered = 0;
  for (const HeadProblem& p : head_problems()) {
    SCOPED_TRACE(p.name);
    const int pack = p.shape.num_heads_q / p.shape.num_heads_kv;
    std::vector<TileList> tiles;
    for (const auto& mask : p.masks) {
      tiles.push_back(build_tile_list(mask, p.shape.seqlen_q, p.shape.seqlen_k, {128 / pack, 128}));
    }
    const ForwardLists lists = join_tiles(tiles, p.shape, p.shape.num_heads_kv, p.gpu(), {tiles});
    in_parts += lists.part_tiles.empty() ? 0 : 1;
    gathered += lists.key_groups.empty() ? 0 : 1;
    ASSERT_EQ(lists.work_tile_groups.size(), lists.work_tiles.size());
    const TileList runs{.shape = tiles[0].shape, .runs = lists.runs, .intervals = lists.intervals};
    for (int group = 0; group < p.shape.num_heads_kv; ++group) {
      reference::Cells seen(p.shape.seqlen_q, p.shape.seqlen_k);
      std::map<int32_t, int> owners;  // whole tiles and parts of each row
      for (size_t i = 0; i < lists.work_tiles.size(); ++i) {
        if (lists.work_tile_groups[i] != group) continue;
        const MaskTile& work_tile = lists.work_tiles[i];
        for (int32_t row = work_tile.row_begin; row < work_tile.row_end; ++row) {
          ++owners[row];
          for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
            const TileRange& run = lists.runs[static_cast<size_t>(r)];
            const RowInterval keys = reference::interval_of(runs, work_tile, run, row);
            for (int32_t k = keys.begin; k < keys.end; ++k) {
              const int32_t key = key_of(lists, run, k);
              seen.add({{row, row + 1}, {key, key + 1}});
            }
          }
        }
      }
      const auto& mask = p.masks[static_cast<size_t>(group * p.num_masks() / p.shape.num_heads_kv)];
      EXPECT_TRUE(seen == reference::Cells(p.shape.seqlen_q, p.shape.seqlen_k, mask)) << "head group " << group;
      EXPECT_EQ(static_cast<int64_t>(owners.size()), p.shape.seqlen_q);
      if (lists.part_tiles.empty()) {
        for (const auto& [row, count] : owners) ASSERT_EQ(count, 1) << row;
      }
    }
  }
  EXPECT_EQ(in_parts, 1);
  EXPECT_EQ(gathered, 1);
}

// Parts of different masks are of different heads: they may have the same rows of the workspace.
TEST(HeadLists, PartsOfAHeadGroupHaveRowsOfTheirOwn) {
  const HeadProblem p = head_problems()[3];
  std::vector<TileList> tiles;
  for (const auto& mask : p.masks) tiles.push_back(build_tile_list(mask, 16, 9000, {16, 128}));
  const ForwardLists lists = join_tiles(tiles, p.shape, 2, p.gpu(), {tiles});
  ASSERT_EQ(lists.part_rows.size(), lists.work_tiles.size());
  std::set<std::pair<int32_t, int32_t>> taken;  // head group, row
  for (size_t i = 0; i < lists.work_tiles.size(); ++i) {
    for (int32_t row = 0; lists.part_rows[i] >= 0 && row < lists.work_tiles[i].row_end - lists.work_tiles[i].row_begin;
         ++row) {
      ASSERT_TRUE(taken.emplace(lists.work_tile_groups[i], lists.part_rows[i] + row).second);
      EXPECT_LT(lists.part_rows[i] + row, lists.num_part_rows);
    }
  }
  std::set<std::pair<int32_t, int32_t>> merged;
  for (size_t t = 0; t < lists.part_tiles.size(); ++t) {
    const TileParts& tile = lists.part_tiles[t];
    for (int32_t row = 0; row < tile.num_parts * tile.num_rows; ++row) {
      ASSERT_TRUE(merged.emplace(lists.part_heads[t] / 8, tile.first_row + row).second);
    }
  }
  EXPECT_EQ(merged, taken);
}

TEST(HeadLists, WorkTilesOfAllMasksComeLongestFirst) {
  const HeadProblem p = head_problems()[1];
  std::vector<TileList> tiles;
  for (const auto& mask : p.masks) tiles.push_back(build_tile_list(mask, 500, 500, {32, 128}));
  const ForwardLists lists = join_tiles(tiles, p.shape, 4, p.gpu(), {tiles});
  const TileList runs{.shape = tiles[0].shape, .runs = lists.runs};
  std::vector<int64_t> steps;
  for (const MaskTile& work_tile : lists.work_tiles) steps.push_back(reference::steps_of(runs, work_tile));
  EXPECT_TRUE(std::is_sorted(steps.rbegin(), steps.rend()));
}

/// Calls visit(query tile, segment) as the kernel walks the tiles of a work tile.
template <typename Visit>
void walk_work_tile(const WorkList& work, const WorkTile& work_tile, const Visit& visit) {
  const bool descending = (work_tile.flags & kWorkTileDescending) != 0;
  for (int32_t i = work_tile.run_begin; i < work_tile.run_end; ++i) {
    const RangeQueryTiles& run =
        work.run_tiles[static_cast<size_t>(descending ? work_tile.run_end - 1 - (i - work_tile.run_begin) : i)];
    const DqOrderSegment* segment =
        work.dq_order_segments.empty() ? nullptr : &work.dq_order_segments[size_t(run.segment)];
    for (int32_t j = 0; j < run.end - run.first; ++j) {
      const int32_t tile = descending ? run.end - 1 - j : run.first + j;
      if (segment != nullptr && j > 0 && segment[1].first_tile == tile) ++segment;
      visit(tile, segment);
    }
  }
}

void expect_cells_of_heads(const HeadProblem& p, const WorkList& work, const std::vector<WorkTile>& work_tiles) {
  const TileList runs{.shape = kKeysFirst, .runs = work.runs, .intervals = work.intervals};
  const auto tiles_of_table = static_cast<int32_t>(work.q_tiles.size()) / p.num_masks();
  const int per_mask = p.shape.num_heads_q / p.num_masks(), group = p.shape.num_heads_q / p.shape.num_heads_kv;
  for (int head = 0; head < p.shape.num_heads_q; ++head) {
    const int mask = head / per_mask;
    reference::Cells seen(p.shape.seqlen_q, p.shape.seqlen_k);
    std::set<int32_t> keys;
    for (const WorkTile& work_tile : work_tiles) {
      if (head < work_tile.head_begin || head >= work_tile.head_end) continue;
      ASSERT_EQ(work_tile.kv_head, head / group);
      const MaskTile tile{work_tile.row_begin, work_tile.row_end, work_tile.run_begin, work_tile.run_end};
      int64_t steps = 0;
      walk_work_tile(work, work_tile, [&](int32_t q_tile, const DqOrderSegment*) {
        ++steps;
        ASSERT_EQ(q_tile / tiles_of_table, mask);
      });
      ASSERT_EQ(work_tile.num_steps, steps * (work_tile.head_end - work_tile.head_begin));
      for (int32_t key = work_tile.row_begin; key < work_tile.row_end; ++key) {
        ASSERT_TRUE(keys.insert(key).second);
        for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
          const RowInterval rows = reference::interval_of(runs, tile, work.runs[size_t(r)], key);
          for (int32_t row = rows.begin; row < rows.end; ++row) seen.add({{row, row + 1}, {key, key + 1}});
        }
      }
    }
    EXPECT_EQ(static_cast<int64_t>(keys.size()), p.shape.seqlen_k);
    EXPECT_TRUE(seen == reference::Cells(p.shape.seqlen_q, p.shape.seqlen_k, p.masks[size_t(mask)])) << head;
  }
}

TEST(HeadLists, EveryQueryHeadWalksTheCellsOfItsMaskBackwards) {
  for (const HeadProblem& p : head_problems()) {
    SCOPED_TRACE(p.name);
    const WorkList work = joined_work(p, BackwardCalls::kBoth);
    expect_cells_of_heads(p, work, work.work_tiles);
    expect_cells_of_heads(p, work, work.deterministic_work_tiles);
  }
}

TEST(HeadLists, TablesCoverAllRowsAndNoTwoAccumTilesMeet) {
  for (const HeadProblem& p : head_problems()) {
    SCOPED_TRACE(p.name);
    const WorkList work = joined_work(p, BackwardCalls::kDefault);
    const int per_mask = p.shape.num_heads_q / p.num_masks();
    const auto tiles = static_cast<int32_t>(work.q_tiles.size()) / p.num_masks();
    const int64_t accum_tiles = accum_tile_tables(p.shape.num_heads_q, p.num_masks()) * tiles;
    std::set<int64_t> taken;
    for (int head = 0; head < p.shape.num_heads_q; ++head) {
      int32_t end = 0;
      for (int32_t t = 0; t < tiles; ++t) {
        const int32_t at = head / per_mask * tiles + t;
        ASSERT_EQ(work.q_tiles[size_t(at)].row_begin, end);
        end = work.q_tiles[size_t(at)].row_end;
        const int64_t accum_tile = int64_t{head} * accum_tile_stride(tiles, per_mask) + at;
        ASSERT_TRUE(accum_tile < accum_tiles && taken.insert(accum_tile).second);
      }
      EXPECT_EQ(end, p.shape.seqlen_q);
    }
    if (per_mask == 1) {
      EXPECT_EQ(static_cast<int64_t>(taken.size()), accum_tiles);
    }
    EXPECT_TRUE(work.covered_queries.empty() || work.covered_queries.size() == work.q_tiles.size());
  }
}

TEST(HeadLists, TurnsFollowTheSchedule) {
  for (const HeadProblem& p : head_problems()) {
    SCOPED_TRACE(p.name);
    for (const BackwardCalls calls : {BackwardCalls::kBoth, BackwardCalls::kDeterministic}) {
      const WorkList work = joined_work(p, calls);
      std::map<std::pair<int32_t, int32_t>, int32_t> added;  // query head, query tile
      for (const WorkTile& work_tile :
           calls == BackwardCalls::kBoth ? work.deterministic_work_tiles : work.work_tiles) {
        for (int32_t head = work_tile.head_begin; head < work_tile.head_end; ++head) {
          walk_work_tile(work, work_tile, [&](int32_t tile, const DqOrderSegment* segment) {
            ASSERT_EQ(segment->turn, (added[{head, tile}]++))
                << "item at key " << work_tile.row_begin << ", head " << head;
          });
        }
      }
    }
  }
}

TEST(HeadLists, PiecesOfAnWorkTileComeInOrderAndShareAAccumTileWithNoOthers) {
  HeadProblem p = head_problems()[2];
  p.multiprocessors = 64;
  const WorkList work = joined_work(p, BackwardCalls::kDefault);
  std::map<int32_t, std::vector<const WorkTile*>> head_splits;  // by accumulator tile
  for (const WorkTile& work_tile : work.work_tiles) {
    if (work_tile.num_head_splits > 1) head_splits[work_tile.accum_tile].push_back(&work_tile);
  }
  EXPECT_FALSE(head_splits.empty());
  for (const auto& [accum_tile, work_tiles] : head_splits) {
    EXPECT_LT(accum_tile, work.num_accum_tiles);
    ASSERT_EQ(static_cast<int32_t>(work_tiles.size()), work_tiles[0]->num_head_splits);
    for (size_t i = 0; i < work_tiles.size(); ++i) {
      EXPECT_EQ(work_tiles[i]->head_split, static_cast<int32_t>(i));
      EXPECT_EQ(work_tiles[i]->kv_head, work_tiles[0]->kv_head);
      EXPECT_EQ(work_tiles[i]->row_begin, work_tiles[0]->row_begin);
    }
  }
}

// Backward, blocks that each K/V head chose took up to twice as long as blocks that all chose alike: four masks or more
// were walked together, whose queries and sums the L2 cache does not hold.
TEST(HeadLists, MasksThatAreEqualAreScheduledAsOneMaskForAllHeads) {
  std::mt19937 random(3);
  std::set<std::pair<bool, int>> schedules;  // heads inside, most pieces
  for (const auto& [rows, heads_q, heads_kv] :
       {std::tuple{8192, 64, 8}, {16384, 64, 8}, {8192, 16, 16}, {500, 16, 4}}) {
    for (const int head_dim : {64, 128}) {
      HeadProblem p{"equal", shape_of_heads(rows, rows, heads_q, heads_kv), {}};
      p.shape.head_dim = p.shape.head_dim_v = head_dim;
      const std::vector<AttnSlice> blocks = chosen_blocks(p.shape, 128, 0.12, random);
      std::vector<AttnSlice> with_first{AttnSlice::full({0, rows}, {0, 128})};  // which all queries see
      for (const AttnSlice& slice : blocks) {
        if (slice.k_range.begin > 0) with_first.push_back(slice);
      }
      for (const auto& mask : {blocks, with_first, {AttnSlice::causal({0, rows}, {0, rows})}}) {
        SCOPED_TRACE(::testing::Message() << rows << " rows, " << head_dim << ", slices: " << mask.size());
        p.masks.assign(4, mask);
        const WorkList joined = joined_work(p, BackwardCalls::kDefault);
        const WorkList one =
            make_work_list(transposed_list(mask, p.shape), mask, p.shape, p.gpu(), {}, {BackwardCalls::kDefault});
        EXPECT_EQ(joined.zeroed_sums, one.zeroed_sums);
        ASSERT_EQ(joined.work_tiles.size(), one.work_tiles.size());
        int most_pieces = 0;
        for (size_t i = 0; i < one.work_tiles.size(); ++i) {
          const WorkTile &a = joined.work_tiles[i], &b = one.work_tiles[i];
          ASSERT_EQ(std::tuple(a.row_begin, a.kv_head, a.head_begin, a.head_end, a.num_steps, a.head_split,
                               a.num_head_splits),
                    std::tuple(b.row_begin, b.kv_head, b.head_begin, b.head_end, b.num_steps, b.head_split,
                               b.num_head_splits))
              << i;
          ASSERT_EQ((a.flags & kWorkTileHeadsInside) != 0, one.walk.heads_innermost);
          most_pieces = std::max(most_pieces, b.num_head_splits);
        }
        schedules.emplace(one.walk.heads_innermost, most_pieces);
      }
    }
  }
  EXPECT_GE(schedules.size(), 4U);
}

}  // namespace
}  // namespace tangram::schedule
