// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The backward kernels of float32 tensors: plain multiplications on the lists of the others. Right to the rounding of
// float32, and slow.
//
// A warp owns kWarpKeys keys of a work tile; each lane has every 32nd column of their K, V, dK and dV in registers. Of
// each query of a step the lanes of a warp add up its scores, the warps of the CTA its dQ.
#pragma once

#include "attn/sm80/backward/epilogue.cuh"
#include "attn/sm80/backward/step_walk.cuh"
#include "attn/sm80/backward/tile_place.cuh"
#include "attn/sm80/float32/shapes.hpp"
#include "cuda/ptx/memory.cuh"

namespace tangram::sm80::float32 {

using backward::Params;
using backward::PrePostParams;
using backward::RowStatistics;
using backward::StepCursor;

inline constexpr int kWarpKeys = kBackwardKeys / kWarps;
static_assert(kThreads == 32 * kBackwardWarps);  // of the kernel before, and of pieces

/// Traits that join_pieces() needs.
template <int kDim>
struct BackwardTraits {
  static constexpr int kColumns = kDim / 32;  // a lane's
  static_assert(kColumns % 4 == 0);           // pieces are joined by fours
  struct Dk {
    using Sums = float[kWarpKeys][kColumns];
  };
  using Dv = Dk;
  static constexpr int kAccumTileFloats = kThreads * 2 * kWarpKeys * kColumns;
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffff, x, lanes);
  return x;
}

template <int kDim, bool kSoftcap>
struct BackwardKeys : backward::StepWalk {
  static constexpr int kColumns = BackwardTraits<kDim>::kColumns;
  using Sums = typename BackwardTraits<kDim>::Dk::Sums;

  float (&dq_parts)[2][kWarps][kDim];  // of a query, by turns
  const uint32_t warp, lane;
  uint32_t turn = 0;
  Sums k, v, dk, dv;

  __device__ BackwardKeys(const Params& params_in, backward::WorkState& state_in, float (&parts)[2][kWarps][kDim])
      : StepWalk(params_in, state_in), dq_parts(parts), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  __device__ int32_t key_of(int i) const { return static_cast<int32_t>(warp) * kWarpKeys + i; }

  /// The lane's columns of a row, zeros behind its end and where there is none.
  __device__ void load_row(float (&to)[kColumns], const float* row, int32_t dim) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const auto column = static_cast<int32_t>(lane) + c * 32;
      to[c] = row != nullptr && column < dim ? row[column] : 0.0f;
    }
  }

  /// Keys that nothing covers may hold NaN: zeros in their place.
  __device__ void load_keys() {
    const backward::WorkTile& tile = work();
    if (params.ready_flags.pending != 0) {
      await_keys(params.ready_flags, state.arrived, tile.row_begin, tile.row_end);
    }
    const int32_t elsewhere = local_kv_row(params.local_ranges, tile.row_begin, tile.row_end);
    const int64_t first = elsewhere < 0 ? tile.row_begin : elsewhere;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      const int32_t key = key_of(i);
      const bool is_there = tile.row_begin + key < tile.row_end && (tile.covered[key / 32] >> (key % 32) & 1);
      const float* const k_rows = static_cast<const float*>(elsewhere < 0 ? params.k : params.k_local);
      const float* const v_rows = static_cast<const float*>(elsewhere < 0 ? params.v : params.v_local);
      load_row(k[i],
               is_there ? k_rows + tile.kv_head * params.k_head_stride + (first + key) * params.k_row_stride : nullptr,
               params.head_dim);
      load_row(v[i],
               is_there ? v_rows + tile.kv_head * params.v_head_stride + (first + key) * params.v_row_stride : nullptr,
               params.head_dim_v);
    }
  }

  /// A query of a step.
  __device__ void add_query(const StepCursor& at, int in_tile, const RowInterval (&seen)[kWarpKeys]) {
    const RowStatistics row = params.stats[accum_tile(at) * kStepQueries + in_tile];
    const int64_t query = int64_t{at.rows.row_begin} + in_tile;
    float q[kColumns], dout[kColumns], dq[kColumns] = {};
    load_row(q, static_cast<const float*>(params.q) + query * params.q_row_stride + at.head * params.q_head_stride,
             params.head_dim);
    load_row(
        dout,
        static_cast<const float*>(params.dout) + query * params.dout_row_stride + at.head * params.dout_head_stride,
        params.head_dim_v);
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      if (in_tile < seen[i].begin || in_tile >= seen[i].end) continue;  // the same for the whole warp
      float score = 0.0f, dp = 0.0f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        score += q[c] * k[i][c];
        dp += dout[c] * v[i][c];
      }
      score = warp_sum(score);
      dp = warp_sum(dp);
      float slope = 1.0f, exponent = score * params.scale_log2;
      if constexpr (kSoftcap) {
        const float t = tanhf(score * params.cap_inner);
        exponent = t * params.cap_outer;
        slope = 1.0f - t * t;
      }
      const float p = exp2f(exponent - row.lse_log2), ds = p * (dp - row.delta) * slope;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        dv[i][c] += p * dout[c];
        dk[i][c] += ds * q[c];
        dq[c] += ds * k[i][c];
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) dq_parts[turn][warp][lane + static_cast<uint32_t>(c) * 32] = dq[c];
    __syncthreads();  // all parts are there, and the parts of the query before have been read
    if (static_cast<int32_t>(threadIdx.x) < params.head_dim) {
      float sum = 0.0f;
      for (int w = 0; w < kWarps; ++w) sum += dq_parts[turn][w][threadIdx.x];
      float* const to = params.dq_sums + (accum_tile(at) * kStepQueries + in_tile) * kDim + threadIdx.x;
      if (params.deterministic) {
        __stcg(to, __ldcg(to) + sum);
      } else {
        ptx::reduce_add_f32(to, sum);
      }
    }
    turn ^= 1;
  }
  __device__ void add_step(const StepCursor& at) {
    RowInterval seen[kWarpKeys];
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) seen[i] = queries_of(params.runs[at.run], at.rows, key_of(i));
    // NOTE [order of additions] of step_walk.cuh.
    int32_t* const count = params.dq_semaphore + accum_tile(at);
    const int32_t turn_of_step = params.deterministic ? params.dq_order_segments[at.segment].turn : 0;
    if (params.deterministic) {
      if (threadIdx.x == 0) {
        while (ptx::load_acquire(count) < turn_of_step) {
        }
      }
      __syncthreads();
    }
    for (int in_tile = 0; in_tile < kStepQueries; ++in_tile) {
      if (at.is_there >> in_tile & 1) add_query(at, in_tile, seen);
    }
    if (!params.deterministic) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ptx::store_release(count, turn_of_step + 1);
  }

  __device__ void walk_queries() {
    begin_steps();
    load_keys();
    while (next.left > 0) {
      const StepCursor at = next;
      advance();
      if (next.left == 0) begin_last_step();
      add_step(at);
    }
  }

  __device__ void write_row(const Sums& sums, int i, backward::GradientRow to, float scale, int32_t dim) const {
    auto* const row = reinterpret_cast<float*>(to.first);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const auto column = static_cast<int32_t>(lane) + c * 32;
      if (column >= dim) continue;
      row[column] = (params.accumulate_dkv ? row[column] : 0.0f) + sums[i][c] * scale;
    }
  }
  __device__ void write_gradients() {
    __syncthreads();  // the place of a piece is known
    if (work().num_head_splits > 1 && !backward::join_pieces<BackwardTraits<kDim>>(params, state, dk, dv)) return;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      if (!backward::writes_key(params, work(), key_of(i))) continue;
      write_row(dk, i, backward::dk_row(params, work(), key_of(i)), params.softmax_scale, params.head_dim);
      write_row(dv, i, backward::dv_row(params, work(), key_of(i)), 1.0f, params.head_dim_v);
    }
  }
};

template <int kDim>
struct BackwardSmem {
  backward::WorkState work;
  float dq_parts[2][kWarps][kDim];
};

/// Launched with kThreads threads and sizeof(BackwardSmem) bytes of shared memory.
template <int kDim, bool kSoftcap>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(const __grid_constant__ Params params) {
  BackwardSmem<kDim>& smem = *static_cast<BackwardSmem<kDim>*>(ptx::dynamic_shared_memory());
  BackwardKeys<kDim, kSoftcap> keys(params, smem.work, smem.dq_parts);
  backward::run_work_tiles(keys, [&] {
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
#pragma unroll
      for (int c = 0; c < keys.kColumns; ++c) keys.dk[i][c] = keys.dv[i][c] = 0.0f;
    }
    if (keys.work().num_steps > 0) keys.walk_queries();
    keys.write_gradients();
  });
}

/// dq from its sums. One CTA per query tile and head.
template <int kDim>
__global__ void __launch_bounds__(kThreads) after_kernel(const __grid_constant__ PrePostParams params) {
  const int tile = static_cast<int>(blockIdx.x) / params.num_heads_q;
  const int head = static_cast<int>(blockIdx.x) - tile * params.num_heads_q;
  const auto [in_tables, accum_tile] = backward::tile_place(params, head, tile);
  const backward::QueryTile rows = params.q_tiles[in_tables];
  if (params.has_empty_tiles && rows.row_begin == rows.row_end) return;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < (rows.row_end - rows.row_begin) * kDim; i += kThreads) {
    const int32_t row = i / kDim, column = i % kDim;
    if (column >= params.head_dim) continue;
    auto* const to = static_cast<float*>(params.dq) + (int64_t{rows.row_begin} + row) * params.dq_row_stride +
                     head * params.dq_head_stride + column;
    const float value = params.dq_sums[accum_tile * (kStepQueries * kDim) + i] * params.softmax_scale;
    *to = params.accumulate_dq ? *to + value : value;
  }
}

}  // namespace tangram::sm80::float32
