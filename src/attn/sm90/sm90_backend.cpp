// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backend can do, and its slots. From masks to lists: build.cpp; calls: sm90_forward.cpp, sm90_backward.cpp.

#include "attn/sm90/sm90_backend.hpp"

#include <utility>

#include "attn/gpu/abilities.hpp"
#include "attn/sm90/block_buffer.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/exact_slot.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/list_buffer.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/query_backward/device_group_list.hpp"
#include "attn/sm90/tiles_to_gather.hpp"
#include "core/require.hpp"
#include "cuda/stream.hpp"
#include "schedule/buffer_capacity.hpp"

namespace tangram {
namespace {

using sm90::ForwardWorkTiles;

/// Of a capacity for such blocks.
std::unique_ptr<MaskSlot> make_buffer_of_large_blocks(const AttnShape& shape, const MaskCapacity& capacity) {
  const sm90::GatheredWorkTiles larger = sm90::work_tiles_to_gather(capacity.block_size, shape);
  const bool aligned = larger.work_tiles == ForwardWorkTiles::kAligned;
  return std::make_unique<sm90::ListBuffer>(shape, aligned ? larger.tile : sm90::forward_tile(shape),
                                            aligned ? larger.work_tiles : sm90::plain_work_tiles(shape),
                                            schedule::list_capacity(capacity));
}

}  // namespace

AttnCaps Sm90Backend::caps() const {
  return {.name = "sm90",
          .memory = MemoryKind::kDevice,
          .gpu = sm90::gpu_of_current_device_or_default(),
          .delta = true,
          .head_masks = true,
          .padded_slots = true,
          .max_ready_flags = kMaxReadyFlags,
          .local_kv_halo = kLocalKvHalo};
}

void Sm90Backend::check(const AttnShape& shape) const {
  require(shape.dtype == DType::kBFloat16 || shape.dtype == DType::kFloat16,
          "Sm90Backend: dtype must be bfloat16 or float16 (got dtype={})", to_string(shape.dtype));
  require(sm90::find_shape_class(shape.head_dim, shape.head_dim_v) != nullptr,
          "Sm90Backend: head_dim and head_dim_v must be multiples of 8 up to {} (got head_dim={}, head_dim_v={})",
          sm90::kLargestHeadDim, shape.head_dim, shape.head_dim_v);
  require(shape.num_heads_q > 0 && shape.num_heads_kv > 0 && shape.num_heads_q % shape.num_heads_kv == 0,
          "Sm90Backend: num_heads_kv must divide num_heads_q (got num_heads_q={}, num_heads_kv={})", shape.num_heads_q,
          shape.num_heads_kv);
}

// Only KV-stationary kernels wait for keys, or read them elsewhere.
MaskPart Sm90Backend::backward_part(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                                    const CallOptions& call) const {
  if (call.deterministic) return MaskPart::kBackwardOrdered;
  if (!call.plain) return MaskPart::kBackward;
  const bool sparse = call.awaits_keys ? masks.size() == 1 && sm90::query_backward::is_scattered(masks[0], shape)
                                       : sm90::query_backward::may_choose_groups(masks, shape);
  return sparse ? MaskPart::kBackwardSparse : MaskPart::kBackward;
}

std::unique_ptr<MaskSlot> Sm90Backend::make_slot(const AttnShape& shape, const MaskCapacity* capacity) const {
  check(shape);
  require_hopper();
  if (capacity == nullptr) return std::make_unique<sm90::ExactSlot>(shape);
  if (capacity->block_size == 0) {
    return std::make_unique<sm90::ListBuffer>(shape, sm90::forward_tile(shape), sm90::plain_work_tiles(shape),
                                              *capacity);
  }
  if (schedule::fills_steps(*capacity)) return make_buffer_of_large_blocks(shape, *capacity);
  return std::make_unique<sm90::BlockBuffer>(shape, *capacity, sm90::work_tiles_to_gather(capacity->block_size, shape));
}

void Sm90Backend::install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const {
  sm90::as_sm90(slot).install(std::move(metadata), cuda::as_stream(stream));
}

void Sm90Backend::install_device(MaskSlot& slot, const MaskData& data, void* stream) const {
  sm90::as_sm90(slot).install_device(data, cuda::as_stream(stream));
}

}  // namespace tangram
