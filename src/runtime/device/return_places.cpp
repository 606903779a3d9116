// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/return_places.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "runtime/device/device_rank.hpp"

namespace tangram::device {

namespace {

constexpr uint32_t kNowhere = ~uint32_t{0};

/// NOTE [settled rows]: own rows that only this rank's queries see, so that no peer adds to their gradients: the kernel
/// writes these where they belong, rounded, and no merge reads them again.
std::vector<char> find_settled_rows(const DeviceRank& rank) {
  std::vector<char> settled(static_cast<size_t>(rank.base.k_shard_rows()), 0);
  const auto mark = [&](const Range& rows, char value) {
    std::fill(settled.begin() + rows.begin, settled.begin() + rows.end, value);
  };
  for (const KeyStretch& own : own_stretches(rank.plan(), rank.base.rank))
    mark({own.row, own.row + own.keys.size()}, 1);
  for (const Stage& stage : rank.plan().backward) {
    for (const RowCopy& sent : stage.exchange.sends) mark(sent.rows, 0);
  }
  return settled;
}

/// Own rows that no query of this rank sees.
std::vector<char> find_absent_rows(const DeviceRank& rank) {
  std::vector<char> absent(static_cast<size_t>(rank.base.k_shard_rows()), 1);
  for (const KeyStretch& own : own_stretches(rank.plan(), rank.base.rank)) {
    std::fill_n(absent.begin() + own.row, own.keys.size(), char{0});
  }
  return absent;
}

std::vector<Range> ranges_of(const std::vector<char>& marked) {
  std::vector<Range> ranges;
  for (int64_t row = 0; row < std::ssize(marked); ++row) {
    if (marked[static_cast<size_t>(row)] == 0) continue;
    if (ranges.empty() || ranges.back().end != row) ranges.push_back({row, row});
    ranges.back().end = row + 1;
  }
  return ranges;
}

/// By row of the K/V buffer; kNowhere where the transport has no place for it.
std::vector<uint32_t> find_places(const DeviceRank& rank, const std::vector<char>& settled) {
  std::vector<uint32_t> places(static_cast<size_t>(rank.kv_rows()), kNowhere);
  for (const KvSegment& segment : rank.plan().segments) {
    if (segment.owner != rank.base.rank) continue;
    for (int64_t i = 0; i < segment.global.size(); ++i) {
      const int64_t own = segment.owner_row + i;
      const uint32_t tensor = settled[static_cast<size_t>(own)] != 0 ? kSettledTensor : kOwnTensor;
      places[static_cast<size_t>(segment.row + i)] = gradient_place(tensor, own);
    }
  }
  for (int stage = 1; stage < rank.backward.num_stages; ++stage) {
    for (const ReturnTarget& target : rank.backward.pass->return_targets(stage - 1, 0, 0)) {
      if (target.row + target.partial.size() > (int64_t{1} << kGradientRowBits)) continue;
      for (int64_t i = 0; i < target.partial.size(); ++i) {
        places[static_cast<size_t>(target.partial.begin + i)] =
            gradient_place(kFirstOtherTensor + static_cast<uint32_t>(target.owner), target.row + i);
      }
    }
  }
  return places;
}

/// [return slots, 2, ranks], null for ranks to which nothing goes.
std::vector<void*> find_others(const DeviceRank& rank, int num_slots, int num_ranks) {
  std::vector<void*> others(static_cast<size_t>(num_slots * 2 * num_ranks), nullptr);
  for (int slot = 0; slot < num_slots; ++slot) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      for (int stage = 1; stage < rank.backward.num_stages; ++stage) {
        for (const ReturnTarget& target : rank.backward.pass->return_targets(stage - 1, tensor, slot)) {
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
  places.of_key = of_key.as<uint32_t>();
  places.dk_others = others.as<void*>() + slot * 2 * num_ranks;
  places.dv_others = places.dk_others + num_ranks;
  return places;
}

void prepare_returns(DeviceRank& rank) {
  PassSetup& setup = rank.backward;
  const DType dtype = rank.base.plan->config.reduce_dtype;
  const int64_t own_rows = rank.base.k_shard_rows();
  if (!setup.is_single_launch || (dtype != DType::kFloat32 && dtype != rank.heads().dtype) ||
      own_rows > (int64_t{1} << kGradientRowBits)) {
    return;
  }
  const std::vector<char> none(static_cast<size_t>(own_rows), 0);
  std::vector<uint32_t> places = find_places(rank, none);
  if (std::find(places.begin(), places.end(), kNowhere) != places.end()) return;
  const std::vector<char> settled = find_settled_rows(rank);
  ReturnPlaces& returns = setup.returns;
  if (setup.pass->leave_rows(ranges_of(settled), ranges_of(find_absent_rows(rank)))) {
    places = find_places(rank, settled);
  } else {
    returns.clears_own = true;
  }
  returns.num_ranks = rank.communicator->size();
  returns.of_key = cuda::DeviceBuffer::copy_of(places);
  returns.others = cuda::DeviceBuffer::copy_of(find_others(rank, kReturnSlots, returns.num_ranks));
  rank.local_dtype = dtype;
  setup.stores_returns = true;
}

}  // namespace tangram::device
