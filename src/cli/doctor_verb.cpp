// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram doctor`: what this machine has, what will be used, and why not the rest.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/exit_code.hpp"
#include "cli/gpu/gpu_step.hpp"
#include "cli/machine.hpp"
#include "cli/machine_file.hpp"
#include "cli/measure/gpu_kernels.hpp"
#include "cli/measure/gpu_links.hpp"
#include "cli/measure/head_dims.hpp"
#include "cli/measure/machine_measure.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs.hpp"
#include "core/require.hpp"
#include "tangram/backends.hpp"
#include "tangram/dtype.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/mpi_group.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

// Why ranks cannot be GPUs here; empty when they can.
std::string why_no_gpus() {
  try {
    require_gpu_code();
  } catch (const NotAvailable&) {
    return "this build has no GPU code";
  }
  const std::vector<Finding> gpus = probe_gpus();
  return gpus.front().found ? "" : gpus.front().detail;
}

// Transports of this build.
std::vector<Finding> transports() {
  const auto finding = [](const char* name, const std::string& why_not, const char* use) {
    return Finding{name, why_not.empty(), why_not.empty() ? use : why_not};
  };
  const std::string no_gpus = why_no_gpus();
  const Finding nccl = probe_nccl();
  return {finding("local", "", "ranks are threads of one process: the default of run and verify"),
          finding("mpi", MpiGroup::unavailable_reason(), "ranks are processes: mpirun -n N tangram run --cp-size N"),
          finding("socket", "", "ranks are processes that connect by themselves: SocketGroup, groups of Python"),
          finding("copy_engine", no_gpus, "ranks are GPUs of this host: tangram run --gpus N"),
          finding("nccl", !no_gpus.empty() || nccl.found ? no_gpus : nccl.detail,
                  "ranks are GPUs: tangram run --gpus N --transport nccl")};
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

std::vector<Finding> gpu_backends() {
  std::vector<Finding> found;
  for (const GpuInfo& gpu : list_gpus()) {
    const std::string backend = gpu.backend.empty() ? "no backend" : gpu.backend;
    found.push_back(
        {fmt::format("gpu {}", gpu.device), !gpu.backend.empty(),
         fmt::format("{}, compute capability {}.{}: {} ({})", gpu.name, gpu.major, gpu.minor, backend, gpu.reason)});
  }
  if (found.empty()) found.push_back({"gpu", false, "none that CUDA sees: ranks and attention on the CPU, and plans"});
  return found;
}

std::string section(const char* title, const std::vector<Finding>& findings) {
  std::string text = fmt::format("\n{}\n", title);
  for (const Finding& finding : findings) {
    text += fmt::format("  {} {:<11} {}\n", finding.found ? "✓" : "–", finding.name, finding.detail);
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

nlohmann::json gpus_json() {
  nlohmann::json list = nlohmann::json::array();
  for (const GpuInfo& gpu : list_gpus()) {
    list.push_back({{"device", gpu.device},
                    {"name", gpu.name},
                    {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                    {"multiprocessors", gpu.multiprocessors},
                    {"memory_bytes", gpu.memory_bytes},
                    {"shared_memory_kb", gpu.shared_memory_kb},
                    {"backend", gpu.backend},
                    {"reason", gpu.reason}});
  }
  return list;
}

std::string doctor_text() {
  const CpuInfo cpu = probe_cpu();
  std::string text = fmt::format("tangram {}\n\ncpu\n  {}, {} cores\n  instructions: {}\n", kVersion, cpu.name,
                                 cpu.num_cores, joined(cpu.features));
  text += section("devices and libraries", libraries());
  text += section("backend of each GPU", gpu_backends());
  text += section("attention (first available is used)", attention_backends());
  text += section("communication", transports());
  text += "\nenvironment\n";
  for (const Env::Variable& variable : Env::list()) {
    text += fmt::format("  {:<22} {:<12} {}  {}\n", variable.name, variable.value.empty() ? "\"\"" : variable.value,
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
          {"gpus", gpus_json()},
          {"attention", findings_json(attention_backends())},
          {"communication", findings_json(transports())},
          {"environment", variables}};
}

struct DoctorVerbOptions {
  bool json = false;
  std::string measure;          // file to write
  std::string dtypes;           // empty: float32,bfloat16, or bfloat16 of GPUs
  std::string head_dims;        // empty: 64,128, or all that GPUs have kernels of
  std::optional<int64_t> rows;  // none: 2048, or 16384 of GPUs
  int64_t num_gpus = 0;         // 0: measure what computes on the CPU
  bool run = false;             // by the Python package
  std::string report, backend;
};

MeasureOptions measure_options(const DoctorVerbOptions& options) {
  const bool on_gpus = options.num_gpus > 0;
  MeasureOptions measure;
  std::string name;
  const std::string dtypes = options.dtypes.empty() ? on_gpus ? "bfloat16" : "float32,bfloat16" : options.dtypes;
  for (const char c : dtypes + ",") {
    if (c != ',') {
      name += c;
      continue;
    }
    measure.dtypes.push_back(parse_dtype(name));
    name.clear();
  }
  if (options.head_dims.empty() && on_gpus) {
    measure.head_dims = gpu_head_dims();
  } else {
    measure.head_dims = parse_head_dims(options.head_dims.empty() ? "64,128" : options.head_dims, "--head-dims");
  }
  measure.max_rows = options.rows.value_or(on_gpus ? 16384 : 2048);
  require(256 <= measure.max_rows && measure.max_rows <= 1 << 16, "--rows: must lie in [256, {}] (got {})", 1 << 16,
          measure.max_rows);
  if (on_gpus) check_gpu_measure(measure);
  return measure;
}

// Collective; the figures of kernels and memory are those of this rank.
Measured measure_gpus(Communicator& control, const MeasureOptions& options) {
  Measured measured = measure_gpu_kernels(control, options);
  if (control.size() == 1) {
    measured.notes.push_back("links: not measured: they need --gpus 2 or more");
    return measured;
  }
  Measured links = measure_gpu_links(control, options.num_repeats);
  measured.file.links = std::move(links.file.links);
  measured.file.ranks_per_node = links.file.ranks_per_node;
  measured.file.devices_per_node = links.file.devices_per_node;
  measured.notes.insert(measured.notes.end(), links.notes.begin(), links.notes.end());
  return measured;
}

// Measures, and adds what was measured to the file. `control`: of ranks with a GPU each, else null.
int measure_main(const DoctorVerbOptions& options, const MeasureOptions& measure, Communicator* control) {
  constexpr int64_t kMaxFileBytes = 1 << 20;
  MachineFile known;
  if (std::filesystem::exists(options.measure)) {
    known = parse_machine_file(read_text_file(options.measure, "--measure", kMaxFileBytes),
                               fmt::format("--measure '{}'", options.measure));
  }
  if (is_one_host()) require_writable({{"--measure", options.measure}});
  bool is_root = false;
  const Measured measured = control != nullptr ? measure_gpus(*control, measure) : measure_machine(measure, is_root);
  if (control != nullptr) is_root = control->rank() == 0;
  if (!is_root) return kOk;
  const MachineFile file =
      control != nullptr ? merge_gpu_measurement(known, measured.file) : merge_machine_files(known, measured.file);
  const std::string json = machine_file_to_json(file);
  write_file(options.measure, "--measure", json);
  std::string text = json;
  if (!options.json) {
    text = file.name + "\n";
    for (const std::string& note : measured.notes) text += "  " + note + "\n";
    text += fmt::format("Written to {}; use it with --machine {}.\n", options.measure, options.measure);
  }
  print_text(text);
  return kOk;
}

// The checks are in the package, which users of wheels have without this program; float64 and CUDA graphs are torch's.
constexpr const char* kPython = "python3";
constexpr const char* kRunChecks = R"python(import sys
try:
    from tangram.doctor.__main__ import main
except ModuleNotFoundError as error:
    print(f"tangram: doctor --run: needs the Python package, see docs/guide/install.md ({error})", file=sys.stderr)
    sys.exit(3)
sys.exit(main(sys.argv[1:]))
)python";

// Returns only where there is no Python.
void run_checks(const DoctorVerbOptions& options) {
  std::vector<std::string> words = {kPython, "-c", kRunChecks, "--run"};
  for (const auto& [name, value] : {std::pair("--report", options.report), std::pair("--backend", options.backend)}) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(kPython, arguments.data());
  throw NotAvailable(fmt::format("doctor --run: needs {} on the path (got {})", kPython, std::strerror(errno)));
}

int doctor_main(const DoctorVerbOptions& options) {
  Env::get();  // refuses variables that mean nothing, with exit code 2
  if (!options.measure.empty()) {
    StepOptions step;
    step.num_gpus = options.num_gpus;
    const MeasureOptions measure = measure_options(options);
    return run_on_ranks(step, [&](Communicator* control) { return measure_main(options, measure, control); });
  }
  if (options.run) run_checks(options);
  require(options.num_gpus == 0, "--gpus: goes with --measure (got {})", options.num_gpus);
  const std::string text = options.json ? doctor_json().dump(2) + "\n" : doctor_text();
  print_text(text);
  return kOk;
}

}  // namespace

Verb add_doctor_verb(CLI::App& app) {
  auto options = std::make_shared<DoctorVerbOptions>();
  CLI::App* verb = app.add_subcommand("doctor", "Show what this machine has and what will be used; measure it");
  verb->add_flag("--json", options->json, "print JSON instead of text");
  std::string group = "Checking";
  const auto add = [&](const char* name, auto& value, const std::string& help, const char* type) {
    verb->add_option(name, value, help)->type_name(type)->group(group);
  };
  verb->add_flag("--run", options->run,
                 "check attention against float64 and measure it beside PyTorch, two minutes on a GPU; needs the "
                 "Python package and torch")
      ->group(group);
  add("--report", options->report, "with --run: write what was found as JSON, to be sent in", "FILE");
  add("--backend", options->backend, "with --run: the backend to check (default: the best here)", "NAME");
  group = "Measuring";
  add("--measure", options->measure,
      "measure kernels, memory and the transport, and add the constants to this file; under mpirun that of MPI, else "
      "that of threads",
      "FILE");
  add("--dtypes", options->dtypes, "of kernels (default float32,bfloat16; with --gpus bfloat16)", "LIST");
  add("--head-dims", options->head_dims,
      "of kernels, as 192:128 where values are narrower (default 64,128; with --gpus 32,64,96,128,192:128,256)",
      "LIST");
  add("--rows", options->rows, "rows of the largest call (default 2048; with --gpus 16384)", "N");
  CLI::Option* gpus =
      verb->add_option("--gpus", options->num_gpus,
                       "measure so many GPUs of this host instead: kernels of the default backend, memory and, "
                       "from two on, links over each transport")
          ->type_name("N")
          ->group(group);
  require_whole_number(*gpus, 1);
  return {verb,
          [options, verb] {
            for (const char* name : {"--dtypes", "--head-dims", "--rows"}) {
              require(verb->count(name) == 0 || !options->measure.empty(), "{}: goes with --measure", name);
            }
            for (const char* name : {"--report", "--backend"}) {
              require(verb->count(name) == 0 || options->run, "{}: goes with --run", name);
            }
            require(!options->run || (!options->json && options->measure.empty()),
                    "--run: goes without --json and --measure; --report FILE writes JSON");
            return doctor_main(*options);
          },
          {"tangram doctor", "tangram doctor --run --report report.json", "tangram doctor --measure machine.json",
           "tangram doctor --measure machine.json --gpus 2"}};
}

}  // namespace tangram::cli
