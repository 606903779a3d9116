// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/return_places.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "core/require.hpp"

namespace tangram {

namespace {

constexpr uint32_t kNowhere = ~uint32_t{0};

const AttendOp* find_call_that_stores(const Program& program) {
  for (const Op& op : program.ops) {
    const auto* call = std::get_if<AttendOp>(&op);
    if (call != nullptr && call->stored_dk.memory != Memory::kNone) return call;
  }
  return nullptr;
}

/// By row of dk, of which dv has the same: each has one.
std::vector<uint32_t> find_places(const AttendOp& call, const DevicePass& pass, int num_stages) {
  std::vector<uint32_t> places(static_cast<size_t>(call.dk.rows), kNowhere);
  for (const RowSumOp& store : call.stores) {
    if (store.source.region != call.dk.region) continue;
    const uint32_t tensor = store.result.memory == Memory::kDk ? kSettledTensor : kOwnTensor;
    for (int64_t i = 0; i < store.source.rows; ++i) {
      places[static_cast<size_t>(store.source.first_row + i)] = gradient_place(tensor, store.result.first_row + i);
    }
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    for (const ReturnTarget& target : pass.return_targets(stage, 0, 0)) {
      TANGRAM_ASSERT(target.row + target.partial.size() <= int64_t{1} << kGradientRowBits);
      for (int64_t i = 0; i < target.partial.size(); ++i) {
        places[static_cast<size_t>(target.partial.begin + i)] =
            gradient_place(kFirstOtherTensor + static_cast<uint32_t>(target.owner), target.row + i);
      }
    }
  }
  TANGRAM_ASSERT(std::find(places.begin(), places.end(), kNowhere) == places.end());
  return places;
}

/// [return slots, 2, ranks], null for ranks to which nothing goes.
std::vector<void*> find_others(const DevicePass& pass, int num_stages, int num_slots, int num_ranks) {
  std::vector<void*> others(static_cast<size_t>(num_slots * 2 * num_ranks), nullptr);
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
  return others;
}

}  // namespace

GradientPlaces ReturnPlaces::in_slot(int slot) const {
  GradientPlaces places;
  places.of_key = static_cast<const uint32_t*>(of_key.get());
  places.dk_others = static_cast<void* const*>(others.get()) + slot * 2 * num_ranks;
  places.dv_others = places.dk_others + num_ranks;
  return places;
}

std::unique_ptr<ReturnPlaces> make_return_places(const Program& program, const ArenaLayout& layout, DevicePass& pass,
                                                 int num_slots, int num_ranks, const ProgramDevice& device) {
  const AttendOp* const call = find_call_that_stores(program);
  if (call == nullptr) return nullptr;
  const auto& finish = std::get<FinishOp>(program.ops.back());
  const bool leaves = pass.leave_rows(finish.left, finish.absent);
  TANGRAM_ASSERT(leaves);
  const int num_stages = static_cast<int>(layout.returns.size());
  const std::vector<uint32_t> of_key = find_places(*call, pass, num_stages);
  const std::vector<void*> others = find_others(pass, num_stages, num_slots, num_ranks);
  auto places = std::make_unique<ReturnPlaces>();
  places->of_key = device.keep(std::as_bytes(std::span(of_key)));
  places->others = device.keep(std::as_bytes(std::span(others)));
  places->num_ranks = num_ranks;
  places->bytes = static_cast<int64_t>(std::span(of_key).size_bytes() + std::span(others).size_bytes());
  return places;
}

}  // namespace tangram
