// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/device_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/stream.hpp"
#include "runtime/device/float_kernels.hpp"
#include "runtime/device/owner_kernels.hpp"
#include "runtime/device/row_kernels.hpp"
#include "tangram/error.hpp"

namespace tangram::device {

namespace {

void sum_rows(std::span<const RowSum> sums, void* stream) {
  std::vector<RowJob> jobs;
  for (const RowSum& sum : sums) {
    jobs.push_back({sum.source, sum.addend, sum.result, nullptr, sum.addend_rows.rows, nullptr, sum.result.rows,
                    sum.addend_rows.begins});
  }
  for (size_t first = 0; first < jobs.size(); first += kMaxRowJobs) {
    run_row_jobs(std::span(jobs).subspan(first, std::min<size_t>(kMaxRowJobs, jobs.size() - first)),
                 cuda::as_stream(stream));
  }
}

ProgramDevice program_device() {
  ProgramDevice device;
  device.sum_rows = sum_rows;
  device.copy_floats = [](std::span<const FloatCopy> copies, void* stream) {
    device::copy_floats(copies, cuda::as_stream(stream));
  };
  device.zero = [](void* data, int64_t num_bytes, void* stream) {
    cuda::check(cudaMemsetAsync(data, 0, static_cast<size_t>(num_bytes), cuda::as_stream(stream)), "cudaMemsetAsync");
  };
  device.scale = [](float* values, int64_t count, float factor, void* stream) {
    scale_values(values, count, factor, cuda::as_stream(stream));
  };
  device.find_delta = [](const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta,
                         void* stream) { device::find_delta(out, dout, delta, cuda::as_stream(stream)); };
  device.merge = [](const RowMerge& merge, void* stream) { merge_rows(merge, cuda::as_stream(stream)); };
  device.find_dsink = [](const SinkGradient& of, void* stream) { device::find_dsink(of, cuda::as_stream(stream)); };
  device.find_maxima = [](const ColumnMaxima& of, void* stream) { device::find_maxima(of, cuda::as_stream(stream)); };
  device.keep = [](std::span<const int32_t> values) {
    const auto copy =
        std::make_shared<cuda::DeviceBuffer>(cuda::DeviceBuffer::copy_of(values.data(), values.size_bytes()));
    return std::shared_ptr<const int32_t>(copy, copy->as<int32_t>());
  };
  return device;
}

}  // namespace

bool runs_program(const Plan& plan) { return !plan.grid.empty() || !plan.movement.empty(); }

void check_program(const Plan& plan, const DeviceCommunicator& communicator, const AttnBackend& backend,
                   const DeviceDistOptions& options) {
  require(plan.cp_size() == communicator.size(),
          "DeviceDistAttention: plan must be for as many ranks as the communicator has (got {} and {})", plan.cp_size(),
          communicator.size());
  require(plan.movement.empty() || backend.takes_delta(),
          "DeviceDistAttention: a plan that moves queries needs a backend that takes delta (got {}, which does not)",
          backend.name());
  const HeadConfig& heads = plan.config.heads;
  require(heads.head_dim % 8 == 0 && heads.head_dim_v % 8 == 0,
          "DeviceDistAttention: dims of heads must be multiples of 8 (got {} and {})", heads.head_dim,
          heads.head_dim_v);
  require(options.row_sinks >= 0, "DeviceDistAttention: row_sinks must not be negative (got {})", options.row_sinks);
  const std::string by = plan.movement.empty() ? fmt::format("strategy {}", to_string(plan.config.strategy.name))
                                               : fmt::format("movement {}", to_string(plan.config.movement.algorithm));
  for (const DeviceOverlap wanted : {options.forward, options.backward}) {
    if (wanted != DeviceOverlap::kSingleLaunch) continue;
    throw NotAvailable(fmt::format("DeviceDistAttention: single_launch is for plans that move K/V alone (got {})", by));
  }
  const LaunchOrder order = plan.config.overlap.launch_order;
  if (order == LaunchOrder::kKernelBarrier ||
      (order == LaunchOrder::kCopyEngine && communicator.name() != to_string(DeviceTransport::kCopyEngine))) {
    throw NotAvailable(fmt::format("DeviceDistAttention: launch_order {} cannot be with {} over {}", to_string(order),
                                   by, communicator.name()));
  }
}

std::unique_ptr<ProgramAttention> make_device_program(RankContext& base, DeviceCommunicator& communicator,
                                                      const DeviceDistOptions& options) {
  const OverlapConfig& overlap = base.plan->config.overlap;
  const LaunchOrder order = overlap.launch_order;
  ProgramOptions how;
  how.result_dtype = options.result_dtype.value_or(base.plan->config.heads.dtype);
  how.row_sinks = options.row_sinks;
  how.with_backward = options.with_backward;
  how.max_kept = options.max_kept;
  how.overlaps_forward = options.forward != DeviceOverlap::kNone;
  how.overlaps_backward = options.backward != DeviceOverlap::kNone;
  const bool has_margin = order == LaunchOrder::kAuto || order == LaunchOrder::kSmMargin;
  how.margin_beside_transfers = !has_margin ? 0 : overlap.sm_margin > 0 ? overlap.sm_margin : -1;
  load_row_kernels();
  load_float_kernels();
  load_owner_kernels();
  return std::make_unique<ProgramAttention>(base, communicator, program_device(), how);
}

}  // namespace tangram::device
