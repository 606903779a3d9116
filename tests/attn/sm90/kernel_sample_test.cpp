// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which kernels a build holds (TANGRAM_SM90_KERNELS), over a runtime that counts launches.

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "attn/sm90/backward/launch.hpp"
#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/forward/launch.hpp"
#include "cuda/counting_runtime.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using sm90::ForwardVariant;
using sm90::kAllKernels;
using sm90::backward::Variant;

/// How many kernels were launched, or what was thrown.
template <typename Call>
std::string outcome(const Call& call) {
  const auto before = testing::runtime_counts().launches;
  try {
    call();
  } catch (const NotAvailable& error) {
    return error.what();
  }
  return std::to_string(testing::runtime_counts().launches - before);
}
std::string forward(const ForwardVariant& variant) {
  return outcome([&] { sm90::launch_forward(variant, {}, 1, nullptr); });
}
std::string backward(const Variant& variant) {
  return outcome([&] { sm90::backward::launch(variant, {}, {}, 1, nullptr); });
}

TEST(KernelSample, HoldsAllKernelsOfHeadDims64And128) {
  for (const int dim : {64, 128}) {
    for (const bool half : {false, true}) {
      for (const bool softcap : {false, true}) {
        EXPECT_EQ(forward({half, dim, dim, softcap, false}), "1");
        EXPECT_EQ(forward({half, dim, dim, softcap, true}), "1");
        EXPECT_EQ(backward({half, dim, dim, softcap, false}), "2");  // no query tiles, so none that makes dq
        EXPECT_EQ(backward({half, dim, dim, softcap, true}), "2");
      }
    }
  }
}

TEST(KernelSample, RefusesWhatItDoesNotHold) {
  for (const int dim : {24, 56, 96, 112, 192, 256}) {
    SCOPED_TRACE(dim);
    const std::string backward_kernels = dim > 128 ? "3" : "2";
    EXPECT_EQ(forward({.head_dim = dim, .head_dim_v = dim}), "1");
    EXPECT_EQ(backward({.head_dim = dim, .head_dim_v = dim}), backward_kernels);
    for (const auto& [half, softcap] : {std::pair{true, false}, {false, true}, {true, true}}) {
      const std::string forward_outcome =
          forward({.half = half, .head_dim = dim, .head_dim_v = dim, .softcap = softcap});
      const std::string backward_outcome =
          backward({.half = half, .head_dim = dim, .head_dim_v = dim, .softcap = softcap});
      if (kAllKernels) {
        EXPECT_EQ(forward_outcome, "1");
        EXPECT_EQ(backward_outcome, backward_kernels);
      } else {
        EXPECT_TRUE(forward_outcome.find("TANGRAM_SM90_KERNELS=all") != std::string::npos) << forward_outcome;
        EXPECT_TRUE(backward_outcome.find("TANGRAM_SM90_KERNELS=all") != std::string::npos) << backward_outcome;
      }
    }
  }
}

}  // namespace
}  // namespace tangram
