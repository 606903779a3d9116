// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The warpgroup that gathers rows of K and V, one by one, and the query heads of a work tile.
#pragma once

#include "attn/sm90/tokens/traits.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::tokens {

/// Which list and which query heads a work tile is of.
struct WorkTile {
  int32_t kv_head, row, first_head, num_heads;

  __device__ __forceinline__ WorkTile(const Params& params, int32_t index) {
    const int32_t list = index / params.parts, part = index - list * params.parts;
    kv_head = list / params.seqlen_q;
    row = list - kv_head * params.seqlen_q;
    const int32_t size = (params.heads_per_kv + params.parts - 1) / params.parts;
    first_head = kv_head * params.heads_per_kv + part * size;
    num_heads = min(size, params.heads_per_kv - part * size);
  }
};

/// Walks the work tiles of a CTA that see keys. The next list is requested a work tile ahead.
struct WorkTileCursor {
  const Params& params;
  int32_t index;
  int32_t count = 0;  // entries of the list of work tile `index` to walk
  int32_t ahead;      // entries of the work tile behind it

  __device__ explicit WorkTileCursor(const Params& params_in)
      : params(params_in), index(static_cast<int32_t>(blockIdx.x) - static_cast<int32_t>(gridDim.x)) {
    ahead = count_of(index + static_cast<int32_t>(gridDim.x));
  }

  __device__ __forceinline__ int32_t count_of(int32_t work_tile) const {
    return work_tile < params.num_work_tiles ? __ldg(params.counts + work_tile / params.parts) : -1;
  }
  /// The next work tile that sees keys; visits those on the way that see none. False when there is none left.
  template <typename Visit>
  __device__ __forceinline__ bool find(const Visit& visit) {
#pragma unroll 1
    for (;;) {
      index += static_cast<int32_t>(gridDim.x);
      count = __shfl_sync(0xffffffff, ahead, 0);
      ahead = count_of(index + static_cast<int32_t>(gridDim.x));
      if (count != 0) return count > 0;
      visit(index);
    }
  }
};

/// Reads the lists of the work tiles of a CTA, step by step, some steps before their keys are copied: lists come from
/// far.
template <int kKeys>
struct ListReader {
  static_assert(kKeys == 64);

  const Params& params;
  WorkTileCursor cursor;
  const int32_t* list = nullptr;
  int32_t begin = 0;
  bool more;

  __device__ explicit ListReader(const Params& params_in) : params(params_in), cursor(params_in) { next_list(); }

  __device__ __forceinline__ void next_list() {
    begin = 0;
    more = cursor.find([](int32_t) {});
    if (!more) return;
    const WorkTile work_tile(params, cursor.index);
    list = params.indices + (int64_t{work_tile.row} * params.num_heads_kv + work_tile.kv_head) * params.topk;
  }

  /// The entries of a step, of which every lane has two: -1 behind the end.
  __device__ __forceinline__ void read(int32_t (&entries)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t at = begin + static_cast<int32_t>(threadIdx.x % 32) + 32 * i;
      entries[i] = more && at < cursor.count ? __ldg(list + at) : -1;
    }
    begin += kKeys;
    if (more && begin >= cursor.count) next_list();
  }
};

template <typename Traits>
struct Producer {
  using Element = typename Traits::Element;
  static constexpr int kRowsOfThread = Traits::kRowsOfThread;
  static constexpr int kStepsAhead = 2;  // of lists

  const Params& params;
  Smem<Traits>& smem;
  const uint32_t thread;
  uint32_t step = 0;             // in all work tiles
  uint32_t handed = 0;           // of these, how many consumers know of
  uint32_t work_tiles = 0;       // of work tiles that see keys
  uint32_t work_tile_begin = 0;  // the first step of the last one
  int32_t keys[kRowsOfThread];

  __device__ Producer(const Params& params_in, Smem<Traits>& smem_in)
      : params(params_in), smem(smem_in), thread(threadIdx.x) {}

  /// Which 16 bytes of a row, and which row of eight, this thread copies.
  __device__ __forceinline__ uint32_t chunk() const { return thread % Traits::kChunks; }
  __device__ __forceinline__ uint32_t first_row() const { return thread / Traits::kChunks; }
  /// Where they go in a tile.
  template <int kPanelBytes>
  __device__ __forceinline__ uint32_t place() const {
    return chunk() / 8 * kPanelBytes + first_row() * kPanelRowBytes + ((chunk() % 8 ^ first_row()) << 4);
  }

  /// The keys whose rows this thread copies, and a note of the slots that have none.
  __device__ __forceinline__ void take_keys(const int32_t (&entries)[2], uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      keys[i] = __shfl_sync(0xffffffff, entries[i / 4], static_cast<int>(first_row()) + i % 4 * Traits::kRowsAtOnce);
    }
    const uint2 missing{__ballot_sync(0xffffffff, entries[0] < 0), __ballot_sync(0xffffffff, entries[1] < 0)};
    if (thread == 0) smem.missing[stage] = missing;
  }

  __device__ __forceinline__ void copy_q(const WorkTile& work_tile) {
    const uint32_t to = ptx::smem_address(smem.q) + place<Traits::kPanelBytesQ>();
    const Element* from = static_cast<const Element*>(params.q) + work_tile.row * params.q_row_stride + chunk() * 8;
#pragma unroll 2
    for (int i = 0; i < Traits::kRows / Traits::kRowsAtOnce; ++i) {
      const int32_t head = static_cast<int32_t>(first_row()) + i * Traits::kRowsAtOnce;
      const bool none = head >= work_tile.num_heads;
      ptx::cp_async_16(to + i * kSwizzleBytes, from + (none ? 0 : work_tile.first_head + head) * params.q_head_stride,
                       none);
    }
  }

  /// Slots without a key become zeros: what is not selected is not read.
  __device__ __forceinline__ void copy_rows(unsigned char* tile, const void* rows, int64_t row_stride, int64_t offset) {
    const uint32_t to = ptx::smem_address(tile) + place<Traits::kPanelBytesK>();
    const Element* from = static_cast<const Element*>(rows) + offset + chunk() * 8;
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      ptx::cp_async_16(to + i * kSwizzleBytes, from + max(keys[i], 0) * row_stride, keys[i] < 0);
    }
  }

  /// Hands over the first step that is not handed over yet; its copies have ended.
  __device__ __forceinline__ void hand_over() {
    ptx::fence_proxy_async();
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.full[handed % Traits::kStages]);
    ++handed;
  }
  __device__ __forceinline__ void hand_all_over() {
    ptx::cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < Traits::kLag; ++i) {
      if (handed < step) hand_over();
    }
  }

  __device__ __forceinline__ void begin_work_tile(const WorkTile& work_tile) {
    // Who waits for Q to be free must not hold back the only step of the work tile that has it.
    if (handed <= work_tile_begin) hand_all_over();
    ptx::mbarrier_wait(&smem.q_empty, work_tiles % 2 ^ 1);
    copy_q(work_tile);
    work_tile_begin = step;
    ++work_tiles;
  }

  __device__ __forceinline__ void copy_step(const WorkTile& work_tile, const int32_t (&entries)[2]) {
    const uint32_t stage = step % Traits::kStages;
    ptx::mbarrier_wait(&smem.empty[stage], step / Traits::kStages % 2 ^ 1);
    take_keys(entries, stage);
    copy_rows(smem.k[stage], params.k, params.k_row_stride, work_tile.kv_head * params.k_head_stride);
    copy_rows(smem.v[stage], params.v, params.v_row_stride, work_tile.kv_head * params.v_head_stride);
    ptx::cp_async_commit();
    // A step is handed over once kLag further ones are on their way. Consumers give a stage back once they have seen
    // the next one.
    static_assert(Traits::kStages >= Traits::kLag + 2);
    ptx::cp_async_wait<Traits::kLag>();
    if (handed + Traits::kLag <= step) hand_over();
    ++step;
  }

  __device__ __forceinline__ void run() {
    WorkTileCursor cursor(params);
    ListReader<Traits::kKeys> reader(params);
    int32_t entries[kStepsAhead + 1][2];
#pragma unroll
    for (int i = 0; i < kStepsAhead; ++i) reader.read(entries[i]);
#pragma unroll 1
    while (cursor.find([](int32_t) {})) {
      const WorkTile work_tile(params, cursor.index);
      begin_work_tile(work_tile);
#pragma unroll 1
      for (int32_t begin = 0; begin < cursor.count; begin += Traits::kKeys) {
        reader.read(entries[kStepsAhead]);
        copy_step(work_tile, entries[0]);
#pragma unroll
        for (int i = 0; i < kStepsAhead; ++i) {
          entries[i][0] = entries[i + 1][0], entries[i][1] = entries[i + 1][1];
        }
      }
    }
    hand_all_over();
  }
};

}  // namespace tangram::sm90::tokens
