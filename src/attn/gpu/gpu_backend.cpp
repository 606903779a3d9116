// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/gpu_backend.hpp"

#include <utility>

#include "attn/gpu/block_buffer.hpp"
#include "attn/gpu/exact_slot.hpp"
#include "attn/gpu/list_buffer.hpp"
#include "cuda/stream.hpp"
#include "schedule/buffer_capacity.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/choose_sparse_backward.hpp"
#include "schedule/tiles_to_gather.hpp"

namespace tangram::gpu {
namespace {

using schedule::ForwardWorkTiles;
using schedule::KernelTable;

std::unique_ptr<MaskSlot> make_padded_slot(const AttnShape& shape, const KernelTable& kernels,
                                           const MaskCapacity& capacity) {
  const auto lists = [&](const TileShape& tile, ForwardWorkTiles work_tiles, const MaskCapacity& of) {
    return std::make_unique<ListBuffer>(shape, kernels, tile, work_tiles, of);
  };
  const TileShape plain = schedule::forward_tile(kernels, shape);
  const ForwardWorkTiles plain_tiles = schedule::plain_work_tiles(kernels, shape);
  if (capacity.block_size == 0) return lists(plain, plain_tiles, capacity);
  const auto [work_tiles, tile] = schedule::work_tiles_to_gather(capacity.block_size, shape, kernels);
  if (!schedule::fills_steps(capacity)) {
    return std::make_unique<BlockBuffer>(shape, kernels, capacity, schedule::GatheredWorkTiles{work_tiles, tile});
  }
  const MaskCapacity of_lists = schedule::list_capacity(capacity);
  return work_tiles == ForwardWorkTiles::kAligned ? lists(tile, work_tiles, of_lists)
                                                  : lists(plain, plain_tiles, of_lists);
}

}  // namespace

// Only KV-stationary kernels wait for keys, or read them elsewhere.
MaskPart GpuBackend::backward_part(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                                   const CallOptions& call) const {
  if (call.deterministic) return MaskPart::kBackwardOrdered;
  if (!call.plain) return MaskPart::kBackward;
  const KernelTable kernels = kernel_table(shape);
  const schedule::SparseBackwardChoice choice(masks, shape, kernels);
  const bool sparse = call.awaits_keys ? masks.size() == 1 && choice.is_likely() : choice.may_choose();
  return sparse ? MaskPart::kBackwardSparse : MaskPart::kBackward;
}

std::unique_ptr<MaskSlot> GpuBackend::make_slot(const AttnShape& shape, const MaskCapacity* capacity) const {
  check(shape);
  require_device();
  const KernelTable kernels = kernel_table(shape);
  if (capacity == nullptr) return std::make_unique<ExactSlot>(shape, kernels);
  return make_padded_slot(shape, kernels, *capacity);
}

void GpuBackend::install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const {
  GpuSlot& own = as_gpu_slot(slot);
  const bool forward = metadata->parts().has(MaskPart::kForward);
  own.install(std::move(metadata), cuda::as_stream(stream));
  if (forward && own.forward_view().num_part_tiles > 0) load_combine(own.shape());
}

void GpuBackend::install_device(MaskSlot& slot, const MaskData& data, void* stream) const {
  as_gpu_slot(slot).install_device(data, cuda::as_stream(stream));
}

}  // namespace tangram::gpu
