// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/attention.hpp, backends.hpp, flex_attention.hpp and mask_buffer.hpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "core/require.hpp"
#include "shared_attention.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_buffer.hpp"
#include "tensor.hpp"
#include "workspace.hpp"

namespace tangram::python {

namespace {

class SharedFlexAttention final : public SharedAttention {
 public:
  SharedFlexAttention(std::span<const Mask> masks, const HeadConfig& heads, std::shared_ptr<Backend> backend)
      : SharedAttention(std::move(backend)),
        attention_(prepared(masks, heads, SharedAttention::backend())),
        forward_workspace_bytes_(attention_->forward_workspace_bytes()) {
    for (const Mask& mask : masks) visible_pairs_ += mask.area() * (heads.num_heads_q / static_cast<int>(masks.size()));
    count_bytes();
  }

  const AttnShape& shape() const override { return attention_->shape(); }
  int64_t visible_pairs() const { return visible_pairs_; }

  // State after the last pass: this does not wait for a running pass, nor for a background task.
  int64_t device_bytes() const { return device_bytes_; }
  int64_t host_bytes() const { return host_bytes_; }

  int64_t forward_workspace_bytes() const { return forward_workspace_bytes_; }
  // Also prepares what such calls need, once.
  int64_t backward_workspace_bytes(bool deterministic, bool plain) {
    std::atomic<int64_t>& bytes = backward_workspace_bytes_[deterministic ? 1 : plain ? 2 : 0];
    if (bytes < 0) {
      run_alone([&] {
        bytes = attention_->backward_workspace_bytes(deterministic, plain);
        count_bytes();
      });
    }
    return bytes;
  }
  void prepare_backward_async(bool deterministic, bool plain) {
    run_alone([&] { attention_->prepare_backward_async(deterministic, plain); });
  }

 private:
  void call_forward(const AttnForwardArgs& args, void* stream) override {
    attention_->forward(args, stream);
    host_bytes_ = attention_->host_bytes();
  }
  void call_backward(const AttnBackwardArgs& args, void* stream) override {
    attention_->backward(args, stream);
    count_bytes();
  }
  void count_bytes() {
    host_bytes_ = attention_->host_bytes();
    device_bytes_ = attention_->device_bytes();
  }
  void keep_while_graph_lives(void* stream) override { python::keep_while_graph_lives(stream, attention_); }

  static std::shared_ptr<FlexAttention> prepared(std::span<const Mask> masks, const HeadConfig& heads,
                                                 const Backend& backend) {
    const DeviceScope scope(backend.device());
    return std::make_shared<FlexAttention>(masks, heads, backend.get());
  }

  std::shared_ptr<FlexAttention> attention_;  // graphs that were captured with it hold it, too
  const int64_t forward_workspace_bytes_;
  int64_t visible_pairs_ = 0;                                        // over all query heads
  std::atomic<int64_t> backward_workspace_bytes_[3] = {-1, -1, -1};  // of default, deterministic and plain calls
  std::atomic<int64_t> host_bytes_ = 0, device_bytes_ = 0;
};

/// Graphs that were captured with its calls hold its lists (AttnBackend::make_slot).
class SharedMaskBuffer final : public SharedAttention {
 public:
  SharedMaskBuffer(const AttnShape& shape, const MaskCapacity& capacity, std::shared_ptr<Backend> backend)
      : SharedAttention(std::move(backend)), buffer_(made(shape, capacity, SharedAttention::backend())) {}

  const AttnShape& shape() const override { return buffer_.shape(); }
  const MaskBuffer& get() const { return buffer_; }

  void set(const std::vector<Mask>& masks, void* stream) {
    run(stream, [&] { buffer_.set(masks, stream); });
  }
  void set_cu_seqlens(const CuSeqlens& documents, void* stream) {
    run(stream, [&] { buffer_.set_cu_seqlens(documents, stream); });
  }
  void set_blocks(const BlockTable& table, void* stream) {
    run(stream, [&] { buffer_.set_blocks(table, stream); });
  }
  void set_ranges(const RangeList& ranges, void* stream) {
    run(stream, [&] { buffer_.set_ranges(ranges, stream); });
  }
  void check_errors() {
    run_alone([&] { buffer_.check_errors(); });
  }
  void reserve(int64_t documents, int64_t slices) {
    run_alone([&] {
      MaskCapacity capacity = buffer_.capacity();
      capacity.max_documents = documents;
      capacity.max_slices = slices;
      buffer_.reserve(capacity);
    });
  }

 private:
  void call_forward(const AttnForwardArgs& args, void* stream) override { buffer_.forward(args, stream); }
  void call_backward(const AttnBackwardArgs& args, void* stream) override { buffer_.backward(args, stream); }

  static MaskBuffer made(const AttnShape& shape, const MaskCapacity& capacity, const Backend& backend) {
    const DeviceScope scope(backend.device());
    return {shape, capacity, backend.get()};
  }

  MaskBuffer buffer_;
};

void forward(SharedAttention& self, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
             nb::handle max_logits, nb::handle sink, const std::string& sink_layout, const AttnOptions& options,
             uintptr_t stream, Workspace workspace) {
  const AttnShape& shape = self.shape();
  Arguments read("Attention.forward", self.backend().on_gpu());
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

void backward(SharedAttention& self, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
              nb::handle dout, const Gradients& gradients, nb::handle sink, const std::string& sink_layout,
              const AttnOptions& options, uintptr_t stream, Workspace workspace) {
  const AttnShape& shape = self.shape();
  Arguments read("Attention.backward", self.backend().on_gpu());
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
      .def_ro("detail", &AttnBackendInfo::detail)
      .def_prop_ro(
          "on_gpu", [](const AttnBackendInfo& self) { return self.memory == MemoryKind::kDevice; },
          "Whether its tensors lie in the memory of a GPU.")
      .def("__repr__", [](const AttnBackendInfo& self) {
        return fmt::format("AttnBackendInfo(name='{}', available={}, detail='{}')", self.name,
                           self.available ? "True" : "False", self.detail);
      });
  m.def(
      "list_backends",
      [](int device) {
        const DeviceScope scope(device);
        return list_attn_backends();
      },
      "device"_a = -1,
      "Every attention backend of this build, best first, as GPU `device` can run them (-1: the current one).");
  nb::class_<GpuInfo>(m, "GpuInfo", "A GPU that CUDA sees, and the backend of calls there that name none.")
      .def_ro("device", &GpuInfo::device)
      .def_ro("name", &GpuInfo::name)
      .def_prop_ro("compute_capability", [](const GpuInfo& self) { return std::pair(self.major, self.minor); })
      .def_ro("multiprocessors", &GpuInfo::multiprocessors)
      .def_ro("memory_bytes", &GpuInfo::memory_bytes)
      .def_ro("shared_memory_kb", &GpuInfo::shared_memory_kb, "That a thread block can have.")
      .def_ro("backend", &GpuInfo::backend, "Empty: none runs on it.")
      .def_ro("reason", &GpuInfo::reason, "What of it runs there, and why better ones do not.");
  m.def("list_gpus", &list_gpus, "Every GPU of this process, by number; none in builds without GPU code.");
  nb::class_<Backend>(m, "Backend", "Attention on one device.")
      .def(nb::new_([](const std::string& name, int num_threads, int device) {
             return Backend::make(name, num_threads, device);
           }),
           "name"_a, "num_threads"_a = 0, "device"_a = -1,
           "`device`: the GPU of a backend that works on one, -1 the current one. Raises InvalidArgument for an "
           "unknown name, NotAvailable for one that cannot run here.")
      .def_prop_ro("name", [](const Backend& self) { return std::string(self.get().name()); })
      .def_prop_ro("device", &Backend::device)
      .def_prop_ro("on_gpu", &Backend::on_gpu)
      .def_prop_ro("takes_float32", [](const Backend& self) {
        try {
          self.get().check({1, 1, 1, 1, 64, 64, DType::kFloat32});
        } catch (const InvalidArgument&) {
          return false;
        }
        return true;
      });
}

void bind_mask_buffer(nb::module_& m) {
  nb::class_<SharedMaskBuffer, SharedAttention>(
      m, "MaskBuffer", "Room for masks of one shape, one after the other, under captured calls: tangram.MaskBuffer.")
      .def(
          "__init__",
          [](SharedMaskBuffer* self, std::pair<int64_t, int64_t> rows, const HeadConfig& heads,
             std::tuple<int64_t, int64_t, bool> capacity, std::pair<int64_t, int> blocks, bool deterministic,
             bool with_gradients, std::shared_ptr<Backend> backend) {
            const AttnShape shape{rows.first,     rows.second,      heads.num_heads_q, heads.num_heads_kv,
                                  heads.head_dim, heads.head_dim_v, heads.dtype};
            new (self) SharedMaskBuffer(shape,
                                        {.max_documents = std::get<0>(capacity),
                                         .max_slices = std::get<1>(capacity),
                                         .deterministic = deterministic,
                                         .passes = with_gradients ? AttnPasses::kBoth : AttnPasses::kForward,
                                         .allow_fully_masked_rows = std::get<2>(capacity),
                                         .block_size = blocks.first,
                                         .head_groups = blocks.second},
                                        std::move(backend));
          },
          "rows"_a, "heads"_a, "capacity"_a, "blocks"_a, "deterministic"_a, "with_gradients"_a, "backend"_a,
          "rows: seqlen_q and seqlen_k. capacity: documents, slices, allow_fully_masked_rows. blocks: their size and "
          "head "
          "groups.")
      .def(
          "set",
          [](SharedMaskBuffer& self, const std::vector<Mask>& masks, uintptr_t stream) {
            self.set(masks, reinterpret_cast<void*>(stream));
          },
          "masks"_a, "stream"_a = 0, "The mask of calls that follow on the stream, or one for each head group.")
      .def(
          "set_cu_seqlens",
          [](SharedMaskBuffer& self, uintptr_t q, uintptr_t k, bool is_int64, int64_t documents, bool causal,
             std::pair<int64_t, int64_t> window, uintptr_t stream) {
            self.set_cu_seqlens({.q = reinterpret_cast<const void*>(q),
                                 .k = reinterpret_cast<const void*>(k),
                                 .is_int64 = is_int64,
                                 .documents = documents,
                                 .causal = causal,
                                 .window = {window.first, window.second}},
                                reinterpret_cast<void*>(stream));
          },
          "q"_a, "k"_a, "is_int64"_a, "documents"_a, "causal"_a, "window"_a, "stream"_a = 0,
          "Packed documents whose lists lie at these addresses in the memory of the backend; k = 0: those of q.")
      .def(
          "set_blocks",
          [](SharedMaskBuffer& self, uintptr_t indices, bool is_int64, int64_t width, int64_t block_size, bool causal,
             int head_groups, uintptr_t stream) {
            self.set_blocks({.indices = reinterpret_cast<const void*>(indices),
                             .is_int64 = is_int64,
                             .width = width,
                             .block_size = block_size,
                             .causal = causal,
                             .head_groups = head_groups},
                            reinterpret_cast<void*>(stream));
          },
          "indices"_a, "is_int64"_a, "width"_a, "block_size"_a, "causal"_a, "head_groups"_a = 1, "stream"_a = 0,
          "Chosen blocks of keys whose table, or tables of head groups, lie at this address in the memory of the "
          "backend.")
      .def(
          "set_ranges",
          [](SharedMaskBuffer& self, uintptr_t q_ranges, uintptr_t k_ranges, uintptr_t types, bool is_int64,
             int64_t count, uintptr_t stream) {
            self.set_ranges({.q_ranges = reinterpret_cast<const void*>(q_ranges),
                             .k_ranges = reinterpret_cast<const void*>(k_ranges),
                             .types = reinterpret_cast<const void*>(types),
                             .is_int64 = is_int64,
                             .count = count},
                            reinterpret_cast<void*>(stream));
          },
          "q_ranges"_a, "k_ranges"_a, "types"_a, "is_int64"_a, "count"_a, "stream"_a = 0,
          "Typed ranges whose lists lie at these addresses in the memory of the backend; types = 0: all are full.")
      .def("check_errors", &SharedMaskBuffer::check_errors, "Raises what the GPU has refused.")
      .def("reserve", &SharedMaskBuffer::reserve, "documents"_a, "slices"_a, "Other room; forgets the mask.")
      .def_prop_ro("forward_workspace_bytes",
                   [](const SharedMaskBuffer& self) { return self.get().forward_workspace_bytes(); })
      .def("backward_workspace_bytes",
           [](const SharedMaskBuffer& self) { return self.get().backward_workspace_bytes(); })
      .def_prop_ro("device_bytes", [](const SharedMaskBuffer& self) { return self.get().device_bytes(); })
      .def_prop_ro("host_bytes", [](const SharedMaskBuffer& self) { return self.get().host_bytes(); });
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

  nb::class_<SharedAttention>(m, "Attention",
                              "What attends with arrays of any library: a FlexAttention, or a MaskBuffer. Results are "
                              "written to the arrays that are passed.")
      .def("forward", &forward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "max_logits"_a.none() = nb::none(),
           "sink"_a.none() = nb::none(), "sink_layout"_a = "sh", "options"_a = AttnOptions{}, "stream"_a = 0,
           "workspace"_a = Workspace{0, 0},
           "Writes out [seqlen_q, num_heads_q, head_dim_v], lse [seqlen_q, num_heads_q] and max_logits [num_heads_q]. "
           "workspace: address and bytes of device memory, at least forward_workspace_bytes and aligned to 256 bytes, "
           "that is the call's in stream order; without it calls on a device share one.")
      .def(
          "backward",
          [](SharedAttention& self, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
             nb::handle dout, nb::handle dq, nb::handle dk, nb::handle dv, nb::handle dsink, nb::handle sink,
             const std::string& sink_layout, const AttnOptions& options, uintptr_t stream, Workspace workspace) {
            backward(self, q, k, v, out, lse, dout, {dq, dk, dv, dsink}, sink, sink_layout, options, stream, workspace);
          },
          "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a, "dv"_a, "dsink"_a.none() = nb::none(),
          "sink"_a.none() = nb::none(), "sink_layout"_a = "sh", "options"_a = AttnOptions{}, "stream"_a = 0,
          "workspace"_a = Workspace{0, 0},
          "Writes dq, dk, dv and dsink; out and lse are those of forward. workspace: as forward's, of at least "
          "backward_workspace_bytes.");

  nb::class_<SharedFlexAttention, SharedAttention>(
      m, "FlexAttention", "A mask, its shape and a backend, ready to be called any number of times.")
      .def(
          "__init__",
          [](SharedFlexAttention* self, const Mask& mask, const HeadConfig& heads, std::shared_ptr<Backend> backend) {
            new (self) SharedFlexAttention(std::span(&mask, 1), heads, std::move(backend));
          },
          "mask"_a, "heads"_a, "backend"_a, "Raises InvalidArgument for what the backend cannot do.")
      .def(
          "__init__",
          [](SharedFlexAttention* self, const std::vector<Mask>& masks, const HeadConfig& heads,
             std::shared_ptr<Backend> backend) { new (self) SharedFlexAttention(masks, heads, std::move(backend)); },
          "masks"_a, "heads"_a, "backend"_a, "With a mask for each of equal groups of heads: one call for all on GPUs.")
      .def_prop_ro("forward_workspace_bytes", &SharedFlexAttention::forward_workspace_bytes,
                   "What forward needs as its workspace, 0: none.")
      .def("backward_workspace_bytes", &SharedFlexAttention::backward_workspace_bytes, "deterministic"_a = false,
           "plain"_a = false,
           "The same of backward calls that are deterministic, or are not; plain: without softcap and sinks. Prepares "
           "what "
           "these need, once.")
      .def("prepare_backward_async", &SharedFlexAttention::prepare_backward_async, "deterministic"_a = false,
           "plain"_a = false, "Has what such backward calls need on a GPU made by another thread meanwhile.")
      .def_prop_ro("visible_pairs", &SharedFlexAttention::visible_pairs,
                   "Visible (query, key) pairs over all query heads: what FLOPs are counted by.")
      .def_prop_ro("device_bytes", &SharedFlexAttention::device_bytes,
                   "GPU memory that the object holds, as of its last pass.")
      .def_prop_ro("host_bytes", &SharedFlexAttention::host_bytes,
                   "Host memory that the object holds, as of its last pass.");
  bind_mask_buffer(m);
}

}  // namespace tangram::python
