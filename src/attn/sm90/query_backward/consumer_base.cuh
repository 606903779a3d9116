// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A step of a consumer warpgroup, for 64 of its 128 gathered keys against the 128 packed rows of a work tile: products,
// and the code between them. Independent of how keys are named. In which order is the pipeline of Consumer.
#pragma once

#include "attn/sm90/common/warpgroup.cuh"
#include "attn/sm90/query_backward/traits.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90::query_backward {

template <typename Traits>
struct ConsumerBase {
  using Element = typename Traits::Element;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kPanels = Traits::kPanels;
  using Scores = float[kRows / 2];         // of 64 keys by kRows
  using Packed = uint32_t[kRows / 16][4];  // P or dS, as the operand of a product over rows
  using Half = float[kPanelColumns / 2];   // dk or dv of 64 keys by a panel of columns

  using Turn = PingPong<1>;  // named barriers 1, 2

  const typename Traits::Params& params;
  typename Traits::SmemType& smem;
  const uint32_t warpgroup;  // 0 or 1
  uint32_t step = 0;         // in all work tiles; uniform in a warp, and known to be
  float dq[kHeadDim / 2];    // of 64 rows

  __device__ ConsumerBase(const typename Traits::Params& params_in, typename Traits::SmemType& smem_in)
      : params(params_in), smem(smem_in), warpgroup(__shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1) {}

  __device__ __forceinline__ uint32_t stage() const { return step % Traits::kStagesK; }
  __device__ __forceinline__ uint32_t stage_phase() const { return step / Traits::kStagesK % 2; }
  __device__ __forceinline__ void advance() { step = __shfl_sync(0xffffffff, step + 1, 0); }
  /// This thread's index among the consumers, which the compiler keeps nothing of.
  __device__ __forceinline__ uint32_t fresh_thread() const { return ptx::read_thread_index() - 128; }
  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ int32_t uniform(int32_t value) { return __shfl_sync(0xffffffff, value, 0); }

  /// Starts result = keys * rows^T for this warpgroup's keys, plus the rows' terms of lse or delta: see
  /// backward::ConsumerBase::issue_product.
  template <bool kDelta>
  __device__ __forceinline__ void issue_product(Scores& result, const void* keys, const void* rows) {
    const uint64_t a = k_major_operand(ptx::smem_address(keys) + warpgroup * 64 * kPanelRowBytes);
    const uint64_t b = k_major_operand(ptx::smem_address(rows));
    const uint64_t ones =
        ptx::wgmma_descriptor_plain(ptx::smem_address(smem.ones[kDelta ? 1 : 0]), kDelta ? 128 : 256, 0);
    const uint64_t terms = ptx::wgmma_descriptor_plain(ptx::smem_address(smem.stats), 0, 128);
    ptx::wgmma_fence();
    ptx::wgmma_ss<__nv_bfloat16, kRows>(result, ones, terms, false);
#pragma unroll
    for (int k16 = 0; k16 < kHeadDim / 16; ++k16) {
      ptx::wgmma_ss<Element, kRows>(result, ptx::wgmma_advance(a, k16_offset<Traits::kPanelBytesK>(k16)),
                                    ptx::wgmma_advance(b, k16_offset<Traits::kPanelBytesQ>(k16)), true);
    }
    ptx::wgmma_commit();
  }

  /// Starts sums = packed * a panel of columns of the work tile's rows.
  __device__ __forceinline__ void issue_gradient(Half& sums, const Packed& packed, const unsigned char* rows,
                                                 int panel) {
    const uint64_t b = mn_major_operand(ptx::smem_address(rows) + panel * Traits::kPanelBytesQ);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kRows / 16; ++k16) {
      ptx::wgmma_rs<Element, kPanelColumns, 1>(sums, packed[k16], ptx::wgmma_advance(b, k16 * kRows16Bytes), k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts dq += dS^T K of a step.
  __device__ __forceinline__ void issue_dq(uint32_t at) {
    const uint64_t a =
        mn_major_operand(ptx::smem_address(smem.ds[at % Traits::kDsBuffers]) + warpgroup * Traits::kPanelBytesDs);
    const uint64_t b = mn_major_operand(ptx::smem_address(smem.k[at % Traits::kStagesK]), Traits::kPanelBytesK);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kStepGroups; ++k16) {
      ptx::wgmma_ss<Element, kHeadDim, 1, 1>(dq, ptx::wgmma_advance(a, k16 * kRows16Bytes),
                                             ptx::wgmma_advance(b, k16 * kRows16Bytes), true);
    }
    ptx::wgmma_commit();
  }

  /// packed, which is P, becomes dS; dp is dP - delta.
  __device__ __forceinline__ void score_gradients(Packed& packed, const Scores& dp) {
#pragma unroll
    for (int g = 0; g < kRows / 16; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 p = ptx::unpack_pair<Element>(packed[g][i]);
        packed[g][i] = pack_pair<Element>(dp[8 * g + 2 * i] * p.x, dp[8 * g + 2 * i + 1] * p.y);
      }
    }
  }
  __device__ __forceinline__ void store_ds(const Packed& packed) {
    const uint32_t self = fresh_thread();
    unsigned char* base = smem.ds[step % Traits::kDsBuffers] + (self / 32 * 16 + self % 16) * kPanelRowBytes;
    const uint32_t chunk = self % 32 / 16 ^ self % 8;
#pragma unroll
    for (int k16 = 0; k16 < kRows / 16; ++k16) {
      ptx::store_matrix_x4(base + k16 / 4 * Traits::kPanelBytesDs + ((chunk ^ k16 % 4 * 2) << 4), packed[k16][0],
                           packed[k16][1], packed[k16][2], packed[k16][3]);
    }
  }

  /// Starts S of the current step, whose message has been seen.
  __device__ __forceinline__ void issue_scores(Scores& s) { issue_product<false>(s, smem.k[stage()], smem.q); }
  __device__ __forceinline__ void await_step() { ptx::mbarrier_wait(&smem.k_full[stage()], stage_phase()); }
  __device__ __forceinline__ void await_ds(uint32_t at) {
    ptx::mbarrier_wait(&smem.ds_full[at % Traits::kDsBuffers], at / Traits::kDsBuffers % 2);
  }
  __device__ __forceinline__ uint32_t work_tile_phase() const {
    return smem.step[stage()].kind & kStepOddWorkTile ? 1 : 0;
  }
};

}  // namespace tangram::sm90::query_backward
