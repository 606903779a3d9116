// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/arena.hpp"

#include <algorithm>
#include <variant>
#include <vector>

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

/// Whether K/V alone move.
bool lands_by_region(const Program& program) {
  return program.closes() || (!program.ops.empty() && std::holds_alternative<OpenOp>(program.ops.front()));
}

Exchange in_units(const ArenaLayout& layout, const GroupCast& cast) {
  Exchange units;
  for (const GroupCastTensor& item : cast.items) {
    append(layout, item.exchange->sends, item.source, item.target, units.sends);
    append(layout, item.exchange->recvs, item.target, item.source, units.recvs);
  }
  std::sort(units.sends.begin(), units.sends.end());
  std::sort(units.recvs.begin(), units.recvs.end());
  return units;
}

/// Their numbers, as operations begin them. The backward pass of a ring casts blocks of keys and of gradients in turns.
std::vector<int> casts_in_order(const Program& program) {
  std::vector<int> order;
  for (const Op& op : program.ops) {
    if (const auto* cast = std::get_if<GroupCastOp>(&op)) order.push_back(cast->cast);
  }
  TANGRAM_ASSERT(order.size() == program.casts.size());
  return order;
}

}  // namespace

ArenaLayout lay_out_arena(const Program& program) {
  ArenaLayout layout;
  const bool by_region = lands_by_region(program);
  for (const Region& region : program.regions) {
    if (region.memory == Memory::kArena && by_region)
      layout.recv_buffers.push_back(static_cast<int>(layout.offsets.size()));
    if (region.memory == Memory::kDirectStore || region.memory == Memory::kReturned) {
      layout.offsets.push_back(-1);
      continue;
    }
    int64_t& end = region.memory == Memory::kArena ? layout.arena_bytes : layout.work_bytes;
    layout.offsets.push_back(end);
    end += round_up(region.bytes(), kAlignment);
  }
  layout.stages.resize(program.casts.size());
  for (const int number : casts_in_order(program)) {
    const GroupCast& cast = program.casts[static_cast<size_t>(number)];
    const bool returns = !cast.items.empty() && cast.items.front().target.memory == Memory::kReturned;
    std::vector<Exchange>& stages = returns ? layout.returns : layout.casts;
    layout.stages[static_cast<size_t>(number)] = {returns, static_cast<int>(stages.size())};
    stages.push_back(by_region ? *cast.items.front().exchange : in_units(layout, cast));
  }
  return layout;
}

}  // namespace tangram
