// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The forward kernel of float32 tensors: plain multiplications on the lists of the others, by a persistent grid. Right
// to the rounding of float32, and slow: no tensor core multiplies float32.
//
// A warp owns kWarpRows rows of a work tile. Of a tile of keys each lane makes the scores of one; then each lane has
// every 32nd column of out, and adds up keys one by one. K and V are read through L1, Q lies in shared memory.
#pragma once

#include "attn/sm80/common/key_sources.cuh"
#include "attn/sm80/common/work_order.cuh"
#include "attn/sm80/float32/shapes.hpp"
#include "attn/sm80/forward/row_end.cuh"
#include "cuda/ptx/memory.cuh"

namespace tangram::sm80::float32 {

template <int kDim>
struct ForwardRows {
  static constexpr int kWarpRows = kForwardRows / kWarps, kColumns = kDim / 32;

  const ForwardParams& params;
  ArrivedKeys& arrived;
  const float* q;  // in shared memory
  const uint32_t warp, lane;
  WorkRows work{};
  float reference[kWarpRows], sum[kWarpRows], largest[kWarpRows];  // sum: of the lane's keys
  float out[kWarpRows][kColumns];

  __device__ ForwardRows(const ForwardParams& params_in, ArrivedKeys& arrived_in, const float* q_in)
      : params(params_in), arrived(arrived_in), q(q_in), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  __device__ int32_t packed_row(int r) const { return static_cast<int32_t>(warp) * kWarpRows + r; }

  __device__ void reset() {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      reference[r] = largest[r] = minus_infinity();
      sum[r] = 0.0f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[r][c] = 0.0f;
    }
  }

  /// What a row sees of a run.
  __device__ RowInterval interval_of(const TileRange& run, int r) const {
    const int32_t in_tile = packed_row(r) >> params.pack_log2, row = work.row0 + in_tile;
    if (in_tile >= work.num_rows) return {};
    if (run.interval_begin >= 0) return params.intervals[run.interval_begin + in_tile];
    if (row < run.row_begin || row >= run.row_end) return {};
    return {max(run.slice_k_begin, row + run.min_diag), min(run.slice_k_end, row + run.max_diag + 1)};
  }

  /// The lane's key of a tile, of all rows; unseen cells are minus infinity, whatever K holds there.
  __device__ void make_scores(float (&s)[kWarpRows], const RowInterval (&seen)[kWarpRows], const float* key,
                              int32_t key_index) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) s[r] = 0.0f;
    for (int d = 0; d < params.head_dim; d += 4) {
      const float4 k = *reinterpret_cast<const float4*>(key + d);
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(q + packed_row(r) * params.head_dim + d);
        s[r] += x.x * k.x + x.y * k.y + x.z * k.z + x.w * k.w;
      }
    }
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const bool sees = seen[r].begin <= key_index && key_index < seen[r].end;
      const float score = s[r] * params.softmax_scale;
      if (sees) largest[r] = fmaxf(largest[r], score);
      s[r] = !sees ? minus_infinity() : params.softcap > 0 ? params.softcap * tanhf(score / params.softcap) : score;
    }
  }

  /// From scores to probabilities, relative to the largest scores so far.
  __device__ void apply_softmax(float (&s)[kWarpRows]) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      float most = s[r];
      for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, lanes));
      most = fmaxf(most, reference[r]);
      if (most == minus_infinity()) {
        s[r] = 0.0f;
        continue;
      }
      const float rescale = expf(reference[r] - most);
      reference[r] = most;
      s[r] = expf(s[r] - most);
      sum[r] = sum[r] * rescale + s[r];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[r][c] *= rescale;
    }
  }

  /// Adds P V of the keys of a tile that some row sees: rows of V that none sees may hold NaN.
  __device__ void add_output(const float (&p)[kWarpRows], uint32_t keys, const float* values) {
    for (; keys != 0; keys &= keys - 1) {
      const int key = __ffs(static_cast<int>(keys)) - 1;
      float v[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const auto column = static_cast<int32_t>(lane) + c * 32;
        v[c] = column < params.head_dim_v ? values[key * params.v_row_stride + column] : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        const float weight = __shfl_sync(0xffffffff, p[r], key);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) out[r][c] += weight * v[c];
      }
    }
  }

  __device__ void walk_run(const TileRange& run) {
    RowInterval seen[kWarpRows];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) seen[r] = interval_of(run, r);
    for (int32_t k0 = run.k_begin; k0 < run.k_end; k0 += kForwardKeys) {
      const int32_t end = min(k0 + kForwardKeys, run.k_end), key = k0 + static_cast<int32_t>(lane);
      if (params.ready_flags.pending != 0) await_keys(params.ready_flags, arrived, k0, end);
      bool sees = false;
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) sees = sees || (seen[r].begin <= key && key < seen[r].end);
      const uint32_t keys = __ballot_sync(0xffffffff, sees && key < end);
      if (keys == 0) continue;
      const int32_t elsewhere = local_kv_row(params.local_ranges, k0, end);
      const int64_t first = elsewhere < 0 ? k0 : elsewhere;
      const float* const k = static_cast<const float*>(elsewhere < 0 ? params.k : params.k_local) +
                             work.kv_head * params.k_head_stride + first * params.k_row_stride;
      const float* const v = static_cast<const float*>(elsewhere < 0 ? params.v : params.v_local) +
                             work.kv_head * params.v_head_stride + first * params.v_row_stride;
      float s[kWarpRows];
      // Lanes behind the end read the last key, and see nothing.
      make_scores(s, seen, k + (min(key, end - 1) - k0) * params.k_row_stride, key < end ? key : -1);
      apply_softmax(s);
      add_output(s, keys, v);
    }
  }

  __device__ void finish() {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const RowPlace place = row_place(params, work, packed_row(r));
      float total = sum[r];
      for (int lanes = 16; lanes > 0; lanes /= 2) total += __shfl_xor_sync(0xffffffff, total, lanes);
      if (!place.valid) continue;
      const int64_t at = place.row * params.num_heads_q + place.head;
      float lse = reference[r] + logf(total);
      RowFactors factors{total == 0.0f ? 0.0f : 1.0f / total, 0.0f};  // a sum of NaN is to be seen
      if (!work.is_part() && (params.sink != nullptr || params.accumulate)) {
        lse = merged_lse(params, lse, place.row, place.head, factors);
        __syncwarp();  // all lanes have read what the first one overwrites
      }
      float peak = largest[r];
      for (int lanes = 16; lanes > 0; lanes /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, lanes));
      if (lane == 0) {
        (work.is_part() ? params.part_lse : params.lse)[at] = lse;
        if (params.max_logits != nullptr && peak != minus_infinity()) atomic_max(params.max_logits + place.head, peak);
      }
      float* const row = work.is_part() ? params.part_out + at * params.head_dim_v
                                        : static_cast<float*>(params.out) + place.row * params.out_row_stride +
                                              place.head * params.out_head_stride;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const auto column = static_cast<int32_t>(lane) + c * 32;
        if (column >= params.head_dim_v) continue;
        float value = factors.accumulated == 0.0f ? 0.0f : out[r][c] * factors.accumulated;
        if (factors.previous != 0.0f) value += row[column] * factors.previous;
        row[column] = value;
      }
    }
  }
};

/// Q of a work tile, zeros in rows behind it. All threads.
__device__ __forceinline__ void load_queries(const ForwardParams& params, const WorkRows& work, float* q) {
  const int32_t fours = params.head_dim / 4, first_head = work.group << params.pack_log2;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kForwardRows * fours; i += kThreads) {
    const int32_t packed = i / fours, in_tile = packed >> params.pack_log2;
    float4 value{};
    if (in_tile < work.num_rows) {
      const int64_t at = (int64_t{work.row0} + in_tile) * params.q_row_stride +
                         (first_head + (packed & ((1 << params.pack_log2) - 1))) * params.q_head_stride;
      value = *reinterpret_cast<const float4*>(static_cast<const float*>(params.q) + at + i % fours * 4);
    }
    reinterpret_cast<float4*>(q)[i] = value;
  }
}

template <int kDim>
struct ForwardSmem {
  float q[kForwardRows * kDim];  // [kForwardRows, head_dim]
  ArrivedKeys arrived;
};

/// Launched with kThreads threads and sizeof(ForwardSmem) bytes of shared memory.
template <int kDim>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ ForwardParams params) {
  ForwardSmem<kDim>& smem = *static_cast<ForwardSmem<kDim>*>(ptx::dynamic_shared_memory());
  ForwardRows<kDim> rows(params, smem.arrived, smem.q);
  if (threadIdx.x == 0) smem.arrived.bits = 0;
  for (auto ticket = static_cast<int32_t>(blockIdx.x); ticket < params.num_work_tiles * params.num_groups;
       ticket += static_cast<int32_t>(gridDim.x)) {
    const WorkPlace at = begin_work(params, ticket);
    rows.work = at.rows;
    __syncthreads();  // the work tile before has ended
    load_queries(params, at.rows, smem.q);
    __syncthreads();
    rows.reset();
    for (int32_t run = at.run; run < at.run_end; ++run) rows.walk_run(params.runs[run]);
    rows.finish();
  }
}

}  // namespace tangram::sm80::float32
