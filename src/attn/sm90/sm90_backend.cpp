// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Checks what callers pass, and translates it into kernel parameters.

#include "attn/sm90/sm90_backend.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "attn/sm90/call_workspace.hpp"
#include "attn/sm90/common/argument_checks.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/forward/fill.hpp"
#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/prepared_mask.hpp"
#include "attn/sm90/tiles_to_gather.hpp"
#include "core/ahead.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"
#include "schedule/split_or_gather.hpp"
#include "schedule/tile_list.hpp"

namespace tangram {
namespace {

using sm90::check_buffer;
using sm90::check_view;
using sm90::ForwardItems;
using sm90::ForwardLists;
using sm90::ForwardParams;
using sm90::packed_heads;
using sm90::plain_items;
using sm90::Sm90Mask;

void check_shape(const AttnShape& shape) {
  require(shape.dtype == DType::kBFloat16 || shape.dtype == DType::kFloat16,
          "Sm90Backend: dtype must be bfloat16 or float16 (got dtype={})", to_string(shape.dtype));
  require(sm90::find_shape_class(shape.head_dim, shape.head_dim_v) != nullptr,
          "Sm90Backend: head_dim and head_dim_v must be multiples of 8 up to {} (got head_dim={}, head_dim_v={})",
          sm90::kLargestHeadDim, shape.head_dim, shape.head_dim_v);
  require(shape.num_heads_q > 0 && shape.num_heads_kv > 0 && shape.num_heads_q % shape.num_heads_kv == 0,
          "Sm90Backend: num_heads_kv must divide num_heads_q (got num_heads_q={}, num_heads_kv={})", shape.num_heads_q,
          shape.num_heads_kv);
}

void check_forward(const AttnShape& shape, const AttnForwardArgs& args) {
  sm90::check_inputs("Sm90Backend", shape, args);
  check_view("Sm90Backend", "out", args.out, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  require(args.q.dtype == shape.dtype && args.k.dtype == shape.dtype && args.v.dtype == shape.dtype,
          "Sm90Backend: q, k and v must have the prepared dtype {} (got {}, {}, {})", to_string(shape.dtype),
          to_string(args.q.dtype), to_string(args.k.dtype), to_string(args.v.dtype));
  require(args.out.dtype == shape.dtype || args.out.dtype == DType::kFloat32,
          "Sm90Backend: out must be {} or float32 (got {})", to_string(shape.dtype), to_string(args.out.dtype));
  require(!args.accumulate || args.out.dtype == DType::kFloat32,
          "Sm90Backend: accumulate needs out in float32 (got {})", to_string(args.out.dtype));
  sm90::check_softmax("Sm90Backend", shape, args);
}

/// Tiles of a list that is worth waking a thread for.
constexpr int64_t kWorthAThread = 512;

/// Steps of the longest item of a pack, over the mean: 3.2 to 5.8 of packs of log-normal lengths on ranks.
constexpr int64_t kLongestOfPacks = 5;

/// Packed rows of an item, softcap or not.
int item_rows(const AttnShape& shape, ForwardItems items) {
  return sm90::forward_tile_rows(shape.head_dim, shape.head_dim_v, items);
}

/// Those of the prepared lists.
ForwardItems items_of(const Sm90Mask& mask) {
  if (mask.block_buffer != nullptr) return mask.block_buffer->forward_items();
  if (mask.buffer != nullptr) return mask.buffer->forward_items();
  if (mask.forward && mask.forward->gathered) {
    return mask.forward->aligned ? ForwardItems::kAligned : ForwardItems::kGathered;
  }
  return plain_items(mask.shape);
}

void fill_maps(ForwardParams& params, const AttnShape& shape, ForwardItems items, const AttnForwardArgs& args,
               int pack) {
  const int dim = args.q.dim, dim_v = args.v.dim;
  const bool exact = sm90::has_exact_kernels(dim, dim_v);
  const uint32_t panels = exact ? static_cast<uint32_t>(dim) / 64 : cuda::kAnyColumn;
  const auto tile_rows = static_cast<uint32_t>(item_rows(shape, items));
  const auto tile_keys = static_cast<uint32_t>(sm90::forward_tile_keys(dim, dim_v, args.options.softcap > 0, items));
  const auto pack_heads = static_cast<uint32_t>(pack);
  params.q_map = sm90::token_map(args.q, {tile_rows / pack_heads, pack_heads, panels}, true);
  // What is never loaded or stored has the map of q, since prefetching must see a valid descriptor: keys where there
  // are none, an output in float32.
  const auto keys_map = [&](const ConstTensorView& view) {
    return view.rows > 0 ? sm90::token_map(view, {tile_keys, 1, panels}, false) : params.q_map;
  };
  params.k_map = keys_map(args.k);
  params.v_map = keys_map(args.v);
  const bool elsewhere = params.stretches.of_granule != nullptr;
  params.k_elsewhere_map = elsewhere ? keys_map(args.k_elsewhere) : params.k_map;
  params.v_elsewhere_map = elsewhere ? keys_map(args.v_elsewhere) : params.v_map;
  // Where a warpgroup has no whole query rows they leave without it.
  params.out_map = args.out.dtype == args.q.dtype && 64 % pack == 0
                       ? sm90::token_map(args.out, {64 / pack_heads, pack_heads, exact ? 1 : cuda::kAnyColumn}, true)
                       : params.q_map;
}

/// In K and V.
int64_t bytes_of_key(const AttnShape& shape) { return int64_t{2} * (shape.head_dim + shape.head_dim_v); }

void fill_lists(ForwardParams& params, const Sm90Mask& mask, int pack) {
  if (mask.block_buffer != nullptr) return mask.block_buffer->fill(params);
  params.num_groups = mask.shape.num_heads_q / pack;
  if (mask.buffer != nullptr) {
    mask.buffer->fill(params);
    // The order of work must not depend on the mask that is there when a graph is captured: sections are as long as
    // those of packs.
    params.groups_per_section =
        sm90::groups_per_section(mask.shape, bytes_of_key(mask.shape), params.num_items, kLongestOfPacks, pack);
    return;
  }
  const ForwardLists& lists = *mask.forward;
  params.items = lists.arrays.at<TileItem>(lists.items);
  params.runs = lists.arrays.at<TileRun>(lists.runs);
  params.intervals = lists.arrays.at<RowInterval>(lists.intervals);
  params.counters = lists.arrays.at<int32_t>(lists.counters);
  params.num_items = lists.num_items;
  params.item_groups = lists.arrays.at<int32_t>(lists.item_groups);
  if (params.item_groups != nullptr) {
    params.num_groups = params.groups_per_section = 1;
    return;
  }
  params.groups_per_section =
      sm90::groups_per_section(mask.shape, bytes_of_key(mask.shape), lists.total_steps, lists.longest_steps, pack);
}

ForwardParams forward_params(const Sm90Mask& mask, const AttnForwardArgs& args) {
  const int pack = packed_heads(mask.shape, items_of(mask));
  ForwardParams params{};
  fill_lists(params, mask, pack);
  params.stretches = sm90::stretch_params("Sm90Backend", mask, args.k_elsewhere, args.v_elsewhere, args.stretch_table);
  fill_maps(params, mask.shape, items_of(mask), args, pack);
  params.out = args.out.data;
  params.lse = args.lse;
  params.max_logits = args.max_logits;
  params.sink = args.sink.empty() ? nullptr : args.sink.data;
  params.out_row_stride = args.out.row_stride;
  params.out_head_stride = args.out.head_stride;
  params.lse_row_stride = mask.shape.num_heads_q;
  while (1 << params.pack_log2 < pack) ++params.pack_log2;
  params.packing = sm90::packing_of(static_cast<uint32_t>(pack));
  params.heads_per_kv = mask.shape.num_heads_q / mask.shape.num_heads_kv;
  params.num_heads_q = mask.shape.num_heads_q;
  params.seqlen_k = static_cast<int32_t>(mask.shape.seqlen_k);
  params.softmax_scale = args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(mask.shape.head_dim)));
  params.softcap = args.options.softcap;
  const bool softcap = params.softcap > 0;
  params.inner_scale = softcap ? params.softmax_scale / params.softcap : 0.0f;
  params.exp_scale = (softcap ? 1.0f : params.softmax_scale) * std::numbers::log2e_v<float>;
  // Probabilities may grow to 2^8 before the reference follows. max_logits needs the true maximum as reference.
  params.slack = softcap || args.max_logits == nullptr ? 8.0f / params.exp_scale : 0.0f;
  params.num_sinks = static_cast<int32_t>(args.sink.seqlen_sink);
  params.sink_per_row = args.sink.layout == SinkLayout::kSsh;
  params.accumulate = args.accumulate;
  params.arrivals = mask.late_keys_on_device.params(args.arrivals);
  params.head_dim_v = mask.shape.head_dim_v;
  params.out_type = args.out.dtype == DType::kFloat32 ? sm90::OutType::kFloat32 : sm90::OutType::kInput;
  return params;
}

sm90::GatheredParams gathered_params(const int32_t* groups, const ForwardParams& params, const AttnForwardArgs& args) {
  sm90::GatheredParams gathered{};
  static_cast<ForwardParams&>(gathered) = params;
  gathered.groups = groups;
  const auto fill = [](sm90::TensorMap(&maps)[2], const ConstTensorView& view) {
    for (const bool large : {false, true}) {
      maps[large] = sm90::token_map(view, {large ? 64u : 16u, 1, 1}, false);
    }
  };
  fill(gathered.maps[0], args.k);
  fill(gathered.maps[1], args.v);
  if (params.stretches.of_granule != nullptr) {
    fill(gathered.elsewhere_maps[0], args.k_elsewhere);
    fill(gathered.elsewhere_maps[1], args.v_elsewhere);
  }
  return gathered;
}

ForwardLists upload_lists(const schedule::SplitOrGathered& chosen, ForwardItems gathered_items) {
  ForwardLists lists;
  const auto& [tiles, parts, gathered] = chosen;
  const TileList& dealt = parts ? parts->list : *tiles;
  lists.gathered = gathered.has_value();
  lists.aligned = gathered_items == ForwardItems::kAligned;
  lists.many_runs = !gathered && !parts && sm90::has_many_runs(dealt.items.size(), dealt.runs.size());
  const std::vector<TileItem>& items = gathered ? gathered->items : dealt.items;
  const std::vector<TileRun>& runs = gathered ? gathered->runs : dealt.runs;
  lists.num_items = static_cast<int32_t>(items.size());
  for (const TileItem& item : items) {
    const int64_t steps = schedule::item_steps(item, runs, dealt.shape.block_n);
    lists.total_steps += steps;
    lists.longest_steps = std::max(lists.longest_steps, steps);
  }
  lists.items = lists.arrays.add(items);
  lists.runs = lists.arrays.add(runs);
  if (gathered) lists.groups = lists.arrays.add(gathered->groups);
  lists.intervals = lists.arrays.add(dealt.intervals);
  lists.counters = lists.arrays.add_zeros<int32_t>(2);
  if (parts) {
    lists.part_rows = lists.arrays.add(parts->first_rows);
    lists.tiles = lists.arrays.add(parts->tiles);
    lists.num_part_tiles = static_cast<int32_t>(parts->tiles.size());
    lists.num_part_rows = parts->num_rows;
  }
  lists.arrays.upload();
  return lists;
}

/// Whether blocks fill the steps of kernels that do not gather, which are faster then, and are the same for all heads,
/// as these want them.
bool fills_steps(const MaskCapacity& capacity) {
  return capacity.block_size % sm90::backward::kTileShape.block_m == 0 && capacity.head_groups == 1;
}

/// Of a capacity for such blocks; `tile`: as masks without blocks have it.
std::unique_ptr<sm90::ListBuffer> make_buffer_of_large_blocks(const AttnShape& shape, const TileShape& tile,
                                                              const MaskCapacity& capacity) {
  MaskCapacity of_lists = capacity;
  // Lists count slices of 128 rows. Blocks begin where tiles do: documents of them need no more tiles.
  of_lists.slices = (capacity.slices == 0 ? capacity.documents : capacity.slices) *
                    (capacity.block_size / sm90::backward::kTileShape.block_m);
  of_lists.documents = 1;
  const sm90::GatheredItems larger = sm90::items_to_gather(capacity.block_size, shape);
  const bool aligned = larger.items == ForwardItems::kAligned;
  return std::make_unique<sm90::ListBuffer>(shape, aligned ? larger.tile : tile,
                                            aligned ? larger.items : plain_items(shape), of_lists);
}

/// Where parts leave their results: [rows, num_heads_q, head_dim_v] and [rows, num_heads_q].
struct PartResults {
  float* out = nullptr;
  float* lse = nullptr;
  size_t bytes = 0;
};

PartResults place_parts(const Sm90Mask& mask, void* workspace) {
  // Few different sizes, as in NOTE [capacity].
  const size_t part_rows = std::bit_ceil(static_cast<size_t>(mask.forward->num_part_rows));
  const size_t rows = part_rows * static_cast<size_t>(mask.shape.num_heads_q);
  cuda::ScratchLayout layout(workspace);
  PartResults results;
  results.out = layout.take<float>(rows * static_cast<size_t>(mask.shape.head_dim_v));
  results.lse = layout.take<float>(rows);
  results.bytes = layout.bytes();
  return results;
}

/// Parts into the workspace, from there into what `params` say.
void launch_in_parts(const Sm90Mask& mask, sm90::ForwardVariant variant, const ForwardParams& params, int num_ctas,
                     void* workspace, cudaStream_t stream) {
  const ForwardLists& lists = *mask.forward;
  const PartResults parts = place_parts(mask, workspace);
  variant.parts = true;
  ForwardParams part_params = params;
  part_params.part_rows = lists.arrays.at<int32_t>(lists.part_rows);
  part_params.part_out = parts.out;
  part_params.part_lse = parts.lse;
  sm90::launch_forward(variant, part_params, num_ctas, stream);
  const ForwardItems items = plain_items(mask.shape);
  const int tile_rows = item_rows(mask.shape, items) / packed_heads(mask.shape, items);
  const int num_masks = std::max(static_cast<int>(mask.head_slices.size()), 1);
  sm90::launch_merge(variant, params,
                     {parts.out, parts.lse, lists.arrays.at<schedule::TileParts>(lists.tiles), lists.num_part_tiles,
                      tile_rows, mask.shape.num_heads_q / num_masks, lists.arrays.at<int32_t>(lists.part_heads)},
                     stream);
}

}  // namespace

namespace sm90 {

const Sm90Mask& as_sm90(const PreparedMask& mask) {
  const auto* prepared = dynamic_cast<const Sm90Mask*>(&mask);
  require(prepared != nullptr, "Sm90Backend: the mask must have been prepared by this backend (got another's)");
  return *prepared;
}

int packed_heads(const AttnShape& shape) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  int pack = 1;
  while (pack < 64 && group % (2 * pack) == 0) pack *= 2;
  return pack;
}

int packed_heads(const AttnShape& shape, ForwardItems items) {
  const int power = packed_heads(shape);
  const bool gathers = items == ForwardItems::kGathered || items == ForwardItems::kAligned;
  if (gathers || !packs_any_heads(shape.head_dim, shape.head_dim_v)) return power;
  const int group = shape.num_heads_q / shape.num_heads_kv, rows = item_rows(shape, items);
  const auto fits = [&](int pack) { return group % pack == 0 && rows % pack <= rows / 32; };
  for (int pack = std::min(group, 64); pack > power; --pack) {
    if (fits(pack)) return pack;
  }
  return power;
}

ForwardItems plain_items(const AttnShape& shape) {
  return shape.seqlen_q * shape.num_heads_q >= kManyRows ? ForwardItems::kMany : ForwardItems::kPlain;
}

int32_t groups_per_section(const AttnShape& shape, int64_t bytes_of_key, int64_t total_steps, int64_t longest_steps,
                           int pack) {
  const GpuModel gpu = gpu_of_current_device();
  const int64_t head_bytes = std::max<int64_t>(shape.seqlen_k * bytes_of_key, 1);
  const int64_t fitting = std::clamp<int64_t>(kept_in_l2(gpu) / head_bytes, 1, shape.num_heads_kv);
  const int64_t groups_per_head = shape.num_heads_q / shape.num_heads_kv / pack;
  const int64_t head_steps = std::max<int64_t>(total_steps * groups_per_head, 1);
  const int64_t balanced = (4 * longest_steps * gpu.multiprocessors + head_steps - 1) / head_steps;
  const int64_t wanted = std::clamp<int64_t>(std::max(fitting, balanced), 1, shape.num_heads_kv);
  const int64_t sections = (shape.num_heads_kv + wanted - 1) / wanted;
  const int64_t heads = (shape.num_heads_kv + sections - 1) / sections;
  return static_cast<int32_t>(heads * groups_per_head);
}

void check_tiles(const char* function, const TileList& tiles, const AttnShape& shape, const TileShape& tile) {
  require(tiles.shape == tile, "{}: needs a tile list of tile_shape(shape), {} rows by {} keys (got {} by {})",
          function, tile.block_m, tile.block_n, tiles.shape.block_m, tiles.shape.block_n);
  require(tiles.seqlen_q == shape.seqlen_q && tiles.seqlen_k == shape.seqlen_k,
          "{}: the tile list must be of the shape's sequences {}, {} (got {}, {})", function, shape.seqlen_q,
          shape.seqlen_k, tiles.seqlen_q, tiles.seqlen_k);
  const int64_t groups = shape.num_heads_q / packed_heads(shape, plain_items(shape));
  require(static_cast<int64_t>(tiles.items.size()) * groups < (int64_t{1} << 31) - 65536,
          "{}: tiles times head groups must stay below 2^31 (got {} and {})", function, tiles.items.size(), groups);
}

Sm90Mask& as_sm90(PreparedMask& mask) { return const_cast<Sm90Mask&>(as_sm90(std::as_const(mask))); }

void check_buffer(const char* function, const Sm90Mask& mask, AttnPasses other) {
  if (!mask.is_buffer()) return;
  require(mask.capacity().passes != other, "{}: the MaskBuffer must be for this pass (got one for {} alone)", function,
          other == AttnPasses::kForward ? "forward" : "backward");
  require(mask.buffer != nullptr ? mask.buffer->is_set() : mask.block_buffer->is_set(),
          "{}: MaskBuffer::set() must come first (got none)", function);
  mask.buffer != nullptr ? mask.buffer->check_refused() : mask.block_buffer->check_refused();
}

StretchParams stretch_params(const char* function, const Sm90Mask& mask, const ConstTensorView& k,
                             const ConstTensorView& v, const void* table) {
  const AttnShape& shape = mask.shape;
  const int64_t num_rows = table != nullptr ? 0 : mask.stretches.num_rows();
  if (table == nullptr && (mask.stretches.empty() || (k.data == nullptr && v.data == nullptr))) return {};
  for (const auto& [view, dim] : {std::pair{&k, shape.head_dim}, std::pair{&v, shape.head_dim_v}}) {
    const bool fits = view->data != nullptr && view->rows >= num_rows && view->heads == shape.num_heads_kv &&
                      view->dim == dim && view->dtype == shape.dtype;
    if (!fits) {
      require(fits,
              "{}: k_elsewhere and v_elsewhere must be {} with at least {} rows, {} heads and dim {} (got {}, {})",
              function, to_string(shape.dtype), num_rows, shape.num_heads_kv, dim, to_string(view->dtype),
              shape_text(*view));
    }
    require(reinterpret_cast<uintptr_t>(view->data) % 16 == 0 && view->row_stride * 2 % 16 == 0 &&
                view->head_stride * 2 % 16 == 0 && view->row_stride >= 0 && view->head_stride >= 0,
            "{}: k_elsewhere and v_elsewhere must be aligned to 16 bytes, with strides that are multiples of that (got "
            "{}, strides {} and {} elements)",
            function, view->data, view->row_stride, view->head_stride);
  }
  return table != nullptr ? StretchParams{static_cast<const GranuleStretch*>(table)} : mask.stretches.params();
}

}  // namespace sm90

std::optional<TileShape> Sm90Backend::tile_shape(const AttnShape& shape) const {
  check_shape(shape);
  const ForwardItems items = plain_items(shape);
  return TileShape{item_rows(shape, items) / packed_heads(shape, items),
                   sm90::forward_tile_keys(shape.head_dim, shape.head_dim_v, false, items)};
}

std::unique_ptr<PreparedMask> Sm90Backend::prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                                   const TileList* tiles) const {
  const std::optional<TileShape> tile = tile_shape(shape);
  require_hopper();
  auto mask = std::make_unique<Sm90Mask>();
  mask->shape = shape;
  mask->slices.assign(slices.begin(), slices.end());
  if (tiles == nullptr) return mask;  // for backward() alone
  sm90::check_tiles("Sm90Backend::prepare", *tiles, shape, *tile);
  const int64_t groups = shape.num_heads_q / packed_heads(shape, plain_items(shape));
  const sm90::TilesToGather gatherable({tiles, 1}, {&slices, 1}, shape);
  const GpuModel gpu = sm90::gpu_of_current_device();
  mask->forward =
      upload_lists(schedule::split_or_gather({tiles, 1}, shape, groups, gpu, gatherable.view())[0], gatherable.items());
  if (mask->forward->in_parts()) {
    sm90::load_merge(shape.dtype == DType::kFloat16, shape.head_dim, shape.head_dim_v);
  }
  return mask;
}

std::unique_ptr<PreparedMask> Sm90Backend::make_buffer(const AttnShape& shape, const MaskCapacity& capacity) const {
  const std::optional<TileShape> tile = tile_shape(shape);
  require_hopper();
  auto mask = std::make_unique<Sm90Mask>();
  mask->shape = shape;
  if (capacity.block_size == 0) {
    mask->buffer = std::make_unique<sm90::ListBuffer>(shape, *tile, plain_items(shape), capacity);
  } else if (fills_steps(capacity)) {
    mask->buffer = make_buffer_of_large_blocks(shape, *tile, capacity);
  } else {
    mask->block_buffer =
        std::make_unique<sm90::BlockBuffer>(shape, capacity, sm90::items_to_gather(capacity.block_size, shape));
  }
  return mask;
}

void Sm90Backend::set_mask(PreparedMask& buffer, std::span<const AttnSlice> slices, int64_t num_keys,
                           void* stream) const {
  Sm90Mask& prepared = sm90::as_sm90(buffer);
  require(prepared.buffer != nullptr, "Sm90Backend::set_mask: needs a mask of make_buffer() (got one of prepare())");
  const MaskCapacity& capacity = prepared.buffer->capacity();
  const AttnShape& shape = prepared.shape;
  const TileShape tile = prepared.buffer->forward_tile();
  TileList tiles;
  const auto list_tiles = [&] {
    tiles = schedule::build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, tile);
    sm90::check_tiles("Sm90Backend::set_mask", tiles, shape, tile);
  };
  // Of many tiles another thread makes the list meanwhile. It takes a third of the time of what the backward pass
  // wants.
  std::optional<Ahead> beside;
  if (capacity.passes == AttnPasses::kBoth && shape.seqlen_q / tile.block_m >= kWorthAThread) {
    beside.emplace(list_tiles);
  } else if (capacity.passes != AttnPasses::kBackward) {
    list_tiles();
  }
  schedule::WorkList work;
  if (capacity.passes != AttnPasses::kForward) {
    TileList transposed =
        schedule::transposed_tile_list(slices, shape.seqlen_q, shape.seqlen_k, *backward_tile_shape(shape));
    std::erase_if(transposed.items, [&](const TileItem& item) { return item.row_begin >= num_keys; });
    work = schedule::make_work_list(
        transposed, slices, shape, sm90::gpu_of_current_device(), {},
        {.calls = capacity.deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault});
  }
  if (beside) beside->finish();
  prepared.buffer->set(tiles, work, cuda::as_stream(stream));
}

void Sm90Backend::set_block_masks(PreparedMask& buffer, std::span<const std::span<const AttnSlice>> masks,
                                  void* stream) const {
  Sm90Mask& prepared = sm90::as_sm90(buffer);
  require(prepared.capacity().block_size > 0,
          "Sm90Backend::set_block_masks: needs a mask of make_buffer() for blocks (got another)");
  if (prepared.buffer != nullptr) return set_mask(buffer, masks[0], prepared.shape.seqlen_k, stream);
  prepared.block_buffer->set(masks, cuda::as_stream(stream));
}

void Sm90Backend::set_mask_data(PreparedMask& buffer, const MaskData& data, void* stream) const {
  Sm90Mask& prepared = sm90::as_sm90(buffer);
  require(prepared.is_buffer(), "Sm90Backend::set_mask_data: needs a mask of make_buffer() (got one of prepare())");
  require(prepared.capacity().block_size == 0 || std::holds_alternative<BlockTable>(data),
          "MaskBuffer: a buffer made for blocks must get them by set_blocks() or set() (got others)");
  if (prepared.block_buffer != nullptr) return prepared.block_buffer->set(data, cuda::as_stream(stream));
  prepared.buffer->set(data, cuda::as_stream(stream));
}

void Sm90Backend::check_refused(const PreparedMask& buffer) const {
  const Sm90Mask& prepared = sm90::as_sm90(buffer);
  if (prepared.buffer != nullptr) prepared.buffer->check_refused();
  if (prepared.block_buffer != nullptr) prepared.block_buffer->check_refused();
}

void Sm90Backend::prepare_arrivals(PreparedMask& mask, std::span<const KeyArrival> arrivals) const {
  Sm90Mask& prepared = sm90::as_sm90(mask);
  prepared.late_keys = schedule::LateKeys(arrivals, prepared.shape.seqlen_k);
  prepared.late_keys_on_device = sm90::DeviceLateKeys(prepared.late_keys);
}

void Sm90Backend::prepare_stretches(PreparedMask& mask, std::span<const KeyStretch> stretches) const {
  Sm90Mask& prepared = sm90::as_sm90(mask);
  prepared.stretches = sm90::DeviceKeyStretches(stretches, prepared.shape.seqlen_k);
}

int64_t Sm90Backend::stretch_table_bytes(int64_t seqlen_k) const {
  const int64_t granules = (seqlen_k + sm90::kStretchGranule - 1) / sm90::kStretchGranule;
  return granules * static_cast<int64_t>(sizeof(sm90::GranuleStretch));
}

void Sm90Backend::write_stretch_table(std::span<const KeyStretch> stretches, int64_t seqlen_k, std::byte* to) const {
  const std::vector<sm90::GranuleStretch> table = sm90::stretches_of_granules(stretches, seqlen_k);
  std::copy(table.begin(), table.end(), reinterpret_cast<sm90::GranuleStretch*>(to));
}

int64_t Sm90Backend::forward_workspace_bytes(const PreparedMask& mask) const {
  const Sm90Mask& prepared = sm90::as_sm90(mask);
  return prepared.forward && prepared.forward->in_parts() ? static_cast<int64_t>(place_parts(prepared, nullptr).bytes)
                                                          : 0;
}

void Sm90Backend::forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream) const {
  const Sm90Mask& prepared = sm90::as_sm90(mask);
  require(prepared.forward.has_value() || prepared.is_buffer(),
          "Sm90Backend::forward: prepare() must have been given a tile list (got none)");
  check_buffer("Sm90Backend::forward", prepared, AttnPasses::kBackward);
  check_forward(prepared.shape, args);
  const auto cuda_stream = cuda::as_stream(stream);
  const sm90::CallWorkspace workspace("Sm90Backend::forward", args.workspace, forward_workspace_bytes(mask),
                                      cuda_stream);
  const cuda::ProfileRange range("tangram: attention forward");
  if (args.max_logits != nullptr && !args.accumulate) {
    sm90::fill_minus_infinity(args.max_logits, prepared.shape.num_heads_q, cuda_stream);
  }
  const ForwardParams params = forward_params(prepared, args);
  if (params.num_items == 0) return;
  prepared.before_call(cuda_stream);
  if (prepared.forward) prepared.forward->arrays.before_call(cuda_stream);
  if (prepared.buffer != nullptr) prepared.buffer->keep_while_graph_lives(cuda_stream);
  if (prepared.block_buffer != nullptr) prepared.block_buffer->keep_while_graph_lives(cuda_stream);
  const int64_t work = int64_t{params.num_items} * params.num_groups;
  const int free_sms = std::max(sm90::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const int ctas = static_cast<int>(std::min<int64_t>(free_sms, work));
  const sm90::ForwardVariant variant{
      .half = prepared.shape.dtype == DType::kFloat16,
      .head_dim = prepared.shape.head_dim,
      .head_dim_v = prepared.shape.head_dim_v,
      .softcap = params.softcap > 0,
      .many = items_of(prepared) == ForwardItems::kMany,
      .any_pack = packed_heads(prepared.shape, items_of(prepared)) != packed_heads(prepared.shape),
      .many_runs = prepared.forward ? prepared.forward->many_runs : prepared.capacity().block_size > 0,
      .aligned = items_of(prepared) == ForwardItems::kAligned};
  if (prepared.forward && prepared.forward->in_parts()) {
    launch_in_parts(prepared, variant, params, ctas, workspace.data(), cuda_stream);
  } else if (variant.aligned || (prepared.block_buffer && prepared.block_buffer->gathers()) ||
             (prepared.forward && prepared.forward->gathered)) {
    const int32_t* groups = nullptr;  // where nothing is gathered
    if (prepared.block_buffer != nullptr) groups = prepared.block_buffer->groups();
    if (prepared.forward) groups = prepared.forward->arrays.at<int32_t>(prepared.forward->groups);
    sm90::launch_gathered(variant, gathered_params(groups, params, args), ctas, cuda_stream);
  } else {
    sm90::launch_forward(variant, params, ctas, cuda_stream);
  }
}

}  // namespace tangram
