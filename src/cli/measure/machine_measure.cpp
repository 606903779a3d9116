// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/machine_measure.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "cli/machine.hpp"
#include "cli/measure/kernel_measure.hpp"
#include "cli/measure/link_measure.hpp"
#include "cli/text_table.hpp"
#include "core/require.hpp"
#include "tangram/dtype.hpp"
#include "tangram/local_group.hpp"
#include "tangram/mpi_group.hpp"

namespace tangram::cli {

namespace {

int64_t physical_memory_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

// This rank's part; all ranks of the group call it together.
Measured measure_rank(const MeasureOptions& options, Communicator& communicator) {
  Measured measured;
  MachineFile& file = measured.file;
  const CpuInfo cpu = probe_cpu();
  file.name = fmt::format("{}, {} cores", cpu.name, cpu.num_cores);
  file.ranks_per_node = communicator.size();
  file.devices_per_node = std::max(1, cpu.num_cores);
  file.memory_bytes = physical_memory_bytes() / communicator.size();
  for (const DType dtype : options.dtypes) {
    for (const HeadDims& dims : options.head_dims) {
      const KernelMeasurement kernels =
          measure_kernels(dtype, dims, options.max_rows, options.num_repeats, [&] { communicator.barrier("measure"); });
      file.kernels.push_back(kernels.entry);
      measured.notes.push_back(fmt::format("cpu {} {}: forward {:.1f} GFLOP/s, backward {:.1f} GFLOP/s a thread; {}",
                                           tangram::to_string(dtype), head_dim_text(dims.head_dim, dims.head_dim_v),
                                           kernels.forward.model.flops_per_s * 1e-9,
                                           kernels.backward.model.flops_per_s * 1e-9, errors_text(kernels)));
    }
  }
  communicator.barrier("measure");
  file.memory_bytes_per_s = measure_memory_bytes_per_s(options.num_repeats);
  measured.notes.push_back(
      fmt::format("memory: {:.1f} GB/s a rank, read plus written", file.memory_bytes_per_s * 1e-9));
  if (communicator.size() > 1) {
    const LinkMeasurement link = measure_link(communicator, 3 * options.num_repeats);
    file.links.push_back(
        {std::string(communicator.name()), false, CommEngine::kHostThreads, "measured", link.fit.link, 0, 0});
    file.stage_overhead_s = link.fit.call_s;
    measured.notes.push_back(
        fmt::format("{}: {:.2f} GB/s each way, {} a message, {} an operation; model off by {:.0f} % "
                    "(root mean square)",
                    communicator.name(), link.fit.link.bytes_per_s * 1e-9, seconds_text(link.fit.link.latency_s),
                    seconds_text(link.fit.call_s), 100 * link.fit.rms_error));
  }
  return measured;
}

}  // namespace

void check_gpu_measure(const MeasureOptions& options) {
  for (const DType dtype : options.dtypes) {
    require(dtype == DType::kBFloat16 || dtype == DType::kFloat16,
            "--dtypes: with --gpus must be bfloat16 or float16 (got {})", tangram::to_string(dtype));
  }
  for (const auto& [head_dim, head_dim_v] : options.head_dims) {
    for (const int dim : {head_dim, head_dim_v}) {
      require(dim % 8 == 0 && dim <= 256, "--head-dims: with --gpus must be multiples of 8 up to 256 (got {})", dim);
    }
  }
}

Measured measure_machine(const MeasureOptions& options, bool& is_root) {
  if (MpiGroup::is_launched()) {
    MpiGroup group;
    is_root = group.communicator().rank() == 0;
    Measured measured = measure_rank(options, group.communicator());
    group.communicator().barrier("measured");
    return measured;
  }
  is_root = true;
  const int num_ranks = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
  Measured measured;
  run_local_ranks(num_ranks, [&](Communicator& communicator) {
    Measured mine = measure_rank(options, communicator);
    if (communicator.rank() == 0) measured = std::move(mine);
    communicator.barrier("measured");
  });
  return measured;
}

MachineFile merge_machine_files(MachineFile known, const MachineFile& fresh) {
  MachineFile merged = fresh;
  for (KernelEntry& entry : known.kernels) {
    const bool replaced = std::any_of(fresh.kernels.begin(), fresh.kernels.end(), [&](const KernelEntry& other) {
      return other.backend == entry.backend && other.dtype == entry.dtype && other.head_dim == entry.head_dim &&
             other.head_dim_v == entry.head_dim_v;
    });
    if (!replaced) merged.kernels.push_back(std::move(entry));
  }
  for (LinkEntry& entry : known.links) {
    const bool replaced = std::any_of(fresh.links.begin(), fresh.links.end(), [&](const LinkEntry& other) {
      return other.transport == entry.transport && other.between_nodes == entry.between_nodes;
    });
    if (!replaced) merged.links.push_back(std::move(entry));
  }
  return merged;
}

MachineFile merge_gpu_measurement(const MachineFile& known, MachineFile fresh) {
  MachineFile base = known;
  if (known.kernels.empty()) {
    base = builtin_machine_file();
    base.name = fresh.name;
    if (!fresh.kernels.empty()) {
      std::erase_if(base.kernels, [&](const KernelEntry& e) { return e.device != fresh.kernels.front().device; });
    }
  }
  fresh.name = base.name;
  fresh.devices_per_node = std::max(base.devices_per_node, fresh.devices_per_node);
  if (fresh.kernels.empty()) fresh.stage_overhead_s = base.stage_overhead_s;  // no backend of GPUs can run there
  if (fresh.links.empty()) {                                                  // of one GPU
    fresh.ranks_per_node = base.ranks_per_node;
    fresh.devices_per_node = base.devices_per_node;
  }
  return merge_machine_files(std::move(base), fresh);
}

}  // namespace tangram::cli
