// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/exact_slot.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/query_backward/call.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::sm90 {
namespace {

/// Runs a work tile from which on kernels that fetch them ahead are faster: 1.02 times with 7 of 256 keys, 1.09 with 14
/// of 128, 0.99 with the one or two of packed documents (docs/devlog/2026-11-22-runs-of-keys.md).
constexpr size_t kManyRuns = 4;
bool has_many_runs(size_t num_work_tiles, size_t num_runs) { return num_runs >= kManyRuns * num_work_tiles; }

ForwardWorkTiles work_tiles_of(bool gathered, ForwardWorkTiles gathered_work_tiles, const AttnShape& shape) {
  if (!gathered) return plain_work_tiles(shape);
  return gathered_work_tiles == ForwardWorkTiles::kAligned ? ForwardWorkTiles::kAligned : ForwardWorkTiles::kGathered;
}

}  // namespace

ForwardLists::ForwardLists(const ForwardMetadata& metadata, const AttnShape& shape) : sources(metadata.sources) {
  const auto& [plain, parts, gathered] = metadata.chosen;
  const TileList& scheduled = parts ? parts->list : *plain;
  choice.gathers = gathered.has_value();
  choice.many_runs = !gathered && !parts && has_many_runs(scheduled.work_tiles.size(), scheduled.runs.size());
  choice.work_tiles = work_tiles_of(choice.gathers, metadata.gatherable.work_tiles(), shape);
  const std::vector<MaskTile>& of_tiles = gathered ? gathered->work_tiles : scheduled.work_tiles;
  const std::vector<TileRange>& of_runs = gathered ? gathered->runs : scheduled.runs;
  num_work_tiles = static_cast<int32_t>(of_tiles.size());
  for (const MaskTile& work_tile : of_tiles) {
    const int64_t steps = schedule::work_tile_steps(work_tile, of_runs, scheduled.shape.block_n);
    total_steps += steps;
    longest_steps = std::max(longest_steps, steps);
  }
  work_tiles = arrays.add(of_tiles);
  runs = arrays.add(of_runs);
  if (gathered) groups = arrays.add(gathered->groups);
  intervals = arrays.add(scheduled.intervals);
  counters = arrays.add_zeros<int32_t>(2);
  if (parts) {
    part_rows = arrays.add(parts->first_rows);
    tiles = arrays.add(parts->tiles);
    num_part_tiles = static_cast<int32_t>(parts->tiles.size());
    num_part_rows = parts->num_rows;
  }
  arrays.upload();
}

ForwardLists::ForwardLists(const HeadForwardMetadata& metadata, const AttnShape& shape) {
  const schedule::HeadLists& lists = metadata.lists;
  num_masks = lists.num_masks;
  num_work_tiles = static_cast<int32_t>(lists.work_tiles.size());
  work_tiles = arrays.add(lists.work_tiles);
  work_tile_groups = arrays.add(lists.work_tile_groups);
  runs = arrays.add(lists.runs);
  intervals = arrays.add(lists.intervals);
  choice.gathers = lists.gathered;
  choice.many_runs =
      !lists.gathered && lists.part_tiles.empty() && has_many_runs(lists.work_tiles.size(), lists.runs.size());
  choice.work_tiles = work_tiles_of(lists.gathered, metadata.gathered_work_tiles, shape);
  groups = arrays.add(lists.key_groups);
  counters = arrays.add_zeros<int32_t>(2);
  part_rows = arrays.add(lists.part_rows);
  tiles = arrays.add(lists.part_tiles);
  part_heads = arrays.add(lists.part_heads);
  num_part_tiles = static_cast<int32_t>(lists.part_tiles.size());
  num_part_rows = lists.num_part_rows;
  arrays.upload();
}

ExactSlot::Backward::Backward(const BackwardMetadata& metadata, const AttnShape& shape)
    : lists(metadata.work, shape), sources(metadata.sources) {}

void ExactSlot::install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t) {
  const cuda::AllowAllocationDuringCapture allow;  // the first backward call of a mask may be a captured one
  if (const auto* of = dynamic_cast<const ForwardMetadata*>(metadata.get())) {
    forward_ = std::make_unique<ForwardLists>(*of, shape());
  } else if (const auto* of_heads = dynamic_cast<const HeadForwardMetadata*>(metadata.get())) {
    forward_ = std::make_unique<ForwardLists>(*of_heads, shape());
  } else if (const auto* backward = dynamic_cast<const BackwardMetadata*>(metadata.get())) {
    const auto lists = std::make_shared<const Backward>(*backward, shape());
    if (backward->parts().has(MaskPart::kBackward)) backward_ = lists;
    if (backward->parts().has(MaskPart::kBackwardOrdered)) ordered_ = lists;
    if (backward->sparse && sparse_ == nullptr) {
      sparse_ = std::make_unique<query_backward::DeviceGroupList>(*backward->sparse, shape());
    }
  } else if (const auto* sparse = dynamic_cast<const SparseMetadata*>(metadata.get())) {
    sparse_ = std::make_unique<query_backward::DeviceGroupList>(sparse->groups, shape());
  } else {
    require(false, "Sm90Backend::install: an exact slot needs metadata built for one (got another's)");
  }
  if (metadata->parts().has(MaskPart::kForward) && forward_->in_parts()) {
    load_merge(shape().dtype == DType::kFloat16, shape().head_dim, shape().head_dim_v);
  }
  add_parts(metadata->parts());
}

void ExactSlot::check_forward(const char* function) const {
  require(forward_ != nullptr, "{}: the forward part of a mask must be installed first (got none)", function);
}

void ExactSlot::check_backward(const char* function, const AttnBackwardArgs& args) const {
  const bool deterministic = args.options.deterministic;
  require(is_sparse(args) || backward_of(deterministic) != nullptr,
          "{}: the part that such calls read must be installed first (got deterministic={})", function, deterministic);
  require(args.keys_ready == nullptr, "{}: keys_ready must be null but for padded slots without block_size (got one)",
          function);
}

void ExactSlot::before_forward(cudaStream_t stream) const {
  forward_->sources.before_call(stream);
  forward_->arrays.before_call(stream);
}

void ExactSlot::before_backward(const AttnBackwardArgs& args, cudaStream_t stream) const {
  if (is_sparse(args)) return sparse_->before_call(stream);
  const Backward& of = *backward_of(args.options.deterministic);
  of.sources.before_call(stream);
  of.lists.before_call(stream);
}

void ExactSlot::fill(ForwardParams& params, int pack) const {
  const ForwardLists& lists = *forward_;
  params.work_tiles = lists.arrays.at<MaskTile>(lists.work_tiles);
  params.runs = lists.arrays.at<TileRange>(lists.runs);
  params.intervals = lists.arrays.at<RowInterval>(lists.intervals);
  params.counters = lists.arrays.at<int32_t>(lists.counters);
  params.num_work_tiles = lists.num_work_tiles;
  params.work_tile_groups = lists.arrays.at<int32_t>(lists.work_tile_groups);
  if (params.work_tile_groups != nullptr) {
    params.num_groups = params.groups_per_section = 1;
    return;
  }
  params.num_groups = shape().num_heads_q / pack;
  params.groups_per_section =
      groups_per_section(shape(), forward_bytes_of_key(shape()), lists.total_steps, lists.longest_steps, pack);
}

SplitTiles ExactSlot::split_tiles() const {
  const ForwardLists& lists = *forward_;
  return {lists.arrays.at<int32_t>(lists.part_rows),
          lists.arrays.at<schedule::TileParts>(lists.tiles),
          lists.arrays.at<int32_t>(lists.part_heads),
          lists.num_part_tiles,
          lists.num_part_rows,
          lists.num_masks};
}

bool ExactSlot::is_sparse(const AttnBackwardArgs& args) const {
  return sparse_ != nullptr && query_backward::takes(args, backward_ != nullptr && backward_->sources.awaits_keys());
}

void ExactSlot::fill(backward::Params& params, backward::PrePostParams& pre_post, const AttnBackwardArgs& args,
                     void* workspace) const {
  backward_of(args.options.deterministic)->lists.fill(params, pre_post, args.options.deterministic, workspace);
}

int64_t ExactSlot::num_backward_work_tiles(bool deterministic) const {
  return backward_of(deterministic)->lists.num_work_tiles(deterministic);
}

const DeviceKeySources& ExactSlot::backward_sources(bool deterministic) const {
  return backward_of(deterministic)->sources;
}

size_t ExactSlot::backward_workspace_bytes(bool deterministic) const {
  return backward_of(deterministic)->lists.workspace_bytes();
}

size_t ExactSlot::backward_workspace_bytes() const {
  size_t bytes = sparse_ == nullptr ? 0 : sparse_->workspace_bytes();
  for (const auto& of : {backward_, ordered_}) {
    if (of != nullptr) bytes = std::max(bytes, of->lists.workspace_bytes());
  }
  return bytes;
}

int64_t ExactSlot::device_bytes() const {
  size_t bytes = 0;
  if (forward_ != nullptr) bytes += forward_->arrays.device_bytes() + forward_->sources.device_bytes();
  if (backward_ != nullptr) bytes += backward_->lists.device_bytes() + backward_->sources.device_bytes();
  if (ordered_ != nullptr && ordered_ != backward_) {
    bytes += ordered_->lists.device_bytes() + ordered_->sources.device_bytes();
  }
  if (sparse_ != nullptr) bytes += sparse_->device_bytes();
  return static_cast<int64_t>(bytes);
}

}  // namespace tangram::sm90
