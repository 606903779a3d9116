// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward half of Sm80Backend: checks what callers pass, and translates it into kernel parameters.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/gpu/argument_checks.hpp"
#include "attn/gpu/call_workspace.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/slot.hpp"
#include "attn/sm80/launch.hpp"
#include "attn/sm80/sm80_backend.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram {
namespace {

using gpu::BackwardView;
using gpu::check_view;
using sm80::backward::GradType;
using sm80::backward::Params;
using sm80::backward::PrePostParams;
using sm80::backward::RowStatistics;

constexpr const char* kBackward = "Sm80Backend::backward";

void check_gradient_dtype(const char* name, DType dtype, DType prepared, bool float32_too) {
  require(dtype == prepared || (float32_too && dtype == DType::kFloat32),
          "{}: {} must have the prepared dtype {}{} (got {})", kBackward, name, to_string(prepared),
          float32_too ? " or float32" : "", to_string(dtype));
}

/// `view` holds rows in the place of those of `gradient`.
void check_final(const AttnShape& shape, const char* name, const TensorView& gradient, const TensorView& view) {
  check_view(kBackward, name, view, view.rows, gradient.heads, gradient.dim);
  check_gradient_dtype(name, view.dtype, shape.dtype, true);
  require(view.row_stride == gradient.row_stride && view.head_stride == gradient.head_stride,
          "{}: {} must have the strides {} and {} of the gradient (got {} and {})", kBackward, name,
          gradient.row_stride, gradient.head_stride, view.row_stride, view.head_stride);
}

void check_places(const AttnShape& shape, const AttnBackwardArgs& args) {
  const DkvScatterMap& places = args.places;
  require(places.of_key == nullptr || !args.accumulate_dkv, "{}: places must be given without accumulate_dkv",
          kBackward);
  require((places.dk_others == nullptr) == (places.dv_others == nullptr),
          "{}: dk_others and dv_others must be given together", kBackward);
  const TensorView &dk = places.dk_final, &dv = places.dv_final;
  if (dk.data == nullptr && dv.data == nullptr) return;
  require(dk.data != nullptr && dv.data != nullptr && (places.of_key != nullptr || shape.seqlen_k == 0),
          "{}: dk_final and dv_final must be given together, with places", kBackward);
  check_final(shape, "dk_final", args.dk, dk);
  check_final(shape, "dv_final", args.dv, dv);
  require(dk.dtype == dv.dtype && dk.rows == dv.rows,
          "{}: dk_final and dv_final must have one dtype and as many rows (got {} and {}, {} and {})", kBackward,
          to_string(dk.dtype), to_string(dv.dtype), dk.rows, dv.rows);
}

void check_backward(const AttnShape& shape, const AttnBackwardArgs& args) {
  gpu::check_inputs(kBackward, shape, args);
  const bool reads_out = args.delta == nullptr;
  if (reads_out) check_view(kBackward, "out", args.out, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  check_view(kBackward, "dout", args.dout, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  check_view(kBackward, "dq", args.dq, shape.seqlen_q, shape.num_heads_q, shape.head_dim);
  const bool anywhere = args.places.of_key != nullptr;
  check_view(kBackward, "dk", args.dk, anywhere ? args.dk.rows : shape.seqlen_k, shape.num_heads_kv, shape.head_dim);
  check_view(kBackward, "dv", args.dv, anywhere ? args.dv.rows : shape.seqlen_k, shape.num_heads_kv, shape.head_dim_v);
  check_gradient_dtype("q", args.q.dtype, shape.dtype, false);
  check_gradient_dtype("k", args.k.dtype, shape.dtype, false);
  check_gradient_dtype("v", args.v.dtype, shape.dtype, false);
  check_gradient_dtype("dout", args.dout.dtype, shape.dtype, false);
  if (reads_out) check_gradient_dtype("out", args.out.dtype, shape.dtype, true);
  check_gradient_dtype("dq", args.dq.dtype, shape.dtype, true);
  check_gradient_dtype("dk", args.dk.dtype, shape.dtype, true);
  require(args.dv.dtype == args.dk.dtype, "{}: dk and dv must have one dtype (got {} and {})", kBackward,
          to_string(args.dk.dtype), to_string(args.dv.dtype));
  require(!args.accumulate_dq || args.dq.dtype == DType::kFloat32, "{}: accumulate_dq needs dq in float32 (got {})",
          kBackward, to_string(args.dq.dtype));
  require(!args.accumulate_dkv || args.dk.dtype == DType::kFloat32,
          "{}: accumulate_dkv needs dk and dv in float32 (got {})", kBackward, to_string(args.dk.dtype));
  check_places(shape, args);
  gpu::check_softmax(kBackward, shape, args);
  require(args.dsink == nullptr || !args.sink.empty(), "{}: dsink needs a sink (got none)", kBackward);
}

GradType type_of(const TensorView& view) {
  return view.dtype == DType::kFloat32 ? GradType::kFloat32 : GradType::kInput;
}

void fill_params(Params& params, const AttnShape& shape, const AttnBackwardArgs& args) {
  params.q = args.q.data, params.k = args.k.data, params.v = args.v.data, params.dout = args.dout.data;
  params.k_local = args.k_local.data, params.v_local = args.v_local.data;
  params.dk = args.dk.data, params.dv = args.dv.data;
  params.places = args.places.of_key;
  params.dk_final = args.places.dk_final.data, params.dv_final = args.places.dv_final.data;
  params.dk_others = args.places.dk_others, params.dv_others = args.places.dv_others;
  params.final_type = type_of(args.places.dk_final);
  params.q_row_stride = args.q.row_stride, params.q_head_stride = args.q.head_stride;
  params.k_row_stride = args.k.row_stride, params.k_head_stride = args.k.head_stride;
  params.v_row_stride = args.v.row_stride, params.v_head_stride = args.v.head_stride;
  params.dout_row_stride = args.dout.row_stride, params.dout_head_stride = args.dout.head_stride;
  params.dk_row_stride = args.dk.row_stride, params.dk_head_stride = args.dk.head_stride;
  params.dv_row_stride = args.dv.row_stride, params.dv_head_stride = args.dv.head_stride;
  params.head_dim = shape.head_dim, params.head_dim_v = shape.head_dim_v;
  params.softmax_scale = args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
  params.scale_log2 = params.softmax_scale * std::numbers::log2e_v<float>;
  const float softcap = args.options.softcap > 0 ? args.options.softcap : 1.0f;
  params.cap_inner = params.softmax_scale / softcap;
  params.cap_outer = softcap * std::numbers::log2e_v<float>;
  params.dkv_type = type_of(args.dk);
  params.accumulate_dkv = args.accumulate_dkv;
  params.deterministic = args.options.deterministic;
}

void fill_pre_post(PrePostParams& pre_post, const AttnShape& shape, const AttnBackwardArgs& args, float scale) {
  pre_post.out = args.out.data, pre_post.dout = args.dout.data, pre_post.dq = args.dq.data;
  pre_post.lse = args.lse, pre_post.delta = args.delta;
  pre_post.out_row_stride = args.out.row_stride, pre_post.out_head_stride = args.out.head_stride;
  pre_post.dout_row_stride = args.dout.row_stride, pre_post.dout_head_stride = args.dout.head_stride;
  pre_post.dq_row_stride = args.dq.row_stride, pre_post.dq_head_stride = args.dq.head_stride;
  pre_post.out_float32 = args.delta == nullptr && args.out.dtype == DType::kFloat32;
  pre_post.num_heads_q = shape.num_heads_q;
  pre_post.head_dim = shape.head_dim, pre_post.head_dim_v = shape.head_dim_v;
  pre_post.softmax_scale = scale;
  pre_post.dq_type = type_of(args.dq);
  pre_post.accumulate_dq = args.accumulate_dq;
  pre_post.keys_ready = static_cast<cudaEvent_t>(args.keys_ready);
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
  params.mask_info = view.mask_info;
  pre_post.has_empty_tiles = view.mask_info != nullptr;
  params.num_work_tiles = view.num_work_tiles;
  params.num_q_tiles = view.q_tile_stride;
  pre_post.num_q_tiles = view.num_q_tiles;
  pre_post.heads_per_mask = view.heads_per_mask;
  pre_post.num_accum_tiles = view.num_accum_tiles;
  params.walk = view.walk;
  params.stats = pre_post.stats = reinterpret_cast<RowStatistics*>(view.scratch.stats);
  params.dq_sums = pre_post.dq_sums = view.scratch.dq_sums;
  params.accum_tiles = view.scratch.accum_tiles;
  params.dq_semaphore = pre_post.dq_semaphore = view.scratch.dq_semaphore;
  params.split_semaphore = pre_post.split_semaphore = view.scratch.split_semaphore;
  params.ticket = pre_post.ticket = view.scratch.ticket;
}

}  // namespace

void Sm80Backend::backward(MaskSlot& given, const AttnBackwardArgs& args, void* stream) const {
  const gpu::GpuSlot& slot = gpu::as_gpu_slot(given);
  const AttnShape& shape = slot.shape();
  const bool deterministic = args.options.deterministic;
  slot.check_backward(kBackward, args);
  check_backward(shape, args);
  const auto cuda_stream = cuda::as_stream(stream);
  const auto needed = static_cast<int64_t>(slot.backward_workspace_bytes(deterministic));
  const gpu::CallWorkspace workspace(kBackward, args.workspace, needed, cuda_stream);
  const cuda::ProfileRange range("tangram: attention backward");
  Params params{};
  PrePostParams pre_post{};
  fill_params(params, shape, args);
  fill_pre_post(pre_post, shape, args, params.softmax_scale);
  const gpu::DeviceKeySources& sources = slot.backward_sources(deterministic);
  params.ready_flags = sources.flag_params(args.ready_flags);
  params.local_ranges = sources.local_params(kBackward, shape, args.k_local, args.v_local, args.local_kv_table);
  slot.before_backward(args, cuda_stream);
  const BackwardView view = slot.backward_view(deterministic, workspace.data());
  fill_lists(params, pre_post, view);
  const int64_t free_sms = std::max(gpu::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const int ctas = static_cast<int>(std::min<int64_t>(free_sms, view.most_work_tiles));
  if (args.dsink != nullptr) sm80::load_sink(shape.dtype);
  sm80::launch_backward({shape.dtype, shape.head_dim, shape.head_dim_v, args.options.softcap > 0, tier_}, params,
                        pre_post, ctas, cuda_stream);
  if (args.dsink == nullptr) return;
  sm80::launch_sink({args.sink.data, args.dsink, args.lse, shape.seqlen_q, static_cast<int32_t>(args.sink.seqlen_sink),
                     args.sink.layout == SinkLayout::kSsh, shape.dtype},
                    pre_post, cuda_stream);
}

}  // namespace tangram
