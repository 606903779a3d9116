// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where a backward call stores each row of dk and dv: at the owner, in the result, or in the own part.
#pragma once

#include <memory>

#include "plan/program/arena.hpp"
#include "runtime/device/kept_together.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dkv_scatter_map.hpp"

namespace tangram {

/// DkvScatterMap of the call of a program that stores rows, made once.
struct ReturnScatterMap {
  /// [return slots, 2, ranks]: addresses of the return areas of dk and dv; then uint32 [kv rows].
  std::shared_ptr<const KeptMemory> kept;
  int num_slots = 0;
  int num_ranks = 0;
  int64_t bytes = 0;

  /// Scatter map, without final tensors, in return slot `slot`, for a call that is put on `stream`.
  DkvScatterMap in_slot(int slot, void* stream) const;
};

/// Whether a call of the program stores rows, so that the pass leaves some alone.
bool stores_rows(const Program& program);

/// Scatter map of the program's call with AttendOp::stored_dk; its casts are those of `pass`, with `num_slots` return
/// slots. Null if no call stores rows. Tells the pass which rows it leaves alone. Program and pass are read once more
/// by kept.keep().
std::unique_ptr<ReturnScatterMap> make_return_places(const Program& program, const ArenaLayout& layout,
                                                     DevicePass& pass, int num_slots, int num_ranks,
                                                     KeptTogether& kept);

}  // namespace tangram
