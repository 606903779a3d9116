// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The ways in which a consumer warpgroup of the forward kernel takes a step, each a pipeline of its own. The scores of
// a step overlap the product of the step before with V, while another warpgroup exponentiates.
//
//   careful   looks for maxima: the first steps of a work tile, all with softcap or max_logits, and where no whole
//             tile is pending
//   steady    exponentiates first, since every row has a reference
//   plain     steady, and a whole tile without a mask: where most of the time goes
//   skipped   this warpgroup sees nothing
#pragma once

#include "attn/sm90/forward/consumer_softmax.cuh"

namespace tangram::sm90 {

template <typename Traits>
struct ConsumerSteps : ConsumerSoftmax<Traits> {
  using Base = ConsumerSoftmax<Traits>;
  using Element = typename Traits::Element;
  using Base::arrive;
  using Base::kBlockN;
  using Base::kConsumers;
  using Base::kGroups16;
  using Base::p;
  using Base::params;
  using Base::pending;
  using Base::rings;
  using Base::smem;
  using Base::state;
  using Base::warpgroup;

  __device__ ConsumerSteps(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in) : Base(params_in, smem_in) {}

  /// One step of which this warpgroup sees at most kN keys, with care for the maxima; returns the next step's word. No
  /// product is pending. With kNewWorkTile the product of the last step of the previous work tile, of kPendingN keys,
  /// is pending and finished on the way.
  template <int kPendingN, int kN>
  __device__ __forceinline__ uint32_t online_softmax_step(uint32_t word) {
    constexpr bool kNewWorkTile = kPendingN > 0;
    const int begin16 = min(window_begin16(word), kGroups16 - kN / 16);
    float s[kN / 2];
    this->ping_pong_wait();
    this->template issue_scores<kN>(s, begin16, rings.k_stage());
    if constexpr (kNewWorkTile) {
      this->template wait_pending_v<kPendingN>();
      this->template issue_output<kPendingN>(rings.template v_stage<0>());
    }
    this->ping_pong_arrive();
    const int32_t v_valid_next = this->read_message(word);
    if constexpr (kNewWorkTile) {
      // Under the product where there are registers for it.
      constexpr bool kEarly = kConsumers == 2;
      RowFactors factors;
      if constexpr (kEarly) factors = this->finish_sums();
      ptx::wgmma_wait<0>();
      this->release_v();
      if constexpr (!kEarly) factors = this->finish_sums();
      this->finish_rows(factors);
    } else {
      ptx::wgmma_wait<0>();
    }
    float rescale[2];
    const bool moved = this->template apply_softmax<kN, kNewWorkTile>(s, word, begin16, rescale);
    arrive(&smem.k_empty[rings.k_stage()]);
    rings.advance_k();
    const uint32_t next = this->fetch_word();
    if (moved) this->rescale_output(rescale);
    pack_operand<Element>(p, s);
    pending.set(kN, begin16, v_valid_next);
    return next;
  }

  /// Softmax without lazy rescaling: moves the references, exponentiates, and waits for the pending product, which is
  /// in flight. K of `stage` is free once the maxima are known. Returns the next step's word.
  template <int kN>
  __device__ __forceinline__ uint32_t look_once(float (&s)[kN / 2], float (&row_sum)[2]) {
    float rescale[2] = {1.0f, 1.0f};
    const bool moved = update_reference(s, state, params.exp_scale, params.rescale_threshold, rescale);
    arrive(&smem.k_empty[rings.k_stage()]);
    exponentiate(s, state, params.exp_scale, row_sum);
    rings.advance_k();
    // The sums of exponentials are not negative. As operands of the wait they keep the exponentials above it. ptxas
    // would otherwise move them below the wait for the next product.
    const uint32_t next = this->fetch_word(row_sum[0] + row_sum[1] == -1.0f);
    ptx::wgmma_wait<0>();
    if (moved) this->rescale_output(rescale);
    return next;
  }

  /// A step in which every row has a reference already and a whole tile is pending. It is taken without looking for
  /// maxima. If a score exceeds its reference by much, the sum of the exponentials shows it (infinity included). Then
  /// the scores are made again with an online softmax step. For that K is kept until then.
  template <int kN>
  __device__ __forceinline__ uint32_t steady_step(uint32_t word) {
    const int begin16 = min(window_begin16(word), kGroups16 - kN / 16);
    float s[kN / 2];
    this->ping_pong_wait();
    this->template issue_scores<kN>(s, begin16, rings.k_stage());
    this->template wait_pending_v<kBlockN>();
    this->template issue_output<kBlockN>(rings.template v_stage<0>());
    this->ping_pong_arrive();
    const int32_t v_valid_next = this->read_message(word);
    ptx::wgmma_wait<1>();
    this->template mask_window<kN>(s, word, begin16, rings.k_stage());
    float row_sum[2];
    if constexpr (!Traits::kLazyRescale) {
      const uint32_t next = look_once<kN>(s, row_sum);
      end_steady<kN>(s, row_sum, begin16, v_valid_next);
      return next;
    }
    exponentiate(s, state, params.exp_scale, row_sum);
    const int stage = rings.k_stage();
    rings.advance_k();
    const uint32_t next = this->fetch_word();
    // The wait stands in both branches: ptxas would move a wait in the block of the exponentials above them. The
    // product with V would then no longer overlap the softmax.
    if (this->must_redo(row_sum)) {
      ptx::wgmma_wait<0>();
      this->template redo_softmax<kN>(s, word, begin16, stage, row_sum);
    } else {
      ptx::wgmma_wait<0>();
    }
    arrive(&smem.k_empty[stage]);
    end_steady<kN>(s, row_sum, begin16, v_valid_next);
    return next;
  }
  template <int kN>
  __device__ __forceinline__ void end_steady(const float (&s)[kN / 2], const float (&row_sum)[2], int begin16,
                                             int32_t v_valid) {
    this->template release_v<-1>();
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    pack_operand<Element>(p, s);
    pending.set(kN, begin16, v_valid);
  }

  /// The whole unmasked tile without flags.
  static constexpr uint32_t kPlainWord = (kGroups16 << 8) | kStepSteady;

  /// The steps that take most of the time: steady ones with kPlainWord, with a whole tile pending. `word` is the first
  /// step's; returns the word after them. Probabilities are packed as they are made, which needs the pending product to
  /// be done half-way.
  __device__ __forceinline__ uint32_t plain_steps(uint32_t word) {
    do {
      float s[kBlockN / 2];
      rings.make_uniform();
      const int k_stage = this->uniform(rings.k_stage()), v_stage = this->uniform(rings.template v_stage<0>());
      this->ping_pong_wait();
      this->template issue_scores<kBlockN, true>(s, 0, k_stage);
      ptx::mbarrier_wait(&smem.v_full[v_stage], rings.template v_phase<0>());
      this->template issue_output<kBlockN, true>(v_stage);
      this->ping_pong_arrive();
      ptx::wgmma_wait<1>();
      if constexpr (!Traits::kLazyRescale) {
        float row_sum[2];
        word = look_once<kBlockN>(s, row_sum);
        end_steady<kBlockN>(s, row_sum, 0, kBlockN);
        continue;
      }
      float offset[2];
      reference_offsets(state, params.exp_scale, offset);
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      exponentiate_part<0, kBlockN / 2>(s, offset, params.exp_scale, sum);
      float row_sum[2] = {sum[0] + sum[1], sum[2] + sum[3]};
      const int stage = rings.k_stage();
      rings.advance_k();
      word = this->fetch_word();
      if (this->must_redo(row_sum)) {
        ptx::wgmma_wait<0>();
        this->template redo_softmax<kBlockN>(s, 0, 0, stage, row_sum);
      } else {
        ptx::wgmma_wait<0>();
      }
      this->template release_v<-1>();
      pack_operand<Element>(p, s);
      arrive(&smem.k_empty[stage]);
#pragma unroll
      for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    } while (word == kPlainWord);
    return word;
  }

  /// A step of which this warpgroup sees nothing.
  __device__ __forceinline__ uint32_t skipped_step(uint32_t word) {
    this->ping_pong_wait();
    this->ping_pong_arrive();
    this->read_message(word);
    return pass_over();
  }

  /// Leaves a step whose message has been read.
  __device__ __forceinline__ uint32_t pass_over() {
    arrive(&smem.k_empty[rings.k_stage()]);
    ptx::mbarrier_wait(&smem.v_full[rings.template v_stage<1>()], rings.template v_phase<1>());
    this->template release_v<1>();
    rings.advance_k();
    return this->fetch_word();
  }
};

}  // namespace tangram::sm90
