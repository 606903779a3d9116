// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What must change hands where some causal documents lie with one rank and the rest with the other. If a rank holds all
// rows of a document from row y on, and the other rank row y - 1, each of the y rows before moves once, whichever rank
// holds it. So a cut document costs y, the place of its last cut, and the rows before it may lie as they balance best.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/refine.hpp"

namespace tangram {

struct PackedDocument {
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t area = 0;
};

/// Visible cells of rows [begin, end) of a causal document, and of its first rows.
inline int64_t area_of_rows(int64_t begin, int64_t end) { return (end - begin) * (begin + end + 1) >> 1; }
inline int64_t area_of_first(int64_t rows) { return area_of_rows(0, rows); }

/// Rows and visible cells of two ranks.
struct PackHalves {
  std::array<int64_t, 2> rows{};
  std::array<int64_t, 2> area{};

  void move(size_t from, int64_t moved_rows, int64_t moved_area) {
    rows[from] -= moved_rows;
    rows[1 - from] += moved_rows;
    area[from] -= moved_area;
    area[1 - from] += moved_area;
  }
};

/// Limits of rows and area of a rank.
struct PackBounds {
  int64_t rows = 0;
  int64_t area = 0;
};

/// Lower estimate of the rows to exchange, as if rows could be cut anywhere at no cost: no exchange that `PackExchange`
/// makes is much cheaper.
struct ExchangeEstimate {
  size_t giver = 0;  ///< the rank with more area
  double given = 0;  ///< its rows: those before row `last` of one document where area is too much, else first rows
  double last = 0;
  double returned = 0;  ///< first rows of the other's documents

  double price() const { return last + returned; }
};

/// `heads`: documents of either rank that can give first rows: of the more, the less area these have.
ExchangeEstimate estimate_exchange(const PackHalves& halves, const PackBounds& bounds, std::array<int, 2> heads);

/// Parts of documents that change hands so that both ranks keep to the bounds. Cuts lie at whole tiles, counted from
/// where the document begins, but for one.
class PackExchange {
 public:
  /// Rows [begin, end) of a document that the other rank gets than holds it.
  struct Part {
    size_t document = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };

  /// Keeps `documents` by reference.
  PackExchange(const std::vector<PackedDocument>& documents, const PackBounds& bounds, const CutCost& cuts)
      : documents_(documents), bounds_(bounds), tile_(cuts.tile_rows), rows_per_key_(cuts.rows_per_key) {}

  /// Documents that may be cut, the largest first, and who holds them.
  std::vector<size_t>& cut() { return cut_; }
  std::vector<uint8_t>& owner_of_cut() { return owner_of_cut_; }

  /// Whether there is an exchange in which rank `giver`, which has more area, gives `given` rows (whole tiles, or 0)
  /// and a few more. `halves`: before it.
  bool make(PackHalves halves, size_t giver, int64_t given);
  const std::vector<Part>& parts() const { return parts_; }
  /// Rows that move, and what cuts inside a tile cost beside.
  double price() const { return price_; }
  /// Part of price() for rows that are no whole tile: about the same for any assignment of documents.
  double price_of_rest() const { return price_of_rest_; }

 private:
  bool give_heads(PackHalves& halves, size_t from, int64_t rows, bool evenly);
  bool give_middle(PackHalves& halves, size_t from, int64_t rows);
  bool give_rest(PackHalves& halves, size_t from, int64_t rows);
  void give(PackHalves& halves, size_t from, const Part& part);
  int64_t whole_tiles(double rows) const;

  const std::vector<PackedDocument>& documents_;
  PackBounds bounds_;
  int64_t tile_;
  double rows_per_key_;
  std::vector<size_t> cut_;
  std::vector<uint8_t> owner_of_cut_;
  std::vector<Part> parts_;
  double price_ = 0, price_of_rest_ = 0;
};

}  // namespace tangram
