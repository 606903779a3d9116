// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/exact_slot.hpp"

#include <algorithm>

#include "attn/gpu/gpu_model.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/choose_kernels.hpp"

namespace tangram::gpu {

ExactSlot::Forward::Forward(const ForwardMetadata& metadata, const AttnShape& shape,
                            const schedule::KernelTable& kernels)
    : sources(metadata.sources) {
  const schedule::ForwardLists& lists = metadata.lists;
  const cuda::PackedArray work_tiles = arrays.add(lists.work_tiles), groups = arrays.add(lists.work_tile_groups);
  const cuda::PackedArray runs = arrays.add(lists.runs), intervals = arrays.add(lists.intervals);
  const cuda::PackedArray key_groups = arrays.add(lists.key_groups), counters = arrays.add_zeros<int32_t>(2);
  const cuda::PackedArray part_rows = arrays.add(lists.part_rows), part_tiles = arrays.add(lists.part_tiles);
  const cuda::PackedArray part_heads = arrays.add(lists.part_heads);
  arrays.upload();
  view.choice = lists.choice;
  view.work_tiles = arrays.at<MaskTile>(work_tiles);
  view.runs = arrays.at<TileRange>(runs);
  view.intervals = arrays.at<RowInterval>(intervals);
  view.key_groups = arrays.at<int32_t>(key_groups);
  view.work_tile_groups = arrays.at<int32_t>(groups);
  view.counters = arrays.at<int32_t>(counters);
  view.num_work_tiles = static_cast<int32_t>(lists.work_tiles.size());
  view.part_rows = arrays.at<int32_t>(part_rows);
  view.part_tiles = arrays.at<schedule::TileParts>(part_tiles);
  view.part_heads = arrays.at<int32_t>(part_heads);
  view.num_part_tiles = static_cast<int32_t>(lists.part_tiles.size());
  view.num_part_rows = lists.num_part_rows;
  view.num_masks = lists.num_masks;
  if (!lists.work_tile_groups.empty()) return;
  const int pack = schedule::packed_heads(kernels, shape, lists.choice.work_tiles);
  view.num_groups = shape.num_heads_q / pack;
  view.groups_per_section =
      schedule::groups_per_section(gpu_of_current_device(), shape, schedule::forward_bytes_of_key(shape),
                                   lists.total_steps, lists.longest_steps, pack);
}

void ExactSlot::install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t) {
  const cuda::AllowAllocationDuringCapture allow;  // the first backward call of a mask may be a captured one
  if (const auto* forward = dynamic_cast<const ForwardMetadata*>(metadata.get())) {
    forward_ = std::make_unique<Forward>(*forward, shape(), kernels());
  } else if (const auto* backward = dynamic_cast<const BackwardMetadata*>(metadata.get())) {
    const auto lists = std::make_shared<const Backward>(*backward, shape(), kernels());
    if (backward->parts().has(MaskPart::kBackward)) backward_ = lists;
    if (backward->parts().has(MaskPart::kBackwardOrdered)) ordered_ = lists;
    if (backward->sparse && sparse_ == nullptr) {
      sparse_ = std::make_unique<DeviceSparseList>(*backward->sparse, shape(), kernels());
    }
  } else if (const auto* sparse = dynamic_cast<const SparseMetadata*>(metadata.get())) {
    sparse_ = std::make_unique<DeviceSparseList>(sparse->groups, shape(), kernels());
  } else {
    require(false, "AttnBackend::install: an exact slot needs metadata built for one (got another's)");
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

BackwardView ExactSlot::backward_view(bool deterministic, void* workspace) const {
  return backward_of(deterministic)->lists.view(deterministic, workspace);
}

const DeviceKeySources& ExactSlot::backward_sources(bool deterministic) const {
  return backward_of(deterministic)->sources;
}

size_t ExactSlot::backward_workspace_bytes(bool deterministic) const {
  return backward_of(deterministic)->lists.workspace_bytes();
}

size_t ExactSlot::backward_workspace_bytes() const {
  size_t bytes = sparse_ == nullptr ? 0 : place_sparse(shape(), kernels(), nullptr).bytes;
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

}  // namespace tangram::gpu
