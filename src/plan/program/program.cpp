// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/program.hpp"

#include "core/require.hpp"

namespace tangram {

TensorRef TensorRef::slice(Range range) const {
  TANGRAM_ASSERT(range.begin >= 0 && range.end <= rows);
  TensorRef result = *this;
  result.first_row += range.begin;
  result.rows = range.size();
  return result;
}

int64_t Program::bytes_received() const {
  int64_t bytes = 0;
  for (const Cast& cast : casts) {
    for (const CastItem& item : cast.items) {
      const int64_t rows = cast.adds ? item.exchange->rows_sent() : item.exchange->rows_received();
      bytes += rows * item.target.row_bytes();
    }
  }
  return bytes;
}

}  // namespace tangram
