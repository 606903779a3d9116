// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/block_buffer.hpp"

#include <variant>
#include <vector>

#include "attn/gpu/builder/launch.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/metadata.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/scratch_layout.hpp"
#include "schedule/buffer_capacity.hpp"
#include "schedule/builder/block_build.hpp"

namespace tangram::gpu {
using schedule::ForwardWorkTiles;

BlockBuffer::BlockBuffer(const AttnShape& shape, const schedule::KernelTable& kernels,
                         const schedule::PaddedChoice& choice)
    : PaddedSlot(shape, kernels, choice.capacity),
      work_tiles_(choice.work_tiles),
      layout_(shape, schedule::kBlockTileRows / schedule::packed_heads(shape), choice.capacity, gpu_of_current_device(),
              schedule::ForwardTiles{choice.tile, choice.gathers}, choice.kv_stationary),
      memory_(std::make_shared<Memory>(cuda::DeviceBuffer::zeros(layout_.bytes() + cuda::kScratchAlignment),
                                       cuda::DeviceBuffer::zeros(schedule::builder::block_build_bytes(layout_)))),
      build_(schedule::builder::block_build_at(layout_, memory_->work.as<std::byte>(), at<std::byte>(0))) {
  if (!layout_.kv_stationary()) return;
  const schedule::KeyImage& keys = layout_.keys();
  sizes_.emplace(static_cast<size_t>(keys.num_q_tiles()), static_cast<size_t>(keys.num_accum_tiles()), shape, kernels);
}

std::unique_ptr<MaskMetadata> BlockBuffer::build(std::span<const std::span<const AttnSlice>> masks) const {
  std::vector<schedule::BlockMask> lists;
  lists.reserve(masks.size());
  for (const std::span<const AttnSlice> slices : masks) lists.push_back(layout_.make(slices));
  return std::make_unique<BlockBufferMetadata>(parts(), std::move(lists));
}

void BlockBuffer::install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) {
  check_errors();
  const auto* built = dynamic_cast<const BlockBufferMetadata*>(metadata.get());
  require(built != nullptr, "AttnBackend::install: a padded slot needs metadata built for it (got another's)");
  layout_.check(built->masks);
  copy_from_host(
      memory_->image.as<void>(), layout_.bytes(), [&](std::byte* to) { return layout_.write(to, built->masks); },
      stream);
}

void BlockBuffer::install_device(const MaskData& data, cudaStream_t stream) {
  check_errors();
  schedule::check_is_blocks(data);
  builder::launch_build(build_, schedule::builder::block_lists_of(layout_, std::get<BlockTable>(data)), stream);
  // Last, since kernels read lists before they wait for the kernel in front of them, but never before a copy.
  memory_->control_block.copy(&build_.state->report, stream);
  keep_while_graph_lives(stream);
  set_by_device();
}

void BlockBuffer::check_backward(const char* function, const AttnBackwardArgs& args) const {
  check_call(function, AttnPasses::kForward);
  require(may_be_sparse(args),
          "{}: calls with a MaskBuffer for blocks must be without softcap, dsink and accumulation, and not "
          "deterministic (got softcap={}, dsink={}, accumulate_dq={}, accumulate_dkv={}, deterministic={})",
          function, args.options.softcap, args.dsink != nullptr, args.accumulate_dq, args.accumulate_dkv,
          args.options.deterministic);
  require(args.keys_ready == nullptr, "{}: keys_ready must be null but for padded slots without block_size (got one)",
          function);
}

ForwardView BlockBuffer::forward_view() const {
  const bool by_group = layout_.listed_head_groups() > 1;
  ForwardView view;
  view.choice = {.work_tiles = work_tiles_,
                 .gathers = layout_.gathers() || work_tiles_ == ForwardWorkTiles::kAligned,
                 .many_runs = true};
  view.work_tiles = at<MaskTile>(layout_.forward_work_tiles());
  view.runs = at<TileRange>(layout_.runs());
  view.key_groups = at<int32_t>(0);
  view.counters = at<int32_t>(layout_.bytes());
  view.num_work_tiles = static_cast<int32_t>(layout_.num_work_tiles(0));
  if (by_group) view.work_tile_groups = at<int32_t>(layout_.work_tile_groups());
  view.num_groups = by_group ? 1 : layout_.num_head_groups();
  view.groups_per_section = by_group ? 1 : layout_.forward_section();
  return view;
}

SparseView BlockBuffer::sparse_view() const {
  const bool by_group = layout_.listed_head_groups() > 1;
  return {at<schedule::GroupWorkTile>(layout_.backward_work_tiles()),
          at<int32_t>(0),
          at<schedule::RowBits>(0),
          static_cast<int32_t>(layout_.num_work_tiles(1)),
          by_group ? 1 : layout_.num_head_groups(),
          by_group ? 1 : layout_.backward_section()};
}

BackwardView BlockBuffer::backward_view(bool /*deterministic*/, void* workspace) const {
  const schedule::KeyImage& keys = layout_.keys();
  BackwardView view;
  view.work_tiles = at<schedule::WorkTile>(keys.work_tiles());
  view.runs = at<TileRange>(keys.runs());
  view.run_tiles = at<schedule::RangeQueryTiles>(keys.run_tiles());
  view.q_tiles = at<schedule::QueryTile>(keys.q_tiles());
  view.intervals = at<RowInterval>(0);
  // No check of which queries see something is needed. All queries of a visited tile do. Statistics of others, which
  // may be NaN, are not read, and their sums are zeros from the begin.
  view.zeroed_sums = true;
  view.num_work_tiles = keys.schedule().num_work_tiles();
  view.most_work_tiles = view.num_work_tiles;
  view.num_q_tiles = view.q_tile_stride = keys.num_q_tiles();
  view.walk = keys.walk();
  view.num_accum_tiles = kernels().backward_kernels * static_cast<int32_t>(sizes_->accum_tiles);
  view.scratch = sizes_->place(workspace);
  return view;
}

size_t BlockBuffer::backward_workspace_bytes() const {
  if (capacity().passes == AttnPasses::kForward) return 0;
  return sizes_ ? sizes_->bytes() : place_sparse(shape(), kernels(), nullptr).bytes;
}

void BlockBuffer::keep_while_graph_lives(cudaStream_t stream) const { cuda::keep_while_graph_lives(stream, memory_); }

bool BlockBuffer::is_held_by_graphs() const {
  cuda::release_objects_of_ended_graphs();
  return memory_.use_count() > 1;
}

int64_t BlockBuffer::host_bytes() const {
  return static_cast<int64_t>(builder::ErrorReportBuffer::kBytes + ring_bytes());
}

}  // namespace tangram::gpu
