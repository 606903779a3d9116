// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Common part of the CTAs of the backward kernels of 16-bit elements. They copy the rows of steps into shared memory
// and add dQ to its float32 sums.
#pragma once

#include "attn/sm80/backward/epilogue.cuh"
#include "attn/sm80/backward/traits.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm80::backward {

template <typename Traits>
struct CtaBase : StepWalk {
  using Element = typename Traits::Element;
  using LayoutQk = typename Traits::LayoutQk;
  using LayoutV = typename Traits::LayoutV;
  using LayoutP = typename Traits::LayoutP;
  using Scores = typename Traits::Scores;
  using Dk = typename Traits::Dk;
  using Dv = typename Traits::Dv;
  using Dq = typename Traits::Dq;
  using ScoreSums = typename Scores::Sums;

  Smem<Traits>& smem;
  const uint32_t warp, lane;
  typename Dk::Sums dk;
  typename Dv::Sums dv;

  __device__ CtaBase(const Params& params_in, Smem<Traits>& smem_in)
      : StepWalk(params_in, smem_in.work), smem(smem_in), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  /// The tile of shared memory that V is copied to. With kVInRegisters it holds V only until the first step: warps load
  /// V into registers, then dS (own keys) or dout takes its place.
  __device__ __forceinline__ unsigned char* v_tile() const {
    if constexpr (Traits::kOwnKeys) {
      return smem.ds[0];
    } else {
      return Traits::kVInRegisters ? smem.dout[0] : smem.v;
    }
  }
  /// Copies K and V of the work tile. Keys that no query sees may hold NaN and have no bit in `covered`: zeros are
  /// written in their place.
  __device__ __forceinline__ void copy_keys() {
    if (params.ready_flags.pending != 0) {
      await_keys(params.ready_flags, state.arrived, work().row_begin, work().row_end);
    }
    const int32_t elsewhere = local_kv_row(params.local_ranges, work().row_begin, work().row_end);
    const int32_t first = elsewhere < 0 ? work().row_begin : elsewhere;
    const int32_t num_keys = work().row_end - work().row_begin;
    const auto copy = [&]<typename Layout>(Layout, unsigned char* to, const void* here, const void* local,
                                           int64_t row_stride, int64_t head_stride, int32_t dim) {
      copy_row_range<Layout, Traits::kKeys, kThreads>(
          ptx::smem_address(to),
          static_cast<const Element*>(elsewhere < 0 ? here : local) + offset_of(work().kv_head, head_stride) +
              offset_of(first, row_stride),
          row_stride, dim, [&](int row) { return row < num_keys && (work().covered[row / 32] >> (row % 32) & 1); });
    };
    copy(LayoutQk(), smem.k, params.k, params.k_local, params.k_row_stride, params.k_head_stride, params.head_dim);
    copy(LayoutV(), v_tile(), params.v, params.v_local, params.v_row_stride, params.v_head_stride, params.head_dim_v);
  }
  template <typename Layout>
  __device__ __forceinline__ void copy_queries(const StepCursor& at, unsigned char* to, const void* from,
                                               int64_t row_stride, int64_t head_stride, int32_t dim) {
    copy_row_range<Layout, Traits::kQueries, kThreads>(
        ptx::smem_address(to),
        static_cast<const Element*>(from) + offset_of(at.head, head_stride) + offset_of(at.rows.row_begin, row_stride),
        row_stride, dim, [&](int row) { return (at.is_there >> row & 1) != 0; });
  }
  __device__ __forceinline__ void copy_q(const StepCursor& at, uint32_t stage) {
    copy_queries<LayoutQk>(at, smem.q[stage], params.q, params.q_row_stride, params.q_head_stride, params.head_dim);
    constexpr int kCopies = sizeof(smem.stats[0]) / 16;
    if (threadIdx.x < kCopies) {
      const auto* from = reinterpret_cast<const uint4*>(params.stats + accum_tile(at) * Traits::kQueries);
      ptx::cp_async_16(ptx::smem_address(smem.stats[stage]) + threadIdx.x * 16, from + threadIdx.x, false);
    }
  }
  __device__ __forceinline__ void copy_dout(const StepCursor& at, uint32_t stage) {
    copy_queries<LayoutV>(at, smem.dout[stage], params.dout, params.dout_row_stride, params.dout_head_stride,
                          params.head_dim_v);
  }

  /// S of a cell becomes P, dP becomes dS.
  __device__ __forceinline__ void make_gradient(float& score, float& gradient, const RowStatistics& row,
                                                bool visible) const {
    float p, slope = 1.0f;
    if constexpr (Traits::kSoftcap) {
      const float t = ptx::tanh_approx(score * params.cap_inner);
      p = ptx::exp2_approx(t * params.cap_outer - row.lse_log2);
      slope = 1.0f - t * t;
    } else {
      p = ptx::exp2_approx(score * params.scale_log2 - row.lse_log2);
    }
    if (!visible) p = 0.0f;
    score = p;
    gradient = p * (gradient - row.delta);
    if constexpr (Traits::kSoftcap) gradient *= slope;
  }
  /// Whether every query of a step sees every key of the work tile.
  __device__ __forceinline__ bool sees_all(const StepCursor& at) const {
    const TileRange& run = params.runs[at.run];
    return __ldg(&run.full_begin) <= at.rows.row_begin &&
           at.rows.row_begin + Traits::kQueries <= min(__ldg(&run.full_end), at.rows.row_end) &&
           work().row_end - work().row_begin == Traits::kKeys;
  }
  /// dQ = dS K of a step, whose dS is in a tile of shared memory, added to its sums.
  __device__ __forceinline__ void add_dq(const StepCursor& at, const unsigned char* ds) const {
    typename Dq::Sums dq;
    clear(dq);
    const uint32_t row = Dq::first_row(warp);
    const uint32_t a_lane = Traits::kOwnKeys ? LayoutP::lane_columns_first(lane)
                                             : LayoutP::lane_rows_first(lane) + row * LayoutP::kRowBytes;
    const uint32_t a_tile = ptx::smem_address(ds);
    const uint32_t b_lane = LayoutQk::lane_rows_first(lane), b_tile = ptx::smem_address(smem.k);
    const uint32_t column = Dq::first_col(warp);
    multiply<Element, Dq::kM, Dq::kN16, Traits::kKeys / 16>(
        dq,
        [&](uint32_t(&a)[4], int m, int k16) {
          if constexpr (Traits::kOwnKeys) {
            ptx::load_matrix_x4_transposed(a, a_tile + LayoutP::advance(a_lane, k16, static_cast<int>(row / 16) + m));
          } else {
            ptx::load_matrix_x4(a, a_tile + LayoutP::advance(a_lane, m, k16));
          }
        },
        [&](uint32_t(&b)[4], int k16, int n16) {
          ptx::load_matrix_x4_transposed(b,
                                         b_tile + LayoutQk::advance(b_lane, k16, static_cast<int>(column / 16) + n16));
        });
    constexpr int kFours = sizeof(dq) / sizeof(float4);
    float4* const sums = reinterpret_cast<float4*>(params.dq_sums) + accum_tile(at) * (Traits::kDqTileFloats / 4) +
                         warp * (kFours * 32) + lane;
    if (!params.deterministic) {
      visit_fours(dq, 0, [&](int i, float a, float b, float c, float d) {
        if constexpr (kAddsFour) {
          ptx::reduce_add_f32x4(sums + i * 32, float4{a, b, c, d});
        } else {  // a lane's values 128 bytes apart, so that those of a warp lie together
          float* const to = reinterpret_cast<float*>(sums - lane + i * 32) + lane;
          ptx::reduce_add_f32(to, a);
          ptx::reduce_add_f32(to + 32, b);
          ptx::reduce_add_f32(to + 64, c);
          ptx::reduce_add_f32(to + 96, d);
        }
      });
      return;
    }
    // NOTE [order of additions] of step_walk.cuh.
    int32_t* const count = params.dq_semaphore + accum_tile(at);
    const int32_t turn = params.dq_order_segments[at.segment].turn;
    if (threadIdx.x == 0) {
      while (ptx::load_acquire(count) < turn) {
      }
    }
    __syncthreads();
    visit_fours(dq, 0, [&](int i, float a, float b, float c, float d) {
      if constexpr (kAddsFour) {
        const float4 x = __ldcg(sums + i * 32);
        __stcg(sums + i * 32, float4{x.x + a, x.y + b, x.z + c, x.w + d});
      } else {
        float* const to = reinterpret_cast<float*>(sums - lane + i * 32) + lane;
        const float x[4] = {__ldcg(to), __ldcg(to + 32), __ldcg(to + 64), __ldcg(to + 96)};
        __stcg(to, x[0] + a);
        __stcg(to + 32, x[1] + b);
        __stcg(to + 64, x[2] + c);
        __stcg(to + 96, x[3] + d);
      }
    });
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ptx::store_release(count, turn + 1);
  }
};

}  // namespace tangram::sm80::backward
