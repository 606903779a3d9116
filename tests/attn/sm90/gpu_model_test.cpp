// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What schedules take an H200 for where none is there is what one says of itself. Needs an H200, or an H100; skipped
// elsewhere.
#include "attn/gpu/gpu_model.hpp"

#include <gtest/gtest.h>

#include "attn/sm90/hopper_check.hpp"

namespace tangram {
namespace {

TEST(GpuModelOfDevice, AnH200IsTheDefault) {
  const CudaDevice device = current_cuda_device();
  if (device.name != "NVIDIA H200") GTEST_SKIP() << "no H200: " << device.name << device.error;
  const GpuModel gpu = gpu::gpu_of_current_device();
  EXPECT_EQ(gpu.multiprocessors, GpuModel().multiprocessors);
  EXPECT_EQ(gpu.l2_bytes, GpuModel().l2_bytes);
  // Memory clocks of two H200 differed by 1.8 %.
  EXPECT_NEAR(gpu.memory_bytes_per_s, GpuModel().memory_bytes_per_s, 0.1e12);
  EXPECT_FALSE(gpu.has_slow_memory());
}

// H100: 3.35 TB/s (80 GB, HBM3), or 2.04 (PCIe).
TEST(GpuModelOfDevice, TheMemoryOfAnH100IsSlow) {
  const CudaDevice device = current_cuda_device();
  if (!device.name.starts_with("NVIDIA H100")) GTEST_SKIP() << "no H100: " << device.name << device.error;
  const GpuModel gpu = gpu::gpu_of_current_device();
  EXPECT_GT(gpu.memory_bytes_per_s, 1.9e12);
  EXPECT_LT(gpu.memory_bytes_per_s, 4.1e12);
  EXPECT_TRUE(gpu.has_slow_memory());
}

}  // namespace
}  // namespace tangram
