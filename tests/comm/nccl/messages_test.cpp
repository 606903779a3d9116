// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Messages carried out on host memory: packed, matched by order as a library would, unpacked.
#include "comm/nccl/messages.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "comm/exchange_tables.hpp"

namespace tangram::comm {
namespace {

using tangram::testing::make_random_exchange;
using tangram::testing::RandomExchange;

using Bytes = std::vector<char>;

constexpr int kHeads = 1;
constexpr int kDims[] = {8, 24};  // of the two tensors

/// Tensor `t` of a rank: every 16 bytes tell rank, tensor, row and place.
Bytes make_tensor(int rank, int t, int64_t rows, int64_t row_bytes) {
  Bytes bytes(static_cast<size_t>(rows * row_bytes));
  for (size_t i = 0; i < bytes.size(); i += 16) {
    const uint64_t words[] = {static_cast<uint64_t>(rank) << 32 | static_cast<uint64_t>(t), i};
    std::memcpy(bytes.data() + i, words, 16);
  }
  return bytes;
}

struct RankMemory {
  std::vector<Bytes> from, to;
  Bytes send_staging, recv_staging;
};

void pack(const StageMessages& stage, RankMemory& memory) {
  memory.send_staging.assign(static_cast<size_t>(stage.send_bytes), 0);
  memory.recv_staging.assign(static_cast<size_t>(stage.recv_bytes), 0);
  for (const Chunk& chunk : stage.pack) {
    ASSERT_LE(chunk.num_bytes, kMaxChunkBytes);
    ASSERT_EQ(chunk.peer, 0);
    std::memcpy(memory.send_staging.data() + chunk.to,
                memory.from[static_cast<size_t>(chunk.tensor)].data() + chunk.from,
                static_cast<size_t>(chunk.num_bytes));
  }
}

/// The i-th send from a to b meets the i-th receive at b from a.
void deliver(const std::vector<StageMessages>& ranks, std::vector<RankMemory>& memory) {
  std::map<std::pair<int, int>, std::vector<Message>> receives;
  for (size_t b = 0; b < ranks.size(); ++b) {
    for (const Message& message : ranks[b].recvs) receives[{message.peer, static_cast<int>(b)}].push_back(message);
  }
  std::map<std::pair<int, int>, size_t> next;
  for (size_t a = 0; a < ranks.size(); ++a) {
    for (const Message& message : ranks[a].sends) {
      const std::pair pair(static_cast<int>(a), message.peer);
      ASSERT_LT(next[pair], receives[pair].size()) << "a send without a receive";
      const Message& receive = receives[pair][next[pair]++];
      ASSERT_EQ(message.num_bytes, receive.num_bytes);
      RankMemory &source = memory[a], &target = memory[static_cast<size_t>(message.peer)];
      const Bytes& from =
          message.tensor == Message::kStaging ? source.send_staging : source.from[static_cast<size_t>(message.tensor)];
      Bytes& to =
          receive.tensor == Message::kStaging ? target.recv_staging : target.to[static_cast<size_t>(receive.tensor)];
      ASSERT_LE(message.offset + message.num_bytes, std::ssize(from));
      ASSERT_LE(receive.offset + receive.num_bytes, std::ssize(to));
      std::memcpy(to.data() + receive.offset, from.data() + message.offset, static_cast<size_t>(message.num_bytes));
    }
  }
  for (const auto& [pair, messages] : receives) EXPECT_EQ(next[pair], messages.size()) << "a receive without a send";
}

void unpack(const StageMessages& stage, RankMemory& memory) {
  for (const Chunk& chunk : stage.unpack) {
    ASSERT_EQ(chunk.tensor, 0);
    std::memcpy(memory.to[static_cast<size_t>(chunk.peer)].data() + chunk.to, memory.recv_staging.data() + chunk.from,
                static_cast<size_t>(chunk.num_bytes));
  }
}

struct RandomPass {
  RandomPass(int size, uint64_t seed) : random(make_random_exchange(size, seed)) {
    for (size_t rank = 0; rank < static_cast<size_t>(size); ++rank) {
      DevicePassSpec& spec = specs.emplace_back();
      spec.casts = spec.reduces = {random.ranks[rank]};
      for (const int dim : kDims) {
        spec.recv_buffers.push_back({random.buffer_rows[rank], kHeads, dim, DType::kBFloat16});
        spec.returns.push_back(
            {random.buffer_rows[rank], random.shard_rows, kHeads, dim, DType::kFloat32, DType::kFloat32});
      }
    }
  }
  RandomExchange random;
  std::vector<DevicePassSpec> specs;
};

TEST(NcclMessages, CastBringsTheRowsOfTheTables) {
  size_t num_packed = 0, num_direct = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int size = 1 + static_cast<int>(seed % 5);
    const RandomPass pass(size, seed);
    std::vector<StageMessages> ranks;
    std::vector<RankMemory> memory(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      const auto idx = static_cast<size_t>(rank);
      ranks.push_back(cast_messages({rank, size}, pass.specs[idx])[0]);
      for (int t = 0; t < 2; ++t) {
        memory[idx].from.push_back(make_tensor(rank, t, pass.random.shard_rows, kDims[t] * 2));
        memory[idx].to.emplace_back(static_cast<size_t>(pass.random.buffer_rows[idx] * kDims[t] * 2), char{-1});
      }
      pack(ranks.back(), memory[idx]);
      for (const Message& message : ranks.back().sends)
        ++(message.tensor == Message::kStaging ? num_packed : num_direct);
    }
    std::vector<RankMemory> expected = memory;
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      int64_t rows = 0;
      for (const RowCopy& copy : pass.random.ranks[rank].recvs) {
        rows += copy.rows.size();
        for (size_t t = 0; t < 2; ++t) {
          const int64_t row_bytes = kDims[t] * 2;
          std::memcpy(expected[rank].to[t].data() + copy.rows.begin * row_bytes,
                      memory[static_cast<size_t>(copy.peer)].from[t].data() + copy.peer_row * row_bytes,
                      static_cast<size_t>(copy.rows.size() * row_bytes));
        }
      }
      EXPECT_EQ(ranks[rank].rows_received, 2 * rows);
      EXPECT_EQ(ranks[rank].bytes_received, rows * 2 * (kDims[0] + kDims[1]));
      EXPECT_EQ(ranks[rank].rows_sent, 2 * pass.random.ranks[rank].rows_sent());
    }
    deliver(ranks, memory);
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      unpack(ranks[rank], memory[rank]);
      EXPECT_EQ(memory[rank].to, expected[rank].to) << "rank " << rank << ", seed " << seed;
    }
  }
  EXPECT_GT(num_packed, 0u);
  EXPECT_GT(num_direct, 0u);
}

TEST(NcclMessages, ReturnsFillTheAreaThatTheMergeReads) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    const RandomPass pass(size, seed);
    std::vector<StageMessages> ranks;
    std::vector<PassLayout> layouts;
    std::vector<RankMemory> memory(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      const auto idx = static_cast<size_t>(rank);
      layouts.push_back(make_pass_layout({rank, size}, pass.specs[idx]));
      ranks.push_back(return_messages({rank, size}, pass.specs[idx], layouts.back())[0]);
      for (int t = 0; t < 2; ++t) {
        memory[idx].from.push_back(make_tensor(rank, t, pass.random.buffer_rows[idx], kDims[t] * 4));
        memory[idx].to.emplace_back(static_cast<size_t>(layouts.back().return_rows * kDims[t] * 4), char{-1});
      }
      pack(ranks.back(), memory[idx]);
      EXPECT_TRUE(ranks.back().unpack.empty());
    }
    deliver(ranks, memory);
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      // Row `begin + i` of a source's range is the i-th of the owner's sends to it.
      for (int source = 0; source < size; ++source) {
        int64_t at = layouts[rank].return_begin[static_cast<size_t>(source)];
        for (const RowCopy& copy : pass.random.ranks[rank].sends) {
          if (copy.peer != source) continue;
          for (int64_t i = 0; i < copy.rows.size(); ++i, ++at) {
            for (size_t t = 0; t < 2; ++t) {
              const auto row_bytes = static_cast<size_t>(kDims[t] * 4);
              const char* got = memory[rank].to[t].data() + static_cast<size_t>(at) * row_bytes;
              const char* expected = memory[static_cast<size_t>(source)].from[t].data() +
                                     static_cast<size_t>(copy.peer_row + i) * row_bytes;
              ASSERT_EQ(std::memcmp(got, expected, row_bytes), 0) << "rank " << rank << " from " << source;
            }
          }
        }
      }
    }
  }
}

TEST(NcclMessages, ConvertedTensorsArePackedInTheDtypeInWhichTheyMove) {
  DevicePassSpec spec;
  spec.reduces = {{{}, {{1, {2, 5}, 0}}}};
  spec.returns = {{8, 4, 1, 8, DType::kFloat32, DType::kBFloat16}, {8, 4, 1, 8, DType::kBFloat16, DType::kBFloat16}};
  const StageMessages stage = return_messages({0, 2}, spec, make_pass_layout({0, 2}, spec))[0];
  ASSERT_EQ(stage.convert.size(), 1u);
  EXPECT_EQ(stage.convert[0].from, 2 * 16);  // bytes of bfloat16
  EXPECT_EQ(stage.convert[0].num_bytes, 3 * 16);
  EXPECT_TRUE(stage.pack.empty());
  const std::vector<Message> expected = {{1, Message::kStaging, 0, 48}, {1, 1, 2 * 16, 48}};
  EXPECT_EQ(stage.sends, expected);
  EXPECT_EQ(stage.bytes_sent, 96);
}

}  // namespace
}  // namespace tangram::comm
