// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Runs the communicator suite as one rank of an mpirun. All ranks run all cases in the same order.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "comm/communicator_suite.hpp"
#include "comm/exchange_tables.hpp"
#include "tangram/mpi_group.hpp"

namespace tangram {
namespace {

MpiGroup* the_group = nullptr;

class MpiSuite : public ::testing::TestWithParam<testing::CommunicatorCase> {};

TEST_P(MpiSuite, Passes) { GetParam().run(the_group->communicator()); }

INSTANTIATE_TEST_SUITE_P(Mpi, MpiSuite, ::testing::ValuesIn(testing::communicator_cases()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Mpi, LargeRowsMoveInSeveralMessagesWorthOfBuffers) {
  // Far beyond what MPI sends eagerly, so that both sides must make progress.
  Communicator& comm = the_group->communicator();
  const int rank = comm.rank(), size = comm.size();
  if (size == 1) return;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  constexpr int64_t kRows = 20000;
  const HostTensor src = testing::make_filled(DType::kFloat32, kRows, 2, 32, rank, 0);
  HostTensor dst(DType::kFloat32, kRows, 2, 32);
  const CastTensor tensors[] = {{src, dst}};
  comm.group_cast({{{next, {0, kRows}, 0}}, {{previous, {0, kRows}, 0}}}, tensors, "large")->wait();
  for (int64_t row = 0; row < kRows; row += 97) {
    ASSERT_EQ(dst.at(row, 1, 31), testing::element_value(previous, 0, row, 1, 31)) << "row " << row;
  }
}

TEST(Mpi, TransferRunsWhileTheRankComputes) {
  Communicator& comm = the_group->communicator();
  const int size = comm.size();
  if (size == 1) return;
  const int next = (comm.rank() + 1) % size, previous = (comm.rank() + size - 1) % size;
  const HostTensor src = testing::make_filled(DType::kFloat32, 8, 1, 4, comm.rank(), 0);
  HostTensor dst(DType::kFloat32, 8, 1, 4);
  const CastTensor tensors[] = {{src, dst}};
  comm.reset_counters();
  const auto handle = comm.group_cast({{{next, {0, 8}, 0}}, {{previous, {0, 8}, 0}}}, tensors, "background");
  // No wait and no call of MPI happens here, and yet the rows come.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (comm.counters().operations == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(comm.counters().rows_received, 8);
  handle->wait();
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  tangram::MpiGroup group;
  tangram::the_group = &group;
  const int result = RUN_ALL_TESTS();
  if (result != 0) std::printf("rank %d failed\n", group.communicator().rank());
  return result;
}
