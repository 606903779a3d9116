// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The service warps of the forward kernel: one deals work, one (or two) walks runs of keys, issues TMA loads and tells
// the consumers what a step is.
#pragma once

#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/forward/traits.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90 {

/// Order of work: sections of head groups whose K and V share the L2 cache; in a section by item (longest first), the
/// groups innermost, so that CTAs that run together read the same keys.
__device__ __forceinline__ void locate_work(const ForwardParams& params, int32_t ticket, int32_t* item,
                                            int32_t* group) {
  const int32_t section_size = params.num_items * params.groups_per_section;
  const int32_t section = ticket / section_size;
  const int32_t in_section = ticket - section * section_size;
  const int32_t first_group = section * params.groups_per_section;
  const int32_t groups = min(params.groups_per_section, params.num_groups - first_group);
  *item = in_section / groups;
  *group = first_group + in_section - *item * groups;
}

/// Draws tickets and puts the items, with their first run, into the work ring. One thread. A ticket is drawn as late as
/// hides the way to its item, when the producer begins the item before: one drawn earlier would wait for this CTA while
/// others run out of work. The first is not drawn: its item is on its way before the kernels that this one depends on
/// have ended.
template <typename Traits>
__device__ __forceinline__ void run_scheduler(const ForwardParams& params, ForwardSmem<Traits>& smem) {
  RingPosition<Traits::kWorkSlots> slot;
  const int32_t num_tickets = params.num_items * params.num_groups;
  int32_t ticket = static_cast<int32_t>(blockIdx.x);
  for (bool first = true;; first = false) {
    ptx::mbarrier_wait(&smem.work_empty[slot.stage], slot.phase ^ 1);
    if (!first) ticket = atomicAdd(&params.counters[0], 1) + static_cast<int32_t>(gridDim.x);
    WorkMessage& message = smem.work[slot.stage];
    const bool stop = ticket >= num_tickets;
    message.stop = stop;
    if (!stop) {
      int32_t item;
      locate_work(params, ticket, &item, &message.group);
      const TileItem tile = params.items[item];
      message.item = tile;
      if constexpr (Traits::kAnyDim) {
        message.part_row = params.part_rows == nullptr ? -1 : params.part_rows[item];
      } else if constexpr (Traits::kParts) {
        message.part_row = params.part_rows[item];
      }
      if (tile.run_begin < tile.run_end) message.first_run = params.runs[tile.run_begin];
    }
    ptx::mbarrier_arrive(&smem.work_full[slot.stage]);
    if (first) ptx::grid_dependency_wait();
    if (stop) break;
    slot.advance();
  }
  // The last CTA to run out of work leaves the counters as it found them.
  __threadfence();
  if (atomicAdd(&params.counters[1], 1) == static_cast<int32_t>(gridDim.x) - 1) {
    params.counters[0] = 0;
    params.counters[1] = 0;
  }
}

/// SeenKeys of query rows [first, last].
__device__ __forceinline__ SeenKeys seen_keys(const TileRun& run, int32_t first, int32_t last) {
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

/// The word without flags of the item: which part of the tile at k0 a warpgroup works on, and where it must mask; keys
/// before `first_key` are not this step's.
template <typename Traits>
__device__ __forceinline__ uint32_t step_window(const SeenKeys& seen, int32_t k0, int32_t first_key) {
  constexpr int32_t kGroups16 = Traits::kBlockN / 16;
  const int32_t begin = (max(seen.see_begin, first_key) - k0) & ~15;
  const int32_t end = min(seen.see_end - k0, Traits::kBlockN);
  if (begin >= end) return 0;
  const int32_t full_begin = max(seen.full_begin, first_key) - k0, full_end = min(seen.full_end - k0, Traits::kBlockN);
  const int32_t first = min((full_begin + 15) / 16, kGroups16), last = max(full_end, 0) / 16;
  const uint32_t unmasked = first < last ? (1u << last) - (1u << first) : 0;
  const uint32_t masked = ((1u << kGroups16) - 1) & ~unmasked;
  const bool steady = max(full_begin, begin) < min(full_end, end);
  return pack_window(begin / 16, (end - begin + 15) / 16) | (steady ? kStepSteady : 0) | (masked << kStepMaskShift);
}

/// Walks the work ring, loads Q, K and V, and describes every step to the consumers. One thread, or two: one that only
/// loads, and one that only writes messages (Traits::kScribe), who need not know of each other.
template <typename Traits, bool kLoads = true, bool kWrites = true>
struct Producer {
  const typename Traits::Params& params;
  ForwardSmem<Traits>& smem;
  Rings<Traits> rings;
  // V of a step is loaded after K of the next one, which the consumers need first. They begin with the V of no step.
  int32_t v_row = kNoLoad, v_head = 0;
  bool keys_missing = params.arrivals.pending != 0;
  static constexpr int32_t kNothing = -2;
  static constexpr int32_t kNoLoad = -1;
  static constexpr int32_t kElsewhere = -3;  // minus the row there

  __device__ __forceinline__ void flush_v() {
    if (v_row == kNothing) return;
    const int stage = rings.template v_stage<-1>();
    ptx::mbarrier_wait(&smem.v_empty[stage], rings.template v_phase<-1>() ^ 1);
    if (flush_groups(stage)) {
    } else if (v_row != kNoLoad) {
      const bool here = v_row >= 0;
      ptx::mbarrier_arrive_expect_tx(&smem.v_full[stage], Traits::kBytesV);
      load_rows<Traits::kAnyDim, Traits::kPanelsV, Traits::kPanelBytesK>(
          smem.v[stage], here ? &params.v_map : &params.v_elsewhere_map, &smem.v_full[stage],
          here ? v_row : kElsewhere - v_row, v_head);
    } else {
      ptx::mbarrier_arrive(&smem.v_full[stage]);
    }
    rings.advance_v();
    v_row = kNothing;
  }

  /// Waits for a free stage and returns its message, to be filled in before load_step() or skip_step().
  __device__ __forceinline__ StepMessage& begin_step() {
    ptx::mbarrier_wait(&smem.k_empty[rings.k_stage()], rings.k_phase() ^ 1);
    return smem.step[rings.k_stage()];
  }

  __device__ __forceinline__ void load_q(const WorkMessage& work) {
    uint64_t* full = &smem.q_full[rings.q_stage()];
    ptx::mbarrier_wait(&smem.q_empty[rings.q_stage()], rings.q_phase() ^ 1);
    ItemRows<Traits::kParts>& rows = smem.items[rings.q_stage()];
    if constexpr (Traits::kParts) {
      rows = {work.item.row_begin, work.item.row_end - work.item.row_begin, work.group, work.part_row};
    } else {
      rows = {work.item.row_begin, work.item.row_end - work.item.row_begin, work.group};
    }
    ptx::mbarrier_arrive_expect_tx(full, Traits::kBytesQ);
    load_packed_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesQ>(
        smem.q[rings.q_stage()], &params.q_map, full, work.group << params.pack_log2, work.item.row_begin);
    rings.advance_q();
  }

  /// `row`: as v_row, of a tile.
  __device__ __forceinline__ void load_k(int32_t row, int32_t kv_head) {
    const bool here = row >= 0;
    ptx::mbarrier_arrive_expect_tx(&smem.k_full[rings.k_stage()], Traits::kBytesK);
    load_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesK>(
        smem.k[rings.k_stage()], here ? &params.k_map : &params.k_elsewhere_map, &smem.k_full[rings.k_stage()],
        here ? row : kElsewhere - row, kv_head);
    rings.advance_k();
  }

  /// As load_step, of a gathered run.
  __device__ __forceinline__ void load_gathered(const WorkMessage& work, const KeyGroups& groups, bool first_of_item) {
    if constexpr (Traits::kGathered) {
      smem.pending.k = groups;
      load_groups(0, smem.k[rings.k_stage()], &smem.k_full[rings.k_stage()], smem.pending.k);
      rings.advance_k();
      flush_v();
      if (first_of_item) load_q(work);
      smem.pending.v = smem.pending.k;
      v_row = kNoLoad;  // but not nothing
    }
  }
  /// V of a step of a gathered run, if one is to come.
  __device__ __forceinline__ bool flush_groups(int stage) {
    if constexpr (Traits::kGathered) {
      if (smem.pending.v.count == 0) return false;
      load_groups(1, smem.v[stage], &smem.v_full[stage], smem.pending.v);
      smem.pending.v.count = 0;
      return true;
    }
    return false;
  }
  /// Loads groups of keys, once they are there, into a tile of K (`which` = 0) or V.
  __device__ __forceinline__ void load_groups(int which, unsigned char* tile, uint64_t* full, const KeyGroups& groups) {
    if constexpr (Traits::kGathered) {
      static_assert(Traits::kBytesK == Traits::kBytesV && !Traits::kAnyDim);
      ptx::mbarrier_arrive_expect_tx(full, groups.count * (Traits::kBytesK / (Traits::kBlockN / 16)));
      int32_t next = __ldg(params.groups + groups.first);
#pragma unroll 1
      for (int32_t group = 0; group < groups.count;) {
        const int32_t entry = next;
        const bool large = entry < 0 && group + 4 <= groups.count;
        const int32_t key = entry < 0 ? ~entry : entry, count = large ? 64 : 16;
        const int32_t following = group + count / 16;
        if (following < groups.count) next = __ldg(params.groups + groups.first + following);
        if (which == 0 && keys_missing) keys_missing = await_keys(params.arrivals, smem.arrived, key, key + count);
        const int32_t row = row_elsewhere(params.stretches, smem.stretch, key, count);
        const TensorMap* map = row < 0 ? &params.maps[which][large] : &params.elsewhere_maps[which][large];
#pragma unroll
        for (int panel = 0; panel < Traits::kPanelsQk; ++panel) {
          ptx::tma_load_4d(tile + panel * Traits::kPanelBytesK + group * (16 * 128), map, full, 0, row < 0 ? key : row,
                           panel, groups.kv_head);
        }
        group = following;
      }
    }
  }

  /// Ends a step without loads.
  __device__ __forceinline__ void end_step() {
    ptx::mbarrier_arrive(&smem.k_full[rings.k_stage()]);
    rings.advance_k();
  }

  static __device__ __forceinline__ void fill_words(StepMessage& message, uint32_t word) {
#pragma unroll
    for (int w = 0; w < Traits::kConsumers; ++w) message.word[w] = word;
  }

  __device__ __forceinline__ void fill_run(StepMessage& message, const TileRun& run) {
    message.row_begin = run.row_begin;
    message.row_end = run.row_end;
    message.slice_k_begin = run.slice_k_begin;
    message.slice_k_end = run.slice_k_end;
    message.min_diag = run.min_diag;
    message.max_diag = run.max_diag;
    message.interval_begin = run.interval_begin;
  }

  /// An item that sees nothing: one step without loads, so that the consumers write its zeros.
  __device__ __forceinline__ void push_empty_item(const WorkMessage& work) {
    StepMessage& message = begin_step();
    if constexpr (kWrites) fill_words(message, kStepFirst);
    end_step();
    if constexpr (kLoads) {
      flush_v();
      load_q(work);
      v_row = kNoLoad;
    }
  }

  /// What each warpgroup sees of the run.
  __device__ __forceinline__ void find_seen(const TileItem& item, const TileRun& run) {
    const int32_t last_row = item.row_end - 1;
    const int32_t rows = 64 >> params.pack_log2;
#pragma unroll
    for (int w = 0; w < Traits::kConsumers; ++w) {
      const int32_t first_row = item.row_begin + w * rows;
      smem.seen[w] =
          first_row <= last_row ? seen_keys(run, first_row, min(first_row + rows - 1, last_row)) : SeenKeys{0, 0, 0, 0};
    }
  }

  /// The message of the tile at k0; `unread`: the warpgroups have not been told to read the run's row intervals.
  __device__ __forceinline__ void write_message(StepMessage& message, const TileRun& run, int32_t k0, int32_t first_key,
                                                int32_t k_end, bool first_of_item, bool& unread) {
    uint32_t flags = first_of_item ? kStepFirst : 0;
    // Past the sequence TMA writes zeros, past the run's end there may be rows that nobody sees.
    const bool gathered = Traits::kGathered && run.group_begin >= 0;
    if (k0 + Traits::kBlockN > k_end && (gathered || k_end < params.seqlen_k)) flags |= kStepTail;
    message.k0 = k0;
    message.first_key = first_key;
    message.v_valid = k_end - k0;
    uint32_t words[Traits::kConsumers], all = 0;
#pragma unroll
    for (int w = 0; w < Traits::kConsumers; ++w) {
      words[w] = step_window<Traits>(smem.seen[w], k0, first_key) | flags;
      all |= words[w];
    }
    uint32_t new_run = 0;
    if (unread && all >> kStepMaskShift != 0) {
      unread = false;
      new_run = kStepNewRun;
      fill_run(message, run);
    }
#pragma unroll
    for (int w = 0; w < Traits::kConsumers; ++w) message.word[w] = words[w] | new_run;
  }

  __device__ __forceinline__ void push_run(const WorkMessage& work, const TileRun& run, bool first_run) {
    const int32_t kv_head = (work.group << params.pack_log2) / params.heads_per_kv;
    if constexpr (kWrites) find_seen(work.item, run);
    const int32_t k_begin = run.k_begin, k_end = run.k_end;
    // Warpgroups read the row intervals with the first step that masks something: whole tiles before it are plain
    // steps.
    bool unread = true;
    for (int32_t first_key = k_begin; first_key < k_end; first_key += Traits::kBlockN) {
      StepMessage& message = begin_step();
      const bool first = first_key == k_begin;
      // The last tile is moved back to the end of the run, so that V holds no rows that nobody may have written.
      const int32_t k0 = max(min(first_key, k_end - Traits::kBlockN), k_begin);
      if constexpr (kWrites) write_message(message, run, k0, first_key, k_end, first && first_run, unread);
      if constexpr (!kLoads) {
        end_step();
      } else if (Traits::kGathered && run.group_begin >= 0) {
        load_gathered(work, {run.group_begin + k0 / 16, min(k_end - k0, Traits::kBlockN) / 16, kv_head},
                      first && first_run);
      } else {
        if (keys_missing) {
          keys_missing = await_keys(params.arrivals, smem.arrived, k0, min(k0 + Traits::kBlockN, k_end));
        }
        const int32_t elsewhere = row_elsewhere(params.stretches, smem.stretch, k0, Traits::kBlockN);
        const int32_t row = elsewhere < 0 ? k0 : kElsewhere - elsewhere;
        load_k(row, kv_head);
        flush_v();
        if (first && first_run) load_q(work);
        v_row = row;
        v_head = kv_head;
      }
    }
  }

  __device__ __forceinline__ void run() {
    RingPosition<Traits::kWorkSlots> slot;
    if constexpr (kLoads) smem.stretch = {0, 0, 0, 0};
    if constexpr (kLoads && Traits::kGathered) smem.pending.v.count = 0;
    for (;;) {
      ptx::mbarrier_wait(&smem.work_full[slot.stage], slot.phase);
      const WorkMessage& work = smem.work[slot.stage];
      if (work.stop) break;
      const int32_t run_begin = work.item.run_begin, run_end = work.item.run_end;
      if (run_begin == run_end) {
        push_empty_item(work);
      } else {
        push_run(work, work.first_run, true);
        for (int32_t r = run_begin + 1; r < run_end; ++r) push_run(work, params.runs[r], false);
      }
      ptx::mbarrier_arrive(&smem.work_empty[slot.stage]);
      slot.advance();
    }
    StepMessage& message = begin_step();
    if constexpr (kWrites) fill_words(message, kStepStop);
    end_step();
    if constexpr (kLoads) flush_v();
  }
};

}  // namespace tangram::sm90
