// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/flex_attention.hpp"

#include <algorithm>

#include "machine/gpu_model.hpp"
#include "schedule/arrival_order.hpp"
#include "schedule/tile_list.hpp"
#ifdef TANGRAM_HAVE_CUDA
#include "attn/sm90/gpu_model.hpp"
#endif

namespace tangram {

namespace {

/// The current device where the backend computes on one, else the default.
GpuModel gpu_of([[maybe_unused]] const AttnBackend& backend) {
#ifdef TANGRAM_HAVE_CUDA
  if (backend.memory() == MemoryKind::kDevice) return sm90::gpu_of_current_device();
#endif
  return {};
}

/// Items that run before late keys can be expected: as many as there are multiprocessors, divided by the key heads that
/// kernels deal together, those whose keys and values share the cache.
int64_t first_wave(const GpuModel& gpu, const AttnShape& shape) {
  const int64_t head_bytes = std::max<int64_t>(
      shape.seqlen_k * (shape.head_dim + shape.head_dim_v) * static_cast<int64_t>(size_of(shape.dtype)), 1);
  const int64_t heads = std::clamp<int64_t>(kept_in_l2(gpu) / head_bytes, 1, shape.num_heads_kv);
  return (gpu.multiprocessors + heads - 1) / heads;
}

/// The tile list of the transposed slices, where the backend wants one.
void add_backward(const AttnBackend& backend, PreparedMask& prepared, std::span<const AttnSlice> slices,
                  const AttnShape& shape, BackwardCalls calls = BackwardCalls::kBoth) {
  const std::optional<TileShape> keys_first = backend.backward_tile_shape(shape);
  if (!keys_first) return;
  std::vector<AttnSlice> slices_of_keys;
  for (const AttnSlice& slice : slices) slices_of_keys.push_back(schedule::transposed(slice));
  backend.prepare_backward(
      prepared, schedule::build_tile_list(slices_of_keys, shape.seqlen_k, shape.seqlen_q, *keys_first), calls);
}

/// prepare_slices of slices of a mask, which has checked them.
std::unique_ptr<PreparedMask> prepare_checked(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                              const AttnShape& shape, std::span<const KeyArrival> arrivals,
                                              AttnPasses passes) {
  const std::optional<TileShape> tile_shape = backend.tile_shape(shape);
  if (!tile_shape) {
    std::unique_ptr<PreparedMask> prepared = backend.prepare(slices, shape, nullptr);
    // Made now, beside the rest: what stays must not come to lie among the buffers of a pass.
    if (passes == AttnPasses::kBackward) backend.index_backward(*prepared);
    return prepared;
  }
  std::optional<TileList> tiles;
  if (passes != AttnPasses::kBackward) {
    tiles = schedule::build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, *tile_shape);
    if (!arrivals.empty()) schedule::order_by_arrival(*tiles, arrivals, first_wave(gpu_of(backend), shape));
  }
  std::unique_ptr<PreparedMask> prepared = backend.prepare(slices, shape, tiles ? &*tiles : nullptr);
  if (!arrivals.empty()) backend.prepare_arrivals(*prepared, arrivals);
  if (passes != AttnPasses::kForward) add_backward(backend, *prepared, slices, shape);
  return prepared;
}

AttnShape shape_of(const Mask& mask, const HeadConfig& heads) {
  return {mask.seqlen_q(), mask.seqlen_k(),  heads.num_heads_q, heads.num_heads_kv,
          heads.head_dim,  heads.head_dim_v, heads.dtype};
}

}  // namespace

std::unique_ptr<PreparedMask> prepare_slices(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                             const AttnShape& shape, std::span<const KeyArrival> arrivals,
                                             AttnPasses passes) {
  if (!backend.tile_shape(shape)) return prepare_checked(backend, slices, shape, arrivals, passes);
  // build_tile_list trusts its slices; the mask checks them.
  const Mask checked(shape.seqlen_q, shape.seqlen_k, {slices.begin(), slices.end()});
  return prepare_checked(backend, checked.slices(), shape, arrivals, passes);
}

FlexAttention::FlexAttention(const Mask& mask, const HeadConfig& heads, const AttnBackend& backend)
    : shape_(shape_of(mask, heads)),
      backend_(&backend),
      prepared_(prepare_checked(backend, mask.slices(), shape_, {}, AttnPasses::kForward)),
      slices_(mask.slices().begin(), mask.slices().end()) {}

FlexAttention::FlexAttention(std::span<const AttnSlice> slices, const AttnShape& shape, const AttnBackend& backend)
    : shape_(shape),
      backend_(&backend),
      prepared_(prepare_slices(backend, slices, shape, {}, AttnPasses::kForward)),
      slices_(slices.begin(), slices.end()) {}

void FlexAttention::prepare_backward(bool deterministic) {
  bool& is_prepared = is_prepared_[deterministic ? 1 : 0];
  if (is_prepared) return;
  add_backward(*backend_, *prepared_, slices_, shape_,
               deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault);
  is_prepared = true;
  if (is_prepared_[0] && is_prepared_[1]) slices_ = {};
}

int64_t FlexAttention::backward_workspace_bytes(bool deterministic) {
  prepare_backward(deterministic);
  return backend_->backward_workspace_bytes(*prepared_);
}

void FlexAttention::forward(const AttnForwardArgs& args, void* stream) { backend_->forward(*prepared_, args, stream); }

void FlexAttention::backward(const AttnBackwardArgs& args, void* stream) {
  prepare_backward(args.options.deterministic);
  backend_->backward(*prepared_, args, stream);
}

}  // namespace tangram
