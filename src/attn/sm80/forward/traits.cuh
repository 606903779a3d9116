// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Sizes of one instance of the forward kernel, and its shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attn/sm80/common/key_sources.cuh"
#include "attn/sm80/common/tiles.cuh"
#include "attn/sm80/common/work_order.cuh"
#include "attn/sm80/shapes.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm80 {

/// For any head dimensions of the class kDimQk, kDimV.
template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT,
          SharedMemoryTier kTierT = SharedMemoryTier::kLarge>
struct ForwardTraits {
  using Element = ElementT;  // __nv_bfloat16 or __half
  static constexpr int kDimQk = kDimQkT, kDimV = kDimVT;
  static constexpr bool kSoftcap = kSoftcapT;
  static constexpr SharedMemoryTier kTier = kTierT;
  static constexpr ForwardShape kShape = shape_class(kDimQk, kDimV).forward[static_cast<int>(kTierT)];
  static constexpr int kBlockM = kShape.rows, kBlockN = kShape.keys;
  static constexpr int kWarps = kShape.warps, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = kBlockM / kWarps;
  static constexpr int kM = kWarpRows / 16;  // of 16 rows, that a warp multiplies with each operand of K or V
  static constexpr int kGroups16 = kBlockN / 16;
  // Registers of a thread: 128 threads with all of them, two CTAs a multiprocessor.
  static constexpr int kCtasPerMultiprocessor = kWarps <= 4 ? 2 : 1;
  using LayoutQk = TileLayout<kDimQk>;
  using LayoutV = TileLayout<kDimV>;
  static_assert(kWarpRows % 16 == 0 && kBlockN % 16 == 0);
};

/// What a warp's rows see of a run: something of [see_begin, see_end), all of [full_begin, full_end).
struct alignas(16) SeenKeys {
  int32_t see_begin, see_end, full_begin, full_end;
};

template <typename Traits>
struct alignas(1024) ForwardSmem {
  alignas(1024) unsigned char q[Traits::LayoutQk::bytes(Traits::kBlockM)];
  alignas(1024) unsigned char k[Traits::LayoutQk::bytes(Traits::kBlockN)];
  alignas(1024) unsigned char v[Traits::LayoutV::bytes(Traits::kBlockN)];
  RowInterval intervals[Traits::kBlockM];  // of the run at hand, written and read by the warp that owns the rows
  SeenKeys seen[Traits::kWarps];           // likewise
  WorkRows work[2][Traits::kWarps];        // by turns; each warp its own, so that none waits before it reads
  int32_t ticket[2];                       // of the work tile after this one, by turns
  ArrivedKeys arrived;
};

}  // namespace tangram::sm80
