// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tangram {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kArchitectures = "80-real 90-real 80-virtual";

TEST(GpuList, MachineCodeRunsOnLaterMinorVersionsAndPtxOnTheRest) {
  EXPECT_EQ(compiled_code(kArchitectures, 8, 0), "machine code for 8.0");
  EXPECT_EQ(compiled_code(kArchitectures, 8, 9), "machine code for 8.0");
  EXPECT_EQ(compiled_code(kArchitectures, 9, 0), "machine code for 9.0");
  EXPECT_THAT(compiled_code(kArchitectures, 12, 0), StartsWith("PTX for 8.0"));
  EXPECT_EQ(compiled_code(kArchitectures, 7, 5), "");
  EXPECT_EQ(compiled_code("80-real", 9, 0), "") << "machine code of another major version";
  EXPECT_EQ(compiled_code("80 86-real", 8, 6), "machine code for 8.6");
  EXPECT_EQ(compiled_code("90a-real", 9, 1), "") << "for 9.0 alone";
  EXPECT_THAT(compiled_code("80", 10, 0), StartsWith("PTX for 8.0")) << "without a suffix it is both";
}

GpuInfo gpu_of(int major, int minor, int shared_kb) {
  GpuInfo gpu;
  gpu.name = "GPU";
  gpu.major = major, gpu.minor = minor;
  gpu.shared_memory_kb = shared_kb;
  return gpu;
}

std::vector<AttnBackendInfo> backends(bool sm90, bool sm80) {
  return {{"sm90", sm90, sm90 ? "GPU" : "needs a Hopper GPU", MemoryKind::kDevice},
          {"sm80", sm80, sm80 ? "GPU" : "needs 8.0", MemoryKind::kDevice},
          {"cpu", true, "avx2", MemoryKind::kHost}};
}

TEST(GpuList, SaysWhichBackendAndWhy) {
  GpuInfo hopper = gpu_of(9, 0, 227);
  choose_backend(hopper, backends(true, true), {kArchitectures});
  EXPECT_EQ(hopper.backend, "sm90");

  GpuInfo ada = gpu_of(8, 9, 99);
  choose_backend(ada, backends(false, true), {kArchitectures});
  EXPECT_EQ(ada.backend, "sm80");
  EXPECT_EQ(ada.reason, "machine code for 8.0, tiles for 99 KB of shared memory a block; sm90 needs a Hopper GPU");

  GpuInfo volta = gpu_of(7, 0, 96);
  choose_backend(volta, backends(false, false), {kArchitectures});
  EXPECT_EQ(volta.backend, "");
  EXPECT_THAT(volta.reason, HasSubstr("sm90 needs a Hopper GPU; sm80 needs 8.0; tensors in its memory are refused"));
}

TEST(GpuList, ShowsTheLimitOfSharedMemoryAndMissingCode) {
  GpuInfo ampere = gpu_of(8, 0, 163);
  choose_backend(ampere, backends(false, true), {kArchitectures});
  EXPECT_THAT(ampere.reason, HasSubstr("tiles for 163 KB of shared memory a block;"));
  choose_backend(ampere, backends(false, true), {kArchitectures, 99});
  EXPECT_THAT(ampere.reason, HasSubstr("tiles for 99 KB of shared memory a block (TANGRAM_SM80_SHARED_KB=99);"));
  GpuInfo blackwell = gpu_of(12, 0, 99);
  choose_backend(blackwell, backends(false, true), {"80-real"});
  EXPECT_THAT(blackwell.reason, StartsWith("no code for it in this build"));
}

}  // namespace
}  // namespace tangram
