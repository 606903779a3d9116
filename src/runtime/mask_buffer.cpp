// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_buffer.hpp"

#include <optional>
#include <vector>

#include "core/require.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {
namespace {

/// In host memory.
Mask mask_of(const CuSeqlens& documents) {
  constexpr const char* kName = "MaskBuffer::set_cu_seqlens";
  require(documents.q != nullptr && documents.documents >= 0, "{}: needs cu_seqlens_q (got none)", kName);
  const auto entry = [&](const void* list, int64_t i) {
    return documents.is_int64 ? static_cast<const int64_t*>(list)[i] : static_cast<const int32_t*>(list)[i];
  };
  const auto list_of = [&](const void* list) {
    std::vector<int64_t> ends;
    for (int64_t i = 0; i <= documents.documents; ++i) ends.push_back(entry(list, i));
    return ends;
  };
  const std::vector<int64_t> q = list_of(documents.q), k = documents.k == nullptr ? q : list_of(documents.k);
  Window window = documents.window;
  if (documents.causal) window.right = 0;
  return sliding_window_mask(q, k, window);
}

}  // namespace

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

void MaskBuffer::set_cu_seqlens(const CuSeqlens& documents, void* stream) {
  if (!backend_->has_buffers()) return set(mask_of(documents), stream);
  backend_->set_documents(*prepared_, documents, stream);
  ++num_masks_;
}

void MaskBuffer::check_errors() const {
  if (prepared_ != nullptr && backend_->has_buffers()) backend_->check_refused(*prepared_);
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
