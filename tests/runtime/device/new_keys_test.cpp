// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What another mask takes of ranks on GPUs before its first pass: counted by a runtime over host memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attn/sm80/sm80_backend.hpp"
#include "comm/nccl/shared_buffer.hpp"
#include "plan/program/arena.hpp"
#include "plan/program/emit.hpp"
#include "runtime/device/counted_ranks.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using counted::Counts;
using counted::Ranks;
using counted::Tensors;
using ::testing::HasSubstr;
using testing::runtime_counts;

Counts count_key(Ranks::Rank& rank, const std::shared_ptr<const Plan>& plan, std::optional<DistAttention>& key) {
  return rank.count([&] {
    key.emplace(plan, rank.communicator, rank.backend);
    Tensors tensors(*key);
    key->forward(tensors.forward());
    key->backward(tensors.backward());
  });
}

void expect_no_rendezvous(const Counts& counts, int size = 2) {
  EXPECT_EQ(counts.meetings, 0);
  EXPECT_EQ(counts.waits, 0);
  EXPECT_LE(counts.allocations, size) << "of lists, for many keys";
  EXPECT_EQ(counts.frees, 0);
  EXPECT_LE(counts.events, size) << "that of lists which were given back";
  EXPECT_EQ(counts.queries, 0) << "facts of the device are read once";
  EXPECT_LE(counts.event_calls, 12 * size) << "copies share events: 26 before";
  EXPECT_LE(counts.stream_waits, 6 * size) << "and waits of streams: 9 before";
}

// 13 to 16 meetings a key, and 40 to 246 waits over all ranks, as many allocations.
TEST(NewKeys, OfOneShapeHardlyEverMeetOrWait) {
  for (const int size : {2, 4}) {
    Ranks(size).run([&](Ranks::Rank& rank) {
      std::optional<DistAttention> key;
      int num_met = 0, num_waited = 0;
      for (unsigned seed = 1; seed <= 24; ++seed) {
        std::optional<DistAttention> next;
        const Counts counts = count_key(rank, counted::make_pack_plan(seed, size, 32768, 64), next);
        EXPECT_FALSE(next->met_peers());
        num_met += counts.meetings > 0 ? 1 : 0;
        if (counts.meetings == 0) expect_no_rendezvous(counts, size);
        const Counts end = rank.count([&] { key = std::move(next); });
        num_waited += end.waits + end.frees > 0 ? 1 : 0;
        EXPECT_EQ(end.meetings, 0);
        Tensors tensors(*key);
        const Counts again = rank.count([&] { key->forward(tensors.forward()); });
        EXPECT_EQ(again.meetings + again.waits + again.allocations, 0);
      }
      EXPECT_LE(num_met, 2) << "of the first, and of one that wants more than all before";
      EXPECT_LE(num_waited, num_met) << "the last one that used memory that was replaced";
    });
  }
}

// Keys come and go, eight at a time, as in training; some are used again.
TEST(NewKeys, ManyKeysTakeBoundedMemory) {
  constexpr int kSize = 2, kKeys = 400;
  Ranks(kSize).run([&](Ranks::Rank& rank) {
    std::vector<std::unique_ptr<DistAttention>> keys;
    std::mt19937 rng(1);
    int64_t late_meetings = 0, late_allocations = 0;
    for (unsigned seed = 1; seed <= kKeys; ++seed) {
      const auto plan = counted::make_pack_plan(seed, kSize, 8192, 4 + static_cast<int>(seed % 13));
      const Counts counts = rank.count([&] {
        keys.push_back(std::make_unique<DistAttention>(plan, rank.communicator, rank.backend));
        for (DistAttention* key : {keys.back().get(), keys[rng() % keys.size()].get()}) {
          Tensors tensors(*key);
          key->forward(tensors.forward());
          key->backward(tensors.backward());
        }
        if (keys.size() == 8) keys.erase(keys.begin() + static_cast<ptrdiff_t>(rng() % 8));
      });
      if (seed > kKeys / 2) {
        late_meetings += counts.meetings;
        late_allocations += counts.allocations;
      }
    }
    EXPECT_EQ(late_meetings, 0);
    EXPECT_LE(late_allocations, 2) << "of lists, for many keys";
    EXPECT_LT(runtime_counts().live_bytes, 64 << 20);
    rank.communicator.check();
  });
}

TEST(NewKeys, MemoryGrowsInTheMiddleAndEarlierKeysGoOn) {
  Ranks(2).run([&](Ranks::Rank& rank) {
    std::optional<DistAttention> small, large, next;
    count_key(rank, counted::make_pack_plan(1, 2, 4096, 8), small);
    EXPECT_GT(count_key(rank, counted::make_pack_plan(2, 2, 32768, 8), large).meetings, 0);
    Tensors tensors(*small);
    const Counts again = rank.count([&] {
      small->forward(tensors.forward());
      small->backward(tensors.backward());
    });
    expect_no_rendezvous(again);
    expect_no_rendezvous(count_key(rank, counted::make_pack_plan(3, 2, 32768, 8), next));
    expect_no_rendezvous(count_key(rank, counted::make_pack_plan(4, 2, 4096, 8), next));
  });
}

constexpr int64_t round_up_to(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Bytes of one slot; each tensor is aligned to 1 KiB.
struct SlotBytes {
  int64_t recv_buffers = 0, returns = 0;
};
/// What the plan says that a rank of a pack receives: rows of K and V in bfloat16, and of their gradients in float32.
SlotBytes slot_bytes(const Plan& plan, int rank) {
  const RankPlan& of = plan.ranks()[static_cast<size_t>(rank)];
  int64_t returned = 0;
  for (const Stage& stage : of.backward) returned += stage.exchange.rows_sent();
  const int64_t row = int64_t{counted::kHeads.num_heads_kv} * counted::kHeads.head_dim;
  return {2 * round_up_to(of.kv_rows * row * 2, 1024), 2 * round_up_to(returned * row * 4, 1024)};
}

/// Runs `body` over communicators of exact memory.
void run_exact(int size, const std::function<void(Ranks::Rank&)>& body) {
  Ranks(size).run([&](Ranks::Rank& rank) {
    const auto communicator = make_device_communicator(rank.control, {.timeout_s = 20, .exact_memory = true});
    Ranks::Rank exact{rank.control, *communicator, rank.backend, rank.count};
    body(exact);
    rank.control.barrier("all have used what others map");
  });
}

TEST(NewKeys, ExactMemoryIsWhatTheLayoutsOfTheLargestMasksSay) {
  for (const int size : {2, 4}) {
    run_exact(size, [&](Ranks::Rank& rank) {
      const int64_t before = runtime_counts().mapped_bytes;
      SlotBytes most;
      std::vector<std::shared_ptr<const Plan>> plans;
      std::optional<DistAttention> key;
      for (unsigned seed = 1; seed <= 6; ++seed) {
        plans.push_back(counted::make_pack_plan(seed, size, 32768, 64));
        key.reset();
        count_key(rank, plans.back(), key);
        const SlotBytes wanted = slot_bytes(*plans.back(), rank.control.rank());
        most = {std::max(most.recv_buffers, wanted.recv_buffers), std::max(most.returns, wanted.returns)};
        EXPECT_EQ(rank.communicator.shared_bytes(), 2 * most.recv_buffers + 2 * most.returns) << "seed " << seed;
      }
      for (const auto& plan : plans) expect_no_rendezvous(count_key(rank, plan, key), size);
      EXPECT_EQ(rank.communicator.shared_bytes(), 2 * most.recv_buffers + 2 * most.returns);
      // All ranks together: that, flags and whole pages.
      float all = static_cast<float>((most.recv_buffers + most.returns) / 512);
      rank.control.all_reduce({&all, 1}, ReduceOp::kSum, "KiB of all ranks");
      const int64_t flags = runtime_counts().mapped_bytes - before - static_cast<int64_t>(all) * 1024;
      EXPECT_GT(flags, 0);
      EXPECT_LE(flags, size * 24 << 10);
    });
  }
}

// Regions of strategies lie alike on all ranks: a ring has three blocks where ranks push, at any number of ranks.
TEST(NewKeys, ExactMemoryOfARingIsItsArena) {
  DistAttnConfig config;
  config.cp_size = 4;
  config.heads = counted::kHeads;
  config.strategy.name = Strategy::kRing;
  const auto plan = std::make_shared<const Plan>(make_plan(causal_mask(4096, 4096), config));
  run_exact(4, [&](Ranks::Rank& rank) {
    const DistAttention key(plan, rank.communicator, rank.backend);
    const ProgramTarget target{.ring_buffer_steps = 1};
    CallShape call = CallShape::with_results(DType::kBFloat16, DType::kFloat32);
    int64_t arena = lay_out_arena(forward_program(*plan, rank.control.rank(), call, target)).arena_bytes;
    arena =
        std::max(arena, lay_out_arena(backward_program(*plan, rank.control.rank(), call, target, false)).arena_bytes);
    EXPECT_EQ(rank.communicator.shared_bytes(), 2 * arena);
  });
}

// What passes over NCCL share.
TEST(NewKeys, ExactBuffersAreWhatTheLargestPassWants) {
  comm::SharedBuffer exact(true), roomy(false);
  for (const size_t wanted : {0, 3000, 1000, 40000}) {
    exact.get(wanted);
    roomy.get(wanted);
    EXPECT_EQ(exact.bytes(), wanted == 1000 ? 3000 : static_cast<int64_t>(wanted));
    EXPECT_EQ(roomy.bytes(), wanted == 40000 ? 65536 : 16384);
  }
}

// Slots that are kept are a key's own, and made together.
TEST(NewKeys, KeysThatKeepRowsMeet) {
  Ranks(2).run([&](Ranks::Rank& rank) {
    for (unsigned seed = 1; seed < 4; ++seed) {
      const auto plan =
          counted::make_pack_plan(seed, 2, 8192, 4, {.num_stages_fwd = 2, .num_stages_bwd = 2, .keep_remote_kv = true});
      std::optional<DistAttention> key;
      const Counts counts = rank.count([&] { key.emplace(plan, rank.communicator, rank.backend); });
      EXPECT_TRUE(key->met_peers());
      EXPECT_GT(counts.meetings, 0);
    }
  });
}

/// Calls until they throw what ranks that differ find out.
std::string error_of(Ranks::Rank& rank, const std::function<std::unique_ptr<DistAttention>()>& make) {
  try {
    const std::unique_ptr<DistAttention> key = make();
    Tensors tensors(*key);
    for (int i = 0; i < 5000; ++i) {
      key->forward(tensors.forward());
      rank.communicator.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

/// That of the second key, which `make` makes.
void expect_error(int size, const std::string& text,
                  const std::function<std::unique_ptr<DistAttention>(Ranks::Rank&)>& make) {
  Ranks(size).run([&](Ranks::Rank& rank) {
    std::optional<DistAttention> first;
    count_key(rank, counted::make_pack_plan(1, size, 8192, 8), first);
    // Ranks come to the key at different times.
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank.control.rank()));
    EXPECT_THAT(error_of(rank, [&] { return make(rank); }), HasSubstr(text)) << "rank " << rank.control.rank();
    EXPECT_THROW(rank.communicator.check(), InvalidArgument) << "repeated";
  });
}

std::unique_ptr<DistAttention> make_key(Ranks::Rank& rank, const std::shared_ptr<const Plan>& plan,
                                        const DistAttentionOptions& options = {}) {
  return std::make_unique<DistAttention>(plan, rank.communicator, rank.backend, options);
}

TEST(NewKeys, RanksWithDifferentMasksAreAllToldSo) {
  for (const int size : {2, 4}) {
    expect_error(size, "masks differ (rank ", [&](Ranks::Rank& rank) {
      return make_key(rank, counted::make_pack_plan(rank.control.rank() == 1 ? 3 : 2, size, 8192, 8));
    });
  }
}

// They meet, so that no rank has begun what others wait for.
TEST(NewKeys, UnderTheSanityCheckRanksThatDifferGoOn) {
  Ranks(2, true).run([&](Ranks::Rank& rank) {
    const auto plan_of = [](unsigned seed) { return counted::make_pack_plan(seed, 2, 8192, 8); };
    EXPECT_EQ(rank.communicator.agreement(), nullptr);
    try {
      make_key(rank, plan_of(rank.control.rank() == 0 ? 2 : 3));
      ADD_FAILURE() << "accepted ranks with different masks";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("masks differ (rank 0: "));
    }
    EXPECT_TRUE(make_key(rank, plan_of(2))->met_peers());
    EXPECT_NO_THROW(rank.communicator.check());
  });
}

TEST(NewKeys, AMaskThatNeedsMoreMemoryOnOneRankAlone) {
  for (const int larger : {0, 1}) {
    expect_error(2, "differ (rank 0: ", [&](Ranks::Rank& rank) {
      return make_key(rank, counted::make_pack_plan(2, 2, rank.control.rank() == larger ? 65536 : 8192, 8));
    });
  }
}

TEST(NewKeys, OptionsThatDiffer) {
  expect_error(2, "options and backends must be alike on every rank (got rank 0: ", [&](Ranks::Rank& rank) {
    return make_key(rank, counted::make_pack_plan(2, 2, 8192, 8), {.with_backward = rank.control.rank() == 0});
  });
}

// GPUs of different kinds: programs depend on the backend.
TEST(NewKeys, RanksWithDifferentBackendsAreToldTheirNames) {
  const Sm80Backend other;
  const auto make = [&](Ranks::Rank& rank) {
    const auto plan = counted::make_pack_plan(2, 2, 8192, 8);
    if (rank.control.rank() == 0) return make_key(rank, plan);
    return std::make_unique<DistAttention>(plan, rank.communicator, other);
  };
  expect_error(
      2, "must use the same backend, pass one that all GPUs of the group have (got rank 0: sm90; rank 1: sm80)", make);
  Ranks(2, true).run([&](Ranks::Rank& rank) {  // who meet
    EXPECT_THAT(error_of(rank, [&] { return make(rank); }), HasSubstr("backend sm90"));
  });
}

// An A100 beside an RTX 4090: other tiles, and the same programs.
TEST(NewKeys, GpusOfOneBackendMayHaveDifferentTiles) {
  const Sm80Backend large;
  setenv("TANGRAM_SM80_SHARED_KB", "99", 1);
  const Sm80Backend small;
  unsetenv("TANGRAM_SM80_SHARED_KB");
  const AttnShape shape{128, 128, 4, 1, 128, 128, DType::kBFloat16};
  const TileShape of_large = large.kernel_table(shape).backward, of_small = small.kernel_table(shape).backward;
  ASSERT_NE(std::pair(of_large.block_m, of_large.block_n), std::pair(of_small.block_m, of_small.block_n));
  Ranks(2).run([&](Ranks::Rank& rank) {
    const AttnBackend& own = rank.control.rank() == 0 ? large : small;
    const DistAttention key(counted::make_pack_plan(2, 2, 8192, 8), rank.communicator, own);
    EXPECT_NO_THROW(rank.communicator.check());
  });
}

TEST(NewKeys, UnsupportedDtypes) {
  Ranks(2).run([](Ranks::Rank& rank) {
    const auto error_with = [&](const DistAttentionOptions& options) {
      return error_of(rank, [&] { return make_key(rank, counted::make_pack_plan(2, 2, 8192, 8), options); });
    };
    EXPECT_THAT(error_with({.result_dtype = DType::kFloat16}), HasSubstr("result_dtype must be float32 or that of"));
    EXPECT_THAT(error_with({.grad_dtype = DType::kFloat16}), HasSubstr("grad_dtype must be float32 or that of"));
  });
}

TEST(NewKeys, ARankThatRefusesItsPart) {
  expect_error(2, "plan must be for as many ranks as the communicator has (got ", [&](Ranks::Rank& rank) {
    return make_key(rank, counted::make_pack_plan(2, rank.control.rank() == 0 ? 2 : 4, 8192, 8));
  });
}

TEST(NewKeys, ARankThatDoesNotComeIsNamedWhereMemoryMustGrow) {
  Ranks(2).run(
      [&](Ranks::Rank& rank) {
        if (rank.control.rank() == 0) {
          try {
            make_key(rank, counted::make_pack_plan(1, 2, 8192, 8));
            ADD_FAILURE() << "accepted a rank that never came";
          } catch (const Timeout& error) {
            EXPECT_THAT(error.what(), HasSubstr("rank 1 must come to the same call within 2 s"));
          }
        } else {
          std::this_thread::sleep_for(std::chrono::seconds(3));
        }
      },
      2);
}

// `TANGRAM_PRINT_COUNTS=RANKS,ROWS,DOCUMENTS[,KEYS]` prints what keys take, and the medians of what they take the host.
TEST(NewKeys, PrintCounts) {
  const char* const wanted = std::getenv("TANGRAM_PRINT_COUNTS");
  int size = 0, rows = 0, documents = 0, keys = 11;
  if (wanted == nullptr || std::sscanf(wanted, "%d,%d,%d,%d", &size, &rows, &documents, &keys) < 3) GTEST_SKIP();
  Ranks(size).run([&](Ranks::Rank& rank) {
    std::map<std::string, std::vector<double>> host_us;
    const auto print = [&](const char* what, const Counts& counts) {
      if (rank.control.rank() != 0) return;
      host_us[what].push_back(counts.host_us);
      std::printf(
          "%-9s meetings %lld waits %lld allocations %lld frees %lld copies %lld events %lld, "
          "%lld calls, %lld waits: %.0f us\n",
          what, static_cast<long long>(counts.meetings), static_cast<long long>(counts.waits),
          static_cast<long long>(counts.allocations), static_cast<long long>(counts.frees),
          static_cast<long long>(counts.copies), static_cast<long long>(counts.events),
          static_cast<long long>(counts.event_calls), static_cast<long long>(counts.stream_waits), counts.host_us);
    };
    for (int seed = 1; seed <= keys; ++seed) {
      const auto plan = counted::make_pack_plan(static_cast<unsigned>(seed), size, rows, documents);
      std::optional<DistAttention> key;
      print("key", rank.count([&] { key.emplace(plan, rank.communicator, rank.backend); }));
      Tensors tensors(*key);
      print("forward", rank.count([&] { key->forward(tensors.forward()); }));
      print("backward", rank.count([&] { key->backward(tensors.backward()); }));
      print("end", rank.count([&] { key.reset(); }));
    }
    for (auto& [what, times] : host_us) {
      std::sort(times.begin(), times.end());
      std::printf("median %s: %.1f us, fastest tenth %.1f\n", what.c_str(), times[times.size() / 2],
                  times[times.size() / 10]);
    }
  });
}

}  // namespace
}  // namespace tangram
