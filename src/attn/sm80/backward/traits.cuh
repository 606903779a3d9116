// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Sizes of one instance of the backward kernels, which part of each product a warp makes, and the shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attn/sm80/backward/params.hpp"
#include "attn/sm80/backward/step_walk.cuh"
#include "attn/sm80/common/tiles.cuh"
#include "attn/sm80/shapes.hpp"

namespace tangram::sm80::backward {

inline constexpr int kThreads = 32 * kBackwardWarps;

/// How kBackwardWarps warps share a product of kRows by kCols: kWarpRows of them by kWarpCols each.
template <int kRowsT, int kColsT, int kWarpsDownT>
struct Split {
  static constexpr int kWarpsDown = kWarpsDownT, kWarpsAcross = kBackwardWarps / kWarpsDown;
  static constexpr int kRows = kRowsT / kWarpsDown, kCols = kColsT / kWarpsAcross;
  static constexpr int kM = kRows / 16, kN16 = kCols / 16;
  static_assert(kRows % 16 == 0 && kCols % 16 == 0);
  using Sums = float[kM][kN16 * 8];

  static __device__ __forceinline__ uint32_t first_row(uint32_t warp) { return warp % kWarpsDown * kRows; }
  static __device__ __forceinline__ uint32_t first_col(uint32_t warp) { return warp / kWarpsDown * kCols; }
};

/// Traits for any head dims of the class kDimQk, kDimV.
template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT,
          SharedMemoryTier kTierT = SharedMemoryTier::kLarge>
struct Traits {
  using Element = ElementT;  // __nv_bfloat16 or __half
  static constexpr int kDimQk = kDimQkT, kDimV = kDimVT;
  static constexpr bool kSoftcap = kSoftcapT;
  static constexpr SharedMemoryTier kTier = kTierT;
  static constexpr BackwardShape kShape = shape_class(kDimQk, kDimV).backward[static_cast<int>(kTier)];
  static constexpr int kKeys = kShape.keys, kQStages = kShape.q_stages, kDoutStages = kShape.dout_stages;
  static constexpr bool kVInRegisters = kShape.v_in_registers, kOwnKeys = kShape.own_keys;
  static constexpr int kDsStages = kOwnKeys ? 2 : 1;
  static constexpr int kQueries = kStepQueries;
  using LayoutQk = TileLayout<kDimQk>;
  using LayoutV = TileLayout<kDimV>;
  // P and dS: queries by keys, or, with keys of a warp's own, keys by queries.
  static constexpr int kScoreRows = kOwnKeys ? kKeys : kQueries, kScoreCols = kOwnKeys ? kQueries : kKeys;
  using LayoutP = TileLayout<kScoreCols>;
  // Each operand is read by as few warps as registers allow.
  using Scores = Split<kScoreRows, kScoreCols, kOwnKeys ? kBackwardWarps : (kKeys == 32 ? 4 : 2)>;
  template <int kDim>
  static constexpr int kWarpsDownKeys = kOwnKeys                                         ? kBackwardWarps
                                        : kDim * (kKeys / 32) / kBackwardWarps % 16 == 0 ? kKeys / 32
                                                                                         : kKeys / 16;
  using Dk = Split<kKeys, kDimQk, kWarpsDownKeys<kDimQk>>;
  using Dv = Split<kKeys, kDimV, kWarpsDownKeys<kDimV>>;
  using Dq = Split<kQueries, kDimQk, kDimQk % 64 == 0 ? 2 : 4>;
  static constexpr int kAccumTileFloats = kKeys * (kDimQk + kDimV);
  static constexpr int kDqTileFloats = kQueries * kDimQk;
};

template <typename Traits>
struct alignas(1024) Smem {
  alignas(1024) unsigned char k[Traits::LayoutQk::bytes(Traits::kKeys)];
  alignas(16) unsigned char v[Traits::kVInRegisters ? 16 : Traits::LayoutV::bytes(Traits::kKeys)];
  alignas(1024) unsigned char q[Traits::kQStages][Traits::LayoutQk::bytes(Traits::kQueries)];
  alignas(1024) unsigned char dout[Traits::kDoutStages][Traits::LayoutV::bytes(Traits::kQueries)];
  alignas(16) unsigned char p[Traits::kOwnKeys ? 16 : Traits::LayoutP::bytes(Traits::kQueries)];
  alignas(1024) unsigned char ds[Traits::kDsStages][Traits::LayoutP::bytes(Traits::kScoreRows)];
  RowStatistics stats[Traits::kQStages][Traits::kQueries];
  WorkState work;
};

}  // namespace tangram::sm80::backward
