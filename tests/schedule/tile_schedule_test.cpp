// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which schedule the backward pass chooses, with all keys there and with awaited keys.
#include "schedule/tile_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "schedule/heuristic_tile_schedule.hpp"
#include "schedule/makespan.hpp"
#include "schedule/multiprocessors.hpp"
#include "schedule/tile_schedule_candidates.hpp"
#include "schedule/tile_schedule_heuristic.hpp"

namespace tangram::schedule {
namespace {

constexpr GpuModel kGpu;

/// Tiles of `counts` steps a head, which all begin with the first query tile.
Extents extents_of(const std::vector<int64_t>& counts) {
  std::vector<Extent> of_keys;
  for (const int64_t count : counts) of_keys.push_back({count, 0, count});
  return make_extents(of_keys);
}

/// Causal documents of so many key tiles each.
Extents documents_of(const std::vector<int64_t>& lengths) {
  std::vector<Extent> of_keys;
  int64_t end = 0;
  for (const int64_t length : lengths) {
    end += 2 * length;
    for (int64_t tile = length; tile > 0; --tile) of_keys.push_back({2 * tile, end - 2 * tile, end});
  }
  return make_extents(of_keys);
}

AttnShape shape_of(int64_t queries, int64_t keys) { return {queries, keys, 64, 8, 128, 128, DType::kBFloat16}; }
constexpr double kSpread = 0.24;  // of packed causal documents

/// Steps without any other costs that the multiprocessors would take if all were equally long at work.
double even_steps(const Extents& extents, const AttnShape& shape) {
  double sum = 0;
  for (const Extent& extent : extents.of_keys) sum += static_cast<double>(extent.count);
  return sum * shape.num_heads_q / kGpu.multiprocessors;
}

// With any number of query heads a KV head; all heads at once read most of what they visit from memory.
TEST(TileSchedule, LongCausalMasksAreScheduledInSectionsThatTheCacheHolds) {
  for (const int group : {1, 2, 3, 5, 6, 7, 8, 12, 16}) {
    for (const int64_t rows : {16384, 65536}) {
      const AttnShape shape{rows, rows, 64 / group * group, 64 / group, 128, 128, DType::kBFloat16};
      std::vector<int64_t> counts;
      for (int64_t tile = rows / 128; tile > 0; --tile) counts.push_back(2 * tile);
      Extents extents = extents_of(counts);
      const TileSchedule how = choose_tile_schedule(extents, 0.25, shape, kGpu);
      const int heads_of_work_tile = (group + how.head_splits - 1) / how.head_splits;
      ASSERT_GT(how.heads_in_l2, 0) << "group " << group << ", rows " << rows;
      const double bytes = 8.0 * static_cast<double>(rows) * 128 * heads_of_work_tile * how.heads_in_l2;
      EXPECT_TRUE(bytes <= 1.1 * static_cast<double>(kGpu.l2_bytes) || how.heads_in_l2 <= 2)
          << "group " << group << ", rows " << rows << ", pieces " << how.head_splits << ", together "
          << how.heads_in_l2;
      if (group == 1) {
        EXPECT_EQ(choose_tile_schedule(extents, 0.25, shape, kGpu, {}, true).heads_in_l2, 0);
      }
    }
  }
}

TEST(TileSchedule, PrimesAreCutInPiecesThatDifferByAHead) {
  for (const int group : {1, 2, 3, 4, 6, 8, 12}) {
    for (int head_splits = 1; head_splits <= group; ++head_splits)
      EXPECT_EQ(can_cut(group, head_splits), group % head_splits == 0) << group;
  }
  for (const int group : {5, 7, 11, 13}) {
    for (int head_splits = 1; head_splits < group; ++head_splits) {
      EXPECT_EQ(can_cut(group, head_splits), head_splits <= group / 2)
          << group << " heads, " << head_splits << " pieces";
      if (!can_cut(group, head_splits)) continue;
      EXPECT_EQ(first_head_of_split(group, head_splits, 0), 0);
      EXPECT_EQ(first_head_of_split(group, head_splits, head_splits), group);
      for (int head_split = 0; head_split < head_splits; ++head_split) {
        const int heads = first_head_of_split(group, head_splits, head_split + 1) -
                          first_head_of_split(group, head_splits, head_split);
        EXPECT_TRUE(heads == group / head_splits || heads == group / head_splits + 1);
      }
    }
    EXPECT_TRUE(can_cut(group, group));
  }
}

// In pieces of two and three heads, in even sections that the cache holds, nearly: more than 1.1 times as fast as whole
// work tiles.
TEST(TileSchedule, SevenHeadsOfACausalMaskAreCut) {
  std::vector<int64_t> counts;
  for (int64_t tile = 32; tile > 0; --tile) counts.push_back(2 * tile);
  const AttnShape shape{4096, 4096, 7 * 8, 8, 128, 128, DType::kBFloat16};
  Extents extents = extents_of(counts);
  const TileSchedule how = choose_tile_schedule(extents, 0.25, shape, kGpu);
  EXPECT_EQ(how.head_splits, 3);
  EXPECT_EQ(how.heads_in_l2, 8);
  EXPECT_TRUE(how.heads_innermost);
}

// Sections of nested work tiles are as many heads as the cache holds, but so that they end together: one piece of six
// heads of twelve, which fits best, would leave half of the multiprocessors without one (0.90 of the rate of p3_t2).
TEST(TileSchedule, SectionsOfACausalMaskFillTheMultiprocessors) {
  struct Case {
    int64_t rows;
    int heads_q, heads_kv, head_splits, heads_in_l2;
  };
  for (const int64_t l2_mb : {50, 60}) {
    for (const Case& c : {Case{8192, 48, 4, 3, 2},
                          {8192, 64, 4, 4, 2},
                          {4096, 48, 4, 4, 4},
                          {4096, 64, 4, 4, 4},
                          {8192, 64, 8, 2, 2},
                          {4096, 64, 8, 2, 4},
                          {16384, 64, 8, 2, 1}}) {
      std::vector<int64_t> counts;
      for (int64_t tile = c.rows / 128; tile > 0; --tile) counts.push_back(2 * tile);
      const AttnShape shape{c.rows, c.rows, c.heads_q, c.heads_kv, 128, 128, DType::kBFloat16};
      Extents extents = extents_of(counts);
      const TileSchedule how = choose_tile_schedule(extents, 0.25, shape, {132, l2_mb << 20});
      EXPECT_EQ(how.head_splits, c.head_splits) << c.rows << " rows, " << c.heads_q << "/" << c.heads_kv << " heads";
      EXPECT_EQ(how.heads_in_l2, c.heads_in_l2) << c.rows << " rows, " << c.heads_q << "/" << c.heads_kv << " heads";
    }
  }
}

// Deterministic calls wait where a section begins: they are scheduled in sections that last, or in none.
TEST(TileSchedule, DeterministicCallsTakeLongSectionsAlone) {
  const auto chosen = [](int64_t rows, int heads_q, int heads_kv) {
    std::vector<int64_t> counts;
    for (int64_t tile = rows / 128; tile > 0; --tile) counts.push_back(2 * tile);
    Extents extents = extents_of(counts);
    return choose_tile_schedule(extents, 0.25, {rows, rows, heads_q, heads_kv, 128, 128, DType::kBFloat16}, kGpu, {},
                                true);
  };
  EXPECT_EQ(chosen(8192, 48, 4), (TileSchedule{.head_splits = 3, .heads_in_l2 = 2})) << "six sections of 252 steps";
  EXPECT_EQ(chosen(4096, 48, 4).heads_in_l2, 0) << "0.97 of the rate in four sections of 96 steps";
  EXPECT_EQ(chosen(2048, 64, 8).heads_in_l2, 0) << "0.96 in two of 66";
}

// Lists that a GPU builds know no mask: they are scheduled as a causal one of the shape, not in the first sections that
// fit.
TEST(TileSchedule, SectionsWithoutAMaskAreThoseOfACausalOne) {
  const GpuModel h200{132, int64_t{60} << 20};
  for (const auto& [rows, heads_kv, head_splits, heads_in_l2] :
       {std::tuple{8192, 8, 2, 2}, {4096, 8, 2, 4}, {8192, 4, 4, 2}}) {
    const TileSchedule how = l2_tile_schedule({rows, rows, 64, heads_kv, 128, 128, DType::kBFloat16}, h200);
    EXPECT_EQ(how.head_splits, head_splits) << rows << " rows, 64/" << heads_kv << " heads";
    EXPECT_EQ(how.heads_in_l2, heads_in_l2) << rows << " rows, 64/" << heads_kv << " heads";
  }
}

/// Blocks chosen at random: an eighth of the tiles and up to seven.
Extents scattered_work_tiles(int64_t tiles) {
  std::mt19937 random(5);
  std::vector<Extent> of_keys;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = static_cast<int64_t>(random() % 16), count = tiles / 8 + static_cast<int64_t>(random() % 8);
    of_keys.push_back({2 * count, 2 * first, 2 * (tiles - first)});
  }
  return make_extents(of_keys);
}

// Rule of choose_tile_schedule if all multiprocessors end evenly. Deterministic calls wait for turns in sections.
TEST(TileSchedule, ScatteredBlocksAreScheduledByRuleHeadByHead) {
  Extents many = scattered_work_tiles(256), few = scattered_work_tiles(32);
  for (const int head_dim : {64, 128}) {
    AttnShape shape{256 * 128, 256 * 128, 64, 8, head_dim, head_dim, DType::kBFloat16};
    const TileSchedule how = heuristic_tile_schedule(many, shape, kGpu, false);
    const TileSchedule chosen = choose_tile_schedule(many, kSpread, shape, kGpu);
    EXPECT_EQ(how, (TileSchedule{
                       .head_splits = head_dim == 64 ? 1 : 2, .heads_in_l2 = 1, .heads_innermost = head_dim == 64}));
    EXPECT_EQ(chosen.heads_innermost, how.heads_innermost);
    EXPECT_LT(makespan({many, shape, kGpu, {}}, how), 1.01 * makespan({many, shape, kGpu, {}}, chosen));
    EXPECT_NE(heuristic_tile_schedule(many, shape, kGpu, true), how);
    shape.seqlen_q = shape.seqlen_k = 32 * 128;
    EXPECT_NE(heuristic_tile_schedule(few, shape, kGpu, false), how)
        << "an item is a third of a multiprocessor's share";
  }
}

constexpr GpuModel kH100{132, int64_t{50} << 20, 3.35e12};

// On an H100 the backward pass of 64K rows took 1.3 to 1.5 times as long in two pieces: queries, dout and sums of four
// heads of 128 are five times what the cache holds.
TEST(TileSchedule, PiecesOfScatteredBlocksAreAsSmallAsTheCacheWantsThem) {
  struct Case {
    int64_t tiles;
    int head_dim, head_splits;
  };
  for (const Case& c : {Case{128, 128, 2}, {256, 128, 2}, {512, 128, 4}, {2048, 128, 8}, {256, 64, 1}, {512, 64, 2}}) {
    for (const GpuModel& gpu : {kGpu, kH100}) {
      SCOPED_TRACE(::testing::Message() << c.tiles << " tiles, heads of " << c.head_dim << ", " << gpu.l2_bytes);
      Extents extents = scattered_work_tiles(c.tiles);
      const AttnShape shape{c.tiles * 128, c.tiles * 128, 64, 8, c.head_dim, c.head_dim, DType::kBFloat16};
      EXPECT_EQ(scattered_pieces(shape.seqlen_q, c.head_dim, 8, gpu.l2_bytes, gpu.has_slow_memory()).fewest,
                c.head_splits);
      EXPECT_EQ(heuristic_tile_schedule(extents, shape, gpu, false).head_splits, c.head_splits);
      const int chosen = choose_tile_schedule(extents, kSpread, shape, gpu).head_splits;
      EXPECT_TRUE(chosen == c.head_splits || chosen == 2 * c.head_splits) << chosen;
    }
  }
  EXPECT_EQ(scattered_pieces(1 << 20, 128, 6, 0, true).most, 2) << "three heads are not cut in two";
}

// On an H100 causal blocks, of which the first keys are seen by many, took 1.1 to 1.6 times as long by length or in two
// pieces as in single heads; its memory is slower than an H200's.
TEST(TileSchedule, CausalBlocksAreScheduledInSingleHeadsWhereMemoryIsSlow) {
  for (const int64_t tiles : {64, 128, 256, 512}) {
    std::vector<Extent> of_keys;
    for (int64_t tile = 0; tile < tiles; ++tile) {  // each query sees an eighth of the blocks, or all before
      double count = 1;
      for (int64_t q = tile; q < tiles; ++q) {
        count += std::min(1.0, 0.12 * static_cast<double>(tiles) / static_cast<double>(q + 1));
      }
      of_keys.push_back({2 * static_cast<int64_t>(count), 2 * tile, 2 * tiles});
    }
    Extents extents = make_extents(of_keys);
    const AttnShape shape{tiles * 128, tiles * 128, 64, 8, 128, 128, DType::kBFloat16};
    const TileSchedule single{.head_splits = 8, .heads_in_l2 = 1};
    EXPECT_EQ(choose_tile_schedule(extents, kSpread, shape, kH100), single) << tiles;
    EXPECT_EQ(heuristic_tile_schedule(extents, shape, kH100, false), single) << tiles;
    EXPECT_NE(choose_tile_schedule(extents, kSpread, shape, kGpu), single) << tiles;
  }
}

// One block that all queries see is no reason to cut all work tiles: over 32K rows that took 1.09 times as long on an
// H100.
TEST(TileSchedule, ScatteredBlocksWithOneThatAllSeeAreCutByLengthWhereMemoryIsSlow) {
  std::vector<Extent> of_keys = scattered_work_tiles(256).of_keys;
  of_keys[0] = {512, 0, 512};
  Extents extents = make_extents(of_keys);
  const AttnShape shape{256 * 128, 256 * 128, 64, 8, 128, 128, DType::kBFloat16};
  EXPECT_EQ(visits_of(extents).long_work_tiles, 1);
  EXPECT_GT(choose_tile_schedule(extents, kSpread, shape, kH100).max_steps, 0);
  EXPECT_GT(heuristic_tile_schedule(extents, shape, kH100, false).max_steps, 0);
}

/// What the 14 packed documents of one of four ranks look like: 8K rows, the longest 3K.
Extents documents_of_a_rank() { return documents_of({24, 12, 8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1}); }

size_t work_tiles_of(const Extents& extents, const TileSchedule& how) {
  size_t count = 0;
  for_each_work_tile(extents, 8, how, [&](size_t, int, int, int) { ++count; });
  return count;
}

TEST(TileSchedule, PiecesByLengthAreAsFewAsNeededAndInOneOrderForAllHeads) {
  constexpr int64_t kMost = 150;
  const AttnShape shape = shape_of(8192, 8192);
  const Extents extents = documents_of_a_rank();
  for (const int heads_in_l2 : {0, 1, 2, 3}) {
    for (const bool by_document : {false, true}) {
      const TileSchedule how{
          .head_splits = 8, .heads_in_l2 = heads_in_l2, .by_document = by_document, .max_steps = kMost};
      std::vector<std::vector<size_t>> scheduled(64);  // key tiles, by query head
      for_each_work_tile(extents, shape.num_heads_kv, how, [&](size_t i, int head, int head_split, int head_splits) {
        const int64_t steps = extents.of_keys[i].count * 8;
        EXPECT_LE(steps, kMost * head_splits);
        if (head_splits > 1) {
          EXPECT_GT(steps * 2, kMost * head_splits);
        }
        for (int h = head_split * 8 / head_splits; h < (head_split + 1) * 8 / head_splits; ++h) {
          scheduled[static_cast<size_t>(head * 8 + h)].push_back(i);
        }
      });
      EXPECT_EQ(std::set<size_t>(scheduled[0].begin(), scheduled[0].end()).size(), extents.of_keys.size());
      for (const std::vector<size_t>& tiles : scheduled) EXPECT_EQ(tiles, scheduled[0]);
      EXPECT_EQ(scheduled[0].size(), extents.of_keys.size());
    }
  }
}

TEST(TileSchedule, PiecesAreShortOnlyWhereLittleIsLeft) {
  constexpr int64_t kLeast = 60, kSplitKv = 132;
  const AttnShape shape = shape_of(8192, 8192);
  const Extents extents = documents_of_a_rank();
  int64_t all = 0;
  for (const Extent& extent : extents.of_keys) all += extent.count * 64;
  for (const int heads_in_l2 : {0, 1, 2, 3}) {
    for (const bool by_document : {false, true}) {
      TileSchedule how{.head_splits = 8, .heads_in_l2 = heads_in_l2, .by_document = by_document, .max_steps = kLeast};
      const size_t always_short = work_tiles_of(extents, how);
      how.guided_divisor = kSplitKv;
      EXPECT_LT(work_tiles_of(extents, how), always_short);
      EXPECT_LE(work_tiles_of(extents, how), most_work_tiles(extents, shape.num_heads_kv, how));
      int64_t rest = all;
      for_each_work_tile(extents, shape.num_heads_kv, how, [&](size_t i, int, int, int head_splits) {
        const int64_t steps = extents.of_keys[i].count * 8;
        if (head_splits > 1) {
          EXPECT_GT(steps * 2, std::max(kLeast, rest / kSplitKv) * head_splits) << "cut more than need be";
        }
        rest -= steps / head_splits;  // of the section, at most
      });
      EXPECT_EQ(rest, 0) << "all heads of all tiles";
    }
  }
}

// Assignment last since their keys come last, long tiles would begin when others are nearly done: better to wait for
// them.
TEST(TileSchedule, LongTilesThatComeLateDoNotEndLast) {
  const AttnShape shape = shape_of(8192, 8192);
  Extents extents = documents_of({20, 14, 9, 7, 5, 4, 3, 2});
  const std::vector<size_t> longest_first = extents.order;
  const TileSchedule all_there = choose_tile_schedule(extents, kSpread, shape, kGpu);
  std::vector<double> arrives(extents.of_keys.size(), 0.0);
  for (size_t i = 0; i < 4; ++i) arrives[i] = 19;
  const TileSchedule how = choose_tile_schedule(extents, kSpread, shape, kGpu, arrives);
  EXPECT_EQ(extents.order, longest_first);
  const double steps = makespan({extents, shape, kGpu, arrives}, how);
  EXPECT_LT(steps, 1.05 * makespan({extents, shape, kGpu, {}}, all_there));
  const TileSchedule last_wave_heads{.head_splits = 2, .heads_in_l2 = 1, .last_wave_heads = 4};
  extents.order = order_by_readiness(extents, shape, kGpu.multiprocessors, last_wave_heads, arrives);
  EXPECT_GT(makespan({extents, shape, kGpu, arrives}, last_wave_heads), 1.2 * steps);
}

// Where most keys are awaited, waiting for the longest would leave all multiprocessors without work.
TEST(TileSchedule, ManyTilesThatComeLateComeLast) {
  const AttnShape shape = shape_of(8192, 16384);
  Extents extents = extents_of(std::vector<int64_t>(128, 128));
  std::vector<double> arrives(128, 0.0);
  for (size_t i = 0; i < 64; ++i) arrives[i] = 500;
  const TileSchedule how = choose_tile_schedule(extents, 0.0, shape, kGpu, arrives);
  EXPECT_LT(makespan({extents, shape, kGpu, arrives}, how), 1.05 * even_steps(extents, shape));  // else 1.09
  EXPECT_GE(extents.order.front(), 64u);
}

// One after the other on a heap, and counted in a ring of times: the same end.
TEST(Multiprocessors, CountedOnesEndWhenSingleOnesDo) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const int num_sms = 1 + static_cast<int>(random() % 132);
    const int64_t longest = 1 + static_cast<int64_t>(random() % 300), latest = static_cast<int64_t>(random() % 200);
    Multiprocessors single(num_sms);
    CountedMultiprocessors counted(num_sms, longest + latest);
    for (int work_tile = 0; work_tile < 100; ++work_tile) {
      const int64_t steps = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(longest));
      const int64_t count = static_cast<int64_t>(random() % 70);
      const int64_t from = random() % 4 != 0 ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(latest + 1));
      counted.run(steps, count, from);
      for (int64_t i = 0; i < count; ++i) single.run(static_cast<double>(steps), static_cast<double>(from));
      ASSERT_EQ(static_cast<double>(counted.end()), single.end()) << "round " << round << ", item " << work_tile;
    }
  }
}

/// All forms played to their end, and the first of the fastest.
TileSchedule best_of_all(const Extents& extents, double spread, const AttnShape& shape, bool deterministic) {
  const Setting in{extents, shape, kGpu, {}};
  const auto kind = static_cast<size_t>(kind_of(extents, spread));
  TileSchedule best;
  double least = std::numeric_limits<double>::infinity();
  for (const ScheduleCandidate& form : kScheduleCandidates) {
    const double cost_factor = (deterministic ? form.deterministic : form.cost_factor)[kind];
    std::optional<TileSchedule> how = schedule_of(form, extents, shape, kGpu, even_steps(in));
    if (cost_factor == 0 || !how || (deterministic && waits_in_sections(form, *how, shape, even_steps(in)))) continue;
    how->heads_innermost = walks_heads_inside(*how, choose_direction(extents).same_begin, spread, shape);
    const double cost = cost_factor * makespan(in, *how);
    if (cost < least) best = *how, least = cost;
  }
  return best;
}

// Forms that cannot win are not played to their end, which changes no choice.
TEST(TileSchedule, TheChoiceIsTheFastestOfAllForms) {
  std::mt19937 rng(1);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution(from, to)(rng); };
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> lengths;
    for (int i = draw(1, 40); i > 0; --i) lengths.push_back(draw(0, 3) == 0 ? draw(1, 60) : draw(1, 6));
    const int group = std::array{1, 2, 4, 8}[static_cast<size_t>(draw(0, 3))];
    const AttnShape shape{8192, 8192, 8 * group, 8, 128, 128, DType::kBFloat16};
    Extents extents = round % 5 == 0 ? extents_of(lengths) : documents_of(lengths);
    for (const double spread : {0.05, kSpread}) {
      for (const bool deterministic : {false, true}) {
        const TileSchedule expected = best_of_all(extents, spread, shape, deterministic);
        EXPECT_EQ(choose_tile_schedule(extents, spread, shape, kGpu, {}, deterministic), expected) << "round " << round;
      }
    }
  }
}

TEST(OrderByReadiness, KeysThatAreThereChangeNothing) {
  const Extents extents = extents_of({5, 9, 7, 9, 1});
  const AttnShape shape{64, 64, 2, 2, 128, 128, DType::kBFloat16};
  EXPECT_EQ(order_by_readiness(extents, shape, 2, {1, false}, std::vector<double>(5, 0.0)), extents.order);
}

// Shortest last is what lets all multiprocessors end together, so only the first wave is other tiles.
TEST(OrderByReadiness, TilesThatAreThereCoverTheWaitAndTheShortestStayLast) {
  // Local tiles 0 to 5, remote ones 6 to 9, which come one after the other.
  const Extents extents = extents_of({20, 20, 3, 4, 2, 1, 30, 30, 30, 30});
  const AttnShape shape{640, 640, 1, 1, 128, 128, DType::kBFloat16};
  const std::vector<double> arrives{0, 0, 0, 0, 0, 0, 5, 10, 15, 40};
  EXPECT_EQ(order_by_readiness(extents, shape, 2, {1, false}, arrives),
            (std::vector<size_t>{0, 1, 6, 7, 8, 9, 3, 2, 4, 5}));
}

TEST(OrderByReadiness, WithNothingToDoTheEarliestComesNext) {
  const Extents extents = extents_of({5, 5, 5});
  const AttnShape shape{192, 192, 1, 1, 128, 128, DType::kBFloat16};
  EXPECT_EQ(order_by_readiness(extents, shape, 4, {1, false}, std::vector<double>{30, 10, 20}),
            (std::vector<size_t>{1, 2, 0}));
}

}  // namespace
}  // namespace tangram::schedule
