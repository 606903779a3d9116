// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/exchange.hpp"

namespace tangram {

namespace {

int64_t count_rows(const std::vector<RowCopy>& copies) {
  int64_t rows = 0;
  for (const RowCopy& copy : copies) rows += copy.rows.size();
  return rows;
}

}  // namespace

int64_t Exchange::rows_sent() const { return count_rows(sends); }
int64_t Exchange::rows_received() const { return count_rows(recvs); }

}  // namespace tangram
