// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which head dimensions kernels are measured with.
#pragma once

#include <string_view>
#include <vector>

namespace tangram::cli {

struct HeadDims {
  int head_dim = 0;    ///< of q and k
  int head_dim_v = 0;  ///< of v

  friend bool operator==(const HeadDims&, const HeadDims&) = default;
};

/// Parses a list like `64,192:128`: a number for q, k and v, or one for q and k and one for v. Throws InvalidArgument
/// that starts with `what`, for any other text and for numbers outside [1, 1024].
std::vector<HeadDims> parse_head_dims(std::string_view list, std::string_view what);

/// Head dims for which there are GPU kernels; these compute others.
std::vector<HeadDims> gpu_head_dims();

}  // namespace tangram::cli
