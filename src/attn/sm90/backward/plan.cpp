// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/backward/plan.hpp"

namespace tangram::sm90::backward {
namespace {

template <typename T>
cuda::DeviceBuffer upload(const std::vector<T>& values) {
  return cuda::DeviceBuffer::copy_of(values.data(), values.size() * sizeof(T));
}

}  // namespace

Plan::Plan(const WorkList& work, const AttnShape& shape)
    : num_items_(static_cast<int32_t>(work.items.size())),
      num_q_tiles_(static_cast<int32_t>(work.q_tiles.size())),
      walk_(work.walk),
      deterministic_walk_(work.deterministic_walk),
      zeroed_sums_(work.zeroed_sums) {
  const auto tiles = work.q_tiles.size() * static_cast<size_t>(shape.num_heads_q);
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  const auto slabs = static_cast<size_t>(work.num_slabs);
  items_ = upload(work.items);
  deterministic_items_ = upload(work.deterministic_items);
  num_deterministic_items_ =
      work.deterministic_items.empty() ? num_items_ : static_cast<int32_t>(work.deterministic_items.size());
  runs_ = upload(work.runs);
  run_tiles_ = upload(work.run_tiles);
  q_tiles_ = upload(work.q_tiles);
  intervals_ = upload(work.intervals);
  covered_queries_ = upload(work.covered_queries);
  turn_segments_ = upload(work.turn_segments);
  stats_ = cuda::DeviceBuffer(tiles * 64 * 4 * sizeof(float));
  dq_sums_ = cuda::DeviceBuffer(tiles * 64 * head_dim * sizeof(float));
  slabs_ = cuda::DeviceBuffer::zeros(slabs * 2 * 128 * head_dim * sizeof(float));
  piece_turns_ = cuda::DeviceBuffer::zeros(slabs * sizeof(int32_t));
  ticket_ = cuda::DeviceBuffer::zeros(sizeof(int32_t));
  turns_ = cuda::DeviceBuffer(tiles * 2 * sizeof(int32_t));
}

void Plan::fill(Params& params, EdgeParams& edge, bool deterministic) const {
  params.items = (deterministic && deterministic_items_.bytes() > 0 ? deterministic_items_ : items_).as<Item>();
  params.runs = runs_.as<TileRun>();
  params.run_tiles = run_tiles_.as<RunTiles>();
  params.q_tiles = edge.q_tiles = q_tiles_.as<QueryTile>();
  params.intervals = intervals_.as<RowInterval>();
  params.covered_queries = edge.covered_queries = covered_queries_.as<uint64_t>();
  params.turn_segments = turn_segments_.as<TurnSegment>();
  params.stats = edge.stats = stats_.as<float>();
  params.dq_sums = edge.dq_sums = dq_sums_.as<float>();
  params.slabs = slabs_.as<float>();
  params.piece_turns = piece_turns_.as<int32_t>();
  params.ticket = edge.ticket = ticket_.as<int32_t>();
  params.turns = edge.turns = turns_.as<int32_t>();
  params.zeroed_sums = edge.zeroed_sums = zeroed_sums_;
  params.num_items = static_cast<int32_t>(num_items(deterministic));
  params.num_q_tiles = edge.num_q_tiles = num_q_tiles_;
  params.walk = deterministic ? deterministic_walk_ : walk_;
}

}  // namespace tangram::sm90::backward
