// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward half of Sm90Backend: checks what callers pass, and translates it into kernel parameters.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "attn/gpu/argument_checks.hpp"
#include "attn/gpu/call_workspace.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/slot.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/forward/fill.hpp"
#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/kv_splits.hpp"

namespace tangram {
namespace {

using gpu::check_view;
using gpu::ForwardView;
using gpu::GpuSlot;
using schedule::packed_heads;
using sm90::ForwardParams;
using sm90::ForwardWorkTiles;

void check_forward(const AttnShape& shape, const AttnForwardArgs& args) {
  gpu::check_inputs("Sm90Backend", shape, args);
  check_view("Sm90Backend", "out", args.out, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  require(args.q.dtype == shape.dtype && args.k.dtype == shape.dtype && args.v.dtype == shape.dtype,
          "Sm90Backend: q, k and v must have the prepared dtype {} (got {}, {}, {})", to_string(shape.dtype),
          to_string(args.q.dtype), to_string(args.k.dtype), to_string(args.v.dtype));
  require(args.out.dtype == shape.dtype || args.out.dtype == DType::kFloat32,
          "Sm90Backend: out must be {} or float32 (got {})", to_string(shape.dtype), to_string(args.out.dtype));
  require(!args.accumulate || args.out.dtype == DType::kFloat32,
          "Sm90Backend: accumulate needs out in float32 (got {})", to_string(args.out.dtype));
  gpu::check_softmax("Sm90Backend", shape, args);
}

void fill_maps(ForwardParams& params, ForwardWorkTiles work_tiles, const AttnForwardArgs& args, int pack) {
  const int dim = args.q.dim, dim_v = args.v.dim;
  const bool exact = sm90::has_exact_kernels(dim, dim_v);
  const uint32_t panels = exact ? static_cast<uint32_t>(dim) / 64 : cuda::kAnyColumn;
  const auto tile_rows = static_cast<uint32_t>(sm90::forward_tile_rows(dim, dim_v, work_tiles));
  const auto tile_keys =
      static_cast<uint32_t>(sm90::forward_tile_keys(dim, dim_v, args.options.softcap > 0, work_tiles));
  const auto pack_heads = static_cast<uint32_t>(pack);
  params.q_map = sm90::token_map(args.q, {tile_rows / pack_heads, pack_heads, panels}, true);
  // Tensors that are never loaded or stored (no keys, out in float32) get the map of q, since prefetching needs a valid
  // descriptor.
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

ForwardParams forward_params(const GpuSlot& slot, const ForwardView& view, const AttnForwardArgs& args) {
  const AttnShape& shape = slot.shape();
  const ForwardWorkTiles work_tiles = view.choice.work_tiles;
  const int pack = packed_heads(slot.kernels(), shape, work_tiles);
  ForwardParams params{};
  params.work_tiles = view.work_tiles;
  params.runs = view.runs;
  params.intervals = view.intervals;
  params.counters = view.counters;
  params.num_work_tiles = view.num_work_tiles;
  params.work_tile_groups = view.work_tile_groups;
  params.num_groups = view.num_groups;
  params.groups_per_section = view.groups_per_section;
  const gpu::DeviceKeySources& sources = slot.forward_sources();
  params.local_ranges = sources.local_params("Sm90Backend", shape, args.k_local, args.v_local, args.local_kv_table);
  fill_maps(params, work_tiles, args, pack);
  params.out = args.out.data;
  params.lse = args.lse;
  params.max_logits = args.max_logits;
  params.sink = args.sink.empty() ? nullptr : args.sink.data;
  params.out_row_stride = args.out.row_stride;
  params.out_head_stride = args.out.head_stride;
  params.lse_row_stride = shape.num_heads_q;
  while (1 << params.pack_log2 < pack) ++params.pack_log2;
  params.packing = sm90::packing_of(static_cast<uint32_t>(pack));
  params.heads_per_kv = shape.num_heads_q / shape.num_heads_kv;
  params.num_heads_q = shape.num_heads_q;
  params.seqlen_k = static_cast<int32_t>(shape.seqlen_k);
  params.softmax_scale = args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
  params.softcap = args.options.softcap;
  const bool softcap = params.softcap > 0;
  params.inner_scale = softcap ? params.softmax_scale / params.softcap : 0.0f;
  params.exp_scale = (softcap ? 1.0f : params.softmax_scale) * std::numbers::log2e_v<float>;
  // Probabilities may grow to 2^8 before the reference follows. max_logits needs the true maximum as reference.
  params.rescale_threshold = softcap || args.max_logits == nullptr ? 8.0f / params.exp_scale : 0.0f;
  params.num_sinks = static_cast<int32_t>(args.sink.seqlen_sink);
  params.sink_per_row = args.sink.layout == SinkLayout::kSsh;
  params.accumulate = args.accumulate;
  params.ready_flags = sources.flag_params(args.ready_flags);
  params.head_dim_v = shape.head_dim_v;
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

PartResults place_parts(const AttnShape& shape, int64_t num_rows, void* workspace) {
  // Few different sizes, as in NOTE [capacity].
  const size_t part_rows = std::bit_ceil(static_cast<size_t>(num_rows));
  const size_t rows = part_rows * static_cast<size_t>(shape.num_heads_q);
  cuda::ScratchLayout layout(workspace);
  PartResults results;
  results.out = layout.take<float>(rows * static_cast<size_t>(shape.head_dim_v));
  results.lse = layout.take<float>(rows);
  results.bytes = layout.bytes();
  return results;
}

/// Parts into the workspace, from there into what `params` say.
void launch_in_parts(const GpuSlot& slot, const ForwardView& view, sm90::ForwardVariant variant,
                     const ForwardParams& params, int num_ctas, void* workspace, cudaStream_t stream) {
  const AttnShape& shape = slot.shape();
  const PartResults parts = place_parts(shape, view.num_part_rows, workspace);
  variant.parts = true;
  ForwardParams part_params = params;
  part_params.part_rows = view.part_rows;
  part_params.part_out = parts.out;
  part_params.part_lse = parts.lse;
  sm90::launch_forward(variant, part_params, num_ctas, stream);
  sm90::launch_merge(
      variant, params,
      {parts.out, parts.lse, view.part_tiles, view.num_part_tiles,
       schedule::forward_tile(slot.kernels(), shape).block_m, shape.num_heads_q / view.num_masks, view.part_heads},
      stream);
}

size_t forward_workspace_bytes(const GpuSlot& slot) {
  const int64_t rows = slot.parts().has(MaskPart::kForward) ? slot.forward_view().num_part_rows : 0;
  return rows == 0 ? 0 : place_parts(slot.shape(), rows, nullptr).bytes;
}

}  // namespace

int64_t Sm90Backend::workspace_bytes(const MaskSlot& slot, AttnPass pass) const {
  const GpuSlot& own = gpu::as_gpu_slot(slot);
  return static_cast<int64_t>(pass == AttnPass::kForward ? forward_workspace_bytes(own)
                                                         : own.backward_workspace_bytes());
}

void Sm90Backend::forward(MaskSlot& given, const AttnForwardArgs& args, void* stream) const {
  const GpuSlot& slot = gpu::as_gpu_slot(given);
  const AttnShape& shape = slot.shape();
  slot.check_forward("Sm90Backend::forward");
  check_forward(shape, args);
  const auto cuda_stream = cuda::as_stream(stream);
  const ForwardView view = slot.forward_view();
  const size_t needed = view.num_part_tiles > 0 ? place_parts(shape, view.num_part_rows, nullptr).bytes : 0;
  const gpu::CallWorkspace workspace("Sm90Backend::forward", args.workspace, static_cast<int64_t>(needed), cuda_stream);
  const cuda::ProfileRange range("tangram: attention forward");
  if (args.max_logits != nullptr && !args.accumulate) {
    sm90::fill_minus_infinity(args.max_logits, shape.num_heads_q, cuda_stream);
  }
  const schedule::ForwardChoice& choice = view.choice;
  const ForwardParams params = forward_params(slot, view, args);
  if (params.num_work_tiles == 0) return;
  slot.before_forward(cuda_stream);
  const int64_t work = int64_t{params.num_work_tiles} * params.num_groups;
  const int free_sms = std::max(gpu::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const int ctas = static_cast<int>(std::min<int64_t>(free_sms, work));
  const sm90::ForwardVariant variant{
      .half = shape.dtype == DType::kFloat16,
      .head_dim = shape.head_dim,
      .head_dim_v = shape.head_dim_v,
      .softcap = params.softcap > 0,
      .many = choice.work_tiles == ForwardWorkTiles::kMany,
      .any_pack = packed_heads(slot.kernels(), shape, choice.work_tiles) != packed_heads(shape),
      .many_runs = choice.many_runs,
      .aligned = choice.work_tiles == ForwardWorkTiles::kAligned};
  if (view.num_part_tiles > 0) {
    launch_in_parts(slot, view, variant, params, ctas, workspace.data(), cuda_stream);
  } else if (choice.gathers) {
    sm90::launch_gathered(variant, gathered_params(view.key_groups, params, args), ctas, cuda_stream);
  } else {
    sm90::launch_forward(variant, params, ctas, cuda_stream);
  }
}

}  // namespace tangram
