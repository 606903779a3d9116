// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram completion`: what a shell completes, made from the verbs themselves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/exit_code.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

struct Words {
  std::string verb;
  std::vector<std::string> options;
  std::vector<std::string> files;  // those whose value is a file or a folder
};

std::vector<Words> words_of(const CLI::App& app) {
  std::vector<Words> all;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    Words words{verb->get_name(), {}, {}};
    for (const CLI::Option* option : verb->get_options()) {
      const std::string type = option->get_type_name();
      const bool is_file = type.find("FILE") != std::string::npos || type == "FOLDER";
      for (const std::string& name : option->get_lnames()) {
        words.options.push_back(fmt::format("--{}", name));
        if (is_file) words.files.push_back(words.options.back());
      }
    }
    all.push_back(std::move(words));
  }
  return all;
}

std::string with_blanks(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += fmt::format("{}{}", text.empty() ? "" : " ", word);
  return text;
}

// A function of bash; zsh runs it too. A verb, then its options; files behind the options that take one.
std::string bash_script(const std::vector<Words>& all) {
  std::vector<std::string> verbs;
  std::string cases;
  for (const Words& words : all) {
    verbs.push_back(words.verb);
    cases += fmt::format("    {}) options='{}' files='{}';;\n", words.verb, with_blanks(words.options),
                         with_blanks(words.files));
  }
  return fmt::format(R"(_tangram() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options= files=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{} help' -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}    help) COMPREPLY=($(compgen -W '{}' -- "$word")); return;;
  esac
  case " $files " in *" $before "*) COMPREPLY=($(compgen -f -- "$word")); return;; esac
  COMPREPLY=($(compgen -W "$options" -- "$word"))
}}
complete -F _tangram tangram
)",
                     with_blanks(verbs), cases, with_blanks(verbs));
}

std::string fish_script(const std::vector<Words>& all) {
  std::string text = "complete -c tangram -f\n";
  for (const Words& words : all) {
    text += fmt::format("complete -c tangram -n __fish_use_subcommand -a {}\n", words.verb);
    for (const std::string& option : words.options) {
      const bool is_file = std::find(words.files.begin(), words.files.end(), option) != words.files.end();
      text += fmt::format("complete -c tangram -n '__fish_seen_subcommand_from {}' -l {}{}\n", words.verb,
                          option.substr(2), is_file ? " -r -F" : "");
    }
  }
  return text;
}

int completion_main(const CLI::App& app, const std::string& shell) {
  const bool is_known = shell == "bash" || shell == "zsh" || shell == "fish";
  require(is_known, "--shell: must be bash, zsh or fish (got '{}')", shell);
  const std::vector<Words> all = words_of(app);
  if (shell == "fish") {
    print_text(fish_script(all));
    return kOk;
  }
  if (shell == "zsh") print_text("autoload -U +X bashcompinit && bashcompinit\n");
  print_text(bash_script(all));
  return kOk;
}

}  // namespace

Verb add_completion_verb(CLI::App& app) {
  auto shell = std::make_shared<std::string>("bash");
  CLI::App* verb = app.add_subcommand("completion", "Print what makes a shell complete verbs and options");
  verb->add_option("--shell", *shell, "bash (default), zsh or fish")->type_name("NAME")->group("Output");
  return {
      verb,
      [shell, &app] { return completion_main(app, *shell); },
      {"source <(tangram completion)", "tangram completion --shell fish > ~/.config/fish/completions/tangram.fish"}};
}

}  // namespace tangram::cli
