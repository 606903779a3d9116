// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram doctor`: what this machine has, what will be used, and why not the rest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/exit_code.hpp"
#include "cli/machine.hpp"
#include "cli/verbs.hpp"
#include "tangram/backends.hpp"
#include "tangram/env.hpp"
#include "tangram/mpi_group.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

// Transports of this build.
std::vector<Finding> transports() {
  const std::string why_not = MpiGroup::unavailable_reason();
  return {
      {"local", true, "ranks are threads of one process: the default of run and verify"},
      {"mpi", why_not.empty(), why_not.empty() ? "ranks are processes: mpirun -n N tangram run --cp-size N" : why_not}};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

std::vector<Finding> libraries() {
  std::vector<Finding> found = probe_gpus();
  found.push_back(probe_nccl());
  found.push_back(probe_mpi());
  return found;
}

std::vector<Finding> attention_backends() {
  std::vector<Finding> found;
  for (const AttnBackendInfo& info : list_attn_backends()) found.push_back({info.name, info.available, info.detail});
  return found;
}

std::string section(const char* title, const std::vector<Finding>& findings) {
  std::string text = fmt::format("\n{}\n", title);
  for (const Finding& finding : findings) {
    text += fmt::format("  {} {:<10} {}\n", finding.found ? "✓" : "–", finding.name, finding.detail);
  }
  return text;
}

nlohmann::json findings_json(const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"name", finding.name}, {"available", finding.found}, {"detail", finding.detail}});
  }
  return list;
}

std::string doctor_text() {
  const CpuInfo cpu = probe_cpu();
  std::string text = fmt::format("tangram {}\n\ncpu\n  {}, {} cores\n  instructions: {}\n", kVersion, cpu.name,
                                 cpu.num_cores, joined(cpu.features));
  text += section("devices and libraries", libraries());
  text += section("attention (first available is used)", attention_backends());
  text += section("communication", transports());
  text += "\nenvironment\n";
  for (const Env::Variable& variable : Env::list()) {
    text += fmt::format("  {:<22} {:<10} {}  {}\n", variable.name, variable.value.empty() ? "\"\"" : variable.value,
                        variable.is_set ? "set    " : "default", variable.help);
  }
  return text;
}

nlohmann::json doctor_json() {
  const CpuInfo cpu = probe_cpu();
  nlohmann::json variables = nlohmann::json::array();
  for (const Env::Variable& variable : Env::list()) {
    variables.push_back(
        {{"name", variable.name}, {"value", variable.value}, {"is_set", variable.is_set}, {"help", variable.help}});
  }
  return {{"version", kVersion},
          {"cpu", {{"name", cpu.name}, {"cores", cpu.num_cores}, {"features", cpu.features}}},
          {"devices", findings_json(libraries())},
          {"attention", findings_json(attention_backends())},
          {"communication", findings_json(transports())},
          {"environment", variables}};
}

int doctor_main(bool json) {
  Env::get();  // refuses variables that mean nothing, with exit code 2
  const std::string text = json ? doctor_json().dump(2) + "\n" : doctor_text();
  std::fputs(text.c_str(), stdout);
  return kOk;
}

}  // namespace

Verb add_doctor_verb(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("doctor", "Show what this machine has and what will be used");
  verb->add_flag("--json", *json, "print JSON instead of text");
  return {verb, [json] { return doctor_main(*json); }};
}

}  // namespace tangram::cli
