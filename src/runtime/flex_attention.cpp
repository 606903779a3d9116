// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/flex_attention.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/async_task.hpp"
#include "core/require.hpp"
#include "tangram/gpu_model.hpp"
#include "runtime/current_device.hpp"
#include "runtime/head_loop.hpp"
#include "schedule/ready_order.hpp"
#include "schedule/tile_list.hpp"
#ifdef TANGRAM_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "attn/sm90/gpu_model.hpp"
#include "cuda/check.hpp"
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

/// Work tiles that run before awaited keys can be expected: as many as there are multiprocessors, divided by the key
/// heads that kernels schedule together, those whose keys and values share the cache.
int64_t first_wave(const GpuModel& gpu, const AttnShape& shape) {
  const int64_t head_bytes = std::max<int64_t>(
      shape.seqlen_k * (shape.head_dim + shape.head_dim_v) * static_cast<int64_t>(size_of(shape.dtype)), 1);
  const int64_t heads = std::clamp<int64_t>(kept_in_l2(gpu) / head_bytes, 1, shape.num_heads_kv);
  return (gpu.multiprocessors + heads - 1) / heads;
}

TileList transposed_tiles(std::span<const AttnSlice> slices, const AttnShape& shape, const TileShape& keys_first) {
  return schedule::transposed_tile_list(slices, shape.seqlen_q, shape.seqlen_k, keys_first);
}

/// The tile list of the transposed slices, where the backend wants one.
void add_backward(const AttnBackend& backend, PreparedMask& prepared, std::span<const AttnSlice> slices,
                  const AttnShape& shape, BackwardCalls calls = BackwardCalls::kBoth) {
  const std::optional<TileShape> keys_first = backend.backward_tile_shape(shape);
  if (keys_first) backend.prepare_backward(prepared, transposed_tiles(slices, shape, *keys_first), calls);
}

/// The same of masks of head groups.
void add_backward(const AttnBackend& backend, PreparedMask& prepared, std::span<const std::vector<AttnSlice>> slices,
                  const AttnShape& shape, BackwardCalls calls) {
  const std::optional<TileShape> keys_first = backend.backward_tile_shape(shape);
  if (!keys_first) return;
  std::vector<TileList> tiles;
  for (const auto& of_group : slices) tiles.push_back(transposed_tiles(of_group, shape, *keys_first));
  backend.prepare_backward_head_masks(prepared, tiles, calls);
}

/// Of all groups, whose masks are prepared one by one or together.
void add_backward(const AttnBackend& backend, std::span<PreparedMask* const> prepared,
                  std::span<const std::vector<AttnSlice>> slices, const AttnShape& shape, bool deterministic) {
  const BackwardCalls calls = deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault;
  if (slices.size() != prepared.size()) return add_backward(backend, *prepared[0], slices, shape, calls);
  const AttnShape one = shape_of_group(shape, static_cast<int>(slices.size()));
  for (size_t g = 0; g < slices.size(); ++g) add_backward(backend, *prepared[g], slices[g], one, calls);
}

/// prepare_slices of slices of a mask, which has checked them.
std::unique_ptr<PreparedMask> prepare_checked(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                              const AttnShape& shape, std::span<const KeyReadyFlag> ready_flags,
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
    if (!ready_flags.empty()) schedule::order_by_readiness(*tiles, ready_flags, first_wave(gpu_of(backend), shape));
  }
  std::unique_ptr<PreparedMask> prepared = backend.prepare(slices, shape, tiles ? &*tiles : nullptr);
  if (!ready_flags.empty()) backend.prepare_ready_flags(*prepared, ready_flags);
  if (passes != AttnPasses::kForward) add_backward(backend, *prepared, slices, shape);
  return prepared;
}

AttnShape shape_of(const Mask& mask, const HeadConfig& heads) {
  return {mask.seqlen_q(), mask.seqlen_k(),  heads.num_heads_q, heads.num_heads_kv,
          heads.head_dim,  heads.head_dim_v, heads.dtype};
}

AttnShape shape_of(std::span<const Mask> masks, const HeadConfig& heads, const AttnBackend& backend) {
  require(!masks.empty(), "FlexAttention: needs a mask for each group of heads (got none)");
  const auto num_masks = static_cast<int64_t>(masks.size());
  require(heads.num_heads_kv > 0 && heads.num_heads_kv % num_masks == 0 && heads.num_heads_q % num_masks == 0,
          "FlexAttention: the number of masks must divide the heads (got {} masks, {} query and {} K/V heads)",
          num_masks, heads.num_heads_q, heads.num_heads_kv);
  for (const Mask& mask : masks) {
    require(mask.seqlen_q() == masks[0].seqlen_q() && mask.seqlen_k() == masks[0].seqlen_k(),
            "FlexAttention: the masks of head groups must be of the same rows (got {} x {} and {} x {})",
            masks[0].seqlen_q(), masks[0].seqlen_k(), mask.seqlen_q(), mask.seqlen_k());
  }
  require(num_masks == 1 || backend.takes_head_masks() || backend.memory() == MemoryKind::kHost,
          "FlexAttention: masks of head groups need a backend that takes them, or one of host memory (got {})",
          backend.name());
  return shape_of(masks[0], heads);
}

/// For forward(): of all groups one, or one for each.
std::vector<std::unique_ptr<PreparedMask>> prepare_groups(const AttnBackend& backend, std::span<const Mask> masks,
                                                          const AttnShape& shape) {
  std::vector<std::unique_ptr<PreparedMask>> prepared;
  if (masks.size() == 1 || !backend.takes_head_masks()) {
    const AttnShape one = shape_of_group(shape, static_cast<int>(masks.size()));
    for (const Mask& mask : masks) {
      prepared.push_back(prepare_checked(backend, mask.slices(), one, {}, AttnPasses::kForward));
    }
    return prepared;
  }
  const std::optional<TileShape> tile_shape = backend.tile_shape(shape);
  std::vector<std::span<const AttnSlice>> slices;
  std::vector<TileList> tiles;
  for (const Mask& mask : masks) {
    slices.push_back(mask.slices());
    if (tile_shape) {
      tiles.push_back(schedule::build_tile_list(mask.slices(), shape.seqlen_q, shape.seqlen_k, *tile_shape));
    }
  }
  prepared.push_back(backend.prepare_head_masks(slices, shape, tiles));
  return prepared;
}

/// As backward_workspace_bytes() has it.
bool is_plain(const AttnBackwardArgs& args) {
  return args.options.softcap == 0 && args.dsink == nullptr && !args.accumulate_dq && !args.accumulate_dkv &&
         args.places.of_key == nullptr;
}

}  // namespace

std::unique_ptr<PreparedMask> prepare_slices(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                             const AttnShape& shape, std::span<const KeyReadyFlag> ready_flags,
                                             AttnPasses passes) {
  if (!backend.tile_shape(shape)) return prepare_checked(backend, slices, shape, ready_flags, passes);
  // build_tile_list trusts its slices; the mask checks them.
  const Mask checked(shape.seqlen_q, shape.seqlen_k, {slices.begin(), slices.end()});
  return prepare_checked(backend, checked.slices(), shape, ready_flags, passes);
}

FlexAttention::FlexAttention(const Mask& mask, const HeadConfig& heads, const AttnBackend& backend)
    : FlexAttention(std::span(&mask, 1), heads, backend) {}

FlexAttention::FlexAttention(std::span<const AttnSlice> slices, const AttnShape& shape, const AttnBackend& backend)
    : shape_(shape), backend_(&backend), slices_(1, {slices.begin(), slices.end()}) {
  prepared_.push_back(prepare_slices(backend, slices, shape, {}, AttnPasses::kForward));
}

FlexAttention::FlexAttention(std::span<const Mask> masks, const HeadConfig& heads, const AttnBackend& backend)
    : shape_(shape_of(masks, heads, backend)), backend_(&backend), prepared_(prepare_groups(backend, masks, shape_)) {
  for (const Mask& mask : masks) slices_.emplace_back(mask.slices().begin(), mask.slices().end());
}

int64_t FlexAttention::host_bytes() const {
  int64_t bytes = 0;
  for (const auto& prepared : prepared_) bytes += prepared->host_bytes();
  return bytes;
}

int64_t FlexAttention::device_bytes() const {
  if (ahead_ != nullptr) ahead_->finish();
  int64_t bytes = 0;
  for (const auto& prepared : prepared_) bytes += prepared->device_bytes();
  return bytes;
}

FlexAttention::FlexAttention(FlexAttention&& other) noexcept = default;
FlexAttention::~FlexAttention() = default;

void FlexAttention::prepare_backward_async(bool deterministic, bool plain) {
  const Lists lists = lists_of(deterministic, plain);
  if (is_prepared(lists) || ahead_ != nullptr || backend_->memory() != MemoryKind::kDevice) return;
  // What it uses stays where it is when the object is moved.
  std::vector<PreparedMask*> prepared;
  for (const auto& one : prepared_) prepared.push_back(one.get());
  ahead_lists_ = lists;
  ahead_gathers_ = std::make_shared<bool>(false);
  ahead_ = std::make_unique<AsyncTask>(
      on_current_device([backend = backend_, prepared = std::move(prepared), slices = std::span(std::as_const(slices_)),
                         shape = shape_, lists, gathers = ahead_gathers_] {
        *gathers = lists == Lists::kGathered && backend->prepare_gathered_backward(*prepared[0]);
        if (!*gathers) add_backward(*backend, prepared, slices, shape, lists == Lists::kDeterministic);
      }));
}

void FlexAttention::finish_ahead() {
  if (ahead_ == nullptr) return;
  const std::unique_ptr<AsyncTask> ahead = std::move(ahead_);  // what fails is tried again by the next call
  ahead->finish();
  if (ahead_lists_ == Lists::kGathered) gathers_ = *ahead_gathers_;
  set_prepared(ahead_lists_ == Lists::kGathered && !gathers_ ? Lists::kDefault : ahead_lists_);
}

void FlexAttention::set_prepared(Lists lists) {
  is_prepared_[static_cast<int>(lists)] = true;
  if (is_prepared(Lists::kDefault) && is_prepared(Lists::kDeterministic)) slices_ = {};
}

FlexAttention::Lists FlexAttention::lists_of(bool deterministic, bool plain) const {
  if (deterministic) return Lists::kDeterministic;
  const bool may_gather = plain && gathers_ && !is_prepared(Lists::kDefault) && !calls_by_groups();
  return may_gather ? Lists::kGathered : Lists::kDefault;
}

void FlexAttention::prepare_backward(Lists lists) {
  finish_ahead();
  if (lists == Lists::kGathered && !is_prepared(lists)) {
    gathers_ = gathers_ && backend_->prepare_gathered_backward(*prepared_[0]);
    if (!gathers_) lists = Lists::kDefault;
  }
  if (is_prepared(lists)) return;
  std::vector<PreparedMask*> prepared;
  for (const auto& one : prepared_) prepared.push_back(one.get());
  if (lists != Lists::kGathered) {
    add_backward(*backend_, prepared, slices_, shape_, lists == Lists::kDeterministic);
  }
  set_prepared(lists);
}

int64_t FlexAttention::forward_workspace_bytes() const {
  int64_t bytes = 0;  // of calls that come one after the other
  for (const auto& prepared : prepared_) bytes = std::max(bytes, backend_->forward_workspace_bytes(*prepared));
  return bytes;
}

int64_t FlexAttention::backward_workspace_bytes(bool deterministic, bool plain) {
  prepare_backward(lists_of(deterministic, plain));
  int64_t bytes = 0;
  for (const auto& prepared : prepared_) bytes = std::max(bytes, backend_->backward_workspace_bytes(*prepared));
  return bytes;
}

void FlexAttention::forward(const AttnForwardArgs& args, void* stream) {
  if (calls_by_groups()) return forward_by_groups(*backend_, prepared_, shape_, args, stream);
  backend_->forward(*prepared_[0], args, stream);
}

void FlexAttention::backward(const AttnBackwardArgs& args, void* stream) {
  prepare_backward(lists_of(args.options.deterministic, is_plain(args)));
  if (is_prepared(Lists::kGathered) && !args.options.deterministic && !backend_->takes_gathered(*prepared_[0], args)) {
    prepare_backward(Lists::kDefault);
  }
  if (calls_by_groups()) return backward_by_groups(*backend_, prepared_, shape_, args, stream);
  backend_->backward(*prepared_[0], args, stream);
}

}  // namespace tangram
