// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A program to be read by people.
#pragma once

#include <string>

#include "plan/program/program.hpp"

namespace tangram {

/// Regions, then operations, a line each: what they read and write, what moves. Of many copies the first ones.
std::string program_text(const Program& program);

}  // namespace tangram
