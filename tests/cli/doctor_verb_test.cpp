// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram doctor`: GPUs and their backends, and what it hands over to the Python package.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;

TEST(DoctorVerb, ListsGpusWithTheirBackends) {
  EXPECT_THAT(run_program({"doctor"}).out, HasSubstr("backend of each GPU\n"));
  const auto found = nlohmann::json::parse(run_program({"doctor", "--json"}).out);
  for (const auto& gpu : found["gpus"]) EXPECT_FALSE(gpu["reason"].get<std::string>().empty());
}

/// A folder with a `python3` that prints its arguments behind the program text and ends with 1.
std::string fake_python(const TempFolder& folder) {
  const std::string path = folder.write("python3", "#!/bin/sh\nshift 2\necho \"python3 got $*\"\nexit 1\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return "PATH=" + folder.path("") + ":$PATH";
}

TEST(DoctorVerb, RunIsThePythonPackages) {
  const TempFolder folder;
  const ProgramResult result =
      run_program({"doctor", "--run", "--backend", "sm80", "--report", "a b.json"}, fake_python(folder));
  EXPECT_EQ(result.out, "python3 got --run --report a b.json --backend sm80\n");
  EXPECT_EQ(result.code, 1) << "the exit status of the checks";
}

TEST(DoctorVerb, RefusesWhatDoesNotGoTogether) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"doctor", "--report", "x"},
                                               {"doctor", "--backend", "cpu"},
                                               {"doctor", "--run", "--json"}}) {
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.code, 2) << args.back();
    EXPECT_THAT(result.err, HasSubstr("--run"));
  }
  const ProgramResult without_python = run_program({"doctor", "--run"}, "PATH=/nowhere");
  EXPECT_EQ(without_python.code, 3);
  EXPECT_THAT(without_python.err, HasSubstr("needs python3 on the path"));
}

}  // namespace
}  // namespace tangram::cli
