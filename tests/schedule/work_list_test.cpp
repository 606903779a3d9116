// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/work_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "schedule/tile_list.hpp"
#include "schedule/tile_schedule.hpp"

namespace tangram::schedule {
namespace {

constexpr TileShape kTileShape{128, 64, true};

WorkList make(const std::vector<AttnSlice>& slices, const AttnShape& shape, const AwaitedKeys& awaited_keys = {},
              BackwardCalls calls = BackwardCalls::kBoth) {
  std::vector<AttnSlice> keys_first;
  for (const AttnSlice& slice : slices) keys_first.push_back(transposed(slice));
  return make_work_list(build_tile_list(keys_first, shape.seqlen_k, shape.seqlen_q, kTileShape), slices, shape, {},
                        awaited_keys, {.calls = calls});
}

/// What the work list of a causal mask schedules, in order: `rows` queries, the last of 12,288 keys, of which 8,192 are
/// awaited.
std::vector<std::pair<int64_t, int>> scheduled(int64_t rows, bool late) {
  const AttnShape shape{rows, 12288, 64, 8, 128, 128, DType::kBFloat16};
  const KeyReadyFlag ready_flag{{0, 8192}, 0};
  std::vector<std::pair<int64_t, int>> work_tiles;
  const WorkList work = make({AttnSlice::causal({0, rows}, {0, 12288})}, shape,
                             late ? AwaitedKeys({&ready_flag, 1}, 12288) : AwaitedKeys());
  for (const WorkTile& work_tile : work.work_tiles) work_tiles.emplace_back(work_tile.row_begin, work_tile.head_begin);
  return work_tiles;
}

struct Problem {
  const char* name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
};

/// Packed causal documents, one of them long.
std::vector<AttnSlice> documents_of_a_rank() {
  std::vector<AttnSlice> slices;
  int64_t begin = 0;
  for (const int64_t end : {3067, 3417, 3545, 3801, 3929, 4057, 4096}) {
    slices.push_back(AttnSlice::causal({begin, end}, {begin, end}));
    begin = end;
  }
  return slices;
}

std::vector<Problem> problems() {
  const auto shape = [](int64_t rows, int heads_q, int heads_kv) {
    return AttnShape{rows, rows, heads_q, heads_kv, 128, 128, DType::kBFloat16};
  };
  return {
      {"short", shape(1024, 64, 8), {AttnSlice::causal({0, 1024}, {0, 1024})}},
      {"long", shape(16384, 64, 8), {AttnSlice::causal({0, 16384}, {0, 16384})}},
      {"full", shape(8192, 64, 8), {AttnSlice::full({0, 8192}, {0, 8192})}},
      {"documents",
       shape(5000, 12, 4),
       {AttnSlice::causal({0, 100}, {0, 100}), AttnSlice::full({100, 3000}, {100, 3000}),
        AttnSlice::causal({3000, 5000}, {3000, 5000})}},
      {"window", shape(4096, 64, 8), {{{0, 4096}, {0, 4096}, -1024, 0}}},
      {"several heads at a time", shape(4096, 64, 8), {AttnSlice::causal({0, 4096}, {0, 4096})}},
      {"seven heads a K/V head", shape(4096, 56, 8), {AttnSlice::causal({0, 4096}, {0, 4096})}},
      {"five heads a K/V head", shape(4096, 20, 4), documents_of_a_rank()},
      {"pieces by length", shape(4096, 64, 8), documents_of_a_rank()},
      {"holes", shape(1000, 6, 2), {AttnSlice::full({10, 100}, {20, 200}), AttnSlice::full({500, 900}, {300, 310})}},
  };
}

const std::vector<WorkTile>& deterministic_work_tiles(const WorkList& work) {
  return work.deterministic_work_tiles.empty() ? work.work_tiles : work.deterministic_work_tiles;
}

void expect_all_scheduled_once(const std::vector<WorkTile>& work_tiles, int32_t num_accum_tiles, int group) {
  std::set<std::pair<int32_t, int32_t>> seen;  // (first key, query head)
  std::map<std::pair<int32_t, int32_t>, int32_t> next_piece;
  std::map<int32_t, std::pair<int32_t, int32_t>> owner_of_accum_tile;
  for (const WorkTile& work_tile : work_tiles) {
    EXPECT_EQ(work_tile.head_begin / group, work_tile.kv_head);
    EXPECT_EQ((work_tile.head_end - 1) / group, work_tile.kv_head);
    const std::pair<int32_t, int32_t> owner{work_tile.row_begin, work_tile.kv_head};
    EXPECT_EQ(work_tile.head_split, next_piece[owner]++) << "a piece waits for the ones before it";
    if (work_tile.num_head_splits > 1) {
      EXPECT_EQ(owner_of_accum_tile.emplace(work_tile.accum_tile, owner).first->second, owner);
      EXPECT_LT(work_tile.accum_tile, num_accum_tiles);
    }
    if (work_tile.num_steps == 0) {
      EXPECT_EQ(work_tile.num_head_splits, 1);
      continue;
    }
    for (int32_t head = work_tile.head_begin; head < work_tile.head_end; ++head) {
      EXPECT_TRUE(seen.emplace(work_tile.row_begin, head).second);
    }
  }
  for (const WorkTile& work_tile : work_tiles) {
    EXPECT_EQ((next_piece[{work_tile.row_begin, work_tile.kv_head}]), work_tile.num_head_splits);
  }
}

TEST(BackwardWorkList, SchedulesEveryKeyTileAndQueryHeadOnceAndPiecesInOrder) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(p.name);
    const WorkList work = make(p.slices, p.shape);
    const int group = p.shape.num_heads_q / p.shape.num_heads_kv;
    expect_all_scheduled_once(work.work_tiles, work.num_accum_tiles, group);
    expect_all_scheduled_once(deterministic_work_tiles(work), work.num_accum_tiles, group);
  }
}

bool same_work_tiles(const std::vector<WorkTile>& a, const std::vector<WorkTile>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const WorkTile& x, const WorkTile& y) {
           return std::memcmp(&x, &y, sizeof(WorkTile)) == 0;
         });
}

TEST(BackwardWorkList, ListsForOneKindOfCallsAreThoseOfListsForBoth) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(p.name);
    const WorkList both = make(p.slices, p.shape);
    const WorkList usual = make(p.slices, p.shape, {}, BackwardCalls::kDefault);
    const WorkList deterministic = make(p.slices, p.shape, {}, BackwardCalls::kDeterministic);
    EXPECT_TRUE(same_work_tiles(usual.work_tiles, both.work_tiles));
    EXPECT_TRUE(same_work_tiles(deterministic.work_tiles, deterministic_work_tiles(both)));
    EXPECT_TRUE(usual.deterministic_work_tiles.empty() && usual.dq_order_segments.empty());
    EXPECT_TRUE(deterministic.deterministic_work_tiles.empty());
    EXPECT_EQ(deterministic.dq_order_segments, both.dq_order_segments);
    EXPECT_EQ(std::max(usual.num_accum_tiles, deterministic.num_accum_tiles), both.num_accum_tiles);
    EXPECT_EQ(usual.walk.heads_innermost, both.walk.heads_innermost);
    EXPECT_EQ(deterministic.walk.heads_innermost, both.deterministic_walk.heads_innermost);
    EXPECT_EQ(deterministic.walk.descending, both.deterministic_walk.descending);
  }
}

// Pieces of different lengths would wait for each other's additions.
TEST(BackwardWorkList, OnlyCallsThatMayAddInAnyOrderTakePiecesByLength) {
  const auto pieces_of = [](const std::vector<WorkTile>& work_tiles) {
    std::map<int32_t, int32_t> least_steps;  // of a whole work tile, by its number of pieces
    for (const WorkTile& work_tile : work_tiles) {
      const int32_t steps = work_tile.num_steps * work_tile.num_head_splits;
      const auto at = least_steps.emplace(work_tile.num_head_splits, steps).first;
      at->second = std::min(at->second, steps);
    }
    return least_steps;
  };
  const WorkList work = make(documents_of_a_rank(), {4096, 4096, 64, 8, 128, 128, DType::kBFloat16});
  const std::map<int32_t, int32_t> least_steps = pieces_of(work.work_tiles);
  ASSERT_GE(least_steps.size(), 3u);
  for (auto at = least_steps.begin(); std::next(at) != least_steps.end(); ++at) {
    EXPECT_LT(at->second, std::next(at)->second) << "longer tiles are in more pieces";
  }
  EXPECT_EQ(pieces_of(work.deterministic_work_tiles).size(), 1u);
}

/// Query tiles of a run in the order of the walk, with their turns.
std::vector<std::pair<int32_t, int32_t>> turns_of(const WorkList& work, const RangeQueryTiles& run) {
  std::vector<std::pair<int32_t, int32_t>> turns;
  const DqOrderSegment* segment = &work.dq_order_segments[static_cast<size_t>(run.segment)];
  for (int32_t i = 0; i < run.end - run.first; ++i) {
    const int32_t tile = work.walk.descending ? run.end - 1 - i : run.first + i;
    if (i > 0 && segment[1].first_tile == tile) ++segment;
    turns.emplace_back(tile, segment->turn);
  }
  EXPECT_EQ(segment[1].first_tile, kNoTile) << "all segments of the run have been used";
  return turns;
}

TEST(BackwardWorkList, TurnsFollowTheScheduleForEveryHead) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(p.name);
    const WorkList work = make(p.slices, p.shape);
    EXPECT_EQ(work.walk.descending, work.deterministic_walk.descending);
    std::map<std::pair<int32_t, int32_t>, int32_t> added;  // (query head, query tile)
    for (const WorkTile& work_tile : deterministic_work_tiles(work)) {
      for (int32_t head = work_tile.head_begin; head < work_tile.head_end; ++head) {
        for (int32_t i = work_tile.run_begin; i < work_tile.run_end; ++i) {
          const int32_t r = work.walk.descending ? work_tile.run_end - 1 - (i - work_tile.run_begin) : i;
          for (const auto& [tile, turn] : turns_of(work, work.run_tiles[static_cast<size_t>(r)])) {
            ASSERT_EQ(turn, (added[{head, tile}]++)) << "item at key " << work_tile.row_begin << ", head " << head;
          }
        }
      }
    }
  }
}

TEST(BackwardWorkList, TurnsOfLongMasksAreFew) {
  constexpr int64_t kRows = int64_t{1} << 20;
  const AttnShape shape{kRows, kRows, 8, 8, 128, 128, DType::kBFloat16};
  // One segment and its end for each of the 8,192 key tiles.
  EXPECT_EQ(make({AttnSlice::full({0, kRows}, {0, kRows})}, shape).dq_order_segments.size(), 2u * 8192);
  EXPECT_EQ(make({AttnSlice::causal({0, kRows}, {0, kRows})}, shape).dq_order_segments.size(), 2u * 8192);
  // A window of 1,024 keys: at most one segment for each of the 18 or 19 query tiles of a work tile.
  EXPECT_LT(make({{{0, kRows}, {0, kRows}, -1024, 0}}, shape).dq_order_segments.size(), 20u * 8192);
}

TEST(BackwardWorkList, WalksTowardsTilesThatEarlierWorkTilesHaveLeft) {
  const AttnShape shape{4096, 4096, 8, 8, 128, 128, DType::kBFloat16};
  const AttnSlice whole = AttnSlice::causal({0, 4096}, {0, 4096});
  EXPECT_TRUE(make({whole}, shape).deterministic_walk.descending);
  EXPECT_TRUE(make({whole}, shape).deterministic_walk.heads_innermost) << "all begin with the last query tile";
  // Inverse causal: keys up to i see the first queries, the last keys are the longest work tiles.
  EXPECT_FALSE(make({{{0, 4096}, {0, 4096}, 0, kOpenMaxDiag}}, shape).deterministic_walk.descending);
  EXPECT_TRUE(make({{{0, 4096}, {0, 4096}, -512, 0}}, shape).deterministic_walk.descending);
  EXPECT_FALSE(make({{{0, 4096}, {0, 4096}, -512, 0}}, shape).deterministic_walk.heads_innermost);
}

/// How much longer the longest of 132 multiprocessors is busy than all are on average, in steps without other costs.
double unevenness(const WorkList& work) {
  std::vector<int64_t> free_at(132);
  int64_t sum = 0;
  for (const WorkTile& work_tile : work.work_tiles) {
    *std::min_element(free_at.begin(), free_at.end()) += work_tile.num_steps;
    sum += work_tile.num_steps;
  }
  return static_cast<double>(*std::max_element(free_at.begin(), free_at.end())) * 132 / static_cast<double>(sum) - 1;
}

TEST(BackwardWorkList, MultiprocessorsEndTogether) {
  const auto shape = [](int64_t rows) { return AttnShape{rows, rows, 64, 8, 128, 128, DType::kBFloat16}; };
  const auto full = [](int64_t begin, int64_t end) { return AttnSlice::full({begin, end}, {begin, end}); };
  const auto causal = [](int64_t begin, int64_t end) { return AttnSlice::causal({begin, end}, {begin, end}); };
  // Equal work tiles fill 31.03 waves; halves, which end within 0.02, take as long.
  EXPECT_LT(unevenness(make({full(0, 65536)}, shape(65536))), 0.04);
  // Scheduled head by head for the sake of the cache; the long work tiles of the last head would begin late (else
  // 0.13). In shorter pieces all would end together within 0.03, and take longer: more of them join.
  std::vector<AttnSlice> documents{causal(0, 3072)};
  for (int64_t row = 3072; row < 8192; row += 1024) documents.push_back(causal(row, row + 1024));
  EXPECT_LT(unevenness(make(documents, shape(8192))), 0.05);
}

// Zeros are written for the sums of dq only where many work tiles begin at the same query tile.
TEST(BackwardWorkList, ShortDocumentsNeedNoZeros) {
  const AttnShape shape{1024, 1024, 64, 8, 128, 128, DType::kBFloat16};
  std::vector<AttnSlice> documents;
  for (int64_t row = 0; row < 1024; row += 256)
    documents.push_back(AttnSlice::full({row, row + 256}, {row, row + 256}));
  EXPECT_FALSE(make(documents, shape).zeroed_sums);
  EXPECT_TRUE(make({AttnSlice::full({0, 1024}, {0, 1024})}, shape).zeroed_sums);
  EXPECT_FALSE(make({{{0, 1024}, {0, 1024}, -256, 0}}, shape).zeroed_sums);
}

/// Blocks of 128, one of eight visible, at other places for each block of queries.
std::vector<AttnSlice> scattered_blocks(int64_t rows) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < rows / 128; ++q) {
    for (int64_t k = 0; k < rows / 128; ++k) {
      if ((q * 29 + k * k * 7) % 64 < 8) {
        slices.push_back(AttnSlice::full({q * 128, q * 128 + 128}, {k * 128, k * 128 + 128}));
      }
    }
  }
  return slices;
}

TEST(BackwardWorkList, ScatteredBlocksAddToZerosHeadByHead) {
  for (const int head_dim : {64, 128}) {
    const AttnShape shape{16384, 16384, 64, 8, head_dim, head_dim, DType::kBFloat16};
    const WorkList work = make(scattered_blocks(16384), shape, {}, BackwardCalls::kDefault);
    EXPECT_TRUE(work.zeroed_sums) << head_dim;
    EXPECT_EQ(work.walk.heads_innermost, head_dim == 64);
    // No K/V head begins before all work tiles of two heads before it.
    int32_t most = 0;
    for (const WorkTile& work_tile : work.work_tiles) {
      EXPECT_GE(work_tile.kv_head, most - 1);
      most = std::max(most, work_tile.kv_head);
    }
    EXPECT_EQ(most, 7);
  }
  // A few visits of a tile are stored and added, as elsewhere.
  const AttnShape shape{1024, 1024, 64, 8, 128, 128, DType::kBFloat16};
  EXPECT_FALSE(make(scattered_blocks(1024), shape).zeroed_sums);
}

TEST(BackwardWorkList, TilesBeginWithDocumentsAndCoverAllQueriesInOrder) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(p.name);
    const WorkList work = make(p.slices, p.shape);
    int32_t row = 0;
    for (const QueryTile& tile : work.q_tiles) {
      EXPECT_EQ(tile.row_begin, row);
      EXPECT_GT(tile.row_end, tile.row_begin);
      EXPECT_LE(tile.row_end - tile.row_begin, 64);
      row = tile.row_end;
    }
    EXPECT_EQ(row, p.shape.seqlen_q);
    for (size_t i = 0; i < work.runs.size(); ++i) {
      const RangeQueryTiles& tiles = work.run_tiles[i];
      const int32_t first = work.runs[i].k_begin, last = work.runs[i].k_end - 1;
      EXPECT_LE(work.q_tiles[static_cast<size_t>(tiles.first)].row_begin, first);
      EXPECT_GT(work.q_tiles[static_cast<size_t>(tiles.first)].row_end, first);
      EXPECT_LE(work.q_tiles[static_cast<size_t>(tiles.end) - 1].row_begin, last);
      EXPECT_GT(work.q_tiles[static_cast<size_t>(tiles.end) - 1].row_end, last);
    }
  }
  // Documents of 100, 2,900 and 2,000 rows: no work tile and no query tile belongs to two of them.
  const WorkList documents = make(problems()[3].slices, problems()[3].shape);
  for (const int32_t border : {100, 3000}) {
    for (const QueryTile& tile : documents.q_tiles) EXPECT_FALSE(tile.row_begin < border && border < tile.row_end);
    for (const WorkTile& work_tile : documents.work_tiles)
      EXPECT_FALSE(work_tile.row_begin < border && border < work_tile.row_end);
  }
}

TEST(BackwardWorkList, MarksUncoveredRows) {
  const Problem p = problems().back();
  const WorkList work = make(p.slices, p.shape);
  const auto bit = [](bool inside, int64_t row) { return inside || row >= 1000; };  // past the end reads as zeros
  ASSERT_EQ(work.covered_queries.size(), work.q_tiles.size());
  for (size_t t = 0; t < work.q_tiles.size(); ++t) {
    for (int i = 0; i < 64; ++i) {
      const int64_t row = work.q_tiles[t].row_begin + i;
      const bool covered = bit((10 <= row && row < 100) || (500 <= row && row < 900), row);
      EXPECT_EQ(work.covered_queries[t] >> i & 1, covered ? 1u : 0u) << row;
    }
  }
  for (const WorkTile& work_tile : work.work_tiles) {
    bool all = true;
    for (int i = 0; i < 128; ++i) {
      const int64_t row = work_tile.row_begin + i;
      const bool covered = bit((20 <= row && row < 200) || (300 <= row && row < 310), row);
      EXPECT_EQ(work_tile.covered[i / 32] >> (i % 32) & 1, covered ? 1u : 0u) << row;
      all &= covered;
    }
    EXPECT_EQ(work_tile.flags, all ? 0 : kWorkTileZeroRows);
  }
  EXPECT_TRUE(make(problems()[0].slices, problems()[0].shape).covered_queries.empty());
}

// They take 90 us. The kernels before the main one take 140 us for 8,192 rows, 9 for 512.
TEST(WorkList, AwaitedKeysThatComeBeforeTheMainKernelLeaveTheScheduleAsItIs) {
  EXPECT_EQ(scheduled(8192, true), scheduled(8192, false));
  EXPECT_NE(scheduled(512, true), scheduled(512, false));
}

}  // namespace
}  // namespace tangram::schedule
