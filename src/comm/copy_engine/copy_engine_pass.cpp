// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/copy_engine/copy_engine_pass.hpp"

#include <algorithm>

#include "comm/all_gather.hpp"
#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/profile_range.hpp"

namespace tangram::comm {

namespace {

constexpr int kMoveBlocks = 16;      // of a kernel that moves short stretches: about 250 GB/s
constexpr int kConvertBlocks = 264;  // memory-bound, before the transfer: all the device

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

template <class T>
cuda::DeviceBuffer upload(const std::vector<T>& values) {
  return cuda::DeviceBuffer::copy_of(values.data(), values.size() * sizeof(T));
}

/// Copies between device memories that go to a copy engine in one call.
struct CopyBatch {
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<size_t> sizes;

  void add(void* target, const void* source, size_t num_bytes) {
    targets.push_back(target);
    sources.push_back(source);
    sizes.push_back(num_bytes);
  }
  void enqueue(cudaStream_t stream) const {
    if (targets.empty()) return;
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;
    cuda::check(cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), targets.size(), &attributes, &first,
                                     1, stream),
                "cudaMemcpyBatchAsync");
  }
};

/// Whether a kernel moves the copies sooner than copy engines, by more than the time that it takes from the caller's
/// stream is worth: 2.4 us a copy and 390 GB/s against 250 GB/s and a launch.
bool prefers_kernel(int64_t num_copies, int64_t num_bytes) {
  const double engine_us = 2.4 * static_cast<double>(num_copies) + static_cast<double>(num_bytes) / 390e3;
  const double kernel_us = 10 + static_cast<double>(num_bytes) / 250e3;
  return engine_us > 4 * kernel_us;
}

}  // namespace

CopyEnginePass::CopyEnginePass(std::shared_ptr<CopyEngineGroup> group, const DevicePassSpec& spec)
    : group_(std::move(group)),
      spec_(spec),
      number_(group_->state.add_pass(spec.label)),
      epoch_(spec.label, static_cast<int>(spec.casts.size()), static_cast<int>(spec.reduces.size())) {
  Communicator& control = group_->state.control();
  const Place place{group_->state.rank(), group_->state.size()};
  layout_ = make_pass_layout(place, spec_);
  if (!spec_.reduces.empty()) {
    const std::vector<int64_t> all = all_gather(control, layout_.return_begin, "prepare_pass: return areas");
    const auto stride = static_cast<ptrdiff_t>(layout_.return_begin.size());
    std::vector<std::vector<int64_t>> begins;
    for (int rank = 0; rank < place.size; ++rank) {
      begins.emplace_back(all.begin() + rank * stride, all.begin() + (rank + 1) * stride);
    }
    place_returns(layout_, place, begins);
  }
  if (spec_.landing_of != nullptr) {
    landing_ = static_cast<const CopyEnginePass&>(*spec_.landing_of).landing_;
  } else {
    const int64_t rows = spec_.landing.empty() ? 0 : spec_.landing[0].rows;
    landing_ = std::make_shared<SlotArea>(control, group_->heap,
                                          SlotArea::Shape{rows, landing_row_bytes(spec_), spec_.num_slots, 0},
                                          "landing buffers of '" + spec_.label + "'");
  }
  const int64_t num_flags = static_cast<int64_t>(spec_.casts.size() + spec_.reduces.size()) * place.size;
  returns_ = std::make_unique<SlotArea>(
      control, group_->heap,
      SlotArea::Shape{layout_.return_rows, return_row_bytes(spec_), spec_.num_return_slots, num_flags},
      "return areas of '" + spec_.label + "'");
  casts_ = plan_casts();
  reduces_ = plan_returns();
  plan_conversions();
  plan_own_rows();
  merge_ended_ = cuda::DeviceBuffer::zeros(sizeof(uint32_t));
  merge_begin_ = upload(layout_.merge.begin);
  merge_entries_ = upload(layout_.merge.entries);
  merge_before_ = upload(layout_.merge.num_before);
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  control.barrier("prepare_pass: ready");
}

void CopyEnginePass::append_waits(Transfer& transfer, size_t stage, const std::vector<int>& sources,
                                  std::vector<uint32_t>& list) {
  transfer.first_wait = static_cast<int>(list.size());
  transfer.num_waits = static_cast<int>(sources.size());
  for (const int source : sources) list.push_back(static_cast<uint32_t>(stage << 8) | static_cast<uint32_t>(source));
}

void CopyEnginePass::finish_plan(Transfer& transfer, const std::vector<std::vector<PeerPieces>>& layout, size_t stage,
                                 const SlotArea& area, const std::vector<int64_t>& row_bytes) {
  int64_t num_copies = 0;
  for (const PeerPieces& peer : layout[stage]) {
    Target& target = transfer.targets.emplace_back();
    target.peer = peer.peer;
    transfer.peers |= uint64_t{1} << peer.peer;
    for (size_t t = 0; t < row_bytes.size(); ++t) {
      const int64_t begin = area.tensor_offset(peer.peer, static_cast<int>(t));
      for (const Piece& piece : peer.pieces) {
        target.copies.push_back({static_cast<int>(t), piece.from * row_bytes[t], begin + piece.to * row_bytes[t],
                                 piece.rows * row_bytes[t]});
      }
      transfer.rows_sent += peer.rows;
      transfer.bytes_sent += peer.rows * row_bytes[t];
    }
    num_copies += std::ssize(target.copies) + 1;
  }
  transfer.by_kernel = prefers_kernel(num_copies, transfer.bytes_sent);
  if (!transfer.by_kernel) return;
  std::vector<Chunk> chunks;
  for (const Target& target : transfer.targets) {
    for (const Copy& copy : target.copies) {
      append_chunks(chunks, copy.from, copy.to, copy.num_bytes, copy.tensor, target.peer);
    }
  }
  transfer.num_chunks = static_cast<int>(chunks.size());
  transfer.chunks = upload(chunks);
}

std::vector<CopyEnginePass::Transfer> CopyEnginePass::plan_casts() {
  const std::vector<int64_t> row_bytes = landing_row_bytes(spec_);
  std::vector<Transfer> transfers(spec_.casts.size());
  std::vector<uint32_t> waits;
  for (size_t stage = 0; stage < transfers.size(); ++stage) {
    Transfer& transfer = transfers[stage];
    finish_plan(transfer, layout_.casts, stage, *landing_, row_bytes);
    for (const int64_t bytes : row_bytes) {
      transfer.rows_received += spec_.casts[stage].rows_received();
      transfer.bytes_received += spec_.casts[stage].rows_received() * bytes;
    }
    append_waits(transfer, stage, layout_.cast_sources[stage], waits);
  }
  cast_waits_ = upload(waits);
  return transfers;
}

std::vector<CopyEnginePass::Transfer> CopyEnginePass::plan_returns() {
  const std::vector<int64_t> row_bytes = return_row_bytes(spec_);
  std::vector<Transfer> transfers(spec_.reduces.size());
  std::vector<uint32_t> waits, signals;
  for (size_t stage = 0; stage < transfers.size(); ++stage) {
    Transfer& transfer = transfers[stage];
    finish_plan(transfer, layout_.returns, stage, *returns_, row_bytes);
    for (const int64_t bytes : row_bytes) {
      transfer.rows_received += spec_.reduces[stage].rows_sent();
      transfer.bytes_received += spec_.reduces[stage].rows_sent() * bytes;
    }
    append_waits(transfer, stage, layout_.return_sources[stage], waits);
    transfer.first_signal = static_cast<int>(signals.size());
    for (const Target& owner : transfer.targets) {
      signals.push_back(static_cast<uint32_t>(stage << 8) | static_cast<uint32_t>(owner.peer));
    }
  }
  return_signals_ = upload(signals);
  num_return_waits_ = static_cast<int>(waits.size());
  return_waits_ = upload(waits);
  return transfers;
}

void CopyEnginePass::plan_conversions() {
  std::vector<char*> bases;
  const std::vector<int64_t> row_bytes = return_row_bytes(spec_);
  for (size_t t = 0; t < spec_.returns.size(); ++t) {
    const ReturnTensor& tensor = spec_.returns[t];
    const bool converts = tensor.partial_dtype != tensor.reduce_dtype;
    const int64_t bytes = tensor.partial_rows * row_bytes[t];
    converted_.emplace_back(converts ? static_cast<size_t>(bytes) : 0);
    bases.push_back(converted_.back().as<char>());
  }
  converted_bases_ = upload(bases);
  for (const auto& stage : layout_.returns) {
    std::vector<Chunk> chunks;
    for (size_t t = 0; t < spec_.returns.size(); ++t) {
      if (converted_[t].bytes() == 0) continue;
      for (const PeerPieces& owner : stage) {
        for (const Piece& piece : owner.pieces) {
          const int64_t begin = piece.from * row_bytes[t];
          append_chunks(chunks, begin, begin, piece.rows * row_bytes[t], static_cast<int>(t), static_cast<int>(t));
        }
      }
    }
    num_conversions_.push_back(static_cast<int>(chunks.size()));
    conversions_.push_back(upload(chunks));
  }
}

void CopyEnginePass::plan_own_rows() {
  const std::vector<int64_t> row_bytes = landing_row_bytes(spec_);
  const int rank = group_->state.rank();
  std::vector<Chunk> chunks;
  for (size_t t = 0; t < row_bytes.size(); ++t) {
    const int64_t offset = landing_->tensor_offset(rank, static_cast<int>(t));
    for (const KeyStretch& rows : spec_.own_rows) {
      const int64_t to = offset + rows.keys.begin * row_bytes[t];
      append_chunks(chunks, rows.row * row_bytes[t], to, rows.keys.size() * row_bytes[t], static_cast<int>(t), rank);
    }
  }
  num_own_chunks_ = static_cast<int>(chunks.size());
  own_chunks_ = upload(chunks);
}

EpochParams CopyEnginePass::epoch_params() const {
  EpochParams params = group_->epoch_params(number_);
  params.landing = {landing_->epoch_cell(slot_), landing_->released(slot_), layout_.cast_targets()};
  if (return_slot_ >= 0) {
    params.returns = {returns_->epoch_cell(return_slot_), returns_->released(return_slot_), layout_.return_targets()};
  }
  return params;
}

void CopyEnginePass::open(std::span<const ConstTensorView> own, cudaStream_t stream) {
  num_signals_ = 0;
  return_slot_ = spec_.reduces.empty() ? -1 : returns_->slots().take(spec_.label);
  MoveParams copies;
  if (!own.empty()) {
    copies.chunks = own_chunks_.as<Chunk>();
    copies.count = num_own_chunks_;
    copies.bases = landing_->bases(slot_);
    for (size_t t = 0; t < own.size(); ++t) copies.sources[t] = own[t].data;
  }
  launch_begin(epoch_params(), copies, stream);
}

int CopyEnginePass::begin(std::span<const ConstTensorView> own, void* stream) {
  group_->state.check();
  if (!own.empty()) check_sources(spec_, own, layout_.own_source_rows);
  epoch_.begin();
  try {
    slot_ = landing_->slots().take(spec_.label);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  open(own, as_stream(stream));
  return slot_;
}

int CopyEnginePass::begin_kept(KeptSlot kept, void* stream) {
  group_->state.check();
  epoch_.begin();
  try {
    landing_->slots().take_kept(kept.slot, spec_.label);
  } catch (...) {
    epoch_.cancel();
    throw;
  }
  slot_ = kept.slot;
  open({}, as_stream(stream));
  return slot_;
}

TensorView CopyEnginePass::landing(int tensor, int slot) const {
  require(tensor >= 0 && tensor < std::ssize(spec_.landing) && slot >= 0 && slot < num_slots(),
          "landing '{}': tensor and slot must exist (got {}, {})", spec_.label, tensor, slot);
  const LandingTensor& shape = spec_.landing[static_cast<size_t>(tensor)];
  void* data = landing_->address(group_->state.rank(), slot, tensor);
  return {{data, shape.dtype, shape.rows, shape.heads, shape.dim, int64_t{shape.heads} * shape.dim, shape.dim}};
}

void CopyEnginePass::send(const Transfer& transfer, size_t stage, const SlotArea& area, int slot, int64_t first_flag,
                          const void* const* sources, const OwnedStream& own_stream, bool& used, cudaStream_t stream) {
  if (transfer.targets.empty()) return;
  const int64_t flag = first_flag + static_cast<int64_t>(stage) * group_->state.size();
  const uint64_t* epoch = landing_->epoch_cell(slot_);
  if (transfer.by_kernel) {
    MoveParams params;
    params.chunks = transfer.chunks.as<Chunk>();
    params.count = transfer.num_chunks;
    params.bases = area.bases(slot);
    const size_t num_tensors = &area == landing_.get() ? spec_.landing.size() : spec_.returns.size();
    std::copy_n(sources, num_tensors, params.sources);
    launch_move(params, kMoveBlocks, stream);
    launch_signal(returns_->flags(flag), epoch, transfer.peers, group_->state.rank(), stream);
    return;
  }
  const OwnedEvent& fork = &own_stream == &group_->cast_stream ? cast_fork_ : return_fork_;
  fork.order(stream, own_stream.get());
  used = true;
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  if (group_->batch_copies) {
    cuda::check(cudaStreamIsCapturing(own_stream.get(), &captured), "cudaStreamIsCapturing");
  }
  const bool batched = group_->batch_copies && captured == cudaStreamCaptureStatusNone;
  (this->*(batched ? &CopyEnginePass::copy_batched : &CopyEnginePass::copy))(transfer, area, slot, flag, sources,
                                                                             own_stream.get());
}

void CopyEnginePass::copy(const Transfer& transfer, const SlotArea& area, int slot, int64_t flag,
                          const void* const* sources, cudaStream_t stream) const {
  const uint64_t* epoch = landing_->epoch_cell(slot_);
  for (const Target& target : transfer.targets) {
    char* const base = area.address(target.peer, slot, 0);
    for (const Copy& copy : target.copies) {
      cuda::check(cudaMemcpyAsync(base + copy.to, static_cast<const char*>(sources[copy.tensor]) + copy.from,
                                  static_cast<size_t>(copy.num_bytes), cudaMemcpyDeviceToDevice, stream),
                  "cudaMemcpyAsync");
    }
    cuda::check(cudaMemcpyAsync(returns_->flag(target.peer, flag + group_->state.rank()), epoch, sizeof(uint64_t),
                                cudaMemcpyDeviceToDevice, stream),
                "cudaMemcpyAsync");
  }
}

void CopyEnginePass::copy_batched(const Transfer& transfer, const SlotArea& area, int slot, int64_t flag,
                                  const void* const* sources, cudaStream_t stream) const {
  // Nobody promises an order within a batch, so that flags need one of their own, behind all rows.
  CopyBatch rows, flags;
  for (const Target& target : transfer.targets) {
    char* const base = area.address(target.peer, slot, 0);
    for (const Copy& copy : target.copies) {
      rows.add(base + copy.to, static_cast<const char*>(sources[copy.tensor]) + copy.from,
               static_cast<size_t>(copy.num_bytes));
    }
    flags.add(returns_->flag(target.peer, flag + group_->state.rank()), landing_->epoch_cell(slot_), sizeof(uint64_t));
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
  send(transfer, static_cast<size_t>(stage), *landing_, slot_, 0, pointers, group_->cast_stream, cast_used_,
       as_stream(stream));
  group_->state.count(transfer.rows_sent, transfer.bytes_sent, transfer.rows_received, transfer.bytes_received);
}

void CopyEnginePass::wait_cast(int stage, void* stream) {
  epoch_.wait_cast(stage);
  const Transfer& transfer = casts_[static_cast<size_t>(stage)];
  WaitParams params;
  params.context = group_->context();
  params.flags = returns_->flag(group_->state.rank(), 0);
  params.epoch = landing_->epoch_cell(slot_);
  params.list = cast_waits_.as<uint32_t>() + transfer.first_wait;
  params.count = transfer.num_waits;
  params.size = group_->state.size();
  params.pass = number_;
  params.kind = cuda::WaitKind::kArrival;
  launch_wait(params, as_stream(stream));
}

DeviceArrivals CopyEnginePass::arrivals() const {
  epoch_.require_open("arrivals");
  return {returns_->flag(group_->state.rank(), 0), landing_->epoch_cell(slot_), group_->state.size(), number_,
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
  conversion.chunks = conversions_[stage_idx].as<Chunk>();
  conversion.count = num_conversions_[stage_idx];
  conversion.bases = converted_bases_.as<char*>();
  std::copy_n(pointers, 4, conversion.sources);
  launch_convert(conversion, kConvertBlocks, as_stream(stream));
  for (size_t t = 0; t < converted_.size(); ++t) {
    if (converted_[t].bytes() > 0) pointers[t] = converted_[t].as<void>();
  }
  const Transfer& transfer = reduces_[stage_idx];
  send(transfer, stage_idx, *returns_, return_slot_, static_cast<int64_t>(spec_.casts.size()) * group_->state.size(),
       pointers, group_->return_stream, return_used_, as_stream(stream));
  group_->state.count(transfer.rows_sent, transfer.bytes_sent, transfer.rows_received, transfer.bytes_received);
}

std::vector<ReturnTarget> CopyEnginePass::return_targets(int stage, int tensor, int return_slot) const {
  require(stage >= 0 && stage < std::ssize(reduces_) && tensor >= 0 && tensor < std::ssize(spec_.returns) &&
              return_slot >= 0 && return_slot < returns_->num_slots(),
          "return_targets '{}': stage, tensor and slot must exist (got {}, {}, {})", spec_.label, stage, tensor,
          return_slot);
  const int64_t row_bytes = return_row_bytes(spec_)[static_cast<size_t>(tensor)];
  std::vector<ReturnTarget> targets;
  for (const PeerPieces& owner : layout_.returns[static_cast<size_t>(stage)]) {
    for (const Piece& piece : owner.pieces) {
      targets.push_back({owner.peer,
                         {piece.from, piece.from + piece.rows},
                         returns_->address(owner.peer, return_slot, tensor) + piece.to * row_bytes});
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
    signal_and_wait(signals, as_stream(stream));
  }
  if (num_signals_ == 0) first_signal_ = transfer.first_signal;
  num_signals_ += static_cast<int>(transfer.targets.size());
  group_->state.count(transfer.rows_sent, transfer.bytes_sent, transfer.rows_received, transfer.bytes_received);
}

WaitParams CopyEnginePass::return_wait() const {
  const int64_t first_flag = static_cast<int64_t>(spec_.casts.size()) * group_->state.size();
  WaitParams wait;
  wait.context = group_->context();
  wait.flags = returns_->flag(group_->state.rank(), first_flag);
  wait.epoch = landing_->epoch_cell(slot_);
  wait.list = return_waits_.as<uint32_t>();
  wait.count = num_return_waits_;
  wait.size = group_->state.size();
  wait.pass = number_;
  wait.kind = cuda::WaitKind::kReturn;
  wait.signals = returns_->flags(first_flag);
  return wait;
}

void CopyEnginePass::signal_and_wait(WaitParams params, cudaStream_t stream) {
  params.signal_list = return_signals_.as<uint32_t>() + first_signal_;
  params.num_signals = num_signals_;
  num_signals_ = 0;
  launch_wait(params, stream);
}

bool CopyEnginePass::leave_rows(std::span<const Range> rows) {
  const int64_t num_rows = spec_.returns.empty() ? 0 : spec_.returns[0].owned_rows;
  std::vector<char> left(static_cast<size_t>(num_rows));
  for (const Range& range : rows) {
    require(range.begin >= 0 && range.end <= num_rows, "leave_rows '{}': must be rows of the sums (got [{}, {}) of {})",
            spec_.label, range.begin, range.end, num_rows);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const auto idx = static_cast<size_t>(row);
      require(layout_.merge.begin[idx] == layout_.merge.begin[idx + 1],
              "leave_rows '{}': nothing may come back for these rows (got row {})", spec_.label, row);
      left[idx] = 1;
    }
  }
  std::vector<int32_t> merged;
  for (int32_t row = 0; row < num_rows; ++row) {
    if (left[static_cast<size_t>(row)] == 0) merged.push_back(row);
  }
  merge_rows_ = upload(merged);
  num_merge_rows_ = std::ssize(merged);
  return true;
}

std::vector<MergeParams> CopyEnginePass::merges(std::span<const ConstTensorView> own,
                                                std::span<const TensorView> sums) const {
  std::vector<MergeParams> merged;
  for (size_t t = 0; t < own.size(); ++t) {
    const ReturnTensor& shape = spec_.returns[t];
    MergeParams& params = merged.emplace_back();
    params.own = own[t].data;
    params.returned = returns_->address(group_->state.rank(), return_slot_, static_cast<int>(t));
    params.sums = sums[t].data;
    params.own_dtype = own[t].dtype;
    params.returned_dtype = shape.reduce_dtype;
    params.sums_dtype = sums[t].dtype;
    params.begin = merge_begin_.as<int32_t>();
    params.entries = merge_entries_.as<int32_t>();
    params.num_before = merge_before_.as<int32_t>();
    params.rows = num_merge_rows_ < 0 ? shape.owned_rows : num_merge_rows_;
    if (num_merge_rows_ >= 0) params.chosen = merge_rows_.as<int32_t>();
    params.row_elements = shape.heads * shape.dim;
  }
  return merged;
}

void CopyEnginePass::finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                   void* stream) {
  const cuda::ProfileRange range("tangram: merge");
  epoch_.require_open("finish_reduce");
  check_sums(spec_, own, sums);
  epoch_.finish_reduce();
  signal_and_wait(return_wait(), as_stream(stream));
  launch_merge(merges(own, sums), as_stream(stream));
}

void CopyEnginePass::finish_reduce_and_end(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                           void* stream) {
  const cuda::ProfileRange range("tangram: merge");
  epoch_.require_open("finish_reduce_and_end");
  check_sums(spec_, own, sums);
  epoch_.finish_reduce();
  epoch_.end();
  join(as_stream(stream));
  signal_and_wait(return_wait(), as_stream(stream));
  launch_merge_and_end(merges(own, sums), epoch_params(), merge_ended_.as<uint32_t>(), as_stream(stream));
  give_slots_back();
  landing_->slots().give_back(slot_);
}

void CopyEnginePass::join(cudaStream_t stream) {
  if (cast_used_) cast_join_.order(group_->cast_stream.get(), stream);
  if (return_used_) return_join_.order(group_->return_stream.get(), stream);
  cast_used_ = return_used_ = false;
}

void CopyEnginePass::give_slots_back() {
  if (return_slot_ >= 0) returns_->slots().give_back(return_slot_);
  return_slot_ = -1;
}

void CopyEnginePass::close(cudaStream_t stream) {
  epoch_.end();
  join(stream);
  launch_end(epoch_params(), stream);
  give_slots_back();
}

void CopyEnginePass::end(void* stream) {
  close(as_stream(stream));
  landing_->slots().give_back(slot_);
}

KeptSlot CopyEnginePass::end_kept(void* stream) {
  close(as_stream(stream));
  landing_->slots().keep(slot_);
  return {slot_};
}

void CopyEnginePass::drop_kept(KeptSlot kept) {
  landing_->slots().take_kept(kept.slot, spec_.label);
  landing_->slots().give_back(kept.slot);
}

}  // namespace tangram::comm
