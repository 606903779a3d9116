// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NumPy's .npy files: the header is checked against the file before a byte of data is believed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tangram/tensor.hpp"

namespace tangram::cli {

/// Fields of the head of a .npy file.
struct NpyHeader {
  std::string descr;  // e.g. `<f4`
  bool fortran_order = false;
  std::vector<int64_t> shape;
  int64_t data_offset = 0;  // bytes before the first element
};

/// Parses the head of `file` (a file's first bytes, or all of them). Formats 1.0, 2.0 and 3.0. Throws InvalidArgument,
/// starting with `what`.
NpyHeader parse_npy_header(std::string_view file, std::string_view what);

/// Reads a float32 `[rows, heads, dim]` array in C order. Throws InvalidArgument, starting with `what`, when the file
/// is anything else, or holds fewer or more bytes than its header says.
HostTensor read_npy(const std::string& path, std::string_view what);

/// Writes float32 `values` of `shape` (format 1.0). Throws InvalidArgument if the file cannot be written.
void write_npy(const std::string& path, std::span<const float> values, std::span<const int64_t> shape);

}  // namespace tangram::cli
