// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/hierarchical_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include "comm/all_gather.hpp"
#include "comm/communicator_suite.hpp"
#include "comm/exchange_tables.hpp"
#include "comm/operation.hpp"
#include "comm/process_group.hpp"
#include "comm/wire.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"
#include "tangram/socket_group.hpp"

namespace tangram {
namespace {

using testing::CommunicatorCase;
using ::testing::HasSubstr;
using testing::make_filled;
using testing::make_random_exchange;
using testing::RandomExchange;
using ::testing::StartsWith;
using testing::SumOfAllRanks;

constexpr double kLongTimeout_s = 60;
constexpr double kShortTimeout_s = 2;

struct Nodes {
  int size;
  int per_node;
};
constexpr Nodes kNodes[] = {{1, 1}, {2, 1}, {4, 2}, {4, 4}, {6, 2}, {6, 3}};

std::string name_of(const Nodes& nodes) {
  return std::to_string(nodes.size / nodes.per_node) + "NodesOf" + std::to_string(nodes.per_node);
}

/// The cases that a hierarchy must pass too. It adds in another order than that of the ranks.
std::vector<CommunicatorCase> cases() {
  std::vector<CommunicatorCase> cases;
  for (const CommunicatorCase& test : testing::communicator_cases()) {
    if (std::strcmp(test.name, "ReducesInRankOrder") != 0) cases.push_back(test);
  }
  return cases;
}

/// Ranks that are threads, with a local group for each node and each place.
void run_local_levels(const Nodes& nodes, const std::function<void(HierarchicalGroup&, LocalGroup& across)>& main) {
  std::vector<std::unique_ptr<LocalGroup>> node_groups, across_groups;
  const int num_nodes = nodes.size / nodes.per_node;
  for (int node = 0; node < num_nodes; ++node) {
    node_groups.push_back(std::make_unique<LocalGroup>(nodes.per_node, kLongTimeout_s));
  }
  for (int place = 0; place < nodes.per_node; ++place) {
    across_groups.push_back(std::make_unique<LocalGroup>(num_nodes, kLongTimeout_s));
  }
  run_local_ranks(
      nodes.size,
      [&](Communicator& world) {
        const int node = world.rank() / nodes.per_node, place = world.rank() % nodes.per_node;
        LocalGroup& across = *across_groups[static_cast<size_t>(place)];
        HierarchicalGroup group(world, {.ranks_per_node = nodes.per_node,
                                        .node = &node_groups[static_cast<size_t>(node)]->communicator(place),
                                        .across = &across.communicator(node)});
        main(group, across);
      },
      kLongTimeout_s);
}

struct SuiteParam {
  CommunicatorCase test;
  Nodes nodes;
  bool has_levels;
};

class HierarchicalSuite : public ::testing::TestWithParam<SuiteParam> {};

TEST_P(HierarchicalSuite, Passes) {
  const SuiteParam& param = GetParam();
  if (param.has_levels) {
    run_local_levels(param.nodes, [&](HierarchicalGroup& group, LocalGroup&) { param.test.run(group.communicator()); });
    return;
  }
  run_local_ranks(
      param.nodes.size,
      [&](Communicator& world) {
        HierarchicalGroup group(world, {.ranks_per_node = param.nodes.per_node});
        param.test.run(group.communicator());
      },
      kLongTimeout_s);
}

std::vector<SuiteParam> suite_params() {
  std::vector<SuiteParam> params;
  for (const CommunicatorCase& test : cases()) {
    for (const Nodes& nodes : kNodes) {
      params.push_back({test, nodes, false});
      if (nodes.size > 1) params.push_back({test, nodes, true});
    }
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Local, HierarchicalSuite, ::testing::ValuesIn(suite_params()), [](const auto& param_info) {
  const SuiteParam& param = param_info.param;
  return std::string(param.test.name) + "On" + name_of(param.nodes) + (param.has_levels ? "WithLevels" : "");
});

/// Rows that nodes need of other nodes' ranks, each once per node.
int64_t needed_across(const RandomExchange& random, const Nodes& nodes) {
  std::set<std::tuple<int, int64_t, int>> needed;
  for (int rank = 0; rank < nodes.size; ++rank) {
    for (const RowCopy& copy : random.ranks[static_cast<size_t>(rank)].sends) {
      if (copy.peer / nodes.per_node == rank / nodes.per_node) continue;
      for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row)
        needed.emplace(rank, row, copy.peer / nodes.per_node);
    }
  }
  return std::ssize(needed);
}

TEST(HierarchicalGroup, EachRowCrossesToANodeOnceAndSumsComeBackOnce) {
  // What crosses is counted by the groups between nodes, which know nothing of nodes and carry nothing else.
  const Nodes nodes{6, 3};
  int64_t flat_rows = 0, crossing = 0;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const RandomExchange random = make_random_exchange(nodes.size, seed);
    const int64_t expected = needed_across(random, nodes);
    crossing += expected;
    for (size_t rank = 0; rank < random.ranks.size(); ++rank) {
      for (const RowCopy& copy : random.ranks[rank].recvs) {
        const bool crosses = copy.peer / nodes.per_node != static_cast<int>(rank) / nodes.per_node;
        if (crosses) flat_rows += copy.rows.size();
      }
    }
    std::atomic<int64_t> cast_rows = 0, cast_bytes = 0, reduce_rows = 0;
    run_local_levels(nodes, [&](HierarchicalGroup& group, LocalGroup& across_group) {
      Communicator& comm = group.communicator();
      Communicator& across = across_group.communicator(comm.rank() / nodes.per_node);
      const auto rank = static_cast<size_t>(comm.rank());
      const HostTensor shard = make_filled(DType::kBFloat16, random.shard_rows, 2, 4, comm.rank(), 0);
      HostTensor buffer(DType::kBFloat16, random.buffer_rows[rank], 2, 4);
      const CastTensor cast[] = {{shard, buffer}};
      for (int i = 0; i < 2; ++i) comm.group_cast(random.ranks[rank], cast, "kv")->wait();
      EXPECT_EQ(across.counters().rows_received, group.across_nodes().rows_received);
      EXPECT_EQ(across.counters().bytes_sent, group.across_nodes().bytes_sent);
      cast_rows += across.counters().rows_received;
      cast_bytes += across.counters().bytes_received;
      comm.barrier("counted");
      across.reset_counters();
      buffer.fill(1);
      HostTensor owned = shard.clone();
      const ReduceTensor reduce[] = {{buffer, owned}};
      comm.group_reduce(random.ranks[rank], reduce, ReduceOp::kSum, "dkv")->wait();
      reduce_rows += across.counters().rows_received;
      comm.barrier("counted");
    });
    EXPECT_EQ(cast_rows, 2 * expected) << "seed " << seed;
    EXPECT_EQ(cast_bytes, 2 * expected * 2 * 4 * 2) << "seed " << seed;
    EXPECT_EQ(reduce_rows, expected) << "seed " << seed;
  }
  EXPECT_LT(crossing, flat_rows) << "the tables must have rows that several ranks of a node need";
}

TEST(HierarchicalGroup, SumsAreGroupedByNodeInAFixedOrder) {
  // Ranks inside nodes, nodes in their order, the owner in its place.
  for (const Nodes& nodes : {Nodes{6, 2}, Nodes{6, 3}, Nodes{4, 1}}) {
    const int num_nodes = nodes.size / nodes.per_node;
    run_local_levels(nodes, [&](HierarchicalGroup& group, LocalGroup&) {
      Communicator& comm = group.communicator();
      const int rank = comm.rank(), own_node = rank / nodes.per_node;
      const float sum = SumOfAllRanks(rank, nodes.size).sum(comm);
      float expected = 0;
      bool is_first = true;
      const auto add = [&](float term) { expected = std::exchange(is_first, false) ? term : expected + term; };
      for (int node = 0; node < num_nodes; ++node) {
        float of_node = 0;
        for (int r = node * nodes.per_node; r < (node + 1) * nodes.per_node; ++r) {
          if (node == own_node) {
            add(SumOfAllRanks::value(r, rank));
          } else {
            of_node += SumOfAllRanks::value(r, rank);
          }
        }
        if (node != own_node) add(of_node);
      }
      EXPECT_EQ(sum, expected) << "rank " << rank << " on " << name_of(nodes);
    });
  }
}

TEST(HierarchicalGroup, SixteenBitSumsDifferFromFlatOnesByTheRoundingOfNodeSums) {
  const Nodes nodes{6, 3};
  const RandomExchange random = make_random_exchange(nodes.size, 3);
  const auto fill = [](HostTensor& tensor, int rank) {
    for (int64_t row = 0; row < tensor.rows(); ++row) {
      for (int d = 0; d < tensor.dim(); ++d) tensor.set(row, 0, d, std::sin(float(rank * 997 + row * 31 + d)));
    }
  };
  run_local_ranks(nodes.size, [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    HostTensor partial(DType::kBFloat16, random.buffer_rows[rank], 1, 8),
        flat(DType::kBFloat16, random.shard_rows, 1, 8);
    fill(partial, world.rank());
    fill(flat, world.rank() + 100);
    HostTensor first = flat.clone(), second = flat.clone();
    const auto reduce = [&](Communicator& comm, HostTensor& owned) {
      const ReduceTensor tensors[] = {{partial, owned}};
      comm.group_reduce(random.ranks[rank], tensors, ReduceOp::kSum, "dkv")->wait();
    };
    reduce(world, flat);
    {
      HierarchicalGroup group(world, {.ranks_per_node = nodes.per_node});
      reduce(group.communicator(), first);
      reduce(group.communicator(), second);
    }
    EXPECT_EQ(std::memcmp(first.view().data, second.view().data, static_cast<size_t>(first.bytes())), 0);
    for (int64_t row = 0; row < flat.rows(); ++row) {
      // One more rounding, of a node's sum below 4 (by 2^-7), and two roundings of totals below 8 (by 2^-6 each).
      for (int d = 0; d < 8; ++d) EXPECT_NEAR(first.at(row, 0, d), flat.at(row, 0, d), 0x1p-7 + 2 * 0x1p-6);
    }
  });
}

/// A folder of its own for each group of a process group.
std::string make_folder(const testing::TemporaryFolder& folder, const std::string& name) {
  const std::string path = folder.path() + "/" + name;
  ::mkdir(path.c_str(), 0700);
  return "unix:" + path;
}

/// Ranks are processes; world and both levels are connected by sockets.
struct SocketLevels {
  SocketLevels(const testing::TemporaryFolder& folder, const Nodes& nodes, int rank, double timeout_s)
      : world({rank, nodes.size, make_folder(folder, "world"), timeout_s}),
        node({rank % nodes.per_node, nodes.per_node,
              make_folder(folder, "node" + std::to_string(rank / nodes.per_node)), timeout_s}),
        across({rank / nodes.per_node, nodes.size / nodes.per_node,
                make_folder(folder, "across" + std::to_string(rank % nodes.per_node)), timeout_s}),
        group(world.communicator(),
              {.ranks_per_node = nodes.per_node, .node = &node.communicator(), .across = &across.communicator()}) {}
  SocketGroup world, node, across;
  HierarchicalGroup group;
};

void expect_all_passed(const std::vector<testing::Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].error_text, "") << "rank " << rank;
  }
}

TEST(HierarchicalGroup, WorksOverSocketsBetweenProcesses) {
  const Nodes nodes{4, 2};
  const testing::TemporaryFolder folder;
  expect_all_passed(testing::run_processes(nodes.size, [&](int rank) {
    SocketLevels levels(folder, nodes, rank, kLongTimeout_s);
    for (const CommunicatorCase& test : cases()) test.run(levels.group.communicator());
  }));
}

TEST(HierarchicalGroup, NodesMayBeProcessesWhoseRanksAreThreads) {
  // Inside a node rows go from memory to memory, across by sockets.
  const Nodes nodes{4, 2};
  const testing::TemporaryFolder folder;
  expect_all_passed(testing::run_processes(nodes.size / nodes.per_node, [&](int node) {
    run_local_ranks(
        nodes.per_node,
        [&](Communicator& local) {
          const int place = local.rank(), rank = node * nodes.per_node + place;
          SocketGroup world({rank, nodes.size, make_folder(folder, "world"), kLongTimeout_s});
          SocketGroup across({node, 2, make_folder(folder, "across" + std::to_string(place)), kLongTimeout_s});
          HierarchicalGroup group(world.communicator(), {nodes.per_node, &local, &across.communicator()});
          for (const CommunicatorCase& test : cases()) test.run(group.communicator());
        },
        kLongTimeout_s);
  }));
}

/// Large rows to all others, so that a failure in the middle finds messages under way.
struct LargeCast {
  LargeCast(int rank, int size)
      : src(make_filled(DType::kFloat32, kRows, 1, 64, rank, 0)), dst(DType::kFloat32, kRows * size, 1, 64) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      exchange.sends.push_back({peer, {0, kRows}, kRows * rank});
      exchange.recvs.push_back({peer, {kRows * peer, kRows * (peer + 1)}, 0});
    }
  }
  std::vector<CastTensor> tensors() { return {{src, dst}}; }

  static constexpr int64_t kRows = 5000;
  HostTensor src, dst;
  Exchange exchange;
};

void cast_to_all(Communicator& comm, const char* label) {
  LargeCast cast(comm.rank(), comm.size());
  comm.group_cast(cast.exchange, cast.tensors(), label)->wait();
}

/// Four ranks on two nodes, of which rank 3 fails before its second cast; the others must throw `type` with `text`.
void expect_failure(const std::function<void(SocketLevels&)>& fail, const char* type, const char* text) {
  constexpr int kVictim = 3;
  const testing::TemporaryFolder folder;
  const auto outcomes = testing::run_processes(
      4,
      [&](int rank) {
        SocketLevels levels(folder, {4, 2}, rank, kShortTimeout_s);
        cast_to_all(levels.group.communicator(), "kv stage 1");
        if (rank == kVictim) {
          fail(levels);
          return;
        }
        cast_to_all(levels.group.communicator(), "kv stage 2");
      },
      30);
  for (const size_t rank : {size_t{0}, size_t{1}, size_t{2}}) {
    EXPECT_TRUE(outcomes[rank].ended) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].error_type, type) << "rank " << rank << ": " << outcomes[rank].error_text;
    EXPECT_THAT(outcomes[rank].error_text, HasSubstr(text)) << "rank " << rank;
  }
}

TEST(HierarchicalGroup, KilledRankIsNamedByRanksOfBothNodes) {
  expect_failure([](SocketLevels&) { raise(SIGKILL); }, "CommError",
                 "group_cast 'kv stage 2': rank 3 has ended without taking part");
}

TEST(HierarchicalGroup, StoppedRankIsNamedAtTheDeadlineByRanksOfBothNodes) {
  expect_failure([](SocketLevels&) { raise(SIGSTOP); }, "Timeout",
                 "group_cast 'kv stage 2': rank 3 did not take part within 2 s");
}

TEST(HierarchicalGroup, RankThatGivesUpTellsWhyToBothNodes) {
  expect_failure(
      [](SocketLevels& levels) {
        levels.group.communicator().abort("no luck");
        std::this_thread::sleep_for(std::chrono::seconds(3));
      },
      "CommError", "rank 3 gave up: no luck");
}

TEST(HierarchicalGroup, RankThatIsLostAmongTheStepsIsNamed) {
  // Rank 3 takes part in the meeting and then loses its node level, as if it died there: a peer notices in the middle.
  const testing::TemporaryFolder folder;
  const auto outcomes = testing::run_processes(
      4,
      [&](int rank) {
        SocketLevels levels(folder, {4, 2}, rank, kShortTimeout_s);
        if (rank == 3) levels.node.communicator().abort("cable pulled");
        cast_to_all(levels.group.communicator(), "kv stage 1");
        cast_to_all(levels.group.communicator(), "kv stage 2");
      },
      30);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_TRUE(outcomes[rank].ended) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].error_type, "CommError") << "rank " << rank << ": " << outcomes[rank].error_text;
    EXPECT_THAT(outcomes[rank].error_text, HasSubstr("cable pulled")) << "rank " << rank;
  }
}

TEST(HierarchicalGroup, RankThatStopsAmongTheStepsIsNamedByRanksOfBothNodes) {
  // Rank 3 comes to the meeting of the second cast and no further. Ranks 1 and 2 wait for it, rank 0 waits for those.
  const testing::TemporaryFolder folder;
  const auto outcomes = testing::run_processes(
      4,
      [&](int rank) {
        SocketLevels levels(folder, {4, 2}, rank, kShortTimeout_s);
        cast_to_all(levels.group.communicator(), "kv stage 1");
        if (rank == 3) {
          LargeCast cast(3, 4);
          const auto own = comm::make_group_cast({3, 4}, cast.exchange, cast.tensors(), "kv stage 2");
          const std::vector<char> bytes = comm::encode(own.signature, 4);
          comm::all_gather_bytes(levels.world.communicator(), bytes.data(), bytes.size(), "signatures");
          raise(SIGSTOP);
        }
        cast_to_all(levels.group.communicator(), "kv stage 2");
      },
      30);
  for (const size_t rank : {size_t{0}, size_t{1}, size_t{2}}) {
    EXPECT_TRUE(outcomes[rank].ended) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].error_type, "Timeout") << "rank " << rank << ": " << outcomes[rank].error_text;
    EXPECT_THAT(outcomes[rank].error_text, StartsWith("group_cast 'kv stage 2': rank 3 did not take part within 2 s"))
        << "rank " << rank;
  }
}

TEST(HierarchicalGroup, RefusesConfigsThatCannotBeOnAllRanks) {
  run_local_ranks(4, [](Communicator& world) {
    LocalGroup alone(1);
    const auto make = [&](const HierarchicalConfig& config) { HierarchicalGroup group(world, config); };
    EXPECT_THROW(make({.ranks_per_node = 3}), InvalidArgument);
    EXPECT_THROW(make({.ranks_per_node = 0}), InvalidArgument);
    EXPECT_THROW(make({.ranks_per_node = 2, .node = &alone.communicator(0)}), InvalidArgument);
    EXPECT_THROW(make({.ranks_per_node = 2, .across = &alone.communicator(0)}), InvalidArgument);
    EXPECT_THROW(make({.ranks_per_node = world.rank() == 0 ? 2 : 4}), InvalidArgument);
    make({.ranks_per_node = 2});
  });
}

}  // namespace
}  // namespace tangram
