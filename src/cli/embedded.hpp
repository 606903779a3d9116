// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Files that are part of the program, so that it runs wherever it is copied. Written by cmake/EmbedFiles.cmake.
#pragma once

#include <string_view>

namespace tangram::cli::embedded {

extern const std::string_view kDocLengths;      // data/doc_lengths.json
extern const std::string_view kReportHtml;      // report/report.html
extern const std::string_view kReportCss;       // report/report.css
extern const std::string_view kReportJs;        // report/report.js
extern const std::string_view kSimulationHtml;  // report/simulation.html

}  // namespace tangram::cli::embedded
