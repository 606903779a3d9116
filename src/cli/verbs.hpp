// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The verbs of `tangram`. Each adds its subcommand; what it parsed lives as long as the returned function, which does
// the work and returns the exit code.
#pragma once

#include <functional>
#include <vector>

namespace CLI {
class App;
}

namespace tangram::cli {

using VerbMain = std::function<int()>;

struct Verb {
  CLI::App* app = nullptr;
  VerbMain main;
  std::vector<const char*> examples;  // command lines, the simplest first
};

/// All verbs of this build, in the order of --help.
std::vector<Verb> add_verbs(CLI::App& app);

Verb add_plan_verb(CLI::App& app);
Verb add_run_verb(CLI::App& app);
Verb add_verify_verb(CLI::App& app);
Verb add_bench_verb(CLI::App& app);
Verb add_simulate_verb(CLI::App& app);
Verb add_doctor_verb(CLI::App& app);
Verb add_kernels_verb(CLI::App& app);
Verb add_completion_verb(CLI::App& app);

}  // namespace tangram::cli
