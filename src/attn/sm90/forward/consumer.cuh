// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the forward kernel: 64 packed rows, S = Q K^T, online softmax, O += P V.
#pragma once

#include "attn/sm90/forward/epilogue.cuh"
#include "attn/sm90/forward/softmax.cuh"
#include "attn/sm90/forward/traits.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90 {

/// The step whose probabilities wait for their product with V: of how many keys that is (0: none waits), where its
/// window begins, and how many rows of its V are valid.
template <int kBlockN, bool kPacked>
struct PendingStep {
  // The producer begins with a V that belongs to no step, so that the very first item takes the path of all others and
  // finds its instructions only once.
  int32_t keys_ = kBlockN, begin16_ = 0, v_valid_ = kBlockN;
  /// The same in the whole warp, as the shuffle tells the compiler.
  __device__ __forceinline__ int32_t uniform_keys() const { return __shfl_sync(0xffffffff, keys_, 0); }
  __device__ __forceinline__ int32_t begin16() const { return begin16_; }
  __device__ __forceinline__ int32_t v_valid() const { return v_valid_; }
  __device__ __forceinline__ void set(int32_t keys, int32_t begin16, int32_t v_valid) {
    begin16_ = begin16;
    v_valid_ = v_valid;
    keys_ = keys;
  }
  __device__ __forceinline__ void clear() { keys_ = 0; }
};

/// The same in one register, with room for whether the steps before leave every row with a reference.
template <int kBlockN>
struct PendingStep<kBlockN, true> {
  static constexpr uint32_t kSteady = 1u << 24;
  uint32_t word = kBlockN | kBlockN << 16;
  __device__ __forceinline__ int32_t uniform_keys() const {
    return __shfl_sync(0xffffffff, static_cast<int32_t>(word & 0xff), 0);
  }
  __device__ __forceinline__ int32_t begin16() const { return static_cast<int32_t>(word >> 8 & 0xff); }
  __device__ __forceinline__ int32_t v_valid() const { return static_cast<int32_t>(word >> 16 & 0xff); }
  __device__ __forceinline__ void set(int32_t keys, int32_t begin16, int32_t v_valid) {
    word = (word & kSteady) | static_cast<uint32_t>(keys | begin16 << 8 | v_valid << 16);
  }
  __device__ __forceinline__ void clear() { word &= ~0xffu; }
  __device__ __forceinline__ bool steady() const { return word & kSteady; }
  __device__ __forceinline__ void set_steady(bool value) { word = (word & ~kSteady) | (value ? kSteady : 0); }
};

template <typename Traits>
struct Consumer {
  using Element = typename Traits::Element;
  static constexpr int kBlockN = Traits::kBlockN;
  static constexpr int kGroups16 = kBlockN / 16;
  static constexpr int kNarrow = 32;  // keys of the narrow matmuls at the ends of runs
  static constexpr int kConsumers = Traits::kConsumers;
  // Named barriers, one for each warpgroup: its turn to feed the tensor cores, its rows of shared memory are written,
  // it agrees on making scores again.
  static constexpr uint32_t kTurnBarrier = 1;
  static constexpr uint32_t kWriteBarrier = kTurnBarrier + kConsumers;
  static constexpr uint32_t kRedoBarrier = kWriteBarrier + kConsumers;
  static constexpr float kLimit = 16384.0f;  // sums of a thread's probabilities below this are finite in float16 too

  const ForwardParams& params;
  ForwardSmem<Traits>& smem;
  const int warpgroup;  // counted from 0
  const int lane;
  // V is that of the pending step, the next to be multiplied: while it is pending, its number is that of the step at
  // hand, since the producer begins with the V of no step.
  Rings<Traits> rings;

  float o[Traits::kDimV / 2];
  bool o_started = false;  // else o holds nothing yet, and the next product overwrites it
  uint32_t p[kGroups16][4];
  RowState state;
  PendingStep<kBlockN, Traits::kConsumers == 3> pending;

  __device__ Consumer(const ForwardParams& params_in, ForwardSmem<Traits>& smem_in)
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
  __device__ __forceinline__ void take_turn() { ptx::named_barrier_sync(kTurnBarrier + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() {
    ptx::named_barrier_arrive(kTurnBarrier + (warpgroup + 1 == kConsumers ? 0 : warpgroup + 1), 256);
  }

  // Descriptors in uniform registers: the compiler must know that a stage is the same in the whole warp, and that the
  // upper half of a descriptor is a constant. With three consumers only in plain steps (kPlain): elsewhere it would
  // rather spill.
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
    const uint64_t q = ptx::wgmma_descriptor(ptx::smem_address(smem.q[q_stage]) + warpgroup * 64 * 128, 16, 1024);
    const uint64_t k = ptx::wgmma_descriptor(ptx::smem_address(smem.k[stage]) + begin16 * 2048, 16, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < Traits::kDimQk / 16; ++k16) {
      const int panel = k16 / 4, bytes = k16 % 4 * 32;
      ptx::wgmma_ss<Element, kN>(scores, advance<kPlain>(q, panel * Traits::kPanelBytesQ + bytes),
                                 advance<kPlain>(k, panel * Traits::kPanelBytesK + bytes), k16 > 0);
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
        ptx::wgmma_descriptor(ptx::smem_address(smem.v[v_stage]) + v_offset16<kN>() * 2048, Traits::kPanelBytesK, 1024);
    ptx::wgmma_fence();
#pragma unroll
    for (int g = 0; g < kN / 16; ++g) {
      ptx::wgmma_rs<Element, Traits::kDimV, 1>(o, p[g], advance<kPlain>(v, g * 2048), g > 0 || o_started);
    }
    ptx::wgmma_commit();
    o_started = true;
  }

  /// Zeroes the rows of the pending V that nobody sees: their probabilities are 0, but 0 * NaN is NaN. Both warpgroups
  /// may write the same zeros.
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
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kWriteBarrier + warpgroup, 128);
  }

  __device__ __forceinline__ void load_intervals(const StepMessage& step) {
    const ItemRows<Traits::kParts> item = smem.items[rings.q_stage()];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t local_row = (tile_row() + 8 * r) >> params.pack_log2;
      const int32_t row = item.row0 + local_row;
      RowInterval interval;
      if (step.interval_begin >= 0) {
        if (local_row < item.num_rows) {
          interval = params.intervals[step.interval_begin + local_row];
        }
      } else if (row >= step.row_begin && row < step.row_end) {
        interval.begin = max(step.slice_k_begin, row + step.min_diag);
        interval.end = min(step.slice_k_end, row + step.max_diag + 1);
      }
      if (lane % 4 == 0) smem.intervals[tile_row() + 8 * r] = interval;
    }
  }

  /// Softmax of the scores of kN keys from row 16 * begin16 of the tile on, with care for the maxima; true when o must
  /// be multiplied by `rescale`. With kFresh these are the item's first scores.
  template <int kN, bool kFresh>
  __device__ __forceinline__ bool apply_softmax(float (&s)[kN / 2], uint32_t word, int begin16, float (&rescale)[2]) {
    mask_window<kN>(s, word, begin16, rings.k_stage());
    if constexpr (Traits::kSoftcap) {
      apply_softcap(s);
      mask_window<kN>(s, word, begin16, rings.k_stage());
    }
    bool moved = false;
    if constexpr (kFresh) {
      set_reference(s, state);
    } else {
      moved = update_reference(s, state, params.exp_scale, params.slack, rescale);
    }
    float row_sum[2];
    exponentiate(s, state, params.exp_scale, row_sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    return moved;
  }

  /// Masks the groups of 16 keys that the word names, of keys from row 16 * begin16 of `stage` on.
  template <int kN>
  __device__ __forceinline__ void mask_window(float (&s)[kN / 2], uint32_t word, int begin16, int stage) {
    const uint32_t masked = word >> (kStepMaskShift + begin16);
    if (masked == 0) return;
    const int32_t first_key = smem.step[stage].first_key;
    const int32_t shift = smem.step[stage].k0 + begin16 * 16 + 2 * (lane % 4);
    const RowInterval first = smem.intervals[tile_row()], second = smem.intervals[tile_row() + 8];
    const int32_t begin[2] = {max(first.begin, first_key) - shift, max(second.begin, first_key) - shift};
    const int32_t end[2] = {first.end - shift, second.end - shift};
#pragma unroll
    for (int g = 0; g < kN / 16; ++g) {
      if (masked >> g & 1) mask_scores(s, g, begin, end);
    }
  }

  /// Replaces scores by softcap * tanh(scale * score / softcap), masked ones by -softcap, and keeps the largest before.
  template <int kCount>
  __device__ __forceinline__ void apply_softcap(float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) state.largest[(i / 2) % 2] = fmaxf(state.largest[(i / 2) % 2], s[i]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = params.softcap * ptx::tanh_approx(s[i] * params.inner_scale);
  }

  template <int kN>
  __device__ __forceinline__ void convert_probabilities(const float (&s)[kN / 2]) {
#pragma unroll
    for (int g = 0; g < kN / 16; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[g][i] = pack_pair<Element>(s[8 * g + 2 * i], s[8 * g + 2 * i + 1]);
    }
  }

  __device__ __forceinline__ void rescale_output(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < Traits::kDimV / 2; ++i) o[i] *= rescale[(i / 2) % 2];
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
  /// that the word, and so each branch on it, is the same in the whole warp.
  __device__ __forceinline__ uint32_t fetch_word() {
    ptx::mbarrier_wait(&smem.k_full[rings.k_stage()], rings.k_phase());
    return __shfl_sync(0xffffffff, smem.step[rings.k_stage()].word[warpgroup], 0);
  }

  /// Reads what only some steps need from the message; returns how many rows of the step's V are valid.
  __device__ __forceinline__ int32_t read_message(uint32_t word) {
    const StepMessage& step = smem.step[rings.k_stage()];
    if (word & kStepNewRun) {
      load_intervals(step);
      __syncwarp();
    }
    return word & kStepTail ? __shfl_sync(0xffffffff, step.v_valid, 0) : kBlockN;
  }

  /// One step of which this warpgroup sees at most kN keys, with care for the maxima; returns the next step's word. No
  /// product is pending, or with kNewItem that of the last step of the item before, of kPendingN keys, which is
  /// finished on the way.
  template <int kPendingN, int kN>
  __device__ __forceinline__ uint32_t careful_step(uint32_t word) {
    constexpr bool kNewItem = kPendingN > 0;
    const int begin16 = min(window_begin16(word), kGroups16 - kN / 16);
    float s[kN / 2];
    take_turn();
    issue_scores<kN>(s, begin16, rings.k_stage());
    if constexpr (kNewItem) {
      wait_pending_v<kPendingN>();
      issue_output<kPendingN>(rings.template v_stage<0>());
    }
    pass_turn();
    const int32_t v_valid_next = read_message(word);
    if constexpr (kNewItem) {
      // Under the product where there are registers for it.
      constexpr bool kEarly = kConsumers == 2;
      RowFactors factors;
      if constexpr (kEarly) factors = finish_sums();
      ptx::wgmma_wait<0>();
      release_v();
      if constexpr (!kEarly) factors = finish_sums();
      finish_rows(factors);
    } else {
      ptx::wgmma_wait<0>();
    }
    float rescale[2];
    const bool moved = apply_softmax<kN, kNewItem>(s, word, begin16, rescale);
    arrive(&smem.k_empty[rings.k_stage()]);
    rings.advance_k();
    const uint32_t next = fetch_word();
    if (moved) rescale_output(rescale);
    convert_probabilities<kN>(s);
    pending.set(kN, begin16, v_valid_next);
    return next;
  }

  /// Whether some thread of the warpgroup saw a score that exceeds its reference by so much that the step must be
  /// repeated with care.
  __device__ __forceinline__ bool must_redo(const float (&row_sum)[2]) {
    return ptx::named_barrier_any(kRedoBarrier + warpgroup, 128, !(row_sum[0] < kLimit && row_sum[1] < kLimit));
  }

  /// Makes the scores of kN keys in `stage` again, moves the references and exponentiates. Nothing may be in flight.
  template <int kN>
  __device__ __forceinline__ void redo_softmax(float (&s)[kN / 2], uint32_t word, int begin16, int stage,
                                               float (&row_sum)[2]) {
    issue_scores<kN>(s, begin16, stage);
    ptx::wgmma_wait<0>();
    mask_window<kN>(s, word, begin16, stage);
    float rescale[2];
    if (update_reference(s, state, params.exp_scale, params.slack, rescale)) rescale_output(rescale);
    exponentiate(s, state, params.exp_scale, row_sum);
  }

  /// Without a second look: moves the references, exponentiates, and waits for the pending product, which is in flight;
  /// K of `stage` is free once the maxima are known. Returns the next step's word.
  template <int kN>
  __device__ __forceinline__ uint32_t look_once(float (&s)[kN / 2], float (&row_sum)[2]) {
    float rescale[2] = {1.0f, 1.0f};
    const bool moved = update_reference(s, state, params.exp_scale, params.slack, rescale);
    arrive(&smem.k_empty[rings.k_stage()]);
    exponentiate(s, state, params.exp_scale, row_sum);
    rings.advance_k();
    const uint32_t next = fetch_word();
    // As in steady_step; the warpgroup agrees, since all its warps must wait at one place.
    if (ptx::named_barrier_any(kRedoBarrier + warpgroup, 128, moved)) {
      ptx::wgmma_wait<0>();
      rescale_output(rescale);
    } else {
      ptx::wgmma_wait<0>();
    }
    return next;
  }

  /// A step in which every row has a reference already and a whole tile is pending. It is taken without looking for
  /// maxima: should a score exceed its reference by much, the sum of the exponentials shows it (infinity included), and
  /// the scores are made again and treated with care. For that K is kept until then.
  template <int kN>
  __device__ __forceinline__ uint32_t steady_step(uint32_t word) {
    const int begin16 = min(window_begin16(word), kGroups16 - kN / 16);
    float s[kN / 2];
    take_turn();
    issue_scores<kN>(s, begin16, rings.k_stage());
    wait_pending_v<kBlockN>();
    issue_output<kBlockN>(rings.template v_stage<0>());
    pass_turn();
    const int32_t v_valid_next = read_message(word);
    ptx::wgmma_wait<1>();
    mask_window<kN>(s, word, begin16, rings.k_stage());
    float row_sum[2];
    if constexpr (!Traits::kSecondLook) {
      const uint32_t next = look_once<kN>(s, row_sum);
      end_steady<kN>(s, row_sum, begin16, v_valid_next);
      return next;
    }
    exponentiate(s, state, params.exp_scale, row_sum);
    const int stage = rings.k_stage();
    rings.advance_k();
    const uint32_t next = fetch_word();
    // The wait stands in both branches because ptxas moves one that it finds in the block of the exponentials above
    // them, and the product with V would no longer run under the softmax.
    if (must_redo(row_sum)) {
      ptx::wgmma_wait<0>();
      redo_softmax<kN>(s, word, begin16, stage, row_sum);
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
    release_v<-1>();
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    convert_probabilities<kN>(s);
    pending.set(kN, begin16, v_valid);
  }

  /// The whole unmasked tile without flags.
  static constexpr uint32_t kPlainWord = (kGroups16 << 8) | kStepSteady;

  /// The steps that most of the time goes into: steady ones with kPlainWord, `word` being the first, a whole tile
  /// being pending; returns the word after them. Probabilities are packed as they are made, which needs the pending
  /// product to be done half-way.
  __device__ __forceinline__ uint32_t plain_steps(uint32_t word) {
    do {
      float s[kBlockN / 2];
      rings.make_uniform();
      const int k_stage = uniform(rings.k_stage()), v_stage = uniform(rings.template v_stage<0>());
      take_turn();
      issue_scores<kBlockN, true>(s, 0, k_stage);
      ptx::mbarrier_wait(&smem.v_full[v_stage], rings.template v_phase<0>());
      issue_output<kBlockN, true>(v_stage);
      pass_turn();
      ptx::wgmma_wait<1>();
      if constexpr (!Traits::kSecondLook) {
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
      word = fetch_word();
      if (must_redo(row_sum)) {
        ptx::wgmma_wait<0>();
        redo_softmax<kBlockN>(s, 0, 0, stage, row_sum);
      } else {
        ptx::wgmma_wait<0>();
      }
      release_v<-1>();
      convert_probabilities<kBlockN>(s);
      arrive(&smem.k_empty[stage]);
#pragma unroll
      for (int r = 0; r < 2; ++r) state.sum[r] += row_sum[r];
    } while (word == kPlainWord);
    return word;
  }

  /// A step of which this warpgroup sees nothing.
  __device__ __forceinline__ uint32_t skipped_step(uint32_t word) {
    take_turn();
    pass_turn();
    read_message(word);
    return pass_over();
  }

  /// Leaves a step whose message has been read.
  __device__ __forceinline__ uint32_t pass_over() {
    arrive(&smem.k_empty[rings.k_stage()]);
    ptx::mbarrier_wait(&smem.v_full[rings.template v_stage<1>()], rings.template v_phase<1>());
    release_v<1>();
    rings.advance_k();
    return fetch_word();
  }

  static __device__ __forceinline__ bool is_wide(uint32_t word) { return window_count16(word) * 16 > kNarrow; }

  /// Of Q of the item before. With one stage it is that of the next item too, which then waits for it.
  __device__ __forceinline__ int stage_before() const { return Traits::kStagesQ == 1 ? 0 : rings.q_stage() ^ 1; }

  /// The two halves of the end of the item before: its sums, while its last product may be in flight, and its rows.
  __device__ __forceinline__ RowFactors finish_sums() {
    RowFactors factors{};
    if (rings.item_open()) {
      factors = sm90::finish_sums<Traits>(params, smem.items[stage_before()], state, tile_row());
    }
    state.reset();
    return factors;
  }
  __device__ __forceinline__ void finish_rows(const RowFactors& factors) {
    if (rings.item_open()) {
      const int stage = stage_before();
      store_rows<Traits>(params, smem.items[stage], factors, o, tile_row(), smem.q[stage] + warpgroup * 64 * 128,
                         warpgroup, kWriteBarrier + warpgroup);
    }
    o_started = false;
  }

  /// Frees the Q stage of the item that finish_rows() has stored from it.
  __device__ __forceinline__ void release_q() {
    if (rings.item_open() && threadIdx.x % 128 == 0) {
      ptx::tma_store_wait_read<0>();
      ptx::mbarrier_arrive(&smem.q_empty[stage_before()]);
    }
  }

  /// Ends the item before without the next one.
  __device__ __forceinline__ void close_item() {
    flush_pending();
    ptx::named_barrier_sync(kWriteBarrier + warpgroup, 128);
    finish_rows(finish_sums());
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == kConsumers - 1) pass_turn();
    constexpr bool kPacked = kConsumers == 3;
    constexpr bool kApart = Traits::kStagesQ == 1;  // else an item ends under the next one
    bool steady = false;
    uint32_t word = fetch_word();
    for (;;) {
      if constexpr (kPacked) steady = pending.steady();
      const int32_t pending_keys = pending.uniform_keys();
      const bool first = word & (kStepFirst | kStepStop);
      uint32_t next;
      if (first) {
        if constexpr (kApart) {
          close_item();
          release_q();
          if (word & kStepStop) break;
        }
        if (rings.item_open()) rings.advance_q();
        if (!(word & kStepStop)) ptx::mbarrier_wait(&smem.q_full[rings.q_stage()], rings.q_phase());
      }
      if (!kApart && first && is_wide(word) && pending_keys == kBlockN) {
        next = careful_step<kBlockN, kBlockN>(word);
      } else if (!kApart && first && is_wide(word) && pending_keys == kNarrow) {
        next = careful_step<kNarrow, kBlockN>(word);
      } else if (!Traits::kSoftcap && steady && !first && pending_keys == kBlockN && window_count16(word) > 0) {
        next = is_wide(word) ? steady_step<kBlockN>(word) : steady_step<kNarrow>(word);
      } else {
        flush_pending();
        if (!kApart && first) {
          ptx::named_barrier_sync(kWriteBarrier + warpgroup, 128);
          finish_rows(finish_sums());
          if (word & kStepStop) break;
        }
        next = window_count16(word) == 0 ? skipped_step(word)
               : is_wide(word)           ? careful_step<0, kBlockN>(word)
                                         : careful_step<0, kNarrow>(word);
      }
      if (first) {
        if constexpr (!kApart) release_q();
        rings.set_item_open();
      }
      steady = params.slack > 0.0f && ((steady && !first) || (word & kStepSteady));
      if constexpr (kPacked) pending.set_steady(steady);
      if constexpr (!Traits::kSoftcap) {
        if (steady && next == kPlainWord && pending.uniform_keys() == kBlockN && pending.v_valid() == kBlockN) {
          next = plain_steps(next);
        }
      }
      word = next;
    }
    if (threadIdx.x % 128 == 0) ptx::tma_store_wait_read<0>();
  }
};

}  // namespace tangram::sm90
