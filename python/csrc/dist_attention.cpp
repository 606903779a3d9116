// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/communicator.hpp and tangram/dist_attention.hpp.
#include "tangram/dist_attention.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "backend.hpp"
#include "core/require.hpp"
#include "tangram/socket_group.hpp"
#include "tensor.hpp"

namespace tangram::python {

namespace {

// Connects without the GIL, and ends without it: other ranks may be threads of the same process, or late.
class Group {
 public:
  Group(int rank, int size, const std::string& address) {
    const nb::gil_scoped_release release;
    sockets_.emplace(SocketGroupConfig{.rank = rank, .size = size, .address = address});
  }
  ~Group() {
    const nb::gil_scoped_release release;
    sockets_.reset();
  }
  Communicator& communicator() { return sockets_->communicator(); }

 private:
  std::optional<SocketGroup> sockets_;
};

class SharedDistAttention {
 public:
  SharedDistAttention(std::shared_ptr<const Plan> plan, std::shared_ptr<Group> group, std::shared_ptr<Backend> backend)
      : group_(std::move(group)), backend_(std::move(backend)) {
    const nb::gil_scoped_release release;
    attention_.emplace(std::move(plan), group_->communicator(), backend_->get());
  }

  void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle max_logits,
               nb::handle sink, const std::string& sink_layout, KeptKv* kept, const AttnOptions& options) {
    const HeadConfig& heads = attention_->plan().config.heads;
    DistForwardArgs args;
    take_part([&] {
      Arguments read("calc_attn", backend_->on_gpu());
      args.q = read.input(q, "q");
      args.k = read.input(k, "k");
      args.v = read.input(v, "v");
      args.out = read.output(out, "out");
      args.lse = read.floats(lse, "lse", {attention_->q_rows(), heads.num_heads_q});
      args.max_logits = read.floats(max_logits, "max_logits", {heads.num_heads_q});
      args.sink = read.sink(sink, sink_layout, attention_->q_rows(), heads.num_heads_q);
    });
    args.kept = kept;
    args.options = options;
    const nb::gil_scoped_release release;
    attention_->forward(args);
  }

  void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout,
                nb::handle dq, nb::handle dk, nb::handle dv, nb::handle dsink, nb::handle sink,
                const std::string& sink_layout, const KeptKv* kept, const std::string& dsink_reduce,
                const AttnOptions& options) {
    const HeadConfig& heads = attention_->plan().config.heads;
    DistBackwardArgs args;
    take_part([&] {
      Arguments read("calc_attn backward", backend_->on_gpu());
      args.q = read.input(q, "q");
      args.k = read.input(k, "k");
      args.v = read.input(v, "v");
      args.out = read.input(out, "out");
      args.lse = read.floats(lse, "lse", {attention_->q_rows(), heads.num_heads_q});
      args.dout = read.input(dout, "dout");
      args.dq = read.output(dq, "dq");
      args.dk = read.output(dk, "dk");
      args.dv = read.output(dv, "dv");
      args.sink = read.sink(sink, sink_layout, attention_->q_rows(), heads.num_heads_q);
      args.dsink = args.sink.layout == SinkLayout::kSsh
                       ? read.floats(dsink, "dsink", {attention_->q_rows(), args.sink.seqlen_sink, heads.num_heads_q})
                       : read.floats(dsink, "dsink", {args.sink.seqlen_sink, heads.num_heads_q});
      require(dsink_reduce == "none" || dsink_reduce == "sum" || dsink_reduce == "avg",
              "calc_attn: dsink_reduce must be 'none', 'sum' or 'avg' (got '{}')", dsink_reduce);
    });
    args.dsink_reduce = dsink_reduce == "none"  ? DsinkReduce::kNone
                        : dsink_reduce == "sum" ? DsinkReduce::kSum
                                                : DsinkReduce::kAvg;
    args.kept = kept;
    args.options = options;
    const nb::gil_scoped_release release;
    attention_->backward(args);
  }

 private:
  // A rank whose arguments are unreadable tells its peers, which would wait for it.
  template <class Read>
  void take_part(Read read) {
    try {
      read();
    } catch (const InvalidArgument& error) {
      const nb::gil_scoped_release release;
      group_->communicator().refuse(error.what());
      throw;
    }
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<Backend> backend_;
  std::optional<DistAttention> attention_;
};

void bind_group(nb::module_& m) {
  nb::class_<Group>(m, "Group", "The communicator of one rank of a process group.")
      .def(nb::init<int, int, const std::string&>(), "rank"_a, "size"_a, "address"_a,
           "Connects to the other ranks, which meet at unix:FOLDER or tcp:HOST:PORT. Collective; Timeout names who is "
           "missing.")
      .def(
          "all_to_all",
          [](Group& self, nb::handle send, const std::vector<int64_t>& send_rows, nb::handle recv,
             const std::vector<int64_t>& recv_rows, const std::string& label) {
            Arguments read("all_to_all", false);
            const ConstTensorView from = read.input(send, "send");
            const TensorView to = read.output(recv, "recv");
            const nb::gil_scoped_release release;
            self.communicator().all_to_all_v(from, send_rows, to, recv_rows, label)->wait();
          },
          "send"_a, "send_rows"_a, "recv"_a, "recv_rows"_a, "label"_a,
          "Rows [rows, heads, dim] for rank 0, 1, ... one after the other; recv likewise. Collective.")
      .def(
          "require_agreement",
          [](Group& self, uint64_t value, const std::string& what) {
            const nb::gil_scoped_release release;
            self.communicator().require_agreement(value, what);
          },
          "value"_a, "what"_a, "Raises InvalidArgument on every rank unless all passed the same value. Collective.")
      .def(
          "traffic", [](Group& self) { return self.communicator().counters().rows_received; },
          "Rows received so far; a token whose K and V both travel counts twice.");
}

}  // namespace

void bind_dist_attention(nb::module_& m) {
  bind_group(m);
  nb::class_<KeptKv>(m, "KeptKv", "Remote K/V that a forward pass leaves to its backward pass.").def(nb::init<>());
  m.def("position_ids", &position_ids, "dispatch"_a, "rank"_a, "Global row of each row of a rank's shard.");
  nb::class_<SharedDistAttention>(m, "DistAttention", "One rank's part in distributed attention by a plan.")
      .def(nb::init<std::shared_ptr<const Plan>, std::shared_ptr<Group>, std::shared_ptr<Backend>>(), "plan"_a,
           "group"_a, "backend"_a, "Collective: raises InvalidArgument on every rank when ranks disagree.")
      .def("forward", &SharedDistAttention::forward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a,
           "max_logits"_a.none() = nb::none(), "sink"_a.none() = nb::none(), "sink_layout"_a = "sh",
           "kept"_a.none() = nb::none(), "options"_a = AttnOptions{})
      .def("backward", &SharedDistAttention::backward, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a,
           "dv"_a, "dsink"_a.none() = nb::none(), "sink"_a.none() = nb::none(), "sink_layout"_a = "sh",
           "kept"_a.none() = nb::none(), "dsink_reduce"_a = "sum", "options"_a = AttnOptions{});
}

}  // namespace tangram::python
