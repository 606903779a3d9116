// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/hopper_check.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "attn/sm90/sm90_backend.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/backends.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

std::string message_of(const HopperCheck& check) {
  try {
    require_hopper(check);
  } catch (const NotAvailable& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(HopperCheck, NamesAHopperGpu) {
  const HopperCheck check = check_hopper({"NVIDIA H200", 9, 0, 132, ""});
  EXPECT_TRUE(check.found);
  EXPECT_EQ(check.text, "NVIDIA H200, 132 multiprocessors");
  EXPECT_NO_THROW(require_hopper(check));
}

TEST(HopperCheck, SaysWhichGpuItIsAndWhatToUse) {
  const std::vector<std::pair<CudaDevice, std::string>> others = {
      {{"NVIDIA A100-SXM4-80GB", 8, 0, 108, ""}, "NVIDIA A100-SXM4-80GB, 8.0"},
      {{"NVIDIA L40S", 8, 9, 142, ""}, "NVIDIA L40S, 8.9"},
      {{"NVIDIA B200", 10, 0, 148, ""}, "NVIDIA B200, 10.0"},
      {{"NVIDIA RTX PRO 6000", 12, 0, 188, ""}, "NVIDIA RTX PRO 6000, 12.0"},
      {{"a device of another 9", 9, 1, 132, ""}, "a device of another 9, 9.1"},
  };
  for (const auto& [device, got] : others) {
    const HopperCheck check = check_hopper(device);
    EXPECT_FALSE(check.found) << device.name;
    EXPECT_EQ(message_of(check),
              "Sm90Backend: needs a Hopper GPU (compute capability 9.0); use the backend cpu (got " + got + ")");
  }
}

TEST(HopperCheck, SaysThatThereIsNoDevice) {
  const HopperCheck check = check_hopper({"", 0, 0, 0, "cudaErrorNoDevice"});
  EXPECT_FALSE(check.found);
  EXPECT_EQ(message_of(check), "Sm90Backend: needs a Hopper GPU; use the backend cpu (got cudaErrorNoDevice)");
}

// On a machine without a Hopper GPU, which is where the error matters: before anything is allocated or launched.
TEST(HopperCheck, RefusesMasksWhereThereIsNoHopperGpu) {
  const HopperCheck here = check_hopper();
  if (here.found) GTEST_SKIP() << here.text;
  const Sm90Backend backend;
  const AttnShape shape{256, 256, 2, 1, 128, 128, DType::kBFloat16};
  try {
    static_cast<void>(backend.make_slot(shape));
    FAIL() << "make_slot() must throw";
  } catch (const NotAvailable& error) {
    EXPECT_EQ(error.what(), "Sm90Backend: " + here.text);
  }
  try {
    static_cast<void>(make_attn_backend("sm90"));
    FAIL() << "make_attn_backend() must throw";
  } catch (const NotAvailable& error) {
    EXPECT_EQ(error.what(), "make_attn_backend: sm90 cannot run here: " + here.text);
  }
}

}  // namespace
}  // namespace tangram
