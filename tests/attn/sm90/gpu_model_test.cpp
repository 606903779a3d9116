// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What schedules take an H200 for where none is there is what one says of itself. Needs an H200; skipped elsewhere.
#include "attn/sm90/gpu_model.hpp"

#include <gtest/gtest.h>

#include "attn/sm90/hopper_check.hpp"

namespace tangram {
namespace {

TEST(GpuModelOfDevice, AnH200IsTheDefault) {
  const CudaDevice device = current_cuda_device();
  if (device.name != "NVIDIA H200") GTEST_SKIP() << "no H200: " << device.name << device.error;
  const GpuModel gpu = sm90::gpu_of_current_device();
  EXPECT_EQ(gpu.multiprocessors, GpuModel().multiprocessors);
  EXPECT_EQ(gpu.l2_bytes, GpuModel().l2_bytes);
}

}  // namespace
}  // namespace tangram
