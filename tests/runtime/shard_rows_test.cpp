// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tangram/dist_attention.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"

namespace tangram {
namespace {

const Dispatch kDispatch{2, 3, {0, 1, 1, 0}};  // 12 rows

HostTensor numbered(int64_t rows) {
  HostTensor tensor(DType::kFloat32, rows, 2, 3);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = static_cast<float>(i);
  return tensor;
}

TEST(ShardRows, PositionsAreTheGlobalRowsOfTheShard) {
  EXPECT_THAT(position_ids(kDispatch, 0), ::testing::ElementsAre(0, 1, 2, 9, 10, 11));
  EXPECT_THAT(position_ids(kDispatch, 1), ::testing::ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_THROW(position_ids(kDispatch, 2), InvalidArgument);
}

TEST(ShardRows, DispatchTakesTheRowsOfTheRank) {
  const HostTensor global = numbered(12);
  for (int rank = 0; rank < 2; ++rank) {
    HostTensor shard(DType::kFloat32, 6, 2, 3);
    dispatch_rows(kDispatch, rank, global, shard);
    const std::vector<int64_t> positions = position_ids(kDispatch, rank);
    for (int64_t row = 0; row < 6; ++row) {
      EXPECT_EQ(shard.at(row, 1, 2), global.at(positions[static_cast<size_t>(row)], 1, 2));
    }
  }
}

TEST(ShardRows, UndispatchIsTheWayBackOnEveryRank) {
  const HostTensor global = numbered(12);
  run_local_ranks(2, [&](Communicator& comm) {
    HostTensor shard(DType::kFloat32, 6, 2, 3), back(DType::kFloat32, 12, 2, 3);
    dispatch_rows(kDispatch, comm.rank(), global, shard);
    back.fill(-1);
    undispatch_rows(kDispatch, comm, shard, back);
    for (int64_t i = 0; i < global.size(); ++i) EXPECT_EQ(back.data<float>()[i], global.data<float>()[i]);
    EXPECT_EQ(comm.counters().rows_received, 6);
  });
}

TEST(ShardRows, RejectsShapesThatDoNotFit) {
  const HostTensor global = numbered(12);
  HostTensor shard(DType::kFloat32, 5, 2, 3), half(DType::kFloat16, 6, 2, 3), wide(DType::kFloat32, 6, 2, 4);
  HostTensor fitting = numbered(6);
  EXPECT_THROW(dispatch_rows(kDispatch, 0, global, shard), InvalidArgument);
  EXPECT_THROW(dispatch_rows(kDispatch, 0, global, half), InvalidArgument);
  EXPECT_THROW(dispatch_rows(kDispatch, 0, global, wide), InvalidArgument);
  EXPECT_THROW(dispatch_rows(kDispatch, 2, global, fitting), InvalidArgument);
  run_local_ranks(2, [&](Communicator& comm) {
    HostTensor own(DType::kFloat32, comm.rank() == 0 ? 6 : 5, 2, 3), back(DType::kFloat32, 12, 2, 3);
    EXPECT_THROW(undispatch_rows(kDispatch, comm, own, back), InvalidArgument);
  });
}

}  // namespace
}  // namespace tangram
