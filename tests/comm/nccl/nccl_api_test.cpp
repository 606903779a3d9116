// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_api.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {
namespace {

using ::testing::HasSubstr;

std::string load_error(const std::string& library) {
  try {
    NcclApi::load(library);
  } catch (const NotAvailable& error) {
    return error.what();
  }
  return "";
}

TEST(NcclApi, ALibraryThatIsMissingOrAnotherIsNamed) {
  const std::string missing = load_error("/no/such/libnccl.so");
  EXPECT_THAT(missing, HasSubstr("NCCL: must be installed, or named by TANGRAM_NCCL_LIBRARY"));
  EXPECT_THAT(missing, HasSubstr("/no/such/libnccl.so"));
  EXPECT_EQ(load_error("libc.so.6"), "NCCL: libc.so.6 lacks ncclGetVersion");
}

TEST(NcclApi, TheInstalledLibraryHasWhatTheTransportCalls) {
  NcclApi api;
  try {
    api = NcclApi::load(Env::get().nccl_library);
  } catch (const NotAvailable& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_GE(api.version, NcclApi::kMinVersion);
  api.check(NcclApi::kSuccess, "nothing");
  api.check(NcclApi::kInProgress, "nothing");
  try {
    api.check(4, "ncclSend");
    ADD_FAILURE() << "an error was accepted";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ncclSend: must succeed (got: invalid argument"));
  }
}

}  // namespace
}  // namespace tangram::comm
