// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the transports between the GPUs of this host give.
#pragma once

#include <string>

#include "cli/measure/link_measure.hpp"
#include "cli/measure/machine_measure.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::cli {

/// Links of every transport that can be used between GPUs, one for each rank of `control`. A note for each, or the
/// reason why it is not available; kernels and memory are left out. Collective; the same on all ranks. Throws
/// NotAvailable in a build without CUDA and where there are fewer GPUs than ranks.
Measured measure_gpu_links(Communicator& control, int num_repeats);

struct GpuLink {
  LinkMeasurement measured;
  std::string transport;
  int ctas = 0;  // thread blocks of a transfer, as far as the transport knows
};
/// The link of one transport, to the rank ring_distance on; times are those of the slowest rank. Collective. Throws
/// what make_device_communicator throws.
GpuLink measure_gpu_link(Communicator& control, const DeviceCommunicatorConfig& config, int num_repeats);

}  // namespace tangram::cli
