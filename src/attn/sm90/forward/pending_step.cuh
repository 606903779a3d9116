// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What a consumer of the forward kernel keeps of a step until its product with V has begun.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"

namespace tangram::sm90 {

/// The step whose probabilities wait for their product with V: its number of keys (0: none waits), the begin of its
/// window, and its valid rows of V.
template <int kBlockN, bool kPacked>
struct PendingStep {
  // The producer begins with a V that belongs to no step. So the very first work tile takes the path of all others,
  // whose instructions then exist once.
  int32_t keys_ = kBlockN, begin16_ = 0, v_valid_ = kBlockN;
  /// Keys of the step; the shuffle tells the compiler that they are uniform in the warp.
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

/// PendingStep in one register, with a bit for whether the steps before leave every row with a reference.
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
  /// steady(), recomputed: keeps the compiler from holding it in a register that is not free.
  __device__ __forceinline__ bool steady_again() const {
    uint32_t again = word;
    ptx::make_opaque(again);
    return again & kSteady;
  }
  __device__ __forceinline__ void set_steady(bool value) { word = (word & ~kSteady) | (value ? kSteady : 0); }
};

}  // namespace tangram::sm90
