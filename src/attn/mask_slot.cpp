// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_slot.hpp"

#include <optional>
#include <vector>

#include "tangram/attention.hpp"
#include "tangram/mask.hpp"

namespace tangram {

CallOptions call_options(const AttnBackwardArgs& args) {
  // Without softcap, lse / softmax_scale meets q.k, which a tiny scale makes overflow.
  constexpr float kLeastScale = 1e-30f;
  return {.deterministic = args.options.deterministic,
          .plain = args.options.softcap == 0 && args.options.softmax_scale.value_or(1) >= kLeastScale &&
                   args.dsink == nullptr && !args.accumulate_dq && !args.accumulate_dkv &&
                   args.places.of_key == nullptr && args.k_local.data == nullptr && args.v_local.data == nullptr,
          .awaits_keys = args.ready_flags != nullptr};
}

std::unique_ptr<MaskSlot> make_mask_slot(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                         const AttnShape& shape, const SlotOptions& options) {
  const AttnCaps caps = backend.caps();
  std::optional<Mask> checked;  // tile lists trust their slices; backends of host memory check them
  if (caps.memory == MemoryKind::kDevice) {
    checked.emplace(shape.seqlen_q, shape.seqlen_k, std::vector(slices.begin(), slices.end()));
    slices = checked->slices();
  }
  std::unique_ptr<MaskSlot> slot = backend.make_slot(shape);
  MaskRequest request{.masks = {&slices, 1},
                      .shape = shape,
                      .gpu = caps.gpu,
                      .ready_flags = options.ready_flags,
                      .local_ranges = options.local_ranges};
  if (options.passes != AttnPasses::kBackward) backend.install(*slot, backend.build(request));
  if (options.passes != AttnPasses::kForward && !slot->parts().has_all(kBackwardParts)) {
    request.parts = kBackwardParts;
    backend.install(*slot, backend.build(request));
  }
  return slot;
}

}  // namespace tangram
