// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/host/host_capacity.hpp"

#include <numeric>
#include <variant>
#include <vector>

#include "core/require.hpp"
#include "schedule/buffer_capacity.hpp"
#include "schedule/builder/block_build.hpp"
#include "schedule/key_image.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram {
namespace {

constexpr TileShape kKeysFirst{128, 64, true};  // of the backward pass

/// Queries of a tile of 128 rows: of all heads that share a K/V head, by powers of two up to 64.
int tile_rows(const AttnShape& shape) {
  return schedule::kBlockTileRows / std::gcd(shape.num_heads_q / shape.num_heads_kv, 64);
}

TileShape forward_tile(const AttnShape& shape) { return {.block_m = tile_rows(shape)}; }

}  // namespace

HostCapacity::HostCapacity(const AttnShape& shape, const MaskCapacity& capacity) : shape_(shape), capacity_(capacity) {
  if (capacity.block_size > 0 && !schedule::fills_steps(capacity)) {
    const bool gathers = capacity.block_size % schedule::kBlockStepKeys != 0;
    blocks_.emplace(shape, tile_rows(shape), capacity, GpuModel{}, schedule::ForwardTiles{forward_tile(shape), gathers},
                    schedule::has_many_key_tiles(shape, GpuModel{}));
  } else {
    capacity_ = schedule::list_capacity(capacity);
    lists_.emplace(shape, forward_tile(shape), kKeysFirst, capacity_);
  }
}

void HostCapacity::check(std::span<const std::span<const AttnSlice>> masks) const {
  if (!blocks_) return check_lists(masks[0]);
  std::vector<schedule::BlockMask> lists;
  for (const std::span<const AttnSlice> slices : masks) lists.push_back(blocks_->make(slices));
  blocks_->check(lists);
}

void HostCapacity::check_lists(std::span<const AttnSlice> slices) const {
  TileList forward;
  if (capacity_.passes != AttnPasses::kBackward) {
    forward = schedule::build_tile_list(slices, shape_.seqlen_q, shape_.seqlen_k, forward_tile(shape_));
  }
  schedule::WorkList backward;
  if (capacity_.passes != AttnPasses::kForward) {
    const TileList keys = schedule::transposed_tile_list(slices, shape_.seqlen_q, shape_.seqlen_k, kKeysFirst);
    backward = schedule::make_work_list(
        keys, slices, shape_, GpuModel{}, {},
        {.calls = capacity_.deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault});
  }
  lists_->check(forward, backward);
  require(capacity_.block_size == 0 || schedule::sees_whole_query_tiles(backward),
          "MaskBuffer::set: a mask of blocks must be such that all queries of a tile of {} see something, or none (got "
          "one of which some see nothing)",
          kKeysFirst.block_n);
}

void HostCapacity::check(const MaskData& data) const {
  if (!blocks_) return schedule::check_capacity(data, shape_, capacity_);
  schedule::check_is_blocks(data);
  static_cast<void>(schedule::builder::block_lists_of(*blocks_, std::get<BlockTable>(data)));
}

void HostCapacity::check(const AttnBackwardArgs& args) const {
  const bool deterministic = args.options.deterministic, accumulates = args.accumulate_dq || args.accumulate_dkv;
  require(
      !blocks_ || (args.options.softcap == 0 && args.dsink == nullptr && !accumulates && !deterministic),
      "MaskBuffer::backward: calls with a MaskBuffer for blocks must be without softcap, dsink and accumulation, and "
      "not deterministic (got softcap={}, dsink={}, accumulate_dq={}, accumulate_dkv={}, deterministic={})",
      args.options.softcap, args.dsink != nullptr, args.accumulate_dq, args.accumulate_dkv, deterministic);
}

}  // namespace tangram
