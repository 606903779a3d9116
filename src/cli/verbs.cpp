// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/verbs.hpp"

namespace tangram::cli {

std::vector<Verb> add_verbs(CLI::App& app) {
  return {add_plan_verb(app),     add_run_verb(app),    add_verify_verb(app),  add_bench_verb(app),
          add_simulate_verb(app), add_doctor_verb(app), add_kernels_verb(app), add_completion_verb(app)};
}

}  // namespace tangram::cli
