// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of the backward kernels of head dims beyond 128. They add dq from registers or, in deterministic
// calls, hand it over in pieces. One kernel makes all gradients. If dk and dv do not fit into registers together, two
// kernels do: one makes dk and dq (S, dP, dK, dQ), the other dv (S, dV), six matmuls instead of five.
#pragma once

#include "attn/sm90/backward/traits.cuh"

namespace tangram::sm90::backward {

enum class LargePart { kDkDq, kDv, kAll };

template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT, bool kDeterministicT, LargePart kPartT>
struct LargeTraits : Config<ElementT, kDimQkT, kDimVT, kSoftcapT, kDeterministicT, kPartT == LargePart::kAll, true> {
  using Base = Config<ElementT, kDimQkT, kDimVT, kSoftcapT, kDeterministicT, kPartT == LargePart::kAll, true>;
  static constexpr bool kMakesDk = kPartT != LargePart::kDv;
  static constexpr bool kMakesDv = kPartT != LargePart::kDkDq;
  // Without V there is room for two.
  static constexpr int kStages = kMakesDk ? Base::kShape.backward_stages : 2;
  static constexpr int kDsBuffers = kPartT == LargePart::kAll ? 2 : 1;
  // With one stage dout is given back once dP is made, so that the next one comes beside the rest of the step.
  static constexpr bool kSingleStageDout = kMakesDk && kStages == 1;
  static constexpr bool kDqFromRegisters = adds_dq_from_registers(kDimQkT, kDimVT, kDeterministicT);
  // Pieces of dq of a warpgroup on their way to its SplitWriter (DqLayout): as many as there is room for.
  static constexpr int kDqSlots = kStages;
  static constexpr int kStagedFloats = kMakesDk && kDeterministicT ? Base::Dq::kPieceFloats : 32;
};

template <bool kSingleStageDout>
struct SingleStageDoutBarrier {};
template <>
struct SingleStageDoutBarrier<true> {
  uint64_t dout_empty;
};

/// Shared memory with one buffer of dS: dS of a step is multiplied before the next is made.
template <typename Traits>
struct alignas(1024) Smem<Traits, true> {
  alignas(1024) unsigned char k[Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kMakesDk ? Traits::kBytesV : 1024];
  alignas(1024) unsigned char q[Traits::kStages][Traits::kBytesQ];
  alignas(1024) unsigned char dout[Traits::kStages][Traits::kBytesDout];
  alignas(1024) unsigned char ds[Traits::kDsBuffers][Traits::kMakesDk ? Traits::kBytesDs : 1024];
  alignas(128) uint32_t ones[3][32];
  alignas(128) float stats[Traits::kStages][kStatsFloats];
  alignas(128) float dq[2][Traits::kDqSlots][Traits::kStagedFloats];
  StepMessage step[Traits::kStages];
  WorkTile work_tile[Traits::kWorkTileSlots];
  ArrivedKeys arrived;
  uint64_t q_full[Traits::kStages], dout_full[Traits::kStages], step_empty[Traits::kStages];
  uint64_t ds_full[Traits::kDsBuffers], ds_empty[Traits::kDsBuffers];
  uint64_t k_full, v_full, kv_empty;
  uint64_t dq_full[2][Traits::kDqSlots], dq_empty[2][Traits::kDqSlots];  // between a warpgroup and its SplitWriter
  DqTarget dq_target[Traits::kDqTargets];
  int32_t segment;
  int32_t local_kv_row;
  BackwardMaskInfo mask_info;
  [[no_unique_address]] SingleStageDoutBarrier<Traits::kSingleStageDout> lone;
};

}  // namespace tangram::sm90::backward
