// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The shape classes in words, for errors and reports.
#pragma once

#include <fmt/format.h>

#include <string>

#include "attn/sm90/common/shapes.hpp"

namespace tangram::sm90 {

/// "up to 64/64 or 128/128": the largest dimensions that kernels hold.
inline std::string shape_class_text() {
  std::string text = "up to";
  for (size_t i = 0; i < std::size(kShapeClasses); ++i) {
    const char* separator = i == 0 ? "" : i + 1 == std::size(kShapeClasses) ? " or" : ",";
    text += fmt::format("{} {}/{}", separator, kShapeClasses[i].head_dim, kShapeClasses[i].head_dim_v);
  }
  return text;
}

}  // namespace tangram::sm90
