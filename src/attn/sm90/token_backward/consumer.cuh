// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Consumer warpgroup whose step has keys named one by one: which rows see them, sums of dk and dv row by row, and dq.
// The products and their order are those of query_backward::Consumer.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/query_backward/consumer.cuh"
#include "attn/sm90/token_backward/traits.cuh"

namespace tangram::sm90::token_backward {

template <typename Traits>
struct TokenConsumer : query_backward::ConsumerBase<Traits> {
  using Base = query_backward::ConsumerBase<Traits>;
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

  // Rows of sums (or, kOrdered, of stored contributions) to which this thread adds in the current step, or -1. Order:
  // its first key, that of the thread 4 lanes away, its second key, and so on. As long as dk of a step is not added,
  // they are those of that step.
  int32_t sum_rows[4];

  /// Adds a panel of dk or dv to the sums of their keys. A quad has 256 bytes of each of its two rows. The L2 cache
  /// adds a sixth less in a second if less than 128 bytes are contiguous. So pairs of quads exchange halves. The first
  /// quad keeps the columns of its first half, for the rows of both; the second the other columns.
  __device__ __forceinline__ void add_sums(float* to, const Half& sums, uint32_t /*step*/, int panel) {
    const uint32_t lane = fresh_thread() % 32;
    const bool second = lane & 4;
    float* const columns = to + panel * kPanelColumns + lane % 8 * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int j = 0; j < kPanelColumns / 32; ++j) {
        float own[4], other[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float& first_half = sums[j * 8 + i / 2 * 4 + r * 2 + i % 2];
          const float& second_half = sums[j * 8 + 16 + i / 2 * 4 + r * 2 + i % 2];
          own[i] = second ? second_half : first_half;
          other[i] = __shfl_xor_sync(0xffffffff, second ? first_half : second_half, 4);
        }
        const auto add = [&](int32_t row, const float(&x)[4]) {
          float* const at = columns + int64_t{row} * kHeadDim + j * 32;
          if constexpr (Traits::kOrdered) {
            if (row >= 0) ptx::store_f32x4(reinterpret_cast<float4*>(at), {x[0], x[1], x[2], x[3]});
          } else {
            if (row >= 0) ptx::reduce_add_f32x4(reinterpret_cast<float4*>(at), {x[0], x[1], x[2], x[3]});
          }
        };
        add(sum_rows[r * 2], own);
        add(sum_rows[r * 2 + 1], other);
      }
    }
  }

  /// Current step: row blocks that see this thread's two keys; masked: a key of the warp is not seen by all blocks.
  bool masked;
  uint32_t row_blocks[2];
  struct Visible {};
  /// Begins a step: dk of the one before has been added.
  __device__ __forceinline__ void find_visible(Visible& /*of the step*/) {
    const StepMessage& message = smem.step[stage()];
    const uint32_t self = fresh_thread();
    const int32_t first_row = message.kv_head * params.lists.seqlen_k;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto at = static_cast<int32_t>(self / 32 * 16 + self % 32 / 4) + r * 8;
      const int32_t key = step_key<Traits>(params.lists, message, at);
      row_blocks[r] = key >= 0 ? kAllBlocks : 0;
      if (has_lists<Traits>(params.lists) && key >= 0) {
        row_blocks[r] = __ldg(params.lists.row_blocks + message.first + at);
      }
      if constexpr (Traits::kOrdered) {
        sum_rows[r * 2] = key >= 0 ? static_cast<int32_t>(message.first) + at : -1;
      } else {
        sum_rows[r * 2] = key >= 0 ? first_row + (key & ~(kNanInK | kNanInV)) : -1;
      }
      sum_rows[r * 2 + 1] = __shfl_xor_sync(0xffffffff, sum_rows[r * 2], 4);
    }
    masked = __any_sync(0xffffffff, (row_blocks[0] & row_blocks[1]) != kAllBlocks);
  }
  /// P of the scores; zeros where a key is not visible, or none was loaded.
  __device__ __forceinline__ void exponentiate(Packed& p, Scores& s, const Visible& /*of the step*/) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) s[i] = ptx::exp2_approx(s[i] * params.scale_log2);
    if (masked) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        s[i] = row_blocks[i / 2 % 2] >> (i / 4) & 1 ? s[i] : 0.0f;
      }
    }
    pack_operand<Element>(p, s);
  }
  /// Like ConsumerBase, with zeros if a key is not visible, also if the row's delta is NaN.
  __device__ __forceinline__ void score_gradients(Packed& packed, const Scores& dp) {
    Base::score_gradients(packed, dp);
    if (!masked) return;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      uint32_t& word = packed[i / 4][i % 4];
      word = row_blocks[i % 2] >> (i / 2) & 1 ? word : 0;
    }
  }

  /// Writes dq of the work tile whose last step is the current one, and releases that step.
  __device__ __forceinline__ void write_dq() {
    const StepMessage& message = smem.step[stage()];
    const int32_t first_query = message.first_query, first_head = message.first_head;
    arrive(&smem.k_empty[stage()]);
    const uint32_t self = fresh_thread();
    const int lane = static_cast<int>(self % 32);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = static_cast<int32_t>(self / 32 * 16) + lane / 4 + r * 8;
      const Packing& packing = params.lists.packing;
      const int32_t token = row / packing.rows_per_token, head = row - token * packing.rows_per_token;
      const int32_t query = first_query + token;
      const bool exists = token < packing.tokens && query < params.lists.seqlen_q && head < packing.heads;
      const int64_t at = int64_t{query} * params.dq_row_stride + (first_head + head) * params.dq_head_stride;
      char* to = static_cast<char*>(params.dq) + at * (params.dq_type == GradType::kFloat32 ? 4 : 2);
      backward::write_row<Element, kHeadDim, false>(dq, r * 2, params.softmax_scale, to, exists, params.dq_type, false,
                                                    lane, kHeadDim);
    }
  }
};

template <typename Traits>
using Consumer = query_backward::Consumer<Traits, TokenConsumer<Traits>>;

}  // namespace tangram::sm90::token_backward
