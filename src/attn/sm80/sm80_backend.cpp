// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backend can do, and its forward calls. Backward calls: sm80_backward.cpp.

#include "attn/sm80/sm80_backend.hpp"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <numbers>

#include "attn/gpu/abilities.hpp"
#include "attn/gpu/argument_checks.hpp"
#include "attn/gpu/call_workspace.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/slot.hpp"
#include "attn/sm80/float32/shapes.hpp"
#include "attn/sm80/kernel_table.hpp"
#include "attn/sm80/launch.hpp"
#include "core/require.hpp"
#include "cuda/once_per_device.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"
#include "schedule/choose_kernels.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using gpu::ForwardView;
using gpu::GpuSlot;
using sm80::ForwardParams;
using sm80::SharedMemoryTier;

constexpr int kOldestCapability = 80;

/// Shared memory of a block of the current device, in KB. At most TANGRAM_SM80_SHARED_KB, by which tests run the
/// kernels of smaller GPUs on a large one. 0: there is none.
int shared_memory_kb() {
  int device = 0, bytes = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // nothing that a later launch should report
    return 0;
  }
  const char* const most = std::getenv("TANGRAM_SM80_SHARED_KB");
  return most == nullptr ? bytes / 1024 : std::min(bytes / 1024, std::atoi(most));
}

void check_forward(const AttnShape& shape, const AttnForwardArgs& args) {
  gpu::check_inputs("Sm80Backend", shape, args);
  gpu::check_view("Sm80Backend", "out", args.out, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  require(args.q.dtype == shape.dtype && args.k.dtype == shape.dtype && args.v.dtype == shape.dtype,
          "Sm80Backend: q, k and v must have the prepared dtype {} (got {}, {}, {})", to_string(shape.dtype),
          to_string(args.q.dtype), to_string(args.k.dtype), to_string(args.v.dtype));
  require(args.out.dtype == shape.dtype || args.out.dtype == DType::kFloat32,
          "Sm80Backend: out must be {} or float32 (got {})", to_string(shape.dtype), to_string(args.out.dtype));
  require(!args.accumulate || args.out.dtype == DType::kFloat32,
          "Sm80Backend: accumulate needs out in float32 (got {})", to_string(args.out.dtype));
  gpu::check_softmax("Sm80Backend", shape, args);
}

void fill_tensors(ForwardParams& params, const AttnForwardArgs& args) {
  params.q = args.q.data, params.k = args.k.data, params.v = args.v.data, params.out = args.out.data;
  params.k_local = args.k_local.data, params.v_local = args.v_local.data;
  params.q_row_stride = args.q.row_stride, params.q_head_stride = args.q.head_stride;
  params.k_row_stride = args.k.row_stride, params.k_head_stride = args.k.head_stride;
  params.v_row_stride = args.v.row_stride, params.v_head_stride = args.v.head_stride;
  params.out_row_stride = args.out.row_stride, params.out_head_stride = args.out.head_stride;
  params.lse = args.lse;
  params.max_logits = args.max_logits;
  params.sink = args.sink.empty() ? nullptr : args.sink.data;
  params.num_sinks = static_cast<int32_t>(args.sink.seqlen_sink);
  params.sink_per_row = args.sink.layout == SinkLayout::kSsh;
  params.out_type = args.out.dtype == DType::kFloat32 ? sm80::OutType::kFloat32 : sm80::OutType::kInput;
  params.accumulate = args.accumulate;
}

ForwardParams forward_params(const GpuSlot& slot, const ForwardView& view, const AttnForwardArgs& args) {
  const AttnShape& shape = slot.shape();
  ForwardParams params{};
  fill_tensors(params, args);
  const gpu::DeviceKeySources& sources = slot.forward_sources();
  params.ready_flags = sources.flag_params(args.ready_flags);
  params.local_ranges = sources.local_params("Sm80Backend", shape, args.k_local, args.v_local, args.local_kv_table);
  params.work_tiles = view.work_tiles;
  params.runs = view.runs;
  params.intervals = view.intervals;
  params.counters = view.counters;
  params.num_work_tiles = view.num_work_tiles;
  params.work_tile_groups = view.work_tile_groups;
  params.num_groups = view.num_groups;
  params.groups_per_section = view.groups_per_section;
  params.pack_log2 = std::countr_zero(static_cast<unsigned>(schedule::packed_heads(shape)));
  params.heads_per_kv = shape.num_heads_q / shape.num_heads_kv;
  params.num_heads_q = shape.num_heads_q;
  params.head_dim = shape.head_dim, params.head_dim_v = shape.head_dim_v;
  params.softmax_scale = args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
  params.softcap = args.options.softcap;
  const bool softcap = params.softcap > 0;
  params.inner_scale = softcap ? params.softmax_scale / params.softcap : 0.0f;
  params.exp_scale = (softcap ? 1.0f : params.softmax_scale) * std::numbers::log2e_v<float>;
  // Probabilities may grow to 2^8 before the reference follows. max_logits needs the true maximum as reference.
  params.rescale_threshold = softcap || args.max_logits == nullptr ? 8.0f / params.exp_scale : 0.0f;
  return params;
}

/// Where parts leave their results: [rows, num_heads_q, head_dim_v] and [rows, num_heads_q].
struct PartResults {
  float* out = nullptr;
  float* lse = nullptr;
  size_t bytes = 0;
};

PartResults place_parts(const AttnShape& shape, int64_t num_rows, void* workspace) {
  PartResults results;
  if (num_rows == 0) return results;
  const size_t part_rows = std::bit_ceil(static_cast<size_t>(num_rows));  // few different sizes
  const size_t rows = part_rows * static_cast<size_t>(shape.num_heads_q);
  cuda::ScratchLayout layout(workspace);
  results.out = layout.take<float>(rows * static_cast<size_t>(shape.head_dim_v));
  results.lse = layout.take<float>(rows);
  results.bytes = layout.bytes();
  return results;
}

}  // namespace

Sm80Check check_sm80() {
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // nothing that a later launch should report
    return {false, fmt::format("needs an NVIDIA GPU; use the backend cpu (got {})", cudaGetErrorName(status))};
  }
  const int shared_kb = shared_memory_kb(), least_kb = sm80::kTierKb[static_cast<int>(SharedMemoryTier::kSmall)];
  if (properties.major * 10 + properties.minor < kOldestCapability || shared_kb < least_kb) {
    return {false,
            fmt::format("needs a GPU of compute capability 8.0 or later with {} KB of shared memory a block; use "
                        "the backend cpu (got {}, {}.{}, {} KB)",
                        least_kb, properties.name, properties.major, properties.minor, shared_kb)};
  }
  return {true, fmt::format("{}, {} multiprocessors", properties.name, properties.multiProcessorCount)};
}

Sm80Backend::Sm80Backend() {
  const int found_kb = shared_memory_kb();
  const bool is_small = found_kb > 0 && found_kb < sm80::kTierKb[static_cast<int>(SharedMemoryTier::kLarge)];
  tier_ = is_small ? SharedMemoryTier::kSmall : SharedMemoryTier::kLarge;
}

AttnCaps Sm80Backend::caps() const {
  return {.name = "sm80",
          .memory = MemoryKind::kDevice,
          .gpu = gpu::gpu_of_current_device_or_default(),
          .delta = true,
          .head_masks = true,
          .padded_slots = true,
          .max_ready_flags = kMaxReadyFlags,
          .local_kv_halo = kLocalKvHalo};
}

void Sm80Backend::check(const AttnShape& shape) const {
  require(sm80::find_shape_class(shape.head_dim, shape.head_dim_v) != nullptr,
          "Sm80Backend: head_dim and head_dim_v must be multiples of 8 up to {} (got head_dim={}, head_dim_v={})",
          sm80::kLargestHeadDim, shape.head_dim, shape.head_dim_v);
  require(shape.num_heads_q > 0 && shape.num_heads_kv > 0 && shape.num_heads_q % shape.num_heads_kv == 0,
          "Sm80Backend: num_heads_kv must divide num_heads_q (got num_heads_q={}, num_heads_kv={})", shape.num_heads_q,
          shape.num_heads_kv);
}

schedule::KernelTable Sm80Backend::kernel_table(const AttnShape& shape) const {
  if (shape.dtype == DType::kFloat32) return sm80::float32::kernel_table(shape.head_dim, shape.head_dim_v);
  return sm80::kernel_table(shape.head_dim, shape.head_dim_v, tier_);
}

void Sm80Backend::require_device() const {
  const auto tier = static_cast<size_t>(tier_);
  const auto check_device = [tier] {
    const Sm80Check check = check_sm80();
    if (!check.found) throw NotAvailable("Sm80Backend: " + check.text);
    const int found_kb = shared_memory_kb();
    if (found_kb < sm80::kTierKb[tier]) {
      throw NotAvailable(
          fmt::format("Sm80Backend: the backend was made for another GPU, with {} KB of shared memory a block; make "
                      "one for each device (got {} KB)",
                      sm80::kTierKb[tier], found_kb));
    }
  };
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) check_device();  // which says why there is none
  static cuda::OncePerDevice is_found[std::size(sm80::kTierKb)];
  is_found[tier].call(check_device);
}

void Sm80Backend::load_combine(const AttnShape& shape) const { sm80::load_combine(shape.dtype == DType::kFloat16); }

int64_t Sm80Backend::workspace_bytes(const MaskSlot& slot, AttnPass pass) const {
  const GpuSlot& own = gpu::as_gpu_slot(slot);
  if (pass == AttnPass::kBackward) return static_cast<int64_t>(own.backward_workspace_bytes());
  const int64_t rows = own.parts().has(MaskPart::kForward) ? own.forward_view().num_part_rows : 0;
  return static_cast<int64_t>(place_parts(own.shape(), rows, nullptr).bytes);
}

void Sm80Backend::forward(MaskSlot& given, const AttnForwardArgs& args, void* stream) const {
  const GpuSlot& slot = gpu::as_gpu_slot(given);
  const AttnShape& shape = slot.shape();
  slot.check_forward("Sm80Backend::forward");
  check_forward(shape, args);
  const auto cuda_stream = cuda::as_stream(stream);
  const ForwardView view = slot.forward_view();
  const auto needed = static_cast<int64_t>(place_parts(shape, view.num_part_rows, nullptr).bytes);
  const gpu::CallWorkspace workspace("Sm80Backend::forward", args.workspace, needed, cuda_stream);
  const cuda::ProfileRange range("tangram: attention forward");
  if (args.max_logits != nullptr && !args.accumulate) {
    sm80::fill_minus_infinity(args.max_logits, shape.num_heads_q, cuda_stream);
  }
  ForwardParams params = forward_params(slot, view, args);
  if (params.num_work_tiles == 0) return;
  slot.before_forward(cuda_stream);
  const int free_sms = std::max(gpu::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  const sm80::Variant variant{shape.dtype, shape.head_dim, shape.head_dim_v, params.softcap > 0, tier_};
  if (view.num_part_tiles == 0) return sm80::launch_forward(variant, params, free_sms, cuda_stream);
  const PartResults parts = place_parts(shape, view.num_part_rows, workspace.data());
  params.part_rows = view.part_rows;
  params.part_out = parts.out;
  params.part_lse = parts.lse;
  sm80::launch_forward(variant, params, free_sms, cuda_stream);
  const int tile_rows = schedule::forward_tile(slot.kernels(), shape).block_m;
  sm80::launch_combine(shape.dtype == DType::kFloat16, params,
                       {parts.out, parts.lse, view.part_tiles, view.num_part_tiles, tile_rows,
                        shape.num_heads_q / view.num_masks, view.part_heads},
                       cuda_stream);
}

}  // namespace tangram
