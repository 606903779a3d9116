// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/npy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;

std::string npy(const std::string& header, size_t data_bytes, char major = 1) {
  std::string file = "\x93NUMPY";
  file += major;
  file += '\0';
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  if (major > 1) file += std::string(2, '\0');
  return file + header + std::string(data_bytes, '\0');
}

std::string header_of(const std::string& shape, const std::string& descr = "<f4", const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::string error_of_npy(const std::string& contents) {
  const TempFolder folder;
  try {
    read_npy(folder.write("x.npy", contents), "--q");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Npy, WhatIsWrittenIsRead) {
  const TempFolder folder;
  const std::vector<float> values{1, -2, 3.5F, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const int64_t shape[] = {2, 3, 2};
  write_npy(folder.path("x.npy"), values, shape);
  const HostTensor tensor = read_npy(folder.path("x.npy"), "--q");
  ASSERT_EQ(tensor.rows(), 2);
  ASSERT_EQ(tensor.heads(), 3);
  ASSERT_EQ(tensor.dim(), 2);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(tensor.data<float>()[i], values[i]);
  // Data starts at a multiple of 64, as NumPy writes it.
  EXPECT_EQ(parse_npy_header(read_all(folder.path("x.npy")), "x").data_offset % 64, 0);
}

TEST(Npy, ReadsLaterFormats) {
  EXPECT_EQ(error_of_npy(npy(header_of("(2, 3, 4)"), 96, 2)), "");
  EXPECT_EQ(error_of_npy(npy(header_of("(2, 3, 4)"), 96, 3)), "");
}

TEST(Npy, RefusesWhatLies) {
  EXPECT_THAT(error_of_npy(npy(header_of("(2, 3, 4)"), 95)), HasSubstr("truncated"));
  EXPECT_THAT(error_of_npy(npy(header_of("(2, 3, 4)"), 97)), HasSubstr("trailing bytes"));
  // A terabyte by its header, a few bytes in fact: refused before memory is asked for.
  EXPECT_THAT(error_of_npy(npy(header_of("(4294967296, 8, 32)"), 8)), HasSubstr("truncated"));
  EXPECT_THAT(error_of_npy(npy(header_of("(4611686018427387904, 4, 4)"), 8)), HasSubstr("fit in memory"));
  EXPECT_THAT(error_of_npy(npy(header_of("(99999999999999999999, 4, 4)"), 8)), HasSubstr("malformed"));
  EXPECT_THAT(error_of_npy(npy(header_of("(-2, 3, 4)"), 96)), HasSubstr("malformed"));
  EXPECT_THAT(error_of_npy(npy(header_of("(0, 3, 4)"), 0)), HasSubstr("must be positive"));
}

TEST(Npy, RefusesOtherTypesOrdersAndShapes) {
  EXPECT_THAT(error_of_npy(npy(header_of("(2, 3, 4)", "<f8"), 192)), HasSubstr("'<f4' (got '<f8')"));
  EXPECT_THAT(error_of_npy(npy(header_of("(2, 3, 4)", ">f4"), 96)), HasSubstr("got '>f4'"));
  EXPECT_THAT(error_of_npy(npy(header_of("(2, 3, 4)", "<f4", "True"), 96)), HasSubstr("must be in C order"));
  EXPECT_THAT(error_of_npy(npy(header_of("(6, 4)"), 96)), HasSubstr("[seqlen, heads, dim] (got [6, 4])"));
  EXPECT_THAT(error_of_npy(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1, 1)}", 4)),
              HasSubstr("not records"));
}

TEST(Npy, RefusesMalformedHeaders) {
  EXPECT_THAT(error_of_npy("not an array"), HasSubstr("does not start as one"));
  EXPECT_THAT(error_of_npy(""), HasSubstr("does not start as one"));
  EXPECT_THAT(error_of_npy(npy("{'descr': '<f4'}", 0)), HasSubstr("must hold descr, fortran_order and shape"));
  EXPECT_THAT(error_of_npy(npy("{'descr': '<f4', 'descr': '<f4'}", 0)), HasSubstr("once (got 'descr')"));
  EXPECT_THAT(error_of_npy(npy(header_of("(2, 3, 4)") + "x", 96)), HasSubstr("end after its dictionary"));
  EXPECT_THAT(error_of_npy(npy(header_of("(2, 3, 4)"), 96, 9)), HasSubstr("format must be 1.0, 2.0 or 3.0"));
  std::string cut = npy(header_of("(2, 3, 4)"), 96);
  EXPECT_THAT(error_of_npy(cut.substr(0, 40)), HasSubstr("truncated within its header"));
}

}  // namespace
}  // namespace tangram::cli
