// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/return_places.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "core/require.hpp"

namespace tangram {

namespace {

const AttendOp* find_call_that_stores(const Program& program) {
  for (const Op& op : program.ops) {
    const auto* call = std::get_if<AttendOp>(&op);
    if (call != nullptr && call->stored_dk.memory != Memory::kNone) return call;
  }
  return nullptr;
}

/// Finds the place of each row of dk; rows of dv have equal places.
void find_places(const AttendOp& call, const DevicePass& pass, int num_stages, std::span<uint32_t> places) {
  int64_t num_set = 0;
  const auto set = [&](int64_t first, int64_t rows, uint32_t place) {
    TANGRAM_ASSERT(first >= 0 && first + rows <= std::ssize(places));
    std::iota(places.begin() + first, places.begin() + first + rows, place);
    num_set += rows;
  };
  for (const RowSumOp& store : call.stores) {
    if (store.source.region != call.dk.region) continue;
    const uint32_t tensor = store.result.memory == Memory::kDk ? kFinalTensor : kOwnTensor;
    set(store.source.first_row, store.source.rows, dkv_scatter_target(tensor, store.result.first_row));
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    for (const ReturnTarget& target : pass.return_targets(stage, 0, 0)) {
      TANGRAM_ASSERT(target.row + target.partial.size() <= int64_t{1} << kGradientRowBits);
      set(target.partial.begin, target.partial.size(),
          dkv_scatter_target(kFirstOtherTensor + static_cast<uint32_t>(target.owner), target.row));
    }
  }
  TANGRAM_ASSERT(num_set == std::ssize(places));
}

/// [return slots, 2, ranks], null for ranks to which nothing goes.
void find_others(const DevicePass& pass, int num_stages, int num_slots, int num_ranks, std::span<void*> others) {
  std::fill(others.begin(), others.end(), nullptr);
  for (int slot = 0; slot < num_slots; ++slot) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      for (int stage = 0; stage < num_stages; ++stage) {
        for (const ReturnTarget& target : pass.return_targets(stage, tensor, slot)) {
          void*& base = others[static_cast<size_t>((slot * 2 + tensor) * num_ranks + target.owner)];
          TANGRAM_ASSERT(base == nullptr || base == target.base);
          base = target.base;
        }
      }
    }
  }
}

}  // namespace

bool stores_rows(const Program& program) { return find_call_that_stores(program) != nullptr; }

DkvScatterMap ReturnScatterMap::in_slot(int slot, void* stream) const {
  kept->before_call(stream);
  DkvScatterMap places;
  void* const* const others = static_cast<void* const*>(kept->data());
  places.dk_others = others + slot * 2 * num_ranks;
  places.dv_others = places.dk_others + num_ranks;
  places.of_key = reinterpret_cast<const uint32_t*>(others + num_slots * 2 * num_ranks);
  return places;
}

std::unique_ptr<ReturnScatterMap> make_return_places(const Program& program, const ArenaLayout& layout,
                                                     DevicePass& pass, int num_slots, int num_ranks,
                                                     KeptTogether& kept) {
  const AttendOp* const call = find_call_that_stores(program);
  if (call == nullptr) return nullptr;
  const auto& finish = std::get<FinishOp>(program.ops.back());
  const bool leaves = pass.leave_rows(finish.left, finish.absent);
  TANGRAM_ASSERT(leaves);
  const int num_stages = static_cast<int>(layout.returns.size());
  const auto num_others = static_cast<size_t>(num_slots * 2 * num_ranks),
             num_places = static_cast<size_t>(call->dk.rows);
  const size_t bytes = num_others * sizeof(void*) + num_places * sizeof(uint32_t);
  auto places = std::make_unique<ReturnScatterMap>();
  places->kept = kept.add(bytes, [=, &pass](std::byte* to) {
    auto* const others = reinterpret_cast<void**>(to);
    find_others(pass, num_stages, num_slots, num_ranks, {others, num_others});
    find_places(*call, pass, num_stages, {reinterpret_cast<uint32_t*>(others + num_others), num_places});
  });
  places->num_slots = num_slots;
  places->num_ranks = num_ranks;
  places->bytes = static_cast<int64_t>(bytes);
  return places;
}

}  // namespace tangram
