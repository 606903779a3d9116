// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A DeviceCommunicator without cleverness: every call waits for the stream and moves rows through host memory with the
// host's collectives. What DistAttention computes over it cannot be wrong because of a transport.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/wait_context.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/error.hpp"

namespace tangram::testing {

class BlockingPass final : public DevicePass {
 public:
  /// `with_flags`: offers arrival flags, all set, and memory for kernels that store their gradients themselves.
  BlockingPass(Communicator& control, const DevicePassSpec& spec, bool with_flags)
      : control_(control), spec_(spec), with_flags_(with_flags) {
    const size_t num_flags = spec.casts.size() * static_cast<size_t>(control.size());
    flags_ = cuda::DeviceBuffer::zeros((num_flags + 1) * sizeof(uint64_t));
    context_ = cuda::DeviceBuffer::zeros(sizeof(cuda::WaitContext));
    for (const ReturnTensor& t : spec.returns) {
      stored_.emplace_back(static_cast<size_t>(t.partial_rows * t.heads * t.dim) * size_of(t.reduce_dtype));
    }
    if (spec.recv_buffers_of != nullptr) {
      shared_ = std::dynamic_pointer_cast<BlockingPass>(spec.recv_buffers_of);
    } else {
      slots_.resize(static_cast<size_t>(spec.num_slots));
      kept_.resize(slots_.size());
      for (Slot& slot : slots_) {
        for (const RecvTensor& t : spec.recv_buffers) {
          slot.emplace_back(static_cast<size_t>(t.rows * t.heads * t.dim) * size_of(t.dtype));
        }
      }
    }
  }

  using DevicePass::begin;
  int begin(std::span<const ConstTensorView> own, void* stream) override {
    BlockingPass& home = shared_ ? *shared_ : *this;
    for (size_t i = 0; i < home.kept_.size(); ++i) {
      if (home.kept_[i]) continue;
      const int slot = open(static_cast<int>(i));
      for (size_t t = 0; t < own.size(); ++t) copy_own(own[t], recv_buffers(static_cast<int>(t), slot), stream);
      return slot;
    }
    throw InvalidArgument("BlockingPass::begin: no free slot");
  }
  int begin_kept(KeptSlot kept, void*) override { return open(kept.slot); }
  TensorView recv_buffers(int tensor, int slot) const override {
    const BlockingPass& home = shared_ ? *shared_ : *this;
    const RecvTensor& t = spec_.recv_buffers[static_cast<size_t>(tensor)];
    return {{home.slots_[static_cast<size_t>(slot)][static_cast<size_t>(tensor)].as<void>(), t.dtype, t.rows, t.heads,
             t.dim, int64_t{t.heads} * t.dim, t.dim}};
  }
  int num_slots() const override { return static_cast<int>((shared_ ? *shared_ : *this).slots_.size()); }

  void cast(int stage, std::span<const ConstTensorView> sources, void* stream) override {
    synchronize(stream);
    std::vector<HostTensor> from, to;
    std::vector<CastTensor> tensors;
    for (size_t i = 0; i < sources.size(); ++i) {
      from.push_back(fetch(sources[i]));
      to.push_back(fetch(recv_buffers(static_cast<int>(i), slot_)));
    }
    for (size_t i = 0; i < sources.size(); ++i) tensors.push_back({from[i], to[i]});
    const Exchange& exchange = spec_.casts[static_cast<size_t>(stage)];
    control_.group_cast(exchange, tensors, "cast")->wait();
    for (size_t i = 0; i < sources.size(); ++i) {
      for (const RowCopy& copy : exchange.recvs) {
        const TensorView target = slice_rows(recv_buffers(static_cast<int>(i), slot_), copy.rows);
        const ConstTensorView rows = slice_rows(to[i].view(), copy.rows);
        cuda::upload(target.data, rows.data, static_cast<size_t>(target.rows * target.row_bytes()));
      }
    }
  }
  void wait_group_cast(int, void*) override {}
  KvReadyFlags ready_flags() const override {
    const auto* flags = flags_.as<uint64_t>();
    return {flags, flags, control_.size(), 0, context_.as<void>()};
  }

  void reduce(int stage, std::span<const ConstTensorView> partials, void* stream) override {
    synchronize(stream);
    std::vector<HostTensor> from;
    std::vector<ReduceTensor> tensors;
    for (size_t i = 0; i < partials.size(); ++i) from.push_back(fetch(partials[i]).to(spec_.returns[i].reduce_dtype));
    for (size_t i = 0; i < partials.size(); ++i) tensors.push_back({from[i], owned_[i]});
    control_.group_reduce(spec_.reduces[static_cast<size_t>(stage)], tensors, ReduceOp::kSum, "reduce")->wait();
  }
  std::vector<ReturnTarget> return_targets(int stage, int tensor, int) const override {
    std::vector<ReturnTarget> targets;
    if (!with_flags_) return targets;
    const TensorView rows = stored(static_cast<size_t>(tensor));
    for (const RowCopy& copy : spec_.reduces[static_cast<size_t>(stage)].recvs) {
      targets.push_back({copy.peer, copy.rows, rows.data, copy.rows.begin});
    }
    return targets;
  }
  int return_slot() const override { return 0; }
  void signal_returned(int stage, void* stream) override {
    std::vector<ConstTensorView> rows;
    for (size_t i = 0; i < stored_.size(); ++i) rows.push_back(stored(i));
    reduce(stage, rows, stream);
  }
  void finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void* stream) override {
    synchronize(stream);
    const auto is_among = [](const std::vector<Range>& ranges, int64_t row) {
      return std::any_of(ranges.begin(), ranges.end(),
                         [row](const Range& range) { return range.begin <= row && row < range.end; });
    };
    for (size_t i = 0; i < own.size(); ++i) {
      const HostTensor mine = fetch(own[i]), before = fetch(sums[i]);
      HostTensor total(DType::kFloat32, mine.rows(), mine.heads(), mine.dim());
      for (int64_t row = 0; row < mine.rows(); ++row) {
        for (int head = 0; head < mine.heads(); ++head) {
          for (int d = 0; d < mine.dim(); ++d) {
            const float part = is_among(absent_, row) ? 0.0f : mine.at(row, head, d);
            total.set(row, head, d, is_among(left_, row) ? before.at(row, head, d) : part + owned_[i].at(row, head, d));
          }
        }
      }
      const HostTensor rounded = total.to(sums[i].dtype);
      cuda::upload(sums[i].data, rounded.view().data, static_cast<size_t>(rounded.bytes()));
    }
  }
  bool leave_rows(std::span<const Range> rows, std::span<const Range> absent) override {
    left_.assign(rows.begin(), rows.end());
    absent_.assign(absent.begin(), absent.end());
    return with_flags_;
  }
  void end(void* stream) override { synchronize(stream); }
  KeptSlot end_kept(void* stream) override {
    synchronize(stream);
    (shared_ ? *shared_ : *this).kept_[static_cast<size_t>(slot_)] = true;
    return {slot_};
  }
  void drop_kept(KeptSlot kept) override { (shared_ ? *shared_ : *this).kept_[static_cast<size_t>(kept.slot)] = false; }

 private:
  using Slot = std::vector<cuda::DeviceBuffer>;

  TensorView stored(size_t i) const {
    const ReturnTensor& t = spec_.returns[i];
    return {{stored_[i].as<void>(), t.reduce_dtype, t.partial_rows, t.heads, t.dim, int64_t{t.heads} * t.dim, t.dim}};
  }

  int open(int slot) {
    slot_ = slot;
    (shared_ ? *shared_ : *this).kept_[static_cast<size_t>(slot)] = false;
    owned_.clear();
    for (const ReturnTensor& t : spec_.returns) {
      owned_.emplace_back(t.reduce_dtype, t.owned_rows, t.heads, t.dim);
      owned_.back().fill(0);
    }
    return slot;
  }
  void copy_own(const ConstTensorView& source, const TensorView& target, void* stream) const {
    synchronize(stream);
    for (const LocalKvRange& rows : spec_.own_rows) {
      const ConstTensorView from = slice_rows(source, {rows.row, rows.row + rows.keys.size()});
      cuda::check(cudaMemcpy(slice_rows(target, rows.keys).data, from.data,
                             static_cast<size_t>(from.rows * from.row_bytes()), cudaMemcpyDeviceToDevice),
                  "cudaMemcpy");
    }
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  static void synchronize(void* stream) {
    cuda::check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }
  static HostTensor fetch(const ConstTensorView& view) {
    HostTensor host(view.dtype, view.rows, view.heads, view.dim);
    cuda::check(cudaMemcpy(host.view().data, view.data, static_cast<size_t>(host.bytes()), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
    return host;
  }

  Communicator& control_;
  DevicePassSpec spec_;
  std::shared_ptr<BlockingPass> shared_;
  std::vector<Slot> slots_;
  std::vector<bool> kept_;
  std::vector<HostTensor> owned_;
  std::vector<Range> left_, absent_;
  cuda::DeviceBuffer flags_, context_;
  std::vector<cuda::DeviceBuffer> stored_;
  bool with_flags_;
  int slot_ = -1;
};

class BlockingCommunicator final : public DeviceCommunicator {
 public:
  BlockingCommunicator(Communicator& control, bool with_flags) : control_(control), with_flags_(with_flags) {
    cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
  }

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::string_view name() const override { return "blocking"; }
  int device() const override { return device_; }
  Communicator& control() override { return control_; }
  KernelTransfers kernel_transfers() const override { return {with_flags_, with_flags_, RecvBufferReuse::kInOrder}; }
  std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) override {
    return std::make_shared<BlockingPass>(control_, spec, with_flags_);
  }
  void set_call_fingerprint(const CallFingerprint& fingerprint) override { control_.set_call_fingerprint(fingerprint); }
  void all_reduce(float* values, int count, ReduceOp op, void* stream) override {
    std::vector<float> host(static_cast<size_t>(count));
    cuda::check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
    cuda::check(cudaMemcpy(host.data(), values, host.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    control_.all_reduce(host, op, "all_reduce");
    cuda::upload(values, host.data(), host.size() * sizeof(float));
  }
  void check() override {}
  void abort(std::string_view reason) noexcept override { control_.abort(reason); }
  TrafficCounters counters() const override { return control_.counters(); }
  void reset_counters() override { control_.reset_counters(); }

 private:
  Communicator& control_;
  bool with_flags_;
  int device_ = 0;
};

}  // namespace tangram::testing
