// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward half of Sm90Backend: checks what callers pass, and translates it into kernel parameters.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attn/sm90/backward/device_work_list.hpp"
#include "attn/sm90/backward/launch.hpp"
#include "attn/sm90/backward/pre_post_arguments.hpp"
#include "attn/sm90/call_workspace.hpp"
#include "attn/sm90/common/argument_checks.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/prepared_mask.hpp"
#include "attn/sm90/query_backward/call.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/stream.hpp"

namespace tangram {
namespace {

using sm90::check_view;
using sm90::Sm90Mask;
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
  sm90::check_inputs(kFunction, shape, args);
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
  sm90::check_softmax(kFunction, shape, args);
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

/// Without softcap, lse / softmax_scale meets q.k. Where that might overflow, scores are too small for any cap to
/// matter.
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
}

void launch_sink(const Sm90Mask& mask, const AttnBackwardArgs& args, const PrePostParams& pre_post,
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
  params.half = mask.shape.dtype == DType::kFloat16;
  params.head_dim_v = mask.shape.head_dim_v;
  params.seqlen_q = mask.shape.seqlen_q;
  params.num_q_tiles = pre_post.num_q_tiles;
  params.num_heads_q = mask.shape.num_heads_q;
  params.heads_per_mask = pre_post.heads_per_mask;
  params.num_sinks = static_cast<int32_t>(args.sink.seqlen_sink);
  params.per_row = args.sink.layout == SinkLayout::kSsh;
  sm90::backward::launch_sink(params, stream);
}

}  // namespace

bool Sm90Backend::takes_gathered(const PreparedMask& mask, const AttnBackwardArgs& args) const {
  const Sm90Mask& prepared = sm90::as_sm90(mask);
  return prepared.backward_groups != nullptr && sm90::query_backward::takes(args, !prepared.awaited_keys.empty());
}

int64_t Sm90Backend::backward_workspace_bytes(const PreparedMask& mask) const {
  const Sm90Mask& prepared = sm90::as_sm90(mask);
  if (prepared.block_buffer != nullptr) {
    return static_cast<int64_t>(prepared.block_buffer->backward_workspace_bytes());
  }
  if (prepared.buffer != nullptr) {
    const bool has_backward = prepared.buffer->capacity().passes != AttnPasses::kForward;
    return has_backward ? static_cast<int64_t>(prepared.buffer->backward_workspace_bytes()) : 0;
  }
  size_t bytes = 0;
  for (const auto* lists : {prepared.backward.get(), prepared.deterministic_backward.get()}) {
    if (lists != nullptr) bytes = std::max(bytes, lists->workspace_bytes());
  }
  if (prepared.backward_groups) bytes = std::max(bytes, prepared.backward_groups->workspace_bytes());
  return static_cast<int64_t>(bytes);
}

void Sm90Backend::backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream) const {
  const Sm90Mask& prepared = sm90::as_sm90(mask);
  const bool deterministic = args.options.deterministic;
  const sm90::backward::DeviceWorkList* const lists = prepared.backward_of(deterministic);
  require(lists != nullptr || prepared.is_buffer() || takes_gathered(mask, args),
          "Sm90Backend::backward: prepare_backward() of such calls must come first (got deterministic={})",
          deterministic);
  sm90::check_buffer(kFunction, prepared, AttnPasses::kForward);
  check_backward(prepared.shape, args);
  require(args.keys_ready == nullptr || prepared.buffer != nullptr,
          "Sm90Backend::backward: keys_ready must be null but for a mask of make_buffer() without block_size (got "
          "another)");
  const auto cuda_stream = cuda::as_stream(stream);
  const bool kv_stationary = prepared.block_buffer != nullptr && prepared.block_buffer->kv_stationary();
  const bool gathers = prepared.backward_groups != nullptr || prepared.block_buffer != nullptr;
  const bool is_taken = gathers && sm90::query_backward::takes(args, !prepared.awaited_keys.empty());
  require(
      is_taken || prepared.block_buffer == nullptr,
      "Sm90Backend::backward: calls with a MaskBuffer for blocks must be without softcap, dsink and accumulation, and "
      "not deterministic (got softcap={}, dsink={}, accumulate_dq={}, accumulate_dkv={}, deterministic={})",
      args.options.softcap, args.dsink != nullptr, args.accumulate_dq, args.accumulate_dkv, deterministic);
  if (is_taken && !kv_stationary) {
    const auto bytes = static_cast<int64_t>(sm90::query_backward::workspace_bytes(prepared.shape));
    const sm90::CallWorkspace workspace(kFunction, args.workspace, bytes, cuda_stream);
    const cuda::ProfileRange range("tangram: attention backward");
    sm90::query_backward::GroupListView lists_of_groups;
    if (prepared.block_buffer != nullptr) {
      prepared.block_buffer->keep_while_graph_lives(cuda_stream);
      lists_of_groups = prepared.block_buffer->backward_lists();
    } else {
      prepared.backward_groups->before_call(cuda_stream);
      lists_of_groups = prepared.backward_groups->view();
    }
    sm90::query_backward::enqueue(lists_of_groups, prepared.shape, args, workspace.data(), cuda_stream);
    return;
  }
  const int64_t needed =
      lists != nullptr ? static_cast<int64_t>(lists->workspace_bytes()) : backward_workspace_bytes(mask);
  const sm90::CallWorkspace workspace(kFunction, args.workspace, needed, cuda_stream);
  const cuda::ProfileRange range("tangram: attention backward");
  Params params{};
  PrePostParams pre_post{};
  params.local_ranges =
      sm90::local_kv_params("Sm90Backend::backward", prepared, args.k_local, args.v_local, args.local_kv_table);
  fill_params(params, prepared.shape, args);
  params.ready_flags = prepared.awaited_keys_on_device.params(args.ready_flags);
  fill_edge(pre_post, prepared.shape, args, params.softmax_scale);
  pre_post.always_zeroed =
      sm90::adds_dq_from_registers(prepared.shape.head_dim, prepared.shape.head_dim_v, deterministic);
  int64_t num_work_tiles = std::numeric_limits<int64_t>::max();  // of a buffer: not known
  if (prepared.buffer != nullptr) {
    require(deterministic == prepared.buffer->capacity().deterministic,
            "Sm90Backend::backward: calls must be deterministic as the MaskBuffer is made for (got deterministic={})",
            deterministic);
    prepared.buffer->fill(params, pre_post, workspace.data());
    pre_post.keys_ready = args.keys_ready;
    prepared.buffer->keep_while_graph_lives(cuda_stream);
  } else if (kv_stationary) {
    prepared.block_buffer->fill(params, pre_post, workspace.data());
    prepared.block_buffer->keep_while_graph_lives(cuda_stream);
    num_work_tiles = params.num_work_tiles;
  } else {
    prepared.before_call(cuda_stream);
    lists->before_call(cuda_stream);
    lists->fill(params, pre_post, deterministic, workspace.data());
    num_work_tiles = lists->num_work_tiles(deterministic);
  }
  const int64_t free_sms = std::max(sm90::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const int ctas = static_cast<int>(std::min<int64_t>(free_sms, num_work_tiles));
  if (args.dsink != nullptr) sm90::backward::load_sink();
  sm90::backward::launch({prepared.shape.dtype == DType::kFloat16, prepared.shape.head_dim, prepared.shape.head_dim_v,
                          takes_softcap(args.options, params.softmax_scale), deterministic},
                         params, pre_post, ctas, cuda_stream);
  if (args.dsink != nullptr) launch_sink(prepared, args, pre_post, cuda_stream);
}

}  // namespace tangram
