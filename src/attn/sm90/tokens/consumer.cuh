// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A warpgroup that attends for 64 query heads of a work tile: scores of a step are made while those before become out.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/common/fragments.cuh"
#include "attn/sm90/forward/softmax.cuh"
#include "attn/sm90/tokens/producer.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90::tokens {

template <typename Traits>
struct Consumer {
  using Element = typename Traits::Element;
  static constexpr int kKeys = Traits::kKeys;

  const Params& params;
  Smem<Traits>& smem;
  const uint32_t warpgroup;
  uint32_t step = 0;             // in all work tiles; uniform in a warp, and known to be
  uint32_t q[kHeadDim / 16][4];  // operands
  uint32_t p[kKeys / 16][4];
  float s[kKeys / 2];
  float o[kHeadDim / 2];
  RowState state;

  __device__ Consumer(const Params& params_in, Smem<Traits>& smem_in)
      : params(params_in), smem(smem_in), warpgroup(__shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1) {}

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// This thread's first row of the work tile; its second is eight further.
  __device__ __forceinline__ int row() const { return (static_cast<int>(threadIdx.x) / 32 - 4) * 16 + lane() / 4; }
  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void advance() { step = __shfl_sync(0xffffffff, step + 1, 0); }
  __device__ __forceinline__ void await(uint32_t at) {
    ptx::mbarrier_wait(&smem.full[at % Traits::kStages], at / Traits::kStages % 2);
  }
  __device__ __forceinline__ void release(uint32_t at) { arrive(&smem.empty[at % Traits::kStages]); }

  __device__ __forceinline__ void load_q() {
    const unsigned char* place = smem.q + row() * kPanelRowBytes + lane() % 4 * 4;
    const int swizzle = lane() / 4;  // the row in eight
#pragma unroll
    for (int k16 = 0; k16 < kHeadDim / 16; ++k16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int chunk = k16 % 4 * 2 + i / 2;
        q[k16][i] = *reinterpret_cast<const uint32_t*>(place + k16 / 4 * Traits::kPanelBytesQ + i % 2 * kSwizzleBytes +
                                                       ((chunk ^ swizzle) << 4));
      }
    }
    arrive(&smem.q_empty);
  }

  /// Starts S = Q K^T of step `at`.
  __device__ __forceinline__ void issue_scores(uint32_t at) {
    const uint64_t k = k_major_operand(ptx::smem_address(smem.k[at % Traits::kStages]));
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kHeadDim / 16; ++k16) {
      const uint64_t b = ptx::wgmma_advance(k, k16_offset<Traits::kPanelBytesK>(k16));
      ptx::wgmma_rs<Element, kKeys>(s, q[k16], b, k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts O (+)= P V of step `at`.
  __device__ __forceinline__ void issue_output(uint32_t at, bool first) {
    const uint64_t v = mn_major_operand(ptx::smem_address(smem.v[at % Traits::kStages]), Traits::kPanelBytesK);
    ptx::wgmma_fence();
#pragma unroll
    for (int g = 0; g < kKeys / 16; ++g) {
      ptx::wgmma_rs<Element, kHeadDim, 1>(o, p[g], ptx::wgmma_advance(v, g * kRows16Bytes), g > 0 || !first);
    }
    ptx::wgmma_commit();
  }

  /// Scores become probabilities. Returns whether what was summed before must be multiplied by `rescale`.
  __device__ __forceinline__ bool apply_softmax(uint32_t at, float (&rescale)[2]) {
    const uint2 missing = smem.missing[at % Traits::kStages];
    if (__any_sync(0xffffffff, (missing.x | missing.y) != 0)) {
      const uint32_t words[2] = {missing.x >> lane() % 4 * 2, missing.y >> lane() % 4 * 2};
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        if (words[i / 16] >> (i % 16 / 4 * 8 + i % 2) & 1) s[i] = minus_infinity();
      }
    }
    const bool moved = update_reference(s, state, params.scale_log2, params.rescale_threshold, rescale);
    float row_sum[2];
    exponentiate(s, state, params.scale_log2, row_sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    return moved;
  }

  __device__ __forceinline__ void write_rows(const WorkTile& work_tile, const RowState& of_work_tile) {
    float offset[2];
    reference_offsets(of_work_tile, params.scale_log2, offset);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = row() + r * 8;
      const bool valid = head < work_tile.num_heads;
      const float sum = quad_sum(of_work_tile.sum[r]);
      const int64_t at = work_tile.row * params.out_row_stride + (work_tile.first_head + head) * params.out_head_stride;
      char* to = static_cast<char*>(params.out) + at * (params.out_is_float32 ? 4 : 2);
      backward::write_row<Element, kHeadDim, false>(
          o, r * 2, 1.0f / sum, to, valid,
          params.out_is_float32 ? backward::GradType::kFloat32 : backward::GradType::kInput, false, lane(), kHeadDim);
      if (valid && lane() % 4 == 0) {
        constexpr float kLn2 = 0.6931471805599453f;
        params.lse[int64_t{work_tile.row} * params.num_heads_q + work_tile.first_head + head] =
            (offset[r] + ptx::log2_approx(sum)) * kLn2;
      }
    }
  }

  /// Writes the rows of a work tile whose list names no key.
  __device__ __forceinline__ void write_nothing(const WorkTile& work_tile) {
    const int thread = static_cast<int>(threadIdx.x) - 128;
    for (int head = thread; head < work_tile.num_heads; head += 128 * Traits::kWarpgroups) {
      params.lse[int64_t{work_tile.row} * params.num_heads_q + work_tile.first_head + head] = minus_infinity();
    }
    const int size = params.out_is_float32 ? 4 : 2, words = kHeadDim * size / 16;
    for (int i = thread; i < work_tile.num_heads * words; i += 128 * Traits::kWarpgroups) {
      const int64_t at =
          work_tile.row * params.out_row_stride + (work_tile.first_head + i / words) * params.out_head_stride;
      reinterpret_cast<uint4*>(static_cast<char*>(params.out) + at * size)[i % words] = uint4{};
    }
  }

  /// The first step of the work.
  __device__ __forceinline__ void begin() {
    float rescale[2];
    await(step);
    load_q();
    issue_scores(step);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
    state.reset();
    apply_softmax(step, rescale);
    pack_operand<Element>(p, s);
  }

  /// Ends step `step`, one of a work tile that goes on, and makes the probabilities of the next.
  __device__ __forceinline__ void go_on(bool first) {
    float rescale[2];
    await(step + 1);
    issue_scores(step + 1);
    issue_output(step, first);
    ptx::wgmma_wait<1>();
    ptx::pin_registers(s);
    const bool moved = apply_softmax(step + 1, rescale);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o);
    release(step);
    if (moved) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= rescale[i / 2 % 2];
    }
    pack_operand<Element>(p, s);
    advance();
  }

  /// Ends step `step`, the last of work tile `index`, and makes the probabilities of the next work tile's first.
  __device__ __forceinline__ void change_work_tile(int32_t index, bool first) {
    float rescale[2];
    await(step + 1);
    load_q();
    issue_scores(step + 1);
    issue_output(step, first);
    ptx::wgmma_wait<1>();
    ptx::pin_registers(s);
    const RowState of_work_tile = state;
    state.reset();
    apply_softmax(step + 1, rescale);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o);
    release(step);
    write_rows(WorkTile(params, index), of_work_tile);
    pack_operand<Element>(p, s);
    advance();
  }

  __device__ __forceinline__ void run() {
    WorkTileCursor cursor(params);
    const auto find = [&] {
      return cursor.find([&](int32_t index) {
        write_nothing(WorkTile(params, index));
        __syncwarp();
      });
    };
    if (!find()) return;
    begin();
#pragma unroll 1
    for (;;) {
      bool first = true;
#pragma unroll 1
      for (int32_t rest = cursor.count - kKeys; rest > 0; rest -= kKeys) {
        go_on(first);
        first = false;
      }
      const int32_t index = cursor.index;
      if (find()) {
        change_work_tile(index, first);
        continue;
      }
      issue_output(step, first);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(o);
      write_rows(WorkTile(params, index), state);
      return;
    }
  }
};

}  // namespace tangram::sm90::tokens
