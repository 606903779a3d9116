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
#include "runtime/device/row_kernels.hpp"
#include "tangram/error.hpp"

namespace tangram::device {

namespace {

void sum_rows(std::span<const RowSum> sums, void* stream) {
  std::vector<RowJob> jobs;
  for (const RowSum& sum : sums) {
    jobs.push_back({sum.source, sum.addend, sum.result, nullptr, nullptr, nullptr, sum.result.rows});
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
  return device;
}

}  // namespace

void check_grid(const Plan& plan, const DeviceCommunicator& communicator, const DeviceDistOptions& options) {
  require(plan.cp_size() == communicator.size(),
          "DeviceDistAttention: plan must be for as many ranks as the communicator has (got {} and {})", plan.cp_size(),
          communicator.size());
  const HeadConfig& heads = plan.config.heads;
  require(heads.head_dim % 8 == 0 && heads.head_dim_v % 8 == 0,
          "DeviceDistAttention: dims of heads must be multiples of 8 (got {} and {})", heads.head_dim,
          heads.head_dim_v);
  require(options.row_sinks >= 0, "DeviceDistAttention: row_sinks must not be negative (got {})", options.row_sinks);
  const std::string_view strategy = to_string(plan.config.strategy.name);
  for (const DeviceOverlap wanted : {options.forward, options.backward}) {
    if (wanted != DeviceOverlap::kSingleLaunch) continue;
    throw NotAvailable(fmt::format("DeviceDistAttention: single_launch is Tangram's own (got strategy {})", strategy));
  }
  const LaunchOrder order = plan.config.overlap.launch_order;
  if (order == LaunchOrder::kKernelBarrier ||
      (order == LaunchOrder::kCopyEngine && communicator.name() != to_string(DeviceTransport::kCopyEngine))) {
    throw NotAvailable(fmt::format("DeviceDistAttention: launch_order {} cannot be with strategy {} over {}",
                                   to_string(order), strategy, communicator.name()));
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
  return std::make_unique<ProgramAttention>(base, communicator, program_device(), how);
}

}  // namespace tangram::device
