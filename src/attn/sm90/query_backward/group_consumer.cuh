// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Consumer warpgroup whose step has groups of 16 keys, one group a warp: masks and exponentials, sums in fragment
// order, and dq.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/query_backward/consumer_base.cuh"

namespace tangram::sm90::query_backward {

template <typename Traits>
struct GroupConsumer : ConsumerBase<Traits> {
  using Base = ConsumerBase<Traits>;
  using typename Base::Half;
  using typename Base::Packed;
  using typename Base::Scores;
  using Element = typename Traits::Element;
  using Base::arrive;
  using Base::dq;
  using Base::fresh_thread;
  using Base::params;
  using Base::smem;
  using Base::stage;
  static constexpr int kHeadDim = Traits::kHeadDim;

  using Base::Base;

  /// The warp's group of 16 keys in the step.
  __device__ __forceinline__ uint32_t group() const { return fresh_thread() / 32; }
  /// Whether this warp has a group of keys in step `at`.
  __device__ __forceinline__ bool has_keys(uint32_t at) const {
    return static_cast<int32_t>(group()) < smem.step[at % Traits::kStagesK].count;
  }
  /// Adds a panel of dk or dv of this warp's group of keys in step `at` to its sums.
  __device__ __forceinline__ void add_sums(float* to, const Half& sums, uint32_t at, int panel) {
    if (!has_keys(at)) return;
    const StepMessage& message = smem.step[at % Traits::kStagesK];
    const int32_t place = message.kv_head * params.num_key_groups + first_key(message.groups[group()]) / kGroupKeys;
    float4* vectors =
        reinterpret_cast<float4*>(to) + int64_t{place} * (kGroupFloats<kHeadDim> / 4) + fresh_thread() % 32;
#pragma unroll
    for (int j = 0; j < kPanelColumns / 8; ++j) {
      ptx::reduce_add_f32x4(vectors + (panel * (kPanelColumns / 8) + j) * 32,
                            {sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]});
    }
  }

  /// Visible scores of this thread in a masked group of the current step: those of its two keys, from its first row of
  /// each 8 on.
  struct Visible {
    bool masked;
    uint32_t words[2][kRows / 32];
  };
  __device__ __forceinline__ void find_visible(Visible& visible) {
    const StepMessage& message = smem.step[stage()];
    const uint32_t self = fresh_thread();
    const int32_t in_masked = static_cast<int32_t>(self / 32) - message.masked_from;
    visible.masked = in_masked >= 0;
    if (!visible.masked) return;
    const bool loaded = static_cast<int32_t>(self / 32) < message.count;
    const auto* bits = reinterpret_cast<const uint4*>(params.masks) + message.mask_begin + in_masked * kGroupKeys;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 words = loaded ? __ldg(bits + self % 32 / 4 + r * 8) : uint4{};
      const uint32_t shift = self % 4 * 2;
      visible.words[r][0] = words.x >> shift, visible.words[r][1] = words.y >> shift;
      visible.words[r][2] = words.z >> shift, visible.words[r][3] = words.w >> shift;
    }
  }
  /// P of the scores; zeros where a key is not visible, or none was loaded.
  __device__ __forceinline__ void exponentiate(Packed& p, Scores& s, const Visible& visible) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) s[i] = ptx::exp2_approx(s[i] * params.scale_log2);
    if (visible.masked) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        s[i] = visible.words[i / 2 % 2][i / 16] >> (i / 4 % 4 * 8 + i % 2) & 1 ? s[i] : 0.0f;
      }
    }
    pack_operand<Element>(p, s);
  }

  /// Writes dq of the work tile whose last step is the current one, and releases that step.
  __device__ __forceinline__ void write_dq() {
    const StepMessage& message = smem.step[stage()];
    const int32_t row_begin = message.row_begin, num_rows = message.num_rows, head = message.head;
    arrive(&smem.k_empty[stage()]);
    const uint32_t self = fresh_thread();
    const int lane = static_cast<int>(self % 32);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = static_cast<int32_t>(self / 32 * 16) + lane / 4 + r * 8;
      const int32_t token = row >> params.pack_log2;
      const int64_t at = (int64_t{row_begin} + token) * params.dq_row_stride +
                         (head + (row & ((1 << params.pack_log2) - 1))) * params.dq_head_stride;
      char* to = static_cast<char*>(params.dq) + at * (params.dq_type == GradType::kFloat32 ? 4 : 2);
      backward::write_row<Element, kHeadDim, false>(dq, r * 2, params.softmax_scale, to, token < num_rows,
                                                    params.dq_type, false, lane, kHeadDim);
    }
  }
};

}  // namespace tangram::sm90::query_backward
