// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The forward kernel: out = softmax(scale * Q K^T over visible pairs) V and its lse. Persistent grid of
// Traits::kCtasPerMultiprocessor CTAs a multiprocessor, Traits::kThreads threads, sizeof(ForwardSmem) bytes. All warps
// copy, multiply and exponentiate; each owns Traits::kWarpRows rows of the tile and all of its keys.
//
// Two barriers a step, and one copy on its way between any two of them:
//
//   | K is there, V is free | copy V | S = Q K^T, softmax | V is there, K is free | copy the next K | O += P V |
//
// The other CTA of the multiprocessor fills the gaps. Q stays in shared memory: registers hold O and S.
#pragma once

#include "attn/sm80/forward/epilogue.cuh"
#include "attn/sm80/forward/params.hpp"
#include "attn/sm80/forward/softmax.cuh"
#include "attn/sm80/forward/traits.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/memory.cuh"

namespace tangram::sm80 {

/// What query rows [first, last] see of a run.
__device__ __forceinline__ SeenKeys seen_keys(const TileRange& run, int32_t first, int32_t last) {
  if (run.interval_begin >= 0) return {run.k_begin, run.k_end, run.full_begin, run.full_end};
  const int32_t seen_first = max(first, run.row_begin), seen_last = min(last, run.row_end - 1);
  if (seen_first > seen_last) return {0, 0, 0, 0};
  SeenKeys seen;
  seen.see_begin = max(run.slice_k_begin, seen_first + run.min_diag);
  seen.see_end = min(run.slice_k_end, seen_last + run.max_diag + 1);
  seen.full_begin = max(run.slice_k_begin, seen_last + run.min_diag);
  seen.full_end = seen_first == first && seen_last == last ? min(run.slice_k_end, seen_first + run.max_diag + 1) : 0;
  return seen;
}

/// Walks the tiles of keys of a work tile.
struct KeyCursor {
  int32_t run, run_end;
  int32_t k0, k_end;  // of the tile at hand; where its run ends

  __device__ __forceinline__ bool valid() const { return run < run_end; }
  __device__ __forceinline__ void enter(const TileRange* runs) {
    if (!valid()) return;
    k0 = __ldg(&runs[run].k_begin);
    k_end = __ldg(&runs[run].k_end);
  }
  __device__ __forceinline__ void advance(const TileRange* runs, int32_t keys) {
    k0 += keys;
    if (k0 < k_end) return;
    ++run;
    enter(runs);
  }
};

template <typename Traits>
struct ForwardCta {
  using Element = typename Traits::Element;
  using LayoutQk = typename Traits::LayoutQk;
  using LayoutV = typename Traits::LayoutV;
  static constexpr int kM = Traits::kM, kBlockN = Traits::kBlockN, kGroups16 = Traits::kGroups16;

  const ForwardParams& params;
  ForwardSmem<Traits>& smem;
  const uint32_t warp, lane;
  uint32_t turn = 0;  // of work tiles: where the one at hand stands in shared memory, for lack of registers
  KeyCursor next;     // the tile of keys whose K is on its way
  float o[kM][Traits::kDimV / 2];
  RowState state[kM];

  __device__ ForwardCta(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in)
      : params(params_in), smem(smem_in), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  /// The first of a thread's two rows of 16.
  __device__ __forceinline__ int32_t packed_row(int m) const {
    return static_cast<int32_t>(warp * Traits::kWarpRows + lane / 4) + m * 16;
  }
  __device__ __forceinline__ const WorkRows& work() const { return smem.work[turn][warp]; }

  /// Begins the work tile of a ticket, with the copies of Q and of the first K; false: there are no more.
  __device__ __forceinline__ bool begin_work(int32_t ticket) {
    if (ticket >= params.num_work_tiles * params.num_groups) return false;
    const WorkPlace at = sm80::begin_work(params, ticket);
    if (lane == 0) smem.work[turn][warp] = at.rows;
    __syncwarp();
    next.run = at.run;
    next.run_end = at.run_end;
    next.enter(params.runs);
    if (next.valid()) {
      copy_q();
      copy_k();
      ptx::cp_async_commit();
    }
    return true;
  }

  __device__ __forceinline__ void copy_q() {
    const int32_t first_head = work().group << params.pack_log2;
    copy_rows<LayoutQk, Traits::kBlockM, Traits::kThreads>(
        ptx::smem_address(smem.q), static_cast<const Element*>(params.q), params.head_dim, [&](int row) -> int64_t {
          const int32_t in_tile = row >> params.pack_log2;
          if (in_tile >= work().num_rows) return -1;
          return (int64_t{work().row0} + in_tile) * params.q_row_stride +
                 (first_head + (row & ((1 << params.pack_log2) - 1))) * params.q_head_stride;
        });
  }
  /// Keys behind the end of a run may be unwritten, or of another mask's: zeros in their place.
  template <typename Layout>
  __device__ __forceinline__ void copy_keys(const KeyCursor& at, unsigned char* to, const void* here, const void* local,
                                            int64_t row_stride, int64_t head_stride, int32_t dim) {
    const int32_t elsewhere = local_kv_row(params.local_ranges, at.k0, min(at.k0 + kBlockN, at.k_end));
    const int32_t first = elsewhere < 0 ? at.k0 : elsewhere;
    const int32_t num_keys = at.k_end - at.k0;
    copy_row_range<Layout, kBlockN, Traits::kThreads>(ptx::smem_address(to),
                                                      static_cast<const Element*>(elsewhere < 0 ? here : local) +
                                                          offset_of(work().kv_head, head_stride) +
                                                          offset_of(first, row_stride),
                                                      row_stride, dim, [&](int row) { return row < num_keys; });
  }
  __device__ __forceinline__ void copy_k() {
    if (params.ready_flags.pending != 0) {
      await_keys(params.ready_flags, smem.arrived, next.k0, min(next.k0 + kBlockN, next.k_end));
    }
    copy_keys<LayoutQk>(next, smem.k, params.k, params.k_local, params.k_row_stride, params.k_head_stride,
                        params.head_dim);
  }
  __device__ __forceinline__ void copy_v(const KeyCursor& at) {
    copy_keys<LayoutV>(at, smem.v, params.v, params.v_local, params.v_row_stride, params.v_head_stride,
                       params.head_dim_v);
  }

  /// Finds what the warp's rows see of a run, each by itself and all together.
  __device__ __forceinline__ void enter_run(int32_t run_idx) {
    const TileRange& run = params.runs[run_idx];
#pragma unroll
    for (uint32_t first = 0; first < Traits::kWarpRows; first += 32) {
      const uint32_t row_in_warp = first + lane;
      if (Traits::kWarpRows % 32 != 0 && row_in_warp >= Traits::kWarpRows) break;
      const uint32_t packed = warp * Traits::kWarpRows + row_in_warp;
      const auto in_tile = static_cast<int32_t>(packed >> params.pack_log2);
      const int32_t row = work().row0 + in_tile;
      RowInterval interval;
      if (in_tile < work().num_rows) {
        if (run.interval_begin >= 0) {
          interval = params.intervals[run.interval_begin + in_tile];
        } else if (row >= run.row_begin && row < run.row_end) {
          interval = {max(run.slice_k_begin, row + run.min_diag), min(run.slice_k_end, row + run.max_diag + 1)};
        }
      }
      smem.intervals[packed] = interval;
    }
    if (lane == 0) {
      const int32_t last_row = work().row0 + work().num_rows - 1;
      const auto first = static_cast<int32_t>(warp * Traits::kWarpRows);
      const int32_t first_row = work().row0 + (first >> params.pack_log2);
      const int32_t end_row = work().row0 + ((first + Traits::kWarpRows - 1) >> params.pack_log2);
      smem.seen[warp] =
          first_row <= last_row ? seen_keys(run, first_row, min(end_row, last_row)) : SeenKeys{0, 0, 0, 0};
    }
    __syncwarp();
  }

  using Scores = float[kM][kBlockN / 2];
  using Probabilities = uint32_t[kM][kGroups16][4];  // in the element type, as operands A

  __device__ __forceinline__ void make_scores(Scores& s) const {
    const uint32_t q =
        ptx::smem_address(smem.q) + LayoutQk::lane_rows_first(lane) + warp * Traits::kWarpRows * LayoutQk::kRowBytes;
    const uint32_t k = ptx::smem_address(smem.k) + LayoutQk::lane_columns_first(lane);
    clear(s);
    multiply<Element, kM, kGroups16, Traits::kDimQk / 16>(
        s, [&](uint32_t(&a)[4], int m, int k16) { ptx::load_matrix_x4(a, LayoutQk::advance(q, m, k16)); },
        [&](uint32_t(&b)[4], int k16, int n16) { ptx::load_matrix_x4(b, LayoutQk::advance(k, n16, k16)); });
  }

  __device__ __forceinline__ void mask_tile(Scores& s, int32_t k0) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int32_t shift = k0 + static_cast<int32_t>(lane % 4 * 2);
      const RowInterval first = smem.intervals[packed_row(m)], second = smem.intervals[packed_row(m) + 8];
      mask_scores(s[m], {first.begin - shift, second.begin - shift}, {first.end - shift, second.end - shift});
    }
  }

  /// From scores to probabilities, relative to the references of their rows.
  __device__ __forceinline__ void apply_softmax(Probabilities& p, Scores& s, bool masked, int32_t k0) {
    if (masked) mask_tile(s, k0);
    if constexpr (Traits::kSoftcap) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < kBlockN / 2; ++i) {
          state[m].largest[i / 2 % 2] = fmaxf(state[m].largest[i / 2 % 2], s[m][i]);
          s[m][i] = params.softcap * ptx::tanh_approx(s[m][i] * params.inner_scale);
        }
      }
      if (masked) mask_tile(s, k0);  // which have become -softcap
    }
    float rescale[kM][2];
    if (update_references(s, state, params.exp_scale, params.rescale_threshold, rescale)) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < Traits::kDimV / 2; ++i) o[m][i] *= rescale[m][i / 2 % 2];
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      exponentiate(s[m], state[m], params.exp_scale);
#pragma unroll
      for (int i = 0; i < kBlockN / 4; ++i) p[m][i / 4][i % 4] = ptx::pack_pair<Element>(s[m][i * 2], s[m][i * 2 + 1]);
    }
  }

  __device__ __forceinline__ void add_output(const Probabilities& p) {
    const uint32_t v = ptx::smem_address(smem.v) + LayoutV::lane_rows_first(lane);
    multiply<Element, kM, Traits::kDimV / 16, kGroups16>(
        o,
        [&](uint32_t(&a)[4], int m, int k16) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = p[m][k16][i];
        },
        [&](uint32_t(&b)[4], int k16, int n16) { ptx::load_matrix_x4_transposed(b, LayoutV::advance(v, k16, n16)); });
  }

  /// Draws the ticket of the next work tile, one step ahead to hide the latency of the atomic addition. A CTA that drew
  /// earlier would hold a work tile that it cannot begin, while other CTAs run out of work.
  __device__ __forceinline__ void draw_ticket() {
    if (threadIdx.x == 0) smem.ticket[turn] = atomicAdd(&params.counters[0], 1) + static_cast<int32_t>(gridDim.x);
  }

  /// All tiles of keys of the work tile.
  __device__ __forceinline__ void walk_keys() {
    bool is_new_run = true;
    while (next.valid()) {
      const KeyCursor at = next;
      ptx::cp_async_wait<0>();
      __syncthreads();
      copy_v(at);
      ptx::cp_async_commit();
      if (is_new_run) enter_run(next.run);
      next.advance(params.runs, kBlockN);
      is_new_run = next.run != at.run;
      if (!next.valid()) draw_ticket();
      const SeenKeys seen = smem.seen[warp];
      const bool sees = seen.see_begin < at.k0 + kBlockN && at.k0 < seen.see_end;
      Probabilities p;
      if (sees) {
        Scores s;
        make_scores(s);
        apply_softmax(p, s, !(seen.full_begin <= at.k0 && at.k0 + kBlockN <= seen.full_end), at.k0);
      }
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (next.valid()) {
        copy_k();
        ptx::cp_async_commit();
      }
      if (sees) add_output(p);
    }
  }

  __device__ __forceinline__ void run() {
    if (params.ready_flags.pending != 0) {
      if (threadIdx.x == 0) smem.arrived.bits = 0;
      __syncthreads();
    }
    bool more = begin_work(static_cast<int32_t>(blockIdx.x));
    while (more) {
#pragma unroll
      for (int m = 0; m < kM; ++m) state[m].reset();
      clear(o);
      if (!next.valid()) {
        draw_ticket();
        __syncthreads();
      }
      walk_keys();
      const int32_t ticket = smem.ticket[turn];
      turn ^= 1;
      more = begin_work(ticket);  // K and Q are free behind the last barrier
#pragma unroll
      for (int m = 0; m < kM; ++m)
        finish_rows<Traits>(params, smem.work[turn ^ 1][warp], state[m], o[m], packed_row(m));
    }
    // The last CTA to run out of work leaves the counters as it found them.
    if (threadIdx.x == 0) {
      __threadfence();
      if (atomicAdd(&params.counters[1], 1) == static_cast<int32_t>(gridDim.x) - 1) {
        params.counters[0] = 0;
        params.counters[1] = 0;
      }
    }
  }
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtasPerMultiprocessor)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  ForwardSmem<Traits>& smem = *static_cast<ForwardSmem<Traits>*>(ptx::dynamic_shared_memory());
  ForwardCta<Traits> cta(params, smem);
  cta.run();
}

}  // namespace tangram::sm80
