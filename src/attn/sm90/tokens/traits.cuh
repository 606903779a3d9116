// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of the forward kernel for token indices, and its shared-memory plan.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/tokens/params.hpp"

namespace tangram::sm90::tokens {

/// Traits of the forward kernel. With one consumer warpgroup two CTAs share a multiprocessor, with two there is one
/// CTA.
template <typename ElementT, int kWarpgroupsT, int kKeysT = 64>
struct Traits : PanelSizes<kHeadDim, kHeadDim, kRowsOfWarpgroup * kWarpgroupsT, kKeysT> {
  using Element = ElementT;
  static constexpr int kWarpgroups = kWarpgroupsT;
  static constexpr int kRows = kRowsOfWarpgroup * kWarpgroups;  // query heads of a work tile
  static constexpr int kKeys = kKeysT;                          // of a step
  static constexpr int kStages = kWarpgroups == 1 ? 3 : 384 / kKeys;
  static constexpr int kLag = kWarpgroups;                // further steps that are on their way when one is handed over
  static constexpr int kCtas = kWarpgroups == 1 ? 2 : 1;  // of a multiprocessor
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  static constexpr int kProducerRegisters = 72;  // with those of consumers what the launch gives
  static constexpr int kConsumerRegisters = kWarpgroups == 1 ? 184 : 216;
  static constexpr int kConsumerWarps = 4 * kWarpgroups;

  // A thread of the producer copies the same 16 bytes of every eighth row.
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowsAtOnce = 128 / kChunks;
  static constexpr int kRowsOfThread = kKeys / kRowsAtOnce;
  static_assert(kRowsAtOnce == 8 && kRowsOfThread <= 16);
};

template <typename Traits>
struct alignas(1024) Smem {
  alignas(1024) unsigned char q[Traits::kBytesQ];
  alignas(1024) unsigned char k[Traits::kStages][Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kStages][Traits::kBytesV];
  uint2 missing[Traits::kStages];  // a bit for each slot of a step: it has no key
  uint64_t full[Traits::kStages], empty[Traits::kStages];
  uint64_t q_empty;
};

}  // namespace tangram::sm90::tokens
