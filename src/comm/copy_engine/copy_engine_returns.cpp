// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Partial rows that go home, and their sums.
#include <algorithm>

#include "comm/copy_engine/copy_engine_pass.hpp"
#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

namespace {

constexpr int kConvertBlocks = 264;  // memory-bound, before the transfer: all the device

}  // namespace

void CopyEnginePass::reduce(int stage, std::span<const ConstTensorView> partials, void* stream) {
  const cuda::ProfileRange range("tangram: group_reduce");
  epoch_.require_open("reduce");
  check_partials(spec_, partials);
  const void* pointers[4] = {};
  for (size_t t = 0; t < partials.size(); ++t) pointers[t] = partials[t].data;
  epoch_.reduce(stage);
  const size_t stage_idx = static_cast<size_t>(stage);
  MoveParams conversion;
  conversion.chunks = tables_.at<Chunk>(conversions_[stage_idx]);
  conversion.count = num_conversions_[stage_idx];
  conversion.bases = tables_.at<char*>(converted_bases_);
  std::copy_n(pointers, 4, conversion.sources);
  launch_convert(conversion, kConvertBlocks, cuda::as_stream(stream));
  for (size_t t = 0; t < converted_.size(); ++t) {
    if (spec_.returns[t].partial_dtype != spec_.returns[t].reduce_dtype) pointers[t] = converted_[t]->as<void>();
  }
  const Transfer& transfer = reduces_[stage_idx];
  send(transfer, stage_idx, *returns_, return_slot_, static_cast<int64_t>(spec_.casts.size()) * group_->state.size(),
       pointers, group_->return_stream, return_used_, cuda::as_stream(stream));
  group_->state.count(transfer.rows_sent, transfer.bytes_sent, transfer.rows_received, transfer.bytes_received);
}

std::vector<ReturnTarget> CopyEnginePass::return_targets(int stage, int tensor, int return_slot) const {
  require(stage >= 0 && stage < std::ssize(reduces_) && tensor >= 0 && tensor < std::ssize(spec_.returns) &&
              return_slot >= 0 && return_slot < (*returns_)->num_slots(),
          "return_targets '{}': stage, tensor and slot must exist (got {}, {}, {})", spec_.label, stage, tensor,
          return_slot);
  std::vector<ReturnTarget> targets;
  for (const PeerPieces& owner : layout_.returns[static_cast<size_t>(stage)]) {
    for (const Piece& piece : owner.pieces) {
      targets.push_back({owner.peer,
                         {piece.from, piece.from + piece.rows},
                         returns_->address(owner.peer, return_slot, tensor),
                         piece.to});
    }
  }
  return targets;
}

void CopyEnginePass::signal_returned(int stage, void* stream) {
  epoch_.reduce(stage);
  const Transfer& transfer = reduces_[static_cast<size_t>(stage)];
  // What follows is finish_reduce, whose kernel that waits can signal first.
  if (num_signals_ > 0 && first_signal_ + num_signals_ != transfer.first_signal) {
    WaitParams signals = return_wait();
    signals.count = 0;
    launch_wait(with_signals(signals), cuda::as_stream(stream));
  }
  if (num_signals_ == 0) first_signal_ = transfer.first_signal;
  num_signals_ += static_cast<int>(transfer.targets.size());
  group_->state.count(transfer.rows_sent, transfer.bytes_sent, transfer.rows_received, transfer.bytes_received);
}

WaitParams CopyEnginePass::return_wait() const {
  const int64_t first_flag = static_cast<int64_t>(spec_.casts.size()) * group_->state.size();
  WaitParams wait;
  wait.context = group_->context();
  wait.flags = (*returns_)->flag(group_->state.rank(), first_flag);
  wait.epoch = (*recv_buffers_)->epoch_cell(slot_);
  wait.list = tables_.at<uint32_t>(return_waits_);
  wait.count = num_return_waits_;
  wait.size = group_->state.size();
  wait.pass = number_;
  wait.kind = cuda::WaitKind::kReturn;
  wait.signals = (*returns_)->flags(first_flag);
  return wait;
}

WaitParams CopyEnginePass::with_signals(WaitParams params) {
  params.signal_list = tables_.at<uint32_t>(return_signals_) + first_signal_;
  params.num_signals = num_signals_;
  num_signals_ = 0;
  return params;
}

WaitParams CopyEnginePass::wait_in_merge(cudaStream_t stream) {
  const WaitParams wait = with_signals(return_wait());
  if (!group_->keeps_step()) return wait;
  // Kernels of ranks that share a GPU: one block each waits, so that all of them find room.
  launch_wait(wait, stream);
  group_->keep_step();
  return {};
}

std::vector<MergeParams> CopyEnginePass::merges(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                                cudaStream_t stream) const {
  before_call(stream);  // may be another than that of begin()
  const cuda::PackedArrays& tables = merge_apart_ != nullptr ? *merge_apart_ : tables_;
  std::vector<MergeParams> merged;
  for (size_t t = 0; t < own.size(); ++t) {
    const void* const returned = returns_->address(group_->state.rank(), return_slot_, static_cast<int>(t));
    MergeParams& params = merged.emplace_back(merge_params(spec_.returns[t], own[t], returned, sums[t]));
    params.begin = tables.at<int32_t>(merge_begin_);
    params.entries = tables.at<int32_t>(merge_entries_);
    params.num_before = tables.at<int32_t>(merge_before_);
    if (num_merge_rows_ < 0) continue;
    params.rows = num_merge_rows_;
    params.chosen = tables.at<int32_t>(merge_rows_);
  }
  return merged;
}

void CopyEnginePass::finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                   void* stream) {
  const cuda::ProfileRange range("tangram: merge");
  epoch_.require_open("finish_reduce");
  check_sums(spec_, own, sums);
  epoch_.finish_reduce();
  const std::vector<MergeParams> merged = merges(own, sums, cuda::as_stream(stream));
  launch_merge(merged, wait_in_merge(cuda::as_stream(stream)), cuda::as_stream(stream));
}

void CopyEnginePass::finish_reduce_and_end(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                           void* stream) {
  const cuda::ProfileRange range("tangram: merge");
  epoch_.require_open("finish_reduce_and_end");
  check_sums(spec_, own, sums);
  epoch_.finish_reduce();
  epoch_.end();
  const bool joins_last = may_join_last(cuda::as_stream(stream));
  if (!joins_last) join(cuda::as_stream(stream));
  const std::vector<MergeParams> merged = merges(own, sums, cuda::as_stream(stream));
  const WaitParams wait = wait_in_merge(cuda::as_stream(stream));
  launch_merge_and_end(merged, wait, epoch_params(), joins_last ? sent_word() : SentWord{},
                       tables_.at<uint32_t>(merge_ended_), joins_last, cuda::as_stream(stream));
  if (joins_last) join(cuda::as_stream(stream));
  give_slots_back();
  (*recv_buffers_)->slots().release(slot_);
}

}  // namespace tangram::comm
