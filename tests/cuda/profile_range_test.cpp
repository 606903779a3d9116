// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a profiler is told. NVTX looks for a profiler in the program itself, so that the test is one; needs no GPU.
#include "cuda/profile_range.hpp"

#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace {

// Before anything reads the environment.
[[maybe_unused]] const int kProfile = setenv("TANGRAM_PROFILE", "1", 1);

std::vector<std::string>& calls() {
  static std::vector<std::string> list;
  return list;
}

int on_push(const char* name) {
  calls().push_back(name);
  return 0;
}
int on_pop() {
  calls().push_back("end");
  return 0;
}

int initialize(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&on_push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&on_pop);
  return 1;
}

// NVTX's own variable, empty where no profiler is linked in.
[[maybe_unused]] const bool kInstalled = (InitializeInjectionNvtx2_fnptr = &initialize, true);

}  // namespace

namespace tangram::cuda {
namespace {

TEST(ProfileRange, NamesWhatItEncloses) {
  {
    const ProfileRange outer("pass");
    const ProfileRange inner("kernel");
  }
  EXPECT_EQ(calls(), (std::vector<std::string>{"pass", "kernel", "end", "end"}));
}

}  // namespace
}  // namespace tangram::cuda
