// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/shard_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Rows = std::vector<int64_t>;

const Dispatch kDispatch{2, 3, {0, 1, 1, 0}};  // 12 rows

Rows written(const std::vector<Range>& runs) {
  Rows rows;
  for (const Range& run : runs) {
    for (int64_t row = run.begin; row < run.end; ++row) rows.push_back(row);
  }
  return rows;
}

// The global rows of each shard, chunk by chunk.
std::vector<Rows> shards_of(const Dispatch& dispatch) {
  std::vector<Rows> shards(static_cast<size_t>(dispatch.cp_size));
  for (int64_t row = 0; row < dispatch.seqlen(); ++row) {
    shards[static_cast<size_t>(dispatch.rank_of_chunk[static_cast<size_t>(row / dispatch.chunk_size)])].push_back(row);
  }
  return shards;
}

// What `rank` does where rank r wants the rows wanted[r], written down row by row.
void expect_moves(const ShardMoves& moves, const std::vector<Rows>& shards, const std::vector<Rows>& wanted,
                  size_t rank) {
  const size_t size = shards.size();
  const auto owner_of = [&](int64_t row) {
    return static_cast<size_t>(
        std::find_if(shards.begin(), shards.end(),
                     [&](const Rows& rows) { return std::binary_search(rows.begin(), rows.end(), row); }) -
        shards.begin());
  };
  std::vector<Rows> counts(size, Rows(size, 0));  // [wants][owner]
  Rows sends;
  std::vector<Rows> came(size);  // to `rank` from each owner
  for (size_t wants = 0; wants < size; ++wants) {
    for (const int64_t row : wanted[wants]) {
      const size_t owner = owner_of(row);
      ++counts[wants][owner];
      if (owner == rank) sends.push_back(std::ranges::lower_bound(shards[rank], row) - shards[rank].begin());
      if (wants == rank) came[owner].push_back(row);
    }
  }
  EXPECT_EQ(written(moves.sends), sends);
  Rows all_came;
  for (const Rows& rows : came) all_came.insert(all_came.end(), rows.begin(), rows.end());
  Rows taken;
  for (const int64_t place : written(moves.places)) taken.push_back(all_came.at(static_cast<size_t>(place)));
  EXPECT_EQ(taken, wanted[rank]);
  EXPECT_EQ(moves.recv_rows, counts[rank]);
  int64_t most = 0, most_sent = 0, most_wanted = 0;
  for (size_t owner = 0; owner < size; ++owner) {
    int64_t sent = 0;
    for (size_t wants = 0; wants < size; ++wants) {
      if (owner == rank) {
        EXPECT_EQ(moves.send_rows[wants], counts[wants][owner]);
      }
      if (owner != wants) most = std::max(most, counts[wants][owner]);
      sent += counts[wants][owner];
    }
    most_sent = std::max(most_sent, sent);
    most_wanted = std::max(most_wanted, static_cast<int64_t>(wanted[owner].size()));
  }
  EXPECT_EQ(moves.most_rows, most);
  EXPECT_EQ(moves.most_table_rows, most_sent + most_wanted);
}

TEST(ShardMap, KnowsTheRowsOfAShard) {
  const ShardMap map(kDispatch);
  EXPECT_EQ(map.seqlen(), 12);
  EXPECT_EQ(map.rows_per_rank(), 6);
  EXPECT_THAT(map.rows_of_rank(0, 12), ElementsAre(Range{0, 3}, Range{9, 12}));
  EXPECT_THAT(map.rows_of_rank(0, 10), ElementsAre(Range{0, 3}, Range{9, 10}));
  EXPECT_THAT(map.rows_of_rank(0, 9), ElementsAre(Range{0, 3}));
  EXPECT_THAT(map.rows_of_rank(1, 0), ElementsAre());
}

// Without padding all padded rows move to themselves, and few rows make many small runs.
TEST(ShardMap, MovesWhatRowByRowLoopsMove) {
  std::mt19937 rng(7);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); };
  for (int trial = 0; trial < 300; ++trial) {
    Dispatch dispatch{static_cast<int>(1 + below(5)), 1 + below(4), {}};
    const int64_t chunks_per_rank = 1 + below(6);
    std::vector<int> ranks;
    for (int64_t chunk = 0; chunk < chunks_per_rank * dispatch.cp_size; ++chunk) {
      ranks.push_back(static_cast<int>(chunk / chunks_per_rank));
    }
    if (below(4) != 0) std::shuffle(ranks.begin(), ranks.end(), rng);
    dispatch.rank_of_chunk = ranks;
    const int64_t total = below(3) == 0 ? dispatch.seqlen() : 1 + below(dispatch.seqlen());
    const int64_t shift = below(4 * total) - 2 * total;
    SCOPED_TRACE(testing::Message() << "trial " << trial << ", total " << total << ", shift " << shift);
    const std::vector<Rows> shards = shards_of(dispatch);
    const ShardMap map(dispatch);
    std::vector<Rows> whole(shards.size(), Rows(static_cast<size_t>(total))), rolled(shards);
    for (Rows& rows : whole) std::iota(rows.begin(), rows.end(), 0);
    for (Rows& rows : rolled) {
      for (int64_t& row : rows) row = row < total ? (row - shift % total + total) % total : row;
    }
    for (int rank = 0; rank < dispatch.cp_size; ++rank) {
      expect_moves(map.gather(rank, total), shards, whole, static_cast<size_t>(rank));
      expect_moves(map.roll(rank, total, shift), shards, rolled, static_cast<size_t>(rank));
    }
    Rows borders{0, total};
    for (int64_t count = below(5); count > 0; --count) borders.push_back(below(total + 1));
    std::sort(borders.begin(), borders.end());
    const int64_t reach = below(total + 3);
    for (int rank = 0; rank < dispatch.cp_size; ++rank) {
      const Rows real = written(map.rows_of_rank(rank, total));
      const ShardLabels labels = map.labels(rank, total, reach, borders);
      const Rows sources = written(labels.sources), without = written(labels.without);
      ASSERT_EQ(sources.size(), real.size());
      for (size_t i = 0; i < real.size(); ++i) {
        const int64_t document_end = *std::ranges::upper_bound(borders, real[i]);
        const bool has_label = real[i] + reach < document_end;
        EXPECT_EQ(std::binary_search(without.begin(), without.end(), static_cast<int64_t>(i)), !has_label);
        if (has_label) {
          EXPECT_EQ(sources[i], real[i] + reach);
        }
        EXPECT_LT(sources[i], total);
      }
    }
  }
}

TEST(ShardMap, FingerprintsTellWhereRowsAre) {
  const uint64_t fingerprint = ShardMap(kDispatch).fingerprint();
  EXPECT_EQ(ShardMap(Dispatch{2, 1, {0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0}}).fingerprint(), fingerprint);
  EXPECT_NE(ShardMap(Dispatch{2, 3, {0, 1, 0, 1}}).fingerprint(), fingerprint);
  EXPECT_NE(ShardMap(Dispatch{2, 4, {0, 1, 1, 0}}).fingerprint(), fingerprint);
  EXPECT_NE(ShardMap(Dispatch{2, 3, {1, 0, 0, 1}}).fingerprint(), fingerprint);
}

TEST(ShardMap, RefusesWhatTheDispatchHasNot) {
  const ShardMap map(kDispatch);
  EXPECT_THAT([&] { map.gather(2, 12); }, ThrowsMessage<InvalidArgument>(HasSubstr("rank must lie in [0, 2) (got 2)")));
  EXPECT_THAT([&] { map.roll(0, 13, 1); }, ThrowsMessage<InvalidArgument>(HasSubstr("[0, 12] (got 13)")));
  const Rows falling{0, 9, 8, 12};
  EXPECT_THAT([&] { map.labels(0, 12, 1, falling); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must rise from 0 to 12 (got 0, 9, 8, 12, 4 values)")));
  EXPECT_THROW(map.labels(0, 12, 1, {}), InvalidArgument);
  EXPECT_THROW(map.labels(0, 12, -1, Rows{0, 12}), InvalidArgument);
}

}  // namespace
}  // namespace tangram
