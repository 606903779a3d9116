// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The backward kernel computes dk, dv and the float32 sums of dq of every work tile. Persistent grid of one CTA a
// multiprocessor, kThreads threads, sizeof(Smem) bytes. K and V stay in shared memory, dk and dv in registers. P and dS
// pass through shared memory, so that each warp computes the part of each product whose operands few other warps read
// (Split).
//
// A step, with its three barriers and copies:
//
//   | Q, dout are there | copy the next Q | S, dP, P, dS | P, dS are there | dV += P^T dO | dout is free | copy the
//   next dout | dQ = dS K, added | dK += dS^T Q |
//
// With one tile of Q in shared memory dK comes before dQ, and the next Q is copied between them, behind a barrier more.
//
// NOTE [order of additions] Deterministic calls add to dq in the order of the work tiles. The turn of a step at its
// sums is the number of steps that add to these sums and belong to work tiles with smaller tickets. A work tile waits
// only for work tiles scheduled before it, which a CTA has finished or is working on. No deadlock, however few CTAs
// run.
#pragma once

#include "attn/sm80/backward/epilogue.cuh"
#include "attn/sm80/backward/traits.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm80::backward {

/// Walks the steps of a work tile.
struct StepCursor {
  int32_t left = 0;  // steps, the one at hand included
  int32_t head = 0, run = 0, tile = 0;
  int32_t segment = 0;  // in order: of the turn of the tile
};

template <typename Traits>
struct Cta {
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
  typename Dk::Sums dk;
  typename Dv::Sums dv;
  static constexpr int kV16 = Traits::kVInRegisters ? Traits::kDimV / 16 : 1;
  uint32_t v_regs[kV16][4];  // with kVInRegisters

  __device__ Cta(const Params& params_in, Smem<Traits>& smem_in)
      : params(params_in), smem(smem_in), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ const WorkTile& work() const { return smem.work_tile; }

  __device__ __forceinline__ void enter_run() {
    const RangeQueryTiles& tiles = params.run_tiles[next.run];
    next.tile = smem.mask_info.walk.descending ? tiles.end - 1 : tiles.first;
    next.segment = tiles.segment;
  }
  __device__ __forceinline__ void enter_first_run() {
    next.run = smem.mask_info.walk.descending ? work().run_end - 1 : work().run_begin;
    enter_run();
  }
  __device__ __forceinline__ bool next_tile() {
    next.tile += smem.mask_info.walk.descending ? -1 : 1;
    const RangeQueryTiles& tiles = params.run_tiles[next.run];
    if (tiles.first <= next.tile && next.tile < tiles.end) {
      if (params.deterministic && params.dq_order_segments[next.segment + 1].first_tile == next.tile) ++next.segment;
      return true;
    }
    next.run += smem.mask_info.walk.descending ? -1 : 1;
    if (next.run < work().run_begin || next.run >= work().run_end) return false;
    enter_run();
    return true;
  }
  __device__ __forceinline__ void advance() {
    if (--next.left == 0) return;
    if (!smem.mask_info.walk.heads_innermost) {
      if (next_tile()) return;
      ++next.head;
      enter_first_run();
    } else if (++next.head == work().head_end) {
      next.head = work().head_begin;
      next_tile();
    }
  }

  __device__ __forceinline__ int64_t accum_tile(const StepCursor& at) const {
    return int64_t{at.head} * params.num_q_tiles + at.tile;
  }

  /// Rows that nothing covers may hold NaN: zeros in their place.
  __device__ __forceinline__ void copy_keys() {
    if (params.ready_flags.pending != 0) {
      await_keys(params.ready_flags, smem.arrived, work().row_begin, work().row_end);
    }
    const int32_t elsewhere = local_kv_row(params.local_ranges, work().row_begin, work().row_end);
    const int32_t first = elsewhere < 0 ? work().row_begin : elsewhere;
    const auto copy = [&]<typename Layout>(Layout, unsigned char* to, const void* here, const void* local,
                                           int64_t row_stride, int64_t head_stride, int32_t dim) {
      copy_rows<Layout, Traits::kKeys, kThreads>(
          ptx::smem_address(to),
          static_cast<const Element*>(elsewhere < 0 ? here : local) + work().kv_head * head_stride, dim,
          [&](int row) -> int64_t {
            if (work().row_begin + row >= work().row_end || !(work().covered[row / 32] >> (row % 32) & 1)) return -1;
            return (int64_t{first} + row) * row_stride;
          });
    };
    copy(LayoutQk(), smem.k, params.k, params.k_local, params.k_row_stride, params.k_head_stride, params.head_dim);
    copy(LayoutV(), Traits::kVInRegisters ? smem.dout : smem.v, params.v, params.v_local, params.v_row_stride,
         params.v_head_stride, params.head_dim_v);
  }
  template <typename Layout>
  __device__ __forceinline__ void copy_queries(const StepCursor& at, unsigned char* to, const void* from,
                                               int64_t row_stride, int64_t head_stride, int32_t dim) {
    const QueryTile rows = params.q_tiles[at.tile];
    const uint64_t covered = params.covered_queries ? __ldg(params.covered_queries + at.tile) : ~uint64_t{0};
    copy_rows<Layout, Traits::kQueries, kThreads>(
        ptx::smem_address(to), static_cast<const Element*>(from) + at.head * head_stride, dim, [&](int row) -> int64_t {
          if (rows.row_begin + row >= rows.row_end || !(covered >> row & 1)) return -1;
          return (int64_t{rows.row_begin} + row) * row_stride;
        });
  }
  __device__ __forceinline__ void copy_q(const StepCursor& at, uint32_t stage) {
    copy_queries<LayoutQk>(at, smem.q[stage], params.q, params.q_row_stride, params.q_head_stride, params.head_dim);
    constexpr int kCopies = sizeof(smem.stats[0]) / 16;
    if (threadIdx.x < kCopies) {
      const auto* from = reinterpret_cast<const uint4*>(params.stats + accum_tile(at) * Traits::kQueries);
      ptx::cp_async_16(ptx::smem_address(smem.stats[stage]) + threadIdx.x * 16, from + threadIdx.x, false);
    }
  }
  __device__ __forceinline__ void copy_dout(const StepCursor& at) {
    copy_queries<LayoutV>(at, smem.dout, params.dout, params.dout_row_stride, params.dout_head_stride,
                          params.head_dim_v);
  }

  /// The warp's keys of V as operands B.
  __device__ __forceinline__ void load_v(const unsigned char* tile) {
    const uint32_t lane_at =
        ptx::smem_address(tile) + LayoutV::lane_columns_first(lane) + Scores::first_col(warp) * LayoutV::kRowBytes;
#pragma unroll
    for (int k16 = 0; k16 < kV16; ++k16) ptx::load_matrix_x4(v_regs[k16], LayoutV::advance(lane_at, 0, k16));
  }
  /// dP = dO V^T: the part of the warp.
  __device__ __forceinline__ void multiply_dout(ScoreSums& sums) const {
    if constexpr (Traits::kVInRegisters) {
      static_assert(Scores::kN16 == 1);
      const uint32_t a_lane =
          ptx::smem_address(smem.dout) + LayoutV::lane_rows_first(lane) + Scores::first_row(warp) * LayoutV::kRowBytes;
      clear(sums);
      multiply<Element, Scores::kM, 1, Traits::kDimV / 16>(
          sums, [&](uint32_t(&a)[4], int m, int k16) { ptx::load_matrix_x4(a, LayoutV::advance(a_lane, m, k16)); },
          [&](uint32_t(&b)[4], int k16, int) {
#pragma unroll
            for (int i = 0; i < 4; ++i) b[i] = v_regs[k16][i];
          });
    } else {
      multiply_rows<LayoutV, Traits::kDimV>(sums, smem.dout, smem.v);
    }
  }
  /// sums = A B^T, of rows of two tiles: the part of the warp.
  template <typename Layout, int kDim>
  __device__ __forceinline__ void multiply_rows(ScoreSums& sums, const unsigned char* queries,
                                                const unsigned char* keys) const {
    const uint32_t a_lane =
        ptx::smem_address(queries) + Layout::lane_rows_first(lane) + Scores::first_row(warp) * Layout::kRowBytes;
    const uint32_t b_lane =
        ptx::smem_address(keys) + Layout::lane_columns_first(lane) + Scores::first_col(warp) * Layout::kRowBytes;
    clear(sums);
    multiply<Element, Scores::kM, Scores::kN16, kDim / 16>(
        sums, [&](uint32_t(&a)[4], int m, int k16) { ptx::load_matrix_x4(a, Layout::advance(a_lane, m, k16)); },
        [&](uint32_t(&b)[4], int k16, int n16) { ptx::load_matrix_x4(b, Layout::advance(b_lane, n16, k16)); });
  }
  /// The lane's address in a tile from column `first_col` on, a multiple of 16.
  template <typename Layout>
  static __device__ __forceinline__ uint32_t lane_at_column(uint32_t lane_offset, const unsigned char* tile,
                                                            uint32_t first_col) {
    return ptx::smem_address(tile) + Layout::advance(lane_offset, 0, static_cast<int>(first_col / 16));
  }
  /// sums += A^T B over the queries of a step, A being P or dS: the part of the warp.
  template <typename Part, typename Layout>
  __device__ __forceinline__ void add_gradient(typename Part::Sums& sums, const unsigned char* p,
                                               const unsigned char* queries) const {
    const uint32_t row = Part::first_row(warp), column = Part::first_col(warp);
    const uint32_t a_lane = LayoutP::lane_columns_first(lane), b_lane = Layout::lane_rows_first(lane);
    const uint32_t a_tile = ptx::smem_address(p), b_tile = ptx::smem_address(queries);
    multiply<Element, Part::kM, Part::kN16, Traits::kQueries / 16>(
        sums,
        [&](uint32_t(&a)[4], int m, int k16) {
          ptx::load_matrix_x4_transposed(a, a_tile + LayoutP::advance(a_lane, k16, static_cast<int>(row / 16) + m));
        },
        [&](uint32_t(&b)[4], int k16, int n16) {
          ptx::load_matrix_x4_transposed(b, b_tile + Layout::advance(b_lane, k16, static_cast<int>(column / 16) + n16));
        });
  }

  /// First of the two keys of columns 8 j and 8 j + 1 of a thread; first query of 16 rows m in the tile.
  __device__ __forceinline__ int32_t key_of(int j) const {
    return static_cast<int32_t>(Scores::first_col(warp) + lane % 4 * 2) + j * 8;
  }
  __device__ __forceinline__ int32_t query_of(int m) const {
    return static_cast<int32_t>(Scores::first_row(warp) + lane / 4) + m * 16;
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

  /// S becomes P, dP becomes dS.
  __device__ __forceinline__ void apply_softmax(ScoreSums& s, ScoreSums& dp, const StepCursor& at,
                                                const RowStatistics* stats) const {
    const TileRange& run = params.runs[at.run];
    const QueryTile rows = params.q_tiles[at.tile];
    const bool all = __ldg(&run.full_begin) <= rows.row_begin &&
                     rows.row_begin + Traits::kQueries <= min(__ldg(&run.full_end), rows.row_end) &&
                     work().row_end - work().row_begin == Traits::kKeys;
    RowStatistics row[Scores::kM][2];
#pragma unroll
    for (int m = 0; m < Scores::kM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) row[m][r] = stats[query_of(m) + r * 8];
    }
#pragma unroll
    for (int j = 0; j < Scores::kN16 * 2; ++j) {
      RowInterval seen[2] = {{0, Traits::kQueries}, {0, Traits::kQueries}};
      if (!all) {
#pragma unroll
        for (int e = 0; e < 2; ++e) seen[e] = queries_of(run, rows, key_of(j) + e);
      }
#pragma unroll
      for (int m = 0; m < Scores::kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const RowStatistics& of = row[m][i / 2];
          const int32_t query = query_of(m) + i / 2 * 8;
          float& score = s[m][j * 4 + i];
          float& gradient = dp[m][j * 4 + i];
          float p, slope = 1.0f;
          if constexpr (Traits::kSoftcap) {
            const float t = ptx::tanh_approx(score * params.cap_inner);
            p = ptx::exp2_approx(t * params.cap_outer - of.lse_log2);
            slope = 1.0f - t * t;
          } else {
            p = ptx::exp2_approx(score * params.scale_log2 - of.lse_log2);
          }
          if (!all && (query < seen[i % 2].begin || query >= seen[i % 2].end)) p = 0.0f;
          score = p;
          gradient = p * (gradient - of.delta);
          if constexpr (Traits::kSoftcap) gradient *= slope;
        }
      }
    }
  }

  /// P or dS to shared memory, in the element type.
  __device__ __forceinline__ void store_scores(const ScoreSums& s, unsigned char* to) const {
#pragma unroll
    for (int m = 0; m < Scores::kM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto row = static_cast<uint32_t>(query_of(m) + r * 8);
#pragma unroll
        for (int j = 0; j < Scores::kN16 * 2; ++j) {
          const uint32_t chunk = Scores::first_col(warp) / 8 + static_cast<uint32_t>(j);
          *reinterpret_cast<uint32_t*>(to + LayoutP::offset(row, chunk) + lane % 4 * 4) =
              ptx::pack_pair<Element>(s[m][j * 4 + r * 2], s[m][j * 4 + r * 2 + 1]);
        }
      }
    }
  }

  /// dQ = dS K of a step, added to its sums.
  __device__ __forceinline__ void add_dq(const StepCursor& at) const {
    typename Dq::Sums dq;
    clear(dq);
    const uint32_t a_lane =
        ptx::smem_address(smem.ds) + LayoutP::lane_rows_first(lane) + Dq::first_row(warp) * LayoutP::kRowBytes;
    const uint32_t b_lane = LayoutQk::lane_rows_first(lane), b_tile = ptx::smem_address(smem.k);
    const uint32_t column = Dq::first_col(warp);
    multiply<Element, Dq::kM, Dq::kN16, Traits::kKeys / 16>(
        dq, [&](uint32_t(&a)[4], int m, int k16) { ptx::load_matrix_x4(a, LayoutP::advance(a_lane, m, k16)); },
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

  __device__ __forceinline__ void walk_queries() {
    next = {work().num_steps, work().head_begin, 0, 0, 0};
    enter_first_run();
    copy_keys();
    copy_q(next, 0);
    if constexpr (Traits::kVInRegisters) {
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      __syncthreads();
      load_v(smem.dout);
      __syncthreads();
    }
    copy_dout(next);
    ptx::cp_async_commit();
#pragma unroll 1
    for (uint32_t stage = 0; next.left > 0; stage ^= Traits::kQStages - 1) {
      const StepCursor at = next;
      ptx::cp_async_wait<0>();
      __syncthreads();
      advance();
      if (next.left > 0) {
        if constexpr (Traits::kQStages == 2) {
          copy_q(next, stage ^ 1);
          ptx::cp_async_commit();
        }
      } else if (threadIdx.x == 0 && work().num_head_splits > 1 && !params.deterministic) {
        // Pieces are joined by the one that ends last, which then waits for no piece that is still at its steps.
        smem.place = atomicAdd(params.split_semaphore + work().accum_tile, kPieceArrived) / kPieceArrived;
      }
      {
        ScoreSums s, dp;
        multiply_rows<LayoutQk, Traits::kDimQk>(s, smem.q[stage], smem.k);
        multiply_dout(dp);
        apply_softmax(s, dp, at, smem.stats[stage]);
        store_scores(s, smem.p);
        store_scores(dp, smem.ds);
      }
      __syncthreads();
      add_gradient<Dv, LayoutV>(dv, smem.p, smem.dout);
      __syncthreads();
      if (next.left > 0) {
        copy_dout(next);
        ptx::cp_async_commit();
      }
      if constexpr (Traits::kQStages == 1) {
        add_gradient<Dk, LayoutQk>(dk, smem.ds, smem.q[0]);
        __syncthreads();
        if (next.left > 0) {
          copy_q(next, 0);
          ptx::cp_async_commit();
        }
        add_dq(at);
      } else {
        add_dq(at);
        add_gradient<Dk, LayoutQk>(dk, smem.ds, smem.q[stage]);
      }
    }
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      smem.mask_info =
          params.mask_info != nullptr ? *params.mask_info : BackwardMaskInfo{params.num_work_tiles, params.walk, true};
      smem.arrived.bits = 0;
    }
    __syncthreads();
    int32_t ticket = static_cast<int32_t>(blockIdx.x);
    while (ticket < smem.mask_info.num_work_tiles) {
      __syncthreads();  // the work tile before has ended
      if (threadIdx.x < sizeof(WorkTile) / 16) {
        reinterpret_cast<uint4*>(&smem.work_tile)[threadIdx.x] =
            reinterpret_cast<const uint4*>(params.work_tiles + ticket)[threadIdx.x];
      }
      if (threadIdx.x == 0) smem.ticket = atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x);
      __syncthreads();
      clear(dk);
      clear(dv);
      if (work().num_steps > 0) walk_queries();
      write_gradients(params, smem, warp, lane, dk, dv);
      ticket = smem.ticket;
    }
  }
};

template <typename Traits>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(const __grid_constant__ Params params) {
  Smem<Traits>& smem = *static_cast<Smem<Traits>*>(ptx::dynamic_shared_memory());
  Cta<Traits> cta(params, smem);
  cta.run();
}

}  // namespace tangram::sm80::backward
