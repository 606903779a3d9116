// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/app.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "cli/exit_code.hpp"
#include "cli/verbs.hpp"
#include "tangram/error.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 verification failed; 2 usage or bad input; 3 not available here;\n"
    "            4 communication failed or timed out; 5 internal error.\n"
    "Examples:   tangram plan --family causal --seqlen 131072 --cp-size 8\n"
    "            tangram plan --total-seqlen 131072 --seed 1 --cp-size 8 --html report.html\n"
    "            tangram verify --family varlen_causal --seqlen 8192 --cp-size 4 --heads-q 8 --heads-kv 2 --head-dim "
    "64";

int fail(int code, const std::string& text) {
  std::fprintf(stderr, "tangram: %s\n", text.c_str());
  return code;
}

template <class Kind>
bool is(const std::exception& error) {
  return dynamic_cast<const Kind*>(&error) != nullptr;
}

int run_verb(const std::vector<Verb>& verbs) {
  for (const Verb& verb : verbs) {
    if (verb.app->parsed()) return verb.main();
  }
  return kBadInput;
}

}  // namespace

int run_app(int argc, char** argv) {
  CLI::App app("Distributed attention for long, irregularly masked sequences", "tangram");
  app.set_version_flag("--version", std::string("tangram ") + kVersion);
  app.require_subcommand(1);
  app.footer(kFooter);
  const std::vector<Verb> verbs = add_verbs(app);
  try {
    app.parse(argc, argv);
    const int code = run_verb(verbs);
    if (std::fflush(stdout) != 0) return fail(kBadInput, "cannot write to standard output");
    return code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(kBadInput, std::string(error.what()) + "\nRun with --help for the options.");
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

int exit_code_of(const std::exception& error) {
  if (is<InvalidArgument>(error) || is<std::bad_alloc>(error)) return kBadInput;
  if (is<NotAvailable>(error) || is<CudaError>(error)) return kNotAvailable;
  if (is<Timeout>(error) || is<CommError>(error)) return kCommFailed;
  return kInternal;
}

int report_error(const std::exception& error) {
  const int code = exit_code_of(error);
  if (is<std::bad_alloc>(error)) {
    return fail(code, "not enough memory for tensors of this size");
  }
  return fail(code, code == kInternal ? std::string("internal error: ") + error.what() : error.what());
}

}  // namespace tangram::cli
