// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Prepares one rank's programs: sizes of their memory, the passes that move rows, and what the backend wants of masks.
// Calls: program_calls.cpp.

#include "runtime/device/program_attention.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "core/rounding.hpp"
#include "runtime/current_device.hpp"
#include "runtime/pass_plan.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {

namespace {

constexpr int64_t kWorkAlignment = 256;  // as a workspace itself

}  // namespace

std::shared_ptr<const AgreedRows> agreed_rows(std::shared_ptr<const Plan> plan, AttnPass pass,
                                              const DeviceProgram& written) {
  struct RowsOfPlan : AgreedRows {
    std::shared_ptr<const Plan> plan;
  };
  auto rows = std::make_shared<RowsOfPlan>();
  rows->plan = std::move(plan);
  const auto num_ranks = static_cast<size_t>(rows->plan->cp_size());
  rows->casts.assign(written.layout.casts.size(), std::vector<const Exchange*>(num_ranks));
  rows->reduces.assign(written.layout.returns.size(), std::vector<const Exchange*>(num_ranks));
  for (size_t r = 0; r < num_ranks; ++r) {
    const RankPlan& rank = rows->plan->ranks()[r];
    rows->recv_buffers.push_back(rank.kv_rows);
    for (size_t cast = 0; cast < written.layout.stages.size(); ++cast) {
      const ArenaLayout::Stage& stage = written.layout.stages[cast];
      const std::vector<Stage>& stages = stage.returns || pass == AttnPass::kBackward ? rank.backward : rank.forward;
      (stage.returns ? rows->reduces : rows->casts)[static_cast<size_t>(stage.number)][r] =
          &stages[static_cast<size_t>(written.program.casts[cast].step)].exchange;
    }
    std::vector<int64_t>& begins = rows->return_begin.emplace_back();
    int64_t begin = 0;
    for (const std::vector<const Exchange*>& stage : rows->reduces) {
      std::vector<int64_t> from(num_ranks);
      for (const RowCopy& sent : stage[r]->sends) from[static_cast<size_t>(sent.peer)] += sent.rows.size();
      for (const int64_t count : from) {
        begins.push_back(begin);
        begin += count;
      }
    }
    rows->return_rows.push_back(begin);
  }
  return rows;
}

void agree_on_heads(Communicator& control, const Plan& plan, int64_t row_sinks, DType result_dtype, DType grad_dtype) {
  if (plan.ulysses_degree() <= 1) return;
  const uint64_t dtypes = static_cast<uint64_t>(result_dtype) * 8 + static_cast<uint64_t>(grad_dtype);
  control.require_agreement(static_cast<uint64_t>(row_sinks) * 64 + dtypes,
                            "DistAttention: row_sinks, result_dtype and grad_dtype");
}

ProgramAttention::ProgramAttention(RankContext& base, DeviceCommunicator& communicator, ProgramDevice device,
                                   const ProgramOptions& options)
    : base_(base), communicator_(communicator), device_(std::move(device)), options_(options) {
  begin_masks();
  find_sizes();
  prepare_passes();
  prepare_masks();
}

std::vector<ProgramAttention::Kind> ProgramAttention::kinds() const {
  std::vector<Kind> kinds = {Kind::kForward};
  // Where K/V alone move and are kept, all passes keep them.
  if (options_.with_backward && !(moves_keys_alone() && keeps())) kinds.push_back(Kind::kBackward);
  if (keeps()) kinds.push_back(Kind::kBackwardKept);
  return kinds;
}

DeviceProgram ProgramAttention::write(Kind kind, const CallShape& call) const {
  CallShape forward = call;
  forward.keeps = keeps();  // its regions lie in the same places whether a call keeps them or not
  DeviceProgram result;
  result.program = kind == Kind::kForward
                       ? forward_program(*base_.plan, base_.rank, forward, options_.target)
                       : backward_program(*base_.plan, base_.rank, call, options_.target, kind == Kind::kBackwardKept);
  result.layout = lay_out_arena(result.program);
  return result;
}

const DeviceProgram& ProgramAttention::program(Kind kind, const CallShape& call) {
  const auto key = std::pair(kind, call);
  const auto found = programs_.find(key);
  if (found != programs_.end()) return found->second;
  DeviceProgram written = write(kind, call);
  TANGRAM_ASSERT(!sizes_are_known_ || !makes_one_call() ||
                 (written.layout.arena_bytes <= arena_bytes_ && written.layout.work_bytes <= work_bytes_));
  return programs_.emplace(key, std::move(written)).first->second;
}

bool ProgramAttention::makes_one_call() const {
  return moves_keys_alone() && !options_.target.sends_from_anywhere &&
         options_.target.forward_calls != KeyCalls::kByStage && options_.target.backward_calls != KeyCalls::kByStage;
}

CallShape ProgramAttention::prepared_shape() const {
  Sink sink;
  if (by_heads() && options_.row_sinks > 0) {
    sink.seqlen_sink = options_.row_sinks;
    sink.layout = SinkLayout::kSsh;
  }
  return shape_of(options_.result_dtype, sink);
}

void ProgramAttention::find_sizes() {
  const HeadConfig& heads = base_.plan->config.heads;
  std::vector<DType> results = {heads.dtype};
  // Sums of several calls are of the result's type, or of another region.
  if (!by_heads() && !makes_one_call()) results.push_back(DType::kFloat32);
  CallShape call = prepared_shape();
  if (by_heads() && call.seqlen_sink == 0) {  // sinks of all rows, of any length
    call.seqlen_sink = DeviceCommunicator::kMaxReduceValues / heads.num_heads_q;
  }
  for (const Kind kind : kinds()) {
    for (const DType dtype : results) {
      if (!by_heads()) call.out = call.dq = call.dk = call.dv = dtype;
      const ArenaLayout& layout = program(kind, call).layout;
      arena_bytes_ = std::max(arena_bytes_, layout.arena_bytes);
      work_bytes_ = std::max(work_bytes_, layout.work_bytes);
    }
  }
  work_bytes_ = round_up(work_bytes_, kWorkAlignment);
  sizes_are_known_ = true;
}

bool ProgramAttention::prepares_alone() const { return moves_keys_alone() && communicator_.agreement() != nullptr; }

void ProgramAttention::prepare_passes() {
  const CallShape call = prepared_shape();
  for (const Kind kind : kinds()) {
    const DeviceProgram& written = program(kind, call);
    KeptTogether kept;
    row_lists_[kind] = keep_row_lists(written.program, kept);
    if (written.program.casts.empty()) {
      kept.keep(device_);
      own_arena_bytes_ = arena_bytes_;
      continue;
    }
    const char* const label = kind == Kind::kForward                          ? "forward"
                              : kind == Kind::kBackward || moves_keys_alone() ? "backward"
                              : base_.plan->grid() == nullptr                 ? "backward of kept rows"
                                                                              : "backward of kept heads";
    DevicePassSpec spec = pass_spec(written, label, arena_bytes_);
    spec.shares_memory = true;
    spec.leaves_rows = stores_rows(written.program);
    if (moves_keys_alone()) {
      spec.agreed = agreed_rows(base_.plan, kind == Kind::kForward ? AttnPass::kForward : AttnPass::kBackward, written);
    }
    spec.num_return_slots = kReturnSlots;
    // One pass at a time is open, so all may land in the same memory.
    const auto forward = passes_.find(Kind::kForward);
    if (kind == Kind::kForward) spec.num_slots = 2 + (keeps() ? options_.max_kept : 0);
    if (forward != passes_.end()) spec.recv_buffers_of = forward->second;
    passes_[kind] = communicator_.prepare_pass(spec);
    if (kind != Kind::kForward) {
      auto places =
          make_return_places(written.program, written.layout, *passes_[kind], kReturnSlots, communicator_.size(), kept);
      if (places != nullptr) places_ = std::move(places);
    }
    kept.keep(device_);
  }
}

bool ProgramAttention::is_needed(const ProgramMask& mask) const {
  return mask.needed && (mask.passes != AttnPasses::kBackward || options_.with_backward);
}

void ProgramAttention::prepare_mask(size_t number) {
  ProgramMask& mask = mask_programs_[number];
  const AttnPasses passes = options_.with_backward ? mask.passes : AttnPasses::kForward;
  masks_[number] = make_mask_slot(*base_.backend, mask.slices, mask.shape,
                                  {.ready_flags = mask.late, .local_ranges = mask.local_ranges, .passes = passes});
  mask.slices = {};
  mask.late = {};
  mask.local_ranges = {};
}

void ProgramAttention::begin_masks() {
  mask_programs_ = program_masks(*base_.plan, base_.rank, options_.target);
  masks_.resize(mask_programs_.size());
  masks_ahead_.resize(mask_programs_.size());
  if (base_.backend->memory() != MemoryKind::kDevice) return;
  for (const bool of_backward : {false, true}) {
    for (size_t i = 0; i < mask_programs_.size(); ++i) {
      const ProgramMask& mask = mask_programs_[i];
      if ((mask.passes == AttnPasses::kBackward) != of_backward || !is_needed(mask)) continue;
      masks_ahead_[i] = std::make_unique<AsyncTask>(on_current_device([this, i] { prepare_mask(i); }));
    }
  }
}

void ProgramAttention::prepare_masks() {
  for (size_t i = 0; i < masks_.size(); ++i) {
    if (!is_needed(mask_programs_[i])) continue;
    if (masks_ahead_[i] == nullptr) {
      prepare_mask(i);
    } else if (mask_programs_[i].passes != AttnPasses::kBackward) {
      masks_ahead_[i]->finish();
    }
  }
  if (!prepares_alone()) finish_masks();  // peers wait until this rank allocates no more
}

void ProgramAttention::finish_masks() const {
  try {
    for (const std::unique_ptr<AsyncTask>& ahead : masks_ahead_) {
      if (ahead != nullptr) ahead->finish();
    }
  } catch (const std::exception& error) {
    communicator_.abort(error.what());
    throw;
  }
}

int64_t ProgramAttention::attention_bytes(AttnPass pass) const {
  const bool is_forward = pass == AttnPass::kForward;
  if (!is_forward) finish_masks();
  int64_t bytes = 0;
  for (size_t i = 0; i < masks_.size(); ++i) {
    const AttnPasses passes = options_.with_backward ? mask_programs_[i].passes : AttnPasses::kForward;
    if (passes == (is_forward ? AttnPasses::kBackward : AttnPasses::kForward) || masks_[i] == nullptr) continue;
    bytes = std::max(bytes, base_.backend->workspace_bytes(*masks_[i], pass));
  }
  return round_up(bytes, kWorkAlignment);
}

int64_t ProgramAttention::workspace_bytes(AttnPass pass) const {
  return work_bytes_ + attention_bytes(pass) + own_arena_bytes_;
}

int64_t ProgramAttention::device_bytes() const {
  finish_masks();
  int64_t bytes = places_ == nullptr ? 0 : places_->bytes;
  for (const auto& [kind, pass] : passes_) bytes += pass->own_bytes();
  for (const auto& mask : masks_) bytes += mask == nullptr ? 0 : mask->device_bytes();
  for (const auto& [kind, lists_of_program] : row_lists_) {
    for (const DeviceRowLists& lists : lists_of_program) bytes += lists.bytes;
  }
  return bytes;
}

}  // namespace tangram
