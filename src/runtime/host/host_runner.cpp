// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/host/host_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "comm/row_moves.hpp"
#include "core/require.hpp"
#include "runtime/host/merge.hpp"
#include "runtime/rows.hpp"
#include "tangram/env.hpp"

namespace tangram {

namespace {

std::vector<HostCast> host_casts(const GroupCast& cast) {
  std::vector<HostCast> result;
  for (size_t i = 0; i < cast.items.size(); ++i) {
    const GroupCastTensor& item = cast.items[i];
    if (i > 0 && std::string_view(item.label) == cast.items[i - 1].label &&
        (item.exchange == cast.items[i - 1].exchange || *item.exchange == *cast.items[i - 1].exchange)) {
      ++result.back().num_items;
    } else {
      result.push_back({i, 1, fmt::format("{} {}", item.label, cast.step)});
    }
  }
  return result;
}

class HostRunner final : public ProgramRunner {
 public:
  HostRunner(RankContext& context, const HostProgram& program, const ProgramArguments& arguments, const Masks& masks,
             const std::vector<HostTensor>* held, std::vector<HostTensor>* keep)
      : ProgramRunner(program.program, arguments, masks),
        context_(context),
        host_program_(program),
        held_(held),
        keep_(keep),
        regions_(program_.regions.size()),
        under_way_(program_.casts.size()) {
    for (int i = 0; held_ != nullptr && i < program_.num_kept; ++i) {
      context_.recorder.hold((*held_)[static_cast<size_t>(i)]);
    }
  }

  bool nan_came_in() const { return nan_came_in_; }
  void keep_regions() {
    for (int i = 0; keep_ != nullptr && i < program_.num_kept; ++i) {
      const Region& region = program_.regions[static_cast<size_t>(i)];
      HostTensor& tensor = regions_[static_cast<size_t>(i)];
      if (tensor.rows() == 0) {  // not used yet
        tensor = context_.recorder.allocate(region.dtype, region.rows, region.heads, region.dim);
      }
      keep_->push_back(std::move(tensor));
    }
  }

 private:
  bool is_held(int region) const { return held_ != nullptr && region < program_.num_kept; }

  void* data(int region) const override {
    const auto index = static_cast<size_t>(region);
    return const_cast<void*>((is_held(region) ? (*held_)[index] : regions_[index]).view().data);
  }
  void before(size_t op) override {
    for (const int region : host_program_.lives.born[op]) {
      if (is_held(region)) continue;
      const Region& wanted = program_.regions[static_cast<size_t>(region)];
      regions_[static_cast<size_t>(region)] =
          context_.recorder.allocate_poisoned(wanted.dtype, wanted.rows, wanted.heads, wanted.dim);
    }
  }
  void after(size_t op) override {
    for (const int region : host_program_.lives.dying[op]) {
      if (keep_ != nullptr && region < program_.num_kept) continue;
      context_.recorder.release(regions_[static_cast<size_t>(region)]);
    }
  }
  void sum_rows(std::span<const RowSum> sums, int step) override {
    context_.recorder.timed(step < 0 ? TraceKind::kFinish : TraceKind::kCopyLocal, std::max(step, 0), [&] {
      for (const RowSum& sum : sums) {
        const bool adds = sum.addend.data != nullptr;
        if (!adds && sum.source.dtype == sum.result.dtype) {
          comm::copy_rows(sum.source, sum.result);
        } else {
          convert_rows(sum.source, sum.result, adds ? &sum.addend : nullptr);
        }
      }
    });
  }
  void copy_floats(std::span<const FloatCopy> copies, int step) override {
    context_.recorder.timed(TraceKind::kCopyLocal, step, [&] {
      for (const FloatCopy& copy : copies) {
        for (int64_t row = 0; row < copy.rows; ++row) {
          float* const to = copy.to + row * copy.to_stride;
          if (copy.from == nullptr) {
            std::fill_n(to, copy.columns, copy.value);
          } else {
            std::copy_n(copy.from + row * copy.from_stride, copy.columns, to);
          }
        }
      }
    });
  }
  void zero(const TensorView& tensor) override {
    if (tensor.contiguous()) {
      std::memset(tensor.data, 0, static_cast<size_t>(tensor.rows * tensor.row_stride) * size_of(tensor.dtype));
    } else {
      fill_rows(tensor, 0);
    }
  }

  void cast(int number) override {
    const GroupCast& cast = program_.casts[static_cast<size_t>(number)];
    const TraceKind kind = cast.results ? TraceKind::kPostReduce : TraceKind::kPostCast;
    for (const HostCast& part : host_program_.casts[static_cast<size_t>(number)]) {
      const auto items = std::span(cast.items).subspan(part.first_item, part.num_items);
      under_way_[static_cast<size_t>(number)].push_back(context_.recorder.timed(kind, cast.step, [&] {
        return cast.by_lse ? merge(items, part.label) : cast.adds ? reduce(items, part.label) : send(items, part.label);
      }));
    }
  }
  void wait(int number) override {
    const GroupCast& cast = program_.casts[static_cast<size_t>(number)];
    for (const auto& handle : under_way_[static_cast<size_t>(number)]) {
      context_.recorder.wait(*handle, cast.results ? TraceKind::kWaitReduce : TraceKind::kWaitCast,
                             cast.results ? TraceKind::kTransferReduce : TraceKind::kTransferCast, cast.step);
    }
    under_way_[static_cast<size_t>(number)].clear();
    if (!Env::get().sanity_check) return;
    if (!cast.adds) look_for_nan(cast);
    if (!cast.by_lse) return;
    // Rows that this one has been joined into may just now be written by another join.
    joined_.push_back(&cast);
    if (is_any_join_under_way()) return;
    for (const GroupCast* joined : joined_) look_for_nan(*joined);
    joined_.clear();
  }
  bool is_any_join_under_way() const {
    for (size_t i = 0; i < under_way_.size(); ++i) {
      if (program_.casts[i].by_lse && !under_way_[i].empty()) return true;
    }
    return false;
  }
  void look_for_nan(const GroupCast& cast) {
    for (const GroupCastTensor& item : cast.items) {
      for (const RowCopy& copy : cast.adds ? item.exchange->sends : item.exchange->recvs) {
        nan_came_in_ = nan_came_in_ || has_nan(slice_rows(view(item.target), copy.rows));
      }
    }
  }

  std::unique_ptr<CommHandle> send(std::span<const GroupCastTensor> items, const std::string& label) const {
    std::vector<CastTensor> tensors;
    for (const GroupCastTensor& item : items) tensors.push_back({view(item.source), view(item.target)});
    return context_.communicator->group_cast(*items.front().exchange, tensors, label);
  }
  std::unique_ptr<CommHandle> reduce(std::span<const GroupCastTensor> items, const std::string& label) const {
    std::vector<ReduceTensor> tensors;
    for (const GroupCastTensor& item : items) tensors.push_back({view(item.source), view(item.target)});
    return context_.communicator->group_reduce(*items.front().exchange, tensors, ReduceOp::kSum, label);
  }
  std::unique_ptr<CommHandle> merge(std::span<const GroupCastTensor> items, const std::string& label) const {
    const TensorView out = view(items[0].target), lse = view(items[1].target);
    const ConstTensorView partial_out = view(items[0].source), partial_lse = view(items[1].source);
    const LseReduceTensors tensors{partial_out, static_cast<const float*>(partial_lse.data), out,
                                   static_cast<float*>(lse.data)};
    return context_.communicator->group_reduce_lse(*items.front().exchange, tensors, label);
  }

  void at_owner(const DeltaOp& op) override {
    context_.recorder.timed(TraceKind::kCopyLocal, 0,
                            [&] { compute_delta(view(op.out), view(op.dout), view(op.delta)); });
  }
  void at_owner(const MergeOp& op) override {
    context_.recorder.timed(TraceKind::kFinish, 0, [&] {
      const PartialRows others{view(op.other_out), view(op.other_lse)};
      merge_partials({view(op.out), view(op.lse)}, op.other_out.memory == Memory::kNone ? nullptr : &others,
                     sinks(op.sink));
    });
  }
  void at_owner(const SinkGradOp& op) override {
    context_.recorder.timed(TraceKind::kFinish, 0,
                            [&] { compute_dsink(sinks(op.sink), view(op.lse), view(op.delta), floats(op.dsink)); });
  }
  void at_owner(const LargestOp& op) override {
    float* const to = floats(op.to);
    for (int column = 0; to != nullptr && column < op.columns; ++column) {
      to[column] = -std::numeric_limits<float>::infinity();
      for (int64_t row = 0; row < op.rows; ++row) {
        to[column] = std::max(to[column], floats(op.from)[row * op.from.stride + column]);
      }
    }
  }

  void attend(const AttendOp& op, MaskSlot& mask, AttnForwardArgs& call) override {
    context_.compute(op.step, [&] { context_.backend->forward(mask, call); });
  }
  void attend(const AttendOp& op, MaskSlot& mask, AttnBackwardArgs& call) override {
    context_.compute(op.step, [&] { context_.backend->backward(mask, call); });
  }

  RankContext& context_;
  const HostProgram& host_program_;
  const std::vector<HostTensor>* const held_;
  std::vector<HostTensor>* const keep_;
  std::vector<HostTensor> regions_;
  bool nan_came_in_ = false;
  std::vector<const GroupCast*> joined_;  // not yet looked at
  // Last: destroyed, and so waited for, before the memory that they use.
  std::vector<std::vector<std::unique_ptr<CommHandle>>> under_way_;
};

}  // namespace

HostProgram::HostProgram(Program of_rank) : program(std::move(of_rank)), lives(region_lives(program)) {
  for (const GroupCast& cast : program.casts) casts.push_back(host_casts(cast));
}

bool run_on_host(RankContext& context, const HostProgram& program, const ProgramArguments& arguments,
                 const ProgramRunner::Masks& masks, const std::vector<HostTensor>* held,
                 std::vector<HostTensor>* keep) {
  HostRunner runner(context, program, arguments, masks, held, keep);
  runner.run();
  runner.keep_regions();
  return runner.nan_came_in();
}

}  // namespace tangram
