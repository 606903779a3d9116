// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/device_runner.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram {

namespace {

constexpr int kFloatsInUnit = static_cast<int>(kArenaUnit) / static_cast<int>(sizeof(float));

class DeviceRunner final : public ProgramRunner {
 public:
  DeviceRunner(const DeviceRun& run, void* stream)
      : ProgramRunner(run.program.program, run.arguments, run.masks), run_(run), stream_(stream) {}

 private:
  void* data(int region) const override {
    const auto index = static_cast<size_t>(region);
    void* const base = program_.regions[index].memory == Memory::kArena ? run_.arena.data : run_.work;
    return static_cast<char*>(base) + run_.program.layout.offsets[index];
  }
  RowListsView row_lists(int number) const override {
    const DeviceRowLists& lists = run_.row_lists[static_cast<size_t>(number)];
    return {lists.begins.get(), lists.rows.get()};
  }
  void sum_rows(std::span<const RowSum> sums, int) override { run_.device.sum_rows(sums, stream_); }
  void copy_floats(std::span<const FloatCopy> copies, int) override { run_.device.copy_floats(copies, stream_); }
  void zero(const TensorView& tensor) override {
    const int64_t bytes = tensor.rows * tensor.row_stride * static_cast<int64_t>(size_of(tensor.dtype));
    run_.device.zero(tensor.data, bytes, stream_);
  }
  void cast(int number) override {
    const ConstTensorView arena = run_.arena;
    run_.pass->cast(number, {&arena, 1}, stream_);
    if (!run_.overlaps) run_.pass->wait_cast(number, stream_);
  }
  void wait(int number) override {
    if (run_.overlaps) run_.pass->wait_cast(number, stream_);
  }
  void attend(const AttendOp& op, PreparedMask& mask, AttnForwardArgs& call) override {
    prepare(op, call);
    run_.backend.forward(mask, call, stream_);
  }
  void attend(const AttendOp& op, PreparedMask& mask, AttnBackwardArgs& call) override {
    prepare(op, call);
    run_.backend.backward(mask, call, stream_);
  }

  void at_owner(const DeltaOp& op) override {
    run_.device.find_delta(view(op.out), view(op.dout), view(op.delta), stream_);
  }
  void at_owner(const MergeOp& op) override {
    TANGRAM_ASSERT(op.out.dtype == DType::kFloat32);
    run_.device.merge({{view(op.out), view(op.lse)},
                       {view(op.other_out), view(op.other_lse)},
                       ProgramRunner::row_lists(op.other_rows),
                       sinks(op.sink)},
                      stream_);
  }
  void at_owner(const SinkGradOp& op) override {
    float* const dsink = floats(op.dsink);
    if (dsink != nullptr) run_.device.find_dsink({view(op.lse), view(op.delta), sinks(op.sink), dsink}, stream_);
  }
  void at_owner(const LargestOp& op) override {
    float* const to = floats(op.to);
    if (to != nullptr) run_.device.find_maxima({floats(op.from), to, op.from.stride, op.rows, op.columns}, stream_);
  }

  template <class Call>
  void prepare(const AttendOp& op, Call& call) const {
    if (op.beside_transfers && run_.overlaps) {
      call.options.sm_margin = std::max(call.options.sm_margin, run_.margin_beside_transfers);
    }
    call.workspace = run_.attention;
  }

  const DeviceRun& run_;
  void* stream_;
};

}  // namespace

void run_on_stream(const DeviceRun& run, void* stream) { DeviceRunner(run, stream).run(); }

std::vector<DeviceRowLists> keep_row_lists(const Program& program, const ProgramDevice& device) {
  std::vector<DeviceRowLists> kept;
  for (const RowLists& lists : program.row_lists) {
    kept.push_back({device.keep(lists.begins), device.keep(lists.rows),
                    static_cast<int64_t>((lists.begins.size() + lists.rows.size()) * sizeof(int32_t))});
  }
  return kept;
}

DevicePassSpec pass_spec(const DeviceProgram& program, const char* label, int64_t arena_bytes) {
  DevicePassSpec spec;
  spec.label = label;
  spec.casts = program.layout.casts;
  spec.landing = {{.rows = arena_bytes / kArenaUnit, .heads = 1, .dim = kFloatsInUnit, .dtype = DType::kFloat32}};
  return spec;
}

}  // namespace tangram
