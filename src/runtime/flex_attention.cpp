// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/flex_attention.hpp"

#include <utility>

#include "core/async_task.hpp"
#include "core/require.hpp"
#include "runtime/current_device.hpp"

namespace tangram {

namespace {

using SliceLists = std::vector<std::vector<AttnSlice>>;

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
  require(num_masks == 1 || backend.caps().head_masks,
          "FlexAttention: masks of head groups need a backend that takes them (got {})", backend.name());
  return {masks[0].seqlen_q(), masks[0].seqlen_k(), heads.num_heads_q, heads.num_heads_kv,
          heads.head_dim,      heads.head_dim_v,    heads.dtype};
}

SliceLists slices_of(std::span<const Mask> masks) {
  SliceLists lists;
  for (const Mask& mask : masks) lists.emplace_back(mask.slices().begin(), mask.slices().end());
  return lists;
}

/// Slices that nothing has checked yet. Backends of host memory check them.
SliceLists checked(std::span<const AttnSlice> slices, const AttnShape& shape, const AttnBackend& backend) {
  SliceLists lists = {{slices.begin(), slices.end()}};
  if (backend.memory() == MemoryKind::kHost) return lists;
  const Mask mask(shape.seqlen_q, shape.seqlen_k, std::move(lists[0]));
  return slices_of(std::span(&mask, 1));
}

using SliceSpans = std::vector<std::span<const AttnSlice>>;

void install_part(const AttnBackend& backend, MaskSlot& slot, std::span<const std::vector<AttnSlice>> lists,
                  const AttnShape& shape, MaskPart part) {
  const SliceSpans masks(lists.begin(), lists.end());
  backend.install(slot, backend.build({.masks = masks, .shape = shape, .parts = part, .gpu = backend.caps().gpu}));
}

}  // namespace

FlexAttention::FlexAttention(SliceLists masks, const AttnShape& shape, const AttnBackend& backend)
    : shape_(shape), backend_(&backend), slot_(backend.make_slot(shape)), masks_(std::move(masks)) {
  build_part(MaskPart::kForward);
}

FlexAttention::FlexAttention(const Mask& mask, const HeadConfig& heads, const AttnBackend& backend)
    : FlexAttention(std::span(&mask, 1), heads, backend) {}

FlexAttention::FlexAttention(std::span<const AttnSlice> slices, const AttnShape& shape, const AttnBackend& backend)
    : FlexAttention(checked(slices, shape, backend), shape, backend) {}

FlexAttention::FlexAttention(std::span<const Mask> masks, const HeadConfig& heads, const AttnBackend& backend)
    : FlexAttention(slices_of(masks), shape_of(masks, heads, backend), backend) {}

FlexAttention::FlexAttention(FlexAttention&& other) noexcept = default;
FlexAttention::~FlexAttention() = default;

int64_t FlexAttention::device_bytes() const {
  if (ahead_ != nullptr) ahead_->finish();
  return slot_->device_bytes();
}

MaskPart FlexAttention::part_of(const CallOptions& call, MaskParts installed) {
  if (call.deterministic) return MaskPart::kBackwardOrdered;
  if (!call.plain || installed.has(MaskPart::kBackward)) return MaskPart::kBackward;
  if (!plain_part_) plain_part_ = backend_->backward_part(SliceSpans(masks_.begin(), masks_.end()), shape_, call);
  return *plain_part_;
}

void FlexAttention::build_part(MaskPart part) const { install_part(*backend_, *slot_, masks_, shape_, part); }

void FlexAttention::prepare_backward_async(bool deterministic, bool plain) {
  if (ahead_ != nullptr || backend_->memory() != MemoryKind::kDevice) return;
  const MaskPart part = part_of({.deterministic = deterministic, .plain = plain}, slot_->parts());
  if (slot_->parts().has(part)) return;
  // What it uses stays where it is when the object is moved.
  ahead_ = std::make_unique<AsyncTask>(
      on_current_device([backend = backend_, slot = slot_.get(), lists = std::span(std::as_const(masks_)),
                         shape = shape_, part] { install_part(*backend, *slot, lists, shape, part); }));
}

void FlexAttention::finish_ahead() {
  if (ahead_ == nullptr) return;
  const std::unique_ptr<AsyncTask> ahead = std::move(ahead_);  // what fails is tried again by the next call
  ahead->finish();
}

void FlexAttention::prepare_backward(const CallOptions& call) {
  finish_ahead();
  const MaskPart part = part_of(call, slot_->parts());
  if (!slot_->parts().has(part)) build_part(part);
  if (slot_->parts().has_all(kBackwardParts)) masks_ = {};
}

int64_t FlexAttention::backward_workspace_bytes(bool deterministic, bool plain) {
  prepare_backward({.deterministic = deterministic, .plain = plain});
  return backend_->workspace_bytes(*slot_, AttnPass::kBackward);
}

void FlexAttention::backward(const AttnBackwardArgs& args, void* stream) {
  prepare_backward(call_options(args));
  backend_->backward(*slot_, args, stream);
}

}  // namespace tangram
