// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward half of Sm90Backend: checks what callers pass, and translates it into kernel parameters.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/gpu/argument_checks.hpp"
#include "attn/gpu/backward_scratch.hpp"
#include "attn/gpu/call_workspace.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/slot.hpp"
#include "attn/sm90/backward/launch.hpp"
#include "attn/sm90/backward/pre_post_arguments.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/query_backward/call.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram {
namespace {

using gpu::BackwardView;
using gpu::check_view;
using gpu::GpuSlot;
using sm90::backward::grad_type;
using sm90::backward::Params;
using sm90::backward::PrePostParams;

constexpr const char* kFunction = "Sm90Backend::backward";

void check_dtype(const char* name, DType dtype, DType prepared, bool float32_too) {
  require(dtype == prepared || (float32_too && dtype == DType::kFloat32),
          "Sm90Backend::backward: {} must have the prepared dtype {}{} (got {})", name, to_string(prepared),
          float32_too ? " or float32" : "", to_string(dtype));
}

void check_tensors(const AttnShape& shape, const AttnBackwardArgs& args) {
  gpu::check_inputs(kFunction, shape, args);
  const bool reads_out = args.delta == nullptr;
  if (reads_out) check_view(kFunction, "out", args.out, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  check_view(kFunction, "dout", args.dout, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  check_view(kFunction, "dq", args.dq, shape.seqlen_q, shape.num_heads_q, shape.head_dim);
  const bool anywhere = args.places.of_key != nullptr;
  check_view(kFunction, "dk", args.dk, anywhere ? args.dk.rows : shape.seqlen_k, shape.num_heads_kv, shape.head_dim);
  check_view(kFunction, "dv", args.dv, anywhere ? args.dv.rows : shape.seqlen_k, shape.num_heads_kv, shape.head_dim_v);
  check_dtype("q", args.q.dtype, shape.dtype, false);
  check_dtype("k", args.k.dtype, shape.dtype, false);
  check_dtype("v", args.v.dtype, shape.dtype, false);
  check_dtype("dout", args.dout.dtype, shape.dtype, false);
  if (reads_out) check_dtype("out", args.out.dtype, shape.dtype, true);
  check_dtype("dq", args.dq.dtype, shape.dtype, true);
  check_dtype("dk", args.dk.dtype, shape.dtype, true);
  require(args.dv.dtype == args.dk.dtype, "Sm90Backend::backward: dk and dv must have one dtype (got {} and {})",
          to_string(args.dk.dtype), to_string(args.dv.dtype));
}

/// `view` holds rows in the place of those of `gradient`.
void check_final(const AttnShape& shape, const char* name, const TensorView& gradient, const TensorView& view) {
  check_view(kFunction, name, view, view.rows, gradient.heads, gradient.dim);
  check_dtype(name, view.dtype, shape.dtype, true);
  require(view.row_stride == gradient.row_stride && view.head_stride == gradient.head_stride,
          "Sm90Backend::backward: {} must have the strides {} and {} of the gradient (got {} and {})", name,
          gradient.row_stride, gradient.head_stride, view.row_stride, view.head_stride);
}

void check_places(const AttnShape& shape, const AttnBackwardArgs& args) {
  const DkvScatterMap& places = args.places;
  require(places.of_key == nullptr || !args.accumulate_dkv,
          "Sm90Backend::backward: places must be given without accumulate_dkv");
  require((places.dk_others == nullptr) == (places.dv_others == nullptr),
          "Sm90Backend::backward: dk_others and dv_others must be given together");
  const TensorView &dk = places.dk_final, &dv = places.dv_final;
  if (dk.data == nullptr && dv.data == nullptr) return;
  require(dk.data != nullptr && dv.data != nullptr && (places.of_key != nullptr || shape.seqlen_k == 0),
          "Sm90Backend::backward: dk_final and dv_final must be given together, with places");
  check_final(shape, "dk_final", args.dk, dk);
  check_final(shape, "dv_final", args.dv, dv);
  require(dk.dtype == dv.dtype, "Sm90Backend::backward: dk_final and dv_final must have one dtype (got {} and {})",
          to_string(dk.dtype), to_string(dv.dtype));
  require(dk.rows == dv.rows, "Sm90Backend::backward: dk_final and dv_final must have as many rows (got {} and {})",
          dk.rows, dv.rows);
}

void check_backward(const AttnShape& shape, const AttnBackwardArgs& args) {
  check_tensors(shape, args);
  require(!args.accumulate_dq || args.dq.dtype == DType::kFloat32,
          "Sm90Backend::backward: accumulate_dq needs dq in float32 (got {})", to_string(args.dq.dtype));
  require(!args.accumulate_dkv || args.dk.dtype == DType::kFloat32,
          "Sm90Backend::backward: accumulate_dkv needs dk and dv in float32 (got {})", to_string(args.dk.dtype));
  check_places(shape, args);
  gpu::check_softmax(kFunction, shape, args);
  require(args.dsink == nullptr || !args.sink.empty(), "Sm90Backend::backward: dsink needs a sink (got none)");
}

/// Maps of boxes of `rows` rows, for kernels of exactly this shape or of any of its class. A tensor without rows is
/// never loaded from and keeps an empty map.
void fill_map(sm90::TensorMap& to, const AttnShape& shape, const ConstTensorView& view, int rows) {
  if (view.rows == 0) return;
  const bool exact = sm90::has_exact_kernels(shape.head_dim, shape.head_dim_v);
  const uint32_t panels = exact ? static_cast<uint32_t>(view.dim) / 64 : cuda::kAnyColumn;
  to = sm90::token_map(view, {static_cast<uint32_t>(rows), 1, panels}, false);
}

/// Whether a call uses the kernel with softcap. The other kernel compares lse / softmax_scale with q.k; if that might
/// overflow, scores are too small for any cap to matter.
bool takes_softcap(const AttnOptions& options, float softmax_scale) {
  return options.softcap > 0 || softmax_scale < 1e-30f;
}

void fill_params(Params& params, const AttnShape& shape, const AttnBackwardArgs& args) {
  fill_map(params.q_map, shape, args.q, sm90::backward::kTileShape.block_n);
  fill_map(params.dout_map, shape, args.dout, sm90::backward::kTileShape.block_n);
  fill_map(params.k_map, shape, args.k, sm90::backward::kTileShape.block_m);
  fill_map(params.v_map, shape, args.v, sm90::backward::kTileShape.block_m);
  if (params.local_ranges.of_granule != nullptr) {
    fill_map(params.k_local_map, shape, args.k_local, sm90::backward::kTileShape.block_m);
    fill_map(params.v_local_map, shape, args.v_local, sm90::backward::kTileShape.block_m);
  }
  params.dk = args.dk.data;
  params.dv = args.dv.data;
  params.places = args.places.of_key;
  params.dk_final = args.places.dk_final.data;
  params.dv_final = args.places.dv_final.data;
  params.dk_others = args.places.dk_others;
  params.dv_others = args.places.dv_others;
  params.final_type = grad_type(args.places.dk_final);
  params.dk_row_stride = args.dk.row_stride;
  params.dk_head_stride = args.dk.head_stride;
  params.dv_row_stride = args.dv.row_stride;
  params.dv_head_stride = args.dv.head_stride;
  params.softmax_scale = args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
  params.scale_log2 = params.softmax_scale * std::numbers::log2e_v<float>;
  const float softcap = args.options.softcap > 0 ? args.options.softcap : 1.0f;
  params.cap_inner = params.softmax_scale / softcap;
  params.cap_outer = softcap * std::numbers::log2e_v<float>;
  params.dkv_type = grad_type(args.dk);
  params.accumulate_dkv = args.accumulate_dkv;
  params.head_dim = shape.head_dim;
  params.head_dim_v = shape.head_dim_v;
}

void fill_lists(Params& params, PrePostParams& pre_post, const BackwardView& view) {
  params.work_tiles = view.work_tiles;
  params.runs = view.runs;
  params.run_tiles = view.run_tiles;
  params.q_tiles = pre_post.q_tiles = view.q_tiles;
  params.intervals = view.intervals;
  params.covered_queries = view.covered_queries;
  pre_post.covered_queries = view.covered_queries_pre_post;
  params.dq_order_segments = view.dq_order_segments;
  params.mask_info = pre_post.mask_info = view.mask_info;
  params.zeroed_sums = pre_post.zeroed_sums = view.zeroed_sums;
  params.num_work_tiles = view.num_work_tiles;
  params.num_q_tiles = view.q_tile_stride;
  pre_post.num_q_tiles = view.num_q_tiles;
  pre_post.heads_per_mask = view.heads_per_mask;
  pre_post.num_accum_tiles = view.num_accum_tiles;
  params.walk = view.walk;
  const gpu::BackwardScratch& scratch = view.scratch;
  params.stats = pre_post.stats = scratch.stats;
  params.dq_sums = pre_post.dq_sums = scratch.dq_sums;
  params.accum_tiles = scratch.accum_tiles;
  params.dq_semaphore = pre_post.dq_semaphore = scratch.dq_semaphore;
  params.split_semaphore = pre_post.split_semaphore = scratch.split_semaphore;
  params.ticket = pre_post.ticket = scratch.ticket;
}

void fill_edge(PrePostParams& pre_post, const AttnShape& shape, const AttnBackwardArgs& args, float softmax_scale) {
  sm90::backward::fill_rows(pre_post, args);
  pre_post.delta = args.delta;
  pre_post.dq = args.dq.data;
  pre_post.dq_row_stride = args.dq.row_stride;
  pre_post.dq_head_stride = args.dq.head_stride;
  pre_post.num_heads_q = shape.num_heads_q;
  pre_post.softmax_scale = softmax_scale;
  pre_post.lse_factor =
      takes_softcap(args.options, softmax_scale) ? -std::numbers::log2e_v<float> : -1.0f / softmax_scale;
  pre_post.dq_type = grad_type(args.dq);
  pre_post.accumulate_dq = args.accumulate_dq;
  pre_post.head_dim = shape.head_dim;
  pre_post.head_dim_v = shape.head_dim_v;
  pre_post.keys_ready = args.keys_ready;
}

void launch_sink(const AttnShape& shape, const AttnBackwardArgs& args, const PrePostParams& pre_post,
                 cudaStream_t stream) {
  sm90::backward::SinkParams params{};
  params.sink = args.sink.data;
  params.dsink = args.dsink;
  params.stats = pre_post.stats;
  params.covered_queries = pre_post.covered_queries;
  params.q_tiles = pre_post.q_tiles;
  params.out = pre_post.out;
  params.dout = pre_post.dout;
  params.lse = pre_post.lse;
  params.delta = pre_post.delta;
  params.lse_log2_factor = std::numbers::log2e_v<float> / pre_post.lse_factor;
  params.out_row_stride = pre_post.out_row_stride;
  params.out_head_stride = pre_post.out_head_stride;
  params.dout_row_stride = pre_post.dout_row_stride;
  params.dout_head_stride = pre_post.dout_head_stride;
  params.out_float32 = pre_post.out_float32;
  params.half = shape.dtype == DType::kFloat16;
  params.head_dim_v = shape.head_dim_v;
  params.seqlen_q = shape.seqlen_q;
  params.num_q_tiles = pre_post.num_q_tiles;
  params.num_heads_q = shape.num_heads_q;
  params.heads_per_mask = pre_post.heads_per_mask;
  params.num_sinks = static_cast<int32_t>(args.sink.seqlen_sink);
  params.per_row = args.sink.layout == SinkLayout::kSsh;
  sm90::backward::launch_sink(params, stream);
}

}  // namespace

void Sm90Backend::backward(MaskSlot& given, const AttnBackwardArgs& args, void* stream) const {
  const GpuSlot& slot = gpu::as_gpu_slot(given);
  const AttnShape& shape = slot.shape();
  const bool deterministic = args.options.deterministic;
  slot.check_backward(kFunction, args);
  check_backward(shape, args);
  const auto cuda_stream = cuda::as_stream(stream);
  if (slot.is_sparse(args)) {
    const auto bytes = static_cast<int64_t>(gpu::place_sparse(shape, slot.kernels(), nullptr).bytes);
    const gpu::CallWorkspace workspace(kFunction, args.workspace, bytes, cuda_stream);
    const cuda::ProfileRange range("tangram: attention backward");
    slot.before_backward(args, cuda_stream);
    sm90::query_backward::enqueue(slot, args, workspace.data(), cuda_stream);
    return;
  }
  const auto needed = static_cast<int64_t>(slot.backward_workspace_bytes(deterministic));
  const gpu::CallWorkspace workspace(kFunction, args.workspace, needed, cuda_stream);
  const cuda::ProfileRange range("tangram: attention backward");
  const gpu::DeviceKeySources& sources = slot.backward_sources(deterministic);
  Params params{};
  PrePostParams pre_post{};
  params.local_ranges = sources.local_params(kFunction, shape, args.k_local, args.v_local, args.local_kv_table);
  fill_params(params, shape, args);
  params.ready_flags = sources.flag_params(args.ready_flags);
  fill_edge(pre_post, shape, args, params.softmax_scale);
  pre_post.always_zeroed = sm90::adds_dq_from_registers(shape.head_dim, shape.head_dim_v, deterministic);
  slot.before_backward(args, cuda_stream);
  const BackwardView view = slot.backward_view(deterministic, workspace.data());
  fill_lists(params, pre_post, view);
  const int64_t free_sms = std::max(gpu::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const int ctas = static_cast<int>(std::min<int64_t>(free_sms, view.most_work_tiles));
  if (args.dsink != nullptr) sm90::backward::load_sink();
  sm90::backward::launch({shape.dtype == DType::kFloat16, shape.head_dim, shape.head_dim_v,
                          takes_softcap(args.options, params.softmax_scale), deterministic},
                         params, pre_post, ctas, cuda_stream);
  if (args.dsink != nullptr) launch_sink(shape, args, pre_post, cuda_stream);
}

}  // namespace tangram
