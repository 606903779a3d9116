// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Brute force: every step of every rank is carried out on rows that know where they come from.
#include "comm/nodes/two_level.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "comm/exchange_tables.hpp"

namespace tangram::comm {
namespace {

using testing::make_random_exchange;
using testing::RandomExchange;

/// A row of a shard: rank and row.
using Token = std::pair<int, int64_t>;
using Rows = std::map<int64_t, Token>;

constexpr NodeLayout kLayouts[] = {{1, 1}, {4, 4}, {4, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 4}, {9, 3}};

/// Checks what Exchange promises, for one step of all ranks.
void expect_fits(const std::vector<Exchange>& ranks, const std::string& where) {
  for (size_t a = 0; a < ranks.size(); ++a) {
    for (const auto* list : {&ranks[a].sends, &ranks[a].recvs}) {
      for (size_t i = 0; i < list->size(); ++i) {
        const RowCopy& copy = (*list)[i];
        EXPECT_NE(copy.peer, static_cast<int>(a)) << where;
        EXPECT_FALSE(copy.rows.empty()) << where;
        if (i == 0) continue;
        const RowCopy& last = (*list)[i - 1];
        EXPECT_TRUE(last.peer < copy.peer || (last.peer == copy.peer && last.rows.end <= copy.rows.begin)) << where;
      }
    }
    for (size_t b = 0; b < ranks.size(); ++b) {
      std::vector<std::tuple<int64_t, int64_t, int64_t>> sent, received;
      for (const RowCopy& copy : ranks[a].sends) {
        if (copy.peer == static_cast<int>(b)) sent.emplace_back(copy.rows.begin, copy.peer_row, copy.rows.size());
      }
      for (const RowCopy& copy : ranks[b].recvs) {
        if (copy.peer == static_cast<int>(a)) received.emplace_back(copy.peer_row, copy.rows.begin, copy.rows.size());
      }
      EXPECT_EQ(sent, received) << where << ": from " << a << " to " << b;
    }
  }
}

/// Moves rows from `from[sender]` to `to[receiver]` by the receivers' tables.
template <class Row>
void move_rows(const std::vector<Exchange>& ranks, const std::vector<std::map<int64_t, Row>>& from,
               std::vector<std::map<int64_t, Row>>& to) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const RowCopy& copy : ranks[r].recvs) {
      for (int64_t i = 0; i < copy.rows.size(); ++i) {
        const auto& source = from[static_cast<size_t>(copy.peer)];
        ASSERT_TRUE(source.contains(copy.peer_row + i)) << "a row that is not there is sent";
        EXPECT_FALSE(to[r].contains(copy.rows.begin + i)) << "a row is received twice";
        to[r][copy.rows.begin + i] = source.at(copy.peer_row + i);
      }
    }
  }
}

/// Stages of random tables; `apart`: the pieces of one table, so that no rank needs a row twice, nor, where stages are
/// picked by owner, any node.
enum class Stages { kRandom, kApart, kByOwner };

struct RandomStages {
  RandomStages(int size, uint64_t seed, int num_stages, Stages how) {
    const RandomExchange whole = make_random_exchange(size, seed);
    shard_rows = whole.shard_rows;
    for (int stage = 0; stage < num_stages; ++stage) {
      RandomExchange random =
          how == Stages::kRandom ? make_random_exchange(size, seed + 99 * static_cast<uint64_t>(stage)) : whole;
      shard_rows = std::max(shard_rows, random.shard_rows);
      for (int rank = 0; rank < size && how != Stages::kRandom; ++rank) {
        Exchange& exchange = random.ranks[static_cast<size_t>(rank)];
        const auto is_elsewhere = [&](int owner, int receiver, int64_t row) {
          const int64_t key = how == Stages::kByOwner ? owner : owner + receiver * 5 + row;
          return key % num_stages != stage;
        };
        std::erase_if(exchange.sends, [&](const RowCopy& c) { return is_elsewhere(rank, c.peer, c.peer_row); });
        std::erase_if(exchange.recvs, [&](const RowCopy& c) { return is_elsewhere(c.peer, rank, c.rows.begin); });
      }
      stages.push_back(std::move(random.ranks));
    }
    for (const std::vector<Exchange>& ranks : stages) {
      std::vector<const Exchange*>& pointers = tables.emplace_back();
      for (const Exchange& exchange : ranks) pointers.push_back(&exchange);
    }
  }

  int64_t shard_rows = 0;
  std::vector<std::vector<Exchange>> stages;
  StageTables tables;
};

class TwoLevelPasses : public ::testing::TestWithParam<NodeLayout> {
 protected:
  template <class Body>
  void for_each_case(Body body) {
    const NodeLayout& nodes = GetParam();
    for (uint64_t seed = 0; seed < 15; ++seed) {
      for (const Stages how : {Stages::kRandom, Stages::kApart, Stages::kByOwner}) {
        const RandomStages random(nodes.num_ranks, seed, 1 + static_cast<int>(seed % 5), how);
        for (const RelayUse use : {RelayUse::kOnce, RelayUse::kEachStage, RelayUse::kTwoStages}) {
          TwoLevel two_level(nodes, random.tables, use);
          std::vector<std::vector<TwoLevelTables>> tables;  // by rank and stage
          for (int r = 0; r < nodes.num_ranks; ++r) tables.push_back(two_level.tables(r));
          const std::string where = "seed " + std::to_string(seed) + ", stages " +
                                    std::to_string(static_cast<int>(how)) + ", use " +
                                    std::to_string(static_cast<int>(use));
          SCOPED_TRACE(where);
          body(random, how, use, two_level, tables);
        }
      }
    }
  }
};

template <class Get>
std::vector<Exchange> step(const std::vector<std::vector<TwoLevelTables>>& tables, size_t stage, Get get) {
  std::vector<Exchange> ranks;
  for (const auto& of_rank : tables) ranks.push_back(get(of_rank[stage]));
  return ranks;
}

/// Every step is carried out, stage after stage: relay areas keep what lies there until it is written over.
TEST_P(TwoLevelPasses, BringTheRowsOfTheFlatTablesAndCrossOncePerNode) {
  const NodeLayout& nodes = GetParam();
  const auto size = static_cast<size_t>(nodes.num_ranks);
  for_each_case([&](const RandomStages& random, Stages how, RelayUse use, TwoLevel& two_level, const auto& tables) {
    std::vector<Rows> shards(size), relays(size);
    for (size_t r = 0; r < size; ++r) {
      for (int64_t row = 0; row < random.shard_rows; ++row) shards[r][row] = {static_cast<int>(r), row};
    }
    int64_t crossing = 0;
    std::set<std::tuple<int, int64_t, int, size_t>> needed;  // each row and other node, once, or once a stage
    for (size_t stage = 0; stage < random.stages.size(); ++stage) {
      std::vector<Rows> buffers(size), expected(size), landed(size);
      move_rows(random.stages[stage], shards, expected);
      const auto direct = step(tables, stage, [](const TwoLevelTables& t) { return t.direct; }),
                 between = step(tables, stage, [](const TwoLevelTables& t) { return t.between; });
      expect_fits(direct, "direct");
      expect_fits(between, "between");
      move_rows(direct, shards, buffers);
      move_rows(between, shards, landed);
      for (size_t r = 0; r < size; ++r) {
        crossing += between[r].rows_received();
        for (const auto& [row, token] : landed[r]) {
          EXPECT_LT(row, two_level.relay_rows(static_cast<int>(r)));
          relays[r][row] = token;
        }
        for (const RowCopy& copy : direct[r].sends)
          EXPECT_TRUE(nodes.node_of(copy.peer) == nodes.node_of(static_cast<int>(r)));
        for (const RowCopy& copy : between[r].sends)
          EXPECT_EQ(nodes.place_of(copy.peer), nodes.place_of(static_cast<int>(r)));
      }
      for (int h = 0; h + 1 < nodes.num_nodes(); ++h) {
        const auto forward =
            step(tables, stage, [&](const TwoLevelTables& t) { return t.forward[static_cast<size_t>(h)]; });
        expect_fits(forward, "forward");
        move_rows(forward, relays, buffers);
        for (size_t r = 0; r < size; ++r) {
          for (const RowCopy& copy : forward[r].sends)
            EXPECT_EQ(nodes.node_of(copy.peer), nodes.node_of(static_cast<int>(r)));
        }
      }
      for (size_t r = 0; r < size; ++r) {
        for (const RelayedRows& rows : tables[r][stage].own) {
          for (int64_t i = 0; i < rows.relay.size(); ++i) {
            EXPECT_FALSE(buffers[r].contains(rows.target + i));
            buffers[r][rows.target + i] = relays[r].at(rows.relay.begin + i);
          }
        }
        const int node = nodes.node_of(static_cast<int>(r));
        for (const auto& [at, token] : expected[r]) {
          const bool once = use != RelayUse::kEachStage;
          if (nodes.node_of(token.first) != node) needed.emplace(token.first, token.second, node, once ? 0 : stage);
        }
      }
      EXPECT_EQ(buffers, expected) << "stage " << stage;
    }
    EXPECT_EQ(crossing, std::ssize(needed));
    if (how == Stages::kByOwner && use == RelayUse::kTwoStages) {
      for (int r = 0; r < nodes.num_ranks; ++r) EXPECT_EQ(two_level.reuses(r), random.stages.size() > 2);
    }
  });
}

/// Backwards: each partial row comes to its owner once, by way of a relay where it crosses.
TEST_P(TwoLevelPasses, EveryRowOfARelayAreaHasItsPartialRows) {
  const NodeLayout& nodes = GetParam();
  for_each_case([&](const RandomStages& random, Stages, RelayUse use, TwoLevel& two_level, const auto& tables) {
    if (use == RelayUse::kTwoStages) return;  // of casts alone
    for (int r = 0; r < nodes.num_ranks; ++r) {
      const auto rank = static_cast<size_t>(r);
      std::set<int64_t> added, sent;
      for (size_t stage = 0; stage < random.stages.size(); ++stage) {
        const TwoLevelTables& own = tables[rank][stage];
        for (const RelayedRows& rows : own.own) {
          for (int64_t i = 0; i < rows.relay.size(); ++i) added.insert(rows.relay.begin + i);
        }
        for (const Exchange& forward : own.forward) {
          for (const RowCopy& copy : forward.sends) {
            for (int64_t i = 0; i < copy.rows.size(); ++i) added.insert(copy.rows.begin + i);
          }
        }
        for (const RowCopy& copy : own.between.recvs) {
          for (int64_t i = 0; i < copy.rows.size(); ++i) EXPECT_TRUE(sent.insert(copy.rows.begin + i).second);
        }
      }
      EXPECT_EQ(added, sent);
      EXPECT_EQ(std::ssize(sent), two_level.relay_rows(r));
    }
  });
}

TEST_P(TwoLevelPasses, CountRowsOfOtherRanksWithoutTheirTables) {
  const NodeLayout& nodes = GetParam();
  for_each_case([&](const RandomStages& random, Stages, RelayUse, TwoLevel& two_level, const auto& tables) {
    const auto rows_to = [](const Exchange& exchange, int peer) {
      int64_t rows = 0;
      for (const RowCopy& copy : exchange.sends) rows += copy.peer == peer ? copy.rows.size() : 0;
      return rows;
    };
    for (int r = 0; r < nodes.num_ranks; ++r) {
      for (size_t stage = 0; stage < random.stages.size(); ++stage) {
        const TwoLevelTables& own = tables[static_cast<size_t>(r)][stage];
        for (int place = 0; place < nodes.ranks_per_node; ++place) {
          const int peer = nodes.rank_at(nodes.node_of(r), place);
          if (peer == r) continue;
          EXPECT_EQ(two_level.direct_rows(r, stage, peer), rows_to(own.direct, peer));
          for (int distance = 1; distance < nodes.num_nodes(); ++distance) {
            EXPECT_EQ(two_level.forward_rows(r, stage, distance, peer),
                      rows_to(own.forward[static_cast<size_t>(distance - 1)], peer));
          }
        }
        for (int node = 0; node < nodes.num_nodes(); ++node) {
          if (node == nodes.node_of(r)) continue;
          EXPECT_EQ(two_level.between_rows(r, stage, node),
                    rows_to(own.between, nodes.rank_at(node, nodes.place_of(r))));
        }
      }
    }
  });
}

TEST(TwoLevel, TwoStagesOfALongPassTakeLessRoom) {
  const NodeLayout nodes{8, 2};
  const RandomStages random(8, 3, 4, Stages::kByOwner);
  TwoLevel once(nodes, random.tables, RelayUse::kOnce), two_stages(nodes, random.tables, RelayUse::kTwoStages);
  int64_t all = 0, reused = 0;
  for (int r = 0; r < 8; ++r) {
    all += once.relay_rows(r);
    reused += two_stages.relay_rows(r);
    EXPECT_LE(two_stages.relay_rows(r), once.relay_rows(r));
  }
  EXPECT_LT(reused, all);
}

INSTANTIATE_TEST_SUITE_P(Layouts, TwoLevelPasses, ::testing::ValuesIn(kLayouts), [](const auto& param_info) {
  return std::to_string(param_info.param.num_nodes()) + "NodesOf" + std::to_string(param_info.param.ranks_per_node);
});

}  // namespace
}  // namespace tangram::comm
