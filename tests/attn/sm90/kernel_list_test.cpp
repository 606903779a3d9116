// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The list of kernels against the compiled ones, whose names tools/machine_code.txt holds.
#include "attn/sm90/kernel_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "attn/sm90/common/shapes.hpp"

namespace tangram::sm90 {
namespace {

/// Attention kernels proper: those before and after a backward kernel, and the small ones, have other names.
std::vector<std::string> compiled_kernels() {
  std::vector<std::string> names;
  std::ifstream table(TANGRAM_TEST_DATA "/../../tools/machine_code.txt");
  for (std::string line; std::getline(table, line);) {
    if (line.find("7tangram4sm90") == std::string::npos) continue;
    for (const char* kernel :
         {"14forward_kernelI", "15backward_kernelI", "12large_kernelI", "21query_backward_kernelI"}) {
      if (line.find(kernel) != std::string::npos) names.push_back(line);
    }
  }
  return names;
}

/// Template arguments as in kernel names.
std::string integers(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += "Li" + std::to_string(value) + "E";
  return text;
}

/// What the names of the family's kernels for one element type contain, one of these: up to the argument for softcap.
std::vector<std::string> name_parts(const KernelFamily& family, const std::string& element, bool softcap) {
  const std::string flag = softcap ? "Lb1E" : "Lb0E";
  const auto named = [&](const std::string& traits, const std::string& dims) {
    return traits + "I" + element + dims + flag;
  };
  const std::string dims = integers({family.head_dim, family.head_dim_v});
  if (family.pass == AttnPass::kForward) {
    const int step = softcap ? family.step_softcap : family.step;
    const std::string exact = integers({family.head_dim, step});
    if (family.exact) return {named("13ForwardTraits", exact), named("18BlockForwardTraits", exact)};
    return {named(family.min_rows > 0 ? "17ManyForwardTraits" : "19AnyDimForwardTraits", dims)};
  }
  if (family.exact) {
    std::vector<std::string> parts{named("6Traits", integers({family.head_dim}))};
    if (family.gathered && !softcap)
      parts.push_back("6TraitsI" + element + integers({family.head_dim}) + "EEEEvNS1_6ParamsE");
    return parts;
  }
  return {named("12AnyDimTraits", dims), named("11LargeTraits", dims)};
}

bool belongs(const std::string& name, const KernelFamily& family, const std::string& element, bool softcap) {
  const std::vector<std::string> parts = name_parts(family, element, softcap);
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

TEST(KernelList, IsOfTheKernelsThatAreCompiled) {
  const std::vector<std::string> names = compiled_kernels();
  ASSERT_FALSE(names.empty());
  size_t total = 0;
  for (const KernelFamily& family : kernel_catalog().families) {
    int found = 0, in_sample = 0, gathered = 0;
    for (const std::string& name : names) {
      for (const char* element : {"13__nv_bfloat16", "6__half"}) {
        for (const bool softcap : {false, true}) {
          if (!belongs(name, family, element, softcap)) continue;
          ++found;
          const bool bfloat16 = element[0] == '1';
          const bool any_pack = name.find("AnyPackTraits") != std::string::npos;
          in_sample +=
              bfloat16 && (family.exact ? !any_pack : !softcap && (family.head_dim == 128 || family.head_dim == 256));
          gathered +=
              name.find("GatheredTraits") != std::string::npos || name.find("query_backward") != std::string::npos;
        }
      }
    }
    EXPECT_EQ(found, family.num_kernels) << family.head_dim << " " << family.exact;
    EXPECT_EQ(in_sample, family.num_in_sample) << family.head_dim << " " << family.exact;
    EXPECT_EQ(gathered > 0, family.gathered) << family.head_dim << " " << family.exact;
    total += static_cast<size_t>(found);
  }
  EXPECT_EQ(total, names.size());  // none is left out
}

TEST(KernelList, HasBothPassesOfEveryClass) {
  const std::vector<KernelFamily> list = kernel_catalog().families;
  for (const ShapeClass& row : kShapeClasses) {
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      for (const bool exact : {false, true}) {
        const auto count = std::count_if(list.begin(), list.end(), [&](const KernelFamily& family) {
          return family.pass == pass && family.exact == exact && family.head_dim == row.head_dim &&
                 family.head_dim_v == row.head_dim_v;
        });
        const bool has_many = pass == AttnPass::kForward && row.forward_many.warpgroups > 0;
        EXPECT_EQ(count, exact ? row.exact : has_many ? 2 : 1) << row.head_dim;
      }
    }
  }
  for (const KernelFamily& family : list) {
    EXPECT_EQ(num_kernels(family, KernelSet::kAll), family.num_kernels);
    EXPECT_EQ(num_kernels(family, KernelSet::kSample), family.num_in_sample);
    EXPECT_EQ(num_kernels(family, KernelSet::kNone), 0);
  }
}

}  // namespace
}  // namespace tangram::sm90
