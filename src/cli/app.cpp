// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/app.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/bounded_json.hpp"
#include "cli/exit_code.hpp"
#include "cli/options.hpp"
#include "cli/unfinished.hpp"
#include "cli/verbs.hpp"
#include "core/nearest_word.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"
#include "tangram/log.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done; 1 verification failed; 2 usage or bad input; 3 not available here;\n"
    "            4 communication failed or timed out; 5 internal error.\n";

std::string footer(const std::vector<const char*>& examples) {
  std::string text = kExitCodes;
  for (size_t i = 0; i < examples.size(); ++i) {
    text += fmt::format("{:<12}{}{}", i == 0 ? "Examples:" : "", examples[i], i + 1 < examples.size() ? "\n" : "");
  }
  return text;
}

// What every verb's --help ends with; that of the program shows the simplest use of each verb.
void add_footers(CLI::App& app, const std::vector<Verb>& verbs) {
  std::vector<const char*> simplest;
  for (const Verb& verb : verbs) {
    verb.app->footer(footer(verb.examples));
    simplest.push_back(verb.examples.front());
  }
  app.footer(footer(simplest));
}

// Messages may quote files of strangers: whatever would move a terminal's cursor is shown as '?'.
int fail(int code, std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  std::fprintf(stderr, "tangram: %s\n", text.c_str());
  return code;
}

template <class Kind>
bool is(const std::exception& error) {
  return dynamic_cast<const Kind*>(&error) != nullptr;
}

bool has_option(const Verb& verb, const std::string& name) { return verb.app->get_option_no_throw(name) != nullptr; }

// The option of `verb` that is nearest to `name`, or nothing.
std::string nearest_option(const Verb& verb, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.app->get_options()) {
    for (const std::string& long_name : option->get_lnames()) names.push_back("--" + long_name);
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  return std::string(nearest_word(name, views));
}

// What an option that was renamed is called now, or nothing.
std::string new_name_of(const std::string& option) {
  constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
      {"--head-ranks", "--ulysses-degree N"}, {"--inner-ring", "--inner-ring-size N"}, {"--on-gpus", "--target gpu"}};
  for (const auto& [old_name, new_name] : kRenamed) {
    if (option == old_name) return std::string(new_name);
  }
  return "";
}

// What is wrong with an argument that `used` does not know.
std::string unknown_argument(const std::vector<Verb>& verbs, const Verb& used) {
  std::string name = used.app->remaining().front();
  for (const std::string& argument : used.app->remaining()) {
    if (argument.rfind("--", 0) == 0) name = argument.substr(0, argument.find('='));
  }
  const std::string verb_name = used.app->get_name();
  if (name.rfind("--", 0) != 0) return fmt::format("{}: takes options only (got '{}')", verb_name, name);
  if (const std::string now = new_name_of(name); !now.empty()) return fmt::format("{}: was renamed: use {}", name, now);
  std::string others;
  for (const Verb& verb : verbs) {
    if (has_option(verb, name)) others += (others.empty() ? "" : ", ") + verb.app->get_name();
  }
  if (!others.empty()) return fmt::format("{}: not an option of {}, but of {}", name, verb_name, others);
  const std::string near = nearest_option(used, name);
  return fmt::format("{}: {} has no such option{}", name, verb_name,
                     near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
}

// What is wrong with the number of values of an option, which the error's text begins with.
std::string wrong_number_of_values(const Verb& verb, const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  const CLI::Option* option = verb.app->get_option_no_throw(name);
  if (option == nullptr) return text;
  const size_t count = option->results().size();
  if (count == 0) return fmt::format("{}: needs a value ({})", name, option->get_type_name());
  return fmt::format("{}: must be given once (got {} values)", name, count);
}

std::string usage_error(const CLI::ParseError& error, const std::vector<Verb>& verbs, int argc, char** argv) {
  for (const Verb& verb : verbs) {
    if (!verb.app->parsed()) continue;
    std::string text = error.what();
    if (is<CLI::ExtrasError>(error) && !verb.app->remaining().empty()) text = unknown_argument(verbs, verb);
    if (is<CLI::ArgumentMismatch>(error)) text = wrong_number_of_values(verb, text);
    return fmt::format("{}; see tangram {} --help", text, verb.app->get_name());
  }
  std::string names;
  for (const Verb& verb : verbs) names += (names.empty() ? "" : ", ") + verb.app->get_name();
  if (argc < 2) return fmt::format("needs a verb: {}; see tangram --help", names);
  return fmt::format("unknown verb '{}'; there are {}; see tangram --help", argv[1], names);
}

void refuse_clipped_numbers(const std::vector<Verb>& verbs) {
  for (const Verb& verb : verbs) {
    for (CLI::Option* option : verb.app->get_options()) {
      const std::string type = option->get_type_name();
      if (type == "N" || type == "S") require_whole_number(*option, 0);
    }
  }
}

// An empty value is a variable of a script that was not set, seldom a wish.
void refuse_empty_values(const Verb& verb) {
  for (const CLI::Option* option : verb.app->get_options()) {
    for (const std::string& value : option->results()) {
      require(!value.empty(), "{}: needs a value (got an empty one)", option->get_name());
    }
  }
}

// Text without the function of the library that it begins with, which users of the program do not call. Verbs stay.
std::string_view text_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours == nullptr || ours->function().empty()) return error.what();
  const std::string_view name = ours->function();
  const bool is_type = name.front() >= 'A' && name.front() <= 'Z' && name.find_first_of("aeiou") != name.npos;
  const bool is_function = name.find('_') != name.npos || name.find("::") != name.npos;
  return is_type || is_function ? ours->requirement() : error.what();
}

int run_verb(const std::vector<Verb>& verbs) {
  for (const Verb& verb : verbs) {
    if (!verb.app->parsed()) continue;
    refuse_empty_values(verb);
    return verb.main();
  }
  return kBadInput;
}

}  // namespace

int run_app(int argc, char** argv) {
  std::string asks_for_help = "--help";
  char* help[] = {argv[0], argc > 2 ? argv[2] : asks_for_help.data(), asks_for_help.data()};
  if (argc > 1 && std::string_view(argv[1]) == "help") {  // tangram help [VERB]
    if (argc > 3) return fail(kBadInput, "help: takes one verb; see tangram --help");
    argv = help;
  }
  CLI::App app("Distributed attention for long, irregularly masked sequences", "tangram");
  handle_signals();
  set_log_sink([](std::string_view line) {
    std::fprintf(stderr, "tangram: %.*s\n", static_cast<int>(line.size()), line.data());
  });
  app.set_version_flag("--version", std::string("tangram ") + kVersion);
  app.require_subcommand(1);
  const std::vector<Verb> verbs = add_verbs(app);
  add_footers(app, verbs);
  refuse_clipped_numbers(verbs);
  const auto is_asked = [&](const Verb& verb) { return verb.app->get_name() == argv[1]; };
  if (argv == help && argc == 3 && std::none_of(verbs.begin(), verbs.end(), is_asked)) argc = 2;  // lists the verbs
  try {
    app.parse(argc, argv);
    return run_verb(verbs);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return fail(kBadInput, usage_error(error, verbs, argc, argv));
    app.exit(error);  // --help, --version
    return std::cout.flush() ? kOk : fail(kBadInput, "cannot write to standard output");
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
    return fail(code, is<OutOfMemory>(error) ? error.what() : "not enough memory for lists of this size");
  }
  return fail(code, code == kInternal ? std::string("internal error: ") + error.what() : std::string(text_of(error)));
}

}  // namespace tangram::cli
