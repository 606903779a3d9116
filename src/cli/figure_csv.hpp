// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Figures as CSV: one a line, with the same columns whatever was measured or predicted.
#pragma once

#include <string>
#include <string_view>

#include "tangram/config.hpp"

namespace tangram::cli {

/// Context of a figure. Texts may be empty where they do not apply.
struct FigureContext {
  std::string mask;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int cp_size = 1;
  int64_t chunk_size = 0;
  HeadConfig heads;
  std::string backend;
  std::string transport;
  std::string strategy;  ///< `tangram`, or the peer that the figure is of
};

class FigureCsv {
 public:
  /// `machine`: where the figures were measured, or what they were predicted for.
  explicit FigureCsv(std::string_view machine);

  void add(const FigureContext& context, std::string_view figure, std::string_view unit, double value);
  /// Head line and figures.
  const std::string& text() const { return text_; }

 private:
  std::string prefix_;
  std::string text_;
};

}  // namespace tangram::cli
