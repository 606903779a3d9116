// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The shared memory of a forward kernel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attn/sm90/common/ready_flags.cuh"
#include "attn/sm90/forward/messages.cuh"
#include "attn/sm90/forward/traits.cuh"

namespace tangram::sm90 {

/// A run and the next one, of kernels that fetch them ahead.
struct FetchedRuns {
  alignas(16) TileRange run[2];
};
struct NoFetchedRuns {};

template <typename Traits>
struct alignas(1024) ForwardSmem {
  alignas(1024) unsigned char q[Traits::kStagesQ][Traits::kBytesQ];
  alignas(1024) unsigned char k[Traits::kStagesK][Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kStagesV][Traits::kBytesV];
  StepMessage step[Traits::kStagesK];
  WorkTileRows<Traits::kSplitKv> work_tiles[2];
  RowInterval intervals[Traits::kBlockM];  // of the current run, written and read by the warp that owns the rows
  SeenKeys seen[Traits::kConsumers];       // the producer's own
  int4 local_range;                        // likewise: where the last tile of keys lay
  WorkMessage work[Traits::kWorkSlots];
  ArrivedKeys arrived;
  uint64_t q_full[Traits::kStagesQ], q_empty[Traits::kStagesQ];
  uint64_t k_full[Traits::kStagesK], k_empty[Traits::kStagesK];
  uint64_t v_full[Traits::kStagesV], v_empty[Traits::kStagesV];
  uint64_t work_full[Traits::kWorkSlots], work_empty[Traits::kWorkSlots];
  // Last, so that all else stays where it is.
  std::conditional_t<Traits::kFetchesRuns, FetchedRuns, NoFetchedRuns> fetched;
};

}  // namespace tangram::sm90
