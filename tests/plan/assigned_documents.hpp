// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Causal documents sharded to ranks, measured row by row.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "plan/run_list.hpp"
#include "tangram/slice.hpp"

namespace tangram::reference {

inline std::vector<AttnSlice> causal_documents(const std::vector<Range>& documents) {
  std::vector<AttnSlice> slices;
  for (const Range& rows : documents) slices.push_back(canonical(AttnSlice::causal(rows, rows)));
  return slices;
}

inline std::vector<int> ranks_of(const std::vector<RankRun>& map) {
  std::vector<int> ranks;
  for (const RankRun& run : map) {
    EXPECT_EQ(run.begin, static_cast<int>(ranks.size()));
    ranks.insert(ranks.end(), static_cast<size_t>(run.size()), run.rank);
  }
  return ranks;
}

struct Measured {
  std::vector<int64_t> rows, area;  // of ranks
  int64_t moved = 0;
  int64_t keys_at_cuts = 0;  // seen there, where no tile ends
};

inline Measured measure(const std::vector<Range>& documents, const std::vector<int>& ranks, int cp_size,
                        int64_t tile_rows = 1) {
  Measured result;
  result.rows.resize(static_cast<size_t>(cp_size));
  result.area.resize(static_cast<size_t>(cp_size));
  const auto rank_of = [&](int64_t row) { return ranks[static_cast<size_t>(row)]; };
  for (const int rank : ranks) ++result.rows[static_cast<size_t>(rank)];
  for (const Range& document : documents) {
    for (int rank = 0; rank < cp_size; ++rank) {
      int64_t last = -1;
      for (int64_t row = document.begin; row < document.end; ++row) {
        if (rank_of(row) != rank) continue;
        result.area[static_cast<size_t>(rank)] += row - document.begin + 1;
        last = row;
      }
      for (int64_t key = document.begin; key < last; ++key) result.moved += rank_of(key) != rank;
    }
    for (int64_t row = document.begin + 1; row < document.end; ++row) {
      const int64_t keys = row - document.begin;
      if (rank_of(row) != rank_of(row - 1) && keys % tile_rows != 0) result.keys_at_cuts += keys;
    }
  }
  return result;
}

}  // namespace tangram::reference
