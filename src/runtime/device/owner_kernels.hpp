// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Kernels of the owner of queries that other ranks compute for, see ProgramDevice: delta, parts combined by lse, the
// gradient of the sink, the largest logits. Sums run in a fixed order: equal bit for bit from run to run.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/device/device_runner.hpp"

namespace tangram::device {

// Rows must be 16-byte aligned, with strides that are multiples of 16 bytes and a dim that is a multiple of 8. lse and
// delta may lie anywhere.

/// ProgramDevice::find_delta.
void find_delta(const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta, cudaStream_t stream);
/// Joins parts in float32, own first, then the others in their order, then the sinks.
void merge_rows(const RowMerge& merge, cudaStream_t stream);
/// Sums over rows are made in float64.
void find_dsink(const SinkGradient& gradient, cudaStream_t stream);
void find_maxima(const ColumnMaxima& maxima, cudaStream_t stream);

/// Before anything that waits for other ranks is on a stream of the current device: see cuda/load_kernel.hpp.
void load_owner_kernels();

}  // namespace tangram::device
