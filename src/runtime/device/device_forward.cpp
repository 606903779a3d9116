// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward pass on a GPU: the steps of the host's program (plan/program/emit_kv.cpp), put on a stream.
#include <algorithm>
#include <vector>

#include "runtime/device/device_rank.hpp"

namespace tangram::device {

namespace {

size_t last_step_with_work(const std::vector<Step>& steps) {
  size_t last = 0;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].mask != nullptr) last = i;
  }
  return last;
}

void compute(DeviceRank& rank, const DistForwardArgs& args, const RankScratch& scratch, const KvViews& rows,
             cudaStream_t stream) {
  const std::vector<Step>& steps = rank.forward.steps;
  const size_t last = last_step_with_work(steps);
  TensorView out = args.out;
  if (last > 0 && out.dtype != DType::kFloat32) out = scratch.out_sum;
  DeviceArrivals arrivals;
  if (rank.forward.waits_in_kernel) arrivals = rank.forward.pass->arrivals();
  for (size_t i = 0; i < steps.size(); ++i) {
    for (int stage = std::max(steps[i].first_stage, 1); stage < steps[i].end_stage && !rank.forward.waits_in_kernel;
         ++stage) {
      rank.forward.pass->wait_cast(stage - 1, stream);
    }
    if (steps[i].mask == nullptr) continue;
    start_transfers_first(rank, rank.forward, steps[i].end_stage, stream);
    AttnForwardArgs call{args.q, rows.k, rows.v, out, args.lse, args.max_logits, {}, i > 0, args.options};
    if (steps[i].end_stage < rank.forward.num_stages) {
      call.options = beside_transfers(rank, rank.forward, args.options);
    }
    if (i == last) call.sink = args.sink;
    if (rank.forward.waits_in_kernel) call.arrivals = &arrivals;
    call.k_elsewhere = rows.k_shard, call.v_elsewhere = rows.v_shard;
    call.workspace = scratch.attention;
    rank.base.backend->forward(*steps[i].mask, call, stream);
  }
  if (out.data != args.out.data) {
    const RowJob job{out, {}, args.out, nullptr, nullptr, nullptr, out.rows};
    run_row_jobs({&job, 1}, stream);
  }
}

/// Closes the epoch; what `kept` held before is given back.
void end_pass(DeviceRank& rank, KeptKv* kept, cudaStream_t stream) {
  DevicePass& pass = *rank.forward.pass;
  if (kept == nullptr) {
    pass.end(stream);
    return;
  }
  if (kept->valid && std::erase(rank.kept_slots, kept->device_slot) > 0) pass.drop_kept({kept->device_slot});
  kept->device_slot = pass.end_kept(stream).slot;
  kept->valid = true;
  rank.kept_slots.push_back(kept->device_slot);
}

}  // namespace

void run_forward(DeviceRank& rank, const DistForwardArgs& args, cudaStream_t stream) {
  const RankScratch scratch = place_forward(rank, args.workspace.data);
  const KvViews rows = gather_rows(rank, rank.forward, scratch, args.k, args.v, stream);
  compute(rank, args, scratch, rows, stream);
  if (rank.forward.pass != nullptr) end_pass(rank, args.kept, stream);
  if (args.max_logits != nullptr && rank.communicator->size() > 1) {
    rank.communicator->all_reduce(args.max_logits, args.q.heads, ReduceOp::kMax, stream);
  }
}

}  // namespace tangram::device
