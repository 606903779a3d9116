// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What the consumer warpgroups of all backward kernels do in a step, each for 64 of a work tile's keys: the products,
// masks and exponentials. In which order they do it is the pipeline of Consumer, PairConsumer or SplitConsumer. Scores
// are transposed (keys by queries), so that P and dS are the register operands of dV += P dO and dK += dS Q. Only dS
// passes through shared memory, for dQ = dS^T K.
#pragma once

#include "attn/sm90/backward/epilogue.cuh"
#include "attn/sm90/backward/traits.cuh"
#include "attn/sm90/common/warpgroup.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
struct ConsumerBase {
  using Element = typename Traits::Element;
  static constexpr int kDimQk = Traits::kDimQk;
  static constexpr int kDimV = Traits::kDimV;
  static constexpr int kScores = kBlockM / 2;  // accumulators of 64 keys by kBlockM queries, per thread
  static constexpr int kNoTerms = -8;
  static constexpr uint32_t kZeroBarrier = 1;  // 1, 2: rows of shared operands are zero
  using Turn = PingPong<3>;                    // 3, 4

  const Params& params;
  Smem<Traits>& smem;
  const uint32_t thread;     // among the consumers
  const uint32_t warpgroup;  // 0 or 1
  Cursor<Traits> here;       // of the current step

  float dk[kDimQk / 2], dv[kDimV / 2];
  // The other accumulators are local to a step: nothing of them may seem to live from one to the next.
  using Scores = float[kScores];
  using Packed = uint32_t[kScores / 8][4];  // P or dS as the operand of a product over queries

  __device__ ConsumerBase(const Params& params_in, Smem<Traits>& smem_in)
      : params(params_in),
        smem(smem_in),
        thread(thread_index()),
        warpgroup(__shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1) {}

  /// Read once: reading it again takes a turn in the queue of shared-memory accesses.
  static __device__ __forceinline__ uint32_t thread_index() { return ptx::read_thread_index() - 128; }
  /// `thread`, hidden from the compiler, which would otherwise keep a dozen values derived from it in registers that
  /// the accumulators need.
  __device__ __forceinline__ uint32_t fresh_thread() const {
    uint32_t value = thread;
    ptx::make_opaque(value);
    return value;
  }

  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(barrier);
  }

  /// Starts result = keys * queries^T for this warpgroup's 64 keys; both operands contiguous along the head dimension.
  /// Adds the queries' terms (see kStatsFloats) of columns [terms, terms + 3), by 16 more columns of the reduction.
  /// Keys have ones in three of them; the queries' other eight columns repeat the first eight, times zero.
  template <int kTerms>
  __device__ __forceinline__ void issue_product(Scores& result, const void* keys, const void* queries,
                                                const float* stats) {
    const uint64_t a = k_major_operand(ptx::smem_address(keys) + warpgroup * 64 * kPanelRowBytes);
    const uint64_t b = k_major_operand(ptx::smem_address(queries));
    const uint64_t ones =
        ptx::wgmma_descriptor_plain(ptx::smem_address(smem.ones[kTerms == 0 ? 0 : 1]), kTerms == 0 ? 256 : 128, 0);
    const uint64_t terms = ptx::wgmma_descriptor_plain(ptx::smem_address(stats), 0, 128);
    ptx::wgmma_fence();
    if constexpr (kTerms >= 0) ptx::wgmma_ss<__nv_bfloat16, kBlockM>(result, ones, terms, false);
#pragma unroll
    for (int k16 = 0; k16 < (kTerms == 4 ? kDimV : kDimQk) / 16; ++k16) {
      ptx::wgmma_ss<Element, kBlockM>(result, ptx::wgmma_advance(a, k16_offset<Traits::kPanelBytesK>(k16)),
                                      ptx::wgmma_advance(b, k16_offset<Traits::kPanelBytesQ>(k16)),
                                      kTerms >= 0 || k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts sums += packed * rows, rows being [kBlockM, 2 * kSums].
  template <int kSums>
  __device__ __forceinline__ void issue_gradient(float (&sums)[kSums], const Packed& packed, const void* rows) {
    const uint64_t b = mn_major_operand(ptx::smem_address(rows), Traits::kPanelBytesQ);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kBlockM / 16; ++k16) {
      ptx::wgmma_rs<Element, 2 * kSums, 1>(sums, packed[k16], ptx::wgmma_advance(b, k16 * kRows16Bytes), true);
    }
    ptx::wgmma_commit();
  }

  /// Starts dq = dS^T K for the 64 queries of `ds` and kColumns columns of K that begin at address `keys`.
  template <int kColumns>
  __device__ __forceinline__ void issue_dq_columns(float (&dq)[kColumns / 2], uint32_t ds, uint32_t keys) {
    const uint64_t a = mn_major_operand(ds);
    const uint64_t b = mn_major_operand(keys);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kBlockN / 16; ++k16) {
      ptx::wgmma_ss<Element, kColumns, 1, 1>(dq, ptx::wgmma_advance(a, k16 * kRows16Bytes),
                                             ptx::wgmma_advance(b, k16 * kRows16Bytes), k16 > 0);
    }
    ptx::wgmma_commit();
  }

  /// Zeroes rows of a tile of all panels whose bit in `covered` is 0. Each warpgroup does so for itself, so that
  /// neither waits for the other: what one multiplies, the other can only overwrite by the same zeros.
  template <int kPanels = Traits::kPanelsQk>
  __device__ __forceinline__ void zero_rows(unsigned char* tile, int num_rows, const uint32_t* covered) {
#pragma unroll 1
    for (int i = fresh_thread() % 128; i < num_rows * kPanels * 8; i += 128) {
      const int row = i / 8 % num_rows;
      if (!(covered[row / 32] >> (row % 32) & 1)) *reinterpret_cast<uint4*>(tile + i * 16) = uint4{};
    }
  }
  __device__ __forceinline__ void zero_done() { publish_writes(kZeroBarrier + warpgroup); }

  /// Which of this thread's scores of a masked tile are visible: bit 16 r + 2 j + e stands for score 4 j + 2 r + e.
  /// Both rows at once, and without branches where there are no intervals: a long chain otherwise, which S waits for.
  __device__ __forceinline__ uint32_t visible_scores(const StepMessage& message) {
    const WorkTile& work_tile = smem.work_tile[message.work_tile_slot];
    const uint32_t self = fresh_thread();
    const int32_t row = self / 32 * 16 + self % 32 / 4;
    const int32_t key = work_tile.row_begin + row;
    int32_t begin[2], end[2];
    if (message.interval_begin < 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t k = key + r * 8;
        begin[r] = interval_begin_of(message, k);
        end[r] =
            message.row_begin <= k && k < min(message.row_end, work_tile.row_end) ? interval_end_of(message, k) : 0;
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        begin[r] = end[r] = 0;
        if (key + r * 8 < work_tile.row_end) {
          const RowInterval interval = params.intervals[message.interval_begin + row + r * 8];
          begin[r] = interval.begin;
          end[r] = interval.end;
        }
      }
    }
    const int32_t first = message.q0 + self % 4 * 2;
    const int32_t q_end = message.q_end;
    uint32_t visible = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      visible |= (columns_before(min(end[r], q_end) - first) & ~columns_before(begin[r] - first)) << (16 * r);
    }
    return visible;
  }
  /// Bits of this thread's columns 8 j + e (e = 0, 1) below `end`.
  static __device__ __forceinline__ uint32_t columns_before(int32_t end) {
    const int32_t inside = min(max(end, 0), kBlockM);
    return (1u << (inside / 8 * 2 + min(inside % 8, 2))) - 1;
  }
  /// Whether score i of this thread is, i being a constant.
  static __device__ __forceinline__ bool is_visible(uint32_t visible, int i) {
    return visible >> (i / 2 % 2 * 16 + i / 4 * 2 + i % 2) & 1;
  }

  /// s becomes P.
  __device__ __forceinline__ void exponentiate(Scores& s, bool masked, uint32_t visible) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = ptx::exp2_approx(s[i] * params.scale_log2);
    if (masked) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = is_visible(visible, i) ? s[i] : 0.0f;
    }
  }

  /// Like exponentiate and pack_operand; s becomes P times the derivative of the cap, 1 - tanh^2.
  __device__ __forceinline__ void exponentiate_capped(Scores& s, Packed& packed_p, bool masked, uint32_t visible) {
    const float* stats = smem.stats[here.stage()] + fresh_thread() % 4 * 8;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      // -lse of two queries, loaded as needed for lack of registers.
      const float lse[2] = {sum_of_three(*reinterpret_cast<const uint2*>(stats + j * 32)),
                            sum_of_three(*reinterpret_cast<const uint2*>(stats + j * 32 + 4))};
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = s[j * 4 + i];
        const float capped = tanh_accurate(score * params.cap_inner);
        p[i] = ptx::exp2_approx(capped * params.cap_outer + lse[i % 2]);
        if (masked && !is_visible(visible, j * 4 + i)) p[i] = 0.0f;
        score = p[i] * (1.0f - capped * capped);
      }
      packed_p[j / 2][j % 2 * 2] = pack_pair<Element>(p[0], p[1]);
      packed_p[j / 2][j % 2 * 2 + 1] = pack_pair<Element>(p[2], p[3]);
    }
  }
  /// tanh through exp2: tanh.approx is good to 2^-11 only, which a large softcap would multiply.
  static __device__ __forceinline__ float tanh_accurate(float x) {
    const float e = ptx::exp2_approx(-2.0f * kLog2e * fabsf(x));
    return copysignf(__fdividef(1.0f - e, 1.0f + e), x);
  }

  /// dp, which is dP - delta, becomes dS = P * (dP - delta).
  __device__ __forceinline__ void score_gradients(Scores& dp, const Scores& p) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) dp[i] *= p[i];
  }

  __device__ __forceinline__ void store_ds(const Packed& packed_ds, unsigned char* ds) {
    const uint32_t self = fresh_thread();
    const int row = self / 32 * 16 + self % 16;
    unsigned char* base = ds + row * 128;
    const int chunk = self % 32 / 16 ^ row % 8;
#pragma unroll
    for (int k16 = 0; k16 < kBlockM / 16; ++k16) {
      ptx::store_matrix_x4(base + ((chunk ^ k16 * 2) << 4), packed_ds[k16][0], packed_ds[k16][1], packed_ds[k16][2],
                           packed_ds[k16][3]);
    }
  }

  /// With turns, the warpgroups queue their matmuls after dS one after the other. While one keeps the tensor cores
  /// busy, the other has time for exponentials.
  __device__ __forceinline__ void ping_pong_wait() {
    if constexpr (Traits::kTurns) Turn::take(warpgroup);
  }
  __device__ __forceinline__ void ping_pong_arrive() {
    if constexpr (Traits::kTurns) Turn::pass_to(warpgroup ^ 1);
  }

  /// Zeroes the rows of Q and dout of the current step that no cell covers.
  __device__ __forceinline__ void zero_step(uint32_t stage) {
    ptx::mbarrier_wait(&smem.dout_full[stage], here.stage_phase());
    zero_rows(smem.q[stage], kBlockM, smem.step[stage].covered);
    zero_rows<Traits::kPanelsV>(smem.dout[stage], kBlockM, smem.step[stage].covered);
    zero_done();
  }
};

}  // namespace tangram::sm90::backward
