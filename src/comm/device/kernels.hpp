// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The small kernels of the device transports: opening and closing epochs, waiting, moving short ranges, merging.
// Pointers are device memory unless said otherwise; every launch is on `stream` and throws CudaError when refused.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "comm/device/chunk.hpp"
#include "comm/device/opened_pass.hpp"
#include "cuda/wait_context.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dtype.hpp"

namespace tangram::comm {

/// Entries of the ring in which a rank sees which passes a peer opened last.
inline constexpr int kOrderLength = 64;

/// Flags of one kind: `[..., size]` words on every rank, of which entry `idx + r` on rank p is written by rank r.
struct FlagTable {
  uint64_t* const* ranks = nullptr;  // [size] where each rank's words begin
  int64_t idx = 0;                   // first of the entries that are meant
};

/// One credit: which epoch used a buffer last, and up to which epoch each peer has given its own back.
struct CreditParams {
  uint64_t* last_epoch = nullptr;  // null: no credit
  FlagTable released;
  uint64_t peers = 0;  // bits: who must have given back before this rank may send
};

struct EpochParams {
  const cuda::WaitContext* context = nullptr;
  int rank = 0;
  int size = 1;
  int pass = 0;
  uint32_t tag = 0;             // of the call
  uint64_t* counter = nullptr;  // epochs opened so far by this rank
  FlagTable order;              // rings: entry (r * kOrderLength + e % kOrderLength) holds a packed OpenedPass
  CreditParams recv_buffers;
  CreditParams returns;
  const uint32_t* tables_tag = nullptr;  // of tables that change under captured epochs: mixed into `tag`; null: none
};

/// A word that reaches a value when the own transfers have ended (StreamWord); null: no wait for them is needed.
struct SentWord {
  const uint64_t* word = nullptr;
  uint64_t value = 0;
};

/// Closes an epoch: gives the buffers back to the peers, and looks once more whether they opened the same passes. Ends
/// when the own transfers have. `dependent`, here and below: may start before the kernel in front of it has ended, for
/// which it then waits itself.
void launch_end(const EpochParams& params, const SentWord& sent, bool dependent, cudaStream_t stream);

struct MoveParams {
  const Chunk* chunks = nullptr;
  int count = 0;
  const void* sources[4] = {};
  char* const* bases = nullptr;
  const int32_t* range = nullptr;  // [2]: which of the chunks, of which there are at most `count`; null: the first
};
/// Opens an epoch: counts, tells the peers the pass and call, waits for the credits, and writes the epoch into their
/// cells. Also copies `own`, with as many thread blocks as fit at once.
void launch_begin(const EpochParams& params, const MoveParams& own, bool dependent, cudaStream_t stream);

struct WaitParams {
  const cuda::WaitContext* context = nullptr;
  const uint64_t* flags = nullptr;  // own words, [stages, size]
  const uint64_t* epoch = nullptr;
  const uint32_t* list = nullptr;  // stage << 8 | peer
  int count = 0;
  int size = 1;
  int pass = 0;
  cuda::WaitKind kind = cuda::WaitKind::kReadyFlag;
  FlagTable signals;                      // flags [stages, size] of this kind on the peers
  const uint32_t* signal_list = nullptr;  // stage << 8 | peer
  int num_signals = 0;
};
/// First writes the epoch to entry signals.idx + stage * size + rank of the peers in signal_list, after all that was
/// enqueued before. Ends when all flags of the list have reached the epoch, or the group has failed.
void launch_wait(const WaitParams& params, cudaStream_t stream);

struct ExchangeParams {
  EpochParams epoch;
  MoveParams own, sent;      // with ranges: `sent` to peers
  WaitParams wait;           // with the signals
  int32_t* state = nullptr;  // [2], device memory that is zero, and is again afterwards
};
/// Does the work of launch_begin(epoch, own), launch_move(sent) and launch_wait(wait) in one kernel.
void launch_exchange(const ExchangeParams& params, cudaStream_t stream);

/// Writes the epoch to entry flags.idx + rank of the peers given as bits, after all that was enqueued before.
void launch_signal(const FlagTable& flags, const uint64_t* epoch, uint64_t peers, int rank, cudaStream_t stream);

/// Copies with `num_blocks` thread blocks.
void launch_move(const MoveParams& params, int num_blocks, cudaStream_t stream);
/// Copies from float32 to bfloat16: `from` and `num_bytes` count bytes of the bfloat16, the float32 being twice as
/// many.
void launch_convert(const MoveParams& params, int num_blocks, cudaStream_t stream);

struct MergeParams {
  const void* own = nullptr;
  const void* returned = nullptr;  // the return area
  void* sums = nullptr;
  DType own_dtype = DType::kFloat32;
  DType returned_dtype = DType::kFloat32;
  DType sums_dtype = DType::kFloat32;
  const int32_t* begin = nullptr;  // MergeTable of the merged rows
  const int32_t* entries = nullptr;
  const int32_t* num_before = nullptr;  // complemented (~) for rows of which `own` holds nothing
  const int32_t* chosen = nullptr;      // [rows]: which rows are merged; null: all
  int64_t rows = 0;
  int row_elements = 0;               // a multiple of 8
  const int32_t* num_rows = nullptr;  // how many rows of the tables there are, `rows` at most; null: all
};
/// Merge parameters for all owned rows of a return tensor, without the tables.
inline MergeParams merge_params(const ReturnTensor& shape, const ConstTensorView& own, const void* returned,
                                const TensorView& sums) {
  return {.own = own.data,
          .returned = returned,
          .sums = sums.data,
          .own_dtype = own.dtype,
          .returned_dtype = shape.reduce_dtype,
          .sums_dtype = sums.dtype,
          .rows = shape.owned_rows,
          .row_elements = shape.heads * shape.dim};
}
/// At most this many tensors in one launch.
inline constexpr int kMaxMerged = 4;
/// Parameters of the merge kernel.
struct MergeJobs {
  MergeParams tensors[kMaxMerged];
  WaitParams wait;    // in front of all, by every block; signals by the first
  EpochParams epoch;  // closed by the last block,
  SentWord sent;
  uint32_t* num_ended = nullptr;  // unless null
};
/// After what launch_wait(wait) does: by the same kernel where few rows are merged.
void launch_merge(std::span<const MergeParams> tensors, const WaitParams& wait, cudaStream_t stream);
/// Like launch_merge; the last thread block to end also does the work of launch_end(). `num_ended`: a word of device
/// memory that is zero, and is again afterwards.
void launch_merge_and_end(std::span<const MergeParams> tensors, const WaitParams& wait, const EpochParams& epoch,
                          const SentWord& sent, uint32_t* num_ended, bool dependent, cudaStream_t stream);

struct AllReduceParams {
  const cuda::WaitContext* context = nullptr;
  int rank = 0;
  int size = 1;
  uint64_t* counter = nullptr;
  FlagTable flags;
  float* const* inboxes = nullptr;  // [size] -> [2, size, kMaxReduceValues]
  float* values = nullptr;
  int count = 0;
  bool is_max = false;
};
void launch_all_reduce(const AllReduceParams& params, cudaStream_t stream);

/// Shows hosts that the stream begins an operation: `word` is a packed WaitFailure without detail, `counter` device
/// memory that counts operations.
void launch_operation_begins(cuda::ControlBlockRow* row, uint64_t* counter, uint64_t word, cudaStream_t stream);
void launch_operation_ends(cuda::ControlBlockRow* row, cudaStream_t stream);

/// `values[i]` becomes the sum or the largest of all ranks' values: the own ones, in the place of `rank`, and those of
/// `others` [size, count].
void launch_combine(const float* others, float* values, int count, int rank, int size, bool is_max,
                    cudaStream_t stream);

/// Loads all of the above onto the current device, so that no first launch waits for kernels that wait for it.
void load_epoch_kernels();
void load_merge_kernels();
void load_group_kernels();
inline void load_kernels() {
  load_epoch_kernels();
  load_merge_kernels();
  load_group_kernels();
}

}  // namespace tangram::comm
