// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "schedule/build_cases.hpp"
#include "schedule/builder/report_text.hpp"
#include "schedule/serial_build.hpp"
#include "support/sample.hpp"

namespace tangram::schedule::builder {
namespace {

Report build_documents(BuiltImages& images, const Documents& documents) {
  return images.build([&](const TurnBuild& build) { run_build(build, documents); });
}

TEST(BuildDocuments, EqualsTheListsOfTheHostBitForBit) {
  std::mt19937 rng(1);
  for (const ImageCase& c : document_cases()) {
    BuiltImages images(c);
    for (int round = 0; round < support::rounds(4000, 100); ++round) {
      const Pack pack = random_pack(rng, c);
      ASSERT_EQ(build_documents(images, documents_of(pack)).problem, Problem::kNone);
      images.expect_as_host(slices_of(pack));
      ASSERT_FALSE(HasFailure()) << "round " << round << ", " << pack.q.size() - 1 << " documents";
    }
  }
}

TEST(BuildDocuments, LongSequencesOfFewDocuments) {
  BuiltImages images(case_of(70'000, 70'000, 64, 8, {.max_documents = 8}));
  for (const std::vector<int32_t>& ends :
       {std::vector<int32_t>{0, 70'000}, {0, 1, 70'000}, {0, 20'000, 20'050, 50'001, 70'000}}) {
    for (const int64_t right : {-1, 0}) {
      const Pack pack{ends, ends, -1, right};
      ASSERT_EQ(build_documents(images, documents_of(pack)).problem, Problem::kNone);
      images.expect_as_host(slices_of(pack));
    }
  }
}

TEST(BuildDocuments, ReadsListsOf64Bits) {
  BuiltImages images(case_of(3000, 3000, 8, 1, {.max_documents = 8}));
  const std::vector<int64_t> wide{0, 100, 900, 3000};
  Documents documents;
  documents.cu_q = documents.cu_k = wide.data();
  documents.is_wide = true;
  documents.count = 3;
  documents.right = 0;
  ASSERT_EQ(build_documents(images, documents).problem, Problem::kNone);
  images.expect_as_host(slices_of(Pack{{0, 100, 900, 3000}, {0, 100, 900, 3000}, -1, 0}));
}

TEST(BuildDocuments, WhatIsRefusedLeavesAMaskThatShowsNothing) {
  BuiltImages images(case_of(3000, 3000, 8, 1, {.max_documents = 4, .max_slices = 40}));
  const std::vector<int32_t> good{0, 1000, 3000};
  std::vector<int32_t> many{0};
  while (many.size() < 40) many.push_back(many.back() + 65);
  many.push_back(3000);
  struct Case {
    Pack pack;
    Problem problem;
    int32_t index;
    int64_t got, other;
  };
  int64_t num_refused = 0;
  for (const Case& c : std::vector<Case>{
           {{{1, 1000, 3000}, good}, Problem::kQueriesFirst, 0, 1, 0},
           {{good, {-1, 1000, 3000}}, Problem::kKeysFirst, 0, -1, 0},
           {{{0, 1000, 900, 3000}, {0, 1000, 900, 3000}}, Problem::kQueriesDecrease, 2, 900, 1000},
           {{{0, 1000, 1000, 3000}, {0, 1000, 900, 3000}}, Problem::kKeysDecrease, 2, 900, 1000},
           {{{0, 1000, 2999}, good}, Problem::kQueriesLast, 2, 2999, 3000},
           {{good, {0, 1000, 3001}}, Problem::kKeysLast, 2, 3001, 3000},
           {{{0, 4000, 3000}, {0, 4000, 3000}}, Problem::kQueriesDecrease, 2, 3000, 4000},
           {{many, many}, Problem::kQueryTiles, 0, 78 + 8, 51},
       }) {
    const Report report = build_documents(images, documents_of(c.pack));
    EXPECT_EQ(report.num_refused, ++num_refused);
    EXPECT_EQ(report.problem, c.problem);
    EXPECT_EQ(report.index, c.index);
    EXPECT_EQ(report.got, c.got);
    EXPECT_EQ(report.other, c.other);
    images.expect_as_host({});
    ASSERT_FALSE(HasFailure()) << num_refused;
  }
  EXPECT_EQ(build_documents(images, documents_of({good, good})).num_refused, num_refused) << "the next one is taken";
  images.expect_as_host(slices_of(Pack{good, good}));
}

TEST(BuildReport, NamesWhatToChange) {
  const auto text = [](Problem problem) { return report_text({1, 0, problem, 3, 50, 60}); };
  const std::string end = "; found on the GPU: calls with this mask see nothing)";
  EXPECT_EQ(text(Problem::kKeysFirst),
            "MaskBuffer::set_cu_seqlens: cu_seqlens_k must start with 0 (got cu_seqlens_k[3]=50" + end);
  EXPECT_EQ(text(Problem::kQueriesDecrease),
            "MaskBuffer::set_cu_seqlens: cu_seqlens_q must not decrease (got cu_seqlens_q[3]=50 after 60" + end);
  EXPECT_EQ(text(Problem::kQueriesLast),
            "MaskBuffer::set_cu_seqlens: cu_seqlens_q must end with the length of the sequence, 60 (got "
            "cu_seqlens_q[3]=50" +
                end);
  EXPECT_EQ(text(Problem::kBlockOutside),
            "MaskBuffer::set_blocks: indices must lie in [0, 60) (got 50 in query block 3" + end);
  EXPECT_EQ(text(Problem::kBlockRepeats),
            "MaskBuffer::set_blocks: indices must not repeat (got 50 in query block 3" + end);
  EXPECT_EQ(text(Problem::kQueryTiles),
            "MaskBuffer: the mask must fit the buffer, a larger max_documents makes room (got 50 tiles of queries, "
            "room for 60" +
                end);
  EXPECT_EQ(
      text(Problem::kBackwardRuns),
      "MaskBuffer: the mask must fit the buffer, a larger max_slices makes room (got 50 runs of queries, room for 60" +
          end);
  EXPECT_EQ(
      text(Problem::kTurns),
      "MaskBuffer: the mask must fit the buffer, a larger max_slices makes room (got 50 turns of runs, room for 60" +
          end);
}

}  // namespace
}  // namespace tangram::schedule::builder
