// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Documents of a mask, and how HybridCP assigns them.
#include "plan/grid/documents.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "plan/validate.hpp"
#include "reference/cells.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using ::testing::ElementsAre;

TEST(FindDocuments, AreTheDocumentsOfAPackedSequence) {
  const std::vector<int64_t> cu_seqlens = {0, 17, 90, 91, 160};
  const std::vector<MaskDocument> documents = find_documents(varlen_mask(cu_seqlens, true), 1);
  ASSERT_EQ(documents.size(), 4u);
  for (size_t d = 0; d < documents.size(); ++d) {
    EXPECT_THAT(documents[d].q_rows, ElementsAre(Range{cu_seqlens[d], cu_seqlens[d + 1]}));
    EXPECT_EQ(documents[d].k_rows, documents[d].q_rows);
    const int64_t length = cu_seqlens[d + 1] - cu_seqlens[d];
    EXPECT_EQ(documents[d].area, length * (length + 1) / 2);
  }
}

TEST(FindDocuments, ThatShareAUnitCountAsOne) {
  const std::vector<int64_t> cu_seqlens = {0, 20, 24, 40};
  const std::vector<MaskDocument> documents = find_documents(varlen_mask(cu_seqlens, true), 8);
  ASSERT_EQ(documents.size(), 2u);  // the second begins in the unit of the first one's end, and ends with it
  EXPECT_THAT(documents[0].q_rows, ElementsAre(Range{0, 3}));
  EXPECT_THAT(documents[1].q_rows, ElementsAre(Range{3, 5}));
}

TEST(FindDocuments, OfCrossAttentionAreConnectedBySlicesAlone) {
  const Mask mask(8, 16, {AttnSlice::full({0, 4}, {4, 8}), AttnSlice::full({4, 8}, {12, 16})});
  const std::vector<MaskDocument> documents = find_documents(mask, 1);
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_THAT(documents[0].k_rows, ElementsAre(Range{4, 8}));
  EXPECT_THAT(documents[1].q_rows, ElementsAre(Range{4, 8}));
  // Ranges as tokens of one sequence: keys of one slice are queries of the other.
  const Mask self(16, 16, {AttnSlice::full({0, 4}, {4, 8}), AttnSlice::full({4, 8}, {12, 16})});
  ASSERT_EQ(find_documents(self, 1).size(), 1u);
  EXPECT_THAT(find_documents(self, 1)[0].q_rows, ElementsAre(Range{0, 8}, Range{12, 16}));
}

std::set<int64_t> units_of(const std::vector<Range>& ranges) {
  std::set<int64_t> units;
  for (const Range& range : ranges) {
    for (int64_t unit = range.begin; unit < range.end; ++unit) units.insert(unit);
  }
  return units;
}

// By brute force: slices that share a unit are joined until nothing changes.
TEST(FindDocuments, AreTheConnectedPartsOfAnyMask) {
  std::mt19937 rng(3);
  for (int n = 0; n < 300; ++n) {
    const int64_t seqlen_q = 24, seqlen_k = n % 3 == 0 ? 36 : 24, unit = n % 2 == 0 ? 1 : 4;
    const Mask mask(seqlen_q, seqlen_k, reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 6));
    const auto slices = mask.slices();
    const auto touched = [&](const AttnSlice& slice) {
      std::set<std::pair<bool, int64_t>> units;
      for (int64_t i = slice.q_range.begin; i < slice.q_range.end; ++i) units.insert({false, i / unit});
      for (int64_t j = slice.k_range.begin; j < slice.k_range.end; ++j) {
        units.insert({!mask.is_self_attention(), j / unit});
      }
      return units;
    };
    std::vector<size_t> label(slices.size());
    std::iota(label.begin(), label.end(), size_t{0});
    for (size_t round = 0; round < slices.size(); ++round) {
      for (size_t a = 0; a < slices.size(); ++a) {
        for (size_t b = 0; b < slices.size(); ++b) {
          const auto units_a = touched(slices[a]), units_b = touched(slices[b]);
          const bool share =
              std::any_of(units_a.begin(), units_a.end(), [&](const auto& item) { return units_b.contains(item); });
          if (share) label[a] = label[b] = std::min(label[a], label[b]);
        }
      }
    }
    const std::vector<MaskDocument> documents = find_documents(mask, unit);
    ASSERT_EQ(documents.size(), std::set<size_t>(label.begin(), label.end()).size());
    size_t num_slices = 0;
    for (const MaskDocument& document : documents) {
      std::set<std::pair<bool, int64_t>> expected, actual;
      for (const size_t s : document.slices) {
        ASSERT_EQ(label[s], label[document.slices.front()]);
        expected.merge(touched(slices[s]));
      }
      for (const int64_t row : units_of(document.q_rows)) actual.insert({false, row});
      for (const int64_t row : units_of(document.k_rows)) actual.insert({!mask.is_self_attention(), row});
      ASSERT_EQ(actual, expected);
      num_slices += document.slices.size();
    }
    ASSERT_EQ(num_slices, slices.size());
  }
}

TEST(SubGroupSizes, GrowByThePrimeFactors) {
  EXPECT_THAT(sub_group_sizes(1), ElementsAre(1));
  EXPECT_THAT(sub_group_sizes(8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(sub_group_sizes(12), ElementsAre(1, 2, 4, 12));
  EXPECT_THAT(sub_group_sizes(7), ElementsAre(1, 7));
}

DistAttnConfig hybrid_config(int cp_size, int64_t document_rows) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.strategy.name = Strategy::kHybridCp;
  config.strategy.document_rows = document_rows;
  return config;
}

/// Ranks that hold rows of each document.
std::vector<std::set<int>> ranks_of_documents(const std::vector<int64_t>& cu_seqlens, const Dispatch& dispatch) {
  std::vector<std::set<int>> ranks;
  for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    ranks.emplace_back();
    for (int64_t row = cu_seqlens[d]; row < cu_seqlens[d + 1]; ++row) {
      ranks.back().insert(dispatch.rank_of_chunk[static_cast<size_t>(row / dispatch.chunk_size)]);
    }
  }
  return ranks;
}

TEST(AssignDocuments, ShortOnesStayWholeAndLongOnesTakeTheSmallestSubGroup) {
  // Four ranks of 64 rows: 128 rows need two ranks, the rest fits.
  const std::vector<int64_t> cu_seqlens = {0, 20, 148, 192, 236, 256};
  const auto [q, k] = assign_documents(varlen_mask(cu_seqlens, true), hybrid_config(4, 64));
  EXPECT_EQ(q, k);
  validate_dispatch(q, 4, 256, "q");
  const std::vector<std::set<int>> ranks = ranks_of_documents(cu_seqlens, q);
  EXPECT_THAT(ranks[1], ElementsAre(0, 1));
  for (const size_t d : {0, 2, 3, 4}) EXPECT_EQ(ranks[d].size(), 1u) << d;
}

TEST(AssignDocuments, TheLengthOfWholeDocumentsCanBeLimited) {
  const std::vector<int64_t> cu_seqlens = {0, 64, 128, 192, 256};
  for (const auto& [rows, num_ranks] : {std::pair<int64_t, size_t>{64, 1}, {32, 2}, {16, 4}, {1, 4}}) {
    const Dispatch dispatch = assign_documents(varlen_mask(cu_seqlens, true), hybrid_config(4, rows)).first;
    for (const std::set<int>& ranks : ranks_of_documents(cu_seqlens, dispatch)) EXPECT_EQ(ranks.size(), num_ranks);
  }
}

TEST(AssignDocuments, OneDocumentIsAssignedZigzag) {
  const Dispatch dispatch = assign_documents(causal_mask(64, 64), hybrid_config(4, 0)).first;
  EXPECT_EQ(dispatch.chunk_size, 8);
  EXPECT_THAT(dispatch.rank_of_chunk, ElementsAre(0, 1, 2, 3, 3, 2, 1, 0));
}

// A long document alone would leave ranks idle: the cost model spreads it.
TEST(AssignDocuments, TheCostModelSpreadsWhatWouldNotBalance) {
  std::vector<int64_t> cu_seqlens = {0};
  const int64_t rows = 32768;
  cu_seqlens.push_back(rows);
  for (int64_t row = rows; row < 4 * rows; row += 1024) cu_seqlens.push_back(row + 1024);
  DistAttnConfig config = hybrid_config(4, 0);
  config.heads = {32, 8, 128, 128, DType::kBFloat16};
  const Mask mask = varlen_mask(cu_seqlens, true);
  const Plan chosen = make_plan(mask, config);
  config.strategy.document_rows = rows;
  const Plan whole = make_plan(mask, config);
  EXPECT_LT(chosen.predicted.forward_s + chosen.predicted.backward_s,
            whole.predicted.forward_s + whole.predicted.backward_s);
  EXPECT_LT(chosen.balance(), 1.1);
  EXPECT_EQ(grid_traffic(whole, {}).forward_bytes, 0);
}

TEST(AssignDocuments, GivesEveryRankEquallyManyRowsOfAnyMask) {
  std::mt19937 rng(5);
  const auto draw = [&rng](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  for (int n = 0; n < 300; ++n) {
    DistAttnConfig config = hybrid_config(static_cast<int>(draw(1, 12)), draw(0, 1) * draw(1, 20));
    config.dispatch.chunk_size = draw(0, 2) == 0 ? 4 : 0;
    const int64_t seqlen_q = config.cp_size * 4 * draw(1, 6);
    const int64_t seqlen_k = draw(0, 2) == 0 ? config.cp_size * 4 * draw(1, 6) : seqlen_q;
    std::vector<AttnSlice> slices;
    if (n % 2 == 0 && seqlen_q == seqlen_k) {
      for (int64_t row = 0; row < seqlen_q;) {  // documents and padding
        const int64_t end = std::min(seqlen_q, row + draw(1, seqlen_q / 2));
        if (draw(0, 4) > 0) slices.push_back(AttnSlice::causal({row, end}, {row, end}));
        row = end;
      }
    } else {
      slices = reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 6);
    }
    const Mask mask(seqlen_q, seqlen_k, slices);
    const auto [q, k] = assign_documents(mask, config);
    validate_dispatch(q, config.cp_size, seqlen_q, "q");
    validate_dispatch(k, config.cp_size, seqlen_k, "k");
    if (config.dispatch.chunk_size > 0) {
      EXPECT_EQ(q.chunk_size % config.dispatch.chunk_size, 0);
    }
  }
}

}  // namespace
}  // namespace tangram
