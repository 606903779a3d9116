// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/gpu_kernels.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "attn/gpu/gpu_backend.hpp"
#include "cli/measure/kernel_fit.hpp"
#include "cli/measure/measured_mask.hpp"
#include "cli/text_table.hpp"
#include "cuda/check.hpp"
#include "cuda/device_info.hpp"
#include "runtime/device/row_kernels.hpp"
#include "schedule/choose_kernels.hpp"
#include "tangram/backends.hpp"
#include "tangram/dtype.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

namespace {

// Heads as models have them; what depends on their number the constants do not hold.
constexpr int kQueryHeads = 64, kKeyHeads = 8;

/// Tiles that a kernel skips if they are fully masked, and the rows of its work tiles, as the backend states them.
KernelEntry tiles_of(const AttnBackend& backend, const HeadConfig& heads, const std::string& device) {
  // With as many key heads as query heads, or rows of several heads would share a tile.
  const AttnShape shape{1, 1, 1, 1, heads.head_dim, heads.head_dim_v, heads.dtype};
  KernelModel forward{.tile_rows = h200::kForward.tile_rows, .tile_cols = h200::kForward.tile_cols};
  KernelModel backward{.tile_rows = h200::kBackward.tile_rows, .tile_cols = h200::kBackward.tile_cols};
  const schedule::KernelTable kernels = dynamic_cast<const gpu::GpuBackend&>(backend).kernel_table(shape);
  forward.item_rows = schedule::forward_tile(kernels, shape).block_m;
  backward.item_rows = kernels.backward.block_m;
  backward.items_by_keys = true;
  return {std::string(backend.name()),
          device,
          heads.dtype,
          heads.head_dim,
          heads.head_dim_v,
          cuda::info_of_current_device().multiprocessors,
          "measured",
          forward,
          backward};
}

KernelMeasurement measure_kernels(const AttnBackend& backend, const HeadConfig& heads, const std::string& device,
                                  const MeasureOptions& options) {
  const MaskTensors tensors(heads, options.max_rows, options.max_rows);
  std::vector<TimedCalls> calls;
  std::vector<std::unique_ptr<MeasuredMask>> masks;
  for (std::vector<AttnSlice>& slices : gpu_sample_masks(options.max_rows)) {
    masks.push_back(
        std::make_unique<MeasuredMask>(slices, shape_of_call(slices, heads), tensors, backend, AttnOptions{}));
    calls.push_back({std::move(slices)});
  }
  for (int turn = 0; turn < options.num_repeats; ++turn) {  // so that all masks meet the same clocks
    for (const auto& mask : masks) mask->ping_pong_wait();
  }
  for (size_t i = 0; i < masks.size(); ++i) {
    calls[i].forward_s = masks[i]->forward_s();
    calls[i].backward_s = masks[i]->backward_s();
  }
  return fit_entry(tiles_of(backend, heads, device), calls, heads.num_heads_q);
}

/// Extra time of a forward call in two stages: the second launch, and adding to what is there. Few rows, because bytes
/// of results are counted apart.
double measure_stage_overhead(const AttnBackend& backend, const HeadConfig& heads, int num_turns) {
  constexpr int64_t kStageRows = 256, kStageKeys = 4096;
  const MaskTensors tensors(heads, kStageRows, kStageKeys);
  const RandomDeviceTensor sum(DType::kFloat32, kStageRows, heads.num_heads_q, heads.head_dim_v, 9);
  const auto attention_over = [&](int64_t keys) {
    const AttnSlice all = AttnSlice::full({0, kStageRows}, {0, keys});
    return FlexAttention({&all, 1}, shape_of_call({&all, 1}, heads), backend);
  };
  FlexAttention whole = attention_over(kStageKeys), half = attention_over(kStageKeys / 2);
  // Which keys they are does not matter to the time.
  const auto call_over = [&](FlexAttention& attention, int64_t keys, bool accumulate) {
    attention.forward({.q = tensors.q.first_rows(kStageRows, heads.num_heads_q),
                       .k = tensors.k.first_rows(keys, heads.num_heads_kv),
                       .v = tensors.v.first_rows(keys, heads.num_heads_kv),
                       .out = sum.first_rows(kStageRows, heads.num_heads_q),
                       .lse = tensors.lse.as<float>(),
                       .accumulate = accumulate});
  };
  const std::vector<double> seconds = time_in_turns({[&] { call_over(whole, kStageKeys, false); },
                                                     [&] {
                                                       call_over(half, kStageKeys / 2, false);
                                                       call_over(half, kStageKeys / 2, true);
                                                     }},
                                                    num_turns);
  return std::max(0.0, seconds[1] - seconds[0]);
}

/// Kernels that run during a step: they copy rows of K and V, and add to float32 sums. More rows than a cache holds.
double measure_row_bytes_per_s(int num_turns) {
  constexpr int64_t kCopiedRows = 32768;
  constexpr int kRowDim = 128, kRowValues = kKeyHeads * kRowDim;
  const RandomDeviceTensor from(DType::kBFloat16, kCopiedRows, kKeyHeads, kRowDim, 1);
  const RandomDeviceTensor to(DType::kBFloat16, kCopiedRows, kKeyHeads, kRowDim, 2);
  const RandomDeviceTensor part(DType::kFloat32, kCopiedRows, kKeyHeads, kRowDim, 3);
  const RandomDeviceTensor sum(DType::kFloat32, kCopiedRows, kKeyHeads, kRowDim, 4);
  const auto view = [&](const RandomDeviceTensor& tensor) { return tensor.first_rows(kCopiedRows, kKeyHeads); };
  const device::RowJob copy{.source = view(from), .addend = {}, .result = view(to), .num_rows = kCopiedRows};
  const device::RowJob add{.source = view(sum), .addend = view(part), .result = view(sum), .num_rows = kCopiedRows};
  const std::vector<double> seconds = time_in_turns({[&] {
                                                      device::run_row_jobs({&copy, 1}, nullptr);
                                                      device::run_row_jobs({&add, 1}, nullptr);
                                                    }},
                                                    num_turns);
  constexpr double kBytesOfValue = 2 + 2 + 4 + 4 + 4;
  return static_cast<double>(kCopiedRows) * kRowValues * kBytesOfValue / seconds[0];
}

/// Empty with the reason as a note where it cannot run.
std::unique_ptr<AttnBackend> find_backend(Measured& measured) {
  const std::string name = best_attn_backend(MemoryKind::kDevice);
  try {
    return make_attn_backend(name);
  } catch (const NotAvailable& error) {
    measured.notes.push_back(fmt::format("{}: not measured: {}", name, error.what()));
    return nullptr;
  }
}

}  // namespace

Measured measure_gpu_kernels(Communicator& control, const MeasureOptions& options) {
  int current = 0;
  cuda::check(cudaGetDevice(&current), "cudaGetDevice");
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, current), "cudaGetDeviceProperties");
  const cuda::DeviceInfo& info = cuda::info_of_current_device();
  Measured measured;
  MachineFile& file = measured.file;
  file.name = fmt::format("{} x {}", control.size(), properties.name);
  file.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  measured.notes.push_back(fmt::format("{}: {} multiprocessors, {} of L2 cache, {} of memory", properties.name,
                                       info.multiprocessors, bytes_text(static_cast<double>(info.l2_bytes)),
                                       bytes_text(static_cast<double>(file.memory_bytes))));
  file.memory_bytes_per_s = measure_row_bytes_per_s(options.num_repeats);
  measured.notes.push_back(
      fmt::format("rows copied and added: {:.2f} TB/s, read plus written", file.memory_bytes_per_s * 1e-12));
  const std::unique_ptr<AttnBackend> backend = find_backend(measured);
  if (backend == nullptr) return measured;
  const auto heads_of = [](DType dtype, const HeadDims& dims) {
    return HeadConfig{kQueryHeads, kKeyHeads, dims.head_dim, dims.head_dim_v, dtype};
  };
  for (const DType dtype : options.dtypes) {
    for (const HeadDims& dims : options.head_dims) {
      control.barrier("measure");
      const KernelMeasurement kernels = measure_kernels(*backend, heads_of(dtype, dims), properties.name, options);
      file.kernels.push_back(kernels.entry);
      measured.notes.push_back(fmt::format(
          "{} {} {}: forward {:.0f} TFLOP/s, backward {:.0f} TFLOP/s on whole tiles; {}", backend->name(),
          tangram::to_string(dtype), head_dim_text(dims.head_dim, dims.head_dim_v),
          kernels.entry.forward.flops_per_s * 1e-12, kernels.entry.backward.flops_per_s * 1e-12, errors_text(kernels)));
    }
  }
  control.barrier("measure");
  constexpr HeadDims kStageDims{64, 64};  // of all files, so that they compare
  file.stage_overhead_s =
      measure_stage_overhead(*backend, heads_of(options.dtypes.front(), kStageDims), 3 * options.num_repeats);
  measured.notes.push_back(fmt::format("a further call of a pass: {}", seconds_text(file.stage_overhead_s)));
  control.barrier("measured");
  return measured;
}

}  // namespace tangram::cli
