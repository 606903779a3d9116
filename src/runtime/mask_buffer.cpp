// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_buffer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/require.hpp"
#include "runtime/host/host_capacity.hpp"
#include "schedule/buffer_capacity.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

// What these read has been checked: HostCapacity.

/// Entries [0, count) of a list in host memory.
template <class T>
std::vector<T> read_list(const void* list, bool is_int64, int64_t count) {
  std::vector<T> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = is_int64 ? static_cast<const int64_t*>(list)[i] : static_cast<const int32_t*>(list)[i];
    values.push_back(
        static_cast<T>(std::clamp<int64_t>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max())));
  }
  return values;
}

Mask mask_of(const CuSeqlens& documents) {
  const auto ends = [&](const void* list) {
    return read_list<int64_t>(list, documents.is_int64, documents.documents + 1);
  };
  Window window = documents.window;
  if (documents.causal) window.right = 0;
  return sliding_window_mask(ends(documents.q), ends(documents.k == nullptr ? documents.q : documents.k), window);
}

/// Mask of one head group.
Mask mask_of(const BlockTable& table, const AttnShape& shape, int64_t group) {
  const int64_t rows = (shape.seqlen_q + table.block_size - 1) / table.block_size;
  const int64_t first = group * rows * table.width * (table.is_int64 ? 8 : 4);
  const std::vector<int32_t> indices =
      read_list<int32_t>(static_cast<const char*>(table.indices) + first, table.is_int64, rows * table.width);
  return mask_from_block_indices({.seqlen_q = shape.seqlen_q,
                                  .seqlen_k = shape.seqlen_k,
                                  .block_q = table.block_size,
                                  .block_k = table.block_size,
                                  .indices = indices,
                                  .causal = table.causal});
}

Mask mask_of(const RangeList& ranges, const AttnShape& shape) {
  const auto list = [&](const void* values, int64_t count) {
    return read_list<int64_t>(values, ranges.is_int64, count);
  };
  const std::vector<int64_t> q = list(ranges.q_ranges, 2 * ranges.count), k = list(ranges.k_ranges, 2 * ranges.count);
  const std::vector<int64_t> types = list(ranges.types, ranges.types == nullptr ? 0 : ranges.count);
  std::vector<AttnSlice> slices;
  for (size_t i = 0; i < static_cast<size_t>(ranges.count); ++i) {
    const MaskType type = types.empty() ? ranges.type : static_cast<MaskType>(types[i]);
    slices.push_back(AttnSlice::from_type(type, {q[2 * i], q[2 * i + 1]}, {k[2 * i], k[2 * i + 1]}));
  }
  return Mask(shape.seqlen_q, shape.seqlen_k, std::move(slices));
}

}  // namespace

MaskBuffer::MaskBuffer(const AttnShape& shape, const MaskCapacity& capacity, const AttnBackend& backend)
    : shape_(shape), capacity_(capacity), backend_(&backend) {
  require(
      capacity.max_documents > 0 && capacity.max_slices >= 0,
      "MaskBuffer: max_documents must be positive and max_slices not negative (got max_documents={}, max_slices={})",
      capacity.max_documents, capacity.max_slices);
  require(capacity.block_size >= 0, "MaskBuffer: blocks must not be negative, 0 is none (got block_size={})",
          capacity.block_size);
  require(capacity.head_groups == 1 || capacity.block_size > 0,
          "MaskBuffer: head_groups must be of a buffer made for blocks (got head_groups={}, block_size={})",
          capacity.head_groups, capacity.block_size);
  require(capacity.head_groups > 0 && (capacity.head_groups == 1 || shape.num_heads_kv % capacity.head_groups == 0),
          "MaskBuffer: head_groups must divide num_heads_kv (got head_groups={}, num_heads_kv={})",
          capacity.head_groups, shape.num_heads_kv);
  if (is_padded()) {
    slot_ = backend.make_slot(shape, &capacity);
  } else {
    slot_ = backend.make_slot(shape);
    room_ = std::make_shared<HostCapacity>(shape, capacity);
  }
}

bool MaskBuffer::is_padded() const { return backend_->caps().padded_slots; }

void MaskBuffer::set(const Mask& mask, void* stream) { set(std::span(&mask, 1), stream); }

void MaskBuffer::set(std::span<const Mask> masks, void* stream) {
  require(masks.size() == static_cast<size_t>(capacity_.head_groups),
          "MaskBuffer::set: needs a mask for each of the buffer's head groups, {} (got {})", capacity_.head_groups,
          masks.size());
  std::vector<std::span<const AttnSlice>> slices;
  for (const Mask& mask : masks) {
    require(mask.seqlen_q() == shape_.seqlen_q && mask.seqlen_k() == shape_.seqlen_k,
            "MaskBuffer::set: the mask must have the lengths of the buffer, {} x {} (got {} x {})", shape_.seqlen_q,
            shape_.seqlen_k, mask.seqlen_q(), mask.seqlen_k());
    slices.push_back(mask.slices());
  }
  if (room_ != nullptr) room_->check(slices);
  MaskRequest request{.masks = slices, .shape = shape_, .gpu = backend_->caps().gpu};
  if (is_padded()) request.into = slot_.get();
  if (capacity_.passes == AttnPasses::kBackward) request.parts = kBackwardParts;
  backend_->install(*slot_, backend_->build(request), stream);
  ++num_masks_;
}

void MaskBuffer::set_cu_seqlens(const CuSeqlens& documents, void* stream) {
  if (is_padded()) return set_data(documents, stream);
  room_->check(documents);
  set(mask_of(documents), stream);
}

void MaskBuffer::set_blocks(const BlockTable& table, void* stream) {
  if (is_padded()) return set_data(table, stream);
  room_->check(table);
  std::vector<Mask> masks;
  for (int group = 0; group < table.head_groups; ++group) {
    try {
      masks.push_back(mask_of(table, shape_, group));
    } catch (const InvalidArgument& error) {
      if (table.head_groups == 1) throw;
      const std::string text = error.what();  // ends with what was given, in parentheses
      throw InvalidArgument(fmt::format("{} of head group {})", text.substr(0, text.size() - 1), group));
    }
  }
  set(masks, stream);
}

void MaskBuffer::set_ranges(const RangeList& ranges, void* stream) {
  if (is_padded()) return set_data(ranges, stream);
  room_->check(ranges);
  set(mask_of(ranges, shape_), stream);
}

void MaskBuffer::set_data(const MaskData& data, void* stream) {
  if (capacity_.block_size > 0) schedule::check_is_blocks(data);
  backend_->install_device(*slot_, data, stream);
  ++num_masks_;
}

void MaskBuffer::check_errors() const { slot_->check_errors(); }

void MaskBuffer::reserve(const MaskCapacity& capacity) {
  require(!slot_->is_held_by_graphs(),
          "MaskBuffer::reserve: CUDA graphs that were captured with the buffer must be gone (got one that may be "
          "replayed)");
  *this = MaskBuffer(shape_, capacity, *backend_);
}

void MaskBuffer::check_call(const char* function, AttnPasses other) const {
  require(num_masks_ > 0, "{}: set() must come first (got none)", function);
  require(capacity_.passes != other, "{}: the buffer must be for this pass (got one for {} alone)", function,
          other == AttnPasses::kForward ? "forward" : "backward");
}

void MaskBuffer::forward(const AttnForwardArgs& args, void* stream) {
  check_call("MaskBuffer::forward", AttnPasses::kBackward);
  backend_->forward(*slot_, args, stream);
}

void MaskBuffer::backward(const AttnBackwardArgs& args, void* stream) {
  check_call("MaskBuffer::backward", AttnPasses::kForward);
  if (room_ != nullptr) room_->check(args);
  backend_->backward(*slot_, args, stream);
}

}  // namespace tangram
