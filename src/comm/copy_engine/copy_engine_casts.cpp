// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Sends rows to peers, and waits for received rows.
#include <algorithm>

#include "comm/copy_engine/copy_batch.hpp"
#include "comm/copy_engine/copy_engine_pass.hpp"
#include "comm/device/pass_tensors.hpp"
#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

namespace {

constexpr int kMoveBlocks = 16;  // of a kernel that moves short ranges: about 250 GB/s

}  // namespace

void CopyEnginePass::note_sources(const Transfer& transfer, const void* const* sources) {
  const char* const begin = (*recv_buffers_)->address(group_->state.rank(), slot_);
  const char* const end = begin + (*recv_buffers_)->shape().slot_bytes[static_cast<size_t>(group_->state.rank())];
  for (const Target& target : transfer.targets) {
    for (const Copy& copy : target.copies) {
      const char* const from = static_cast<const char*>(sources[copy.tensor]) + copy.from;
      sends_recv_buffer_ = sends_recv_buffer_ || (begin <= from && from < end);
    }
  }
}

void CopyEnginePass::send(const Transfer& transfer, size_t stage, const SlotTensors& area, int slot, int64_t first_flag,
                          const void* const* sources, const OwnedStream& own_stream, bool& used, cudaStream_t stream) {
  if (transfer.targets.empty()) return;
  note_sources(transfer, sources);
  const int64_t flag = first_flag + static_cast<int64_t>(stage) * group_->state.size();
  const uint64_t* epoch = (*recv_buffers_)->epoch_cell(slot_);
  if (transfer.by_kernel) {
    MoveParams params;
    params.chunks = tables_.at<Chunk>(transfer.chunks);
    params.count = transfer.num_chunks;
    params.bases = area->bases(slot);
    const size_t num_tensors = &area == recv_buffers_.get() ? spec_.recv_buffers.size() : spec_.returns.size();
    std::copy_n(sources, num_tensors, params.sources);
    launch_move(params, kMoveBlocks, stream);
    launch_signal((*returns_)->flags(flag), epoch, transfer.peers, group_->state.rank(), stream);
    return;
  }
  const OwnedEvent& fork = &own_stream == &group_->cast_stream ? group_->cast_fork : group_->return_fork;
  fork.order(stream, own_stream.get());
  used = true;
  const bool batched = group_->batch_copies && !cuda::is_captured(own_stream.get());
  (this->*(batched ? &CopyEnginePass::copy_batched : &CopyEnginePass::copy))(transfer, area, slot, flag, sources,
                                                                             own_stream.get());
}

void CopyEnginePass::copy(const Transfer& transfer, const SlotTensors& area, int slot, int64_t flag,
                          const void* const* sources, cudaStream_t stream) const {
  const uint64_t* epoch = (*recv_buffers_)->epoch_cell(slot_);
  for (const Target& target : transfer.targets) {
    char* const base = area.address(target.peer, slot, 0);
    for (const Copy& copy : target.copies) {
      cuda::check(cudaMemcpyAsync(base + copy.to, static_cast<const char*>(sources[copy.tensor]) + copy.from,
                                  static_cast<size_t>(copy.num_bytes), cudaMemcpyDeviceToDevice, stream),
                  "cudaMemcpyAsync");
    }
    cuda::check(cudaMemcpyAsync((*returns_)->flag(target.peer, flag + group_->state.rank()), epoch, sizeof(uint64_t),
                                cudaMemcpyDeviceToDevice, stream),
                "cudaMemcpyAsync");
  }
}

void CopyEnginePass::copy_batched(const Transfer& transfer, const SlotTensors& area, int slot, int64_t flag,
                                  const void* const* sources, cudaStream_t stream) const {
  // A batch has no guaranteed order, so that flags need a batch of their own, behind all rows.
  CopyBatch rows, flags;
  for (const Target& target : transfer.targets) {
    char* const base = area.address(target.peer, slot, 0);
    for (const Copy& copy : target.copies) {
      rows.add(base + copy.to, static_cast<const char*>(sources[copy.tensor]) + copy.from,
               static_cast<size_t>(copy.num_bytes));
    }
    flags.add((*returns_)->flag(target.peer, flag + group_->state.rank()), (*recv_buffers_)->epoch_cell(slot_),
              sizeof(uint64_t));
  }
  rows.enqueue(stream);
  flags.enqueue(stream);
}

void CopyEnginePass::cast(int stage, std::span<const ConstTensorView> sources, void* stream) {
  const cuda::ProfileRange range("tangram: group_cast");
  epoch_.require_open("cast");
  check_sources(spec_, sources, layout_.min_source_rows(stage));
  const void* pointers[4] = {};
  for (size_t t = 0; t < sources.size(); ++t) pointers[t] = sources[t].data;
  epoch_.cast(stage);
  const Transfer& transfer = casts_[static_cast<size_t>(stage)];
  if (transfer.is_credited || num_gives_ > 0) {
    WaitParams credits = credit_wait();
    credits.list = tables_.at<uint32_t>(credit_takes_) + transfer.first_take;
    credits.count = transfer.num_takes;
    launch_wait(credits, cuda::as_stream(stream));
  }
  if (transfer.is_credited) group_->keep_step();
  send(transfer, static_cast<size_t>(stage), *recv_buffers_, slot_, 0, pointers, group_->cast_stream, cast_used_,
       cuda::as_stream(stream));
  if (!sent_.empty() && !transfer.by_kernel && !transfer.targets.empty()) {
    cuda::check(cudaEventRecord(sent_[static_cast<size_t>(stage)]->get(), group_->cast_stream.get()),
                "cudaEventRecord");
  }
  group_->state.count(transfer.rows_sent, transfer.bytes_sent, transfer.rows_received, transfer.bytes_received);
  group_->keep_step();
}

void CopyEnginePass::wait_group_cast(int stage, void* stream) {
  epoch_.wait_group_cast(stage);
  const Transfer& transfer = casts_[static_cast<size_t>(stage)];
  WaitParams params;
  params.context = group_->context();
  params.flags = (*returns_)->flag(group_->state.rank(), 0);
  params.epoch = (*recv_buffers_)->epoch_cell(slot_);
  params.list = tables_.at<uint32_t>(cast_waits_) + transfer.first_wait;
  params.count = transfer.num_waits;
  params.size = group_->state.size();
  params.pass = number_;
  params.kind = cuda::WaitKind::kReadyFlag;
  add_gives(params);
  launch_wait(params, cuda::as_stream(stream));
}

void CopyEnginePass::wait_send(int stage, void* stream) {
  epoch_.wait_send(stage);
  const Transfer& transfer = casts_[static_cast<size_t>(stage)];
  if (transfer.by_kernel || transfer.targets.empty()) return;  // was on the caller's stream
  cuda::check(cudaStreamWaitEvent(cuda::as_stream(stream), sent_[static_cast<size_t>(stage)]->get(), 0),
              "cudaStreamWaitEvent");
}

void CopyEnginePass::release_credit(int stage, void* stream) {
  epoch_.release_credit(stage);
  const Transfer& transfer = casts_[static_cast<size_t>(stage)];
  // What follows is a cast or a wait, whose kernel can tell first.
  if (num_gives_ > 0 && first_give_ + num_gives_ != transfer.first_give) {
    launch_wait(credit_wait(), cuda::as_stream(stream));
  }
  if (num_gives_ == 0) first_give_ = transfer.first_give;
  num_gives_ += transfer.num_gives;
}

WaitParams CopyEnginePass::credit_wait() {
  const auto first_flag = static_cast<int64_t>(spec_.casts.size() + spec_.reduces.size()) * group_->state.size();
  WaitParams wait;
  wait.context = group_->context();
  wait.flags = (*returns_)->flag(group_->state.rank(), first_flag);
  wait.epoch = (*recv_buffers_)->epoch_cell(slot_);
  wait.size = group_->state.size();
  wait.pass = number_;
  wait.kind = cuda::WaitKind::kCredit;
  add_gives(wait);
  return wait;
}

void CopyEnginePass::add_gives(WaitParams& params) {
  if (num_gives_ == 0) return;
  params.signals =
      (*returns_)->flags(static_cast<int64_t>(spec_.casts.size() + spec_.reduces.size()) * group_->state.size());
  params.signal_list = tables_.at<uint32_t>(credit_gives_) + first_give_;
  params.num_signals = num_gives_;
  num_gives_ = 0;
}

KvReadyFlags CopyEnginePass::ready_flags() const {
  epoch_.require_open("ready_flags");
  return {(*returns_)->flag(group_->state.rank(), 0), (*recv_buffers_)->epoch_cell(slot_), group_->state.size(),
          number_, group_->context()};
}

}  // namespace tangram::comm
