// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A backend of "GPU kernels" that run on the host, over a CUDA runtime in host memory: all that a backend must write
// beside its kernels (docs/design/backends.md). Its tiles are like no others', so that nothing may count on those of
// Hopper kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attn/gpu/argument_checks.hpp"
#include "attn/gpu/call_workspace.hpp"
#include "attn/gpu/gpu_backend.hpp"
#include "attn/gpu/slot.hpp"
#include "core/require.hpp"
#include "cuda/stream.hpp"
#include "schedule/choose_kernels.hpp"

namespace tangram::test {

class FakeGpuBackend final : public gpu::GpuBackend {
 public:
  AttnCaps caps() const override {
    return {.name = "fake", .memory = MemoryKind::kDevice, .head_masks = true, .padded_slots = true};
  }

  void check(const AttnShape& shape) const override {
    require(shape.dtype == DType::kBFloat16 && shape.head_dim == shape.head_dim_v && shape.num_heads_kv > 0 &&
                shape.num_heads_q % shape.num_heads_kv == 0,
            "FakeGpuBackend: needs bfloat16 and one head dim (got dtype={})", to_string(shape.dtype));
  }

  int64_t workspace_bytes(const MaskSlot& slot, AttnPass pass) const override {
    const gpu::GpuSlot& own = gpu::as_gpu_slot(slot);
    return pass == AttnPass::kForward ? 0 : static_cast<int64_t>(own.backward_workspace_bytes());
  }

  void forward(MaskSlot& given, const AttnForwardArgs& args, void* stream) const override {
    const gpu::GpuSlot& slot = gpu::as_gpu_slot(given);
    slot.check_forward("FakeGpuBackend::forward");
    gpu::check_inputs("FakeGpuBackend::forward", slot.shape(), args);
    slot.before_forward(cuda::as_stream(stream));
    const gpu::ForwardView view = slot.forward_view();
    const int pack = schedule::packed_heads(slot.kernels(), slot.shape(), view.choice.work_tiles);
    std::fill_n(args.max_logits, slot.shape().num_heads_q, -std::numeric_limits<float>::infinity());
    for (int32_t i = 0; i < view.num_work_tiles; ++i) {
      for (int32_t g = 0; g < view.num_groups; ++g) {
        const int32_t group = view.work_tile_groups != nullptr ? view.work_tile_groups[i] : g;
        for (int head = group * pack; head < (group + 1) * pack; ++head) {
          forward_tile(slot.shape(), view, view.work_tiles[i], head, args);
        }
      }
    }
  }

  void backward(MaskSlot& given, const AttnBackwardArgs& args, void* stream) const override {
    const gpu::GpuSlot& slot = gpu::as_gpu_slot(given);
    const AttnShape& shape = slot.shape();
    const bool deterministic = args.options.deterministic;
    slot.check_backward("FakeGpuBackend::backward", args);
    const gpu::CallWorkspace workspace("FakeGpuBackend::backward", args.workspace,
                                       static_cast<int64_t>(slot.backward_workspace_bytes(deterministic)),
                                       cuda::as_stream(stream));
    slot.before_backward(args, cuda::as_stream(stream));
    gpu::BackwardView view = slot.backward_view(deterministic, workspace.data());
    if (view.mask_info != nullptr) view.num_work_tiles = view.mask_info->num_work_tiles;
    for (const TensorView& gradient : {args.dq, args.dk, args.dv}) {
      std::fill_n(static_cast<float*>(gradient.data), gradient.rows * gradient.row_stride, 0.0f);
    }
    for (int32_t i = 0; i < view.num_work_tiles; ++i) backward_tile(shape, view, view.work_tiles[i], args);
  }

  schedule::KernelTable kernel_table(const AttnShape& shape) const override {
    schedule::KernelTable table{.many_rows = 4000,
                                .packs_any_heads = true,
                                .backward = {96, 32, true},
                                .backward_head_dim = shape.head_dim,
                                .backward_head_dim_v = shape.head_dim};
    table.forward[static_cast<int>(schedule::ForwardWorkTiles::kPlain)] = {48, 32};
    table.forward[static_cast<int>(schedule::ForwardWorkTiles::kMany)] = {80, 16};
    return table;
  }

 protected:
  void require_device() const override {}

 private:
  static float at(const ConstTensorView& view, int64_t row, int head, int d) {
    return bfloat16_to_float(
        static_cast<const uint16_t*>(view.data)[row * view.row_stride + head * view.head_stride + d]);
  }
  static float& sum(const TensorView& view, int64_t row, int head, int d) {
    return static_cast<float*>(view.data)[row * view.row_stride + head * view.head_stride + d];
  }
  static float dot(const ConstTensorView& a, int64_t row_a, int head_a, const ConstTensorView& b, int64_t row_b,
                   int head_b) {
    float total = 0;
    for (int d = 0; d < a.dim; ++d) total += at(a, row_a, head_a, d) * at(b, row_b, head_b, d);
    return total;
  }
  static float scale_of(const AttnShape& shape) { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }

  /// What `row` of a tile that begins with `first` sees in a run.
  static RowInterval seen(const TileRange& run, const RowInterval* intervals, int32_t first, int32_t row) {
    if (run.interval_begin >= 0) return intervals[run.interval_begin + row - first];
    if (row < run.row_begin || row >= run.row_end) return {};
    return {std::max(run.slice_k_begin, row + run.min_diag), std::min(run.slice_k_end, row + run.max_diag + 1)};
  }

  static void forward_tile(const AttnShape& shape, const gpu::ForwardView& view, const MaskTile& tile, int head,
                           const AttnForwardArgs& args) {
    const int kv_head = head / (shape.num_heads_q / shape.num_heads_kv);
    for (int32_t row = tile.row_begin; row < tile.row_end; ++row) {
      float total = 0;
      std::vector<float> out(static_cast<size_t>(shape.head_dim));
      for (int32_t r = tile.run_begin; r < tile.run_end; ++r) {
        const RowInterval keys = seen(view.runs[r], view.intervals, tile.row_begin, row);
        for (int32_t key = keys.begin; key < keys.end; ++key) {
          const float score = scale_of(shape) * dot(args.q, row, head, args.k, key, kv_head);
          const float weight = std::exp(score);
          args.max_logits[head] = std::max(args.max_logits[head], score);
          total += weight;
          for (int d = 0; d < shape.head_dim; ++d) out[static_cast<size_t>(d)] += weight * at(args.v, key, kv_head, d);
        }
      }
      args.lse[row * shape.num_heads_q + head] = std::log(total);  // -inf where a row sees nothing
      for (int d = 0; d < shape.head_dim; ++d) {
        sum(args.out, row, head, d) = total > 0 ? out[static_cast<size_t>(d)] / total : 0;
      }
    }
  }

  static void backward_tile(const AttnShape& shape, const gpu::BackwardView& view, const schedule::WorkTile& tile,
                            const AttnBackwardArgs& args) {
    const float scale = scale_of(shape);
    for (int32_t key = tile.row_begin; key < tile.row_end; ++key) {
      for (int32_t r = tile.run_begin; r < tile.run_end; ++r) {
        const RowInterval rows = seen(view.runs[r], view.intervals, tile.row_begin, key);
        for (int32_t row = rows.begin; row < rows.end; ++row) {
          for (int head = tile.head_begin; head < tile.head_end; ++head) {
            const float weight = std::exp(scale * dot(args.q, row, head, args.k, key, tile.kv_head) -
                                          args.lse[row * shape.num_heads_q + head]);
            float delta = 0;
            for (int d = 0; d < shape.head_dim; ++d) {
              delta += at(args.dout, row, head, d) *
                       (at(args.v, key, tile.kv_head, d) -
                        static_cast<const float*>(
                            args.out.data)[row * args.out.row_stride + head * args.out.head_stride + d]);
            }
            for (int d = 0; d < shape.head_dim; ++d) {
              sum(args.dv, key, tile.kv_head, d) += weight * at(args.dout, row, head, d);
              sum(args.dk, key, tile.kv_head, d) += scale * weight * delta * at(args.q, row, head, d);
              sum(args.dq, row, head, d) += scale * weight * delta * at(args.k, key, tile.kv_head, d);
            }
          }
        }
      }
    }
  }
};

}  // namespace tangram::test
