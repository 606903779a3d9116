// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The steps of a backward kernel whose P and dS go through shared memory. So each warp computes the part of each
// product whose operands few other warps read (Split). A step:
//
//   | Q, dout are there | copy the next Q, dout | S, dP, P, dS | P, dS are there | dV += P^T dO | dQ = dS K, added |
//   dK += dS^T Q |
//
// With one tile of dout in shared memory the next one is copied when dV has read it, behind a barrier more. With one
// tile of Q dK comes before dQ, and the next Q is copied between them, likewise.
#pragma once

#include "attn/sm80/backward/cta.cuh"

namespace tangram::sm80::backward {

template <typename Traits>
struct SharedScoresCta : CtaBase<Traits> {
  using Base = CtaBase<Traits>;
  using Base::copy_dout, Base::copy_keys, Base::copy_q, Base::dk, Base::dv, Base::lane, Base::next, Base::params,
      Base::smem, Base::warp;
  using typename Base::Dk, typename Base::Dv, typename Base::Element, typename Base::LayoutP, typename Base::LayoutQk,
      typename Base::LayoutV, typename Base::Scores, typename Base::ScoreSums;
  static constexpr int kV16 = Traits::kVInRegisters ? Traits::kDimV / 16 : 1;
  uint32_t v_regs[kV16][4];  // with kVInRegisters

  using Base::Base;

  /// The warp's keys of V as operands B.
  __device__ __forceinline__ void load_v(const unsigned char* tile) {
    const uint32_t lane_at =
        ptx::smem_address(tile) + LayoutV::lane_columns_first(lane) + Scores::first_col(warp) * LayoutV::kRowBytes;
#pragma unroll
    for (int k16 = 0; k16 < kV16; ++k16) ptx::load_matrix_x4(v_regs[k16], LayoutV::advance(lane_at, 0, k16));
  }
  /// dP = dO V^T: the part of the warp.
  __device__ __forceinline__ void multiply_dout(ScoreSums& sums, const unsigned char* dout) const {
    if constexpr (Traits::kVInRegisters) {
      static_assert(Scores::kN16 == 1);
      const uint32_t a_lane =
          ptx::smem_address(dout) + LayoutV::lane_rows_first(lane) + Scores::first_row(warp) * LayoutV::kRowBytes;
      clear(sums);
      multiply<Element, Scores::kM, 1, Traits::kDimV / 16>(
          sums, [&](uint32_t(&a)[4], int m, int k16) { ptx::load_matrix_x4(a, LayoutV::advance(a_lane, m, k16)); },
          [&](uint32_t(&b)[4], int k16, int) {
#pragma unroll
            for (int i = 0; i < 4; ++i) b[i] = v_regs[k16][i];
          });
    } else {
      multiply_rows<LayoutV, Traits::kDimV>(sums, dout, smem.v);
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

  /// First of the two keys of columns 8 j and 8 j + 1 of a thread; first query of 16 rows m, in the tile.
  __device__ __forceinline__ int32_t key_of(int j) const {
    return static_cast<int32_t>(Scores::first_col(warp) + lane % 4 * 2) + j * 8;
  }
  __device__ __forceinline__ int32_t query_of(int m) const {
    return static_cast<int32_t>(Scores::first_row(warp) + lane / 4) + m * 16;
  }

  /// S becomes P, dP becomes dS; unless kMasked, every query of the step sees every key.
  template <bool kMasked>
  __device__ __forceinline__ void apply_softmax(ScoreSums& s, ScoreSums& dp, const StepCursor& at,
                                                const RowStatistics* stats) const {
    RowStatistics row[Scores::kM][2];
#pragma unroll
    for (int m = 0; m < Scores::kM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) row[m][r] = stats[query_of(m) + r * 8];
    }
#pragma unroll
    for (int j = 0; j < Scores::kN16 * 2; ++j) {
      RowInterval seen[2];
      if constexpr (kMasked) {
#pragma unroll
        for (int e = 0; e < 2; ++e) seen[e] = this->queries_of(params.runs[at.run], at.rows, key_of(j) + e);
      }
#pragma unroll
      for (int m = 0; m < Scores::kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int32_t query = query_of(m) + i / 2 * 8;
          this->make_gradient(s[m][j * 4 + i], dp[m][j * 4 + i], row[m][i / 2],
                              !kMasked || (query >= seen[i % 2].begin && query < seen[i % 2].end));
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

  __device__ __forceinline__ void walk_queries() {
    constexpr bool kTwoDouts = Traits::kDoutStages == 2;
    static_assert(!kTwoDouts || Traits::kQStages == 2);
    this->begin_steps();
    copy_keys();
    copy_q(next, 0);
    if constexpr (Traits::kVInRegisters) {
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      __syncthreads();
      load_v(smem.dout[0]);
      __syncthreads();
    }
    copy_dout(next, 0);
    ptx::cp_async_commit();
#pragma unroll 1
    for (uint32_t stage = 0; next.left > 0; stage ^= Traits::kQStages - 1) {
      const StepCursor at = next;
      const unsigned char* const dout = smem.dout[kTwoDouts ? stage : 0];
      this->advance();
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (next.left > 0) {
        if constexpr (Traits::kQStages == 2) {
          copy_q(next, stage ^ 1);
          if constexpr (kTwoDouts) copy_dout(next, stage ^ 1);
          ptx::cp_async_commit();
        }
      } else {
        this->begin_last_step();
      }
      {
        ScoreSums s, dp;
        multiply_rows<LayoutQk, Traits::kDimQk>(s, smem.q[stage], smem.k);
        multiply_dout(dp, dout);
        if (this->sees_all(at)) {
          apply_softmax<false>(s, dp, at, smem.stats[stage]);
        } else {
          apply_softmax<true>(s, dp, at, smem.stats[stage]);
        }
        store_scores(s, smem.p);
        store_scores(dp, smem.ds[0]);
      }
      __syncthreads();
      add_gradient<Dv, LayoutV>(dv, smem.p, dout);
      if constexpr (!kTwoDouts) {
        __syncthreads();
        if (next.left > 0) {
          copy_dout(next, 0);
          ptx::cp_async_commit();
        }
      }
      if constexpr (Traits::kQStages == 1) {
        add_gradient<Dk, LayoutQk>(dk, smem.ds[0], smem.q[0]);
        __syncthreads();
        if (next.left > 0) {
          copy_q(next, 0);
          ptx::cp_async_commit();
        }
        this->add_dq(at, smem.ds[0]);
      } else {
        this->add_dq(at, smem.ds[0]);
        add_gradient<Dk, LayoutQk>(dk, smem.ds[0], smem.q[stage]);
      }
    }
  }
};

}  // namespace tangram::sm80::backward
