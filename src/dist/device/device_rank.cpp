// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/device/device_rank.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "dist/pass_plan.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram::device {

namespace {

cuda::DeviceBuffer upload(const std::vector<int32_t>& values) {
  return cuda::DeviceBuffer::copy_of(values.data(), values.size() * sizeof(int32_t));
}

LocalRows make_local_rows(const RankPlan& plan, int rank, int64_t k_rows) {
  std::vector<int32_t> shard_rows, buffer_rows, of_shard_row(static_cast<size_t>(k_rows), -1);
  for (const KvSegment& segment : plan.segments) {
    if (segment.owner != rank) continue;
    for (int64_t i = 0; i < segment.global.size(); ++i) {
      shard_rows.push_back(static_cast<int32_t>(segment.owner_row + i));
      buffer_rows.push_back(static_cast<int32_t>(segment.row + i));
      of_shard_row[static_cast<size_t>(segment.owner_row + i)] = static_cast<int32_t>(segment.row + i);
    }
  }
  LocalRows local;
  local.count = static_cast<int64_t>(shard_rows.size());
  local.shard_rows = upload(shard_rows);
  local.buffer_rows = upload(buffer_rows);
  local.of_shard_row = upload(of_shard_row);
  bool whole = k_rows > 0 && of_shard_row.front() >= 0;
  for (size_t i = 1; whole && i < of_shard_row.size(); ++i) whole = of_shard_row[i] == of_shard_row[i - 1] + 1;
  if (whole) local.whole_shard = Range{of_shard_row.front(), of_shard_row.front() + k_rows};
  return local;
}

std::vector<Step> make_steps(DeviceRank& rank, const std::vector<Stage>& stages, DeviceOverlap overlap) {
  const int num_stages = static_cast<int>(stages.size());
  std::vector<Step> steps;
  if (overlap == DeviceOverlap::kNone) {
    steps.push_back({prepare_slices(*rank.base.backend, rank.plan().slices, rank.base.shape), 0, num_stages});
    return steps;
  }
  std::vector<std::unique_ptr<PreparedMask>> masks = prepare_stages(*rank.base.backend, stages, rank.base.shape);
  for (int stage = 0; stage < num_stages; ++stage) {
    steps.push_back({std::move(masks[static_cast<size_t>(stage)]), stage, stage + 1});
  }
  return steps;
}

/// Exchanges of the stages after the first, which has none.
std::vector<Exchange> exchanges_of(const std::vector<Stage>& stages) {
  std::vector<Exchange> exchanges;
  for (size_t stage = 1; stage < stages.size(); ++stage) exchanges.push_back(stages[stage].exchange);
  return exchanges;
}

cuda::DeviceBuffer tensor_memory(DType dtype, int64_t rows, int heads, int dim) {
  return cuda::DeviceBuffer(static_cast<size_t>(rows * heads * dim) * size_of(dtype));
}

/// Whether more than one kernel adds to the results of the rank's queries.
bool adds_up(const PassSetup& setup) {
  return std::any_of(setup.steps.begin() + 1, setup.steps.end(), [](const Step& step) { return step.mask != nullptr; });
}

void allocate(DeviceRank& rank, bool with_backward) {
  const HeadConfig& heads = rank.heads();
  const bool has_landing = rank.forward.num_stages > 1;
  if (!has_landing && !rank.uses_shard) {
    rank.own_k = tensor_memory(heads.dtype, rank.kv_rows(), heads.num_heads_kv, heads.head_dim);
    rank.own_v = tensor_memory(heads.dtype, rank.kv_rows(), heads.num_heads_kv, heads.head_dim_v);
  }
  const DType sums = DType::kFloat32;
  if (adds_up(rank.forward)) rank.out_sum = tensor_memory(sums, rank.q_rows(), heads.num_heads_q, heads.head_dim_v);
  if (!with_backward) return;
  if (adds_up(rank.backward)) rank.dq_sum = tensor_memory(sums, rank.q_rows(), heads.num_heads_q, heads.head_dim);
  if (rank.writes_gradients) return;
  rank.dk_part = tensor_memory(sums, rank.kv_rows(), heads.num_heads_kv, heads.head_dim);
  rank.dv_part = tensor_memory(sums, rank.kv_rows(), heads.num_heads_kv, heads.head_dim_v);
  if (rank.backward.num_stages > 1 && !rank.local.whole_shard) {
    rank.dk_local = tensor_memory(sums, rank.base.k_shard_rows(), heads.num_heads_kv, heads.head_dim);
    rank.dv_local = tensor_memory(sums, rank.base.k_shard_rows(), heads.num_heads_kv, heads.head_dim_v);
  }
}

}  // namespace

TensorView view_of(const cuda::DeviceBuffer& buffer, DType dtype, int64_t rows, int heads, int dim) {
  return {{buffer.as<void>(), dtype, rows, heads, dim, int64_t{heads} * dim, dim}};
}

int64_t DeviceRank::workspace_bytes() const {
  size_t bytes = 0;
  for (const cuda::DeviceBuffer* buffer : {&own_k, &own_v, &out_sum, &dq_sum, &dk_part, &dv_part, &dk_local, &dv_local,
                                           &local.shard_rows, &local.buffer_rows, &local.of_shard_row}) {
    bytes += buffer->bytes();
  }
  return static_cast<int64_t>(bytes);
}

void prepare_masks(DeviceRank& rank, const DeviceDistOptions& options) {
  const RankPlan& plan = rank.plan();
  rank.forward.num_stages = static_cast<int>(plan.forward.size());
  rank.backward.num_stages = static_cast<int>(plan.backward.size());
  rank.forward.steps = make_steps(rank, plan.forward, options.forward);
  if (options.with_backward) rank.backward.steps = make_steps(rank, plan.backward, options.backward);
  rank.local = make_local_rows(plan, rank.base.rank, rank.base.k_shard_rows());
  const bool alone = plan.forward.size() == 1 && plan.backward.size() == 1;
  rank.uses_shard = alone && plan.segments.size() <= 1;
  rank.writes_gradients = rank.uses_shard && rank.local.whole_shard;
  rank.keeps = plan.backward.back().kept && options.with_backward;
  allocate(rank, options.with_backward);
}

void prepare_passes(DeviceRank& rank, const DeviceDistOptions& options) {
  const HeadConfig& heads = rank.heads();
  const LandingTensor k{rank.kv_rows(), heads.num_heads_kv, heads.head_dim, heads.dtype};
  const LandingTensor v{rank.kv_rows(), heads.num_heads_kv, heads.head_dim_v, heads.dtype};
  if (rank.plan().forward.size() > 1) {
    DevicePassSpec spec;
    spec.label = "forward";
    spec.casts = exchanges_of(rank.plan().forward);
    spec.landing = {k, v};
    spec.num_slots = 2 + (rank.keeps ? options.max_kept : 0);
    rank.forward.pass = rank.communicator->prepare_pass(spec);
  }
  if (!options.with_backward || rank.plan().backward.size() <= 1) return;
  const int64_t owned_rows = rank.base.k_shard_rows();
  const DType dtype = rank.base.plan->config.reduce_dtype;
  DevicePassSpec spec;
  spec.label = "backward";
  spec.landing = {k, v};
  if (!rank.keeps) spec.casts = exchanges_of(rank.plan().backward);
  spec.reduces = exchanges_of(rank.plan().backward);
  spec.returns = {{rank.kv_rows(), owned_rows, heads.num_heads_kv, heads.head_dim, dtype},
                  {rank.kv_rows(), owned_rows, heads.num_heads_kv, heads.head_dim_v, dtype}};
  // One pass at a time is open, so both may land in the same memory.
  spec.landing_of = rank.forward.pass;
  rank.backward.pass = rank.communicator->prepare_pass(spec);
}

KvViews kept_rows(const PassSetup& setup, int slot) {
  return {setup.pass->landing(0, slot), setup.pass->landing(1, slot)};
}

KvViews gather_rows(DeviceRank& rank, const PassSetup& setup, int slot, const ConstTensorView& k,
                    const ConstTensorView& v, cudaStream_t stream) {
  if (rank.uses_shard) {
    const int64_t first = rank.plan().segments.empty() ? 0 : rank.plan().segments.front().owner_row;
    return {slice_rows(k, {first, first + rank.kv_rows()}), slice_rows(v, {first, first + rank.kv_rows()})};
  }
  TensorView k_rows, v_rows;
  if (setup.pass != nullptr) {
    // Rows of all stages are sent at once: the link carries one after the other, and nothing may be posted behind
    // kernels of this rank that wait for a peer which waits for them.
    const ConstTensorView sources[] = {k, v};
    for (int stage = 1; stage < setup.num_stages; ++stage) setup.pass->cast(stage - 1, sources, stream);
    k_rows = setup.pass->landing(0, slot);
    v_rows = setup.pass->landing(1, slot);
  } else {
    k_rows = view_of(rank.own_k, k.dtype, rank.kv_rows(), k.heads, k.dim);
    v_rows = view_of(rank.own_v, v.dtype, rank.kv_rows(), v.heads, v.dim);
  }
  const auto* from = rank.local.shard_rows.as<int32_t>();
  const auto* to = rank.local.buffer_rows.as<int32_t>();
  const RowJob jobs[] = {{k, {}, k_rows, from, nullptr, to, rank.local.count},
                         {v, {}, v_rows, from, nullptr, to, rank.local.count}};
  run_row_jobs(jobs, stream);
  return {k_rows, v_rows};
}

}  // namespace tangram::device
