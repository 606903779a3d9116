// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/host_backend.hpp"

#include <string_view>
#include <utility>
#include <vector>

#include "attn/head_loop.hpp"
#include "core/require.hpp"

namespace tangram {

namespace {

constexpr MaskParts kAllParts = MaskPart::kForward | kBackwardParts;

using HostMasks = std::vector<std::unique_ptr<HostMask>>;  // one, or one for each head group

struct HostMetadata final : MaskMetadata {
  explicit HostMetadata(std::string_view of) : MaskMetadata(kAllParts), backend(of) {}

  std::string_view backend;  // whose masks they are
  HostMasks masks;
};

struct HostSlot final : MaskSlot {
  HostSlot(std::string_view of, const AttnShape& of_shape) : backend(of), shape(of_shape) {}

  void set(HostMasks given) {
    masks = std::move(given);
    add_parts(kAllParts);
  }
  int num_masks() const { return static_cast<int>(masks.size()); }
  int64_t host_bytes() const override {
    int64_t bytes = 0;
    for (const auto& mask : masks) bytes += mask->host_bytes();
    return bytes;
  }

  std::string_view backend;
  AttnShape shape;
  HostMasks masks;
};

/// The slot with its masks; `function` is named in errors.
HostSlot& own(MaskSlot& slot, const AttnBackend& backend, const char* function) {
  auto* result = dynamic_cast<HostSlot*>(&slot);
  require(result != nullptr && result->backend == backend.name(), "{}: slot must be of backend {} (got another's)",
          function, backend.name());
  require(!result->masks.empty(), "{}: a mask must be installed first (got none)", function);
  return *result;
}

}  // namespace

std::unique_ptr<MaskMetadata> HostBackend::build(const MaskRequest& request) const {
  require(request.ready_flags.empty() && request.local_ranges.empty(),
          "AttnBackend::build: ready_flags and local_ranges need a backend that waits for keys (got {})", name());
  const auto num_masks = static_cast<int>(request.masks.size());
  require(num_masks > 0 && request.shape.num_heads_kv % num_masks == 0,
          "AttnBackend::build: the number of masks must divide the K/V heads (got {} masks, {} heads)", num_masks,
          request.shape.num_heads_kv);
  auto metadata = std::make_unique<HostMetadata>(name());
  for (const std::span<const AttnSlice> slices : request.masks) {
    metadata->masks.push_back(prepare(slices, shape_of_group(request.shape, num_masks)));
    if (!request.parts.has(MaskPart::kForward)) index_backward(*metadata->masks.back());
  }
  return metadata;
}

std::unique_ptr<MaskSlot> HostBackend::make_slot(const AttnShape& shape, const MaskCapacity* capacity) const {
  require(capacity == nullptr, "AttnBackend::make_slot: capacity needs a backend with padded slots (got {})", name());
  return std::make_unique<HostSlot>(name(), shape);
}

void HostBackend::install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void*) const {
  auto* built = dynamic_cast<HostMetadata*>(metadata.get());
  auto* to = dynamic_cast<HostSlot*>(&slot);
  require(built != nullptr && to != nullptr && built->backend == name() && to->backend == name(),
          "AttnBackend::install: slot and metadata must be of backend {} (got another's)", name());
  to->set(std::move(built->masks));
}

void HostBackend::forward(MaskSlot& slot, const AttnForwardArgs& args, void*) const {
  const HostSlot& of = own(slot, *this, "AttnBackend::forward");
  if (of.num_masks() == 1) return forward_of(*of.masks[0], args);
  forward_by_groups(of.num_masks(), of.shape, args,
                    [&](size_t g, const AttnForwardArgs& one) { forward_of(*of.masks[g], one); });
}

void HostBackend::backward(MaskSlot& slot, const AttnBackwardArgs& args, void*) const {
  const HostSlot& of = own(slot, *this, "AttnBackend::backward");
  if (of.num_masks() == 1) return backward_of(*of.masks[0], args);
  backward_by_groups(of.num_masks(), of.shape, args,
                     [&](size_t g, const AttnBackwardArgs& one) { backward_of(*of.masks[g], one); });
}

}  // namespace tangram
