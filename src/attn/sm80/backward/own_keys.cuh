// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The steps of a backward kernel whose warps have 16 keys of their own. A warp makes S^T and dP^T of its keys; its
// registers then hold P^T and dS^T as operands of dV and dK. Only dQ needs the keys of all warps, so dS goes through
// shared memory. The next step's barrier also publishes dS, so dQ of step n is computed in step n + 1. Step n:
//
//   wait for copies of Q, dout | barrier: they and dS of step n - 1 are visible | start copies of the next Q, dout |
//   S, dP, P, dS; store dS | dV += P^T dO | dK += dS^T Q | dQ of step n - 1 = dS K, added to its sums
//
// That is one barrier; deterministic additions of dQ have two more.
// For head dims whose K and V fit into registers beside dK and dV.
#pragma once

#include "attn/sm80/backward/cta.cuh"

namespace tangram::sm80::backward {

template <typename Traits>
struct OwnKeysCta : CtaBase<Traits> {
  using Base = CtaBase<Traits>;
  using Base::copy_dout, Base::copy_keys, Base::copy_q, Base::dk, Base::dv, Base::lane, Base::next, Base::params,
      Base::smem, Base::warp;
  using typename Base::Dk, typename Base::Dv, typename Base::Element, typename Base::LayoutP, typename Base::LayoutQk,
      typename Base::LayoutV, typename Base::Scores, typename Base::ScoreSums;
  static constexpr int kScore16 = Traits::kQueries / 16;
  using Operands = uint32_t[kScore16][4];  // P or dS of a step, as operand A
  static_assert(Scores::kM == 1 && Traits::kQStages == 2 && Traits::kDoutStages == 2);

  uint32_t k_regs[Traits::kDimQk / 16][4], v_regs[Traits::kDimV / 16][4];  // of the keys of the warp, as operand A

  using Base::Base;

  template <typename Layout, int kCount>
  __device__ __forceinline__ void load_keys(uint32_t (&regs)[kCount][4], const unsigned char* tile) const {
    const uint32_t from =
        ptx::smem_address(tile) + Layout::lane_rows_first(lane) + Scores::first_row(warp) * Layout::kRowBytes;
#pragma unroll
    for (int k16 = 0; k16 < kCount; ++k16) ptx::load_matrix_x4(regs[k16], Layout::advance(from, 0, k16));
  }
  /// sums = A B^T, of the keys of the warp and the rows of a tile of queries.
  template <typename Layout, int kCount>
  __device__ __forceinline__ void multiply_queries(ScoreSums& sums, const uint32_t (&keys)[kCount][4],
                                                   const unsigned char* queries) const {
    const uint32_t b_lane = ptx::smem_address(queries) + Layout::lane_columns_first(lane);
    clear(sums);
    multiply<Element, 1, kScore16, kCount>(
        sums,
        [&](uint32_t(&a)[4], int, int k16) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = keys[k16][i];
        },
        [&](uint32_t(&b)[4], int k16, int n16) { ptx::load_matrix_x4(b, Layout::advance(b_lane, n16, k16)); });
  }
  /// sums += A B over the queries of a step, A being P or dS.
  template <typename Part, typename Layout>
  __device__ __forceinline__ void add_gradient(typename Part::Sums& sums, const Operands& p,
                                               const unsigned char* queries) const {
    const uint32_t b_lane = ptx::smem_address(queries) + Layout::lane_rows_first(lane);
    multiply<Element, 1, Part::kN16, kScore16>(
        sums,
        [&](uint32_t(&a)[4], int, int k16) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = p[k16][i];
        },
        [&](uint32_t(&b)[4], int k16, int n16) {
          ptx::load_matrix_x4_transposed(b, Layout::advance(b_lane, k16, n16));
        });
  }

  /// S becomes P, dP becomes dS; unless kMasked, every query of the step sees every key.
  template <bool kMasked>
  __device__ __forceinline__ void apply_softmax(ScoreSums& s, ScoreSums& dp, const StepCursor& at,
                                                const RowStatistics* stats) const {
    const auto first_query = static_cast<int32_t>(lane % 4 * 2);
    RowInterval seen[2];
    if constexpr (kMasked) {
      const auto first_key = static_cast<int32_t>(Scores::first_row(warp) + lane / 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        seen[r] = this->queries_of(params.runs[at.run], at.rows, first_key + r * 8);
      }
    }
#pragma unroll
    for (int j = 0; j < kScore16 * 2; ++j) {
      const int32_t query = first_query + j * 8;
      const float4 two = *reinterpret_cast<const float4*>(stats + query);
      const RowStatistics row[2] = {{two.x, two.y}, {two.z, two.w}};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t at_query = query + i % 2;
        this->make_gradient(s[0][j * 4 + i], dp[0][j * 4 + i], row[i % 2],
                            !kMasked || (at_query >= seen[i / 2].begin && at_query < seen[i / 2].end));
      }
    }
  }
  static __device__ __forceinline__ void pack(Operands& to, const ScoreSums& s) {
#pragma unroll
    for (int k16 = 0; k16 < kScore16; ++k16) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        to[k16][i] = ptx::pack_pair<Element>(s[0][k16 * 8 + i * 2], s[0][k16 * 8 + i * 2 + 1]);
    }
  }
  __device__ __forceinline__ void store_ds(const Operands& ds, unsigned char* to) const {
    const uint32_t row = Scores::first_row(warp) + lane / 4;
#pragma unroll
    for (int k16 = 0; k16 < kScore16; ++k16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto chunk = static_cast<uint32_t>(k16 * 2 + i / 2);
        *reinterpret_cast<uint32_t*>(to + LayoutP::offset(row + i % 2 * 8, chunk) + lane % 4 * 4) = ds[k16][i];
      }
    }
  }

  __device__ __forceinline__ void walk_queries() {
    this->begin_steps();
    copy_keys();
    ptx::cp_async_commit();
    copy_q(next, 0);
    copy_dout(next, 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();
    load_keys<LayoutQk>(k_regs, smem.k);
    load_keys<LayoutV>(v_regs, this->v_tile());
    StepCursor before;
    uint32_t stage = 0;
#pragma unroll 1
    for (bool is_first = true; next.left > 0; stage ^= 1, is_first = false) {
      const StepCursor at = next;
      this->advance();
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (next.left > 0) {
        copy_q(next, stage ^ 1);
        copy_dout(next, stage ^ 1);
        ptx::cp_async_commit();
      } else {
        this->begin_last_step();
      }
      Operands p, ds;
      {
        ScoreSums s, dp;
        multiply_queries<LayoutQk>(s, k_regs, smem.q[stage]);
        multiply_queries<LayoutV>(dp, v_regs, smem.dout[stage]);
        if (this->sees_all(at)) {
          apply_softmax<false>(s, dp, at, smem.stats[stage]);
        } else {
          apply_softmax<true>(s, dp, at, smem.stats[stage]);
        }
        pack(p, s);
        pack(ds, dp);
      }
      store_ds(ds, smem.ds[stage]);
      add_gradient<Dv, LayoutV>(dv, p, smem.dout[stage]);
      add_gradient<Dk, LayoutQk>(dk, ds, smem.q[stage]);
      if (!is_first) this->add_dq(before, smem.ds[stage ^ 1]);
      before = at;
    }
    __syncthreads();
    this->add_dq(before, smem.ds[stage ^ 1]);
  }
};

}  // namespace tangram::sm80::backward
