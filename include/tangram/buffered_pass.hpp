// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// BufferedPass: both passes of plans that move K/V alone, over tables that change from plan to plan under one captured
// CUDA graph.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tangram/attn_pass.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

/// The largest plans that there is room for. Alike on all ranks.
struct BufferedPassSpec {
  std::string label;
  std::vector<RecvTensor> recv_buffers;  ///< K and V: with as many rows as any rank's buffer may have
  std::vector<ReturnTensor> returns;     ///< of their gradients; none: no backward pass. Partial rows are not looked at
  int64_t own_rows = 0;                  ///< of a rank's shard
  int64_t sent_rows = 0;                 ///< that a rank sends, and whose gradients come back to it
  int64_t local_ranges = 0;              ///< of rows that are copied together: own ones, and those sent
  int64_t user_bytes = 0;                ///< of the caller's, which change with the tables
};

/// Tables of the rows that one rank moves by one plan.
struct BufferedTables {
  Exchange exchange;                   ///< of all rows; read backwards, of their gradients. Pieces by peer
  std::vector<LocalKvRange> own_rows;  ///< that begin() copies, as in DevicePassSpec
  int64_t recv_buffer_rows = 0;        ///< that come, or are copied or read elsewhere; those behind them become zeros
  std::vector<int64_t> return_begin;   ///< by rank: where in what comes back to it the rows of this rank begin
  std::vector<Range> left, absent;     ///< of the sums, as in DevicePass::leave_rows
};

/// An epoch is begin, and end or finish_reduce_and_end. What is put on a stream depends on the spec alone, not on the
/// tables: kernels read how much they have to do. So each epoch notifies all peers and waits for all, even if two ranks
/// exchange no rows. Kernels move the rows, before the kernels that need them; each pass has a slot of its own. Epochs
/// stand in one sequence with those of all other passes of the communicator. Not thread-safe.
class BufferedPass {
 public:
  virtual ~BufferedPass() = default;

  /// Rows behind the last one of a plan that are zeros, since kernels read whole tiles of keys.
  static constexpr int64_t kZeroRows = 256;

  /// Enqueues one copy of tables and of what `write` puts into user_bytes, behind all work that reads the old ones.
  /// Epochs put on `stream` later use the new ones, as do captured epochs that are replayed later. Their calls are of
  /// the facts that DeviceCommunicator::set_call_fingerprint named last. Allocates nothing, needs no rendezvous, and
  /// waits only where the copies of several earlier tables have not run. Throws InvalidArgument before anything is
  /// enqueued for tables beyond the spec, and for a stream that is being captured.
  virtual void set(const BufferedTables& tables, const std::function<void(std::byte*)>& write, void* stream) = 0;
  /// Where the user's bytes lie on the device, aligned to 256.
  virtual const std::byte* user_data() const = 0;

  /// Opens an epoch, copies and sends rows of `sources` (contiguous, one for each receive buffer). Later work on
  /// `stream` finds what peers have sent.
  virtual void begin(AttnPass pass, std::span<const ConstTensorView> sources, void* stream) = 0;
  /// Like begin(), beside work that follows on `stream`. Returns a cudaEvent_t: a stream must wait for it before the
  /// epoch goes on.
  virtual void* begin_beside(AttnPass pass, std::span<const ConstTensorView> sources, void* stream) = 0;
  virtual TensorView recv_buffers(AttnPass pass, int tensor) const = 0;
  /// Destinations of rows of return tensor `tensor`, by rank, in device memory; null for this rank.
  virtual void* const* return_areas(int tensor) const = 0;
  /// After the kernel that stored partial rows there; as in DevicePass.
  virtual void finish_reduce_and_end(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                     void* stream) = 0;
  virtual void end(void* stream) = 0;

  virtual int64_t device_bytes() const = 0;
};

}  // namespace tangram
