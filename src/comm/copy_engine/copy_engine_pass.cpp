// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/copy_engine/copy_engine_pass.hpp"

#include <algorithm>

#include "comm/all_gather.hpp"
#include "comm/copy_engine/copy_batch.hpp"
#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

namespace {

constexpr int kMoveBlocks = 16;           // of a kernel that moves short stretches: about 250 GB/s
constexpr int64_t kLeastReturnShare = 8;  // of the owned rows there is room for at least so many that come back
constexpr int kConvertBlocks = 264;       // memory-bound, before the transfer: all the device

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

CopyEnginePass::CopyEnginePass(std::shared_ptr<CopyEngineGroup> group, const DevicePassSpec& spec)
    : group_(std::move(group)), spec_(spec), number_(group_->state.add_pass(spec.label)), epoch_(spec) {
  Communicator& control = group_->state.control();
  const Caller caller{group_->state.rank(), group_->state.size()};
  const bool meets = spec_.agreed == nullptr || !group_->agrees_later;
  const auto meet = [&] {
    if (!meets) group_->state.agreement().meet();
  };
  layout_ = make_pass_layout(caller, spec_);
  if (!spec_.reduces.empty()) place_returns_at_owners(caller);
  if (spec_.landing_of != nullptr) {
    landing_ = static_cast<const CopyEnginePass&>(*spec_.landing_of).landing_;
  } else {
    landing_ = std::make_shared<SlotTensors>(
        control, group_->heap, shares_memory() ? &group_->landing : nullptr,
        SlotTensors::Shape{landing_rows(), landing_row_bytes(spec_), spec_.num_slots, 0, 0},
        "landing buffers of '" + spec_.label + "'", meet);
  }
  const size_t num_credits = spec_.credited.empty() ? 0 : spec_.casts.size();
  const int64_t num_flags = static_cast<int64_t>(spec_.casts.size() + spec_.reduces.size() + num_credits) * caller.size;
  returns_ = std::make_unique<SlotTensors>(
      control, group_->heap, spec_.shares_memory ? &group_->returns : nullptr,
      SlotTensors::Shape{return_rows(), return_row_bytes(spec_), spec_.num_return_slots, num_flags,
                         spec_.returns.empty() ? 0 : spec_.returns[0].owned_rows / kLeastReturnShare},
      "return areas of '" + spec_.label + "'", meet);
  host_tables_ = std::make_unique<HostTables>();
  HostTables& tables = *host_tables_;
  casts_ = plan_casts(tables);
  reduces_ = plan_returns(tables);
  plan_credits(tables);
  plan_conversions(tables);
  plan_own_rows(tables);
  merge_ended_ = tables_.add_zeros<uint32_t>(1);
  if (!spec_.leaves_rows) plan_merge(layout_.merge, nullptr);  // else leave_rows does
  if (!meets) return;
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  control.barrier("prepare_pass: ready");
}

std::vector<int64_t> CopyEnginePass::landing_rows() const {
  const int64_t rows = spec_.landing.empty() ? 0 : spec_.landing[0].rows;
  if (spec_.agreed == nullptr || !group_->agrees_later) {
    return all_gather(group_->state.control(), rows, "prepare_pass: landing rows");
  }
  TANGRAM_ASSERT(std::ssize(spec_.agreed->landing) == group_->state.size() &&
                 spec_.agreed->landing[static_cast<size_t>(group_->state.rank())] == rows);
  return spec_.agreed->landing;
}

std::vector<int64_t> CopyEnginePass::return_rows() const {
  if (spec_.agreed == nullptr || !group_->agrees_later) {
    return all_gather(group_->state.control(), layout_.return_rows, "prepare_pass: return rows");
  }
  if (spec_.reduces.empty()) return std::vector<int64_t>(static_cast<size_t>(group_->state.size()));
  return spec_.agreed->return_rows;
}

void CopyEnginePass::place_returns_at_owners(Caller caller) {
  const auto stride = static_cast<ptrdiff_t>(layout_.return_begin.size());
  if (spec_.agreed != nullptr && group_->agrees_later) {
    const std::vector<std::vector<int64_t>>& begins = spec_.agreed->return_begin;
    const auto rank = static_cast<size_t>(caller.rank);
    TANGRAM_ASSERT(std::ssize(begins) == caller.size && begins[rank] == layout_.return_begin &&
                   spec_.agreed->return_rows[rank] == layout_.return_rows);
    place_returns(layout_, caller, begins);
    return;
  }
  const std::vector<int64_t> all =
      all_gather(group_->state.control(), layout_.return_begin, "prepare_pass: return areas");
  std::vector<std::vector<int64_t>> begins;
  for (int rank = 0; rank < caller.size; ++rank) {
    begins.emplace_back(all.begin() + rank * stride, all.begin() + (rank + 1) * stride);
  }
  place_returns(layout_, caller, begins);
}

EpochParams CopyEnginePass::epoch_params() const {
  EpochParams params = group_->epoch_params(number_);
  params.tag = facts_tag_;
  params.landing = {(*landing_)->epoch_cell(slot_), (*landing_)->released(slot_), layout_.cast_targets()};
  if (return_slot_ >= 0) {
    params.returns = {(*returns_)->epoch_cell(return_slot_), (*returns_)->released(return_slot_),
                      layout_.return_targets()};
  }
  return params;
}

void CopyEnginePass::open(std::span<const ConstTensorView> own, cudaStream_t stream) {
  before_call(stream);
  num_signals_ = num_gives_ = 0;
  facts_tag_ = group_->state.facts_tag();
  return_slot_ = spec_.reduces.empty() ? -1 : (*returns_)->slots().take(spec_.label);
  MoveParams copies;
  if (!own.empty()) {
    copies.chunks = tables_.at<Chunk>(own_chunks_);
    copies.count = num_own_chunks_;
    copies.bases = (*landing_)->bases(slot_);
    for (size_t t = 0; t < own.size(); ++t) copies.sources[t] = own[t].data;
  }
  sends_landing_ = false;
  launch_begin(epoch_params(), copies, may_get_ready(stream), stream);
  group_->keep_step();
}

int CopyEnginePass::begin(std::span<const ConstTensorView> own, void* stream) {
  group_->state.check();
  if (!own.empty()) check_sources(spec_, own, layout_.own_source_rows);
  epoch_.begin();
  try {
    slot_ = (*landing_)->slots().take(spec_.label);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  open(own, cuda::as_stream(stream));
  return slot_;
}

int CopyEnginePass::begin_kept(KeptSlot kept, void* stream) {
  group_->state.check();
  epoch_.begin();
  try {
    (*landing_)->slots().take_kept(kept.slot, spec_.label);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  slot_ = kept.slot;
  open({}, cuda::as_stream(stream));
  return slot_;
}

TensorView CopyEnginePass::landing(int tensor, int slot) const {
  require(tensor >= 0 && tensor < std::ssize(spec_.landing) && slot >= 0 && slot < num_slots(),
          "landing '{}': tensor and slot must exist (got {}, {})", spec_.label, tensor, slot);
  const LandingTensor& shape = spec_.landing[static_cast<size_t>(tensor)];
  void* data = landing_->address(group_->state.rank(), slot, tensor);
  return {{data, shape.dtype, shape.rows, shape.heads, shape.dim, int64_t{shape.heads} * shape.dim, shape.dim}};
}

int64_t CopyEnginePass::own_bytes() const {
  if (shares_memory() || spec_.landing_of != nullptr) return 0;
  return num_slots() * (*landing_)->shape().slot_bytes[static_cast<size_t>(group_->state.rank())];
}

void CopyEnginePass::note_sources(const Transfer& transfer, const void* const* sources) {
  const char* const begin = (*landing_)->address(group_->state.rank(), slot_);
  const char* const end = begin + (*landing_)->shape().slot_bytes[static_cast<size_t>(group_->state.rank())];
  for (const Target& target : transfer.targets) {
    for (const Copy& copy : target.copies) {
      const char* const from = static_cast<const char*>(sources[copy.tensor]) + copy.from;
      sends_landing_ = sends_landing_ || (begin <= from && from < end);
    }
  }
}

void CopyEnginePass::send(const Transfer& transfer, size_t stage, const SlotTensors& area, int slot, int64_t first_flag,
                          const void* const* sources, const OwnedStream& own_stream, bool& used, cudaStream_t stream) {
  if (transfer.targets.empty()) return;
  note_sources(transfer, sources);
  const int64_t flag = first_flag + static_cast<int64_t>(stage) * group_->state.size();
  const uint64_t* epoch = (*landing_)->epoch_cell(slot_);
  if (transfer.by_kernel) {
    MoveParams params;
    params.chunks = tables_.at<Chunk>(transfer.chunks);
    params.count = transfer.num_chunks;
    params.bases = area->bases(slot);
    const size_t num_tensors = &area == landing_.get() ? spec_.landing.size() : spec_.returns.size();
    std::copy_n(sources, num_tensors, params.sources);
    launch_move(params, kMoveBlocks, stream);
    launch_signal((*returns_)->flags(flag), epoch, transfer.peers, group_->state.rank(), stream);
    return;
  }
  const OwnedEvent& fork = &own_stream == &group_->cast_stream ? group_->cast_fork : group_->return_fork;
  fork.order(stream, own_stream.get());
  used = true;
  const bool batched = group_->batch_copies && !is_captured(own_stream.get());
  (this->*(batched ? &CopyEnginePass::copy_batched : &CopyEnginePass::copy))(transfer, area, slot, flag, sources,
                                                                             own_stream.get());
}

void CopyEnginePass::copy(const Transfer& transfer, const SlotTensors& area, int slot, int64_t flag,
                          const void* const* sources, cudaStream_t stream) const {
  const uint64_t* epoch = (*landing_)->epoch_cell(slot_);
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
  // Nobody promises an order within a batch, so that flags need one of their own, behind all rows.
  CopyBatch rows, flags;
  for (const Target& target : transfer.targets) {
    char* const base = area.address(target.peer, slot, 0);
    for (const Copy& copy : target.copies) {
      rows.add(base + copy.to, static_cast<const char*>(sources[copy.tensor]) + copy.from,
               static_cast<size_t>(copy.num_bytes));
    }
    flags.add((*returns_)->flag(target.peer, flag + group_->state.rank()), (*landing_)->epoch_cell(slot_),
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
  send(transfer, static_cast<size_t>(stage), *landing_, slot_, 0, pointers, group_->cast_stream, cast_used_,
       cuda::as_stream(stream));
  if (!sent_.empty() && !transfer.by_kernel && !transfer.targets.empty()) {
    cuda::check(cudaEventRecord(sent_[static_cast<size_t>(stage)]->get(), group_->cast_stream.get()),
                "cudaEventRecord");
  }
  group_->state.count(transfer.rows_sent, transfer.bytes_sent, transfer.rows_received, transfer.bytes_received);
  group_->keep_step();
}

void CopyEnginePass::wait_cast(int stage, void* stream) {
  epoch_.wait_cast(stage);
  const Transfer& transfer = casts_[static_cast<size_t>(stage)];
  WaitParams params;
  params.context = group_->context();
  params.flags = (*returns_)->flag(group_->state.rank(), 0);
  params.epoch = (*landing_)->epoch_cell(slot_);
  params.list = tables_.at<uint32_t>(cast_waits_) + transfer.first_wait;
  params.count = transfer.num_waits;
  params.size = group_->state.size();
  params.pass = number_;
  params.kind = cuda::WaitKind::kArrival;
  add_gives(params);
  launch_wait(params, cuda::as_stream(stream));
}

void CopyEnginePass::wait_sent(int stage, void* stream) {
  epoch_.wait_sent(stage);
  const Transfer& transfer = casts_[static_cast<size_t>(stage)];
  if (transfer.by_kernel || transfer.targets.empty()) return;  // was on the caller's stream
  cuda::check(cudaStreamWaitEvent(cuda::as_stream(stream), sent_[static_cast<size_t>(stage)]->get(), 0),
              "cudaStreamWaitEvent");
}

void CopyEnginePass::give(int stage, void* stream) {
  epoch_.give(stage);
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
  wait.epoch = (*landing_)->epoch_cell(slot_);
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

DeviceArrivals CopyEnginePass::arrivals() const {
  epoch_.require_open("arrivals");
  return {(*returns_)->flag(group_->state.rank(), 0), (*landing_)->epoch_cell(slot_), group_->state.size(), number_,
          group_->context()};
}

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
  wait.epoch = (*landing_)->epoch_cell(slot_);
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
  (*landing_)->slots().give_back(slot_);
}

bool CopyEnginePass::may_get_ready(cudaStream_t stream) const { return !group_->keeps_step() && !is_captured(stream); }

bool CopyEnginePass::may_join_last(cudaStream_t stream) const { return !sends_landing_ && may_get_ready(stream); }

// An event would stand between the kernels that close this epoch and open the next, so that the one could not get ready
// while the other ends.
SentWord CopyEnginePass::sent_word() {
  if (!cast_used_ || return_used_) return {};
  cast_used_ = false;
  const uint64_t value = group_->casts_sent.raise(group_->cast_stream.get());
  return {group_->casts_sent.get(), value};
}

void CopyEnginePass::join(cudaStream_t stream) {
  if (cast_used_) group_->cast_join.order(group_->cast_stream.get(), stream);
  if (return_used_) group_->return_join.order(group_->return_stream.get(), stream);
  cast_used_ = return_used_ = false;
}

void CopyEnginePass::give_slots_back() {
  if (return_slot_ >= 0) (*returns_)->slots().give_back(return_slot_);
  return_slot_ = -1;
}

void CopyEnginePass::close(cudaStream_t stream) {
  epoch_.end();
  const bool joins_last = may_join_last(stream);
  if (!joins_last) join(stream);
  launch_end(epoch_params(), joins_last ? sent_word() : SentWord{}, joins_last, stream);
  if (joins_last) join(stream);
  give_slots_back();
}

void CopyEnginePass::end(void* stream) {
  close(cuda::as_stream(stream));
  (*landing_)->slots().give_back(slot_);
}

KeptSlot CopyEnginePass::end_kept(void* stream) {
  close(cuda::as_stream(stream));
  (*landing_)->slots().keep(slot_);
  return {slot_};
}

void CopyEnginePass::drop_kept(KeptSlot kept) {
  (*landing_)->slots().take_kept(kept.slot, spec_.label);
  (*landing_)->slots().give_back(kept.slot);
}

}  // namespace tangram::comm
