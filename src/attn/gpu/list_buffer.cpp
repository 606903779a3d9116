// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/list_buffer.hpp"

#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/metadata.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/buffer_capacity.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/key_image.hpp"

namespace tangram::gpu {
namespace {

using schedule::ForwardWorkTiles;

/// Steps of the longest work tile of a pack, over the mean: 3.2 to 5.8 of packs of log-normal lengths on ranks.
constexpr int64_t kLongestOfPacks = 5;

size_t accum_tiles_of(const schedule::ImageLayout& layout, const AttnShape& shape) {
  if (shape.num_heads_q == shape.num_heads_kv) return 0;  // a work tile has one head
  return static_cast<size_t>(layout.num_key_tiles()) * static_cast<size_t>(shape.num_heads_kv);
}

}  // namespace

ListBuffer::ListBuffer(const AttnShape& shape, const schedule::KernelTable& kernels,
                       const schedule::PaddedChoice& choice)
    : PaddedSlot(shape, kernels, choice.capacity),
      forward_(choice.tile),
      work_tiles_(choice.work_tiles),
      layout_(shape, choice.tile, kernels.backward, choice.capacity),
      sizes_(static_cast<size_t>(layout_.num_q_tiles()), accum_tiles_of(layout_, shape), shape, kernels),
      memory_(
          std::make_shared<cuda::DeviceBuffer>(cuda::DeviceBuffer::zeros(layout_.bytes() + cuda::kScratchAlignment))) {
  if (capacity().block_size > 0) {
    make_builder();
  } else {
    make_ring(layout_.bytes());
  }
}

void ListBuffer::make_builder() {
  builder_ = std::make_shared<builder::DeviceBuilder>(layout_, shape(), forward_, kernels().backward, capacity(),
                                                      memory_->as<std::byte>());
}

void ListBuffer::install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) {
  check_errors();
  const auto* built = dynamic_cast<const ListBufferMetadata*>(metadata.get());
  require(built != nullptr, "AttnBackend::install: a padded slot needs metadata built for it (got another's)");
  const TileList& forward = built->forward;
  const schedule::WorkList& backward = built->backward;
  layout_.check(forward, backward);
  require(capacity().block_size == 0 || schedule::sees_whole_query_tiles(backward),
          "MaskBuffer::set: a mask of blocks must be such that all queries of a tile of {} see something, or none (got "
          "one of which some see nothing)",
          kernels().backward.block_n);
  copy_from_host(
      memory_->as<void>(), layout_.bytes(), [&](std::byte* to) { return layout_.write(to, forward, backward); },
      stream);
}

void ListBuffer::install_device(const MaskData& data, cudaStream_t stream) {
  check_errors();
  MaskCapacity room = capacity();
  if (room.max_slices == 0) room.max_slices = room.max_documents;
  schedule::check_capacity(data, shape(), room);
  if (builder_ == nullptr) {
    require(!cuda::is_captured(stream),
            "MaskBuffer: the first mask that the GPU builds must be set before a stream is captured, since that "
            "allocates (got a stream that is)");
    make_builder();
  }
  builder_->build(data, stream);
  keep_while_graph_lives(stream);
  set_by_device();
}

void ListBuffer::check_backward(const char* function, const AttnBackwardArgs& args) const {
  check_call(function, AttnPasses::kForward);
  require(args.options.deterministic == capacity().deterministic,
          "{}: calls must be deterministic as the MaskBuffer is made for (got deterministic={})", function,
          args.options.deterministic);
}

ForwardView ListBuffer::forward_view() const {
  const int pack = schedule::packed_heads(kernels(), shape(), work_tiles_);
  ForwardView view;
  view.choice = {.work_tiles = work_tiles_,
                 .gathers = work_tiles_ == ForwardWorkTiles::kAligned,
                 .many_runs = capacity().block_size > 0};
  view.work_tiles = at<MaskTile>(layout_.forward_work_tiles());
  view.runs = at<TileRange>(layout_.forward_runs());
  view.intervals = at<RowInterval>(layout_.intervals());
  view.counters = at<int32_t>(layout_.bytes());
  view.num_work_tiles = static_cast<int32_t>(layout_.num_forward_work_tiles());
  view.num_groups = shape().num_heads_q / pack;
  // The order of work must not depend on the mask that is set during graph capture: sections are as long as for packed
  // documents.
  view.groups_per_section =
      schedule::groups_per_section(gpu_of_current_device(), shape(), schedule::forward_bytes_of_key(shape()),
                                   view.num_work_tiles, kLongestOfPacks, pack);
  return view;
}

BackwardView ListBuffer::backward_view(bool /*deterministic*/, void* workspace) const {
  BackwardView view;
  view.work_tiles = at<schedule::WorkTile>(layout_.backward_work_tiles());
  view.runs = at<TileRange>(layout_.backward_runs());
  view.run_tiles = at<schedule::RangeQueryTiles>(layout_.run_tiles());
  view.q_tiles = at<schedule::QueryTile>(layout_.q_tiles());
  view.intervals = at<RowInterval>(layout_.intervals());
  if (capacity().allow_fully_masked_rows) view.covered_queries_pre_post = at<uint64_t>(layout_.covered_queries());
  // Block-sparse masks: the main kernel need not check, since all rows of a tile that it visits see a key.
  if (capacity().block_size == 0) view.covered_queries = view.covered_queries_pre_post;
  view.dq_order_segments = at<schedule::DqOrderSegment>(layout_.dq_order_segments());
  view.mask_info = at<schedule::BackwardMaskInfo>(layout_.mask_info());
  view.num_q_tiles = view.q_tile_stride = static_cast<int32_t>(layout_.num_q_tiles());
  view.num_accum_tiles = kernels().backward_kernels * static_cast<int32_t>(sizes_.accum_tiles);
  view.scratch = sizes_.place(workspace);
  return view;
}

void ListBuffer::keep_while_graph_lives(cudaStream_t stream) const {
  cuda::keep_while_graph_lives(stream, memory_);
  if (builder_ != nullptr) cuda::keep_while_graph_lives(stream, builder_);
}

size_t ListBuffer::backward_workspace_bytes() const {
  return capacity().passes == AttnPasses::kForward ? 0 : sizes_.bytes();
}

int64_t ListBuffer::device_bytes() const {
  return static_cast<int64_t>(memory_->bytes() + (builder_ == nullptr ? 0 : builder_->device_bytes()));
}

int64_t ListBuffer::host_bytes() const {
  return static_cast<int64_t>(ring_bytes() + (builder_ == nullptr ? 0 : builder_->host_bytes()));
}

bool ListBuffer::is_held_by_graphs() const {
  cuda::release_objects_of_ended_graphs();
  return memory_.use_count() > 1;
}

}  // namespace tangram::gpu
