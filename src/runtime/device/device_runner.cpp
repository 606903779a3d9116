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

  void run_checked() {
    if (run_.is_checked) poison(false);
    run();
    if (!program_.closes()) before_end();
  }

 private:
  void* data(int region) const override {
    const auto index = static_cast<size_t>(region);
    const ArenaLayout& layout = run_.program.layout;
    if (layout.offsets[index] < 0) return nullptr;
    void* base = run_.work;
    if (program_.regions[index].memory == Memory::kArena) {
      base = run_.arena;
      if (!run_.recv_buffers.empty() && layout.recv_buffers.empty()) base = run_.recv_buffers.front().data;
      const auto own = std::find(layout.recv_buffers.begin(), layout.recv_buffers.end(), region);
      if (!run_.recv_buffers.empty() && own != layout.recv_buffers.end()) {
        return run_.recv_buffers[static_cast<size_t>(own - layout.recv_buffers.begin())].data;
      }
    }
    return static_cast<char*>(base) + layout.offsets[index];
  }
  RowListsView row_lists(int number) const override {
    const DeviceRowLists& lists = run_.row_lists[static_cast<size_t>(number)];
    lists.kept->before_call(stream_);
    const auto* const begins = static_cast<const int32_t*>(lists.kept->data());
    return {begins, begins + lists.num_begins};
  }
  void sum_rows(std::span<const RowSum> sums, int) override { run_.device.sum_rows(sums, stream_); }
  void copy_floats(std::span<const FloatCopy> copies, int) override { run_.device.copy_floats(copies, stream_); }
  void zero(const TensorView& tensor) override {
    const int64_t bytes = tensor.rows * tensor.row_stride * static_cast<int64_t>(size_of(tensor.dtype));
    run_.device.fill(tensor.data, 0, bytes, stream_);
  }
  void open(const OpenOp& op) override {
    if (run_.pass == nullptr) copy_own(op);  // else begun with the copies
  }
  void cast(int number) override {
    const ArenaLayout& layout = run_.program.layout;
    const auto [returns, stage] = layout.stages[static_cast<size_t>(number)];
    const std::vector<GroupCastTensor>& items = program_.casts[static_cast<size_t>(number)].items;
    if (returns && items.front().source.memory == Memory::kDirectStore) {
      run_.pass->signal_returned(stage, stream_);
    } else if (returns) {
      run_.pass->reduce(stage, sources_of(items), stream_);
    } else if (layout.recv_buffers.empty()) {
      const ConstTensorView arena = run_.recv_buffers.front();
      run_.pass->cast(stage, {&arena, 1}, stream_);
    } else {
      run_.pass->cast(stage, sources_of(items), stream_);
    }
    if (!run_.overlaps && !returns) run_.pass->wait_group_cast(stage, stream_);
  }
  void wait(int number) override {
    if (run_.overlaps) run_.pass->wait_group_cast(stage_of(number), stream_);
  }
  void wait_send(int number) override { run_.pass->wait_send(stage_of(number), stream_); }
  void release_credit(int number) override { run_.pass->release_credit(stage_of(number), stream_); }
  void attend(const AttendOp& op, MaskSlot& mask, AttnForwardArgs& call) override {
    prepare(op, call);
    run_.backend.forward(mask, call, stream_);
  }
  void attend(const AttendOp& op, MaskSlot& mask, AttnBackwardArgs& call) override {
    prepare(op, call);
    if (op.stored_dk.memory != Memory::kNone) {
      // There is a place for each row, whatever rows the own part has; a rank without keys gives none.
      const TensorRef none_k = op.stored_dk.slice({0, 0}), none_v = op.stored_dv.slice({0, 0});
      call.dk = view(op.dk.rows > 0 ? op.stored_dk : none_k);
      call.dv = view(op.dv.rows > 0 ? op.stored_dv : none_v);
      call.places = run_.places->in_slot(run_.pass->return_slot(), stream_);
      call.places.dk_final = arguments_.tensors[static_cast<size_t>(Memory::kDk)];
      call.places.dv_final = arguments_.tensors[static_cast<size_t>(Memory::kDv)];
    }
    run_.backend.backward(mask, call, stream_);
  }
  void finish(const FinishOp& op) override {
    const ConstTensorView own[] = {view(op.own_k), view(op.own_v)};
    const TensorView sums[] = {view(op.dk), view(op.dv)};
    before_end();
    run_.pass->finish_reduce_and_end(own, sums, stream_);
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

  /// Fills memory with NaN that nothing may read before the pass has written it, or after its end. While the pass is
  /// open, peers may write to regions that casts bring rows to, and read from regions that casts send.
  void poison(bool at_end) {
    std::vector<bool> left(program_.regions.size());
    for (const GroupCast& cast : program_.casts) {
      for (const GroupCastTensor& item : cast.items) {
        const int region = at_end ? item.source.region : item.target.region;
        if (region >= 0) left[static_cast<size_t>(region)] = true;
      }
    }
    const bool holds_kept = at_end ? run_.keeps : run_.is_kept;
    for (size_t i = 0; i < program_.regions.size(); ++i) {
      const Region& region = program_.regions[i];
      const bool is_kept = holds_kept && static_cast<int>(i) < program_.num_kept;
      const bool is_opened = !at_end && region.memory == Memory::kArena && opens_with(static_cast<int>(i));
      const bool is_needed = at_end && region.memory != Memory::kArena;  // by FinishOp
      if (left[i] || is_kept || is_opened || is_needed || run_.program.layout.offsets[i] < 0 || region.bytes() == 0)
        continue;
      run_.device.fill(data(static_cast<int>(i)), 0xFF, region.bytes(), stream_);
    }
  }
  /// Whether own rows were copied there when the pass was opened.
  bool opens_with(int region) const {
    const auto* opening = program_.ops.empty() ? nullptr : std::get_if<OpenOp>(&program_.ops.front());
    return opening != nullptr && run_.pass != nullptr &&
           std::any_of(opening->own.begin(), opening->own.end(),
                       [region](const RowSumOp& own) { return own.result.region == region; });
  }
  void before_end() {
    if (!run_.is_checked) return;
    require_no_nan();
    poison(true);
  }
  /// NaN that came in, from the caller or from peers, may come out; NaN that the pass has made may not.
  void require_no_nan() const {
    const auto argument = [&](Memory where) { return arguments_.tensors[static_cast<size_t>(where)]; };
    const auto is_nan = [&](const ConstTensorView& view) {
      return view.data != nullptr && run_.device.has_nan(view, stream_);
    };
    const bool backward = argument(Memory::kDq).data != nullptr;
    bool made = false;
    for (const Memory result : backward ? std::vector{Memory::kDq} : std::vector{Memory::kOut, Memory::kLse}) {
      made = made || is_nan(argument(result));
    }
    if (!made) return;
    std::vector<Memory> given = {Memory::kQ, Memory::kK, Memory::kV};
    if (backward) given.insert(given.end(), {Memory::kOut, Memory::kLse, Memory::kDout});
    for (const Memory where : given) made = made && !is_nan(argument(where));
    for (const GroupCast& cast : program_.casts) {
      for (const GroupCastTensor& item : cast.items) {
        if (cast.adds || item.target.region < 0) continue;
        for (const RowCopy& copy : item.exchange->recvs) made = made && !is_nan(view(item.target.slice(copy.rows)));
      }
    }
    TANGRAM_ASSERT(!made);
  }

  int stage_of(int cast) const { return run_.program.layout.stages[static_cast<size_t>(cast)].number; }
  std::vector<ConstTensorView> sources_of(const std::vector<GroupCastTensor>& items) const {
    std::vector<ConstTensorView> sources;
    for (const GroupCastTensor& item : items) sources.push_back(view(item.source));
    return sources;
  }
  void copy_own(const OpenOp& op) {
    std::vector<RowSum> copies;
    for (const RowSumOp& own : op.own) copies.push_back({view(own.source), {}, view(own.result), {}});
    if (!copies.empty()) run_.device.sum_rows(copies, stream_);
  }

  template <class Call>
  void prepare(const AttendOp& op, Call& call) {
    if (op.beside_transfers && run_.overlaps) {
      call.options.sm_margin = std::max(call.options.sm_margin, run_.margin_beside_transfers);
    }
    if (run_.starts_transfers_first && run_.overlaps && op.next_cast >= 0) {
      run_.pass->wait_started(stage_of(op.next_cast), stream_);
    }
    if (op.k_local.memory != Memory::kNone) {
      call.k_local = view(op.k_local);
      call.v_local = view(op.v_local);
    }
    if (!op.ready_flags.empty()) {
      ready_flags_ = run_.pass->ready_flags();
      call.ready_flags = &ready_flags_;
    }
    call.workspace = run_.attention;
  }

  const DeviceRun& run_;
  void* stream_;
  KvReadyFlags ready_flags_;
};

DevicePassSpec spec_by_region(const DeviceProgram& written, const char* label) {
  const auto& [program, layout] = written;
  DevicePassSpec spec;
  spec.label = label;
  spec.casts = layout.casts;
  spec.reduces = layout.returns;
  for (const int number : layout.recv_buffers) {
    const Region& region = program.regions[static_cast<size_t>(number)];
    spec.recv_buffers.push_back({region.rows, region.heads, region.dim, region.dtype});
  }
  if (!program.ops.empty() && std::holds_alternative<OpenOp>(program.ops.front())) {
    for (const RowSumOp& own : std::get<OpenOp>(program.ops.front()).own) {
      if (own.result.region != layout.recv_buffers.front()) continue;  // the others copy the same rows
      const int64_t first = own.result.first_row;
      spec.own_rows.push_back({{first, first + own.result.rows}, own.source.first_row});
    }
  }
  for (size_t cast = 0; cast < layout.stages.size() && spec.returns.empty(); ++cast) {
    if (!layout.stages[cast].returns) continue;
    for (const GroupCastTensor& item : program.casts[cast].items) {
      spec.returns.push_back({.partial_rows = item.source.rows,
                              .owned_rows = item.target.rows,
                              .heads = item.source.heads,
                              .dim = item.source.dim,
                              .partial_dtype = item.source.dtype,
                              .reduce_dtype = item.target.dtype});
    }
  }
  return spec;
}

}  // namespace

void run_on_stream(const DeviceRun& run, void* stream) { DeviceRunner(run, stream).run_checked(); }

std::vector<DeviceRowLists> keep_row_lists(const Program& program, KeptTogether& kept) {
  std::vector<DeviceRowLists> result;
  for (const RowLists& lists : program.row_lists) {
    const size_t begins = lists.begins.size(), bytes = (begins + lists.rows.size()) * sizeof(int32_t);
    const auto write = [&lists, begins](std::byte* to) {
      auto* const values = reinterpret_cast<int32_t*>(to);
      std::copy(lists.begins.begin(), lists.begins.end(), values);
      std::copy(lists.rows.begin(), lists.rows.end(), values + begins);
    };
    result.push_back({kept.add(bytes, write), static_cast<int64_t>(begins), static_cast<int64_t>(bytes)});
  }
  return result;
}

std::vector<ConstTensorView> opening_sources(const Program& program, const ProgramArguments& arguments) {
  if (program.ops.empty() || !std::holds_alternative<OpenOp>(program.ops.front())) return {};
  return {arguments.tensors[static_cast<size_t>(Memory::kK)], arguments.tensors[static_cast<size_t>(Memory::kV)]};
}

DevicePassSpec pass_spec(const DeviceProgram& program, const char* label, int64_t arena_bytes) {
  if (!program.layout.recv_buffers.empty() || !program.layout.returns.empty()) return spec_by_region(program, label);
  DevicePassSpec spec;
  spec.label = label;
  spec.casts = program.layout.casts;
  for (size_t cast = 0; cast < program.program.casts.size(); ++cast) {
    if (program.program.casts[cast].credited) spec.credited.push_back(program.layout.stages[cast].number);
  }
  std::sort(spec.credited.begin(), spec.credited.end());
  spec.reuses_sources = std::any_of(program.program.ops.begin(), program.program.ops.end(),
                                    [](const Op& op) { return std::holds_alternative<WaitSendOp>(op); });
  spec.recv_buffers = {{.rows = arena_bytes / kArenaUnit, .heads = 1, .dim = kFloatsInUnit, .dtype = DType::kFloat32}};
  return spec;
}

}  // namespace tangram
