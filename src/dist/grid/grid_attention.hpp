// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Both passes of a plan with a grid: heads are exchanged chunk by chunk, rows attend in between.
#pragma once

#include <memory>

#include "dist/grid/head_exchange.hpp"
#include "dist/grid/row_attention.hpp"

namespace tangram {

/// What forward keeps of each chunk of heads: q, k, v, out, lse, and sinks of single rows where there are such.
size_t kept_tensors_of_chunk(const Sink& sink);

/// NOTE [head chunks]: while chunk c computes, the inputs of chunk c + 1 and the results of chunk c - 1 travel (HCMS,
/// arXiv 2607.01817; with one chunk, Ulysses). Every head is computed by one call over the same rows and keys however
/// heads are cut, so results do not depend on the chunks.
class GridAttention {
 public:
  /// `context` must outlive the object.
  explicit GridAttention(RankContext& context);

  void forward(const DistForwardArgs& args);
  void backward(const DistBackwardArgs& args);

 private:
  struct Chunk {
    HeadChunk q, kv;
  };
  struct ChunkState;

  void forward_by_heads(const DistForwardArgs& args);
  void backward_by_heads(const DistBackwardArgs& args);
  void send_for_forward(const DistForwardArgs& args, const HostTensor& sinks, size_t chunk, ChunkState& state);
  void send_for_backward(const DistBackwardArgs& args, const HostTensor& sinks, size_t chunk, ChunkState& state);
  void compute_backward(const DistBackwardArgs& args, size_t chunk, ChunkState& state);
  void finish_backward(const DistBackwardArgs& args, HostTensor& dsinks, size_t chunk, ChunkState& state);
  void wait(HeadExchange::Exchanged& exchanged, size_t chunk, bool inputs);
  /// The sink of this rank's heads of a chunk: out of one of all heads, or what `of_rows` says, `[rows, heads, sinks]`,
  /// in the layout of sinks.
  std::vector<float> sink_of(const Sink& sink, size_t chunk, const ConstTensorView& of_rows) const;
  /// Sinks of single rows as they travel, `[q shard rows, num_heads_q, sinks]`; empty for other sinks.
  HostTensor sink_by_heads(const Sink& sink, int64_t rows) const;
  int first_q_head(size_t chunk) const;

  RankContext& context_;
  std::unique_ptr<RowAttention> rows_;
  std::unique_ptr<HeadExchange> q_exchange_;  // null without head ranks
  std::unique_ptr<HeadExchange> kv_exchange_;
  std::vector<Chunk> chunks_;
};

}  // namespace tangram
