// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit elements in shared memory, row by row, copies into them, and products of a warp over them. Chunks of
// 16 bytes are swizzled so that neither ldmatrix nor stores of fragments have bank conflicts.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"

namespace tangram::sm80 {

template <int kColsT>
struct TileLayout {
  static constexpr int kCols = kColsT;
  static constexpr int kRowBytes = kCols * 2;
  static constexpr int kChunks = kCols / 8;
  static constexpr bool kWide = kCols % 64 == 0;
  static constexpr int kSpanBytes = kWide ? 128 : 64;  // inside which chunks change places
  static_assert(kCols % 32 == 0);

  static constexpr int bytes(int rows) { return rows * kRowBytes; }

  /// By what the chunk index of a row is changed (exclusive or). Eight rows from a multiple of 8 on have eight places
  /// for one chunk. Narrow rows begin alternately in two places of a span of 128 bytes.
  static __device__ __forceinline__ uint32_t change(uint32_t row) { return kWide ? row & 7 : row >> 1 & 3; }

  static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t chunk) {
    return row * kRowBytes + ((chunk ^ change(row)) << 4);
  }

  // Offset of a lane in a tile: it names a row of one of the four matrices of ldmatrix, which are two by two. If rows
  // of the tile are rows of A, or of B as it is multiplied (`transposed`), the second matrix is eight rows further;
  // else eight columns.
  static __device__ __forceinline__ uint32_t lane_rows_first(uint32_t lane) { return offset(lane % 16, lane / 16); }
  static __device__ __forceinline__ uint32_t lane_columns_first(uint32_t lane) {
    return offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
  /// From there to 16 rows `row16` and columns `column16` further: the changes of chunks are those of the lane's row.
  static __device__ __forceinline__ uint32_t advance(uint32_t address, int row16, int column16) {
    constexpr int kPerSpan = kSpanBytes / 32;
    return (address ^ static_cast<uint32_t>(column16 % kPerSpan * 32)) +
           static_cast<uint32_t>(row16 * 16 * kRowBytes + column16 / kPerSpan * kSpanBytes);
  }
};

/// index * stride for an index that is not negative, in two instructions.
__device__ __forceinline__ int64_t offset_of(int32_t index, int64_t stride) {
  return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(index)) * static_cast<uint64_t>(stride));
}

/// Starts copies of `kRows` rows to the tile at `to`; source(row) is an offset in elements from `from`. Rows have `dim`
/// elements; the rest, and rows with a negative offset, become zeros. All threads of the CTA.
template <typename Layout, int kRows, int kThreads, typename Element, typename Source>
__device__ __forceinline__ void copy_rows(uint32_t to, const Element* from, int dim, const Source& source) {
  constexpr int kCopies = kRows * Layout::kChunks, kRowsAtOnce = kThreads / Layout::kChunks;
  // Read where it is needed: registers would keep all that follows from it, and spill.
  const int thread = static_cast<int>(ptx::read_thread_index());
  if constexpr (kThreads % Layout::kChunks == 0 && kRowsAtOnce % 8 == 0 && kRows % kRowsAtOnce == 0) {
    // A thread has the same chunk in all its rows, and the same change of it.
    const int first_row = thread / Layout::kChunks, column = thread % Layout::kChunks * 8;
    to += Layout::offset(static_cast<uint32_t>(first_row), static_cast<uint32_t>(column / 8));
    const bool is_behind = column >= dim;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const int64_t at = source(first_row + i * kRowsAtOnce);
      const bool is_zero = at < 0 || is_behind;
      ptx::cp_async_16(to + i * kRowsAtOnce * Layout::kRowBytes, is_zero ? from : from + at + column, is_zero);
    }
  } else {
#pragma unroll
    for (int first = 0; first < kCopies; first += kThreads) {
      const int i = first + thread;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
      const int64_t at = source(row);
      const bool is_zero = at < 0 || chunk * 8 >= dim;
      ptx::cp_async_16(to + Layout::offset(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk)),
                       is_zero ? from : from + at + chunk * 8, is_zero);
    }
  }
}

/// Likewise for rows one behind the other, `row_stride` elements apart, from `first_row` on: zeros in rows for which
/// is_there(row) is false. Takes a third of the instructions of a copy of rows from anywhere.
template <typename Layout, int kRows, int kThreads, typename Element, typename IsThere>
__device__ __forceinline__ void copy_row_range(uint32_t to, const Element* first_row, int64_t row_stride, int dim,
                                               const IsThere& is_there) {
  constexpr int kCopies = kRows * Layout::kChunks, kRowsAtOnce = kThreads / Layout::kChunks;
  const int thread = static_cast<int>(ptx::read_thread_index());  // as above
  if constexpr (kThreads % Layout::kChunks == 0 && kRowsAtOnce % 8 == 0 && kRows % kRowsAtOnce == 0) {
    const int row = thread / Layout::kChunks, column = thread % Layout::kChunks * 8;
    to += Layout::offset(static_cast<uint32_t>(row), static_cast<uint32_t>(column / 8));
    const Element* from = first_row + offset_of(row, row_stride) + column;
    const bool is_behind = column >= dim;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      ptx::cp_async_16(to + i * kRowsAtOnce * Layout::kRowBytes, from, is_behind || !is_there(row + i * kRowsAtOnce));
      from += kRowsAtOnce * row_stride;
    }
  } else {
#pragma unroll
    for (int first = 0; first < kCopies; first += kThreads) {
      const int i = first + thread;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
      ptx::cp_async_16(to + Layout::offset(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk)),
                       first_row + offset_of(row, row_stride) + chunk * 8, chunk * 8 >= dim || !is_there(row));
    }
  }
}

/// sums[m] += A B over kK16 times 16, for kM times 16 rows and kN16 times 16 columns. load_a(a, m, k16) and
/// load_b(b, k16, n16) load operands of 16 by 16.
template <typename Element, int kM, int kN16, int kK16, typename LoadA, typename LoadB>
__device__ __forceinline__ void multiply(float (&sums)[kM][kN16 * 8], const LoadA& load_a, const LoadB& load_b) {
#pragma unroll
  for (int k16 = 0; k16 < kK16; ++k16) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_a(a[m], m, k16);
#pragma unroll
    for (int n16 = 0; n16 < kN16; ++n16) {
      uint32_t b[4];
      load_b(b, k16, n16);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma_m16n8k16<Element>(&sums[m][n16 * 8], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(&sums[m][n16 * 8 + 4], a[m], b[2], b[3]);
      }
    }
  }
}

template <int kM, int kCount>
__device__ __forceinline__ void clear(float (&sums)[kM][kCount]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[m][i] = 0.0f;
  }
}

}  // namespace tangram::sm80
