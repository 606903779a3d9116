// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/dist_attention.hpp.
#include "tangram/dist_attention.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "backend.hpp"
#include "dist_arguments.hpp"
#include "group.hpp"
#include "plan/program/emit.hpp"
#include "tangram/error.hpp"
#include "workspace.hpp"

namespace tangram::python {

namespace {

// Whether a forward pass of this plan leaves rows of other ranks, or heads, to its backward pass.
bool keeps_between_passes(const Plan& plan) {
  const auto fetches = [](const MovementRank& of) { return of.remote_q_rows > 0 || of.remote_kv_rows > 0; };
  const MovementPlan* movement = plan.movement();
  return plan.config.overlap.keep_remote_kv && can_keep(plan) &&
         (movement == nullptr || std::any_of(movement->forward.begin(), movement->forward.end(), fetches));
}

// About what lists and row tables of a plan that moves K/V alone take, on the rank where it is most; the same on every
// rank.
int64_t estimate_device_bytes(const Plan& plan) {
  constexpr int64_t kRowBytes = 24;
  int64_t rows = plan.q_dispatch.rows_per_rank();
  for (const RankPlan& rank : plan.rank_totals()) rows = std::max(rows, rank.kv_rows);
  return executor_bytes(plan) + kRowBytes * rows;
}

// A rank's executor, whose tensors lie in host memory or on its GPU.
class SharedDistAttention {
 public:
  SharedDistAttention(std::shared_ptr<const Plan> plan, std::shared_ptr<Group> group, std::shared_ptr<Backend> backend)
      : backend_(std::move(backend)), group_(std::move(group)) {
    const nb::gil_scoped_release release;
    attention_ = std::make_shared<DistAttention>(std::move(plan), group_->communicator(), backend_->get());
  }
  SharedDistAttention(std::shared_ptr<const Plan> plan, std::shared_ptr<DeviceGroup> group,
                      std::shared_ptr<Backend> backend, int64_t row_sinks, const std::optional<std::string>& out_dtype,
                      const std::optional<std::string>& grad_dtype)
      : backend_(std::move(backend)), gpus_(std::move(group)) {
    keeps_ = keeps_between_passes(*plan);
    DistAttentionOptions options{.row_sinks = row_sinks};
    if (out_dtype) options.result_dtype = parse_dtype(*out_dtype);
    if (grad_dtype) options.grad_dtype = parse_dtype(*grad_dtype);
    gpus_->prepare([&] {
      attention_ = std::make_shared<DistAttention>(std::move(plan), gpus_->communicator(), backend_->get(), options);
      if (!attention_->met_peers()) {
        largest_device_bytes_ = estimate_device_bytes(attention_->plan());
        return;
      }
      // In KiB, which float32 holds up to 16 GiB.
      float most = static_cast<float>(attention_->device_bytes() / 1024 + 1);
      gpus_->communicator().control().all_reduce({&most, 1}, ReduceOp::kMax, "bytes of a key");
      largest_device_bytes_ = static_cast<int64_t>(most) * 1024;
    });
  }
  // Where memory is its own kernels may still use what ends here; lists are used again once they have been read.
  ~SharedDistAttention() {
    if (gpus_ == nullptr || attention_ == nullptr) return;
    const nb::gil_scoped_release release;
    try {
      const DeviceScope scope(gpus_->device());
      if (attention_->met_peers()) finish_device();
      attention_.reset();
    } catch (const std::exception&) {  // the process ends, or the device is lost
    }
  }
  SharedDistAttention(const SharedDistAttention&) = delete;
  SharedDistAttention& operator=(const SharedDistAttention&) = delete;

  void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle max_logits,
               nb::handle sink, const std::string& sink_layout, KeptKv* kept, const AttnOptions& options,
               uintptr_t stream, const Workspace& workspace) {
    Arguments read("calc_attn", backend_->on_gpu());
    DistForwardArgs args;
    take_part([&] { args = read_forward(read, rows(), {q, k, v, out, lse}, max_logits, sink, sink_layout); });
    args.kept = kept_or(kept);
    args.options = options;
    args.workspace = as_workspace(workspace);
    run(reinterpret_cast<void*>(stream), [&](void* on) { attention_->forward(args, on); });
    if (gpus_ != nullptr) ++num_forward_;
  }

  void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout,
                nb::handle dq, nb::handle dk, nb::handle dv, nb::handle dsink, nb::handle sink,
                const std::string& sink_layout, const KeptKv* kept, const std::string& dsink_reduce,
                const AttnOptions& options, uintptr_t stream, const Workspace& workspace) {
    Arguments read("calc_attn backward", backend_->on_gpu());
    DistBackwardArgs args;
    take_part([&] {
      args =
          read_backward(read, rows(), {q, k, v, out, lse}, {dout, dq, dk, dv, dsink}, sink, sink_layout, dsink_reduce);
    });
    args.kept = kept_or(kept);
    args.options = options;
    args.workspace = as_workspace(workspace);
    run(reinterpret_cast<void*>(stream), [&](void* on) { attention_->backward(args, on); });
    if (gpus_ != nullptr) kept_.valid = false;
  }

  // The number of the latest forward pass whose remote K/V stay in GPU memory, and whether they are still there.
  int64_t latest_kept() const { return num_forward_; }
  bool still_keeps(int64_t pass) const { return !keeps_ || (kept_.valid && pass == num_forward_); }
  // Seconds of the last pass in which this rank's thread waited for its peers. Nothing where passes run on a GPU.
  std::optional<double> waited_s(bool of_backward) const {
    if (gpus_ != nullptr) return std::nullopt;
    double seconds = 0;
    for (const TraceEvent& event : attention_->trace()) {
      const bool waits = event.kind == TraceKind::kWaitCast || event.kind == TraceKind::kWaitReduce ||
                         event.kind == TraceKind::kAllReduce;
      if (waits && (event.pass == AttnPass::kBackward) == of_backward) seconds += event.end_s - event.begin_s;
    }
    return seconds;
  }
  int64_t device_bytes() const { return attention_->device_bytes(); }
  int64_t largest_device_bytes() const { return largest_device_bytes_; }
  int64_t forward_workspace_bytes() const { return attention_->forward_workspace_bytes(); }
  int64_t backward_workspace_bytes() const { return attention_->backward_workspace_bytes(); }

 private:
  RowsOfQueries rows() const { return {attention_->q_rows(), attention_->plan().config.heads.num_heads_q}; }
  // A rank whose arguments are unreadable tells its peers, which would wait for it.
  template <class Read>
  void take_part(Read read) {
    try {
      read();
    } catch (const InvalidArgument& error) {
      if (gpus_ != nullptr) {
        gpus_->refuse(error.what());
      } else {
        const nb::gil_scoped_release release;
        group_->communicator().refuse(error.what());
      }
      throw;
    }
  }
  template <class Pass>
  void run(void* stream, const Pass& pass) {
    if (gpus_ == nullptr) {
      const nb::gil_scoped_release release;
      pass(nullptr);
      return;
    }
    gpus_->enqueue(stream, [&] {
      try {
        keep_while_graph_lives(stream, attention_);
        pass(stream);
      } catch (const std::exception& error) {
        gpus_->communicator().abort(error.what());
        throw;
      }
    });
  }
  template <class Kept>  // const or not
  Kept* kept_or(Kept* given) {
    if (gpus_ == nullptr) return given;
    return keeps_ ? &kept_ : nullptr;
  }

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<Group> group_;              // on hosts
  std::shared_ptr<DeviceGroup> gpus_;         // on GPUs
  std::shared_ptr<DistAttention> attention_;  // graphs that were captured with it hold it, too
  // NOTE [kept pass]: what one forward pass on GPUs leaves for its backward pass; the next forward pass takes the
  // memory over, whether the backward pass came or not. So all ranks give it back at the same calls, and none when
  // Python collects.
  bool keeps_ = false;
  KeptKv kept_;
  int64_t num_forward_ = 0;
  int64_t largest_device_bytes_ = 0;  // of all ranks, alike on all
};

}  // namespace

void bind_dist_attention(nb::module_& m) {
  nb::class_<KeptKv>(m, "KeptKv", "Remote K/V that a forward pass leaves to its backward pass.").def(nb::init<>());
  nb::class_<SharedDistAttention>(m, "DistAttention", "One rank's part in distributed attention by a plan.")
      .def(nb::init<std::shared_ptr<const Plan>, std::shared_ptr<Group>, std::shared_ptr<Backend>>(), "plan"_a,
           "group"_a, "backend"_a, "Collective: raises InvalidArgument on every rank when ranks disagree.")
      .def(
          nb::init<std::shared_ptr<const Plan>, std::shared_ptr<DeviceGroup>, std::shared_ptr<Backend>, int64_t,
                   const std::optional<std::string>&, const std::optional<std::string>&>(),
          "plan"_a, "group"_a, "backend"_a, "row_sinks"_a = 0, "out_dtype"_a.none() = nb::none(),
          "grad_dtype"_a.none() = nb::none(),
          "The same for tensors in GPU memory. Over copy engines ranks meet, and wait for their GPUs, only where heads "
          "or queries move, where K/V are kept, or where memory must grow; those that differ raise InvalidArgument "
          "here, in a later call, or in check, and the group is broken. row_sinks: of calls by a strategy that "
          "exchanges heads, how many sinks of its own (layout 'ssh') each row has; out_dtype, grad_dtype: there, the "
          "dtypes in which results move.")
      .def(
          "forward", &SharedDistAttention::forward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a,
          "max_logits"_a.none() = nb::none(), "sink"_a.none() = nb::none(), "sink_layout"_a = "sh",
          "kept"_a.none() = nb::none(), "options"_a = AttnOptions{}, "stream"_a = 0, "workspace"_a = Workspace{0, 0},
          "workspace: address and bytes of GPU memory, at least forward_workspace_bytes and aligned to 256 bytes, that "
          "is the call's in stream order; without it the passes of a group share one.")
      .def("backward", &SharedDistAttention::backward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a,
           "dv"_a, "dsink"_a.none() = nb::none(), "sink"_a.none() = nb::none(), "sink_layout"_a = "sh",
           "kept"_a.none() = nb::none(), "dsink_reduce"_a = "sum", "options"_a = AttnOptions{}, "stream"_a = 0,
           "workspace"_a = Workspace{0, 0}, "workspace: as forward's, of at least backward_workspace_bytes.")
      .def_prop_ro("device_bytes", &SharedDistAttention::device_bytes,
                   "GPU memory that the object holds, beside what its group shares.")
      .def_prop_ro("largest_device_bytes", &SharedDistAttention::largest_device_bytes,
                   "About the most of any rank: alike on all ranks.")
      .def_prop_ro("forward_workspace_bytes", &SharedDistAttention::forward_workspace_bytes,
                   "What forward needs as its workspace, 0: none.")
      .def_prop_ro("backward_workspace_bytes", &SharedDistAttention::backward_workspace_bytes, "The same of backward.")
      .def_prop_ro("latest_kept", &SharedDistAttention::latest_kept,
                   "Over GPUs: the number of the latest forward pass, whose remote K/V stay where the plan keeps them.")
      .def("waited_s", &SharedDistAttention::waited_s, "of_backward"_a,
           "Seconds of the last forward or backward pass in which this rank waited for rows of its peers, and nothing "
           "hid the wait. None on GPUs, where kernels wait.")
      .def("still_keeps", &SharedDistAttention::still_keeps, "number"_a,
           "Whether backward of that pass can run: not where K/V were kept and a later pass has taken their memory.");
}

}  // namespace tangram::python
