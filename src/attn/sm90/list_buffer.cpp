// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/list_buffer.hpp"

#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/buffer_capacity.hpp"
#include "schedule/key_image.hpp"

namespace tangram::sm90 {

namespace {

size_t accum_tiles_of(const schedule::ImageLayout& layout, const AttnShape& shape) {
  if (shape.num_heads_q == shape.num_heads_kv) return 0;  // a work tile has one head
  return static_cast<size_t>(layout.num_key_tiles()) * static_cast<size_t>(shape.num_heads_kv);
}

}  // namespace

ListBuffer::ListBuffer(const AttnShape& shape, const TileShape& forward, ForwardWorkTiles work_tiles,
                       const MaskCapacity& capacity)
    : shape_(shape),
      forward_(forward),
      work_tiles_(work_tiles),
      capacity_(capacity),
      layout_(shape, forward, backward::kTileShape, capacity),
      call_(static_cast<size_t>(layout_.num_q_tiles()), accum_tiles_of(layout_, shape), shape),
      memory_(
          std::make_shared<cuda::DeviceBuffer>(cuda::DeviceBuffer::zeros(layout_.bytes() + cuda::kScratchAlignment))) {
  if (capacity.block_size > 0) {
    make_builder();
  } else {
    make_ring();
  }
}

void ListBuffer::make_ring() { ring_ = std::make_unique<cuda::PinnedRing>(layout_.bytes()); }

void ListBuffer::make_builder() {
  builder_ = std::make_shared<builder::DeviceBuilder>(layout_, shape_, forward_, capacity_, memory_->as<std::byte>());
}

void ListBuffer::set(const TileList& forward, const schedule::WorkList& backward, cudaStream_t stream) {
  check_refused();
  layout_.check(forward, backward);
  require(capacity_.block_size == 0 || schedule::sees_whole_query_tiles(backward),
          "MaskBuffer::set: a mask of blocks must be such that all queries of a tile of {} see something, or none (got "
          "one of which some see nothing)",
          backward::kTileShape.block_n);
  require(!cuda::is_captured(stream),
          "MaskBuffer::set: the stream must not be being captured, masks are set between replays (got one that is)");
  if (ring_ == nullptr) make_ring();
  const size_t bytes = layout_.write(ring_->next(), forward, backward);
  ring_->copy_to(memory_->as<void>(), bytes, stream);
  is_set_ = true;
}

void ListBuffer::set(const MaskData& data, cudaStream_t stream) {
  check_refused();
  MaskCapacity room = capacity_;
  if (room.max_slices == 0) room.max_slices = room.max_documents;
  schedule::check_capacity(data, shape_, room);
  if (builder_ == nullptr) {
    require(!cuda::is_captured(stream),
            "MaskBuffer: the first mask that the GPU builds must be set before a stream is captured, since that "
            "allocates (got a stream that is)");
    make_builder();
  }
  builder_->build(data, stream);
  keep_while_graph_lives(stream);
  is_set_ = true;
}

void ListBuffer::fill(ForwardParams& params) const {
  params.work_tiles = at<MaskTile>(layout_.forward_work_tiles());
  params.runs = at<TileRange>(layout_.forward_runs());
  params.intervals = at<RowInterval>(layout_.intervals());
  params.counters = at<int32_t>(layout_.bytes());
  params.num_work_tiles = static_cast<int32_t>(layout_.num_forward_work_tiles());
}

void ListBuffer::fill(backward::Params& params, backward::PrePostParams& pre_post, void* workspace) const {
  call_.place(params, pre_post, workspace);
  params.work_tiles = at<backward::WorkTile>(layout_.backward_work_tiles());
  params.runs = at<TileRange>(layout_.backward_runs());
  params.run_tiles = at<backward::RangeQueryTiles>(layout_.run_tiles());
  params.q_tiles = pre_post.q_tiles = at<backward::QueryTile>(layout_.q_tiles());
  params.intervals = at<RowInterval>(layout_.intervals());
  pre_post.covered_queries = capacity_.allow_fully_masked_rows ? at<uint64_t>(layout_.covered_queries()) : nullptr;
  // Of blocks the main kernel need not ask: the rows of a tile that it visits all see something.
  params.covered_queries = capacity_.block_size > 0 ? nullptr : pre_post.covered_queries;
  params.dq_order_segments = at<backward::DqOrderSegment>(layout_.dq_order_segments());
  params.num_q_tiles = pre_post.num_q_tiles = static_cast<int32_t>(layout_.num_q_tiles());
  pre_post.num_accum_tiles = call_.num_kernels * static_cast<int32_t>(call_.accum_tiles);
  params.mask_info = pre_post.mask_info = at<backward::BackwardMaskInfo>(layout_.mask_info());
}

void ListBuffer::keep_while_graph_lives(cudaStream_t stream) const {
  cuda::keep_while_graph_lives(stream, memory_);
  if (builder_ != nullptr) cuda::keep_while_graph_lives(stream, builder_);
}

bool ListBuffer::is_held_by_graphs() const {
  cuda::release_objects_of_ended_graphs();
  return memory_.use_count() > 1;
}

}  // namespace tangram::sm90
