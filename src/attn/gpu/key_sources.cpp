// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/key_sources.hpp"

#include <algorithm>
#include <utility>

#include "core/require.hpp"

namespace tangram::gpu {

KeySources::KeySources(const MaskRequest& request) {
  if (!request.ready_flags.empty()) awaited = schedule::AwaitedKeys(request.ready_flags, request.shape.seqlen_k);
  for (const LocalKvRange& range : request.local_ranges) {
    if (!range.keys.empty()) num_local_rows = std::max(num_local_rows, range.row + range.keys.size());
  }
  if (!request.local_ranges.empty()) local = local_ranges_of_granules(request.local_ranges, request.shape.seqlen_k);
}

DeviceKeySources::DeviceKeySources(const KeySources& sources)
    : all_flags_(sources.awaited.all()), num_local_rows_(sources.num_local_rows) {
  if (awaits_keys()) {
    needed_ = arrays_.add(sources.awaited.needed());
    flags_ = arrays_.add(sources.awaited.flags());
  }
  if (num_local_rows_ > 0) of_granule_ = arrays_.add(sources.local);
  if (awaits_keys() || num_local_rows_ > 0) arrays_.upload();
}

ReadyFlagParams DeviceKeySources::flag_params(const KvReadyFlags* ready_flags) const {
  if (ready_flags == nullptr || !awaits_keys()) return {};
  return {*ready_flags, arrays_.at<uint64_t>(needed_), arrays_.at<int32_t>(flags_), all_flags_};
}

LocalKvParams DeviceKeySources::local_params(const char* function, const AttnShape& shape, const ConstTensorView& k,
                                             const ConstTensorView& v, const void* table) const {
  const int64_t num_rows = table != nullptr ? 0 : num_local_rows_;
  if (table == nullptr && (num_local_rows_ == 0 || (k.data == nullptr && v.data == nullptr))) return {};
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
  return {table != nullptr ? static_cast<const GranuleRange*>(table) : arrays_.at<GranuleRange>(of_granule_)};
}

}  // namespace tangram::gpu
