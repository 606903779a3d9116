// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/simulation_page.hpp"

#include "cli/embedded.hpp"
#include "cli/report/page.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

std::string simulation_page(const std::string& svg, const std::string& table) {
  std::string html(embedded::kSimulationHtml);
  fill_in(html, "/*CSS*/", embedded::kReportCss);
  fill_in(html, "/*VERSION*/", kVersion);
  fill_in(html, "/*PLOTS*/", svg);
  fill_in(html, "/*TABLE*/", html_escaped(table));
  return html;
}

}  // namespace tangram::cli
