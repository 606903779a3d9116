// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/arena.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "core/rounding.hpp"

namespace tangram {

namespace {

constexpr int64_t kAlignment = 256;

/// `row` of `tensor` in arena units.
int64_t unit_of(const ArenaLayout& layout, const TensorRef& tensor, int64_t row) {
  TANGRAM_ASSERT(tensor.memory == Memory::kArena);
  const int64_t byte =
      layout.offsets[static_cast<size_t>(tensor.region)] + (tensor.first_row + row) * tensor.row_bytes();
  TANGRAM_ASSERT(byte % kArenaUnit == 0);
  return byte / kArenaUnit;
}

void append(const ArenaLayout& layout, const std::vector<RowCopy>& rows, const TensorRef& mine, const TensorRef& theirs,
            std::vector<RowCopy>& units) {
  for (const RowCopy& copy : rows) {
    units.push_back({copy.peer,
                     {unit_of(layout, mine, copy.rows.begin), unit_of(layout, mine, copy.rows.end)},
                     unit_of(layout, theirs, copy.peer_row)});
  }
}

}  // namespace

ArenaLayout lay_out_arena(const Program& program) {
  ArenaLayout layout;
  for (const Region& region : program.regions) {
    int64_t& end = region.memory == Memory::kArena ? layout.arena_bytes : layout.work_bytes;
    layout.offsets.push_back(end);
    end += round_up(region.bytes(), kAlignment);
  }
  for (const Cast& cast : program.casts) {
    Exchange units;
    for (const CastItem& item : cast.items) {
      append(layout, item.exchange->sends, item.source, item.target, units.sends);
      append(layout, item.exchange->recvs, item.target, item.source, units.recvs);
    }
    std::sort(units.sends.begin(), units.sends.end());
    std::sort(units.recvs.begin(), units.recvs.end());
    layout.casts.push_back(std::move(units));
  }
  return layout;
}

}  // namespace tangram
