// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks set later: room for their lists, and how they get there.

#include <algorithm>
#include <memory>
#include <optional>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/block_buffer.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/list_buffer.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/prepared_mask.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "attn/sm90/tiles_to_gather.hpp"
#include "core/async_task.hpp"
#include "core/require.hpp"
#include "cuda/stream.hpp"
#include "schedule/buffer_capacity.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"

namespace tangram {
namespace {

using sm90::ForwardWorkTiles;
using sm90::plain_work_tiles;
using sm90::Sm90Mask;

/// Tiles of a list that is worth waking a thread for.
constexpr int64_t kWorthAThread = 512;

/// Of a capacity for such blocks; `tile`: as masks without blocks have it.
std::unique_ptr<sm90::ListBuffer> make_buffer_of_large_blocks(const AttnShape& shape, const TileShape& tile,
                                                              const MaskCapacity& capacity) {
  const sm90::GatheredWorkTiles larger = sm90::work_tiles_to_gather(capacity.block_size, shape);
  const bool aligned = larger.work_tiles == ForwardWorkTiles::kAligned;
  return std::make_unique<sm90::ListBuffer>(shape, aligned ? larger.tile : tile,
                                            aligned ? larger.work_tiles : plain_work_tiles(shape),
                                            schedule::list_capacity(capacity));
}

}  // namespace

std::unique_ptr<PreparedMask> Sm90Backend::make_buffer(const AttnShape& shape, const MaskCapacity& capacity) const {
  const std::optional<TileShape> tile = tile_shape(shape);
  require_hopper();
  auto mask = std::make_unique<Sm90Mask>();
  mask->shape = shape;
  if (capacity.block_size == 0) {
    mask->buffer = std::make_unique<sm90::ListBuffer>(shape, *tile, plain_work_tiles(shape), capacity);
  } else if (schedule::fills_steps(capacity)) {
    mask->buffer = make_buffer_of_large_blocks(shape, *tile, capacity);
  } else {
    mask->block_buffer =
        std::make_unique<sm90::BlockBuffer>(shape, capacity, sm90::work_tiles_to_gather(capacity.block_size, shape));
  }
  return mask;
}

void Sm90Backend::set_mask(PreparedMask& buffer, std::span<const AttnSlice> slices, int64_t num_keys,
                           void* stream) const {
  Sm90Mask& prepared = sm90::as_sm90(buffer);
  require(prepared.buffer != nullptr, "Sm90Backend::set_mask: needs a mask of make_buffer() (got one of prepare())");
  const MaskCapacity& capacity = prepared.buffer->capacity();
  const AttnShape& shape = prepared.shape;
  const TileShape tile = prepared.buffer->forward_tile();
  TileList tiles;
  const auto list_tiles = [&] {
    tiles = schedule::build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, tile);
    sm90::check_tiles("Sm90Backend::set_mask", tiles, shape, tile);
  };
  // Of many tiles another thread makes the list meanwhile. It takes a third of the time of what the backward pass
  // wants.
  std::optional<AsyncTask> beside;
  if (capacity.passes == AttnPasses::kBoth && shape.seqlen_q / tile.block_m >= kWorthAThread) {
    beside.emplace(list_tiles);
  } else if (capacity.passes != AttnPasses::kBackward) {
    list_tiles();
  }
  schedule::WorkList work;
  if (capacity.passes != AttnPasses::kForward) {
    TileList transposed =
        schedule::transposed_tile_list(slices, shape.seqlen_q, shape.seqlen_k, *backward_tile_shape(shape));
    std::erase_if(transposed.work_tiles, [&](const MaskTile& work_tile) { return work_tile.row_begin >= num_keys; });
    work = schedule::make_work_list(
        transposed, slices, shape, sm90::gpu_of_current_device(), {},
        {.calls = capacity.deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault});
  }
  if (beside) beside->finish();
  prepared.buffer->set(tiles, work, cuda::as_stream(stream));
}

void Sm90Backend::set_block_masks(PreparedMask& buffer, std::span<const std::span<const AttnSlice>> masks,
                                  void* stream) const {
  Sm90Mask& prepared = sm90::as_sm90(buffer);
  require(prepared.capacity().block_size > 0,
          "Sm90Backend::set_block_masks: needs a mask of make_buffer() for blocks (got another)");
  if (prepared.buffer != nullptr) return set_mask(buffer, masks[0], prepared.shape.seqlen_k, stream);
  prepared.block_buffer->set(masks, cuda::as_stream(stream));
}

void Sm90Backend::set_mask_data(PreparedMask& buffer, const MaskData& data, void* stream) const {
  Sm90Mask& prepared = sm90::as_sm90(buffer);
  require(prepared.is_buffer(), "Sm90Backend::set_mask_data: needs a mask of make_buffer() (got one of prepare())");
  if (prepared.block_buffer != nullptr) return prepared.block_buffer->set(data, cuda::as_stream(stream));
  prepared.buffer->set(data, cuda::as_stream(stream));
}

void Sm90Backend::check_refused(const PreparedMask& buffer) const {
  const Sm90Mask& prepared = sm90::as_sm90(buffer);
  if (prepared.buffer != nullptr) prepared.buffer->check_refused();
  if (prepared.block_buffer != nullptr) prepared.block_buffer->check_refused();
}

}  // namespace tangram
