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

}  // namespace tangram
