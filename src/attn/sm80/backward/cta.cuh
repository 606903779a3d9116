// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Common part of the CTAs of all backward kernels. They walk the steps of a work tile, copy its rows into shared memory
// and add dQ to its float32 sums.
//
// NOTE [order of additions] Deterministic calls add to dq in the order of the work tiles. The turn of a step at its
// sums is the number of steps that add to them and belong to work tiles with smaller tickets. A work tile waits only
// for work tiles scheduled before it, which a CTA has finished or is working on. No deadlock, however few CTAs run.
#pragma once

#include "attn/sm80/backward/epilogue.cuh"
#include "attn/sm80/backward/traits.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm80::backward {

/// Walks the steps of a work tile.
struct StepCursor {
  int32_t left = 0;  // steps, the one at hand included
  int32_t head = 0, run = 0, tile = 0;
  int32_t segment = 0;    // in order: of the turn of the tile
  QueryTile rows;         // of the tile
  uint64_t is_there = 0;  // which of its rows hold something
};

template <typename Traits>
struct CtaBase {
  using Element = typename Traits::Element;
  using LayoutQk = typename Traits::LayoutQk;
  using LayoutV = typename Traits::LayoutV;
  using LayoutP = typename Traits::LayoutP;
  using Scores = typename Traits::Scores;
  using Dk = typename Traits::Dk;
  using Dv = typename Traits::Dv;
  using Dq = typename Traits::Dq;
  using ScoreSums = typename Scores::Sums;

  const Params& params;
  Smem<Traits>& smem;
  const uint32_t warp, lane;
  StepCursor next;  // the step whose Q is copied next
  bool is_descending = false, heads_innermost = false;
  typename Dk::Sums dk;
  typename Dv::Sums dv;

  __device__ CtaBase(const Params& params_in, Smem<Traits>& smem_in)
      : params(params_in), smem(smem_in), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ const WorkTile& work() const { return smem.work_tile; }

  __device__ __forceinline__ void enter_run() {
    const RangeQueryTiles& tiles = params.run_tiles[next.run];
    next.tile = is_descending ? tiles.end - 1 : tiles.first;
    next.segment = tiles.segment;
  }
  /// Work tiles of head groups say how their mask is walked.
  __device__ __forceinline__ void begin_steps() {
    const schedule::Walk& walk = smem.mask_info.walk;
    is_descending = walk.descending || (work().flags & schedule::kWorkTileDescending) != 0;
    heads_innermost = walk.heads_innermost || (work().flags & schedule::kWorkTileHeadsInside) != 0;
    next = {work().num_steps, work().head_begin};
    enter_first_run();
    find_rows();
  }
  __device__ __forceinline__ void enter_first_run() {
    next.run = is_descending ? work().run_end - 1 : work().run_begin;
    enter_run();
  }
  __device__ __forceinline__ bool next_tile() {
    next.tile += is_descending ? -1 : 1;
    const RangeQueryTiles& tiles = params.run_tiles[next.run];
    if (tiles.first <= next.tile && next.tile < tiles.end) {
      if (params.deterministic && params.dq_order_segments[next.segment + 1].first_tile == next.tile) ++next.segment;
      return true;
    }
    next.run += is_descending ? -1 : 1;
    if (next.run < work().run_begin || next.run >= work().run_end) return false;
    enter_run();
    return true;
  }
  /// Loads the data for copies and mask of a step, while other warps multiply.
  __device__ __forceinline__ void find_rows() {
    next.rows = params.q_tiles[next.tile];
    next.is_there = params.covered_queries ? __ldg(params.covered_queries + next.tile) : ~uint64_t{0};
    const int32_t num_rows = next.rows.row_end - next.rows.row_begin;
    if (num_rows < Traits::kQueries) next.is_there &= (uint64_t{1} << num_rows) - 1;
  }
  __device__ __forceinline__ void advance() {
    if (--next.left == 0) return;
    advance_tile();
    find_rows();
  }
  __device__ __forceinline__ void advance_tile() {
    if (!heads_innermost) {
      if (next_tile()) return;
      ++next.head;
      enter_first_run();
    } else if (++next.head == work().head_end) {
      next.head = work().head_begin;
      next_tile();
    }
  }

  __device__ __forceinline__ int64_t accum_tile(const StepCursor& at) const {
    return offset_of(at.head, params.num_q_tiles) + at.tile;
  }

  /// Where V is copied to; with kVInRegisters only until the first step.
  __device__ __forceinline__ unsigned char* v_tile() const {
    if constexpr (Traits::kOwnKeys) {
      return smem.ds[0];
    } else {
      return Traits::kVInRegisters ? smem.dout[0] : smem.v;
    }
  }
  /// Rows that nothing covers may hold NaN: zeros in their place.
  __device__ __forceinline__ void copy_keys() {
    if (params.ready_flags.pending != 0) {
      await_keys(params.ready_flags, smem.arrived, work().row_begin, work().row_end);
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

  /// The queries, counted in the tile, that see a key, counted likewise: those of [begin, end).
  __device__ __forceinline__ RowInterval queries_of(const TileRange& run, const QueryTile& rows,
                                                    int32_t in_tile) const {
    const int32_t key = work().row_begin + in_tile;
    RowInterval seen;
    if (key >= work().row_end) return seen;
    if (run.interval_begin >= 0) {
      seen = params.intervals[run.interval_begin + in_tile];
    } else if (run.row_begin <= key && key < run.row_end) {
      seen = {max(run.slice_k_begin, key + run.min_diag), min(run.slice_k_end, key + run.max_diag + 1)};
    }
    return {seen.begin - rows.row_begin, min(seen.end, rows.row_end) - rows.row_begin};
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
    // NOTE [order of additions].
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

  /// Pieces are joined by the one that ends last, which then waits for no piece that is still at its steps. Called
  /// before the last step.
  __device__ __forceinline__ void draw_place() {
    if (threadIdx.x == 0 && work().num_head_splits > 1 && !params.deterministic) {
      smem.place = atomicAdd(params.split_semaphore + work().accum_tile, kPieceArrived) / kPieceArrived;
    }
  }
};

}  // namespace tangram::sm80::backward
