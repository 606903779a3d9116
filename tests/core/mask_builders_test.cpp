// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Builders against the sentence that defines each mask, cell by cell.
#include "tangram/mask_builders.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "reference/cells.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using reference::Cells;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Visible = std::function<bool(int64_t, int64_t)>;

void expect_cells(const Mask& mask, const Visible& visible) {
  const Cells cells(mask.seqlen_q(), mask.seqlen_k(), mask.slices());
  for (int64_t i = 0; i < mask.seqlen_q(); ++i) {
    for (int64_t j = 0; j < mask.seqlen_k(); ++j) {
      ASSERT_EQ(cells.count(i, j), visible(i, j) ? 1 : 0) << "at (" << i << ", " << j << ")";
    }
  }
}

int64_t document_of(std::span<const int64_t> cu_seqlens, int64_t row) {
  int64_t document = 0;
  while (cu_seqlens[document + 1] <= row) ++document;
  return document;
}

bool in_window(Window window, int64_t distance) {  // distance = j - i
  return (window.left < 0 || distance >= -window.left) && (window.right < 0 || distance <= window.right);
}

const std::vector<int64_t> kDocuments{0, 3, 3, 10, 11, 18};
const std::vector<int64_t> kKeyDocuments{0, 5, 6, 10, 17, 18};
const std::vector<Window> kWindows{{-1, -1}, {0, 0}, {2, 0}, {2, 3}, {-1, 0}, {0, -1}, {-1, 2}, {40, 40}};

TEST(MaskBuilders, FullAndCausal) {
  expect_cells(full_mask(5, 7), [](int64_t, int64_t) { return true; });
  for (const auto& [seqlen_q, seqlen_k] : {std::pair<int64_t, int64_t>{6, 6}, {4, 7}, {7, 4}}) {
    const int64_t diagonal = seqlen_k - seqlen_q;
    expect_cells(causal_mask(seqlen_q, seqlen_k), [=](int64_t i, int64_t j) { return j <= i + diagonal; });
  }
}

TEST(MaskBuilders, VarlenKeepsDocumentsApart) {
  const auto same = [](int64_t i, int64_t j) { return document_of(kDocuments, i) == document_of(kDocuments, j); };
  expect_cells(varlen_mask(kDocuments, false), same);
  expect_cells(varlen_mask(kDocuments, true), [&](int64_t i, int64_t j) { return same(i, j) && j <= i; });
  expect_cells(varlen_mask(kDocuments, kKeyDocuments, true), [](int64_t i, int64_t j) {
    const int64_t q_doc = document_of(kDocuments, i);
    return q_doc == document_of(kKeyDocuments, j) && j - kKeyDocuments[q_doc + 1] <= i - kDocuments[q_doc + 1];
  });
}

TEST(MaskBuilders, SlidingWindow) {
  for (const Window window : kWindows) {
    expect_cells(sliding_window_mask(15, window), [=](int64_t i, int64_t j) { return in_window(window, j - i); });
    expect_cells(sliding_window_mask(kDocuments, window), [=](int64_t i, int64_t j) {
      return document_of(kDocuments, i) == document_of(kDocuments, j) && in_window(window, j - i);
    });
    expect_cells(sliding_window_mask(kDocuments, kKeyDocuments, window), [=](int64_t i, int64_t j) {
      const int64_t q_doc = document_of(kDocuments, i);
      const int64_t from_last = j - kKeyDocuments[q_doc + 1] - (i - kDocuments[q_doc + 1]);
      return q_doc == document_of(kKeyDocuments, j) && in_window(window, from_last);
    });
  }
}

TEST(MaskBuilders, BlockCausal) {
  for (const int64_t block : {1, 4, 30}) {
    expect_cells(block_causal_mask(18, block), [=](int64_t i, int64_t j) { return j / block <= i / block; });
    expect_cells(block_causal_mask(kDocuments, block), [=](int64_t i, int64_t j) {
      const int64_t document = document_of(kDocuments, i);
      const int64_t begin = kDocuments[document];
      return document == document_of(kDocuments, j) && (j - begin) / block <= (i - begin) / block;
    });
  }
}

TEST(MaskBuilders, PrefixLm) {
  for (const int64_t prefix : {0, 1, 6, 12}) {
    expect_cells(prefix_lm_mask(12, prefix), [=](int64_t i, int64_t j) { return j < prefix || j <= i; });
  }
}

TEST(MaskBuilders, VarlenPrefixLmKeepsPrefixesInsideDocuments) {
  const std::vector<int64_t> bounds{0, 5, 9, 9, 12, 13};
  for (const std::vector<int64_t>& prefixes : {std::vector<int64_t>{2, 0, 0, 3, 1}, {0, 0, 0, 0, 0}, {5, 4, 0, 1, 0}}) {
    expect_cells(varlen_prefix_lm_mask(bounds, prefixes), [&](int64_t i, int64_t j) {
      const size_t document = static_cast<size_t>(document_of(bounds, j));
      if (document_of(bounds, i) != document_of(bounds, j)) return false;
      return j <= i || j < bounds[document] + prefixes[document];
    });
  }
  // Prefixes of one document are those of prefix_lm_mask.
  const std::vector<int64_t> whole{0, 12}, six{6};
  EXPECT_EQ(varlen_prefix_lm_mask(whole, six), prefix_lm_mask(12, 6));
}

TEST(MaskBuilders, SharedPrefixContinuationsDoNotSeeEachOther) {
  const std::vector<int64_t> lengths{4, 0, 3, 1};
  const std::vector<int64_t> bounds{0, 5, 9, 9, 12, 13};
  expect_cells(shared_prefix_mask(5, lengths), [&](int64_t i, int64_t j) {
    return j <= i && (j < 5 || document_of(bounds, i) == document_of(bounds, j));
  });
}

TEST(MaskBuilders, GlobalWindow) {
  for (const Window window : kWindows) {
    for (const int64_t num_global : {0, 1, 4, 15}) {
      const bool causal = window.right == 0;
      expect_cells(global_window_mask(15, num_global, window), [=](int64_t i, int64_t j) {
        if (causal && j > i) return false;
        return i < num_global || j < num_global || in_window(window, j - i);
      });
    }
  }
}

TEST(MaskBuilders, BlockSparse) {
  const std::vector<std::pair<int64_t, int64_t>> blocks{{0, 0}, {0, 2}, {2, 1}, {3, 3}};
  expect_cells(block_sparse_mask(10, 13, 3, 4, blocks), [&](int64_t i, int64_t j) {
    return std::find(blocks.begin(), blocks.end(), std::pair<int64_t, int64_t>{i / 3, j / 4}) != blocks.end();
  });
}

Cells typed_cells(int64_t rows, int64_t columns, std::span<const TypedSlice> slices) {
  Cells cells(rows, columns);
  for (const TypedSlice& slice : slices) cells.add(AttnSlice::from_type(slice.type, slice.q_range, slice.k_range));
  return cells;
}

TEST(MaskBuilders, TypedPiecesShowTheCellsOfTheBand) {
  std::mt19937 rng(1);
  for (int n = 0; n < 3000; ++n) {
    const AttnSlice slice = reference::random_slice(rng, 13, 17);
    const std::vector<TypedSlice> pieces = to_typed(slice);
    EXPECT_LE(pieces.size(), 3u);
    EXPECT_EQ(typed_cells(13, 17, pieces), Cells(13, 17, {{slice}})) << to_string(slice);
  }
}

TEST(MaskBuilders, TypesAreOnePieceEach) {
  for (const MaskType type : {MaskType::kFull, MaskType::kCausal, MaskType::kInvCausal, MaskType::kBiCausal}) {
    const auto pieces = to_typed(AttnSlice::from_type(type, {2, 9}, {1, 12}));
    ASSERT_EQ(pieces.size(), 1u) << static_cast<int>(type);
    EXPECT_EQ(pieces[0].type, type);
    EXPECT_EQ(pieces[0].q_range, (Range{2, 9}));
    EXPECT_EQ(pieces[0].k_range, (Range{1, 12}));
  }
}

TEST(MaskBuilders, InferFromSlidingWindowAlignsTheLastRows) {
  for (const Window window : kWindows) {
    const auto pieces = infer_attn_mask_from_sliding_window({2, 9}, {1, 12}, window);
    Cells expected(12, 14);
    for (int64_t i = 2; i < 9; ++i) {
      for (int64_t j = 1; j < 12; ++j) {
        if (in_window(window, j - i - 3)) expected.add(AttnSlice::full({i, i + 1}, {j, j + 1}));
      }
    }
    EXPECT_EQ(typed_cells(12, 14, pieces), expected);
  }
}

TEST(MaskBuilders, InferFromCuSeqlens) {
  for (const Window window : kWindows) {
    for (const int64_t num_global : {0, 2}) {
      if (num_global > 0 && window == Window{}) continue;
      const TypedMask mask = infer_attn_mask_from_cu_seqlens(kDocuments, kDocuments, false, window, num_global);
      EXPECT_EQ(mask.total_seqlen_q, 18);
      const Cells cells = typed_cells(18, 18, mask.slices);
      for (int64_t i = 0; i < 18; ++i) {
        for (int64_t j = 0; j < 18; ++j) {
          const int64_t document = document_of(kDocuments, i);
          const bool global = j - kDocuments[document] < num_global && j < i;
          const bool expected = document == document_of(kDocuments, j) && (in_window(window, j - i) || global);
          ASSERT_EQ(cells.count(i, j), expected ? 1 : 0) << i << ", " << j;
        }
      }
    }
  }
  const TypedMask causal = infer_attn_mask_from_cu_seqlens(kDocuments, kKeyDocuments, true);
  const Mask expected = varlen_mask(kDocuments, kKeyDocuments, true);
  EXPECT_EQ(typed_cells(18, 18, causal.slices), Cells(18, 18, expected.slices()));
}

TEST(MaskBuilders, RejectBadInput) {
  const std::vector<int64_t> late{1, 4}, falling{0, 5, 3}, short_list{0, 4};
  EXPECT_THAT([&] { varlen_mask(late, true); }, ThrowsMessage<InvalidArgument>(HasSubstr("must start with 0 (got 1)")));
  EXPECT_THAT([&] { varlen_mask(falling, true); },
              ThrowsMessage<InvalidArgument>(HasSubstr("cu_seqlens_q[2]=3 after 5")));
  EXPECT_THAT([&] { varlen_mask(std::span<const int64_t>{}, true); },
              ThrowsMessage<InvalidArgument>(HasSubstr("an empty list")));
  EXPECT_THAT([&] { varlen_mask(short_list, kDocuments, true); },
              ThrowsMessage<InvalidArgument>(HasSubstr("equal length (got 2 and 6)")));
  EXPECT_THAT([] { sliding_window_mask(8, {-2, 0}); }, ThrowsMessage<InvalidArgument>(HasSubstr("left=-2")));
  EXPECT_THAT([] { block_causal_mask(8, 0); }, ThrowsMessage<InvalidArgument>(HasSubstr("block_size")));
  EXPECT_THAT([] { prefix_lm_mask(8, 9); }, ThrowsMessage<InvalidArgument>(HasSubstr("[0, 8] (got 9)")));
  const std::vector<int64_t> bounds{0, 4, 8}, one{2}, too_long{4, 5};
  EXPECT_THAT([&] { varlen_prefix_lm_mask(bounds, one); },
              ThrowsMessage<InvalidArgument>(HasSubstr("an entry for each document (got 1 and 2 documents)")));
  EXPECT_THAT([&] { varlen_prefix_lm_mask(bounds, too_long); },
              ThrowsMessage<InvalidArgument>(HasSubstr("prefixes[1] must lie in [0, 4] (got 5)")));
  const std::vector<std::pair<int64_t, int64_t>> outside{{0, 3}}, twice{{0, 0}, {0, 0}};
  EXPECT_THAT([&] { block_sparse_mask(8, 8, 4, 4, outside); },
              ThrowsMessage<InvalidArgument>(HasSubstr("blocks[0] must lie in 2 x 2 blocks (got (0, 3))")));
  EXPECT_THAT([&] { block_sparse_mask(8, 8, 4, 4, twice); }, ThrowsMessage<InvalidArgument>(HasSubstr("twice")));
  EXPECT_THAT([] { infer_attn_mask_from_cu_seqlens(kDocuments, kDocuments, true, {2, 0}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("causal must be false")));
}

}  // namespace
}  // namespace tangram
