// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Improves the assignment of a causal pack to a few ranks, by the moves of refine.hpp. The cost of moves is computed
// here without looking at runs of the whole mask. See docs/design/dispatch.md, "Packs over three to eight ranks".
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/pack_exchange.hpp"
#include "plan/refine.hpp"
#include "plan/run_list.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// Rows of one document up to `end` (those before are other pieces') with one rank.
struct AssignedPiece {
  int32_t end;
  int32_t rank;
};

/// Who holds the rows of a document. Neighbouring pieces have different ranks.
struct AssignedDocument {
  static constexpr int kMostPieces = 31;

  int32_t count = 0;
  std::array<AssignedPiece, kMostPieces> pieces;

  int32_t begin_of(int k) const { return k == 0 ? 0 : end_of(k - 1); }
  int32_t end_of(int k) const { return pieces[static_cast<size_t>(k)].end; }
  int32_t rank_of(int k) const { return pieces[static_cast<size_t>(k)].rank; }
  /// Rows up to `end`; false where there is no room for another piece.
  bool append(int32_t end, int32_t rank) {
    if (end <= begin_of(count)) return true;
    if (count > 0 && rank_of(count - 1) == rank) --count;
    if (count == kMostPieces) return false;
    pieces[static_cast<size_t>(count++)] = {end, rank};
    return true;
  }
};

/// Documents of a causal pack, and what a rank may hold of them.
struct CausalPack {
  /// `cuts.tile_rows`: a power of two.
  CausalPack(std::span<const AttnSlice> slices, int64_t num_rows, int cp_size, double tolerance, const CutCost& cuts);

  std::vector<int64_t> begins;
  std::vector<int32_t> lengths;
  int64_t padding = 0;  ///< rows that no document has
  int64_t num_rows;
  int cp_size;
  int64_t rows_per_rank;
  int64_t mean_area;
  int64_t most_area;  ///< that counts as balanced
  CutCost cuts;
};

class PackSearch {
 public:
  /// Keeps the pack by reference.
  explicit PackSearch(const CausalPack& pack);
  PackSearch(const PackSearch&) = delete;
  PackSearch& operator=(const PackSearch&) = delete;

  /// A search has so many phases, in which areas become dearer and dearer, and an end.
  static constexpr int kNumPhases = 5;

  /// Starts from an assignment with a rank for each `chunk_size` rows; the rows of ranks may differ. The whole search
  /// makes about `num_proposals`. Deterministic.
  void begin(std::span<const int> rank_of_chunk, int64_t chunk_size, uint64_t seed, int num_proposals);
  /// Phases up to `end`, from where the last call stopped.
  void run_phases(int end);
  /// The end of a search. Returns whether every rank has its number of rows and at most its area.
  bool finish();

  /// Rows that move, and what cuts inside of tiles cost beside.
  double price() const;
  /// Besides, what ranks are off at the prices of now: to compare searches that have come equally far.
  double total() const;
  /// All rows by rank, in order. Padding goes where rows are missing.
  std::vector<RankRun> runs() const;

 private:
  struct Place {  // a piece
    int32_t document = -1;
    int32_t piece = 0;
    int32_t begin = 0;
    int32_t end = 0;
  };
  struct Move {  // rows of a piece that change their rank
    int32_t document = 0;
    int32_t piece = 0;
    int32_t begin = 0;
    int32_t end = 0;
    int32_t to = 0;

    int32_t size() const { return end - begin; }
  };

  bool is_padding(int document) const { return document == padding_; }
  const AssignedDocument& assigned(int document) const { return assigned_[static_cast<size_t>(document)]; }
  int64_t area(int document, int64_t begin, int64_t end) const {
    return is_padding(document) ? 0 : area_of_rows(begin, end);
  }
  int64_t area(const Move& move) const { return area(move.document, move.begin, move.end); }
  std::span<Move> moves() { return {moves_.data(), num_moves_}; }

  void set_prices(double row, double area);
  // Prices, in moved rows, of a row too many or too few and of area above the limit.
  double price(double off, double excess) const {
    const double missed = std::abs(off);
    const double far = std::max(0.0, missed - near_rows_);
    return missed * price_of_near_ + far * (1 + far * share_of_row_) * price_of_far_ +
           std::max(0.0, excess) * price_of_area_;
  }
  double price_of(int64_t rows, int64_t area) const {
    return price(static_cast<double>(rows - pack_.rows_per_rank), static_cast<double>(area - pack_.most_area));
  }
  double price_of(int rank) const { return price_of_rank_[static_cast<size_t>(rank)]; }
  int32_t& last_of(int document, int rank) {
    return last_of_[static_cast<size_t>(document) * rows_.size() + static_cast<size_t>(rank)];
  }
  double price_of_cut(int32_t row) const { return (row & (tile_ - 1)) == 0 ? 0 : row * pack_.cuts.rows_per_key; }
  double price_of_document(const AssignedDocument& document) const;
  double change_of(const Move& move);
  bool give(AssignedDocument& document, const Move& move);

  void list_documents(std::span<const int> rank_of_chunk, int64_t chunk_size);
  void start_padding();
  void list_pieces();
  void price_ranks();
  double change(double limit);
  void apply();
  void search_share(double share);  // of num_proposals_
  bool equalise();
  bool is_balanced() const { return *std::max_element(area_.begin(), area_.end()) <= pack_.most_area; }

  // Proposals: fill moves_, all of them between ranks a_ and b_.
  void propose();
  void propose_in_split();
  void propose_mending();
  void propose_swap();
  void shift_cut(int document, int piece);
  void give_part(const Place& place, int to);
  void give_all(int document, int from, int to);
  void release();
  bool is_hopeless();
  void add_move(const Place& place, int32_t begin, int32_t end, int to);
  int32_t whole_tiles(int32_t row) const { return (row + tile_ / 2) & -tile_; }

  uint64_t random() {
    // splitmix64 (Steele, Lea, Flood, 2014)
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int random_below(size_t limit) { return static_cast<int>((random() >> 32) * static_cast<uint64_t>(limit) >> 32); }
  int32_t random_size(int32_t limit);

  const CausalPack& pack_;
  int32_t tile_;
  int padding_ = -1;  // a document without area, if there is padding
  double share_of_row_;
  std::vector<AssignedDocument> assigned_;
  std::vector<double> price_;     // of each document
  std::vector<int32_t> last_of_;  // end of the last piece of each rank in each document, 0 where it has none
  std::vector<double> price_of_rank_;
  std::vector<int> split_;  // documents in several pieces
  std::vector<std::vector<Place>> of_rank_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> area_;
  int num_proposals_ = 0;
  int next_phase_ = 0;
  double price_of_near_ = 0;  // of a row too many or too few
  double price_of_far_ = 0;   // besides, of each beyond `near_rows_`
  double near_rows_;
  double price_of_area_ = 0;
  double heat_ = 0;
  uint64_t state_ = 0;
  // The change that is being tried.
  int a_ = 0;
  int b_ = 0;
  size_t num_moves_ = 0;
  std::array<Move, 16> moves_;
  AssignedDocument scratch_;
  AssignedDocument given_;
};

}  // namespace tangram
