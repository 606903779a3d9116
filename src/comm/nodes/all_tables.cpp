// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/all_tables.hpp"

#include <algorithm>

#include "comm/all_gather.hpp"

namespace tangram::comm {

std::vector<std::vector<RowCopy>> gather_sends(Communicator& world, std::vector<RowCopy> own) {
  const std::vector<int64_t> counts = all_gather(world, static_cast<int64_t>(own.size()), "tables");
  const auto longest = static_cast<size_t>(std::ranges::max(counts));
  own.resize(longest);
  const std::vector<RowCopy> all = all_gather(world, own, "tables");
  std::vector<std::vector<RowCopy>> sends;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(rank * longest);
    sends.emplace_back(begin, begin + counts[rank]);
  }
  return sends;
}

std::vector<Exchange> exchanges_of(std::vector<std::vector<RowCopy>> sends) {
  std::vector<Exchange> ranks(sends.size());
  for (size_t rank = 0; rank < sends.size(); ++rank) {
    for (const RowCopy& copy : sends[rank]) {
      ranks[static_cast<size_t>(copy.peer)].recvs.push_back(
          {static_cast<int>(rank), {copy.peer_row, copy.peer_row + copy.rows.size()}, copy.rows.begin});
    }
    ranks[rank].sends = std::move(sends[rank]);
  }
  for (Exchange& exchange : ranks) std::ranges::sort(exchange.recvs);
  return ranks;
}

}  // namespace tangram::comm
