// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/app.hpp"

int main(int argc, char** argv) { return tangram::cli::run_app(argc, argv); }
