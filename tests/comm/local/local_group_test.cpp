// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/local_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator_suite.hpp"
#include "comm/exchange_tables.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/log.hpp"

namespace tangram {
namespace {

using testing::CommunicatorCase;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr double kShortTimeout = 0.3;  // where it does not matter who comes to what in time
constexpr double kTimeout = 2;         // long enough for threads to start on a busy machine
constexpr double kLongTimeout = 60;    // never reached when errors move as they must

struct SuiteParam {
  CommunicatorCase test;
  int size;
};

class LocalSuite : public ::testing::TestWithParam<SuiteParam> {};

TEST_P(LocalSuite, Passes) { run_local_ranks(GetParam().size, GetParam().test.run, kLongTimeout); }

std::vector<SuiteParam> suite_params() {
  std::vector<SuiteParam> params;
  for (const CommunicatorCase& test : testing::communicator_cases()) {
    for (const int size : {1, 2, 3, 4, 8}) params.push_back({test, size});
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Local, LocalSuite, ::testing::ValuesIn(suite_params()), [](const auto& param_info) {
  return std::string(param_info.param.test.name) + "On" + std::to_string(param_info.param.size);
});

/// What each rank threw, empty where it returned; ranks run as in run_local_ranks but keep their errors.
template <class Error, class Main>
std::vector<std::string> errors_of_ranks(int size, double timeout_s, Main rank_main) {
  LocalGroup group(size, timeout_s);
  std::vector<std::string> texts(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        rank_main(group, group.communicator(rank));
      } catch (const Error& error) {
        texts[static_cast<size_t>(rank)] = error.what();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw another type: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

TEST(LocalGroup, RankThatNeverArrivesEndsInTimeoutThatNamesItOnTheOthers) {
  const auto begin = Clock::now();
  const auto texts = errors_of_ranks<Timeout>(4, kTimeout, [](LocalGroup&, Communicator& comm) {
    comm.barrier("start");
    if (comm.rank() != 2) comm.barrier("kv stage 1");
  });
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - begin).count();
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(texts[static_cast<size_t>(rank)],
                HasSubstr("barrier 'kv stage 1': rank 2 did not take part within 2 s"));
  }
  EXPECT_EQ(texts[2], "");
  EXPECT_GE(elapsed_s, kTimeout);
  EXPECT_LT(elapsed_s, kTimeout + 20);  // generous: the machine may be busy, but nothing may hang
}

TEST(LocalGroup, BrokenCommunicatorKeepsThrowingTheSameError) {
  errors_of_ranks<Timeout>(2, kShortTimeout, [](LocalGroup&, Communicator& comm) {
    if (comm.rank() == 1) return;
    EXPECT_THROW(comm.barrier("first"), Timeout);
    EXPECT_THROW(comm.barrier("second"), Timeout);
  });
}

TEST(LocalGroup, RankThatLeavesEndsTheOthersWaitAtOnce) {
  const auto begin = Clock::now();
  const auto texts = errors_of_ranks<CommError>(3, kLongTimeout, [](LocalGroup& group, Communicator& comm) {
    if (comm.rank() == 1) {
      group.leave(1);
    } else {
      comm.barrier("end");
    }
  });
  EXPECT_THAT(texts[0], HasSubstr("barrier 'end': rank 1 ended without taking part"));
  EXPECT_EQ(texts[2], texts[0]);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(LocalGroup, MemoryOfARankThatGaveUpIsNotReadAnyMore) {
  // Under ASan this is a use after free unless the group keeps the late rank from reading.
  errors_of_ranks<Timeout>(2, kShortTimeout, [](LocalGroup&, Communicator& comm) {
    const int peer = 1 - comm.rank();
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(3 * kShortTimeout));
    const HostTensor src = testing::make_filled(DType::kFloat32, 4096, 4, 64, comm.rank(), 0);
    HostTensor dst(DType::kFloat32, 4096, 4, 64);
    const CastTensor tensors[] = {{src, dst}};
    const Exchange exchange{{{peer, {0, 4096}, 0}}, {{peer, {0, 4096}, 0}}};
    comm.group_cast(exchange, tensors, "late")->wait();
  });
}

TEST(LocalGroup, TransferRunsWhileTheRankComputes) {
  // The cast finishes although no rank waits for it: the caller only looks at the memory of a flag that comes with it.
  run_local_ranks(2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    const HostTensor src = testing::make_filled(DType::kFloat32, 8, 1, 4, comm.rank(), 0);
    HostTensor dst(DType::kFloat32, 8, 1, 4);
    const CastTensor tensors[] = {{src, dst}};
    const Exchange exchange{{{peer, {0, 8}, 0}}, {{peer, {0, 8}, 0}}};
    const auto handle = comm.group_cast(exchange, tensors, "background");
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (comm.counters().operations == 0 && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(comm.counters().rows_received, 8);
    handle->wait();
  });
}

TEST(LocalGroup, RejectsBadArguments) {
  EXPECT_THROW(LocalGroup(0), InvalidArgument);
  EXPECT_THROW(LocalGroup(2, -1), InvalidArgument);
  LocalGroup group(2);
  EXPECT_THROW(group.communicator(2), InvalidArgument);
  EXPECT_THROW(group.communicator(-1), InvalidArgument);
  EXPECT_THROW(group.leave(2), InvalidArgument);
  EXPECT_EQ(group.size(), 2);
  EXPECT_EQ(group.communicator(1).rank(), 1);
  EXPECT_EQ(group.communicator(1).name(), "local");
}

TEST(RunLocalRanks, RethrowsTheErrorThatCameFirst) {
  std::atomic<int> num_ended = 0;
  try {
    run_local_ranks(
        4,
        [&](Communicator& comm) {
          if (comm.rank() == 3) throw InvalidArgument("rank 3 has a problem");
          try {
            comm.barrier("end");
          } catch (const CommError& error) {
            EXPECT_THAT(error.what(), HasSubstr("rank 3 gave up: rank 3 has a problem"));
            ++num_ended;
            throw;
          }
        },
        kLongTimeout);
    FAIL() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "rank 3 has a problem");
  }
  EXPECT_EQ(num_ended, 3);
}

std::mutex notes_mutex;
std::vector<std::string> notes;

// A rank that saves alone: the others wait for it, and say so, from half of the deadline on.
TEST(LocalGroup, LongWaitsAreMentionedBeforeTheyEnd) {
  EXPECT_EQ(Env::list().front().value, "600");  // what other frameworks wait, not half a minute
  notes.clear();
  set_log_sink([](std::string_view line) {
    const std::lock_guard lock(notes_mutex);
    notes.emplace_back(line);
  });
  run_local_ranks(
      3,
      [](Communicator& comm) {
        comm.barrier("at once");
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        comm.barrier("step 7");
      },
      4);
  set_log_sink(nullptr);
  EXPECT_THAT(notes, ::testing::Each(::testing::HasSubstr(" for rank 1, and gives up after 4 s")));
  EXPECT_THAT(notes, ::testing::Each(::testing::StartsWith("barrier 'step 7': rank ")));
  EXPECT_GE(notes.size(), 2u);
  EXPECT_LE(notes.size(), 8u);  // of two ranks, after two seconds and then every half
}

}  // namespace
}  // namespace tangram
