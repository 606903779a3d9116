// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Sm90Backend::build: from masks to the lists that kernels walk, on the host.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "attn/sm90/block_buffer.hpp"
#include "attn/sm90/list_buffer.hpp"
#include "attn/sm90/metadata.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/query_backward/device_group_list.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "core/async_task.hpp"
#include "core/require.hpp"
#include "schedule/ready_order.hpp"
#include "schedule/tile_list.hpp"

namespace tangram {
namespace sm90 {

ForwardMetadata::ForwardMetadata(TileList list, const MaskRequest& request)
    : MaskMetadata(MaskPart::kForward),
      tiles(std::move(list)),
      gatherable({&tiles, 1}, request.masks, request.shape),
      sources(request) {
  const int64_t groups = request.shape.num_heads_q / packed_heads(request.shape, plain_work_tiles(request.shape));
  chosen = std::move(schedule::split_or_gather({&tiles, 1}, request.shape, groups, request.gpu, gatherable.view())[0]);
}

}  // namespace sm90

namespace {

using sm90::packed_heads;
using sm90::plain_work_tiles;

constexpr const char* kFunction = "Sm90Backend::build";

/// Tiles of a list that is worth waking a thread for.
constexpr int64_t kWorthAThread = 512;

/// Work tiles that run before awaited keys can be expected: as many as there are multiprocessors, divided by the key
/// heads that kernels schedule together, those whose keys and values share the cache.
int64_t first_wave(const GpuModel& gpu, const AttnShape& shape) {
  const int64_t head_bytes = std::max<int64_t>(
      shape.seqlen_k * (shape.head_dim + shape.head_dim_v) * static_cast<int64_t>(size_of(shape.dtype)), 1);
  const int64_t heads = std::clamp<int64_t>(kept_in_l2(gpu) / head_bytes, 1, shape.num_heads_kv);
  return (gpu.multiprocessors + heads - 1) / heads;
}

TileList forward_tiles(std::span<const AttnSlice> slices, const AttnShape& shape, const TileShape& tile) {
  TileList tiles = schedule::build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, tile);
  const int64_t groups = shape.num_heads_q / packed_heads(shape, plain_work_tiles(shape));
  require(static_cast<int64_t>(tiles.work_tiles.size()) * groups < (int64_t{1} << 31) - 65536,
          "{}: tiles times head groups must stay below 2^31 (got {} and {})", kFunction, tiles.work_tiles.size(),
          groups);
  return tiles;
}

TileList backward_tiles(std::span<const AttnSlice> slices, const AttnShape& shape) {
  return schedule::transposed_tile_list(slices, shape.seqlen_q, shape.seqlen_k, sm90::backward::kTileShape);
}

std::unique_ptr<MaskMetadata> build_forward(const MaskRequest& request) {
  const TileShape tile = sm90::forward_tile(request.shape);
  if (request.masks.size() == 1) {
    TileList tiles = forward_tiles(request.masks[0], request.shape, tile);
    if (!request.ready_flags.empty()) {
      schedule::order_by_readiness(tiles, request.ready_flags, first_wave(request.gpu, request.shape));
    }
    return std::make_unique<sm90::ForwardMetadata>(std::move(tiles), request);
  }
  std::vector<TileList> tiles;
  for (const std::span<const AttnSlice> slices : request.masks) {
    tiles.push_back(forward_tiles(slices, request.shape, tile));
  }
  const sm90::TilesToGather gatherable(tiles, request.masks, request.shape);
  const int64_t groups = request.shape.num_heads_q / packed_heads(request.shape, plain_work_tiles(request.shape));
  return std::make_unique<sm90::HeadForwardMetadata>(
      schedule::join_tiles(tiles, request.shape, groups, request.gpu, gatherable.view()), gatherable.work_tiles());
}

BackwardCalls calls_of(MaskParts parts) {
  if (parts == kBackwardParts) return BackwardCalls::kBoth;
  return parts.has(MaskPart::kBackwardOrdered) ? BackwardCalls::kDeterministic : BackwardCalls::kDefault;
}

/// Lists for KV-stationary kernels, and for others where they are faster.
std::unique_ptr<MaskMetadata> build_backward(const MaskRequest& request, MaskParts parts) {
  std::vector<TileList> tiles;
  for (const std::span<const AttnSlice> slices : request.masks) tiles.push_back(backward_tiles(slices, request.shape));
  sm90::KeySources sources(request);
  const BackwardCalls calls = calls_of(parts);
  schedule::WorkList work = tiles.size() == 1
                                ? schedule::make_work_list(tiles[0], request.masks[0], request.shape, request.gpu,
                                                           sources.awaited, {.calls = calls})
                                : schedule::join_work(tiles, request.masks, request.shape, request.gpu, calls);
  std::optional<schedule::GroupList> sparse;
  if (parts.has(MaskPart::kBackward) && sources.awaited.empty()) {
    sparse = sm90::query_backward::choose_groups(request.masks, request.shape,
                                                 sm90::query_backward::kv_stationary_steps(work));
  }
  return std::make_unique<sm90::BackwardMetadata>(parts, std::move(work), std::move(sparse), std::move(sources));
}

std::unique_ptr<MaskMetadata> build_sparse(const MaskRequest& request) {
  std::optional<schedule::GroupList> groups;
  if (request.ready_flags.empty()) {
    groups = sm90::query_backward::choose_groups_early(request.masks, request.shape);
  }
  if (!groups) return build_backward(request, MaskPart::kBackward);
  return std::make_unique<sm90::SparseMetadata>(std::move(*groups));
}

std::unique_ptr<MaskMetadata> build_lists(const sm90::ListBuffer& buffer, const MaskRequest& request) {
  const MaskCapacity& capacity = buffer.capacity();
  const AttnShape& shape = request.shape;
  const std::span<const AttnSlice> slices = request.masks[0];
  TileList tiles;
  const auto list_tiles = [&] { tiles = forward_tiles(slices, shape, buffer.forward_tile()); };
  // Of many tiles another thread makes the list meanwhile. It takes a third of the time of what the backward pass
  // wants.
  std::optional<AsyncTask> beside;
  if (capacity.passes == AttnPasses::kBoth && shape.seqlen_q / buffer.forward_tile().block_m >= kWorthAThread) {
    beside.emplace(list_tiles);
  } else if (capacity.passes != AttnPasses::kBackward) {
    list_tiles();
  }
  schedule::WorkList work;
  if (capacity.passes != AttnPasses::kForward) {
    TileList transposed = backward_tiles(slices, shape);
    if (request.num_keys >= 0) {
      std::erase_if(transposed.work_tiles,
                    [&](const MaskTile& work_tile) { return work_tile.row_begin >= request.num_keys; });
    }
    work = schedule::make_work_list(
        transposed, slices, shape, request.gpu, {},
        {.calls = capacity.deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault});
  }
  if (beside) beside->finish();
  return std::make_unique<sm90::ListBufferMetadata>(buffer.parts(), std::move(tiles), std::move(work));
}

}  // namespace

std::unique_ptr<MaskMetadata> Sm90Backend::build(const MaskRequest& request) const {
  check(request.shape);
  require(!request.masks.empty() && request.shape.num_heads_kv % std::ssize(request.masks) == 0,
          "{}: the number of masks must divide num_heads_kv (got {} masks, num_heads_kv={})", kFunction,
          request.masks.size(), request.shape.num_heads_kv);
  require(request.masks.size() == 1 || (request.ready_flags.empty() && request.local_ranges.empty()),
          "{}: with masks of head groups keys must come in time and lie in k and v (got {} masks)", kFunction,
          request.masks.size());
  if (const auto* lists = dynamic_cast<const sm90::ListBuffer*>(request.into)) return build_lists(*lists, request);
  if (const auto* blocks = dynamic_cast<const sm90::BlockBuffer*>(request.into)) return blocks->build(request.masks);
  require(request.into == nullptr, "{}: into must be a padded slot of this backend (got another)", kFunction);
  if (request.parts == MaskPart::kForward) return build_forward(request);
  if (request.parts == MaskPart::kBackwardSparse) return build_sparse(request);
  require(!request.parts.empty() && kBackwardParts.has_all(request.parts),
          "{}: parts must be one, or those of KV-stationary backward calls (got several)", kFunction);
  return build_backward(request, request.parts);
}

}  // namespace tangram
