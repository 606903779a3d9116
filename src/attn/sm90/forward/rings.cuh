// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Where the threads of the forward kernel are in its rings.
#pragma once

#include <cstdint>

#include "attn/sm90/common/rings.cuh"

namespace tangram::sm90 {

/// Where a thread is in the rings of K, V and Q.
template <typename Traits, bool kCounted = Traits::kConsumers == 3>
struct Rings {
  RingPosition<Traits::kStagesK> k;  // of the step at hand
  RingPosition<Traits::kStagesV> v;
  RingPosition<Traits::kStagesQ> q;  // of the work tile at hand
  bool open = false;                 // a consumer's: rows of a work tile wait to be finished
  __device__ __forceinline__ int k_stage() const { return k.stage; }
  __device__ __forceinline__ uint32_t k_phase() const { return k.phase; }
  __device__ __forceinline__ void advance_k() { k.advance(); }
  /// kAhead: by how much the V that is meant is ahead of the step at hand.
  template <int kAhead>
  __device__ __forceinline__ int v_stage() const {
    return v.stage;
  }
  template <int kAhead>
  __device__ __forceinline__ uint32_t v_phase() const {
    return v.phase;
  }
  __device__ __forceinline__ void advance_v() { v.advance(); }
  __device__ __forceinline__ int q_stage() const { return q.stage; }
  __device__ __forceinline__ uint32_t q_phase() const { return q.phase; }
  __device__ __forceinline__ void advance_q() { q.advance(); }
  /// Where WorkTileRows of the work tile at hand, or of the one before, are.
  __device__ __forceinline__ int work_tile() const {
    return Traits::kStagesQ == 1 ? static_cast<int>(q.phase) : q.stage;
  }
  __device__ __forceinline__ bool work_tile_open() const { return open; }
  __device__ __forceinline__ void set_work_tile_open() { open = true; }
  __device__ __forceinline__ void make_uniform() {}
};

/// Rings in one register. Stage counts are powers of two and equal for K and V, so that two counts are enough. The
/// count of work tiles has the lowest bits.
template <typename Traits>
struct Rings<Traits, true> {
  static constexpr uint32_t kWorkTileRows = 2, kWorkTiles = 2 * Traits::kStagesQ, kOpen = kWorkTiles,
                            kStep = 2 * kWorkTiles;
  static_assert(Traits::kStagesK == Traits::kStagesV);
  static_assert((Traits::kStagesK & (Traits::kStagesK - 1)) == 0 && (Traits::kStagesQ & (Traits::kStagesQ - 1)) == 0);
  uint32_t count = 0;
  template <int kAhead>
  __device__ __forceinline__ uint32_t step() const {
    return count / kStep + static_cast<uint32_t>(kAhead);
  }
  __device__ __forceinline__ int k_stage() const { return v_stage<0>(); }
  __device__ __forceinline__ uint32_t k_phase() const { return v_phase<0>(); }
  __device__ __forceinline__ void advance_k() { count += kStep; }
  template <int kAhead>
  __device__ __forceinline__ int v_stage() const {
    return static_cast<int>(step<kAhead>() % Traits::kStagesV);
  }
  template <int kAhead>
  __device__ __forceinline__ uint32_t v_phase() const {
    return step<kAhead>() / Traits::kStagesV % 2;
  }
  __device__ __forceinline__ void advance_v() {}
  __device__ __forceinline__ int q_stage() const { return static_cast<int>(count % Traits::kStagesQ); }
  __device__ __forceinline__ uint32_t q_phase() const { return count / Traits::kStagesQ % 2; }
  __device__ __forceinline__ int work_tile() const { return static_cast<int>(count % kWorkTileRows); }
  __device__ __forceinline__ void advance_q() {
    count = (count & ~(kWorkTiles - 1)) | ((count + 1) & (kWorkTiles - 1));
  }
  __device__ __forceinline__ bool work_tile_open() const { return count & kOpen; }
  __device__ __forceinline__ void set_work_tile_open() { count |= kOpen; }
  /// Lets the compiler know that all threads of the warp are at the same place.
  __device__ __forceinline__ void make_uniform() { count = __shfl_sync(0xffffffff, count, 0); }
};

}  // namespace tangram::sm90
