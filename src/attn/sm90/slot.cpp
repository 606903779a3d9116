// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/slot.hpp"

#include <utility>

#include "core/require.hpp"

namespace tangram::sm90 {

const Sm90Slot& as_sm90(const MaskSlot& slot) {
  const auto* own = dynamic_cast<const Sm90Slot*>(&slot);
  require(own != nullptr, "Sm90Backend: the slot must be of this backend (got another's)");
  return *own;
}

Sm90Slot& as_sm90(MaskSlot& slot) { return const_cast<Sm90Slot&>(as_sm90(std::as_const(slot))); }

void Sm90Slot::install_device(const MaskData& /*data*/, cudaStream_t /*stream*/) {
  throw InvalidArgument("Sm90Backend::install_device: needs a padded slot (got an exact one)");
}

namespace {

const DeviceKeySources& no_sources() {
  static const DeviceKeySources kNone;
  return kNone;
}

}  // namespace

const DeviceKeySources& Sm90Slot::forward_sources() const { return no_sources(); }
const DeviceKeySources& Sm90Slot::backward_sources(bool /*deterministic*/) const { return no_sources(); }

LocalKvParams local_kv_params(const char* function, const AttnShape& shape, const DeviceKeySources& sources,
                              const ConstTensorView& k, const ConstTensorView& v, const void* table) {
  const DeviceLocalKvRanges& ranges = sources.local;
  const int64_t num_rows = table != nullptr ? 0 : ranges.num_rows();
  if (table == nullptr && (ranges.empty() || (k.data == nullptr && v.data == nullptr))) return {};
  for (const auto& [view, dim] : {std::pair{&k, shape.head_dim}, std::pair{&v, shape.head_dim_v}}) {
    const bool fits = view->data != nullptr && view->rows >= num_rows && view->heads == shape.num_heads_kv &&
                      view->dim == dim && view->dtype == shape.dtype;
    if (!fits) {
      require(fits, "{}: k_local and v_local must be {} with at least {} rows, {} heads and dim {} (got {}, {})",
              function, to_string(shape.dtype), num_rows, shape.num_heads_kv, dim, to_string(view->dtype),
              shape_text(*view));
    }
    require(reinterpret_cast<uintptr_t>(view->data) % 16 == 0 && view->row_stride * 2 % 16 == 0 &&
                view->head_stride * 2 % 16 == 0 && view->row_stride >= 0 && view->head_stride >= 0,
            "{}: k_local and v_local must be aligned to 16 bytes, with strides that are multiples of that (got "
            "{}, strides {} and {} elements)",
            function, view->data, view->row_stride, view->head_stride);
  }
  return table != nullptr ? LocalKvParams{static_cast<const GranuleRange*>(table)} : ranges.params();
}

}  // namespace tangram::sm90
