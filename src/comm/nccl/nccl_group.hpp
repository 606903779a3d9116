// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NcclGroup: an NCCL communicator that cannot hang. NCCL's kernels wait for peers without a deadline and do not tell
// for which. A host thread watches the position of the stream and aborts the communicator.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <thread>

#include "comm/device/group_state.hpp"
#include "comm/device/kernels.hpp"
#include "comm/device/streams.hpp"
#include "comm/nccl/messages.hpp"
#include "comm/nccl/nccl_api.hpp"
#include "comm/nccl/shared_buffer.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// NOTE [what is under way]: small kernels before and after each group of messages write the stream's operation, and
/// how many it has begun, into the rank's row of the control block. So this also holds for replayed graphs. An
/// operation that lasts for the timeout has failed. The rank to blame has begun the fewest operations, or else was
/// heard of least recently.
class NcclGroup {
 public:
  /// Collective. Throws NotAvailable, on every rank, where NCCL is not found or ranks of a node share a GPU.
  NcclGroup(Communicator& control, const DeviceCommunicatorConfig& config);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int device() const { return device_; }
  cudaStream_t stream() const { return stream_.get(); }
  GroupState& state() { return state_; }
  /// Thread blocks of an exchange at most.
  int max_ctas() const { return max_ctas_; }

  /// Ranks find out what each of them makes without meeting. Not where everything is compared before rows move.
  bool agrees_later() const { return agrees_later_; }

  /// Where messages begin: `tensors[t]`, and the staging buffer.
  struct Buffers {
    std::span<char* const> tensors;
    char* staging = nullptr;
  };
  /// Marks the begin of an operation on the stream.
  void begin(cuda::WaitKind kind, int pass, int stage);
  void end();
  /// Puts all messages on the stream at once. Throws what check() throws once the group has failed.
  void exchange(std::span<const Message> sends, const Buffers& from, std::span<const Message> recvs, const Buffers& to);
  /// This rank opens the next epoch.
  void open(int pass);

  /// Buffers of passes that share memory (DevicePassSpec::shares_memory).
  struct Shared {
    explicit Shared(bool is_exact)
        : recv_buffers(is_exact), returned(is_exact), send_staging(is_exact), recv_staging(is_exact) {}

    SharedBuffer recv_buffers, returned, send_staging, recv_staging;
    int64_t bytes() const {
      return recv_buffers.bytes() + returned.bytes() + send_staging.bytes() + recv_staging.bytes();
    }
  };
  Shared& shared() { return shared_; }

  /// Combines `count` values over all ranks, in rank order.
  void all_reduce(float* values, int count, bool is_max, cudaStream_t caller);

 private:
  void connect();
  /// Waits, with a deadline, until NCCL has done what it does in the background.
  void settle(const char* call, double timeout_s);
  /// Throws CommError with NCCL's own text unless `result` is no error; of a peer that is gone, with its name.
  void check(int result, const char* call);
  bool has_failed();
  double setup_timeout_s() const;
  /// Meets every peer once, so that connections are there before anything is timed or captured.
  void warm_up();
  void watch();
  void look_at_deadline(uint64_t& seen, double& since_s);
  void look_at_peers();
  void look_at_nccl();
  void publish(const cuda::WaitFailure& failure);
  void abandon() noexcept;

  const NcclApi& api_;
  const bool is_one_node_;
  const int max_ctas_;
  GroupState state_;
  bool agrees_later_ = false;
  int device_ = 0;
  double lost_since_s_ = 0;  // when NCCL first said that a peer is gone; 0: it has not
  OwnedStream stream_;
  OwnedEvent fork_, join_;
  cuda::DeviceBuffer counter_;
  cuda::DeviceBuffer inbox_;  // of all_reduce
  Shared shared_;
  uint64_t num_epochs_ = 0;
  bool is_connected_ = false;

  std::mutex mutex_;  // over comm_: NCCL allows one call on it at a time
  NcclApi::Comm comm_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace tangram::comm
