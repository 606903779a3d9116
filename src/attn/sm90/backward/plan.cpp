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

void Plan::make_ready(bool deterministic) {
  const auto tiles = static_cast<size_t>(work_.num_q_tiles) * static_cast<size_t>(shape_.num_heads_q);
  const auto head_dim = static_cast<size_t>(shape_.head_dim);
  if (!ready_) {
    items_ = upload(work_.items);
    runs_ = upload(work_.runs);
    intervals_ = upload(work_.intervals);
    covered_queries_ = upload(work_.covered_queries);
    stats_ = cuda::DeviceBuffer(tiles * 64 * 2 * sizeof(float));
    dq_sums_ = cuda::DeviceBuffer(tiles * 64 * head_dim * sizeof(float));
    const auto slabs = static_cast<size_t>(work_.num_slabs);
    slabs_ = cuda::DeviceBuffer(slabs * 2 * 128 * head_dim * sizeof(float));
    piece_turns_ = cuda::DeviceBuffer::zeros(slabs * sizeof(int32_t));
    ticket_ = cuda::DeviceBuffer::zeros(sizeof(int32_t));
    ready_ = true;
  }
  if (deterministic && !turns_ready_) {
    orders_ = upload(turn_orders(work_));
    turns_ = cuda::DeviceBuffer(tiles * sizeof(int32_t));
    turns_ready_ = true;
  }
}

void Plan::fill(Params& params, EdgeParams& edge, bool deterministic) const {
  params.items = items_.as<Item>();
  params.runs = runs_.as<TileRun>();
  params.intervals = intervals_.as<RowInterval>();
  params.covered_queries = covered_queries();
  params.stats = edge.stats = stats_.as<float>();
  params.dq_sums = edge.dq_sums = dq_sums_.as<float>();
  params.slabs = slabs_.as<float>();
  params.piece_turns = piece_turns_.as<int32_t>();
  params.ticket = edge.ticket = ticket_.as<int32_t>();
  params.orders = deterministic ? orders_.as<int32_t>() : nullptr;
  params.turns = edge.turns = deterministic ? turns_.as<int32_t>() : nullptr;
  params.num_items = static_cast<int32_t>(work_.items.size());
  params.num_q_tiles = edge.num_q_tiles = work_.num_q_tiles;
}

}  // namespace tangram::sm90::backward
