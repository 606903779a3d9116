// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Packs as pieces of documents: made from chunks, and turned into runs of rows.
#include <algorithm>

#include "plan/pack_search.hpp"

namespace tangram {

CausalPack::CausalPack(std::span<const AttnSlice> slices, int64_t rows, int ranks, double tolerance,
                       const CutCost& cost_of_cuts)
    : padding(rows), num_rows(rows), cp_size(ranks), rows_per_rank(rows / ranks), cuts(cost_of_cuts) {
  int64_t area = 0;
  for (const AttnSlice& slice : slices) {
    begins.push_back(slice.q_range.begin);
    lengths.push_back(static_cast<int32_t>(slice.q_range.size()));
    padding -= slice.q_range.size();
    area += area_of_first(slice.q_range.size());
  }
  mean_area = std::max<int64_t>(1, area / cp_size);
  most_area = mean_area + static_cast<int64_t>(static_cast<double>(mean_area) * tolerance);
}

// Cuts move to whole tiles of the document.
void PackSearch::list_documents(std::span<const int> rank_of_chunk, int64_t chunk_size) {
  const auto num_ranks = static_cast<size_t>(pack_.cp_size);
  assigned_.assign(pack_.lengths.size(), {});
  price_.assign(pack_.lengths.size(), 0);
  rows_.assign(num_ranks, 0);
  area_.assign(num_ranks, 0);
  price_of_rank_.assign(num_ranks, 0);
  padding_ = -1;
  for (size_t i = 0; i < assigned_.size(); ++i) {
    AssignedDocument& document = assigned_[i];
    const int32_t length = pack_.lengths[i];
    for (auto chunk = static_cast<size_t>(pack_.begins[i] / chunk_size); document.begin_of(document.count) < length;) {
      const int rank = rank_of_chunk[chunk];
      while (++chunk < rank_of_chunk.size() && rank_of_chunk[chunk] == rank) continue;
      const int64_t end = static_cast<int64_t>(chunk) * chunk_size - pack_.begins[i];
      const bool is_last = end + tile_ / 2 >= length || document.count + 1 == AssignedDocument::kMostPieces;
      document.append(is_last ? length : whole_tiles(static_cast<int32_t>(end)), rank);
    }
    for (int k = 0; k < document.count; ++k) {
      const auto rank = static_cast<size_t>(document.rank_of(k));
      rows_[rank] += document.end_of(k) - document.begin_of(k);
      area_[rank] += area(static_cast<int>(i), document.begin_of(k), document.end_of(k));
    }
    price_[i] = price_of_document(document);
  }
  if (pack_.padding > 0) start_padding();
  list_pieces();
}

// To ranks that lack rows, the last one has what is left.
void PackSearch::start_padding() {
  padding_ = static_cast<int>(assigned_.size());
  AssignedDocument& document = assigned_.emplace_back();
  price_.push_back(0);
  const auto all = static_cast<int32_t>(pack_.padding);
  for (int rank = 0; rank < pack_.cp_size; ++rank) {
    const int32_t begin = document.begin_of(document.count);
    const auto lacking = std::max<int64_t>(0, pack_.rows_per_rank - rows_[static_cast<size_t>(rank)]);
    const int32_t end = rank + 1 == pack_.cp_size ? all : static_cast<int32_t>(std::min<int64_t>(all, begin + lacking));
    document.append(end, rank);
    rows_[static_cast<size_t>(rank)] += end - begin;
  }
}

void PackSearch::list_pieces() {
  for (std::vector<Place>& pieces : of_rank_) pieces.clear();
  split_.clear();
  last_of_.assign(assigned_.size() * rows_.size(), 0);
  for (int i = 0; i < static_cast<int>(assigned_.size()); ++i) {
    const AssignedDocument& document = assigned(i);
    for (int k = 0; k < document.count; ++k) {
      of_rank_[static_cast<size_t>(document.rank_of(k))].push_back({i, k, document.begin_of(k), document.end_of(k)});
      last_of(i, document.rank_of(k)) = document.end_of(k);
    }
    if (document.count > 1 && !is_padding(i)) split_.push_back(i);
  }
}

std::vector<RankRun> PackSearch::runs() const {
  std::vector<int64_t> padding_of(static_cast<size_t>(pack_.cp_size));
  for (int k = 0; padding_ >= 0 && k < assigned(padding_).count; ++k) {
    const AssignedDocument& padding = assigned(padding_);
    padding_of[static_cast<size_t>(padding.rank_of(k))] += padding.end_of(k) - padding.begin_of(k);
  }
  std::vector<RankRun> runs;
  const auto next = [&] { return runs.empty() ? 0 : runs.back().end; };
  const auto add = [&](int64_t end, int rank) {
    if (next() == end) return;
    if (!runs.empty() && runs.back().rank == rank) {
      runs.back().end = static_cast<int>(end);
    } else {
      runs.push_back({next(), static_cast<int>(end), rank});
    }
  };
  // Rows that see nothing: to the rank before them while it lacks some, then to others.
  const auto pad = [&](int64_t end) {
    for (int rank = runs.empty() ? 0 : runs.back().rank; next() < end; rank = (rank + 1) % pack_.cp_size) {
      const int64_t count = std::min(end - next(), padding_of[static_cast<size_t>(rank)]);
      padding_of[static_cast<size_t>(rank)] -= count;
      add(next() + count, rank);
    }
  };
  for (size_t i = 0; i < pack_.begins.size(); ++i) {
    pad(pack_.begins[i]);
    for (int k = 0; k < assigned_[i].count; ++k) add(pack_.begins[i] + assigned_[i].end_of(k), assigned_[i].rank_of(k));
  }
  pad(pack_.num_rows);
  return runs;
}

}  // namespace tangram
