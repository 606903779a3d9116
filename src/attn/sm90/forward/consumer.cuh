// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the forward kernel: walks steps, chooses how to take each, and ends work tiles.
#pragma once

#include "attn/sm90/forward/consumer_steps.cuh"

namespace tangram::sm90 {

template <typename Traits>
struct Consumer : ConsumerSteps<Traits> {
  using Base = ConsumerSteps<Traits>;
  using Base::kBlockN;
  using Base::kConsumers;
  using Base::params;
  using Base::pending;
  using Base::rings;
  using Base::smem;
  using Base::warpgroup;

  __device__ Consumer(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in) : Base(params_in, smem_in) {}

  static __device__ __forceinline__ bool is_wide(uint32_t word) { return window_count16(word) * 16 > Base::kNarrow; }

  /// Ends the work tile before without the next one.
  __device__ __forceinline__ void close_work_tile() {
    this->flush_pending();
    this->finish_rows(this->finish_sums());
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == kConsumers - 1) this->ping_pong_arrive();
    constexpr bool kPacked = kConsumers == 3;
    constexpr bool kAgain = kPacked && Traits::kGathered;
    constexpr bool kApart = Traits::kSingleStageQ;  // else a work tile ends under the next one
    bool steady = false;
    uint32_t word = this->fetch_word();
    for (;;) {
      if constexpr (kPacked) steady = kAgain ? pending.steady_again() : pending.steady();
      const int32_t pending_keys = pending.uniform_keys();
      const bool first = word & (kStepFirst | kStepStop);
      uint32_t next;
      if (first) {
        if constexpr (kApart) {
          this->release_q();
          close_work_tile();
          if (word & kStepStop) break;
        }
        if (rings.work_tile_open()) rings.advance_q();
        if (!(word & kStepStop)) ptx::mbarrier_wait(&smem.q_full[rings.q_stage()], rings.q_phase());
      }
      if (!kApart && first && is_wide(word) && pending_keys == kBlockN) {
        next = this->template online_softmax_step<kBlockN, kBlockN>(word);
      } else if (!kApart && first && is_wide(word) && pending_keys == Base::kNarrow) {
        next = this->template online_softmax_step<Base::kNarrow, kBlockN>(word);
      } else if (!Traits::kSoftcap && steady && !first && pending_keys == kBlockN && window_count16(word) > 0) {
        next =
            is_wide(word) ? this->template steady_step<kBlockN>(word) : this->template steady_step<Base::kNarrow>(word);
      } else {
        this->flush_pending();
        if (!kApart && first) {
          ptx::named_barrier_sync(Base::kWriteBarrier + warpgroup, 128);
          this->finish_rows(this->finish_sums());
          if (word & kStepStop) break;
        }
        next = window_count16(word) == 0 ? this->skipped_step(word)
               : is_wide(word)           ? this->template online_softmax_step<0, kBlockN>(word)
                                         : this->template online_softmax_step<0, Base::kNarrow>(word);
      }
      if (first) {
        if constexpr (!kApart) this->release_q();
        rings.set_work_tile_open();
      }
      if constexpr (kAgain) steady = pending.steady_again();
      steady = params.rescale_threshold > 0.0f && ((steady && !first) || (word & kStepSteady));
      if constexpr (kPacked) pending.set_steady(steady);
      if constexpr (!Traits::kSoftcap) {
        if (steady && next == Base::kPlainWord && pending.uniform_keys() == kBlockN && pending.v_valid() == kBlockN) {
          next = this->plain_steps(next);
        }
      }
      word = next;
    }
    if (threadIdx.x % 128 == 0) ptx::tma_store_wait_read<0>();
  }
};

}  // namespace tangram::sm90
