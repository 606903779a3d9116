// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ProgressCommunicator: the Communicator interface over a Transport that executes one operation at a time. A thread of
// the rank's own executes them in call order, which is what makes calls asynchronous.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/operation.hpp"
#include "core/fork.hpp"
#include "tangram/communicator.hpp"

namespace tangram::comm {

/// Moves the rows of one rank. `execute` is called on the progress thread, `abort` from any.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Caller caller() const = 0;
  virtual std::string_view name() const = 0;
  /// Agrees with the peers on the operation, moves its rows, and returns when this rank's part is done. Sets
  /// `started_s` when all ranks have arrived. Throws InvalidArgument on every rank if they disagree, Timeout or
  /// CommError if a peer does not come or gives up. After that no peer touches this rank's memory.
  virtual void execute(Operation& operation, double& started_s) = 0;
  /// Makes the peers' and the own waits throw CommError.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Whether `idle` wants to be called now and then between operations, so that what is still under way inside a
  /// library gets on.
  virtual bool needs_idle() const { return false; }
  virtual void idle() {}
};

/// NOTE [refused calls]: a call, from one set_call_fingerprint to the next, may post operations before it has waited
/// for those before them. If ranks disagree about a call, each drops what it has posted of it beyond that. Otherwise a
/// rank that had posted more would stay ahead of the others.
///
/// NOTE [after a fork]: a child has a copy without the thread, over the parent's connections. Its calls throw CommError
/// before anything is sent, and owners of the copy leave it to the parent (leave_to_parent).
class ProgressCommunicator final : public Communicator {
 public:
  explicit ProgressCommunicator(std::unique_ptr<Transport> transport);
  /// Ends when all calls made so far are done.
  ~ProgressCommunicator() override;

  int rank() const override { return caller_.rank; }
  int size() const override { return caller_.size; }
  std::string_view name() const override { return transport_->name(); }

  std::unique_ptr<CommHandle> group_cast(const Exchange& exchange, std::span<const CastTensor> tensors,
                                         std::string_view label) override;
  std::unique_ptr<CommHandle> group_reduce(const Exchange& exchange, std::span<const ReduceTensor> tensors, ReduceOp op,
                                           std::string_view label) override;
  std::unique_ptr<CommHandle> group_reduce_lse(const Exchange& exchange, const LseReduceTensors& tensors,
                                               std::string_view label) override;
  std::unique_ptr<CommHandle> all_to_all_v(const ConstTensorView& send, std::span<const int64_t> send_rows,
                                           const TensorView& recv, std::span<const int64_t> recv_rows,
                                           std::string_view label) override;
  void all_reduce(std::span<float> values, ReduceOp op, std::string_view label) override;
  void barrier(std::string_view label) override;
  void require_agreement(uint64_t value, std::string_view what) override;
  void set_call_fingerprint(const CallFingerprint& fingerprint) override;
  void refuse(std::string_view reason) override;
  void abort(std::string_view reason) noexcept override;
  TrafficCounters counters() const override;
  void reset_counters() override;

  const Transport& transport() const { return *transport_; }

  /// Returns when all calls made so far are done.
  void drain();
  /// Ends the progress thread when all calls made so far are done. No call may follow.
  void stop();

 private:
  class Call;
  class Handle;

  /// Makes the operation and queues it; when its arguments do not fit, refuses on this rank's behalf and throws.
  template <class Make>
  std::unique_ptr<CommHandle> post(Make make);
  std::shared_ptr<Call> enqueue(Operation operation);
  void run();
  /// `hear`: as in Call::wait_done.
  void wait_until_idle(void (*hear)());
  void count(const Operation& operation);

  void require_own_process() const;

  const MadeHere made_here_;
  std::unique_ptr<Transport> transport_;
  Caller caller_;
  CallFingerprint fingerprint_;  // of the calling thread, as the next two
  uint64_t num_calls_ = 0;
  uint64_t call_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Call>> queue_;  // the front one is being executed
  bool stopping_ = false;
  uint64_t refused_call_ = 0;
  std::exception_ptr refusal_;  // of that call
  std::exception_ptr broken_;   // Timeout or CommError, from then on everybody's outcome
  TrafficCounters counters_;
  std::thread thread_;  // last: it uses all of the above
};

/// Seconds on the steady clock.
double steady_seconds();

}  // namespace tangram::comm
