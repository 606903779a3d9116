// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/prepared_mask.hpp"

#include <utility>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/packing.hpp"
#include "core/require.hpp"

namespace tangram::sm90 {

const Sm90Mask& as_sm90(const PreparedMask& mask) {
  const auto* prepared = dynamic_cast<const Sm90Mask*>(&mask);
  require(prepared != nullptr, "Sm90Backend: the mask must have been prepared by this backend (got another's)");
  return *prepared;
}

Sm90Mask& as_sm90(PreparedMask& mask) { return const_cast<Sm90Mask&>(as_sm90(std::as_const(mask))); }

void check_tiles(const char* function, const TileList& tiles, const AttnShape& shape, const TileShape& tile) {
  require(tiles.shape == tile, "{}: needs a tile list of tile_shape(shape), {} rows by {} keys (got {} by {})",
          function, tile.block_m, tile.block_n, tiles.shape.block_m, tiles.shape.block_n);
  require(tiles.seqlen_q == shape.seqlen_q && tiles.seqlen_k == shape.seqlen_k,
          "{}: the tile list must be of the shape's sequences {}, {} (got {}, {})", function, shape.seqlen_q,
          shape.seqlen_k, tiles.seqlen_q, tiles.seqlen_k);
  const int64_t groups = shape.num_heads_q / packed_heads(shape, plain_work_tiles(shape));
  require(static_cast<int64_t>(tiles.work_tiles.size()) * groups < (int64_t{1} << 31) - 65536,
          "{}: tiles times head groups must stay below 2^31 (got {} and {})", function, tiles.work_tiles.size(),
          groups);
}

void check_transposed_tiles(const char* function, const AttnShape& shape, const TileList& tiles) {
  require(tiles.shape == backward::kTileShape && tiles.seqlen_q == shape.seqlen_k && tiles.seqlen_k == shape.seqlen_q,
          "{}: needs a tile list of the transposed mask, of backward_tile_shape(shape) (got {} by {} over {} by {} "
          "rows)",
          function, tiles.shape.block_m, tiles.shape.block_n, tiles.seqlen_q, tiles.seqlen_k);
}

void check_buffer(const char* function, const Sm90Mask& mask, AttnPasses other) {
  if (!mask.is_buffer()) return;
  require(mask.capacity().passes != other, "{}: the MaskBuffer must be for this pass (got one for {} alone)", function,
          other == AttnPasses::kForward ? "forward" : "backward");
  require(mask.buffer != nullptr ? mask.buffer->is_set() : mask.block_buffer->is_set(),
          "{}: MaskBuffer::set() must come first (got none)", function);
  mask.buffer != nullptr ? mask.buffer->check_refused() : mask.block_buffer->check_refused();
}

LocalKvParams local_kv_params(const char* function, const Sm90Mask& mask, const ConstTensorView& k,
                              const ConstTensorView& v, const void* table) {
  const AttnShape& shape = mask.shape;
  const int64_t num_rows = table != nullptr ? 0 : mask.local_ranges.num_rows();
  if (table == nullptr && (mask.local_ranges.empty() || (k.data == nullptr && v.data == nullptr))) return {};
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
  return table != nullptr ? LocalKvParams{static_cast<const GranuleRange*>(table)} : mask.local_ranges.params();
}

}  // namespace tangram::sm90
