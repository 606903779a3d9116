// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of the two backward kernels of head dimensions whose dk and dv do not fit into registers together:
// one makes dk and dq of S, dP, dK and dQ, the other dv of S and dV: six matmuls instead of five.
#pragma once

#include "attn/sm90/backward/traits.cuh"

namespace tangram::sm90::backward {

enum class SplitPart { kDkDq, kDv };

template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT, bool kDeterministicT, SplitPart kPartT>
struct SplitTraits : Config<ElementT, kDimQkT, kDimVT, kSoftcapT, kDeterministicT, false, true> {
  using Base = Config<ElementT, kDimQkT, kDimVT, kSoftcapT, kDeterministicT, false, true>;
  static constexpr bool kMakesDk = kPartT == SplitPart::kDkDq;
  static constexpr bool kMakesDv = kPartT == SplitPart::kDv;
  // Without V there is room for two.
  static constexpr int kStages = kMakesDv ? 2 : Base::kShape.backward_split_stages;
  static constexpr int kDsBuffers = 1;
  // Pieces of dq of a warpgroup on their way (DqLayout): as many as there is room for.
  static constexpr int kDqSlots = kStages;
};

/// As the other; dS of a step is multiplied before the next is made, so that it needs one buffer.
template <typename Traits>
struct alignas(1024) Smem<Traits, true> {
  alignas(1024) unsigned char k[Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kMakesDk ? Traits::kBytesV : 1024];
  alignas(1024) unsigned char q[Traits::kStages][Traits::kBytesQ];
  alignas(1024) unsigned char dout[Traits::kStages][Traits::kBytesDout];
  alignas(1024) unsigned char ds[Traits::kMakesDk ? Traits::kBytesDs : 1024];
  alignas(128) uint32_t ones[3][32];
  alignas(128) float stats[Traits::kStages][kStatsFloats];
  alignas(128) float dq[2][Traits::kMakesDk ? Traits::kDqSlots : 1][Traits::kMakesDk ? Traits::Dq::kPieceFloats : 32];
  StepMessage step[Traits::kStages];
  Item item[Traits::kItemSlots];
  ArrivedKeys arrived;
  uint64_t q_full[Traits::kStages], dout_full[Traits::kStages], step_empty[Traits::kStages];
  uint64_t ds_full, ds_empty;
  uint64_t k_full, v_full, kv_empty;
  uint64_t dq_full[2][Traits::kDqSlots], dq_empty[2][Traits::kDqSlots];  // between a warpgroup and its SplitDqWriter
  DqTarget dq_target[Traits::kDqTargets];
  int32_t segment;
  int32_t row_elsewhere;
  BackwardFacts facts;
};

}  // namespace tangram::sm90::backward
