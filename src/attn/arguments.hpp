// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The checks that attention backends and passes over ranks share, so that each refuses the same mistakes with the same
// words.
#pragma once

#include <span>

#include "tangram/attention.hpp"

namespace tangram {

/// Throws InvalidArgument unless sizes are possible, heads divide, and the slices lie inside the sequences and are
/// disjoint. `function` starts the message.
void validate_mask(const char* function, std::span<const AttnSlice> slices, const AttnShape& shape);

/// One tensor argument as the shape wants it.
struct ExpectedTensor {
  const char* name;
  int64_t rows;
  int heads;
  int dim;
};

/// Parts of the checks below.
void validate_tensor(const char* function, const ConstTensorView& view, const ExpectedTensor& expected);
void validate_options(const char* function, const AttnOptions& options);
void validate_sink(const char* function, const Sink& sink);

/// Throws InvalidArgument unless every argument fits `shape`. Looks at no element.
void validate_forward(const char* function, const AttnShape& shape, const AttnForwardArgs& args);
void validate_backward(const char* function, const AttnShape& shape, const AttnBackwardArgs& args);

/// The scale of the options, or 1 / sqrt(head_dim).
float softmax_scale_of(const AttnOptions& options, const AttnShape& shape);

/// log(sum(exp(sink))) of one query row and head; -inf without a sink.
double sink_lse(const Sink& sink, int num_heads_q, int64_t row, int head);

/// Rows of the sink: one set for all queries (kSh) or one per query (kSsh).
inline int64_t sink_offset(const Sink& sink, int num_heads_q, int64_t row, int64_t sink_idx, int head) {
  const int64_t set = sink.layout == SinkLayout::kSh ? 0 : row;
  return (set * sink.seqlen_sink + sink_idx) * num_heads_q + head;
}

}  // namespace tangram
