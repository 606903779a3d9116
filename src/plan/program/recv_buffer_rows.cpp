// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/recv_buffer_rows.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram {

namespace {

/// Lists, for each row of the shard, the pieces of `casts` received for it, in the order of receive rows. `owned`: by
/// stage, the pieces of the shard that went out.
RowLists lists_of(const std::vector<const std::vector<RowCopy>*>& owned, int64_t shard_rows) {
  RowLists lists;
  lists.begins.assign(static_cast<size_t>(shard_rows) + 1, 0);
  const auto for_each_row = [&](const auto& visit) {
    int32_t recv_buffers = 0;
    for (const auto* pieces : owned) {
      for (const RowCopy& piece : *pieces) {
        for (int64_t row = piece.rows.begin; row < piece.rows.end; ++row)
          visit(static_cast<size_t>(row), recv_buffers++);
      }
    }
  };
  for_each_row([&](size_t row, int32_t) { ++lists.begins[row + 1]; });
  for (size_t row = 0; row + 1 < lists.begins.size(); ++row) lists.begins[row + 1] += lists.begins[row];
  lists.rows.resize(static_cast<size_t>(lists.begins.back()));
  std::vector<int32_t> next(lists.begins.begin(), lists.begins.end() - 1);
  for_each_row([&](size_t row, int32_t recv_buffers) { lists.rows[static_cast<size_t>(next[row]++)] = recv_buffers; });
  return lists;
}

}  // namespace

RecvBufferRows recv_buffer_rows(const std::vector<MovementRank>& pass, size_t self, Exchange MovementStage::* table,
                                int64_t shard_rows) {
  RecvBufferRows result;
  const size_t num_stages = pass[self].stages.size();
  result.casts.resize(num_stages);
  for (size_t owner = 0; owner < pass.size(); ++owner) {
    int64_t rows = 0;
    for (size_t s = 0; s < num_stages; ++s) {
      // The pieces that the owner sent to this rank are those that it received from there, in the same order.
      const std::vector<RowCopy>& received = (pass[self].stages[s].*table).recvs;
      auto mine = std::find_if(received.begin(), received.end(),
                               [&](const RowCopy& copy) { return static_cast<size_t>(copy.peer) == owner; });
      for (const RowCopy& copy : (pass[owner].stages[s].*table).sends) {
        if (owner == self) {
          result.casts[s].recvs.push_back({copy.peer, {rows, rows + copy.rows.size()}, copy.peer_row});
        } else if (static_cast<size_t>(copy.peer) == self) {
          TANGRAM_ASSERT(mine != received.end() && static_cast<size_t>(mine->peer) == owner &&
                         mine->rows.begin == copy.peer_row && mine->rows.size() == copy.rows.size());
          result.casts[s].sends.push_back({static_cast<int>(owner), mine->rows, rows});
          ++mine;
        }
        rows += copy.rows.size();
      }
    }
    if (owner == self) result.rows = rows;
    result.most_rows = std::max(result.most_rows, rows);
  }
  std::vector<const std::vector<RowCopy>*> owned;
  for (const MovementStage& stage : pass[self].stages) owned.push_back(&(stage.*table).sends);
  result.of_shard_row = lists_of(owned, shard_rows);
  return result;
}

}  // namespace tangram
