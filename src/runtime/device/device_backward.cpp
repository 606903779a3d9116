// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward pass on a GPU: the steps of the host's program (plan/program/emit_kv.cpp), put on a stream.
#include <algorithm>

#include "cuda/check.hpp"
#include "plan/stages.hpp"
#include "runtime/device/device_rank.hpp"
#include "runtime/pass_plan.hpp"

namespace tangram::device {

namespace {

/// Where the kernels put dk and dv: rows of the K/V buffer.
struct Gradients {
  TensorView dk;
  TensorView dv;
};

Gradients gradients_of(const DeviceRank& rank, const DistBackwardArgs& args, const RankScratch& scratch) {
  if (rank.writes_gradients) return {args.dk, args.dv};
  if (!rank.backward.stores_returns) return {scratch.dk_part, scratch.dv_part};
  // The own part, among other tensors: there is a place for each row.
  if (rank.kv_rows() > 0) return {scratch.dk_local, scratch.dv_local};
  return {slice_rows(scratch.dk_local, {0, 0}), slice_rows(scratch.dv_local, {0, 0})};
}

void clear(const TensorView& tensor, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(tensor.rows * tensor.row_bytes());
  cuda::check(cudaMemsetAsync(tensor.data, 0, bytes, stream), "cudaMemsetAsync");
}

void compute(DeviceRank& rank, const DistBackwardArgs& args, const RankScratch& scratch, const KvViews& rows,
             const Gradients& gradients, cudaStream_t stream) {
  const PassSetup& setup = rank.backward;
  const bool several = setup.steps.size() > 1;
  TensorView dq = args.dq;
  if (scratch.dq_sum.dim > 0 && dq.dtype != DType::kFloat32) dq = scratch.dq_sum;
  if (several) {  // else the one kernel sets all rows
    clear(scratch.dk_part, stream);
    clear(scratch.dv_part, stream);
  }
  if (setup.returns.clears_own) {
    clear(scratch.dk_local, stream);
    clear(scratch.dv_local, stream);
  }
  const bool waits_for_stages = !rank.keeps && !setup.waits_in_kernel;
  DeviceArrivals arrivals;
  if (setup.waits_in_kernel) arrivals = setup.pass->arrivals();
  const ConstTensorView partials[] = {gradients.dk, gradients.dv};
  bool is_first_call = true;
  for (const size_t i : stage_order(setup.steps.size(), several && rank.keeps)) {
    const Step& step = setup.steps[i];
    const int first_remote = std::max(step.first_stage, 1);
    for (int stage = first_remote; stage < step.end_stage && waits_for_stages; ++stage) {
      setup.pass->wait_cast(stage - 1, stream);
    }
    if (step.mask != nullptr) {
      AttnBackwardArgs call{args.q,       rows.k,       rows.v,  args.out, args.lse,       args.dout, dq,
                            gradients.dk, gradients.dv, nullptr, {},       !is_first_call, several,   args.options};
      if (several) call.options = beside_transfers(rank, setup, args.options);
      if (waits_for_stages) start_transfers_first(rank, setup, step.end_stage, stream);
      if (is_first_call) {  // dsink depends on no keys, so any one call gives all of it
        call.dsink = args.dsink;
        call.sink = args.sink;
      }
      if (setup.waits_in_kernel) call.arrivals = &arrivals;
      call.k_elsewhere = rows.k_shard, call.v_elsewhere = rows.v_shard;
      if (setup.stores_returns) {
        call.places = setup.returns.in_slot(setup.pass->return_slot());
        call.places.dk_settled = args.dk, call.places.dv_settled = args.dv;
      }
      call.workspace = scratch.attention;
      rank.base.backend->backward(*step.mask, call, stream);
      is_first_call = false;
    }
    for (int stage = first_remote; stage < step.end_stage; ++stage) {
      if (setup.stores_returns) {
        setup.pass->signal_returned(stage - 1, stream);
      } else {
        setup.pass->reduce(stage - 1, partials, stream);
      }
    }
  }
  if (dq.data != args.dq.data) {
    const RowJob job{dq, {}, args.dq, nullptr, nullptr, nullptr, dq.rows};
    run_row_jobs({&job, 1}, stream);
  }
}

/// What this rank's own queries contribute, in shard order.
Gradients local_gradients(DeviceRank& rank, const DistBackwardArgs& args, const RankScratch& scratch,
                          const Gradients& gradients, cudaStream_t stream) {
  const Gradients local{scratch.dk_local, scratch.dv_local};
  if (rank.backward.stores_returns) return local;
  if (rank.local.whole_shard) {
    return {slice_rows(gradients.dk, *rank.local.whole_shard), slice_rows(gradients.dv, *rank.local.whole_shard)};
  }
  const auto* map = rank.local.of_shard_row.as<int32_t>();
  const RowJob jobs[] = {{{}, gradients.dk, local.dk, nullptr, map, nullptr, args.dk.rows},
                         {{}, gradients.dv, local.dv, nullptr, map, nullptr, args.dv.rows}};
  run_row_jobs(jobs, stream);
  return local;
}

/// Closes the epoch, if there is one.
void finish_gradients(DeviceRank& rank, const DistBackwardArgs& args, const RankScratch& scratch,
                      const Gradients& gradients, cudaStream_t stream) {
  if (rank.writes_gradients) return;
  if (rank.backward.pass != nullptr) {
    const Gradients local = local_gradients(rank, args, scratch, gradients, stream);
    const ConstTensorView own[] = {local.dk, local.dv};
    const TensorView sums[] = {args.dk, args.dv};
    rank.backward.pass->finish_reduce_and_end(own, sums, stream);
    return;
  }
  const auto* map = rank.local.of_shard_row.as<int32_t>();
  const RowJob jobs[] = {{{}, gradients.dk, args.dk, nullptr, map, nullptr, args.dk.rows},
                         {{}, gradients.dv, args.dv, nullptr, map, nullptr, args.dv.rows}};
  run_row_jobs(jobs, stream);
}

void reduce_dsink(DeviceRank& rank, const DistBackwardArgs& args, cudaStream_t stream) {
  const int size = rank.communicator->size();
  if (args.dsink == nullptr || args.sink.layout == SinkLayout::kSsh || args.dsink_reduce == DsinkReduce::kNone ||
      size == 1) {
    return;
  }
  const int count = static_cast<int>(args.sink.seqlen_sink) * args.q.heads;
  rank.communicator->all_reduce(args.dsink, count, ReduceOp::kSum, stream);
  if (args.dsink_reduce == DsinkReduce::kAvg) scale_values(args.dsink, count, 1.0f / static_cast<float>(size), stream);
}

}  // namespace

void run_backward(DeviceRank& rank, const DistBackwardArgs& args, cudaStream_t stream) {
  const RankScratch scratch = place_backward(rank, args.workspace.data);
  KvViews rows;
  if (rank.keeps) {
    const int slot = rank.backward.pass->begin_kept({args.kept->device_slot}, stream);
    std::erase(rank.kept_slots, args.kept->device_slot);
    rows = kept_rows(rank, slot, args.k, args.v);
  } else {
    rows = gather_rows(rank, rank.backward, scratch, args.k, args.v, stream);
  }
  const Gradients gradients = gradients_of(rank, args, scratch);
  compute(rank, args, scratch, rows, gradients, stream);
  finish_gradients(rank, args, scratch, gradients, stream);
  reduce_dsink(rank, args, stream);
}

}  // namespace tangram::device
