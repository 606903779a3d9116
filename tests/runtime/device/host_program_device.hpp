// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What programs do to memory, done to the host's: with HostMemoryDevice what runs on GPUs is tested without one.
#pragma once

#include <cstring>

#include "runtime/device/device_runner.hpp"
#include "runtime/rows.hpp"

namespace tangram::testing {

inline ProgramDevice host_program_device() {
  ProgramDevice device;
  device.sum_rows = [](std::span<const RowSum> sums, void*) {
    for (const RowSum& sum : sums) {
      convert_rows(sum.source, sum.result, sum.addend.data == nullptr ? nullptr : &sum.addend);
    }
  };
  device.copy_floats = [](std::span<const FloatCopy> copies, void*) {
    for (const FloatCopy& copy : copies) {
      for (int64_t row = 0; row < copy.rows; ++row) {
        for (int column = 0; column < copy.columns; ++column) {
          copy.to[row * copy.to_stride + column] =
              copy.from == nullptr ? copy.value : copy.from[row * copy.from_stride + column];
        }
      }
    }
  };
  device.zero = [](void* data, int64_t num_bytes, void*) { std::memset(data, 0, static_cast<size_t>(num_bytes)); };
  device.scale = [](float* values, int64_t count, float factor, void*) {
    for (int64_t i = 0; i < count; ++i) values[i] *= factor;
  };
  return device;
}

}  // namespace tangram::testing
