// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/rank_scratch.hpp"

#include <algorithm>

#include "cuda/scratch_layout.hpp"
#include "runtime/device/device_rank.hpp"

namespace tangram::device {

namespace {

TensorView take(cuda::ScratchLayout& layout, DType dtype, int64_t rows, int heads, int dim) {
  void* const data = layout.take<char>(static_cast<size_t>(rows * heads * dim) * size_of(dtype));
  return {{data, dtype, rows, heads, dim, int64_t{heads} * dim, dim}};
}

/// Whether more than one kernel adds to the results of the rank's queries.
bool adds_up(const PassSetup& setup) {
  return std::any_of(setup.steps.begin() + 1, setup.steps.end(), [](const Step& step) { return step.mask != nullptr; });
}

void take_kv_buffer(RankScratch& scratch, cuda::ScratchLayout& layout, const DeviceRank& rank) {
  const HeadConfig& heads = rank.heads();
  scratch.own_k = take(layout, heads.dtype, rank.kv_rows(), heads.num_heads_kv, heads.head_dim);
  scratch.own_v = take(layout, heads.dtype, rank.kv_rows(), heads.num_heads_kv, heads.head_dim_v);
}

template <class Bytes>
void take_attention(RankScratch& scratch, cuda::ScratchLayout& layout, const PassSetup& setup, const Bytes& bytes_of) {
  int64_t bytes = 0;
  for (const Step& step : setup.steps) {
    if (step.mask != nullptr) bytes = std::max(bytes, bytes_of(*step.mask));
  }
  scratch.attention = {layout.take<char>(static_cast<size_t>(bytes)), bytes};
  scratch.bytes = static_cast<int64_t>(layout.bytes());
}

}  // namespace

RankScratch place_forward(const DeviceRank& rank, void* workspace) {
  const HeadConfig& heads = rank.heads();
  cuda::ScratchLayout layout(workspace);
  RankScratch scratch;
  if (rank.forward.pass == nullptr && !rank.uses_shard) take_kv_buffer(scratch, layout, rank);
  if (adds_up(rank.forward)) {
    scratch.out_sum = take(layout, DType::kFloat32, rank.q_rows(), heads.num_heads_q, heads.head_dim_v);
  }
  take_attention(scratch, layout, rank.forward,
                 [&](const PreparedMask& mask) { return rank.base.backend->forward_workspace_bytes(mask); });
  return scratch;
}

RankScratch place_backward(const DeviceRank& rank, void* workspace) {
  const HeadConfig& heads = rank.heads();
  const auto gradients = [&](cuda::ScratchLayout& layout, DType dtype, int64_t rows, TensorView& dk, TensorView& dv) {
    dk = take(layout, dtype, rows, heads.num_heads_kv, heads.head_dim);
    dv = take(layout, dtype, rows, heads.num_heads_kv, heads.head_dim_v);
  };
  cuda::ScratchLayout layout(workspace);
  RankScratch scratch;
  if (rank.backward.pass == nullptr && !rank.uses_shard) take_kv_buffer(scratch, layout, rank);
  if (adds_up(rank.backward)) {
    scratch.dq_sum = take(layout, DType::kFloat32, rank.q_rows(), heads.num_heads_q, heads.head_dim);
  }
  const bool returns = rank.backward.num_stages > 1;
  if (!rank.writes_gradients && !rank.backward.stores_returns) {
    gradients(layout, DType::kFloat32, rank.kv_rows(), scratch.dk_part, scratch.dv_part);
  }
  if (rank.backward.stores_returns || (!rank.writes_gradients && returns && !rank.local.whole_shard)) {
    gradients(layout, rank.local_dtype, rank.base.k_shard_rows(), scratch.dk_local, scratch.dv_local);
  }
  take_attention(scratch, layout, rank.backward,
                 [&](const PreparedMask& mask) { return rank.base.backend->backward_workspace_bytes(mask); });
  return scratch;
}

}  // namespace tangram::device
