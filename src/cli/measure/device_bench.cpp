// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/device_bench.hpp"

#include <memory>

#include "cli/measure/measured_mask.hpp"
#include "plan/program/emit.hpp"
#include "tangram/backends.hpp"
#include "tangram/head_masks.hpp"

namespace tangram::cli {

namespace {

/// Times of a mask; 0 for a pass that it does not have.
KernelTimes times_of(const MeasuredMask& mask) {
  return {mask.passes() == AttnPasses::kBackward ? 0 : mask.visible_area(), mask.forward_s(), mask.backward_s()};
}

AttnShape shape_of(const Plan& plan, int64_t rows, int64_t keys, int head_groups = 1) {
  const HeadConfig& h = plan.config.heads;
  return {rows, keys, h.num_heads_q / head_groups, h.num_heads_kv / head_groups, h.head_dim, h.head_dim_v, h.dtype};
}

/// The calls of a rank: one over all of its keys, or, where queries move, those of its programs.
std::vector<std::unique_ptr<MeasuredMask>> calls_of_rank(const Plan& plan, int rank, const MaskTensors& tensors,
                                                         const AttnBackend& backend, const AttnOptions& options) {
  std::vector<std::unique_ptr<MeasuredMask>> calls;
  if (moves_kv_alone(plan)) {
    const RankPlan& of = plan.ranks()[static_cast<size_t>(rank)];
    calls.push_back(std::make_unique<MeasuredMask>(
        of.slices, shape_of(plan, plan.q_dispatch.rows_per_rank(), of.kv_rows), tensors, backend, options));
    return calls;
  }
  for (const ProgramMask& mask : program_masks(plan, rank, ProgramTarget{})) {
    if (mask.slices.empty()) continue;
    calls.push_back(std::make_unique<MeasuredMask>(mask.slices, mask.shape, tensors, backend, options, mask.passes));
  }
  return calls;
}

}  // namespace

bool is_benched_on_device(const std::string& name) {
  return name != "auto" && make_attn_backend(name)->memory() == MemoryKind::kDevice;
}

DeviceBench bench_on_device(const Plan& plan, const StepOptions& options) {
  const std::unique_ptr<AttnBackend> backend = make_attn_backend(options.backend);
  const AttnOptions attn = make_attn_options(options);
  const MaskTensors tensors(plan.config.heads, plan.mask.seqlen_q(), plan.mask.seqlen_k());
  const auto groups = static_cast<int>(num_head_masks(plan));  // flattened over rows of the whole mask
  MeasuredMask whole(plan.mask.slices(), shape_of(plan, plan.mask.seqlen_q(), plan.mask.seqlen_k(), groups), tensors,
                     *backend, attn);
  std::vector<std::vector<std::unique_ptr<MeasuredMask>>> ranks;
  for (int rank = 0; plan.cp_size() > 1 && rank < plan.cp_size(); ++rank) {
    ranks.push_back(calls_of_rank(plan, rank, tensors, *backend, attn));
  }
  for (int64_t turn = 0; turn < options.num_repeats; ++turn) {
    whole.ping_pong_wait();
    for (const auto& calls : ranks) {
      for (const auto& call : calls) call->ping_pong_wait();
    }
  }
  DeviceBench bench;
  bench.whole = times_of(whole);
  for (const auto& calls : ranks) {
    KernelTimes& sum = bench.ranks.emplace_back();
    for (const auto& call : calls) {
      const KernelTimes times = times_of(*call);
      sum.area += times.area;
      sum.forward_s += times.forward_s;
      sum.backward_s += times.backward_s;
    }
  }
  return bench;
}

}  // namespace tangram::cli
