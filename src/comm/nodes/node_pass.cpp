// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_pass.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr int kStagesAtATime = 2;  // RelayUse::kTwoStages

/// `rows` of each tensor, from rows `from(row)` to rows `to(row)`, in chunks whose peer is the tensor.
template <class From, class To>
std::vector<Chunk> chunks_of(const std::vector<RelayedRows>& rows, const std::vector<int64_t>& row_bytes, From from,
                             To to) {
  std::vector<Chunk> chunks;
  for (const RelayedRows& piece : rows) {
    for (size_t t = 0; t < row_bytes.size(); ++t) {
      const int64_t total = piece.relay.size() * row_bytes[t];
      append_chunks(chunks, from(piece) * row_bytes[t], to(piece) * row_bytes[t], total, static_cast<int>(t),
                    static_cast<int>(t));
    }
  }
  return chunks;
}

int64_t relay_row(const RelayedRows& piece) { return piece.relay.begin; }
int64_t target_row(const RelayedRows& piece) { return piece.target; }

void count(TrafficCounters& counters, int64_t rows_sent, int64_t rows_received, const std::vector<int64_t>& row_bytes) {
  counters.operations += 1;
  for (const int64_t bytes : row_bytes) {
    counters.rows_sent += rows_sent;
    counters.rows_received += rows_received;
    counters.bytes_sent += rows_sent * bytes;
    counters.bytes_received += rows_received * bytes;
  }
}

}  // namespace

NodePass::NodePass(const DevicePassSpec& spec, NodeSpecs specs, Parts parts, std::shared_ptr<NodeWork> work,
                   TrafficCounters& counters)
    : spec_(spec),
      specs_(std::move(specs)),
      parts_(std::move(parts)),
      work_(std::move(work)),
      counters_(counters),
      epoch_(spec),
      fork_(work_->make_mark()) {
  for (const Exchange& exchange : spec_.casts) {
    int64_t& rows = source_rows_.emplace_back(0);
    for (const RowCopy& copy : exchange.sends) rows = std::max(rows, copy.rows.end);
  }
  if (!specs_.across.casts.empty()) own_casts_ = prepare_own_casts();
  for (size_t stage = 0; stage < spec_.casts.size(); ++stage) handed_on_.push_back(work_->make_mark());
  if (specs_.across.reduces.empty()) return;
  std::vector<DType> partial_dtypes, reduce_dtypes;
  for (const ReturnTensor& tensor : spec_.returns) {
    partial_dtypes.push_back(tensor.partial_dtype);
    reduce_dtypes.push_back(tensor.reduce_dtype);
  }
  const size_t num_tensors = spec_.returns.size();
  relay_own_ = make_buffers(specs_.return_relay_rows, partial_dtypes, 0);
  relay_sums_ = make_buffers(specs_.return_relay_rows, reduce_dtypes, num_tensors);
  node_sums_ =
      make_buffers(spec_.returns[0].owned_rows, std::vector<DType>(num_tensors, DType::kFloat32), 2 * num_tensors);
  leave_absent_rows();
  own_returns_ = prepare_own_returns();
}

void NodePass::leave_absent_rows() {
  std::vector<Range> added, absent;
  for (const std::vector<RelayedRows>& rows : specs_.own_returns) {
    for (const RelayedRows& piece : rows) added.push_back(piece.relay);
  }
  std::sort(added.begin(), added.end());
  int64_t row = 0;
  for (const Range& rows : added) {
    if (row < rows.begin) absent.push_back({row, rows.begin});
    row = std::max(row, rows.end);
  }
  if (row < specs_.return_relay_rows) absent.push_back({row, specs_.return_relay_rows});
  const bool leaves = parts_.relay->leave_rows({}, absent);
  TANGRAM_ASSERT(leaves);  // DevicePassSpec::leaves_rows
}

int64_t NodePass::Buffers::bytes() const {
  int64_t sum = 0;
  for (const TensorView& view : views) sum += view.rows * view.row_bytes();
  return sum;
}

int64_t NodePass::own_bytes() const {
  int64_t bytes = spec_.shares_memory ? 0 : relay_own_.bytes() + relay_sums_.bytes() + node_sums_.bytes();
  for (const auto& part : {parts_.node, parts_.relay, parts_.across}) bytes += part == nullptr ? 0 : part->own_bytes();
  return bytes;
}

NodePass::MovesByStage NodePass::prepare_own_casts() {
  std::vector<std::vector<char*>> bases;
  for (int slot = 0; slot < num_slots(); ++slot) {
    std::vector<char*>& tensors = bases.emplace_back();
    for (size_t t = 0; t < spec_.recv_buffers.size(); ++t) {
      tensors.push_back(static_cast<char*>(recv_buffers(static_cast<int>(t), slot).data));
    }
  }
  MovesByStage moves;
  for (const std::vector<RelayedRows>& rows : specs_.own_casts) {
    const std::vector<Chunk> chunks = chunks_of(rows, recv_row_bytes(spec_), relay_row, target_row);
    moves.push_back(chunks.empty() ? nullptr : work_->make_moves(chunks, bases));
  }
  return moves;
}

NodePass::MovesByStage NodePass::prepare_own_returns() {
  std::vector<char*> bases;
  std::vector<int64_t> row_bytes;
  for (const TensorView& view : relay_own_.views) {
    bases.push_back(static_cast<char*>(view.data));
    row_bytes.push_back(view.row_bytes());
  }
  MovesByStage moves;
  for (const std::vector<RelayedRows>& rows : specs_.own_returns) {
    const std::vector<Chunk> chunks = chunks_of(rows, row_bytes, target_row, relay_row);
    moves.push_back(chunks.empty() ? nullptr : work_->make_moves(chunks, {bases}));
  }
  return moves;
}

NodePass::Buffers NodePass::make_buffers(int64_t rows, const std::vector<DType>& dtypes, size_t first_shared) {
  Buffers buffers;
  for (size_t t = 0; t < dtypes.size(); ++t) {
    const ReturnTensor& shape = spec_.returns[t];
    const int64_t row = int64_t{shape.heads} * shape.dim;
    const size_t num_bytes = static_cast<size_t>(rows * row) * size_of(dtypes[t]);
    buffers.memory.push_back(spec_.shares_memory ? work_->shared(first_shared + t, num_bytes)
                                                 : work_->zeros(num_bytes));
    buffers.views.push_back({{buffers.memory.back().get(), dtypes[t], rows, shape.heads, shape.dim, row, shape.dim}});
  }
  return buffers;
}

void NodePass::refuse_capture(void* stream) const {
  // NCCL's epochs take other slots in turn, and replays would meet one of them alone.
  if (!work_->is_captured(stream)) return;
  throw NotAvailable(fmt::format(
      "begin '{}': CUDA graphs cannot hold passes over several nodes (got a stream that is being captured); "
      "call attention outside of the graph",
      spec_.label));
}

int NodePass::begin(std::span<const ConstTensorView> own, void* stream) {
  refuse_capture(stream);
  epoch_.begin();
  try {
    slot_ = parts_.node->begin(own, stream);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  open(stream);
  return slot_;
}

int NodePass::begin_kept(KeptSlot kept, void* stream) {
  refuse_capture(stream);
  epoch_.begin();
  try {
    slot_ = parts_.node->begin_kept(kept, stream);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  open(stream);
  return slot_;
}

void NodePass::open(void* stream) {
  if (parts_.relay != nullptr) parts_.relay->begin(stream);
  if (parts_.across != nullptr) across_slot_ = parts_.across->begin(stream);
  sources_.clear();
  next_stage_ = next_across_ = next_handed_on_ = 0;
}

bool NodePass::may_cross() const { return !specs_.reuses_relay || next_across_ < next_handed_on_ + kStagesAtATime; }

void NodePass::cross(void* stream) {
  parts_.across->cast(next_across_, sources_[static_cast<size_t>(next_across_)], stream);
  ++next_across_;
}

void NodePass::cast(int stage, std::span<const ConstTensorView> sources, void* stream) {
  epoch_.require_open("cast");
  const bool is_stage = stage >= 0 && stage < std::ssize(source_rows_);
  check_sources(spec_, sources, is_stage ? source_rows_[static_cast<size_t>(stage)] : 0);
  require(!is_stage || stage == next_stage_,
          "cast '{}': over several nodes stages must be cast in ascending order (got {}, next is {})", spec_.label,
          stage, next_stage_);
  epoch_.cast(stage);
  ++next_stage_;
  sources_.emplace_back(sources.begin(), sources.end());
  if (has_across() && stage == next_across_ && may_cross()) {
    void* from = stream;
    if (specs_.reuses_relay && stage >= kStagesAtATime) {
      from = work_->relay_stream();
      fork_->set(stream);
      fork_->wait(from);
    }
    cross(from);
  }
  parts_.node->cast(stage, sources, stream);
  const Exchange& exchange = spec_.casts[static_cast<size_t>(stage)];
  count(counters_, exchange.rows_sent(), exchange.rows_received(), recv_row_bytes(spec_));
  if (epoch_.all_cast()) hand_on(stream);
}

void NodePass::hand_on(void* stream) {
  if (next_handed_on_ == next_stage_ || !has_across()) return;
  fork_->set(stream);
  fork_->wait(work_->relay_stream());
  std::vector<ConstTensorView> relayed;
  for (size_t t = 0; t < spec_.recv_buffers.size(); ++t) {
    relayed.push_back(parts_.across->recv_buffers(static_cast<int>(t), across_slot_));
  }
  while (next_handed_on_ < next_stage_) hand_on_stage(next_handed_on_, relayed);
}

void NodePass::hand_on_stage(int stage, std::span<const ConstTensorView> relayed) {
  void* const relay_stream = work_->relay_stream();
  parts_.across->wait_group_cast(stage, relay_stream);
  const auto number = [&](int64_t idx) { return static_cast<int>(std::ssize(spec_.casts) + idx); };
  for (int64_t idx = forward(stage).begin; idx < forward(stage).end; ++idx) {
    parts_.node->cast(number(idx), relayed, relay_stream);
  }
  const auto& own = own_casts_[static_cast<size_t>(stage)];
  if (own != nullptr) own->run(relayed, static_cast<size_t>(slot_), relay_stream);
  ++next_handed_on_;
  if (specs_.reuses_relay && next_across_ < next_stage_) {
    for (int64_t idx = forward(stage).begin; idx < forward(stage).end; ++idx) {
      parts_.node->wait_send(number(idx), relay_stream);
    }
    cross(relay_stream);
  }
  handed_on_[static_cast<size_t>(stage)]->set(relay_stream);
}

void NodePass::wait_group_cast(int stage, void* stream) {
  epoch_.wait_group_cast(stage);
  hand_on(stream);
  parts_.node->wait_group_cast(stage, stream);
  if (!has_across()) return;
  for (int64_t idx = forward(stage).begin; idx < forward(stage).end; ++idx) {
    parts_.node->wait_group_cast(static_cast<int>(std::ssize(spec_.casts) + idx), stream);
  }
  handed_on_[static_cast<size_t>(stage)]->wait(stream);
}

void NodePass::wait_started(int stage, void* stream) {
  epoch_.wait_group_cast(stage);
  if (stage < next_across_) parts_.across->wait_started(stage, stream);
}

int NodePass::transfer_sms() const {
  return std::max(parts_.node->transfer_sms(), parts_.across == nullptr ? 0 : parts_.across->transfer_sms());
}

void NodePass::reduce(int stage, std::span<const ConstTensorView> partials, void* stream) {
  epoch_.require_open("reduce");
  check_partials(spec_, partials);
  epoch_.reduce(stage);
  for (int64_t idx = forward(stage).begin; idx < forward(stage).end; ++idx) {
    parts_.relay->reduce(static_cast<int>(idx), partials, stream);
  }
  if (has_across()) {
    const auto& own = own_returns_[static_cast<size_t>(stage)];
    if (own != nullptr) own->run(partials, 0, stream);
  }
  parts_.node->reduce(stage, partials, stream);
  const Exchange& exchange = spec_.reduces[static_cast<size_t>(stage)];
  count(counters_, exchange.rows_received(), exchange.rows_sent(), return_row_bytes(spec_));
}

void NodePass::signal_returned(int, void*) {
  require(false, "signal_returned '{}': kernels cannot store at owners over several nodes; call reduce", spec_.label);
}

void NodePass::finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void* stream) {
  epoch_.require_open("finish_reduce");
  check_sums(spec_, own, sums);
  epoch_.finish_reduce();
  if (!has_across()) {
    parts_.node->finish_reduce(own, sums, stream);
    return;
  }
  const std::vector<ConstTensorView> relay_own(relay_own_.views.begin(), relay_own_.views.end());
  const std::vector<ConstTensorView> relay_sums(relay_sums_.views.begin(), relay_sums_.views.end());
  const std::vector<ConstTensorView> node_sums(node_sums_.views.begin(), node_sums_.views.end());
  parts_.relay->finish_reduce(relay_own, relay_sums_.views, stream);
  for (size_t idx = 0; idx < specs_.across.reduces.size(); ++idx) {
    parts_.across->reduce(static_cast<int>(idx), relay_sums, stream);
  }
  parts_.node->finish_reduce(own, node_sums_.views, stream);
  parts_.across->finish_reduce(node_sums, sums, stream);
}

void NodePass::close(void* stream) {
  epoch_.end();
  if (!has_across()) return;
  // What was handed on reads the relay buffer and writes the receive buffers.
  for (const auto& mark : handed_on_) mark->wait(stream);
}

void NodePass::end(void* stream) {
  close(stream);
  parts_.node->end(stream);
  if (parts_.relay != nullptr) parts_.relay->end(stream);
  if (parts_.across != nullptr) parts_.across->end(stream);
}

KeptSlot NodePass::end_kept(void* stream) {
  close(stream);
  const KeptSlot kept = parts_.node->end_kept(stream);
  if (parts_.relay != nullptr) parts_.relay->end(stream);
  if (parts_.across != nullptr) parts_.across->end(stream);
  return kept;
}

}  // namespace tangram::comm
