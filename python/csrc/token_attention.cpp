// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/token_attention.hpp.
#include "tangram/token_attention.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "backend.hpp"
#include "core/require.hpp"
#include "tangram/config.hpp"
#include "tensor.hpp"
#include "workspace.hpp"

namespace tangram::python {

namespace {

using Rows = std::pair<int64_t, int64_t>;

AttnShape shape_of(const Rows& rows, const HeadConfig& heads) {
  return {rows.first,     rows.second,      heads.num_heads_q, heads.num_heads_kv,
          heads.head_dim, heads.head_dim_v, heads.dtype};
}

std::string refusal_of(const Backend& backend, const AttnShape& shape, int64_t topk) {
  const TokenAttention* attention = backend.get().token_attention();
  if (attention == nullptr) {
    return "a backend that takes token indices (got " + std::string(backend.get().name()) + ")";
  }
  return attention->refusal(shape, topk);
}

/// Calls of one shape, any number at a time: they share nothing.
class TokenCalls {
 public:
  TokenCalls(std::shared_ptr<Backend> backend, const AttnShape& shape, int64_t topk)
      : backend_(std::move(backend)), shape_(shape), topk_(topk) {
    const std::string refusal = refusal_of(*backend_, shape, topk);
    require(refusal.empty(), "TokenAttention: needs {}", refusal);
  }

  const AttnShape& shape() const { return shape_; }
  bool on_gpu() const { return backend_->on_gpu(); }
  int64_t forward_workspace_bytes() const { return attention().forward_workspace_bytes(shape_, topk_); }
  int64_t backward_workspace_bytes(bool deterministic) const {
    return attention().backward_workspace_bytes(shape_, topk_, deterministic);
  }

  void forward(uintptr_t indices, const AttnForwardArgs& args, uintptr_t stream) const {
    const nb::gil_scoped_release release;
    const DeviceScope scope(backend_->device());
    attention().forward(shape_, tokens(indices), args, reinterpret_cast<void*>(stream));
  }
  void backward(uintptr_t indices, const AttnBackwardArgs& args, uintptr_t stream) const {
    const nb::gil_scoped_release release;
    const DeviceScope scope(backend_->device());
    attention().backward(shape_, tokens(indices), args, reinterpret_cast<void*>(stream));
  }

 private:
  const TokenAttention& attention() const { return *backend_->get().token_attention(); }
  TokenIndices tokens(uintptr_t indices) const { return {reinterpret_cast<const int32_t*>(indices), topk_}; }

  std::shared_ptr<Backend> backend_;
  AttnShape shape_;
  int64_t topk_;
};

void forward(const TokenCalls& self, nb::handle q, nb::handle k, nb::handle v, uintptr_t indices, nb::handle out,
             nb::handle lse, const AttnOptions& options, uintptr_t stream, Workspace workspace) {
  Arguments read("TokenAttention.forward", self.on_gpu());
  AttnForwardArgs args;
  args.q = read.input(q, "q");
  args.k = read.input(k, "k");
  args.v = read.input(v, "v");
  args.out = read.output(out, "out");
  args.lse = read.floats(lse, "lse", {self.shape().seqlen_q, self.shape().num_heads_q});
  args.options = options;
  args.workspace = as_workspace(workspace);
  self.forward(indices, args, stream);
}

void backward(const TokenCalls& self, nb::handle q, nb::handle k, nb::handle v, uintptr_t indices, nb::handle out,
              nb::handle lse, nb::handle dout, nb::handle dq, nb::handle dk, nb::handle dv, const AttnOptions& options,
              uintptr_t stream, Workspace workspace) {
  Arguments read("TokenAttention.backward", self.on_gpu());
  AttnBackwardArgs args;
  args.q = read.input(q, "q");
  args.k = read.input(k, "k");
  args.v = read.input(v, "v");
  args.out = read.input(out, "out");
  args.lse = read.floats(lse, "lse", {self.shape().seqlen_q, self.shape().num_heads_q});
  args.dout = read.input(dout, "dout");
  args.dq = read.output(dq, "dq");
  args.dk = read.output(dk, "dk");
  args.dv = read.output(dv, "dv");
  args.options = options;
  args.workspace = as_workspace(workspace);
  self.backward(indices, args, stream);
}

}  // namespace

void bind_token_attention(nb::module_& m) {
  nb::class_<TokenCalls>(m, "TokenAttention", "Attention over keys that are named one by one, for calls of one shape.")
      .def(
          "__init__",
          [](TokenCalls* self, std::shared_ptr<Backend> backend, Rows rows, const HeadConfig& heads, int64_t topk) {
            new (self) TokenCalls(std::move(backend), shape_of(rows, heads), topk);
          },
          "backend"_a, "rows"_a, "heads"_a, "topk"_a, "rows: seqlen_q and seqlen_k. Raises InvalidArgument.")
      .def_prop_ro("forward_workspace_bytes", &TokenCalls::forward_workspace_bytes)
      .def("backward_workspace_bytes", &TokenCalls::backward_workspace_bytes, "deterministic"_a)
      .def("forward", &forward, "q"_a, "k"_a, "v"_a, "indices"_a, "out"_a, "lse"_a, "options"_a = AttnOptions{},
           "stream"_a = 0, "workspace"_a = Workspace{0, 0},
           "Writes out and lse. indices: address of [seqlen_q, num_heads_kv, topk] int32 in the memory of the backend; "
           "workspace: as FlexAttention.forward's.")
      .def("backward", &backward, "q"_a, "k"_a, "v"_a, "indices"_a, "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a, "dv"_a,
           "options"_a = AttnOptions{}, "stream"_a = 0, "workspace"_a = Workspace{0, 0}, "Writes dq, dk and dv.");
  m.def(
      "token_refusal",
      [](const Backend& backend, Rows rows, const HeadConfig& heads, int64_t topk) {
        return refusal_of(backend, shape_of(rows, heads), topk);
      },
      "backend"_a, "rows"_a, "heads"_a, "topk"_a, "What calls of this shape would need, or nothing.");
  m.def(
      "check_token_errors",
      [](const Backend& backend) {
        const nb::gil_scoped_release release;
        const DeviceScope scope(backend.device());
        if (backend.get().token_attention() != nullptr) backend.get().token_attention()->check_errors();
      },
      "backend"_a, "Raises what the GPU has refused, once.");
}

}  // namespace tangram::python
