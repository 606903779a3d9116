// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The page that `tangram simulate --html` writes: plots and the table below them, in one file.
#pragma once

#include <string>

namespace tangram::cli {

std::string simulation_page(const std::string& svg, const std::string& table);

}  // namespace tangram::cli
