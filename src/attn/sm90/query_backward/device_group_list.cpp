// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/query_backward/device_group_list.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include "attn/sm90/prepared_mask.hpp"
#include "cuda/scratch_layout.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::sm90::query_backward {
namespace {

// Of a multiprocessor, in steps of the kernel that has keys at rest.
constexpr double kStepCost = 2.0;  // of two such steps' cells
constexpr double kItemCost = 1.0;
// Where it computes no fewer cells than this for each visible one, there is nothing to gain.
constexpr double kLeastWaste = 1.5;

int64_t steps_of(const GroupItem& item) { return (item.num_groups + kStepGroups - 1) / kStepGroups; }

int32_t num_key_groups(const AttnShape& shape) {
  return static_cast<int32_t>((shape.seqlen_k + kGroupKeys - 1) / kGroupKeys);
}

/// Of both gradients.
size_t num_sums(const AttnShape& shape) {
  return size_t{2} * static_cast<size_t>(shape.num_heads_kv) * static_cast<size_t>(num_key_groups(shape)) *
         kGroupFloats;
}

}  // namespace

DeviceGroupList::DeviceGroupList(const schedule::GroupList& list, const AttnShape& shape)
    : shape_(shape), num_items_(static_cast<int32_t>(list.items.size())) {
  for (const GroupItem& item : list.items) {
    total_steps_ += steps_of(item);
    longest_steps_ = std::max(longest_steps_, steps_of(item));
  }
  items_ = lists_.add(list.items);
  groups_ = lists_.add(list.groups);
  lists_.upload();
}

int64_t DeviceGroupList::num_items() const {
  return int64_t{num_items_} * (shape_.num_heads_q / packed_heads(shape_));
}

void DeviceGroupList::fill(Params& params, EdgeParams& edge, void* workspace) const {
  const int pack = packed_heads(shape_);
  cuda::ScratchLayout layout(workspace);
  params.stats = edge.stats = layout.take<float>(static_cast<size_t>(num_items()) * kStatsFloats);
  params.dk_sums = edge.dk_sums = layout.take<float>(num_sums(shape_));
  params.dv_sums = params.dk_sums + num_sums(shape_) / 2;
  params.ticket = edge.ticket = layout.take<int32_t>(1);
  params.items = lists_.at<GroupItem>(items_);
  params.groups = lists_.at<int32_t>(groups_);
  params.num_items = edge.num_items = num_items_;
  params.num_head_groups = edge.num_head_groups = shape_.num_heads_q / pack;
  params.num_key_groups = edge.num_key_groups = num_key_groups(shape_);
  params.pack_log2 = edge.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  params.heads_per_kv = shape_.num_heads_q / shape_.num_heads_kv;
  constexpr int64_t kBytesOfKey = 2 * kHeadDim * (2 + 4);  // keys, values and both sums
  params.groups_per_section = groups_per_section(shape_, kBytesOfKey, total_steps_, longest_steps_, pack);
  edge.seqlen_q = static_cast<int32_t>(shape_.seqlen_q);
  edge.seqlen_k = static_cast<int32_t>(shape_.seqlen_k);
  edge.num_heads_q = shape_.num_heads_q;
  edge.num_heads_kv = shape_.num_heads_kv;
}

size_t DeviceGroupList::workspace_bytes() const {
  cuda::ScratchLayout layout;
  layout.take<float>(static_cast<size_t>(num_items()) * kStatsFloats);
  layout.take<float>(num_sums(shape_));
  layout.take<int32_t>(1);
  return layout.bytes();
}

std::unique_ptr<DeviceGroupList> choose_groups(std::span<const AttnSlice> slices, const AttnShape& shape,
                                               const schedule::WorkList& work) {
  if (shape.head_dim != kHeadDim || shape.head_dim_v != kHeadDim) return nullptr;
  double visible = 0, steps_at_rest = 0;  // of all heads
  for (const AttnSlice& slice : slices) visible += static_cast<double>(area(slice)) * shape.num_heads_q;
  for (const schedule::Item& item : work.items) steps_at_rest += item.num_steps;
  constexpr double kCells = backward::kTileShape.block_m * backward::kTileShape.block_n;
  if (steps_at_rest * kCells < kLeastWaste * visible) return nullptr;
  const int pack = packed_heads(shape);
  const std::optional<schedule::GroupList> list =
      schedule::group_items(schedule::build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, {kRows / pack, kKeys}));
  const int64_t head_groups = shape.num_heads_q / pack;
  if (!list || static_cast<int64_t>(list->items.size()) * head_groups >= (int64_t{1} << 31) - 65536) return nullptr;
  double steps = 0;
  for (const GroupItem& item : list->items) steps += kStepCost * static_cast<double>(steps_of(item)) + kItemCost;
  if (steps * static_cast<double>(head_groups) >= steps_at_rest) return nullptr;
  return std::make_unique<DeviceGroupList>(*list, shape);
}

}  // namespace tangram::sm90::query_backward
