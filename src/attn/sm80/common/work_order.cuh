// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which rows and keys a ticket of a forward kernel stands for.
#pragma once

#include <cstdint>

#include "attn/sm80/forward/params.hpp"

namespace tangram::sm80 {

/// What a work tile needs until its end.
struct WorkRows {
  int32_t row0, num_rows;
  int32_t group;
  int32_t part_row;  ///< not negative: its rows go to the workspace, there
  int32_t kv_head;

  __device__ __forceinline__ bool is_part() const { return part_row >= 0; }
};

/// Order of work: sections of head groups whose K and V share the L2 cache; in a section by work tile (longest first),
/// the groups innermost, so that CTAs that run together read the same keys.
__device__ __forceinline__ void locate_work(const ForwardParams& params, int32_t ticket, int32_t* work_tile,
                                            int32_t* group) {
  const int32_t section_size = params.num_work_tiles * params.groups_per_section;
  const int32_t section = ticket / section_size;
  const int32_t in_section = ticket - section * section_size;
  const int32_t first_group = section * params.groups_per_section;
  const int32_t groups = min(params.groups_per_section, params.num_groups - first_group);
  *work_tile = in_section / groups;
  *group = first_group + in_section - *work_tile * groups;
}

/// A work tile: its rows, and the runs of keys that they see.
struct WorkPlace {
  WorkRows rows;
  int32_t run, run_end;
};
__device__ __forceinline__ WorkPlace begin_work(const ForwardParams& params, int32_t ticket) {
  int32_t work_tile, group;
  locate_work(params, ticket, &work_tile, &group);
  if (params.work_tile_groups != nullptr) group = __ldg(params.work_tile_groups + work_tile);
  const int4 tile = __ldg(reinterpret_cast<const int4*>(params.work_tiles) + work_tile);
  return {{tile.x, tile.y - tile.x, group, params.part_rows == nullptr ? -1 : __ldg(params.part_rows + work_tile),
           (group << params.pack_log2) / params.heads_per_kv},
          tile.z,
          tile.w};
}

}  // namespace tangram::sm80
