// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Files in and out where the file system does not play along.
#include "cli/text_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "cli/program.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;

/// Files of this process cannot exceed `bytes`, as on a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_limit_{};
  void (*old_handler_)(int);
};

std::string write_error(const std::string& path, const std::string& contents) {
  try {
    write_file(path, "--html", contents);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

size_t num_files(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(TextFile, ByteOrderMarkIsNoPartOfTheText) {
  const TempFolder folder;
  EXPECT_EQ(read_text_file(folder.write("lengths.txt",
                                        "\xef\xbb\xbf"
                                        "3\n4\n"),
                           "--doc-lengths", 100),
            "3\n4\n");
}

TEST(TextFile, FullDiskLeavesWhatWasThere) {
  const TempFolder folder;
  const std::string path = folder.write("machine.json", "measured for hours");
  {
    const FileSizeLimit limit(1 << 12);
    EXPECT_THAT(write_error(path, std::string(1 << 16, 'x')), HasSubstr("--html: cannot write '" + path + "': "));
    EXPECT_THAT(write_error(folder.path("new.json"), std::string(1 << 16, 'x')), HasSubstr("cannot write"));
  }
  EXPECT_EQ(read_all(path), "measured for hours");
  EXPECT_EQ(num_files(folder.path("")), 1u);  // neither half of the new one, nor what it was written to first
  EXPECT_EQ(write_error(path, "new"), "");
  EXPECT_EQ(read_all(path), "new");
}

TEST(TextFile, LinksAndPermissionsStay) {
  const TempFolder folder;
  const std::string file = folder.write("file", "old");
  namespace fs = std::filesystem;
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  fs::create_symlink(file, folder.path("link"));
  EXPECT_EQ(write_error(folder.path("link"), "new"), "");
  EXPECT_TRUE(fs::is_symlink(folder.path("link")));
  EXPECT_EQ(read_all(file), "new");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
}

TEST(TextFile, DevicesAreWrittenInPlace) {
  EXPECT_EQ(write_error("/dev/null", "text"), "");
  EXPECT_THAT(write_error("/dev/full", "text"), HasSubstr("No space left on device"));
  EXPECT_THAT(write_error("/no/such/folder/file", "text"), HasSubstr("No such file or directory"));
  EXPECT_THAT(write_error("/", "text"), HasSubstr("Is a directory"));
}

std::string obstacle(const std::vector<OutputFile>& files) {
  try {
    require_writable(files);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(TextFile, WhatCannotBeWrittenIsKnownBeforeTheWork) {
  const TempFolder folder;
  const std::string file = folder.write("file", "old");
  EXPECT_EQ(obstacle({{"--html", file}, {"--svg", folder.path("new")}, {"--json", ""}}), "");
  EXPECT_EQ(obstacle({{"--html", "in_this_folder"}}), "");
  EXPECT_EQ(obstacle({{"--html", "/dev/null"}, {"--svg", "/dev/null"}}), "");
  EXPECT_EQ(read_all(file), "old");
  EXPECT_EQ(num_files(folder.path("")), 1u);
  EXPECT_EQ(obstacle({{"--html", "/no/such/folder/x"}}),
            "--html: cannot write '/no/such/folder/x': No such file or directory");
  EXPECT_THAT(obstacle({{"--html", folder.path("")}}), HasSubstr("Is a directory"));
  EXPECT_THAT(obstacle({{"--html", file + "/x"}}), HasSubstr("Not a directory"));
}

TEST(TextFile, TwoOptionsDoNotWriteOneFile) {
  const TempFolder folder;
  const std::string file = folder.path("x");
  EXPECT_EQ(obstacle({{"--save-plan", file}, {"--html", file}}),
            "--save-plan, --html: must name different files (got '" + file + "' and '" + file + "')");
  EXPECT_THAT(obstacle({{"--save-plan", file}, {"--html", folder.path("./x")}}),
              HasSubstr("must name different files"));
  std::filesystem::create_symlink(folder.write("there", ""), folder.path("link"));
  EXPECT_THAT(obstacle({{"--svg", folder.path("there")}, {"--html", folder.path("link")}}),
              HasSubstr("must name different files"));
}

}  // namespace
}  // namespace tangram::cli
