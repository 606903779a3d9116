// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How a pass is made, and how its epochs are opened and closed.
#include "comm/copy_engine/copy_engine_pass.hpp"

#include <algorithm>

#include "comm/all_gather.hpp"
#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

namespace {

constexpr int64_t kLeastReturnShare = 8;  // of the owned rows there is room for at least so many that come back

}  // namespace

CopyEnginePass::CopyEnginePass(std::shared_ptr<CopyEngineGroup> group, const DevicePassSpec& spec)
    : group_(std::move(group)), spec_(spec), number_(group_->state.add_pass(spec.label)), epoch_(spec) {
  Communicator& control = group_->state.control();
  const Caller caller{group_->state.rank(), group_->state.size()};
  const auto meet = [&] {
    if (!meets()) group_->state.agreement().meet();
  };
  layout_ = make_pass_layout(caller, spec_);
  const std::shared_ptr<const AgreedRows> rows = rows_of_ranks(caller);
  place_returns(layout_, caller, rows->return_begin);
  const size_t beside = spec_.opens_beside ? 1 : 0;
  if (spec_.recv_buffers_of != nullptr) {
    recv_buffers_ = static_cast<const CopyEnginePass&>(*spec_.recv_buffers_of).recv_buffers_;
  } else {
    recv_buffers_ = std::make_shared<SlotTensors>(
        control, group_->heap, shares_memory() ? &group_->recv_buffers[beside] : nullptr,
        SlotTensors::Shape{rows->recv_buffers, recv_row_bytes(spec_), spec_.num_slots, 0, 0},
        "receive buffers of '" + spec_.label + "'", meet);
  }
  const size_t num_credits = spec_.credited.empty() ? 0 : spec_.casts.size();
  const int64_t num_flags = static_cast<int64_t>(spec_.casts.size() + spec_.reduces.size() + num_credits) * caller.size;
  // Owned rows are alike on all ranks, but for those of relays.
  const bool knows_more = !spec_.returns.empty() && !spec_.opens_beside;
  returns_ = std::make_unique<SlotTensors>(
      control, group_->heap, spec_.shares_memory ? &group_->returns[beside] : nullptr,
      SlotTensors::Shape{rows->return_rows, return_row_bytes(spec_), spec_.num_return_slots, num_flags,
                         knows_more ? spec_.returns[0].owned_rows / kLeastReturnShare : 0},
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
  if (!meets()) return;
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  control.barrier("prepare_pass: ready");
}

std::shared_ptr<const AgreedRows> CopyEnginePass::rows_of_ranks(Caller caller) const {
  const int64_t recv_buffers = spec_.recv_buffers.empty() ? 0 : spec_.recv_buffers[0].rows;
  const auto rank = static_cast<size_t>(caller.rank);
  if (!meets()) {
    const AgreedRows& rows = *spec_.agreed;
    TANGRAM_ASSERT(std::ssize(rows.recv_buffers) == caller.size && rows.recv_buffers[rank] == recv_buffers);
    TANGRAM_ASSERT(std::ssize(rows.return_begin) == caller.size && rows.return_begin[rank] == layout_.return_begin &&
                   rows.return_rows[rank] == layout_.return_rows);
    return spec_.agreed;
  }
  Communicator& control = group_->state.control();
  auto rows = std::make_shared<AgreedRows>();
  if (spec_.recv_buffers_of == nullptr)
    rows->recv_buffers = all_gather(control, recv_buffers, "prepare_pass: rows of receive buffers");
  rows->return_rows = all_gather(control, layout_.return_rows, "prepare_pass: return rows");
  const auto stride = static_cast<ptrdiff_t>(layout_.return_begin.size());
  const std::vector<int64_t> begins = all_gather(control, layout_.return_begin, "prepare_pass: return areas");
  for (auto begin = begins.begin(); begin != begins.end(); begin += stride) {
    rows->return_begin.emplace_back(begin, begin + stride);
  }
  return rows;
}

EpochParams CopyEnginePass::epoch_params() const {
  EpochParams params = group_->epoch_params(number_);
  params.tag = fingerprint_tag_;
  params.recv_buffers = {(*recv_buffers_)->epoch_cell(slot_), (*recv_buffers_)->released(slot_),
                         layout_.cast_targets()};
  if (return_slot_ >= 0) {
    params.returns = {(*returns_)->epoch_cell(return_slot_), (*returns_)->released(return_slot_),
                      layout_.return_targets()};
  }
  return params;
}

void CopyEnginePass::open(std::span<const ConstTensorView> own, cudaStream_t stream) {
  before_call(stream);
  num_signals_ = num_gives_ = 0;
  fingerprint_tag_ = group_->state.fingerprint_tag();
  return_slot_ = spec_.reduces.empty() ? -1 : (*returns_)->slots().take(spec_.label);
  MoveParams copies;
  if (!own.empty()) {
    copies.chunks = tables_.at<Chunk>(own_chunks_);
    copies.count = num_own_chunks_;
    copies.bases = (*recv_buffers_)->bases(slot_);
    for (size_t t = 0; t < own.size(); ++t) copies.sources[t] = own[t].data;
  }
  sends_recv_buffer_ = false;
  launch_begin(epoch_params(), copies, may_get_ready(stream), stream);
  group_->keep_step();
}

int CopyEnginePass::begin(std::span<const ConstTensorView> own, void* stream) {
  group_->state.check();
  if (!own.empty()) check_sources(spec_, own, layout_.own_source_rows);
  epoch_.begin();
  try {
    slot_ = (*recv_buffers_)->slots().take(spec_.label);
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
    (*recv_buffers_)->slots().take_kept(kept.slot, spec_.label);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  slot_ = kept.slot;
  open({}, cuda::as_stream(stream));
  return slot_;
}

TensorView CopyEnginePass::recv_buffers(int tensor, int slot) const {
  require(tensor >= 0 && tensor < std::ssize(spec_.recv_buffers) && slot >= 0 && slot < num_slots(),
          "recv_buffer '{}': tensor and slot must exist (got {}, {})", spec_.label, tensor, slot);
  const RecvTensor& shape = spec_.recv_buffers[static_cast<size_t>(tensor)];
  void* data = recv_buffers_->address(group_->state.rank(), slot, tensor);
  return {{data, shape.dtype, shape.rows, shape.heads, shape.dim, int64_t{shape.heads} * shape.dim, shape.dim}};
}

int64_t CopyEnginePass::own_bytes() const {
  if (shares_memory() || spec_.recv_buffers_of != nullptr) return 0;
  return num_slots() * (*recv_buffers_)->shape().slot_bytes[static_cast<size_t>(group_->state.rank())];
}

bool CopyEnginePass::may_get_ready(cudaStream_t stream) const {
  return !group_->keeps_step() && !cuda::is_captured(stream);
}

bool CopyEnginePass::may_join_last(cudaStream_t stream) const { return !sends_recv_buffer_ && may_get_ready(stream); }

// An event would stand between the kernels that close this epoch and open the next. The second could then not get ready
// while the first ends.
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
  if (return_slot_ >= 0) (*returns_)->slots().release(return_slot_);
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
  (*recv_buffers_)->slots().release(slot_);
}

KeptSlot CopyEnginePass::end_kept(void* stream) {
  close(cuda::as_stream(stream));
  (*recv_buffers_)->slots().keep(slot_);
  return {slot_};
}

void CopyEnginePass::drop_kept(KeptSlot kept) {
  (*recv_buffers_)->slots().take_kept(kept.slot, spec_.label);
  (*recv_buffers_)->slots().release(kept.slot);
}

}  // namespace tangram::comm
