// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The command line as a whole: verbs, help, and what errors become.
#pragma once

#include <exception>

namespace tangram::cli {

/// Runs `tangram` with these arguments; the return value is the process's exit code. Prints to stdout and stderr.
int run_app(int argc, char** argv);

/// The exit code that stands for `error`.
int exit_code_of(const std::exception& error);
/// Prints `error` to stderr and returns its exit code.
int report_error(const std::exception& error);

}  // namespace tangram::cli
