// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Exchange tables: which rows move between ranks. Made by plan, executed by comm; neither knows the other.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/range.hpp"

namespace tangram {

/// One contiguous piece of an exchange, seen from one rank: my `rows` and the same number of rows at `peer`, starting
/// at `peer_row`.
struct RowCopy {
  int peer = 0;
  Range rows;
  int64_t peer_row = 0;

  friend constexpr auto operator<=>(const RowCopy&, const RowCopy&) = default;
};

/// One rank's side of a group_cast and, read backwards, of the matching group_reduce.
///
/// group_cast: rows `sends[i].rows` of my source go to row `sends[i].peer_row` of the destination of `sends[i].peer`.
/// Rows `recvs[i].rows` of my destination come from row `recvs[i].peer_row` of the source of `recvs[i].peer`.
/// group_reduce: my partial rows `recvs[i].rows` go back to their owner, which reduces them into `sends[i].rows`.
///
/// Both lists are sorted by (peer, rows), free of overlap within a peer, and never name the rank itself. The sends of
/// rank a to b and the recvs of b from a are the same pieces in the same order on both ranks.
struct Exchange {
  std::vector<RowCopy> sends;
  std::vector<RowCopy> recvs;

  int64_t rows_sent() const;
  int64_t rows_received() const;

  friend bool operator==(const Exchange&, const Exchange&) = default;
};

}  // namespace tangram
