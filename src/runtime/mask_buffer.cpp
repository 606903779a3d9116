// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_buffer.hpp"

#include <optional>
#include <vector>

#include "core/require.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {

MaskBuffer::MaskBuffer(const AttnShape& shape, const MaskCapacity& capacity, const AttnBackend& backend)
    : shape_(shape), capacity_(capacity), backend_(&backend) {
  require(capacity.documents > 0 && capacity.slices >= 0,
          "MaskBuffer: documents must be positive and slices not negative (got documents={}, slices={})",
          capacity.documents, capacity.slices);
  if (backend.has_buffers()) prepared_ = backend.make_buffer(shape, capacity);
}

void MaskBuffer::set(const Mask& mask, void* stream) {
  require(mask.seqlen_q() == shape_.seqlen_q && mask.seqlen_k() == shape_.seqlen_k,
          "MaskBuffer::set: the mask must have the lengths of the buffer, {} x {} (got {} x {})", shape_.seqlen_q,
          shape_.seqlen_k, mask.seqlen_q(), mask.seqlen_k());
  if (!backend_->has_buffers()) {
    prepared_ = prepare_slices(*backend_, mask.slices(), shape_, {}, capacity_.passes);
  } else {
    std::optional<TileList> tiles, transposed;
    if (capacity_.passes != AttnPasses::kBackward) {
      tiles = schedule::build_tile_list(mask.slices(), shape_.seqlen_q, shape_.seqlen_k, *backend_->tile_shape(shape_));
    }
    if (capacity_.passes != AttnPasses::kForward) {
      std::vector<AttnSlice> keys_first;
      keys_first.reserve(mask.slices().size());
      for (const AttnSlice& slice : mask.slices()) keys_first.push_back(schedule::transposed(slice));
      transposed = schedule::build_tile_list(keys_first, shape_.seqlen_k, shape_.seqlen_q,
                                             *backend_->backward_tile_shape(shape_));
    }
    backend_->set_mask(*prepared_, mask.slices(), tiles ? &*tiles : nullptr, transposed ? &*transposed : nullptr,
                       stream);
  }
  ++num_masks_;
}

void MaskBuffer::reserve(const MaskCapacity& capacity) {
  require(prepared_ == nullptr || !prepared_->is_held_by_graphs(),
          "MaskBuffer::reserve: CUDA graphs that were captured with the buffer must be gone (got one that may be "
          "replayed)");
  *this = MaskBuffer(shape_, capacity, *backend_);
}

PreparedMask& MaskBuffer::mask(const char* function, AttnPasses other) {
  require(num_masks_ > 0, "{}: set() must come first (got none)", function);
  require(capacity_.passes != other, "{}: the buffer must be for this pass (got one for {} alone)", function,
          other == AttnPasses::kForward ? "forward" : "backward");
  return *prepared_;
}

int64_t MaskBuffer::forward_workspace_bytes() const {
  return prepared_ == nullptr ? 0 : backend_->forward_workspace_bytes(*prepared_);
}

int64_t MaskBuffer::backward_workspace_bytes() const {
  return prepared_ == nullptr ? 0 : backend_->backward_workspace_bytes(*prepared_);
}

void MaskBuffer::forward(const AttnForwardArgs& args, void* stream) {
  backend_->forward(mask("MaskBuffer::forward", AttnPasses::kBackward), args, stream);
}

void MaskBuffer::backward(const AttnBackwardArgs& args, void* stream) {
  backend_->backward(mask("MaskBuffer::backward", AttnPasses::kForward), args, stream);
}

}  // namespace tangram
