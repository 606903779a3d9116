// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_pass.hpp"

#include <algorithm>

#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "core/rounding.hpp"
#include "cuda/check.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

namespace {

constexpr int64_t kRecvBufferAlignment = 1024;
constexpr int kPackBlocks = 64;  // bound by memory, and short

MoveParams move_params(const Chunk* chunks, size_t count, char* const* bases) {
  MoveParams params;
  params.chunks = chunks;
  params.count = static_cast<int>(count);
  params.bases = bases;
  return params;
}

/// `bytes` of `shared`, or of a buffer's own if that is null.
std::shared_ptr<cuda::DeviceBuffer> memory_of(SharedBuffer* shared, size_t bytes) {
  return shared != nullptr ? shared->get(bytes)
                           : std::make_shared<cuda::DeviceBuffer>(cuda::DeviceBuffer::zeros(bytes));
}

}  // namespace

NcclRecvBuffer::NcclRecvBuffer(const std::vector<RecvTensor>& tensors, int num_slots, SharedBuffer* shared)
    : num_tensors_(tensors.size()), slots_(num_slots) {
  std::vector<size_t> offsets;
  size_t slot_bytes = 0;
  for (const RecvTensor& tensor : tensors) {
    const int64_t row_bytes = int64_t{tensor.heads} * tensor.dim * static_cast<int64_t>(size_of(tensor.dtype));
    offsets.push_back(slot_bytes);
    slot_bytes += static_cast<size_t>(round_up(tensor.rows * row_bytes, kRecvBufferAlignment));
  }
  // NOTE [slots in one place]: a transfer waits for what the caller's stream has done with the slot before. Slots are
  // there for what is kept, which is not shared.
  const int num_places = shared != nullptr ? 1 : num_slots;
  memory_ = memory_of(shared, slot_bytes * static_cast<size_t>(num_places));
  own_bytes_ = shared != nullptr ? 0 : static_cast<int64_t>(memory_->bytes());
  for (int slot = 0; slot < num_slots; ++slot) {
    const size_t place = shared != nullptr ? 0 : static_cast<size_t>(slot);
    for (const size_t offset : offsets) addresses_.push_back(memory_->as<char>() + place * slot_bytes + offset);
  }
}

std::span<char* const> NcclRecvBuffer::tensors(int slot) const {
  return std::span(addresses_).subspan(static_cast<size_t>(slot) * num_tensors_, num_tensors_);
}

NcclPass::NcclPass(std::shared_ptr<NcclGroup> group, const DevicePassSpec& spec)
    : group_(std::move(group)), spec_(spec), number_(group_->state().add_pass(spec.label)), epoch_(spec) {
  const Caller caller{group_->state().rank(), group_->state().size()};
  layout_ = make_pass_layout(caller, spec_);
  if (spec_.recv_buffers_of != nullptr) {
    recv_buffers_ = static_cast<const NcclPass&>(*spec_.recv_buffers_of).recv_buffers_;
  } else {
    recv_buffers_ = std::make_shared<NcclRecvBuffer>(spec_.recv_buffers, spec_.num_slots,
                                                     shares_memory() ? &group_->shared().recv_buffers : nullptr);
  }
  casts_ = name_stages(cast_messages(caller, spec_));
  reduces_ = name_stages(return_messages(caller, spec_, layout_));
  take_staging();
  upload();
  if (!meets()) return;
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  group_->state().control().barrier("prepare_pass: ready");
}

void NcclPass::upload() {
  const std::vector<int64_t> row_bytes = recv_row_bytes(spec_);
  std::vector<Chunk> own_chunks;
  for (size_t t = 0; t < row_bytes.size(); ++t) {
    for (const LocalKvRange& rows : spec_.own_rows) {
      append_chunks(own_chunks, rows.row * row_bytes[t], rows.keys.begin * row_bytes[t],
                    rows.keys.size() * row_bytes[t], static_cast<int>(t), static_cast<int>(t));
    }
  }
  num_own_chunks_ = own_chunks.size();
  own_chunks_ = tables_.add(own_chunks);
  merge_begin_ = tables_.add(layout_.merge.begin);
  merge_entries_ = tables_.add(layout_.merge.entries);
  merge_before_ = tables_.add(layout_.merge.num_before);
  const std::vector<char*> send_base = {send_staging_->as<char>()};
  send_base_ = tables_.add(send_base);
  tensor_addresses_ = tables_.add(recv_buffers_->addresses());
  tables_.upload();
}

char* const* NcclPass::device_tensors() const {
  return tables_.at<char*>(tensor_addresses_) + static_cast<size_t>(slot_) * spec_.recv_buffers.size();
}

void NcclPass::take_staging() {
  int64_t send_bytes = 0, recv_bytes = 0;
  for (const std::vector<Stage>* stages : {&casts_, &reduces_}) {
    for (const Stage& stage : *stages) {
      send_bytes = std::max(send_bytes, stage.messages.send_bytes);
      recv_bytes = std::max(recv_bytes, stage.messages.recv_bytes);
    }
  }
  NcclGroup::Shared* shared = shares_memory() ? &group_->shared() : nullptr;
  send_staging_ = memory_of(shared != nullptr ? &shared->send_staging : nullptr, static_cast<size_t>(send_bytes));
  recv_staging_ = memory_of(shared != nullptr ? &shared->recv_staging : nullptr, static_cast<size_t>(recv_bytes));
  std::vector<size_t> offsets;
  size_t return_bytes = 0;
  for (const int64_t row_bytes : return_row_bytes(spec_)) {
    offsets.push_back(return_bytes);
    return_bytes += static_cast<size_t>(round_up(layout_.return_rows * row_bytes, kRecvBufferAlignment));
  }
  returned_ = memory_of(shared != nullptr ? &shared->returned : nullptr, return_bytes);
  for (const size_t offset : offsets) returned_addresses_.push_back(returned_->as<char>() + offset);
}

int64_t NcclPass::own_bytes() const {
  int64_t bytes = spec_.recv_buffers_of == nullptr ? recv_buffers_->own_bytes() : 0;
  if (shares_memory()) return bytes;
  for (const auto& buffer : {send_staging_, recv_staging_, returned_}) bytes += static_cast<int64_t>(buffer->bytes());
  return bytes;
}

std::vector<NcclPass::Stage> NcclPass::name_stages(std::vector<StageMessages> stages) {
  std::vector<Stage> named(stages.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    Stage& stage = named[s];
    stage.messages = std::move(stages[s]);
    stage.pack = tables_.add(stage.messages.pack);
    stage.convert = tables_.add(stage.messages.convert);
    stage.unpack = tables_.add(stage.messages.unpack);
  }
  return named;
}

void NcclPass::open() {
  group_->open(number_);
  used_ = false;
}

int NcclPass::begin(std::span<const ConstTensorView> own, void* stream) {
  group_->state().check();
  if (!own.empty()) check_sources(spec_, own, layout_.own_source_rows);
  epoch_.begin();
  try {
    slot_ = recv_buffers_->slots().take(spec_.label);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  tables_.before_call(cuda::as_stream(stream));
  open();
  if (!own.empty()) {
    MoveParams params = move_params(tables_.at<Chunk>(own_chunks_), num_own_chunks_, device_tensors());
    for (size_t t = 0; t < own.size(); ++t) params.sources[t] = own[t].data;
    launch_move(params, kPackBlocks, cuda::as_stream(stream));
  }
  return slot_;
}

int NcclPass::begin_kept(KeptSlot kept, void* stream) {
  group_->state().check();
  epoch_.begin();
  try {
    recv_buffers_->slots().take_kept(kept.slot, spec_.label);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  slot_ = kept.slot;
  tables_.before_call(cuda::as_stream(stream));
  open();
  return slot_;
}

TensorView NcclPass::recv_buffers(int tensor, int slot) const {
  require(tensor >= 0 && tensor < std::ssize(spec_.recv_buffers) && slot >= 0 && slot < num_slots(),
          "recv_buffer '{}': tensor and slot must exist (got {}, {})", spec_.label, tensor, slot);
  const RecvTensor& shape = spec_.recv_buffers[static_cast<size_t>(tensor)];
  void* data = recv_buffers_->tensors(slot)[static_cast<size_t>(tensor)];
  return {{data, shape.dtype, shape.rows, shape.heads, shape.dim, int64_t{shape.heads} * shape.dim, shape.dim}};
}

void NcclPass::transfer(const Stage& stage, cuda::WaitKind kind, int stage_idx,
                        std::span<const ConstTensorView> sources, std::span<char* const> targets,
                        char* const* device_targets, cudaStream_t stream) {
  const StageMessages& messages = stage.messages;
  if (!messages.sends.empty() || !messages.recvs.empty()) {
    const cudaStream_t own = group_->stream();
    fork_.order(stream, own);
    used_ = true;
    std::vector<char*> tensors;
    for (const ConstTensorView& source : sources) {
      tensors.push_back(static_cast<char*>(const_cast<void*>(source.data)));  // NCCL only reads what is sent
    }
    for (const bool converts : {false, true}) {
      const std::vector<Chunk>& chunks = converts ? messages.convert : messages.pack;
      MoveParams params = move_params(tables_.at<Chunk>(converts ? stage.convert : stage.pack), chunks.size(),
                                      tables_.at<char*>(send_base_));
      std::copy(tensors.begin(), tensors.end(), params.sources);
      (converts ? launch_convert : launch_move)(params, kPackBlocks, own);
    }
    group_->begin(kind, number_, stage_idx);
    cuda::check(cudaEventRecord(stage.started.get(), own), "cudaEventRecord");
    group_->exchange(messages.sends, {tensors, send_staging_->as<char>()}, messages.recvs,
                     {targets, recv_staging_->as<char>()});
    group_->end();
    MoveParams params = move_params(tables_.at<Chunk>(stage.unpack), messages.unpack.size(), device_targets);
    params.sources[0] = recv_staging_->as<char>();
    launch_move(params, kPackBlocks, own);
    cuda::check(cudaEventRecord(stage.done.get(), own), "cudaEventRecord");
  }
  group_->state().count(messages.rows_sent, messages.bytes_sent, messages.rows_received, messages.bytes_received);
}

void NcclPass::cast(int stage, std::span<const ConstTensorView> sources, void* stream) {
  const cuda::ProfileRange range("tangram: group_cast");
  epoch_.require_open("cast");
  check_sources(spec_, sources, layout_.min_source_rows(stage));
  epoch_.cast(stage);
  transfer(casts_[static_cast<size_t>(stage)], cuda::WaitKind::kReadyFlag, stage, sources,
           recv_buffers_->tensors(slot_), device_tensors(), cuda::as_stream(stream));
}

void NcclPass::wait_group_cast(int stage, void* stream) {
  epoch_.wait_group_cast(stage);
  const Stage& transfers = casts_[static_cast<size_t>(stage)];
  if (transfers.messages.recvs.empty()) return;
  cuda::check(cudaStreamWaitEvent(cuda::as_stream(stream), transfers.done.get(), 0), "cudaStreamWaitEvent");
}

void NcclPass::wait_send(int stage, void* stream) {
  epoch_.wait_send(stage);
  const Stage& transfers = casts_[static_cast<size_t>(stage)];
  if (transfers.messages.sends.empty()) return;
  cuda::check(cudaStreamWaitEvent(cuda::as_stream(stream), transfers.done.get(), 0), "cudaStreamWaitEvent");
}

void NcclPass::wait_started(int stage, void* stream) {
  epoch_.wait_group_cast(stage);
  const StageMessages& messages = casts_[static_cast<size_t>(stage)].messages;
  if (messages.sends.empty() && messages.recvs.empty()) return;
  cuda::check(cudaStreamWaitEvent(cuda::as_stream(stream), casts_[static_cast<size_t>(stage)].started.get(), 0),
              "cudaStreamWaitEvent");
}

void NcclPass::reduce(int stage, std::span<const ConstTensorView> partials, void* stream) {
  const cuda::ProfileRange range("tangram: group_reduce");
  epoch_.require_open("reduce");
  check_partials(spec_, partials);
  epoch_.reduce(stage);
  transfer(reduces_[static_cast<size_t>(stage)], cuda::WaitKind::kReturn, stage, partials, returned_addresses_, nullptr,
           cuda::as_stream(stream));
}

void NcclPass::signal_returned(int, void*) {
  require(false, "signal_returned '{}': kernels cannot store at owners over transport nccl; call reduce", spec_.label);
}

void NcclPass::finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void* stream) {
  const cuda::ProfileRange range("tangram: merge");
  epoch_.require_open("finish_reduce");
  check_sums(spec_, own, sums);
  epoch_.finish_reduce();
  for (const Stage& stage : reduces_) {
    if (stage.messages.recvs.empty()) continue;
    cuda::check(cudaStreamWaitEvent(cuda::as_stream(stream), stage.done.get(), 0), "cudaStreamWaitEvent");
  }
  std::vector<MergeParams> merged;
  for (size_t t = 0; t < own.size(); ++t) {
    MergeParams& params = merged.emplace_back(merge_params(spec_.returns[t], own[t], returned_addresses_[t], sums[t]));
    params.begin = tables_.at<int32_t>(merge_begin_);
    params.entries = tables_.at<int32_t>(merge_entries_);
    params.num_before = tables_.at<int32_t>(merge_before_);
  }
  launch_merge(merged, {}, cuda::as_stream(stream));
}

void NcclPass::close(cudaStream_t stream) {
  epoch_.end();
  if (used_) join_.order(group_->stream(), stream);
  used_ = false;
}

void NcclPass::end(void* stream) {
  close(cuda::as_stream(stream));
  recv_buffers_->slots().release(slot_);
}

KeptSlot NcclPass::end_kept(void* stream) {
  close(cuda::as_stream(stream));
  recv_buffers_->slots().keep(slot_);
  return {slot_};
}

void NcclPass::drop_kept(KeptSlot kept) {
  recv_buffers_->slots().take_kept(kept.slot, spec_.label);
  recv_buffers_->slots().release(kept.slot);
}

}  // namespace tangram::comm
