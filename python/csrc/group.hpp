// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The communicator of one rank that several Python objects hold, and its device side.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bind.hpp"
#include "comm/device/device_mailbox.hpp"
#include "core/fork.hpp"
#include "device.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::python {

/// Connects without the GIL, and ends without it: other ranks may be threads of the same process, or late.
class Group {
 public:
  /// setup_timeout_s bounds the wait for all ranks; 0: Env::timeout_s. listener: SocketGroupConfig::listener.
  Group(int rank, int size, const std::string& address, const std::string& secret, double setup_timeout_s,
        int listener);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Communicator& communicator() { return sockets_->communicator(); }

 private:
  std::optional<SocketGroup> sockets_;
};

/// The GPUs of a group, of which this rank has one. Everything that its ranks do together on their GPUs is one
/// sequence, the same on all ranks, in order on the streams of this one.
class DeviceGroup {
 public:
  /// Collective. Throws NotAvailable, alike on all ranks, in a build without CUDA, without GPUs, and where they cannot
  /// reach each other.
  /// Copies as Env::batch_copies says.
  DeviceGroup(std::shared_ptr<Group> group, int device, const std::string& transport, bool exact_memory,
              int ranks_per_node, int max_ctas);
  /// Waits for the GPU, which may still read what ends here.
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  int device() const { return device_; }
  DeviceCommunicator& communicator() {
    require_own_process();
    return *communicator_;
  }

  /// Runs `call`, which puts this rank's next part of the sequence on `stream`. Takes the GIL away meanwhile.
  template <class Call>
  void enqueue(void* stream, Call call) {
    require_own_process();
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(device_);
    order_.enter(stream);
    call();
  }
  /// Runs `call`, which makes something together with the other ranks: where these meet for it, when the GPU is idle.
  template <class Call>
  void prepare(Call call) {
    require_own_process();
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(device_);
    if (communicator_->agreement() == nullptr) synchronize_device();
    call();
  }
  /// Replaces prepare() on a rank that cannot take part; the others throw InvalidArgument.
  void refuse_to_prepare(const std::string& reason);
  /// A call that cannot take part tells the peers, whose GPUs would wait for it.
  void refuse(const std::string& reason);

  void all_to_all(nb::handle send, const std::vector<int64_t>& send_rows, nb::handle recv,
                  const std::vector<int64_t>& recv_rows, int64_t most_rows, uint64_t rows, uintptr_t stream);
  void check();

 private:
  /// Throws CommError in a child of a fork, in which CUDA does not work, and what peers watch is still the parent's.
  void require_own_process() const;

  const MadeHere made_here_;
  std::shared_ptr<Group> group_;
  const int device_;
  std::unique_ptr<DeviceCommunicator> communicator_;
  std::unique_ptr<comm::DeviceMailbox> mailbox_;
  StreamOrder order_;
  std::mutex mutex_;
};

}  // namespace tangram::python
