// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// GpuBackend::build: from masks to the lists that kernels walk, on the host.

#include <optional>
#include <utility>
#include <vector>

#include "attn/gpu/block_buffer.hpp"
#include "attn/gpu/gpu_backend.hpp"
#include "attn/gpu/list_buffer.hpp"
#include "attn/gpu/metadata.hpp"
#include "core/async_task.hpp"
#include "core/require.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/choose_sparse_backward.hpp"
#include "schedule/head_lists.hpp"
#include "schedule/tile_list.hpp"

namespace tangram::gpu {
namespace {

using schedule::KernelTable;

constexpr const char* kFunction = "AttnBackend::build";

/// Tiles of a list that is worth waking a thread for.
constexpr int64_t kWorthAThread = 512;

BackwardCalls calls_of(MaskParts parts) {
  if (parts == kBackwardParts) return BackwardCalls::kBoth;
  return parts.has(MaskPart::kBackwardOrdered) ? BackwardCalls::kDeterministic : BackwardCalls::kDefault;
}

/// Lists for KV-stationary kernels, and for others where they are faster.
std::unique_ptr<MaskMetadata> build_backward(const MaskRequest& request, MaskParts parts, const KernelTable& kernels) {
  const AttnShape& shape = request.shape;
  std::vector<TileList> tiles;
  for (const std::span<const AttnSlice> slices : request.masks) {
    tiles.push_back(schedule::transposed_tile_list(slices, shape.seqlen_q, shape.seqlen_k, kernels.backward));
  }
  KeySources sources(request);
  const BackwardCalls calls = calls_of(parts);
  schedule::WorkList work = tiles.size() == 1 ? schedule::make_work_list(tiles[0], request.masks[0], shape, request.gpu,
                                                                         sources.awaited, {.calls = calls})
                                              : schedule::join_work(tiles, request.masks, shape, request.gpu, calls);
  std::optional<schedule::GroupList> sparse;
  if (parts.has(MaskPart::kBackward) && sources.awaited.empty()) {
    const schedule::SparseBackwardChoice choice(request.masks, shape, kernels);
    sparse = choice.choose(schedule::kv_stationary_steps(work));
  }
  return std::make_unique<BackwardMetadata>(parts, std::move(work), std::move(sparse), std::move(sources));
}

std::unique_ptr<MaskMetadata> build_sparse(const MaskRequest& request, const KernelTable& kernels) {
  std::optional<schedule::GroupList> groups;
  if (request.ready_flags.empty()) {
    groups = schedule::SparseBackwardChoice(request.masks, request.shape, kernels).choose_early();
  }
  if (!groups) return build_backward(request, MaskPart::kBackward, kernels);
  return std::make_unique<SparseMetadata>(std::move(*groups));
}

std::unique_ptr<MaskMetadata> build_lists(const ListBuffer& buffer, const MaskRequest& request,
                                          const KernelTable& kernels) {
  const MaskCapacity& capacity = buffer.capacity();
  const AttnShape& shape = request.shape;
  const std::span<const AttnSlice> slices = request.masks[0];
  TileList tiles;
  const auto list_tiles = [&] { tiles = schedule::list_forward_tiles(slices, shape, kernels, buffer.forward_tile()); };
  // If there are many tiles, another thread makes the forward list meanwhile. It takes a third of the time of the
  // backward lists.
  std::optional<AsyncTask> beside;
  if (capacity.passes == AttnPasses::kBoth && shape.seqlen_q / buffer.forward_tile().block_m >= kWorthAThread) {
    beside.emplace(list_tiles);
  } else if (capacity.passes != AttnPasses::kBackward) {
    list_tiles();
  }
  schedule::WorkList work;
  if (capacity.passes != AttnPasses::kForward) {
    TileList transposed = schedule::transposed_tile_list(slices, shape.seqlen_q, shape.seqlen_k, kernels.backward);
    if (request.num_keys >= 0) {
      std::erase_if(transposed.work_tiles,
                    [&](const MaskTile& work_tile) { return work_tile.row_begin >= request.num_keys; });
    }
    work = schedule::make_work_list(
        transposed, slices, shape, request.gpu, {},
        {.calls = capacity.deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault});
  }
  if (beside) beside->finish();
  return std::make_unique<ListBufferMetadata>(buffer.parts(), std::move(tiles), std::move(work));
}

}  // namespace

std::unique_ptr<MaskMetadata> GpuBackend::build(const MaskRequest& request) const {
  check(request.shape);
  require(!request.masks.empty() && request.shape.num_heads_kv % std::ssize(request.masks) == 0,
          "{}: the number of masks must divide num_heads_kv (got {} masks, num_heads_kv={})", kFunction,
          request.masks.size(), request.shape.num_heads_kv);
  require(request.masks.size() == 1 || (request.ready_flags.empty() && request.local_ranges.empty()),
          "{}: with masks of head groups keys must come in time and lie in k and v (got {} masks)", kFunction,
          request.masks.size());
  const KernelTable kernels = kernel_table(request.shape);
  if (const auto* lists = dynamic_cast<const ListBuffer*>(request.into)) return build_lists(*lists, request, kernels);
  if (const auto* blocks = dynamic_cast<const BlockBuffer*>(request.into)) return blocks->build(request.masks);
  require(request.into == nullptr, "{}: into must be a padded slot of this backend (got another)", kFunction);
  if (request.parts == MaskPart::kForward) {
    return std::make_unique<ForwardMetadata>(
        schedule::choose_forward(request.masks, request.shape, kernels, request.gpu, request.ready_flags),
        KeySources(request));
  }
  if (request.parts == MaskPart::kBackwardSparse) return build_sparse(request, kernels);
  require(!request.parts.empty() && kBackwardParts.has_all(request.parts),
          "{}: parts must be one, or those of KV-stationary backward calls (got several)", kFunction);
  return build_backward(request, request.parts, kernels);
}

}  // namespace tangram::gpu
