// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/communicator.hpp, socket_group.hpp and device_communicator.hpp.
#include "group.hpp"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include "core/require.hpp"
#include "runtime/pass_plan.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tensor.hpp"

namespace tangram::python {

namespace {

/// Bytes of each rank's rows.
std::vector<int64_t> bytes_of(const std::vector<int64_t>& rows, int64_t row_bytes) {
  std::vector<int64_t> bytes;
  for (const int64_t count : rows) bytes.push_back(count * row_bytes);
  return bytes;
}

void all_to_all(Group& group, nb::handle send, const std::vector<int64_t>& send_rows, nb::handle recv,
                const std::vector<int64_t>& recv_rows, const std::string& label, uint64_t rows) {
  Arguments read("all_to_all", false);
  const ConstTensorView from = read.input(send, "send");
  const TensorView to = read.output(recv, "recv");
  const nb::gil_scoped_release release;
  CallFingerprint fingerprint;
  fingerprint.set(CallFingerprint::kRows, rows);
  const SharedFingerprint shared(group.communicator(), fingerprint);
  group.communicator().all_to_all_v(from, send_rows, to, recv_rows, label)->wait();
}

void bind_host_group(nb::module_& m) {
  nb::class_<Group>(m, "Group", "The communicator of one rank of a process group.")
      .def(nb::init<int, int, const std::string&, const std::string&, double, int>(), "rank"_a, "size"_a, "address"_a,
           "secret"_a, "setup_timeout_s"_a = 0, "listener"_a = -1,
           "Connects to the other ranks, which meet at unix:FOLDER or tcp:HOST:PORT and know the secret. Collective; "
           "Timeout names who is missing after setup_timeout_s, 0: TANGRAM_TIMEOUT_S. listener: of rank 0, a socket "
           "that listens at HOST:PORT already, which this takes over; -1: none.")
      .def("all_to_all", &all_to_all, "send"_a, "send_rows"_a, "recv"_a, "recv_rows"_a, "label"_a, "rows"_a,
           "Rows [rows, heads, dim] for rank 0, 1, ... one after the other; recv likewise. Collective. rows: a hash of "
           "what the counts do not say, which must be alike on all ranks.")
      .def(
          "require_agreement",
          [](Group& self, uint64_t value, const std::string& what) {
            const nb::gil_scoped_release release;
            self.communicator().require_agreement(value, what);
          },
          "value"_a, "what"_a, "Raises InvalidArgument on every rank unless all passed the same value. Collective.")
      .def(
          "refuse",
          [](Group& self, const std::string& reason) {
            const nb::gil_scoped_release release;
            self.communicator().refuse(reason);
          },
          "reason"_a, "This rank's part in the next collective operation: InvalidArgument on the other ranks.")
      .def(
          "traffic", [](Group& self) { return self.communicator().counters().rows_received; },
          "Rows received so far; a token whose K and V both move counts twice.");
}

}  // namespace

Group::Group(int rank, int size, const std::string& address, const std::string& secret, double setup_timeout_s,
             int listener) {
  const nb::gil_scoped_release release;
  sockets_.emplace(SocketGroupConfig{.rank = rank,
                                     .size = size,
                                     .address = address,
                                     .secret = secret,
                                     .setup_timeout_s = setup_timeout_s,
                                     .listener = listener});
}

Group::~Group() {
  const nb::gil_scoped_release release;
  sockets_.reset();
}

DeviceGroup::DeviceGroup(std::shared_ptr<Group> group, int device, const std::string& transport, bool exact_memory,
                         int ranks_per_node, int max_ctas)
    : group_(std::move(group)), device_(device) {
  const nb::gil_scoped_release release;
  const DeviceScope scope(device_);
  communicator_ = make_device_communicator(group_->communicator(), {.transport = parse_device_transport(transport),
                                                                    .max_ctas = max_ctas,
                                                                    .batch_copies = Env::get().batch_copies,
                                                                    .exact_memory = exact_memory,
                                                                    .ranks_per_node = ranks_per_node});
  const auto synchronize = [](void* stream) {
    require(!is_captured(stream),
            "tangram: rows must be moved once before a CUDA graph is captured, because the first time prepares memory");
    synchronize_device();
  };
  mailbox_ = std::make_unique<comm::DeviceMailbox>(
      *communicator_, comm::DeviceMailbox::Device{copy_on_device, synchronize}, comm::DeviceMailbox::BoxBytes{});
}

DeviceGroup::~DeviceGroup() {
  const nb::gil_scoped_release release;
  if (made_here_.is_inherited()) {
    static_cast<void>(mailbox_.release());
    static_cast<void>(communicator_.release());
    return;
  }
  try {
    const DeviceScope scope(device_);
    finish_device();
    mailbox_.reset();
    communicator_.reset();
  } catch (const std::exception&) {  // the process ends, or the device is lost
  }
}

void DeviceGroup::require_own_process() const {
  if (!made_here_.is_inherited()) return;
  throw CommError(fmt::format(
      "DeviceGroup: a child of a fork must not use a group of its parent; only the process that made the group "
      "can (got process={}, made by process={})",
      ::getpid(), made_here_.process()));
}

void DeviceGroup::refuse(const std::string& reason) {
  require_own_process();
  const nb::gil_scoped_release release;
  communicator_->abort(reason);
}

void DeviceGroup::refuse_to_prepare(const std::string& reason) {
  require_own_process();
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  if (Agreement* const agreement = communicator_->agreement()) {
    agreement->refuse(reason);
  } else {
    group_->communicator().refuse(reason);
  }
}

void DeviceGroup::all_to_all(nb::handle send, const std::vector<int64_t>& send_rows, nb::handle recv,
                             const std::vector<int64_t>& recv_rows, int64_t most_rows, uint64_t rows,
                             uintptr_t stream) {
  Arguments read("all_to_all", true);
  const ConstTensorView from = read.input(send, "send");
  const TensorView to = read.output(recv, "recv");
  require(from.contiguous() && to.contiguous() && from.row_bytes() == to.row_bytes(),
          "all_to_all: send and recv must be contiguous rows of one size (got {} and {})", shape_text(from),
          shape_text(to));
  const std::vector<int64_t> sent = bytes_of(send_rows, from.row_bytes()),
                             received = bytes_of(recv_rows, to.row_bytes());
  const comm::ByteMoves moves{from.data, sent, to.data, received, most_rows * from.row_bytes()};
  CallFingerprint fingerprint;
  fingerprint.set(CallFingerprint::kRows, rows);
  enqueue(reinterpret_cast<void*>(stream), [&] {
    const SharedFingerprint shared(*communicator_, fingerprint);
    mailbox_->all_to_all(moves, reinterpret_cast<void*>(stream));
  });
}

void DeviceGroup::check() {
  require_own_process();
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  const DeviceScope scope(device_);
  synchronize_device();
  communicator_->check();
}

void bind_group(nb::module_& m) {
  bind_host_group(m);
  nb::class_<DeviceGroup>(m, "DeviceGroup", "The GPUs of a process group, one a rank.")
      .def(nb::init<std::shared_ptr<Group>, int, const std::string&, bool, int, int>(), "group"_a, "device"_a,
           "transport"_a = "copy_engine", "exact_memory"_a = false, "ranks_per_node"_a = 0, "max_ctas"_a = 0,
           "Collective; transport is 'copy_engine' or 'nccl', exact_memory as in configure, ranks_per_node 0 as found, "
           "alike on all ranks. Raises NotAvailable on every rank where GPUs are missing or cannot reach each other.")
      .def_prop_ro("device", &DeviceGroup::device)
      .def_prop_ro(
          "shared_bytes", [](DeviceGroup& self) { return self.communicator().shared_bytes(); },
          "GPU memory that rows of all its keys land in.")
      .def("all_to_all", &DeviceGroup::all_to_all, "send"_a, "send_rows"_a, "recv"_a, "recv_rows"_a, "most_rows"_a,
           "rows"_a, "stream"_a,
           "As Group.all_to_all, enqueued on the stream. most_rows: the most that go from any rank to another.")
      .def("refuse", &DeviceGroup::refuse, "reason"_a, "Ends the waits of the peers' GPUs; the group is broken.")
      .def("refuse_to_prepare", &DeviceGroup::refuse_to_prepare, "reason"_a,
           "In place of a DistAttention on a rank that cannot make it: InvalidArgument on the others.")
      .def("check", &DeviceGroup::check, "Waits for the GPU and raises what has gone wrong on it or at a peer.")
      .def(
          "traffic", [](DeviceGroup& self) { return self.communicator().counters().rows_received; },
          "Rows received so far, counted when they are enqueued.");
}

}  // namespace tangram::python
