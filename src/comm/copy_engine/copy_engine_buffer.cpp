// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/copy_engine/copy_engine_buffer.hpp"

#include <algorithm>
#include <numeric>

#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

namespace {

Caller caller_of(const CopyEngineGroup& group) { return {group.state.rank(), group.state.size()}; }

DevicePassSpec tensors_of(const BufferedPassSpec& spec) {
  return {.label = spec.label, .recv_buffers = spec.recv_buffers, .returns = spec.returns};
}

}  // namespace

CopyEngineBuffer::CopyEngineBuffer(std::shared_ptr<CopyEngineGroup> group, const BufferedPassSpec& spec)
    : group_(std::move(group)), spec_(spec), image_(caller_of(*group_), spec), ring_(image_.bytes()) {
  Communicator& control = group_->state.control();
  const int size = group_->state.size(), rank = group_->state.rank();
  const auto num_ranks = static_cast<size_t>(size);
  numbers_[slot_of(AttnPass::kForward)] = group_->state.add_pass("forward of " + spec_.label);
  numbers_[slot_of(AttnPass::kBackward)] = group_->state.add_pass("backward of " + spec_.label);
  const auto all = [&](int64_t rows) { return std::vector<int64_t>(num_ranks, rows); };
  const DevicePassSpec tensors = tensors_of(spec_);
  recv_buffers_ = std::make_unique<SlotTensors>(
      control, group_->heap, nullptr,
      SlotTensors::Shape{all(spec_.recv_buffers.front().rows), recv_row_bytes(tensors), kSlots, 0, 0},
      "receive buffers of '" + spec_.label + "'", [] {});
  const bool returns = !spec_.returns.empty();
  returns_ = std::make_unique<SlotTensors>(
      control, group_->heap, nullptr,
      SlotTensors::Shape{all(returns ? spec_.sent_rows : 0), return_row_bytes(tensors), 1, int64_t{2} * size, 0},
      "return areas of '" + spec_.label + "'", [] {});
  for (size_t t = 0; t < spec_.recv_buffers.size(); ++t) {
    tensor_offsets_.push_back(recv_buffers_->tensor_offset(rank, static_cast<int>(t)));
  }
  memory_ = std::make_shared<cuda::DeviceBuffer>(cuda::DeviceBuffer::zeros(image_.bytes()));
  zeros_ = cuda::DeviceBuffer::zeros(kMaxChunkBytes);
  exchange_ = cuda::DeviceBuffer::zeros(2 * sizeof(int32_t));
  std::vector<uint32_t> list;
  for (int step = 1; step < size; ++step) list.push_back(static_cast<uint32_t>((rank + step) % size));
  list.push_back(0);
  peers_ = cuda::DeviceBuffer::copy_of(list.data(), list.size() * sizeof(uint32_t));
  std::vector<void*> areas;
  for (size_t t = 0; t < spec_.returns.size(); ++t) {
    for (int owner = 0; owner < size; ++owner) {
      areas.push_back(owner == rank ? nullptr : returns_->address(owner, 0, static_cast<int>(t)));
    }
  }
  if (returns) return_areas_ = cuda::DeviceBuffer::copy_of(areas.data(), areas.size() * sizeof(void*));
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  control.barrier("make_buffered_pass: ready");
}

void CopyEngineBuffer::set(const BufferedTables& tables, const std::function<void(std::byte*)>& write, void* stream) {
  group_->state.check();  // of replays, which check nothing themselves
  image_.check(tables);
  require(!is_open_, "BufferedPass::set: must come between epochs (got an open one of '{}')", spec_.label);
  require(!cuda::is_captured(cuda::as_stream(stream)),
          "BufferedPass::set: the stream must not be being captured, tables are set between replays (got one that is)");
  const size_t bytes = image_.write(ring_.next(), tables, group_->state.fingerprint_tag(), tensor_offsets_, write);
  ring_.copy_to(memory_->as<void>(), bytes, cuda::as_stream(stream));
  rows_sent_ = tables.exchange.rows_sent();
  rows_received_ = tables.exchange.rows_received();
  is_set_ = true;
}

uint64_t CopyEngineBuffer::peers() const {
  const uint64_t all = group_->state.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << group_->state.size()) - 1;
  return all & ~(uint64_t{1} << group_->state.rank());
}

EpochParams CopyEngineBuffer::epoch_params() const {
  const int slot = slot_of(open_);
  EpochParams params = group_->epoch_params(numbers_[slot]);
  params.tag = fingerprint_tag_;
  params.tables_tag = &counts()->tag;
  params.recv_buffers = {(*recv_buffers_)->epoch_cell(slot), (*recv_buffers_)->released(slot), peers()};
  if (has_returns()) params.returns = {(*returns_)->epoch_cell(0), (*returns_)->released(0), peers()};
  return params;
}

void CopyEngineBuffer::require_open(const char* function) const {
  require(is_open_, "{} '{}': needs an open epoch (got none)", function, spec_.label);
}

void CopyEngineBuffer::check_begin(AttnPass pass, std::span<const ConstTensorView> sources) const {
  require(is_set_ && !is_open_, "BufferedPass::begin '{}': needs tables and no open epoch (got {})", spec_.label,
          is_set_ ? "an open one" : "none set");
  require(pass == AttnPass::kForward || !spec_.returns.empty(),
          "BufferedPass::begin '{}': needs a backward pass (got one made without)", spec_.label);
  check_sources(tensors_of(spec_), sources, spec_.own_rows);
  group_->state.check();
}

void CopyEngineBuffer::begin(AttnPass pass, std::span<const ConstTensorView> sources, void* stream) {
  const cuda::ProfileRange range("tangram: group_cast");
  check_begin(pass, sources);
  cuda::keep_while_graph_lives(cuda::as_stream(stream), memory_);
  open_ = pass;
  is_open_ = true;
  fingerprint_tag_ = group_->state.fingerprint_tag();
  ExchangeParams params;
  params.epoch = epoch_params();
  params.own.chunks = at<Chunk>(image_.chunks());
  params.own.bases = (*recv_buffers_)->bases(slot_of(pass));
  for (size_t t = 0; t < sources.size(); ++t) params.own.sources[t] = sources[t].data;
  params.sent = params.own;
  params.own.count = image_.max_own_chunks();
  params.own.range = counts()->own_chunks;
  params.own.sources[image_.zero_source()] = zeros_.as<void>();
  params.sent.count = image_.max_sent_chunks();
  params.sent.range = counts()->sent_chunks;
  params.wait = wait_params(cuda::WaitKind::kReadyFlag);
  params.state = exchange_.as<int32_t>();
  launch_exchange(params, cuda::as_stream(stream));
  const std::vector<int64_t> row_bytes = recv_row_bytes(tensors_of(spec_));
  const int64_t bytes = std::accumulate(row_bytes.begin(), row_bytes.end(), int64_t{0});
  const auto num = static_cast<int64_t>(row_bytes.size());
  group_->state.count(rows_sent_ * num, rows_sent_ * bytes, rows_received_ * num, rows_received_ * bytes);
}

void* CopyEngineBuffer::begin_beside(AttnPass pass, std::span<const ConstTensorView> sources, void* stream) {
  check_begin(pass, sources);  // a capture that forks and then fails says that it was not joined, not why
  forked_.order(cuda::as_stream(stream), beside_.get());
  begin(pass, sources, beside_.get());
  cuda::check(cudaEventRecord(begun_.get(), beside_.get()), "cudaEventRecord");
  return begun_.get();
}

TensorView CopyEngineBuffer::recv_buffers(AttnPass pass, int tensor) const {
  const RecvTensor& shape = spec_.recv_buffers[static_cast<size_t>(tensor)];
  return {{recv_buffers_->address(group_->state.rank(), slot_of(pass), tensor), shape.dtype, shape.rows, shape.heads,
           shape.dim, int64_t{shape.heads} * shape.dim, shape.dim}};
}

WaitParams CopyEngineBuffer::wait_params(cuda::WaitKind kind) const {
  const int size = group_->state.size(), slot = slot_of(open_);
  const int64_t first = kind == cuda::WaitKind::kReturn ? size : 0;
  WaitParams wait;
  wait.context = group_->context();
  wait.flags = (*returns_)->flag(group_->state.rank(), first);
  wait.epoch = (*recv_buffers_)->epoch_cell(slot);
  wait.list = wait.signal_list = peers_.as<uint32_t>();
  wait.count = wait.num_signals = size - 1;
  wait.size = size;
  wait.pass = numbers_[slot];
  wait.kind = kind;
  wait.signals = (*returns_)->flags(first);
  return wait;
}

void* const* CopyEngineBuffer::return_areas(int tensor) const {
  return return_areas_.as<void*>() + static_cast<ptrdiff_t>(tensor) * group_->state.size();
}

void CopyEngineBuffer::finish_reduce_and_end(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                             void* stream) {
  const cuda::ProfileRange range("tangram: merge");
  require_open("BufferedPass::finish_reduce_and_end");
  require(has_returns(), "BufferedPass::finish_reduce_and_end '{}': needs a backward epoch (got a forward one)",
          spec_.label);
  check_sums(tensors_of(spec_), own, sums);
  std::vector<MergeParams> merged;
  for (size_t t = 0; t < own.size(); ++t) {
    const void* const returned = returns_->address(group_->state.rank(), 0, static_cast<int>(t));
    MergeParams& params = merged.emplace_back(merge_params(spec_.returns[t], own[t], returned, sums[t]));
    params.begin = at<int32_t>(image_.merge_begin());
    params.entries = at<int32_t>(image_.merge_entries());
    params.num_before = at<int32_t>(image_.merge_before());
    params.chosen = at<int32_t>(image_.merge_rows());
    params.num_rows = &counts()->num_merged;
  }
  uint32_t* const num_ended = peers_.as<uint32_t>() + group_->state.size() - 1;
  launch_merge_and_end(merged, wait_params(cuda::WaitKind::kReturn), epoch_params(), {}, num_ended, false,
                       cuda::as_stream(stream));
  is_open_ = false;
  const std::vector<int64_t> row_bytes = return_row_bytes(tensors_of(spec_));
  const int64_t bytes = std::accumulate(row_bytes.begin(), row_bytes.end(), int64_t{0});
  const auto num = static_cast<int64_t>(row_bytes.size());
  group_->state.count(rows_received_ * num, rows_received_ * bytes, rows_sent_ * num, rows_sent_ * bytes);
}

void CopyEngineBuffer::end(void* stream) {
  require_open("BufferedPass::end");
  require(!has_returns(), "BufferedPass::end '{}': needs a forward epoch (got a backward one)", spec_.label);
  launch_end(epoch_params(), {}, true, cuda::as_stream(stream));
  is_open_ = false;
}

int64_t CopyEngineBuffer::device_bytes() const {
  const auto rank = static_cast<size_t>(group_->state.rank());
  return kSlots * (*recv_buffers_)->shape().slot_bytes[rank] + (*returns_)->shape().slot_bytes[rank] +
         static_cast<int64_t>(memory_->bytes() + zeros_.bytes() + exchange_.bytes() + peers_.bytes() +
                              return_areas_.bytes());
}

}  // namespace tangram::comm
