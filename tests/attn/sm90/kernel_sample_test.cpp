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

/// Launches where the build holds the kernels, and otherwise what names the option.
void expect_outcome(const std::string& outcome, bool held, const std::string& launches) {
  if (held) {
    EXPECT_EQ(outcome, launches);
  } else {
    EXPECT_NE(outcome.find("TANGRAM_SM90_KERNELS=all"), std::string::npos) << outcome;
  }
}

TEST(KernelSample, HoldsBfloat16OfHeadDims64And128) {
  for (const int dim : {64, 128}) {
    for (const bool half : {false, true}) {
      const bool held = kAllKernels || !half;
      for (const bool softcap : {false, true}) {
        expect_outcome(forward({half, dim, dim, softcap, false}), held, "1");
        expect_outcome(forward({half, dim, dim, softcap, true}), held, "1");
        // Without query tiles there is no kernel that makes dq.
        expect_outcome(backward({half, dim, dim, softcap, false}), held, "2");
        expect_outcome(backward({half, dim, dim, softcap, true}), held, "2");
      }
    }
  }
}

TEST(KernelSample, RefusesWhatItDoesNotHold) {
  for (const int dim : {24, 56, 96, 112, 192, 256}) {
    SCOPED_TRACE(dim);
    for (const auto& [half, softcap] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      const bool held = kAllKernels || (dim > 96 && !half && !softcap);
      expect_outcome(forward({.half = half, .head_dim = dim, .head_dim_v = dim, .softcap = softcap}), held, "1");
      expect_outcome(backward({.half = half, .head_dim = dim, .head_dim_v = dim, .softcap = softcap}), held,
                     dim > 128 ? "3" : "2");
    }
  }
}

}  // namespace
}  // namespace tangram
