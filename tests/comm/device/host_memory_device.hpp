// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A DeviceCommunicator over host memory that casts and reduces by the host's collectives, so that what is made of
// device passes is tested without a device. Casts start when they are called and end when they are waited for.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/all_gather.hpp"
#include "comm/device/pass_layout.hpp"
#include "comm/device/pass_tensors.hpp"
#include "comm/device/slot_pool.hpp"
#include "tangram/communicator.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/error.hpp"

namespace tangram::testing {

/// Receive buffers begin each epoch as NaN, unless they were kept. Calls out of turn throw, as those of a device pass.
class HostMemoryPass final : public DevicePass {
 public:
  HostMemoryPass(Communicator& control, const DevicePassSpec& spec) : control_(control), spec_(spec), epoch_(spec) {
    if (spec.recv_buffers_of != nullptr) {
      recv_buffers_ = static_cast<const HostMemoryPass&>(*spec.recv_buffers_of).recv_buffers_;
    }
    for (const ReturnTensor& t : spec.returns) stored_.emplace_back(t.reduce_dtype, t.partial_rows, t.heads, t.dim);
    if (spec.recv_buffers_of != nullptr) return;
    recv_buffers_ = std::make_shared<RecvBuffer>(spec.num_slots);
    for (int slot = 0; slot < spec.num_slots; ++slot) {
      std::vector<HostTensor>& tensors = recv_buffers_->tensors.emplace_back();
      for (const RecvTensor& t : spec.recv_buffers) tensors.emplace_back(t.dtype, t.rows, t.heads, t.dim);
    }
  }

  using DevicePass::begin;
  int begin(std::span<const ConstTensorView> own, void*) override {
    epoch_.begin();
    ++num_epochs_;
    slot_ = recv_buffers_->slots.take(spec_.label);
    for (HostTensor& tensor : recv_buffers_->tensors[static_cast<size_t>(slot_)]) tensor.fill(std::nanf(""));
    for (size_t t = 0; t < own.size(); ++t) {
      for (const LocalKvRange& rows : spec_.own_rows) {
        const ConstTensorView from = slice_rows(own[t], {rows.row, rows.row + rows.keys.size()});
        std::memcpy(slice_rows(recv_buffers(static_cast<int>(t), slot_), rows.keys).data, from.data,
                    static_cast<size_t>(from.rows * from.row_bytes()));
      }
    }
    return slot_;
  }
  int begin_kept(KeptSlot kept, void*) override {
    epoch_.begin();
    ++num_epochs_;
    recv_buffers_->slots.take_kept(kept.slot, spec_.label);
    return slot_ = kept.slot;
  }
  TensorView recv_buffers(int tensor, int slot) const override {
    return recv_buffers_->tensors.at(static_cast<size_t>(slot)).at(static_cast<size_t>(tensor)).view();
  }
  int num_slots() const override { return recv_buffers_->slots.size(); }
  int num_epochs() const { return num_epochs_; }

  void cast(int stage, std::span<const ConstTensorView> sources, void*) override {
    comm::check_sources(spec_, sources, 0);
    epoch_.cast(stage);
    std::vector<CastTensor> tensors;
    for (size_t t = 0; t < sources.size(); ++t)
      tensors.push_back({sources[t], recv_buffers(static_cast<int>(t), slot_)});
    const std::string label = spec_.label + " stage " + std::to_string(stage);
    under_way_[stage] = control_.group_cast(spec_.casts.at(static_cast<size_t>(stage)), tensors, label);
  }
  void wait_group_cast(int stage, void*) override {
    epoch_.wait_group_cast(stage);
    if (under_way_.contains(stage)) under_way_[stage]->wait();
    under_way_.erase(stage);
  }
  /// Once this rank's calls have ended: what comes has, too, since all ranks have made them.
  void wait_send(int stage, void*) override {
    epoch_.wait_send(stage);
    if (under_way_.contains(stage)) under_way_[stage]->wait();
    under_way_.erase(stage);
  }
  /// A released buffer is poison until rows come: a late reader does not get its old content.
  void release_credit(int stage, void*) override {
    epoch_.release_credit(stage);
    for (size_t t = 0; t < spec_.recv_buffers.size(); ++t) {
      const TensorView tensor = recv_buffers(static_cast<int>(t), slot_);
      for (const RowCopy& copy : spec_.casts.at(static_cast<size_t>(stage)).recvs) {
        const TensorView rows = slice_rows(tensor, copy.rows);
        std::memset(rows.data, 0xff, static_cast<size_t>(rows.rows * rows.row_bytes()));
      }
    }
  }
  /// Memory of the host does not fill up beside a call: all that was cast has come.
  KvReadyFlags ready_flags() const override {
    for (const auto& [stage, handle] : under_way_) handle->wait();
    under_way_.clear();
    return {};
  }

  void reduce(int stage, std::span<const ConstTensorView> partials, void*) override {
    comm::check_partials(spec_, partials);
    epoch_.reduce(stage);
    partials_[stage].assign(partials.begin(), partials.end());
  }
  /// Rows that a call stores at their owners lie here until these are told.
  std::vector<ReturnTarget> return_targets(int stage, int tensor, int) const override {
    std::vector<ReturnTarget> targets;
    void* const base = const_cast<void*>(stored_.at(static_cast<size_t>(tensor)).view().data);
    for (const RowCopy& copy : spec_.reduces.at(static_cast<size_t>(stage)).recvs) {
      targets.push_back({copy.peer, copy.rows, base, copy.rows.begin});
    }
    return targets;
  }
  int return_slot() const override { return spec_.reduces.empty() ? -1 : 0; }
  void signal_returned(int stage, void*) override {
    epoch_.reduce(stage);
    for (const HostTensor& rows : stored_) partials_[stage].push_back(rows.view());
  }
  bool leave_rows(std::span<const Range> rows, std::span<const Range> absent) override {
    left_.assign(rows.begin(), rows.end());
    absent_.assign(absent.begin(), absent.end());
    return true;
  }
  void finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void*) override {
    comm::check_sums(spec_, own, sums);
    epoch_.finish_reduce();
    std::vector<HostTensor> totals;
    for (const ConstTensorView& view : own) {
      totals.push_back(copy_of(view).to(DType::kFloat32));
      for (const Range& rows : absent_) {
        const TensorView zeros = slice_rows(totals.back().view(), rows);
        std::memset(zeros.data, 0, static_cast<size_t>(zeros.rows * zeros.row_bytes()));
      }
    }
    for (const auto& [stage, partials] : partials_) {
      std::vector<HostTensor> parts;
      for (const ConstTensorView& view : partials) parts.push_back(copy_of(view).to(DType::kFloat32));
      std::vector<ReduceTensor> tensors;
      for (size_t t = 0; t < parts.size(); ++t) tensors.push_back({parts[t], totals[t]});
      const Exchange& exchange = spec_.reduces.at(static_cast<size_t>(stage));
      control_.group_reduce(exchange, tensors, ReduceOp::kSum, spec_.label)->wait();
    }
    partials_.clear();
    for (size_t t = 0; t < sums.size(); ++t) {
      HostTensor rounded = totals[t].to(sums[t].dtype);
      if (rounded.bytes() == 0) continue;
      for (const Range& rows : left_) {
        const ConstTensorView before = slice_rows(sums[t], rows);
        std::memcpy(slice_rows(rounded.view(), rows).data, before.data,
                    static_cast<size_t>(before.rows * before.row_bytes()));
      }
      std::memcpy(sums[t].data, rounded.view().data, static_cast<size_t>(rounded.bytes()));
    }
  }

  void end(void*) override {
    close();
    recv_buffers_->slots.release(slot_);
  }
  KeptSlot end_kept(void*) override {
    close();
    recv_buffers_->slots.keep(slot_);
    return {slot_};
  }
  void drop_kept(KeptSlot kept) override {
    recv_buffers_->slots.take_kept(kept.slot, spec_.label);
    recv_buffers_->slots.release(kept.slot);
  }

 private:
  struct RecvBuffer {
    explicit RecvBuffer(int num_slots) : slots(num_slots) {}
    comm::SlotPool slots;
    std::vector<std::vector<HostTensor>> tensors;  // by slot
  };

  static HostTensor copy_of(const ConstTensorView& view) {
    HostTensor copy(view.dtype, view.rows, view.heads, view.dim);
    if (copy.bytes() > 0) std::memcpy(copy.view().data, view.data, static_cast<size_t>(copy.bytes()));
    return copy;
  }
  void close() {
    epoch_.end();
    EXPECT_TRUE(under_way_.empty()) << "what was sent was not waited for";
  }

  Communicator& control_;
  const DevicePassSpec spec_;
  comm::EpochState epoch_;
  std::shared_ptr<RecvBuffer> recv_buffers_;
  mutable std::map<int, std::unique_ptr<CommHandle>> under_way_;
  std::vector<HostTensor> stored_;
  std::vector<Range> left_, absent_;
  std::map<int, std::vector<ConstTensorView>> partials_;
  int slot_ = -1;
  int num_epochs_ = 0;
};

class HostMemoryDevice final : public DeviceCommunicator {
 public:
  explicit HostMemoryDevice(Communicator& control, RecvBufferReuse reuse = RecvBufferReuse::kByCredit)
      : control_(control), reuse_(reuse) {}
  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::string_view name() const override { return "host"; }
  int device() const override { return 0; }
  Communicator& control() override { return control_; }
  KernelTransfers kernel_transfers() const override { return {true, true, reuse_}; }
  std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) override {
    if (spec.agreed != nullptr) expect_agreed(spec);
    passes_.push_back(std::make_shared<HostMemoryPass>(control_, spec));
    return passes_.back();
  }
  void set_call_fingerprint(const CallFingerprint& fingerprint) override { control_.set_call_fingerprint(fingerprint); }
  const std::vector<std::shared_ptr<HostMemoryPass>>& passes() const { return passes_; }
  void all_reduce(float* values, int count, ReduceOp op, void*) override {
    control_.all_reduce({values, static_cast<size_t>(count)}, op, "all_reduce");
  }
  /// What check() throws as CommError from now on.
  void fail(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = text;
  }
  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void check() override {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw CommError(failure_);
  }
  void abort(std::string_view reason) noexcept override { fail(std::string("gave up: ") + std::string(reason)); }
  TrafficCounters counters() const override { return control_.counters(); }
  void reset_counters() override { control_.reset_counters(); }

 private:
  /// What is said to be known of all ranks is what they have.
  void expect_agreed(const DevicePassSpec& spec) {
    const comm::PassLayout layout = comm::make_pass_layout({rank(), size()}, spec);
    const int64_t recv_rows = spec.recv_buffers.empty() ? 0 : spec.recv_buffers[0].rows;
    EXPECT_EQ(spec.agreed->recv_buffers, comm::all_gather(control_, recv_rows, "rows"));
    EXPECT_EQ(spec.agreed->return_rows, comm::all_gather(control_, layout.return_rows, "return rows"));
    ASSERT_EQ(std::ssize(spec.agreed->return_begin), size());
    std::vector<int64_t> begins;
    for (const std::vector<int64_t>& of_rank : spec.agreed->return_begin) {
      begins.insert(begins.end(), of_rank.begin(), of_rank.end());
    }
    EXPECT_EQ(begins, comm::all_gather(control_, layout.return_begin, "return begins"));
    for (size_t stage = 0; stage < spec.agreed->casts.size(); ++stage) {
      EXPECT_EQ(*spec.agreed->casts[stage][static_cast<size_t>(rank())], spec.casts[stage]);
    }
    for (size_t stage = 0; stage < spec.agreed->reduces.size(); ++stage) {
      EXPECT_EQ(*spec.agreed->reduces[stage][static_cast<size_t>(rank())], spec.reduces[stage]);
    }
  }

  Communicator& control_;
  const RecvBufferReuse reuse_;
  std::vector<std::shared_ptr<HostMemoryPass>> passes_;
  std::mutex mutex_;
  std::string failure_;
};

}  // namespace tangram::testing
