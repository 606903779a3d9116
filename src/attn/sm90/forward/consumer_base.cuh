// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// State of a consumer warpgroup of the forward kernel for its 64 packed rows, and its two matmuls, S = Q K^T and O += P
// V. It says where operands are, which barriers they wait for, and which they arrive at. And the end of a work tile,
// whose rows leave.
#pragma once

#include "attn/sm90/common/warpgroup.cuh"
#include "attn/sm90/forward/epilogue.cuh"
#include "attn/sm90/forward/pending_step.cuh"
#include "attn/sm90/forward/rings.cuh"
#include "attn/sm90/forward/smem.cuh"
#include "attn/sm90/forward/softmax.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90 {

template <typename Traits>
struct ConsumerBase {
  using Element = typename Traits::Element;
  static constexpr int kBlockN = Traits::kBlockN;
  static constexpr int kGroups16 = kBlockN / 16;
  static constexpr int kNarrow = 32;  // keys of the narrow matmuls at the ends of runs
  static constexpr int kConsumers = Traits::kConsumers;
  // Named barriers, one for each warpgroup: its ping-pong turn, its rows of shared memory are written, it agrees on
  // lazy rescaling.
  using Turn = PingPong<1>;
  static constexpr uint32_t kWriteBarrier = 1 + kConsumers;
  static constexpr uint32_t kRedoBarrier = kWriteBarrier + kConsumers;

  const ForwardParams& params;
  ForwardSmem<Traits>& smem;
  const int warpgroup;  // counted from 0
  const int lane;
  // V belongs to the pending step, the next to be multiplied. While it is pending its number is that of the current
  // step, since the producer begins with a V of no step.
  Rings<Traits> rings;

  float o[Traits::kDimV / 2];
  bool o_started = false;  // else o holds nothing yet, and the next product overwrites it
  uint32_t p[kGroups16][4];
  RowState state;
  PendingStep<kBlockN, Traits::kConsumers == 3> pending;

  __device__ ConsumerBase(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in)
      : params(params_in),
        smem(smem_in),
        warpgroup(__shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1),
        lane(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll
    for (int i = 0; i < Traits::kDimV / 2; ++i) o[i] = 0.0f;
#pragma unroll
    for (int g = 0; g < kGroups16; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[g][i] = 0;
    }
    state.reset();
  }

  /// This thread's first row of the tile, in packed rows; its second is eight further.
  __device__ __forceinline__ int tile_row() const {
    return (static_cast<int>(threadIdx.x) / 32 - 4) * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  /// kAhead: as in Rings.
  template <int kAhead = 0>
  __device__ __forceinline__ void release_v() {
    arrive(&smem.v_empty[rings.template v_stage<kAhead>()]);
    rings.advance_v();
  }
  __device__ __forceinline__ void ping_pong_wait() { Turn::take(warpgroup); }
  __device__ __forceinline__ void ping_pong_arrive() { Turn::pass_to(warpgroup + 1 == kConsumers ? 0 : warpgroup + 1); }

  // Descriptors in uniform registers. The compiler must know that a stage is uniform in the warp, and that the upper
  // half of a descriptor is constant. With three consumers only in plain steps (kPlain): elsewhere it would rather
  // spill.
  static __device__ __forceinline__ int uniform(int stage) {
    return kConsumers == 2 ? __shfl_sync(0xffffffff, stage, 0) : stage;
  }
  template <bool kPlain>
  static __device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
    if constexpr (kConsumers == 3 && !kPlain) return ptx::wgmma_advance(descriptor, bytes);
    return (descriptor & 0xffffffff00000000) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
  }

  /// Starts S = Q K^T for kN keys of `stage`, from row 16 * begin16 on.
  template <int kN, bool kPlain = false>
  __device__ __forceinline__ void issue_scores(float (&scores)[kN / 2], int begin16, int stage) {
    const int q_stage = rings.q_stage();
    const uint64_t q = k_major_operand(ptx::smem_address(smem.q[q_stage]) + warpgroup * 64 * kPanelRowBytes);
    const uint64_t k = k_major_operand(ptx::smem_address(smem.k[stage]) + begin16 * kRows16Bytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < Traits::kDimQk / 16; ++k16) {
      ptx::wgmma_ss<Element, kN>(scores, advance<kPlain>(q, k16_offset<Traits::kPanelBytesQ>(k16)),
                                 advance<kPlain>(k, k16_offset<Traits::kPanelBytesK>(k16)), k16 > 0);
    }
    ptx::wgmma_commit();
  }

  template <int kN>
  __device__ __forceinline__ int v_offset16() const {
    return kN == kBlockN ? 0 : pending.begin16();
  }

  /// Starts O += P V for the pending step of kN keys, whose V must have arrived in `v_stage`.
  template <int kN, bool kPlain = false>
  __device__ __forceinline__ void issue_output(int v_stage) {
    const uint64_t v =
        mn_major_operand(ptx::smem_address(smem.v[v_stage]) + v_offset16<kN>() * kRows16Bytes, Traits::kPanelBytesK);
    ptx::wgmma_fence();
#pragma unroll
    for (int g = 0; g < kN / 16; ++g) {
      ptx::wgmma_rs<Element, Traits::kDimV, 1>(o, p[g], advance<kPlain>(v, g * kRows16Bytes), g > 0 || o_started);
    }
    ptx::wgmma_commit();
    o_started = true;
  }

  /// Zeroes the rows of the pending V that no query sees: their probabilities are 0, but 0 * NaN is NaN. Both
  /// warpgroups may write the same zeros.
  template <int kN>
  __device__ __forceinline__ void clear_unseen_v() {
    const int end = v_offset16<kN>() * 16 + kN;
    if (pending.v_valid() >= end) return;
    const int thread = threadIdx.x % 128;
#pragma unroll 1
    for (int i = pending.v_valid() * 8 + thread; i < end * 8; i += 128) {
#pragma unroll
      for (int panel = 0; panel < Traits::kPanelsV; ++panel) {
        *reinterpret_cast<uint4*>(smem.v[rings.template v_stage<0>()] + panel * Traits::kPanelBytesK + i * 16) =
            make_uint4(0, 0, 0, 0);
      }
    }
    publish_writes(kWriteBarrier + warpgroup);
  }

  template <int kN>
  __device__ __forceinline__ void wait_pending_v() {
    ptx::mbarrier_wait(&smem.v_full[rings.template v_stage<0>()], rings.template v_phase<0>());
    clear_unseen_v<kN>();
  }

  template <int kN>
  __device__ __forceinline__ void flush_pending() {
    wait_pending_v<kN>();
    issue_output<kN>(rings.template v_stage<0>());
    ptx::wgmma_wait<0>();
    release_v();
  }

  __device__ __forceinline__ void flush_pending() {
    const int32_t width = pending.uniform_keys();
    if (width == kBlockN) flush_pending<kBlockN>();
    if (width == kNarrow) flush_pending<kNarrow>();
    pending.clear();
  }

  /// Waits for the step at the ring's position and returns its word for this warpgroup. The shuffle tells the compiler
  /// that the word, and so each branch on it, is the same in the whole warp. `never` is false; see look_once.
  __device__ __forceinline__ uint32_t fetch_word(bool never = false) {
    ptx::mbarrier_wait(&smem.k_full[rings.k_stage()], rings.k_phase() ^ static_cast<uint32_t>(never));
    return __shfl_sync(0xffffffff, smem.step[rings.k_stage()].word[warpgroup], 0);
  }

  /// WorkTileRows of the work tile to be ended: the current one, or with several stages of Q the one before.
  __device__ __forceinline__ const WorkTileRows<Traits::kSplitKv>& open_work_tile() const {
    return smem.work_tiles[Traits::kSingleStageQ ? rings.work_tile() : rings.work_tile() ^ 1];
  }

  /// The two halves of the end of the work tile before: its sums, while its last product may be in flight, and its
  /// rows.
  __device__ __forceinline__ RowFactors finish_sums() {
    RowFactors factors{};
    if (rings.work_tile_open()) {
      factors = sm90::finish_sums<Traits>(params, open_work_tile(), state, tile_row());
    }
    state.reset();
    return factors;
  }
  __device__ __forceinline__ void finish_rows(const RowFactors& factors) {
    if (rings.work_tile_open()) {
      store_rows<Traits>(params, open_work_tile(), factors, o, tile_row(),
                         smem.q[Traits::kSingleStageQ ? 0 : rings.q_stage() ^ 1] + warpgroup * 64 * kPanelRowBytes,
                         warpgroup, kWriteBarrier + warpgroup);
    }
    o_started = false;
  }

  /// Frees the Q stage of the work tile that finish_rows() has stored from it. With one stage this happens earlier,
  /// once all scores of the current work tile have been made.
  __device__ __forceinline__ void release_q() {
    if (!rings.work_tile_open()) return;
    if constexpr (Traits::kSingleStageQ) {
      arrive(&smem.q_empty[0]);
    } else if (threadIdx.x % 128 == 0) {
      ptx::tma_store_wait_read<0>();
      ptx::mbarrier_arrive(&smem.q_empty[rings.q_stage() ^ 1]);
    }
  }
};

}  // namespace tangram::sm90
