// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/pass_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/device/failure_text.hpp"
#include "comm/device/opened_pass.hpp"
#include "comm/device/pass_check.hpp"
#include "comm/device/slot_pool.hpp"
#include "comm/exchange_tables.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"

namespace tangram::comm {
namespace {

using tangram::testing::make_random_exchange;
using tangram::testing::RandomExchange;
using ::testing::HasSubstr;

constexpr int kStages = 3;

/// Random passes of all ranks: `kStages` tables over buffers that follow each other.
std::vector<DevicePassSpec> random_specs(int size, uint64_t seed) {
  std::vector<DevicePassSpec> specs(static_cast<size_t>(size));
  int64_t shard_rows = 0;
  std::vector<int64_t> buffer_rows(static_cast<size_t>(size), 0);
  for (uint64_t stage = 0; stage < kStages; ++stage) {
    RandomExchange random = make_random_exchange(size, seed * 100 + stage);
    shard_rows = std::max(shard_rows, random.shard_rows);
    for (size_t rank = 0; rank < specs.size(); ++rank) {
      Exchange exchange = random.ranks[rank];
      for (RowCopy& copy : exchange.recvs) copy.rows = copy.rows.shifted(buffer_rows[rank]);
      for (RowCopy& copy : exchange.sends) copy.peer_row += buffer_rows[static_cast<size_t>(copy.peer)];
      specs[rank].casts.push_back(exchange);
    }
    for (size_t rank = 0; rank < specs.size(); ++rank) buffer_rows[rank] += random.buffer_rows[rank];
  }
  for (size_t rank = 0; rank < specs.size(); ++rank) {
    specs[rank].label = "random";
    specs[rank].reduces = specs[rank].casts;
    specs[rank].recv_buffers = {{buffer_rows[rank], 2, 8, DType::kBFloat16}};
    specs[rank].returns = {{buffer_rows[rank], shard_rows, 2, 8, DType::kFloat32, DType::kFloat32}};
  }
  return specs;
}

struct Layouts {
  std::vector<DevicePassSpec> specs;
  std::vector<PassLayout> ranks;
};

Layouts random_layouts(int size, uint64_t seed) {
  Layouts layouts{random_specs(size, seed), {}};
  std::vector<std::vector<int64_t>> begins;
  for (int rank = 0; rank < size; ++rank) {
    layouts.ranks.push_back(make_pass_layout({rank, size}, layouts.specs[static_cast<size_t>(rank)]));
    begins.push_back(layouts.ranks.back().return_begin);
  }
  for (int rank = 0; rank < size; ++rank) place_returns(layouts.ranks[static_cast<size_t>(rank)], {rank, size}, begins);
  return layouts;
}

TEST(PassLayout, CastMovesEveryRowOfTheTablesOnceInFewerPieces) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    const Layouts layouts = random_layouts(size, seed);
    for (int rank = 0; rank < size; ++rank) {
      const PassLayout& layout = layouts.ranks[static_cast<size_t>(rank)];
      for (size_t stage = 0; stage < kStages; ++stage) {
        const Exchange& exchange = layouts.specs[static_cast<size_t>(rank)].casts[stage];
        std::vector<std::array<int64_t, 3>> expected, got;
        for (const RowCopy& copy : exchange.sends) {
          for (int64_t i = 0; i < copy.rows.size(); ++i) {
            expected.push_back({copy.peer, copy.rows.begin + i, copy.peer_row + i});
          }
        }
        size_t num_pieces = 0;
        for (const PeerPieces& peer : layout.casts[stage]) {
          num_pieces += peer.pieces.size();
          for (const Piece& piece : peer.pieces) {
            for (int64_t i = 0; i < piece.rows; ++i) got.push_back({peer.peer, piece.from + i, piece.to + i});
          }
        }
        EXPECT_THAT(got, ::testing::UnorderedElementsAreArray(expected));
        EXPECT_LE(num_pieces, exchange.sends.size());
      }
    }
  }
}

TEST(PassLayout, NeighbouringPiecesAreOneCopy) {
  DevicePassSpec spec;
  spec.recv_buffers = {{100, 1, 8, DType::kBFloat16}};
  spec.casts = {{{{1, {0, 4}, 10}, {1, {4, 9}, 14}, {1, {9, 12}, 30}}, {}}};
  const PassLayout layout = make_pass_layout({0, 2}, spec);
  ASSERT_EQ(layout.casts[0].size(), 1u);
  EXPECT_THAT(layout.casts[0][0].pieces, ::testing::ElementsAre(Piece{0, 10, 9}, Piece{9, 30, 3}));
  EXPECT_EQ(layout.casts[0][0].rows, 12);
  EXPECT_EQ(layout.min_source_rows(0), 12);
  EXPECT_EQ(layout.min_source_rows(1), 0);
  spec.own_rows = {{{50, 60}, 8}};
  EXPECT_EQ(make_pass_layout({0, 2}, spec).own_source_rows, 18);
}

TEST(PassLayout, EachRankServesPeersFromAnotherOneOn) {
  std::vector<RowCopy> sends;
  for (const int peer : {0, 1, 3}) sends.push_back({peer, {0, 1}, 0});
  DevicePassSpec spec;
  spec.recv_buffers = {{100, 1, 8, DType::kBFloat16}};
  spec.casts = {{sends, sends}};
  const PassLayout layout = make_pass_layout({2, 4}, spec);
  std::vector<int> targets;
  for (const PeerPieces& peer : layout.casts[0]) targets.push_back(peer.peer);
  EXPECT_THAT(targets, ::testing::ElementsAre(3, 0, 1));
  EXPECT_THAT(layout.cast_sources[0], ::testing::ElementsAre(1, 0, 3));
}

/// Sends every partial row through the layout and merges by the table; compares with sums made from the tables alone.
TEST(PassLayout, ReturnsMergeToTheSumsOfTheTablesInRankOrder) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    const Layouts layouts = random_layouts(size, seed);
    const size_t num_ranks = static_cast<size_t>(size);
    // A partial row is known by its rank and number.
    using Term = std::pair<int, int64_t>;
    std::vector<std::vector<Term>> areas(num_ranks);
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      areas[rank].assign(static_cast<size_t>(layouts.ranks[rank].return_rows), {-1, -1});
    }
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      for (const auto& stage : layouts.ranks[rank].returns) {
        for (const PeerPieces& owner : stage) {
          for (const Piece& piece : owner.pieces) {
            for (int64_t i = 0; i < piece.rows; ++i) {
              Term& place = areas[static_cast<size_t>(owner.peer)].at(static_cast<size_t>(piece.to + i));
              ASSERT_EQ(place.first, -1) << "two rows at one place";
              place = {static_cast<int>(rank), piece.from + i};
            }
          }
        }
      }
    }
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      const MergeTable& merge = layouts.ranks[rank].merge;
      std::vector<std::vector<Term>> expected(merge.num_before.size());
      for (const Exchange& exchange : layouts.specs[rank].reduces) {
        for (const RowCopy& copy : exchange.sends) {
          for (int64_t i = 0; i < copy.rows.size(); ++i) {
            expected[static_cast<size_t>(copy.rows.begin + i)].push_back({copy.peer, copy.peer_row + i});
          }
        }
      }
      for (size_t row = 0; row < expected.size(); ++row) {
        std::vector<Term> got;
        int num_before = 0;
        for (int32_t i = merge.begin[row]; i < merge.begin[row + 1]; ++i) {
          got.push_back(areas[rank].at(static_cast<size_t>(merge.entries[static_cast<size_t>(i)])));
          if (got.back().first < static_cast<int>(rank)) ++num_before;
          if (got.size() > 1) {
            EXPECT_LE(got[got.size() - 2].first, got.back().first);
          }
        }
        EXPECT_THAT(got, ::testing::UnorderedElementsAreArray(expected[row])) << "row " << row;
        EXPECT_EQ(num_before, merge.num_before[row]);
      }
    }
  }
}

// The table of the rows that are merged says of each what the table of all rows says.
TEST(PassLayout, RowsThatAreLeftAreNotInTheTable) {
  constexpr int kSize = 4;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Layouts layouts = random_layouts(kSize, seed);
    for (int rank = 0; rank < kSize; ++rank) {
      DevicePassSpec spec = layouts.specs[static_cast<size_t>(rank)];
      const MergeTable& all = layouts.ranks[static_cast<size_t>(rank)].merge;
      std::vector<Range> left, absent;  // of every other row without a peer's, one by one; of every third row
      for (int64_t row = 0; row + 1 < std::ssize(all.begin); ++row) {
        const auto idx = static_cast<size_t>(row);
        if (row % 2 == 0 && all.begin[idx] == all.begin[idx + 1]) left.push_back({row, row + 1});
        if (row % 3 == 0) absent.push_back({row, row + 1});
      }
      spec.leaves_rows = true;
      const Caller caller{rank, kSize};
      const PassLayout layout = make_pass_layout(caller, spec);
      EXPECT_TRUE(layout.merge.begin.empty());
      const MergedRows merged = merge_table_without(caller, spec, layout, left, absent);
      EXPECT_EQ(merged.rows.size() + left.size() + 1, all.begin.size());
      ASSERT_EQ(merged.table.begin.size(), merged.rows.size() + 1);
      for (size_t i = 0; i < merged.rows.size(); ++i) {
        const auto row = static_cast<size_t>(merged.rows[i]);
        const auto entries = [](const MergeTable& table, size_t at) {
          return std::vector<int32_t>(table.entries.begin() + table.begin[at],
                                      table.entries.begin() + table.begin[at + 1]);
        };
        EXPECT_EQ(entries(merged.table, i), entries(all, row));
        EXPECT_EQ(merged.table.num_before[i], row % 3 == 0 ? ~all.num_before[row] : all.num_before[row]);
      }
      for (int64_t row = 0; row + 1 < std::ssize(all.begin); ++row) {
        if (all.begin[static_cast<size_t>(row)] == all.begin[static_cast<size_t>(row) + 1]) continue;
        const Range returned{row, row + 1};
        EXPECT_THROW(merge_table_without(caller, spec, layout, {&returned, 1}, {}), InvalidArgument);
        break;
      }
    }
  }
}

TEST(PassCheck, AcceptsPassesThatFitAndRefusesThoseThatDoNotOnEveryRank) {
  const std::vector<DevicePassSpec> specs = random_specs(3, 7);
  run_local_ranks(3, [&](Communicator& comm) {
    DevicePassSpec spec = specs[static_cast<size_t>(comm.rank())];
    check_pass_spec(comm, spec, -1);

    const auto expect_refused = [&](const DevicePassSpec& bad, const char* text) {
      try {
        check_pass_spec(comm, bad, -1);
        ADD_FAILURE() << "rank " << comm.rank() << " accepted: " << text;
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    DevicePassSpec bad = spec;
    if (comm.rank() == 1) bad.num_slots = 5;
    expect_refused(bad, "stages, tensors and slots of pass 'random'");
    bad = spec;
    if (comm.rank() == 2) bad.recv_buffers[0].dim = 3;
    expect_refused(bad, "multiples of 16 bytes");
    bad = spec;
    bad.returns[0].heads = 1, bad.returns[0].dim = 4;  // 16 bytes: kernels would sum into the next row
    expect_refused(bad, "multiples of 8 elements");
    bad = spec;
    if (comm.rank() == 0) bad.casts[1].recvs.clear();
    expect_refused(bad, "random stage 1");
    check_pass_spec(comm, spec, -1);  // still usable
  });
}

TEST(SlotPool, TakesFreeSlotsInTurnAndLeavesKeptOnesAlone) {
  SlotPool pool(3);
  EXPECT_EQ(pool.take("a"), 0);
  pool.keep(0);
  EXPECT_EQ(pool.take("a"), 1);
  pool.release(1);
  EXPECT_EQ(pool.take("a"), 2);
  pool.release(2);
  EXPECT_EQ(pool.take("a"), 1);
  EXPECT_EQ(pool.take("a"), 2);
  EXPECT_THROW(pool.take("a"), InvalidArgument);
  EXPECT_THROW(pool.take_kept(1, "a"), InvalidArgument);
  pool.take_kept(0, "a");
  EXPECT_THROW(pool.take_kept(0, "a"), InvalidArgument);
  pool.release(0);
  EXPECT_EQ(pool.take("a"), 0);
}

TEST(EpochState, RefusesCallsOutOfOrder) {
  DevicePassSpec spec;
  spec.label = "p";
  spec.casts.resize(2);
  spec.reduces.resize(1);
  EpochState state(spec);
  EXPECT_THROW(state.cast(0), InvalidArgument);
  state.begin();
  EXPECT_THROW(state.begin(), InvalidArgument);
  EXPECT_THROW(state.wait_group_cast(0), InvalidArgument);
  state.cast(0);
  state.wait_group_cast(0);
  EXPECT_THROW(state.cast(0), InvalidArgument);
  EXPECT_THROW(state.cast(2), InvalidArgument);
  EXPECT_THROW(state.end(), InvalidArgument);
  state.cast(1);
  EXPECT_THROW(state.finish_reduce(), InvalidArgument);
  state.reduce(0);
  EXPECT_THROW(state.end(), InvalidArgument);
  state.finish_reduce();
  EXPECT_THROW(state.finish_reduce(), InvalidArgument);
  state.end();
  EXPECT_FALSE(state.is_open());
  state.begin();
  state.cast(0);  // a new epoch
}

TEST(EpochState, RefusesCreditsOutOfOrder) {
  DevicePassSpec spec;
  spec.label = "p";
  spec.casts.resize(3);
  spec.credited = {1, 2};
  EpochState state(spec);
  EXPECT_THROW(state.release_credit(1), InvalidArgument);
  state.begin();
  EXPECT_THROW(state.release_credit(0), InvalidArgument) << "which is not credited";
  EXPECT_THROW(state.cast(1), InvalidArgument) << "which was not given";
  state.cast(0);
  EXPECT_THROW(state.wait_send(0), InvalidArgument) << "for which the pass is not prepared";
  state.release_credit(2);
  EXPECT_THROW(state.release_credit(2), InvalidArgument);
  state.cast(2);
}

TEST(WaitFailure, SurvivesPackingAndReadsWell) {
  using cuda::WaitFailure;
  using cuda::WaitKind;
  const WaitFailure failure{WaitKind::kReadyFlag, 63, 5, 511, 65535, 4095};
  EXPECT_EQ(cuda::unpack(cuda::pack(failure)), failure);
  const auto text = [](const WaitFailure& f) { return failure_text(f, {"forward", "backward"}, 2, "no luck", {}); };
  const auto detail = [](WaitKind kind) { return static_cast<int>(kind); };
  EXPECT_EQ(text({WaitKind::kReadyFlag, 0, 3, 2, 1, 0}),
            "group_cast 'backward' stage 2: rank 3 did not take part within 2 s (noticed by rank 0)");
  EXPECT_EQ(text({WaitKind::kCredit, 0, 3, 2, 1, 0}),
            "group_cast 'backward' stage 2 (memory that it reuses): rank 3 did not take part within 2 s (noticed by "
            "rank 0)");
  EXPECT_EQ(text({WaitKind::kReturn, 0, 3, 2, 1, detail(WaitKind::kEnded)}),
            "group_reduce 'backward' stage 2: rank 3 has ended (noticed by rank 0)");
  EXPECT_EQ(text({WaitKind::kReadyFlag, 0, 3, 0, 0, detail(WaitKind::kHost)}),
            "group_cast 'forward' stage 0: rank 3 gave up: no luck");
  EXPECT_EQ(text({WaitKind::kEnded, 1, 2, 0, 0, 0}), "rank 2 has ended (noticed by rank 1)");
  EXPECT_EQ(text({WaitKind::kOrder, 1, 2, 0, 0, 1}),
            "begin 'forward': all ranks must begin the same passes in the same order (rank 1 began 'forward', rank 2 "
            "'backward')");
  EXPECT_THROW(throw_failure({WaitKind::kReturn, 0, 1, 0, 0, 0}, "x"), Timeout);
  EXPECT_THROW(throw_failure({WaitKind::kReturn, 0, 1, 0, 0, detail(WaitKind::kEnded)}, "x"), CommError);
  EXPECT_THROW(throw_failure({WaitKind::kSilent, 0, 1, 0, 0, 0}, "x"), Timeout);
  EXPECT_THROW(throw_failure({WaitKind::kHost, 0, 1, 0, 0, 0}, "x"), CommError);
  const WaitFailure call = cuda::call_failure(63, 5, {0x7ffff, 0x4a5a5});
  EXPECT_EQ(cuda::unpack(cuda::pack(call)), call);
  EXPECT_EQ(cuda::call_tags(call).reporter, 0x7ffffu);
  EXPECT_EQ(cuda::call_tags(call).peer, 0x4a5a5u);
  EXPECT_EQ(failure_text(call, {}, 2, "masks differ", {}),
            "attention: every rank must make the same call: masks differ");
  EXPECT_THROW(throw_failure(call, "x"), InvalidArgument);
}

TEST(WaitFailure, NamesTheNodeOfTheRankToBlame) {
  using cuda::WaitFailure;
  using cuda::WaitKind;
  const RankNames names{{4, 12}, {"a", "b"}};
  const auto text = [&](const WaitFailure& f) { return failure_text(f, {"forward"}, 2, "no luck", names); };
  EXPECT_EQ(text({WaitKind::kEnded, 0, 1, 0, 0, 0}), "rank 12 (node b) has ended (noticed by rank 4)");
  EXPECT_EQ(text({WaitKind::kUnreachable, 1, 0, 0, 0, 0}),
            "rank 4 (node a) cannot be reached: its node or the network to it is lost (noticed by rank 12)");
  EXPECT_EQ(text({WaitKind::kReadyFlag, 0, 1, 3, 0, static_cast<int>(WaitKind::kUnreachable)}),
            "group_cast 'forward' stage 3: rank 12 (node b) cannot be reached: its node or the network to it is lost "
            "(noticed by rank 4)");
  EXPECT_THROW(throw_failure({WaitKind::kUnreachable, 0, 1, 0, 0, 0}, "x"), CommError);
}

TEST(OpenedPass, DiffersByCallThenByNumber) {
  using cuda::WaitKind;
  const OpenedPass own{0xfffffffe, 0x7ffff, 4095};
  const OpenedPass same = unpack_opened(pack(own));
  EXPECT_EQ(disagreement(own, same, 0, 1).kind, WaitKind::kNone);
  const auto kind = [&](const OpenedPass& other) { return disagreement(own, other, 0, 1).kind; };
  EXPECT_EQ(kind({0xfffffffd, 3, 4}), WaitKind::kNone) << "of an earlier epoch";
  EXPECT_EQ(kind({own.epoch, 3, own.pass}), WaitKind::kCall);
  EXPECT_EQ(kind({own.epoch, 3, 4}), WaitKind::kCall);
  EXPECT_EQ(kind({own.epoch, 0, own.pass}), WaitKind::kNone) << "a call that says nothing";
  EXPECT_EQ(kind({own.epoch, own.tag, 4}), WaitKind::kOrder);
}

}  // namespace
}  // namespace tangram::comm
