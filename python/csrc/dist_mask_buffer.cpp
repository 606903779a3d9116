// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/dist_mask_buffer.hpp.
#include "tangram/dist_mask_buffer.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "backend.hpp"
#include "dist_arguments.hpp"
#include "group.hpp"
#include "tangram/error.hpp"
#include "workspace.hpp"

namespace tangram::python {

namespace {

/// kv_rows, sent_rows, ranges, documents, slices, allow_fully_masked_rows.
using Capacity = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool>;

class SharedDistMaskBuffer {
 public:
  SharedDistMaskBuffer(std::shared_ptr<const Plan> like, const Capacity& capacity, bool deterministic,
                       bool with_gradients, std::shared_ptr<DeviceGroup> group, std::shared_ptr<Backend> backend)
      : backend_(std::move(backend)), gpus_(std::move(group)), num_heads_(like->config.heads.num_heads_q) {
    DistMaskCapacity room;
    std::tie(room.kv_rows, room.sent_rows, room.local_ranges, room.documents, room.slices,
             room.allow_fully_masked_rows) = capacity;
    room.deterministic = deterministic;
    if (!with_gradients) room.passes = AttnPasses::kForward;
    gpus_->prepare(
        [&] { buffer_ = std::make_shared<DistMaskBuffer>(*like, room, gpus_->communicator(), backend_->get()); });
  }
  // Kernels may still use what ends here, and peers write to it.
  ~SharedDistMaskBuffer() {
    if (buffer_ == nullptr) return;
    const nb::gil_scoped_release release;
    try {
      const DeviceScope scope(gpus_->device());
      finish_device();
      buffer_.reset();
    } catch (const std::exception&) {  // the process ends, or the device is lost
    }
  }
  SharedDistMaskBuffer(const SharedDistMaskBuffer&) = delete;
  SharedDistMaskBuffer& operator=(const SharedDistMaskBuffer&) = delete;

  void set(std::shared_ptr<const Plan> plan, uintptr_t stream) {
    void* const on = reinterpret_cast<void*>(stream);
    gpus_->enqueue(on, [&] { buffer_->set(std::move(plan), on); });
  }

  void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle max_logits,
               nb::handle sink, const std::string& sink_layout, const AttnOptions& options, uintptr_t stream,
               const Workspace& workspace) {
    Arguments read("calc_attn", backend_->on_gpu());
    DistForwardArgs args;
    take_part([&] { args = read_forward(read, rows(), {q, k, v, out, lse}, max_logits, sink, sink_layout); });
    args.options = options;
    args.workspace = as_workspace(workspace);
    run(stream, [&](void* on) { buffer_->forward(args, on); });
  }

  void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout,
                nb::handle dq, nb::handle dk, nb::handle dv, nb::handle dsink, nb::handle sink,
                const std::string& sink_layout, const std::string& dsink_reduce, const AttnOptions& options,
                uintptr_t stream, const Workspace& workspace) {
    Arguments read("calc_attn backward", backend_->on_gpu());
    DistBackwardArgs args;
    take_part([&] {
      args =
          read_backward(read, rows(), {q, k, v, out, lse}, {dout, dq, dk, dv, dsink}, sink, sink_layout, dsink_reduce);
    });
    args.options = options;
    args.workspace = as_workspace(workspace);
    run(stream, [&](void* on) { buffer_->backward(args, on); });
  }

  int64_t device_bytes() const { return buffer_->device_bytes(); }
  int64_t forward_workspace_bytes() const { return buffer_->forward_workspace_bytes(); }
  int64_t backward_workspace_bytes() const { return buffer_->backward_workspace_bytes(); }

 private:
  RowsOfQueries rows() const { return {buffer_->q_rows(), num_heads_}; }
  // A rank whose arguments are unreadable tells its peers, which would wait for it.
  template <class Read>
  void take_part(const Read& read) {
    try {
      read();
    } catch (const InvalidArgument& error) {
      gpus_->refuse(error.what());
      throw;
    }
  }
  template <class Pass>
  void run(uintptr_t stream, const Pass& pass) {
    void* const on = reinterpret_cast<void*>(stream);
    gpus_->enqueue(on, [&] {
      try {
        keep_while_graph_lives(on, buffer_);
        pass(on);
      } catch (const std::exception& error) {
        gpus_->communicator().abort(error.what());
        throw;
      }
    });
  }

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<DeviceGroup> gpus_;
  std::shared_ptr<DistMaskBuffer> buffer_;  // graphs that were captured with it hold it, too
  int num_heads_ = 0;
};

Capacity capacity_of(const Plan& plan) {
  const DistMaskCapacity needed = capacity_for(plan);
  return {needed.kv_rows,   needed.sent_rows, needed.local_ranges,
          needed.documents, needed.slices,    needed.allow_fully_masked_rows};
}

}  // namespace

void bind_dist_mask_buffer(nb::module_& m) {
  m.def("dist_mask_capacity", &capacity_of, "plan"_a,
        "What a plan takes of a DistMaskBuffer, the most of any rank: kv_rows, sent_rows, stretches, documents, "
        "slices, and whether some query sees no key.");
  nb::class_<SharedDistMaskBuffer>(m, "DistMaskBuffer",
                                   "One rank's part in distributed attention by one plan after the other.")
      .def(nb::init<std::shared_ptr<const Plan>, const Capacity&, bool, bool, std::shared_ptr<DeviceGroup>,
                    std::shared_ptr<Backend>>(),
           "like"_a, "capacity"_a, "deterministic"_a, "with_gradients"_a, "group"_a, "backend"_a,
           "Collective. capacity: as dist_mask_capacity.")
      .def("set", &SharedDistMaskBuffer::set, "plan"_a, "stream"_a)
      .def("forward", &SharedDistMaskBuffer::forward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "max_logits"_a.none(),
           "sink"_a.none(), "sink_layout"_a, "options"_a, "stream"_a, "workspace"_a)
      .def("backward", &SharedDistMaskBuffer::backward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a,
           "dv"_a, "dsink"_a.none(), "sink"_a.none(), "sink_layout"_a, "dsink_reduce"_a, "options"_a, "stream"_a,
           "workspace"_a)
      .def_prop_ro("device_bytes", &SharedDistMaskBuffer::device_bytes)
      .def_prop_ro("forward_workspace_bytes", &SharedDistMaskBuffer::forward_workspace_bytes)
      .def_prop_ro("backward_workspace_bytes", &SharedDistMaskBuffer::backward_workspace_bytes);
}

}  // namespace tangram::python
