// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The area of any rows of a mask in constant time and memory of its slices, however many rows there are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram {

class RowAreas {
 public:
  /// Slices canonical, of a mask with `num_rows` query rows.
  RowAreas(std::span<const AttnSlice> slices, int64_t num_rows);

  /// Area of the rows before `row`, which lies in [0, num_rows].
  int64_t before(int64_t row) const {
    const Piece& piece = piece_of(row);
    const int64_t n = row - piece.row;
    return piece.area + n * piece.keys + piece.slope * (n * (n - 1) / 2);
  }
  /// Keys that one row sees.
  int64_t keys_of(int64_t row) const {
    const Piece& piece = piece_of(row);
    return piece.keys + piece.slope * (row - piece.row);
  }

 private:
  // Rows from `row` on see `keys`, `keys + slope`, ... keys.
  struct Piece {
    int64_t row = 0;
    int64_t area = 0;  // of all rows before
    int64_t keys = 0;
    int64_t slope = 0;
  };

  const Piece& piece_of(int64_t row) const {
    size_t i = first_[static_cast<size_t>(row >> shift_)];
    while (i + 1 < pieces_.size() && pieces_[i + 1].row <= row) ++i;
    return pieces_[i];
  }

  std::vector<Piece> pieces_;
  std::vector<uint32_t> first_;  // the piece of every 2^shift-th row
  int shift_ = 0;
};

}  // namespace tangram
