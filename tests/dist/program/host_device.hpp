// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A DeviceCommunicator over host memory, and what programs do to memory there: so that what runs on GPUs is tested
// without one. Casts start when they are called and end when they are waited for; nothing is copied before.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "dist/program/run_program.hpp"
#include "dist/rows.hpp"
#include "tangram/communicator.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/error.hpp"

namespace tangram::testing {

/// Casts over the host's collectives. Landing buffers start as NaN in every epoch that does not take over kept rows.
/// Refuses what a pass on a device would refuse.
class HostPass final : public DevicePass {
 public:
  HostPass(Communicator& control, const DevicePassSpec& spec) : control_(control), spec_(spec) {
    if (spec.landing_of != nullptr) {
      slots_ = static_cast<const HostPass&>(*spec.landing_of).slots_;
      return;
    }
    slots_ = std::make_shared<Slots>();
    const LandingTensor& t = spec.landing.at(0);
    for (int i = 0; i < spec.num_slots; ++i) slots_->memory.emplace_back(t.dtype, t.rows, t.heads, t.dim);
    slots_->kept.resize(slots_->memory.size());
  }

  using DevicePass::begin;
  int begin(std::span<const ConstTensorView> own, void*) override {
    if (!own.empty()) throw InvalidArgument("HostPass::begin: copies no rows");
    EXPECT_FALSE(open_);
    const auto free = std::find(slots_->kept.begin(), slots_->kept.end(), false);
    if (free == slots_->kept.end()) throw InvalidArgument("HostPass::begin: no free slot");
    slot_ = static_cast<int>(free - slots_->kept.begin());
    slots_->memory[static_cast<size_t>(slot_)].fill(std::nanf(""));
    return open();
  }
  int begin_kept(KeptSlot kept, void*) override {
    EXPECT_TRUE(!open_ && slots_->kept.at(static_cast<size_t>(kept.slot)));
    slots_->kept[static_cast<size_t>(kept.slot)] = false;
    slot_ = kept.slot;
    return open();
  }
  TensorView landing(int, int slot) const override { return slots_->memory.at(static_cast<size_t>(slot)).view(); }
  int num_slots() const override { return static_cast<int>(slots_->memory.size()); }

  void cast(int stage, std::span<const ConstTensorView> sources, void*) override {
    EXPECT_TRUE(open_ && sources.size() == 1 && sources[0].contiguous());
    const CastTensor tensor{sources[0], landing(0, slot_)};
    const bool is_first = under_way_.count(stage) == 0 && done_.count(stage) == 0;
    EXPECT_TRUE(is_first) << "stage " << stage << " is cast twice";
    under_way_[stage] = control_.group_cast(spec_.casts.at(static_cast<size_t>(stage)), {&tensor, 1}, spec_.label);
  }
  void wait_cast(int stage, void*) override {
    ASSERT_EQ(under_way_.count(stage), 1u) << "stage " << stage << " was not cast";
    under_way_[stage]->wait();
    under_way_.erase(stage);
    ++done_[stage];
  }
  void end(void*) override { close(); }
  KeptSlot end_kept(void*) override {
    close();
    slots_->kept[static_cast<size_t>(slot_)] = true;
    return {slot_};
  }
  void drop_kept(KeptSlot kept) override { slots_->kept.at(static_cast<size_t>(kept.slot)) = false; }

  DeviceArrivals arrivals() const override { throw InternalError("unused"); }
  void reduce(int, std::span<const ConstTensorView>, void*) override { throw InternalError("unused"); }
  std::vector<ReturnTarget> return_targets(int, int, int) const override { return {}; }
  int return_slot() const override { return -1; }
  void signal_returned(int, void*) override {}
  void finish_reduce(std::span<const ConstTensorView>, std::span<const TensorView>, void*) override {}

 private:
  struct Slots {
    std::vector<HostTensor> memory;
    std::vector<bool> kept;
  };

  int open() {
    open_ = true;
    done_.clear();
    return slot_;
  }
  void close() {
    EXPECT_TRUE(open_);
    EXPECT_TRUE(under_way_.empty()) << "results were not waited for";
    EXPECT_EQ(done_.size(), spec_.casts.size()) << "stages were not cast";
    open_ = false;
  }

  Communicator& control_;
  const DevicePassSpec spec_;
  std::shared_ptr<Slots> slots_;
  std::map<int, std::unique_ptr<CommHandle>> under_way_;
  std::map<int, int> done_;
  int slot_ = -1;
  bool open_ = false;
};

class HostDevice final : public DeviceCommunicator {
 public:
  explicit HostDevice(Communicator& control) : control_(control) {}
  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::string_view name() const override { return "host"; }
  int device() const override { return 0; }
  Communicator& control() override { return control_; }
  std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) override {
    return std::make_shared<HostPass>(control_, spec);
  }
  void all_reduce(float* values, int count, ReduceOp op, void*) override {
    control_.all_reduce({values, static_cast<size_t>(count)}, op, "all_reduce");
  }
  void check() override {}
  void abort(std::string_view reason) noexcept override { control_.abort(reason); }
  TrafficCounters counters() const override { return control_.counters(); }
  void reset_counters() override { control_.reset_counters(); }

 private:
  Communicator& control_;
};

inline ProgramDevice host_program_device() {
  ProgramDevice device;
  device.sum_rows = [](std::span<const RowSum> sums, void*) {
    for (const RowSum& sum : sums) {
      convert_rows(sum.source, sum.result, sum.addend.data == nullptr ? nullptr : &sum.addend);
    }
  };
  device.copy_floats = [](std::span<const FloatCopy> copies, void*) {
    for (const FloatCopy& copy : copies) {
      for (int64_t row = 0; row < copy.rows; ++row) {
        for (int column = 0; column < copy.columns; ++column) {
          copy.to[row * copy.to_stride + column] =
              copy.from == nullptr ? copy.value : copy.from[row * copy.from_stride + column];
        }
      }
    }
  };
  device.zero = [](void* data, int64_t num_bytes, void*) { std::memset(data, 0, static_cast<size_t>(num_bytes)); };
  device.scale = [](float* values, int64_t count, float factor, void*) {
    for (int64_t i = 0; i < count; ++i) values[i] *= factor;
  };
  return device;
}

inline std::shared_ptr<void> host_memory(size_t num_bytes) { return std::shared_ptr<char[]>(new char[num_bytes + 1]); }

}  // namespace tangram::testing
