// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Communicator: how the ranks of a context-parallel group exchange rows. One interface, several transports.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tangram/call_fingerprint.hpp"
#include "tangram/exchange.hpp"
#include "tangram/tensor.hpp"

namespace tangram {

/// kAvg divides by the number of contributions, the owner's own counted. kMax is for all_reduce only.
enum class ReduceOp : int { kSum = 0, kAvg = 1, kMax = 2 };

/// One tensor of a group_cast: rows go from `src` (the shard) to `dst` (the buffer).
struct CastTensor {
  ConstTensorView src;
  TensorView dst;
};

/// One tensor of a group_reduce: rows of `partial` (in the buffer) are added into `owned` (the shard), which holds the
/// owner's own contribution. Equal dtypes; sums are in float32 and rounded once.
struct ReduceTensor {
  ConstTensorView partial;
  TensorView owned;
};

/// Operands of a group_reduce weighted by lse: `out = sum_i exp(lse_i - lse) out_i`, `lse = logsumexp_i(lse_i)`.
struct LseReduceTensors {
  ConstTensorView partial_out;         // [rows, heads, dim] float32
  const float* partial_lse = nullptr;  // [rows, heads]
  TensorView out;                      // the owner's own partial result, becomes the merged one
  float* lse = nullptr;
};

/// Rows and bytes that a transport really moved, on this rank, since construction or `reset_counters`. Rows are tensor
/// rows: a token whose K and V both move counts twice. Control messages do not count.
struct TrafficCounters {
  int64_t rows_sent = 0;
  int64_t rows_received = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t operations = 0;
};

/// When an operation was called, when its rows began to move on this rank (all ranks had arrived), and when it was
/// done. Seconds on the steady clock, comparable between the ranks of one host.
struct CommTimes {
  double posted_s = 0;
  double started_s = 0;
  double finished_s = 0;
};

/// An operation under way. Destroying a handle waits for it, swallowing errors: call `wait` to see them.
class CommHandle {
 public:
  virtual ~CommHandle() = default;
  /// Returns when the operation is done on this rank: received rows may be read, sent rows overwritten. Throws
  /// InvalidArgument if the ranks' arguments do not fit together: nothing was sent, and the communicator stays usable.
  /// Throws Timeout, naming peer and operation, and CommError if a peer gave up. A second call repeats the outcome.
  virtual void wait() = 0;
  /// Valid once `wait` has returned.
  virtual CommTimes times() const = 0;
};

/// The collectives of one group. Every rank makes the same calls in the same order, from one thread at a time. Each
/// call validates its arguments on all ranks before anything is sent. Calls are asynchronous: buffers stay untouched
/// until the handle is waited for. The tables are copied. `label` names the operation in errors and traces.
///
/// NOTE [operation order]: operations take effect on a rank in call order, so that several group_reduces under way may
/// add into the same owned rows.
///
/// After Timeout or CommError the communicator is broken: each later call throws the same error.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// `local`, `mpi`, ...
  virtual std::string_view name() const = 0;

  /// Every row range of `src` goes to exactly the ranks that need it. See Exchange.
  virtual std::unique_ptr<CommHandle> group_cast(const Exchange& exchange, std::span<const CastTensor> tensors,
                                                 std::string_view label) = 0;
  /// The reverse: partial rows of all ranks are reduced into their owner's. The order is that of ranks, so that results
  /// do not depend on timing. kSum or kAvg.
  virtual std::unique_ptr<CommHandle> group_reduce(const Exchange& exchange, std::span<const ReduceTensor> tensors,
                                                   ReduceOp op, std::string_view label) = 0;
  virtual std::unique_ptr<CommHandle> group_reduce_lse(const Exchange& exchange, const LseReduceTensors& tensors,
                                                       std::string_view label) = 0;
  /// `send` holds rows for rank 0, 1, ... one after the other, `send_rows[r]` of them; `recv` likewise.
  virtual std::unique_ptr<CommHandle> all_to_all_v(const ConstTensorView& send, std::span<const int64_t> send_rows,
                                                   const TensorView& recv, std::span<const int64_t> recv_rows,
                                                   std::string_view label) = 0;
  /// Reduces `values` in place over all ranks, in rank order.
  virtual void all_reduce(std::span<float> values, ReduceOp op, std::string_view label) = 0;
  virtual void barrier(std::string_view label) = 0;
  /// Throws InvalidArgument on every rank, naming `what` and the ranks that differ, unless all passed the same value.
  /// Called with the hash of mask and config before the first transfer.
  virtual void require_agreement(uint64_t value, std::string_view what) = 0;

  /// Sets the call to which the following operations belong. In each operation ranks that have set one compare it. If
  /// they differ, every rank throws InvalidArgument that names the difference, before anything else is compared or
  /// sent.
  virtual void set_call_fingerprint(const CallFingerprint& fingerprint) = 0;

  /// Takes this rank's part in the group's next operation, whichever it is, by refusing it: it throws InvalidArgument
  /// with `reason` on the other ranks. How a rank that cannot accept its own arguments tells its peers. Returns at
  /// once.
  virtual void refuse(std::string_view reason) = 0;
  /// Gives up: whatever other ranks wait for, now or later, throws CommError with this rank and `reason`.
  virtual void abort(std::string_view reason) noexcept = 0;

  virtual TrafficCounters counters() const = 0;
  virtual void reset_counters() = 0;
};

}  // namespace tangram
