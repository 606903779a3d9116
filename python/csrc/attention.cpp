// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/attention.hpp, backends.hpp and flex_attention.hpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "backend.hpp"
#include "core/require.hpp"
#include "tangram/flex_attention.hpp"
#include "tensor.hpp"
#include "workspace.hpp"

namespace tangram::python {

namespace {

// A prepared mask is used by one call at a time, and calls let the GIL go: hence the lock, taken without the GIL.
class SharedFlexAttention {
 public:
  SharedFlexAttention(const Mask& mask, const HeadConfig& heads, std::shared_ptr<Backend> backend)
      : backend_(std::move(backend)),
        attention_(prepared(mask, heads, *backend_)),
        forward_workspace_bytes_(attention_->forward_workspace_bytes()) {
    host_bytes_ = attention_->host_bytes();
  }

  const AttnShape& shape() const { return attention_->shape(); }
  const Backend& backend() const { return *backend_; }

  int64_t device_bytes() const { return attention_->device_bytes(); }

  int64_t forward_workspace_bytes() const { return forward_workspace_bytes_; }
  // Also prepares what backward() needs, once.
  int64_t backward_workspace_bytes() {
    if (backward_workspace_bytes_ < 0) {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      const DeviceScope scope(backend_->device());
      backward_workspace_bytes_ = attention_->backward_workspace_bytes();
    }
    return backward_workspace_bytes_;
  }

  void forward(const AttnForwardArgs& args, void* stream) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(backend_->device());
    enter(stream);
    attention_->forward(args, stream);
    host_bytes_ = attention_->host_bytes();
  }
  void backward(const AttnBackwardArgs& args, void* stream) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(backend_->device());
    enter(stream);
    attention_->backward(args, stream);
    host_bytes_ = attention_->host_bytes();
  }
  // As of the last pass: whoever asks does not wait for one that runs.
  int64_t host_bytes() const { return host_bytes_; }

 private:
  void enter(void* stream) {
    if (!backend_->on_gpu()) return;
    order_.enter(stream);
    keep_while_graph_lives(stream, attention_);
  }

  static std::shared_ptr<FlexAttention> prepared(const Mask& mask, const HeadConfig& heads, const Backend& backend) {
    const DeviceScope scope(backend.device());
    return std::make_shared<FlexAttention>(mask, heads, backend.get());
  }

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<FlexAttention> attention_;  // graphs that were captured with it hold it, too
  const int64_t forward_workspace_bytes_;
  std::atomic<int64_t> backward_workspace_bytes_ = -1;
  StreamOrder order_;
  std::mutex mutex_;
  std::atomic<int64_t> host_bytes_ = 0;
};

void forward(SharedFlexAttention& self, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
             nb::handle max_logits, nb::handle sink, const std::string& sink_layout, const AttnOptions& options,
             uintptr_t stream, Workspace workspace) {
  const AttnShape& shape = self.shape();
  Arguments read("FlexAttention.forward", self.backend().on_gpu());
  AttnForwardArgs args;
  args.q = read.input(q, "q");
  args.k = read.input(k, "k");
  args.v = read.input(v, "v");
  args.out = read.output(out, "out");
  args.lse = read.floats(lse, "lse", {shape.seqlen_q, shape.num_heads_q});
  args.max_logits = read.floats(max_logits, "max_logits", {shape.num_heads_q});
  args.sink = read.sink(sink, sink_layout, shape.seqlen_q, shape.num_heads_q);
  args.options = options;
  args.workspace = as_workspace(workspace);
  self.forward(args, reinterpret_cast<void*>(stream));
}

struct Gradients {
  nb::handle dq, dk, dv, dsink;
};

void backward(SharedFlexAttention& self, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
              nb::handle dout, const Gradients& gradients, nb::handle sink, const std::string& sink_layout,
              const AttnOptions& options, uintptr_t stream, Workspace workspace) {
  const AttnShape& shape = self.shape();
  Arguments read("FlexAttention.backward", self.backend().on_gpu());
  AttnBackwardArgs args;
  args.q = read.input(q, "q");
  args.k = read.input(k, "k");
  args.v = read.input(v, "v");
  args.out = read.input(out, "out");
  args.lse = read.floats(lse, "lse", {shape.seqlen_q, shape.num_heads_q});
  args.dout = read.input(dout, "dout");
  args.dq = read.output(gradients.dq, "dq");
  args.dk = read.output(gradients.dk, "dk");
  args.dv = read.output(gradients.dv, "dv");
  args.sink = read.sink(sink, sink_layout, shape.seqlen_q, shape.num_heads_q);
  if (args.sink.layout == SinkLayout::kSsh) {
    args.dsink = read.floats(gradients.dsink, "dsink", {shape.seqlen_q, args.sink.seqlen_sink, shape.num_heads_q});
  } else {
    args.dsink = read.floats(gradients.dsink, "dsink", {args.sink.seqlen_sink, shape.num_heads_q});
  }
  args.options = options;
  args.workspace = as_workspace(workspace);
  self.backward(args, reinterpret_cast<void*>(stream));
}

void bind_backends(nb::module_& m) {
  nb::class_<AttnBackendInfo>(m, "AttnBackendInfo", "An attention backend of this build.")
      .def_ro("name", &AttnBackendInfo::name)
      .def_ro("available", &AttnBackendInfo::available)
      .def_ro("detail", &AttnBackendInfo::detail);
  m.def("list_backends", &list_attn_backends, "Every attention backend of this build, best first.");
  nb::class_<Backend>(m, "Backend", "Attention on one device.")
      .def(nb::new_([](const std::string& name, int num_threads, int device) {
             return Backend::make(name, num_threads, device);
           }),
           "name"_a, "num_threads"_a = 0, "device"_a = -1,
           "`device`: the GPU of a backend that works on one, -1 the current one. Raises InvalidArgument for an "
           "unknown name, NotAvailable for one that cannot run here.")
      .def_prop_ro("name", [](const Backend& self) { return std::string(self.get().name()); })
      .def_prop_ro("on_gpu", &Backend::on_gpu);
}

}  // namespace

void bind_attention(nb::module_& m) {
  bind_backends(m);
  nb::class_<AttnOptions>(m, "AttnOptions", "What forward and backward share.")
      .def(
          "__init__",
          [](AttnOptions* self, nb::handle softmax_scale, nb::handle softcap, nb::handle deterministic,
             nb::handle sm_margin) {
            constexpr const char* kName = "AttnOptions";
            const int margin = field<int>(sm_margin, kName, "sm_margin", "a whole number of 32 bits");
            require(margin >= 0, "AttnOptions: sm_margin must not be negative (got {})", margin);
            new (self)
                AttnOptions{field<std::optional<float>>(softmax_scale, kName, "softmax_scale", "a number or None"),
                            field<float>(softcap, kName, "softcap", "a number"),
                            field<bool>(deterministic, kName, "deterministic", "a bool"), margin};
          },
          "softmax_scale"_a.none() = nb::none(), "softcap"_a.none() = 0.0f, "deterministic"_a.none() = false,
          "sm_margin"_a.none() = 0,
          nb::sig("def __init__(self, softmax_scale: float | None = None, softcap: float = 0.0, "
                  "deterministic: bool = False, sm_margin: int = 0) -> None"))
      .def_ro("softmax_scale", &AttnOptions::softmax_scale)
      .def_ro("softcap", &AttnOptions::softcap)
      .def_ro("deterministic", &AttnOptions::deterministic)
      .def_ro("sm_margin", &AttnOptions::sm_margin);

  nb::class_<SharedFlexAttention>(
      m, "FlexAttention",
      "A mask, its shape and a backend, ready to be called any number of times with arrays of any library. "
      "Results are written to the arrays that are passed.")
      .def(nb::init<const Mask&, const HeadConfig&, std::shared_ptr<Backend>>(), "mask"_a, "heads"_a, "backend"_a,
           "Raises InvalidArgument for what the backend cannot do.")
      .def("forward", &forward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "max_logits"_a.none() = nb::none(),
           "sink"_a.none() = nb::none(), "sink_layout"_a = "sh", "options"_a = AttnOptions{}, "stream"_a = 0,
           "workspace"_a = Workspace{0, 0},
           "Writes out [seqlen_q, num_heads_q, head_dim_v], lse [seqlen_q, num_heads_q] and max_logits [num_heads_q]. "
           "workspace: address and bytes of device memory, at least forward_workspace_bytes and aligned to 256 bytes, "
           "that is the call's in stream order; without it calls on a device share one.")
      .def(
          "backward",
          [](SharedFlexAttention& self, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
             nb::handle dout, nb::handle dq, nb::handle dk, nb::handle dv, nb::handle dsink, nb::handle sink,
             const std::string& sink_layout, const AttnOptions& options, uintptr_t stream, Workspace workspace) {
            backward(self, q, k, v, out, lse, dout, {dq, dk, dv, dsink}, sink, sink_layout, options, stream, workspace);
          },
          "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a, "dv"_a, "dsink"_a.none() = nb::none(),
          "sink"_a.none() = nb::none(), "sink_layout"_a = "sh", "options"_a = AttnOptions{}, "stream"_a = 0,
          "workspace"_a = Workspace{0, 0},
          "Writes dq, dk, dv and dsink; out and lse are those of forward. workspace: as forward's, of at least "
          "backward_workspace_bytes.")
      .def_prop_ro("forward_workspace_bytes", &SharedFlexAttention::forward_workspace_bytes,
                   "What forward needs as its workspace, 0: none.")
      .def_prop_ro("backward_workspace_bytes", &SharedFlexAttention::backward_workspace_bytes,
                   "The same of backward. Prepares what backward needs, once.")
      .def_prop_ro("device_bytes", &SharedFlexAttention::device_bytes, "GPU memory that the object holds.")
      .def_prop_ro("host_bytes", &SharedFlexAttention::host_bytes,
                   "Host memory that the object holds, as of its last pass.");
}

}  // namespace tangram::python
