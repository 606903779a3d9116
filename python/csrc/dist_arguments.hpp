// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Arguments of passes over ranks as Python gives them, for all executors.
#pragma once

#include <cstdint>
#include <string>

#include "core/require.hpp"
#include "tangram/dist_attention.hpp"
#include "tensor.hpp"

namespace tangram::python {

struct RowsOfQueries {
  int64_t rows = 0;
  int heads = 0;
};
/// Operands of both passes.
struct DistOperands {
  nb::handle q, k, v, out, lse;
};
struct DistGradients {
  nb::handle dout, dq, dk, dv, dsink;
};

// Each throws InvalidArgument. `read` must live as long as what is returned.
inline DistForwardArgs read_forward(Arguments& read, const RowsOfQueries& of, const DistOperands& given,
                                    nb::handle max_logits, nb::handle sink, const std::string& sink_layout) {
  DistForwardArgs args;
  args.q = read.input(given.q, "q");
  args.k = read.input(given.k, "k");
  args.v = read.input(given.v, "v");
  args.out = read.output(given.out, "out");
  args.lse = read.floats(given.lse, "lse", {of.rows, of.heads});
  args.max_logits = read.floats(max_logits, "max_logits", {of.heads});
  args.sink = read.sink(sink, sink_layout, of.rows, of.heads);
  return args;
}

inline DistBackwardArgs read_backward(Arguments& read, const RowsOfQueries& of, const DistOperands& given,
                                      const DistGradients& gradients, nb::handle sink, const std::string& sink_layout,
                                      const std::string& dsink_reduce) {
  DistBackwardArgs args;
  args.q = read.input(given.q, "q");
  args.k = read.input(given.k, "k");
  args.v = read.input(given.v, "v");
  args.out = read.input(given.out, "out");
  args.lse = read.floats(given.lse, "lse", {of.rows, of.heads});
  args.dout = read.input(gradients.dout, "dout");
  args.dq = read.output(gradients.dq, "dq");
  args.dk = read.output(gradients.dk, "dk");
  args.dv = read.output(gradients.dv, "dv");
  args.sink = read.sink(sink, sink_layout, of.rows, of.heads);
  args.dsink = args.sink.layout == SinkLayout::kSsh
                   ? read.floats(gradients.dsink, "dsink", {of.rows, args.sink.seqlen_sink, of.heads})
                   : read.floats(gradients.dsink, "dsink", {args.sink.seqlen_sink, of.heads});
  require(dsink_reduce == "none" || dsink_reduce == "sum" || dsink_reduce == "avg",
          "calc_attn: dsink_reduce must be 'none', 'sum' or 'avg' (got '{}')", dsink_reduce);
  args.dsink_reduce = dsink_reduce == "none"  ? DsinkReduce::kNone
                      : dsink_reduce == "sum" ? DsinkReduce::kSum
                                              : DsinkReduce::kAvg;
  return args;
}

}  // namespace tangram::python
