// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/sparse_list.hpp"

#include <algorithm>

#include "attn/gpu/gpu_model.hpp"
#include "schedule/choose_kernels.hpp"

namespace tangram::gpu {
namespace {

using schedule::GroupWorkTile;

int32_t groups_per_section(const schedule::GroupList& list, const AttnShape& shape, int step_groups) {
  int64_t total_steps = 0, longest_steps = 0;
  for (const GroupWorkTile& work_tile : list.work_tiles) {
    const int64_t steps = (work_tile.num_groups + step_groups - 1) / step_groups;
    total_steps += steps;
    longest_steps = std::max(longest_steps, steps);
  }
  const GpuModel gpu = gpu_of_current_device();
  const int64_t bytes_of_key = int64_t{2} * shape.head_dim * (2 + 4);  // keys, values and both sums
  const int pack = schedule::packed_heads(shape);
  // Sums that leave the cache are added at half the rate, which costs more than an uneven end.
  const int64_t heads = std::max<int64_t>(gpu.l2_bytes / (shape.seqlen_k * bytes_of_key + 1), 1);
  const int64_t most = heads * (shape.num_heads_q / shape.num_heads_kv / pack);
  return static_cast<int32_t>(std::min<int64_t>(
      schedule::groups_per_section(gpu, shape, bytes_of_key, total_steps, longest_steps, pack), most));
}

}  // namespace

DeviceSparseList::DeviceSparseList(const schedule::GroupList& list, const AttnShape& shape,
                                   const schedule::KernelTable& kernels) {
  const cuda::PackedArray work_tiles = lists_.add(list.work_tiles), groups = lists_.add(list.groups);
  const cuda::PackedArray masks = lists_.add(list.masks);
  lists_.upload();
  view_.work_tiles = lists_.at<GroupWorkTile>(work_tiles);
  view_.groups = lists_.at<int32_t>(groups);
  view_.masks = lists_.at<schedule::RowBits>(masks);
  view_.num_work_tiles = static_cast<int32_t>(list.work_tiles.size());
  if (!list.work_tiles.empty() && list.work_tiles[0].head_group >= 0) return;
  view_.num_head_groups = shape.num_heads_q / schedule::packed_heads(shape);
  if (view_.num_head_groups > 1) {
    view_.groups_per_section = groups_per_section(list, shape, kernels.backward_sparse.keys / schedule::kGroupKeys);
  }
}

}  // namespace tangram::gpu
