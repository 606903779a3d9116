// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/progress_communicator.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "core/interrupt.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// How long an idle progress thread sleeps between calls of Transport::idle.
constexpr std::chrono::milliseconds kIdleInterval{2};

[[noreturn]] void throw_inherited(const MadeHere& made_here) {
  throw CommError(fmt::format(
      "Communicator: a child of a fork must not use a group of its parent, whose threads it has not; only the "
      "process that made the group can (got process={}, made by process={}): call there, start processes by "
      "'spawn' or 'forkserver', or make a group of the child's own",
      ::getpid(), made_here.process()));
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// An operation and its outcome, shared by the queue and the handle.
class ProgressCommunicator::Call {
 public:
  Call(Operation operation, Transport& transport) : operation_(std::move(operation)), transport_(transport) {
    times_.posted_s = steady_seconds();
  }

  Operation& operation() { return operation_; }
  double& started_s() { return times_.started_s; }

  void finish(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    times_.finished_s = steady_seconds();
    error_ = std::move(error);
    done_ = true;
    changed_.notify_all();
  }

  /// `hear` is check_interrupt, or postpone_interrupt where nothing may be thrown. What an interrupt leaves under way
  /// ends soon.
  void wait_done(void (*hear)()) {
    if (made_here_.is_inherited()) return;  // the thread that would end it is the parent's
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kInterruptInterval, [this] { return done_; })) {
      lock.unlock();
      const OnInterrupt give_up([this] { transport_.abort(kInterruptReason); });
      hear();
      lock.lock();
    }
  }
  void wait() {
    if (made_here_.is_inherited()) throw_inherited(made_here_);
    wait_done(check_interrupt);
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  CommTimes times() {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  const MadeHere made_here_;
  Operation operation_;
  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  CommTimes times_;
  std::exception_ptr error_;
  bool done_ = false;
};

class ProgressCommunicator::Handle final : public CommHandle {
 public:
  explicit Handle(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  ~Handle() override { call_->wait_done(postpone_interrupt); }
  void wait() override { call_->wait(); }
  CommTimes times() const override { return call_->times(); }

 private:
  std::shared_ptr<Call> call_;
};

ProgressCommunicator::ProgressCommunicator(std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)), caller_(transport_->caller()), thread_([this] { run(); }) {}

ProgressCommunicator::~ProgressCommunicator() { stop(); }

void ProgressCommunicator::require_own_process() const {
  if (made_here_.is_inherited()) throw_inherited(made_here_);
}

void ProgressCommunicator::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  wait_until_idle(postpone_interrupt);
  if (thread_.joinable()) thread_.join();
}

void ProgressCommunicator::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto has_news = [this] { return !queue_.empty() || stopping_; };
    if (!transport_->needs_idle()) changed_.wait(lock, has_news);
    while (!has_news()) {
      lock.unlock();
      transport_->idle();
      lock.lock();
      changed_.wait_for(lock, kIdleInterval, has_news);
    }
    if (queue_.empty()) {
      lock.unlock();
      transport_->idle();  // an abort may have come since
      return;
    }
    const std::shared_ptr<Call> call = queue_.front();
    const uint64_t number = call->operation().call;
    std::exception_ptr error = broken_;
    if (error == nullptr && number != 0 && number == refused_call_) error = refusal_;
    lock.unlock();
    if (error == nullptr) {
      try {
        transport_->execute(call->operation(), call->started_s());
        count(call->operation());
      } catch (const InvalidArgument&) {
        error = std::current_exception();  // nothing was sent, the next call may do better
        refused_call_ = number;
        refusal_ = error;
      } catch (...) {
        error = std::current_exception();
        const std::lock_guard guard(mutex_);
        broken_ = error;
      }
    }
    call->finish(std::move(error));
    lock.lock();
    queue_.pop_front();
    changed_.notify_all();
  }
}

void ProgressCommunicator::count(const Operation& operation) {
  if (operation.kind() == OpKind::kAllReduce) return;
  TrafficCounters moved;
  moved.operations = 1;
  for (const RowCopy& copy : operation.outgoing) {
    if (copy.peer == caller_.rank) continue;
    for (const ConstTensorView& view : operation.sources) {
      moved.rows_sent += copy.rows.size();
      moved.bytes_sent += copy.rows.size() * view.row_bytes();
    }
  }
  for (const RowCopy& copy : operation.incoming) {
    if (copy.peer == caller_.rank) continue;
    for (const TensorView& view : operation.targets) {
      moved.rows_received += copy.rows.size();
      moved.bytes_received += copy.rows.size() * view.row_bytes();
    }
  }
  const std::lock_guard lock(mutex_);
  counters_.operations += moved.operations;
  counters_.rows_sent += moved.rows_sent;
  counters_.rows_received += moved.rows_received;
  counters_.bytes_sent += moved.bytes_sent;
  counters_.bytes_received += moved.bytes_received;
}

std::shared_ptr<ProgressCommunicator::Call> ProgressCommunicator::enqueue(Operation operation) {
  auto call = std::make_shared<Call>(std::move(operation), *transport_);
  require_own_process();
  const std::lock_guard lock(mutex_);
  if (broken_ != nullptr) std::rethrow_exception(broken_);
  queue_.push_back(call);
  changed_.notify_all();
  return call;
}

template <class Make>
std::unique_ptr<CommHandle> ProgressCommunicator::post(Make make) {
  Operation operation;
  try {
    operation = make();
  } catch (const InvalidArgument& error) {
    refuse(error.what());
    throw;
  }
  operation.signature.fingerprint = fingerprint_;
  operation.call = call_;
  return std::make_unique<Handle>(enqueue(std::move(operation)));
}

std::unique_ptr<CommHandle> ProgressCommunicator::group_cast(const Exchange& exchange,
                                                             std::span<const CastTensor> tensors,
                                                             std::string_view label) {
  return post([&] { return make_group_cast(caller_, exchange, tensors, label); });
}

std::unique_ptr<CommHandle> ProgressCommunicator::group_reduce(const Exchange& exchange,
                                                               std::span<const ReduceTensor> tensors, ReduceOp op,
                                                               std::string_view label) {
  return post([&] { return make_group_reduce(caller_, exchange, tensors, op, label); });
}

std::unique_ptr<CommHandle> ProgressCommunicator::group_reduce_lse(const Exchange& exchange,
                                                                   const LseReduceTensors& tensors,
                                                                   std::string_view label) {
  return post([&] { return make_group_reduce_lse(caller_, exchange, tensors, label); });
}

std::unique_ptr<CommHandle> ProgressCommunicator::all_to_all_v(const ConstTensorView& send,
                                                               std::span<const int64_t> send_rows,
                                                               const TensorView& recv,
                                                               std::span<const int64_t> recv_rows,
                                                               std::string_view label) {
  return post([&] { return make_all_to_all_v(caller_, send, send_rows, recv, recv_rows, label); });
}

void ProgressCommunicator::all_reduce(std::span<float> values, ReduceOp op, std::string_view label) {
  post([&] { return make_all_reduce(caller_, values, op, label); })->wait();
}

void ProgressCommunicator::barrier(std::string_view label) {
  post([&] { return make_barrier(label); })->wait();
}

void ProgressCommunicator::require_agreement(uint64_t value, std::string_view what) {
  post([&] { return make_agreement(value, what); })->wait();
}

void ProgressCommunicator::set_call_fingerprint(const CallFingerprint& fingerprint) {
  fingerprint_ = fingerprint;
  call_ = fingerprint.given == 0 ? 0 : ++num_calls_;
}

void ProgressCommunicator::refuse(std::string_view reason) { enqueue(make_refusal(reason)); }

void ProgressCommunicator::abort(std::string_view reason) noexcept {
  if (!made_here_.is_inherited()) transport_->abort(reason);
}

TrafficCounters ProgressCommunicator::counters() const {
  require_own_process();
  const std::lock_guard lock(mutex_);
  return counters_;
}

void ProgressCommunicator::reset_counters() {
  require_own_process();
  const std::lock_guard lock(mutex_);
  counters_ = {};
}

void ProgressCommunicator::drain() {
  require_own_process();
  wait_until_idle(check_interrupt);
}

void ProgressCommunicator::wait_until_idle(void (*hear)()) {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterruptInterval, [this] { return queue_.empty(); })) {
    lock.unlock();
    const OnInterrupt give_up([this] { transport_->abort(kInterruptReason); });
    hear();
    lock.lock();
  }
}

}  // namespace tangram::comm
