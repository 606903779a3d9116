// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/buffered_image.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tangram/error.hpp"

namespace tangram::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRowBytes = 2 * 8 * 2;  // of K, and of V
const std::vector<int64_t> kOffsets = {1024, 65536};

BufferedPassSpec spec_of(int64_t recv_buffer_rows = 400) {
  BufferedPassSpec spec;
  spec.label = "tables";
  for (int i = 0; i < 2; ++i) {
    spec.recv_buffers.push_back({recv_buffer_rows, 2, 8, DType::kBFloat16});
    spec.returns.push_back({recv_buffer_rows, 100, 2, 8, DType::kFloat32, DType::kFloat32});
  }
  spec.own_rows = 100;
  spec.sent_rows = 30;
  spec.local_ranges = 3;
  spec.user_bytes = 16;
  return spec;
}

/// Rank 1 of 3: ten rows to rank 0, five to rank 2; own rows in two pieces.
BufferedTables tables_of() {
  BufferedTables tables;
  tables.exchange.sends = {{0, {20, 30}, 7}, {2, {90, 95}, 300}};
  tables.exchange.recvs = {{0, {100, 104}, 50}};
  tables.own_rows = {{{0, 100}, 0}};
  tables.recv_buffer_rows = 104;
  tables.return_begin = {0, 0, 0};
  tables.left = {{0, 20}, {30, 80}};
  tables.absent = {{80, 90}};
  return tables;
}

struct Written {
  std::vector<std::byte> bytes;
  size_t used = 0;

  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(bytes.data() + offset);
  }
};

Written write(const BufferedImage& image, const BufferedTables& tables) {
  Written written{std::vector<std::byte>(image.bytes(), std::byte{0xAA}), 0};
  written.used = image.write(written.bytes.data(), tables, 77, kOffsets, [](std::byte* to) { std::memset(to, 5, 16); });
  return written;
}

TEST(BufferedImage, HoldsChunksOfOwnRowsOfZerosAndOfRowsSent) {
  const BufferedImage image({1, 3}, spec_of());
  const BufferedTables tables = tables_of();
  image.check(tables);
  const Written written = write(image, tables);
  const auto& counts = *written.at<BufferedCounts>(image.counts());
  EXPECT_EQ(counts.tag, 77u);
  EXPECT_EQ(*written.at<std::byte>(image.user() + 15), std::byte{5});
  EXPECT_LE(written.used, image.bytes());
  EXPECT_EQ(written.used, image.chunks() + static_cast<size_t>(counts.sent_chunks[1]) * sizeof(Chunk));
  const Chunk* const chunks = written.at<Chunk>(image.chunks());

  // Tensor by tensor: own rows, then zeros behind the last row, as many as there are rows for them.
  EXPECT_EQ(counts.own_chunks[0], 0);
  ASSERT_EQ(counts.own_chunks[1], 4);
  for (const int t : {0, 1}) {
    const Chunk &own = chunks[2 * t], &zeros = chunks[2 * t + 1];
    EXPECT_EQ(own.tensor, t);
    EXPECT_EQ(own.to, kOffsets[static_cast<size_t>(t)]);
    EXPECT_EQ(own.num_bytes, 100 * kRowBytes);
    EXPECT_EQ(own.peer, 1);
    EXPECT_EQ(static_cast<size_t>(zeros.tensor), image.zero_source());
    EXPECT_EQ(zeros.from, 0);
    EXPECT_EQ(zeros.to, kOffsets[static_cast<size_t>(t)] + 104 * kRowBytes);
    EXPECT_EQ(zeros.num_bytes, BufferedPass::kZeroRows * kRowBytes);
  }
  // To rank 2 first, so that no rank is everybody's first.
  EXPECT_EQ(counts.sent_chunks[0], 4);
  ASSERT_EQ(counts.sent_chunks[1], 8);
  EXPECT_EQ(chunks[4].peer, 2);
  EXPECT_EQ(chunks[4].from, 90 * kRowBytes);
  EXPECT_EQ(chunks[5].to, kOffsets[1] + 300 * kRowBytes);
  EXPECT_EQ(chunks[6].peer, 0);
  EXPECT_EQ(chunks[7].num_bytes, 10 * kRowBytes);

  // Rows that are not left: 20 to 30, of which a row comes back each, and 80 to 100, of which 90 to 95.
  EXPECT_EQ(counts.num_merged, 30);
  const int32_t* const rows = written.at<int32_t>(image.merge_rows());
  EXPECT_THAT(std::vector(rows + 9, rows + 12), ElementsAre(29, 80, 81));
  const int32_t* const begin = written.at<int32_t>(image.merge_begin());
  EXPECT_THAT(std::vector({begin[10], begin[20], begin[25], begin[30]}), ElementsAre(10, 10, 15, 15));
  const int32_t* const before = written.at<int32_t>(image.merge_before());
  EXPECT_THAT(std::vector(before + 9, before + 11), ElementsAre(1, ~0)) << "of rank 0; no own part";
}

TEST(BufferedImage, ZerosEndWhereTheBufferDoes) {
  const BufferedImage image({1, 3}, spec_of(110));
  const Written written = write(image, tables_of());
  EXPECT_EQ(written.at<Chunk>(image.chunks())[1].num_bytes, 6 * kRowBytes);
}

TEST(BufferedImage, PlacesDoNotDependOnTables) {
  const BufferedImage image({1, 3}, spec_of());
  BufferedTables none;
  none.return_begin = {0, 0, 0};
  const Written written = write(image, none);
  const auto& counts = *written.at<BufferedCounts>(image.counts());
  EXPECT_EQ(counts.own_chunks[1], 2) << "zeros";
  EXPECT_EQ(counts.sent_chunks[1], 2);
  EXPECT_EQ(counts.num_merged, 100);
}

TEST(BufferedImage, RefusesWhatHasNoRoom) {
  const BufferedImage image({1, 3}, spec_of());
  const auto expect_refused = [&](const char* text, const auto& change) {
    BufferedTables tables = tables_of();
    change(tables);
    try {
      image.check(tables);
      ADD_FAILURE() << "accepted more " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  expect_refused("recv_buffers rows=400", [](BufferedTables& t) { t.recv_buffer_rows = 401; });
  expect_refused("sent_rows=30", [](BufferedTables& t) { t.exchange.sends[0].rows.end = 46; });
  expect_refused("local_ranges=3", [](BufferedTables& t) { t.exchange.sends.resize(4, {2, {0, 1}, 0}); });
  expect_refused("local_ranges=3", [](BufferedTables& t) { t.own_rows.resize(4, {{0, 1}, 0}); });
  expect_refused("own_rows=100", [](BufferedTables& t) { t.own_rows[0].keys.end = 101; });
  BufferedPassSpec spec = spec_of();
  spec.sent_rows = -1;
  EXPECT_THROW(BufferedImage({1, 3}, spec), InvalidArgument);
  spec = spec_of();
  spec.returns[0].owned_rows = 99;
  EXPECT_THROW(BufferedImage({1, 3}, spec), InvalidArgument);
  spec = spec_of();
  spec.recv_buffers.clear();
  EXPECT_THROW(BufferedImage({1, 3}, spec), InvalidArgument);
}

TEST(BufferedImage, SpecsThatDifferHaveOtherHashes) {
  const uint64_t hash = hash_of(spec_of());
  EXPECT_EQ(hash_of(spec_of()), hash);
  EXPECT_NE(hash_of(spec_of(401)), hash);
  BufferedPassSpec spec = spec_of();
  spec.local_ranges = 4;
  EXPECT_NE(hash_of(spec), hash);
  spec = spec_of();
  spec.returns.clear();
  EXPECT_NE(hash_of(spec), hash);
}

}  // namespace
}  // namespace tangram::comm
