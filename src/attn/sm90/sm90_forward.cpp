// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward half of Sm90Backend: checks what callers pass, and translates it into kernel parameters.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "attn/sm90/call_workspace.hpp"
#include "attn/sm90/common/argument_checks.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/forward/fill.hpp"
#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/packing.hpp"
#include "attn/sm90/prepared_mask.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"
#include "schedule/kv_splits.hpp"

namespace tangram {
namespace {

using sm90::check_buffer;
using sm90::check_view;
using sm90::ForwardLists;
using sm90::ForwardParams;
using sm90::ForwardWorkTiles;
using sm90::packed_heads;
using sm90::plain_work_tiles;
using sm90::Sm90Mask;
using sm90::work_tile_rows;

/// Steps of the longest work tile of a pack, over the mean: 3.2 to 5.8 of packs of log-normal lengths on ranks.
constexpr int64_t kLongestOfPacks = 5;

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

/// Those of the prepared lists.
ForwardWorkTiles work_tiles_of(const Sm90Mask& mask) {
  if (mask.block_buffer != nullptr) return mask.block_buffer->forward_work_tiles();
  if (mask.buffer != nullptr) return mask.buffer->forward_work_tiles();
  if (mask.forward && mask.forward->gathered) {
    return mask.forward->aligned ? ForwardWorkTiles::kAligned : ForwardWorkTiles::kGathered;
  }
  return plain_work_tiles(mask.shape);
}

void fill_maps(ForwardParams& params, const AttnShape& shape, ForwardWorkTiles work_tiles, const AttnForwardArgs& args,
               int pack) {
  const int dim = args.q.dim, dim_v = args.v.dim;
  const bool exact = sm90::has_exact_kernels(dim, dim_v);
  const uint32_t panels = exact ? static_cast<uint32_t>(dim) / 64 : cuda::kAnyColumn;
  const auto tile_rows = static_cast<uint32_t>(work_tile_rows(shape, work_tiles));
  const auto tile_keys =
      static_cast<uint32_t>(sm90::forward_tile_keys(dim, dim_v, args.options.softcap > 0, work_tiles));
  const auto pack_heads = static_cast<uint32_t>(pack);
  params.q_map = sm90::token_map(args.q, {tile_rows / pack_heads, pack_heads, panels}, true);
  // What is never loaded or stored has the map of q, since prefetching must see a valid descriptor: keys where there
  // are none, an output in float32.
  const auto keys_map = [&](const ConstTensorView& view) {
    return view.rows > 0 ? sm90::token_map(view, {tile_keys, 1, panels}, false) : params.q_map;
  };
  params.k_map = keys_map(args.k);
  params.v_map = keys_map(args.v);
  const bool elsewhere = params.local_ranges.of_granule != nullptr;
  params.k_local_map = elsewhere ? keys_map(args.k_local) : params.k_map;
  params.v_local_map = elsewhere ? keys_map(args.v_local) : params.v_map;
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
        sm90::groups_per_section(mask.shape, bytes_of_key(mask.shape), params.num_work_tiles, kLongestOfPacks, pack);
    return;
  }
  const ForwardLists& lists = *mask.forward;
  params.work_tiles = lists.arrays.at<MaskTile>(lists.work_tiles);
  params.runs = lists.arrays.at<TileRange>(lists.runs);
  params.intervals = lists.arrays.at<RowInterval>(lists.intervals);
  params.counters = lists.arrays.at<int32_t>(lists.counters);
  params.num_work_tiles = lists.num_work_tiles;
  params.work_tile_groups = lists.arrays.at<int32_t>(lists.work_tile_groups);
  if (params.work_tile_groups != nullptr) {
    params.num_groups = params.groups_per_section = 1;
    return;
  }
  params.groups_per_section =
      sm90::groups_per_section(mask.shape, bytes_of_key(mask.shape), lists.total_steps, lists.longest_steps, pack);
}

ForwardParams forward_params(const Sm90Mask& mask, const AttnForwardArgs& args) {
  const int pack = packed_heads(mask.shape, work_tiles_of(mask));
  ForwardParams params{};
  fill_lists(params, mask, pack);
  params.local_ranges = sm90::local_kv_params("Sm90Backend", mask, args.k_local, args.v_local, args.local_kv_table);
  fill_maps(params, mask.shape, work_tiles_of(mask), args, pack);
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
  params.rescale_threshold = softcap || args.max_logits == nullptr ? 8.0f / params.exp_scale : 0.0f;
  params.num_sinks = static_cast<int32_t>(args.sink.seqlen_sink);
  params.sink_per_row = args.sink.layout == SinkLayout::kSsh;
  params.accumulate = args.accumulate;
  params.ready_flags = mask.awaited_keys_on_device.params(args.ready_flags);
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
  if (params.local_ranges.of_granule != nullptr) {
    fill(gathered.local_kv_maps[0], args.k_local);
    fill(gathered.local_kv_maps[1], args.v_local);
  }
  return gathered;
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
  const ForwardWorkTiles work_tiles = plain_work_tiles(mask.shape);
  const int tile_rows = work_tile_rows(mask.shape, work_tiles) / packed_heads(mask.shape, work_tiles);
  const int num_masks = std::max(static_cast<int>(mask.head_slices.size()), 1);
  sm90::launch_merge(variant, params,
                     {parts.out, parts.lse, lists.arrays.at<schedule::TileParts>(lists.tiles), lists.num_part_tiles,
                      tile_rows, mask.shape.num_heads_q / num_masks, lists.arrays.at<int32_t>(lists.part_heads)},
                     stream);
}

}  // namespace

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
  if (params.num_work_tiles == 0) return;
  prepared.before_call(cuda_stream);
  if (prepared.forward) prepared.forward->arrays.before_call(cuda_stream);
  if (prepared.buffer != nullptr) prepared.buffer->keep_while_graph_lives(cuda_stream);
  if (prepared.block_buffer != nullptr) prepared.block_buffer->keep_while_graph_lives(cuda_stream);
  const int64_t work = int64_t{params.num_work_tiles} * params.num_groups;
  const int free_sms = std::max(sm90::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const int ctas = static_cast<int>(std::min<int64_t>(free_sms, work));
  const sm90::ForwardVariant variant{
      .half = prepared.shape.dtype == DType::kFloat16,
      .head_dim = prepared.shape.head_dim,
      .head_dim_v = prepared.shape.head_dim_v,
      .softcap = params.softcap > 0,
      .many = work_tiles_of(prepared) == ForwardWorkTiles::kMany,
      .any_pack = packed_heads(prepared.shape, work_tiles_of(prepared)) != packed_heads(prepared.shape),
      .many_runs = prepared.forward ? prepared.forward->many_runs : prepared.capacity().block_size > 0,
      .aligned = work_tiles_of(prepared) == ForwardWorkTiles::kAligned};
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
