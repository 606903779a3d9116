// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Writes dk and dv of a work tile from registers, in the input dtype or float32, stored or added. Head splits first
// meet in float32 accumulator tiles, whose sum the last split takes.
#pragma once

#include "attn/sm90/backward/traits.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::backward {

/// Transposes a 4x4 matrix of words over the four lanes of a quad: word k of lane c becomes word c of lane k.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = bit == 1 ? i * 2 : i, high = low + bit;
      const uint32_t received = __shfl_xor_sync(0xffffffff, upper ? w[low] : w[high], bit);
      if (upper) {
        w[low] = received;
      } else {
        w[high] = received;
      }
    }
  }
}

/// Writes one row (a quad's words of it) of one gradient; accumulators 4j + first and + first + 1 hold columns 8j + 2c.
/// All lanes of a warp call it, each with what its own row wants. With kAnyDim the row has `columns`, a multiple of 8,
/// perhaps fewer than accumulators.
template <typename Element, int kHeadDim, bool kAnyDim>
__device__ __forceinline__ void write_row(const float (&sums)[kHeadDim / 2], int first, float scale, void* row,
                                          bool valid, GradType type, bool accumulate, int lane, int columns) {
  const int c = lane % 4;
  if (valid && type == GradType::kFloat32) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      if (kAnyDim && j * 8 >= columns) continue;
      float2* to = reinterpret_cast<float2*>(static_cast<float*>(row) + j * 8 + c * 2);
      float2 value{sums[j * 4 + first] * scale, sums[j * 4 + first + 1] * scale};
      if (accumulate) {
        const float2 old = *to;
        value.x += old.x;
        value.y += old.y;
      }
      *to = value;
    }
  }
  if (__all_sync(0xffffffff, type == GradType::kFloat32)) return;
  const bool stores = valid && type == GradType::kInput;
#pragma unroll
  for (int m = 0; m < kHeadDim / 32; ++m) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (m * 4 + i) * 4 + first;
      w[i] = pack_pair<Element>(sums[at] * scale, sums[at + 1] * scale);
    }
    transpose_quad(w, lane);
    if (kAnyDim && (m * 4 + c) * 8 >= columns) continue;
    if (stores) *reinterpret_cast<uint4*>(static_cast<Element*>(row) + (m * 4 + c) * 8) = {w[0], w[1], w[2], w[3]};
  }
}

/// dk or dv. What belongs to either is read from the parameters where it is needed, and takes no registers before.
template <typename Traits, bool kIsDk, int kSums>
__device__ __forceinline__ void write_gradient(const float (&sums)[kSums], float scale, const Params& params,
                                               const WorkTile& work_tile, int first_row, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int in_tile = first_row + r * 8;
    int32_t row = work_tile.row_begin + in_tile;
    // Accumulated gradients of keys that no query sees belong to others, who may be using them.
    const bool seen = work_tile.covered[in_tile / 32] >> (in_tile % 32) & 1;
    const bool valid = row < work_tile.row_end && (seen || !params.accumulate_dkv);
    void* gradient = kIsDk ? params.dk : params.dv;
    GradType type = params.dkv_type;
    if (params.places != nullptr && valid) {
      const uint32_t place = __ldg(params.places + row), tensor = place >> kGradientRowBits;
      row = static_cast<int32_t>(place & ((1u << kGradientRowBits) - 1));
      if (tensor == kFinalTensor) {
        gradient = kIsDk ? params.dk_final : params.dv_final;
        type = params.final_type;
      } else if (tensor >= kFirstOtherTensor) {
        void* const* others = kIsDk ? params.dk_others : params.dv_others;
        gradient = reinterpret_cast<void*>(
            __ldg(reinterpret_cast<const unsigned long long*>(others + (tensor - kFirstOtherTensor))));
      }
    }
    const int64_t at = work_tile.kv_head * (kIsDk ? params.dk_head_stride : params.dv_head_stride) +
                       row * (kIsDk ? params.dk_row_stride : params.dv_row_stride);
    char* to = static_cast<char*>(gradient) + at * (type == GradType::kFloat32 ? 4 : 2);
    write_row<typename Traits::Element, 2 * kSums, Traits::kAnyDim>(
        sums, r * 2, scale, to, valid, type, params.accumulate_dkv, lane, kIsDk ? params.head_dim : params.head_dim_v);
  }
}

/// A thread's part of an accumulator tile: float4s kConsumerThreads apart.
template <typename Traits, typename Visit>
__device__ __forceinline__ void visit_accum_tile(float4* accum_tile, float (&dk)[Traits::kDimQk / 2],
                                                 float (&dv)[Traits::kDimV / 2], const Visit& visit) {
  constexpr int kVectorsDk = Traits::kDimQk / 8, kVectorsDv = Traits::kDimV / 8;
#pragma unroll
  for (int i = 0; i < (kVectorsDk > kVectorsDv ? kVectorsDk : kVectorsDv); ++i) {
    if (Traits::kMakesDk && i < kVectorsDk)
      visit(accum_tile + i * kConsumerThreads, dk[i * 4], dk[i * 4 + 1], dk[i * 4 + 2], dk[i * 4 + 3]);
    if (Traits::kMakesDv && i < kVectorsDv) {
      visit(accum_tile + (kVectorsDk + i) * kConsumerThreads, dv[i * 4], dv[i * 4 + 1], dv[i * 4 + 2], dv[i * 4 + 3]);
    }
  }
}

/// Head splits add up in an accumulator tile. The first one stores, so that no clearing is needed; the last one adds
/// the sum to its registers. Returns whether this one is the last. Deterministic: in the order of the pieces; a piece
/// waits only for pieces with smaller tickets (as NOTE [turns]). In deterministic calls head splits have the places
/// that they drew before their last steps (Producer::draw_place). One in the middle waits for the first, the last waits
/// for all, and these have only their last step left. No deadlock in either case, since the first one never waits.
template <typename Traits>
__device__ __forceinline__ bool join_pieces(const Params& params, const WorkTile& work_tile, uint32_t thread,
                                            float (&dk)[Traits::kDimQk / 2], float (&dv)[Traits::kDimV / 2]) {
  constexpr int kAccumTileVectors = (Traits::kDimQk + Traits::kDimV) / 8 * kConsumerThreads;
  constexpr uint32_t kPieceBarrier = 5;  // 1 to 4: see Consumer
  float4* accum_tile =
      reinterpret_cast<float4*>(params.accum_tiles) + int64_t{work_tile.accum_tile} * kAccumTileVectors + thread;
  int32_t* turn = params.split_semaphore + work_tile.accum_tile;
  const bool first = work_tile.head_split == 0;
  const bool last = work_tile.head_split == work_tile.num_head_splits - 1;
  if (!first) {
    if (thread == 0) {
      const int32_t needed = last || Traits::kDeterministic ? work_tile.head_split : 1;
      while (ptx::load_acquire(turn) % kPieceArrived < needed) {
      }
    }
    ptx::named_barrier_sync(kPieceBarrier, kConsumerThreads);
  }
  if (last) {
    visit_accum_tile<Traits>(accum_tile, dk, dv, [](const float4* at, float& a, float& b, float& c, float& d) {
      const float4 x = __ldcg(at);
      a += x.x, b += x.y, c += x.z, d += x.w;
    });
    if (thread == 0) *turn = 0;  // not needed; without a store here the compiler spills registers
    return true;
  }
  if (first) {
    visit_accum_tile<Traits>(accum_tile, dk, dv,
                             [](float4* at, float a, float b, float c, float d) { __stcg(at, float4{a, b, c, d}); });
  } else {
    visit_accum_tile<Traits>(accum_tile, dk, dv, [](float4* at, float a, float b, float c, float d) {
      ptx::reduce_add_f32x4(at, float4{a, b, c, d});
    });
  }
  __threadfence();
  ptx::named_barrier_sync(kPieceBarrier, kConsumerThreads);
  if (thread == 0) ptx::add_release(turn, 1);
  return false;
}

/// The common case of write_gradient: 16-bit rows of one tensor, of so many columns with kAnyDim.
template <typename Traits, int kSums>
__device__ __forceinline__ void write_plain(const float (&sums)[kSums], void* gradient, int64_t row_stride,
                                            int64_t head_stride, float scale, const WorkTile& work_tile, int first_row,
                                            int lane, int columns) {
  using Element = typename Traits::Element;
  const int rows = work_tile.row_end - work_tile.row_begin;
  Element* row = static_cast<Element*>(gradient) + work_tile.kv_head * head_stride +
                 (work_tile.row_begin + first_row) * row_stride + lane % 4 * 8;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int m = 0; m < kSums / 16; ++m) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (m * 4 + i) * 4 + r * 2;
        w[i] = pack_pair<Element>(sums[at] * scale, sums[at + 1] * scale);
      }
      transpose_quad(w, lane);
      if (Traits::kAnyDim && m * 32 + lane % 4 * 8 >= columns) continue;
      if (first_row + r * 8 < rows) *reinterpret_cast<uint4*>(row + m * 32) = {w[0], w[1], w[2], w[3]};
    }
    row += 8 * row_stride;
  }
}

template <typename Traits>
__device__ __forceinline__ void write_gradients(const Params& params, const WorkTile& work_tile, uint32_t thread,
                                                float (&dk)[Traits::kDimQk / 2], float (&dv)[Traits::kDimV / 2]) {
  if (work_tile.num_head_splits > 1 && !join_pieces<Traits>(params, work_tile, thread, dk, dv)) return;
  const int lane = static_cast<int>(thread % 32);
  const int first_row = static_cast<int>(thread / 32 * 16) + lane / 4;
  if (params.dkv_type == GradType::kInput && params.places == nullptr) {
    if constexpr (Traits::kMakesDv) {
      write_plain<Traits>(dv, params.dv, params.dv_row_stride, params.dv_head_stride, 1.0f, work_tile, first_row, lane,
                          params.head_dim_v);
    }
    if constexpr (Traits::kMakesDk) {
      write_plain<Traits>(dk, params.dk, params.dk_row_stride, params.dk_head_stride, params.softmax_scale, work_tile,
                          first_row, lane, params.head_dim);
    }
    return;
  }
  if constexpr (Traits::kMakesDv) write_gradient<Traits, false>(dv, 1.0f, params, work_tile, first_row, lane);
  if constexpr (Traits::kMakesDk) {
    write_gradient<Traits, true>(dk, params.softmax_scale, params, work_tile, first_row, lane);
  }
}

}  // namespace tangram::sm90::backward
