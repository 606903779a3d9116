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

/// A row of a shard: rank and row. A sum of partial rows: the multiset of (rank, buffer row).
using Token = std::pair<int, int64_t>;
using Rows = std::map<int64_t, Token>;
using Sums = std::map<int64_t, std::multiset<Token>>;

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

struct AllTables {
  AllTables(const NodeLayout& nodes, const RandomExchange& random) : size(static_cast<size_t>(nodes.num_ranks)) {
    for (int r = 0; r < nodes.num_ranks; ++r) tables.push_back(make_two_level(nodes, random.ranks, r));
  }
  template <class Get>
  std::vector<Exchange> step(Get get) const {
    std::vector<Exchange> ranks;
    for (const TwoLevelTables& table : tables) ranks.push_back(get(table));
    return ranks;
  }
  size_t size;
  std::vector<TwoLevelTables> tables;
};

class TwoLevel : public ::testing::TestWithParam<NodeLayout> {};

TEST_P(TwoLevel, StepsFitTogether) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const AllTables all(GetParam(), make_random_exchange(GetParam().num_ranks, seed));
    expect_fits(all.step([](const TwoLevelTables& t) { return t.direct; }), "direct");
    expect_fits(all.step([](const TwoLevelTables& t) { return t.return_direct; }), "return direct");
    for (size_t h = 0; h < all.tables[0].hops.size(); ++h) {
      expect_fits(all.step([&](const TwoLevelTables& t) { return t.hops[h].between; }), "between");
      expect_fits(all.step([&](const TwoLevelTables& t) { return t.hops[h].forward; }), "forward");
      expect_fits(all.step([&](const TwoLevelTables& t) { return t.hops[h].return_forward; }), "return forward");
      expect_fits(all.step([&](const TwoLevelTables& t) { return t.hops[h].return_between; }), "return between");
    }
  }
}

TEST_P(TwoLevel, StepsStayOnTheirLevel) {
  const NodeLayout& nodes = GetParam();
  const AllTables all(nodes, make_random_exchange(nodes.num_ranks, 7));
  for (int r = 0; r < nodes.num_ranks; ++r) {
    const TwoLevelTables& tables = all.tables[static_cast<size_t>(r)];
    const auto expect_in_node = [&](const Exchange& exchange) {
      for (const auto* list : {&exchange.sends, &exchange.recvs}) {
        for (const RowCopy& copy : *list) EXPECT_EQ(nodes.node_of(copy.peer), nodes.node_of(r));
      }
    };
    expect_in_node(tables.direct);
    expect_in_node(tables.return_direct);
    for (const Hop& hop : tables.hops) {
      expect_in_node(hop.forward);
      expect_in_node(hop.return_forward);
      for (const RowCopy& copy : hop.between.sends) EXPECT_EQ(copy.peer, hop.target);
      for (const RowCopy& copy : hop.between.recvs) EXPECT_EQ(copy.peer, hop.source);
      for (const RowCopy& copy : hop.return_between.sends) EXPECT_EQ(copy.peer, hop.source);
      EXPECT_EQ(nodes.place_of(hop.source), nodes.place_of(r));
    }
  }
}

TEST_P(TwoLevel, CastBringsTheRowsOfTheFlatTablesAndCrossesOncePerNode) {
  const NodeLayout& nodes = GetParam();
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RandomExchange random = make_random_exchange(nodes.num_ranks, seed);
    const AllTables all(nodes, random);
    std::vector<Rows> shards(all.size), buffers(all.size), expected(all.size);
    for (size_t r = 0; r < all.size; ++r) {
      for (int64_t row = 0; row < random.shard_rows; ++row) shards[r][row] = {static_cast<int>(r), row};
    }
    move_rows(random.ranks, shards, expected);
    move_rows(all.step([](const TwoLevelTables& t) { return t.direct; }), shards, buffers);
    int64_t crossing = 0;
    for (size_t h = 0; h < all.tables[0].hops.size(); ++h) {
      std::vector<Rows> relays(all.size);
      move_rows(all.step([&](const TwoLevelTables& t) { return t.hops[h].between; }), shards, relays);
      move_rows(all.step([&](const TwoLevelTables& t) { return t.hops[h].forward; }), relays, buffers);
      for (size_t r = 0; r < all.size; ++r) {
        const Hop& hop = all.tables[r].hops[h];
        crossing += hop.between.rows_received();
        EXPECT_EQ(std::ssize(relays[r]), hop.relay_rows);
        for (const RelayedRows& rows : hop.own) {
          for (int64_t i = 0; i < rows.relay.size(); ++i) {
            EXPECT_FALSE(buffers[r].contains(rows.target + i));
            buffers[r][rows.target + i] = relays[r].at(rows.relay.begin + i);
          }
        }
      }
    }
    EXPECT_EQ(buffers, expected) << "seed " << seed;
    // Each (row, node other than its own) that needs it, once.
    std::set<std::tuple<int, int64_t, int>> needed;
    for (size_t r = 0; r < all.size; ++r) {
      const int node = nodes.node_of(static_cast<int>(r));
      for (const auto& [at, token] : expected[r]) {
        if (nodes.node_of(token.first) != node) needed.emplace(token.first, token.second, node);
      }
    }
    EXPECT_EQ(crossing, std::ssize(needed)) << "seed " << seed;
  }
}

TEST_P(TwoLevel, ReductionGathersEachPartialRowOnceAtItsOwner) {
  const NodeLayout& nodes = GetParam();
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RandomExchange random = make_random_exchange(nodes.num_ranks, seed);
    const AllTables all(nodes, random);
    std::vector<Sums> partials(all.size), owned(all.size), expected(all.size);
    for (size_t r = 0; r < all.size; ++r) {
      for (int64_t row = 0; row < random.buffer_rows[r]; ++row) partials[r][row] = {{static_cast<int>(r), row}};
      for (const RowCopy& copy : random.ranks[r].sends) {
        for (int64_t i = 0; i < copy.rows.size(); ++i) {
          expected[r][copy.rows.begin + i].insert({copy.peer, copy.peer_row + i});
        }
      }
    }
    // Staging areas hold the rows of `sends` one after the other.
    const auto add_staged = [](const std::vector<RowCopy>& sends, const Sums& staging, Sums& sums) {
      int64_t at = 0;
      for (const RowCopy& copy : sends) {
        for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row, ++at) {
          sums[row].insert(staging.at(at).begin(), staging.at(at).end());
        }
      }
      EXPECT_EQ(at, std::ssize(staging));
    };
    std::vector<Sums> staging(all.size);
    move_rows(all.step([](const TwoLevelTables& t) { return t.return_direct; }), partials, staging);
    for (size_t r = 0; r < all.size; ++r) add_staged(all.tables[r].direct.sends, staging[r], owned[r]);
    for (size_t h = 0; h < all.tables[0].hops.size(); ++h) {
      std::vector<Sums> at_relay(all.size), relays(all.size), at_owner(all.size);
      move_rows(all.step([&](const TwoLevelTables& t) { return t.hops[h].return_forward; }), partials, at_relay);
      for (size_t r = 0; r < all.size; ++r) {
        const Hop& hop = all.tables[r].hops[h];
        add_staged(hop.forward.sends, at_relay[r], relays[r]);
        for (const RelayedRows& rows : hop.own) {
          for (int64_t i = 0; i < rows.relay.size(); ++i) {
            relays[r][rows.relay.begin + i].insert({static_cast<int>(r), rows.target + i});
          }
        }
        EXPECT_EQ(std::ssize(relays[r]), hop.relay_rows) << "every relayed row has a contribution";
      }
      move_rows(all.step([&](const TwoLevelTables& t) { return t.hops[h].return_between; }), relays, at_owner);
      for (size_t r = 0; r < all.size; ++r) {
        add_staged(all.tables[r].hops[h].between.sends, at_owner[r], owned[r]);
      }
    }
    EXPECT_EQ(owned, expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TwoLevel, ::testing::ValuesIn(kLayouts), [](const auto& param_info) {
  return std::to_string(param_info.param.num_nodes()) + "NodesOf" + std::to_string(param_info.param.ranks_per_node);
});

}  // namespace
}  // namespace tangram::comm
