// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram simulate`: what a step would take for other strategies and more ranks than there are.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cli/doc_lengths.hpp"
#include "cli/exit_code.hpp"
#include "cli/figure_csv.hpp"
#include "cli/machine_file.hpp"
#include "cli/options.hpp"
#include "cli/progress.hpp"
#include "cli/report/chart.hpp"
#include "cli/report/simulation_page.hpp"
#include "cli/text_file.hpp"
#include "cli/text_table.hpp"
#include "cli/verbs.hpp"
#include "core/nearest_word.hpp"
#include "core/require.hpp"
#include "tangram/dtype.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

struct SimulateVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  std::string cp_sizes;
  std::string strategies = "all";
  int64_t rows_per_rank = -1;
  std::string engine;
  int64_t comm_workers = -1;
  int64_t ranks_per_node = -1;
  std::string nodes;
  int64_t nics = 0;
  std::optional<double> spine;  // as the machine has it
  bool json = false;
  bool csv = false;
  std::string html;
  std::string svg;
};

// One number of ranks: the mask that it works on and what each strategy takes.
struct Point {
  int cp_size = 1;
  std::string mask_name;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  double one_rank_s = 0;  // the same mask on one rank, memory permitting or not
  std::vector<StrategyPrediction> predictions;
};

std::vector<int> cp_sizes_of(const SimulateVerbOptions& options, const MachineModel& machine) {
  if (!options.nodes.empty()) {
    std::vector<int> sizes;
    for (const int64_t count : parse_number_list(options.nodes, "--nodes")) {
      require(1 <= count && count <= (1 << 16) / machine.ranks_per_node, "--nodes: must lie in [1, {}] (got {})",
              (1 << 16) / machine.ranks_per_node, count);
      sizes.push_back(static_cast<int>(count) * machine.ranks_per_node);
    }
    require(!sizes.empty(), "--nodes: must name at least one number of nodes");
    std::sort(sizes.begin(), sizes.end());
    return sizes;
  }
  if (options.cp_sizes.empty()) return {static_cast<int>(options.dist.cp_size)};
  std::vector<int> sizes;
  for (const int64_t size : parse_number_list(options.cp_sizes, "--cp-sizes")) {
    require(1 <= size && size <= 1 << 16, "--cp-sizes: must lie in [1, {}] (got {})", 1 << 16, size);
    sizes.push_back(static_cast<int>(size));
  }
  require(!sizes.empty(), "--cp-sizes: must name at least one number of ranks");
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<std::string> strategies_of(const std::string& list) {
  std::vector<std::string> names;
  if (list == "all") {
    for (const std::string_view name : simulated_strategies()) names.emplace_back(name);
    return names;
  }
  std::string name;
  for (const char c : list + ",") {
    if (c != ',') {
      name += c;
      continue;
    }
    auto known = simulated_strategies();
    known.push_back(to_string(Strategy::kAuto));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string text;
      for (const std::string_view k : known) text += (text.empty() ? "" : ", ") + std::string(k);
      require(false, "--strategies: unknown name '{}'{}; known are {}", name, did_you_mean(name, known), text);
    }
    names.push_back(std::move(name));
    name.clear();
  }
  return names;
}

MachineModel machine_of(const SimulateVerbOptions& options, const HeadConfig& heads) {
  MachineModel machine = load_machine(options.dist, heads);
  if (!options.engine.empty()) machine.engine = parse_comm_engine(options.engine, "--engine");
  if (options.comm_workers != -1) {
    require(machine.engine == CommEngine::kWorkers, "--comm-workers: needs --engine workers");
    require(0 < options.comm_workers && options.comm_workers < machine.workers,
            "--comm-workers: must lie in (0, {}) (got {})", machine.workers, options.comm_workers);
    machine.comm_workers = static_cast<int>(options.comm_workers);
  }
  if (options.ranks_per_node != -1) {
    require(1 <= options.ranks_per_node && options.ranks_per_node <= 1 << 16,
            "--ranks-per-node: must lie in [1, {}] (got {})", 1 << 16, options.ranks_per_node);
    machine.ranks_per_node = static_cast<int>(options.ranks_per_node);
    machine.devices_per_node = static_cast<int>(options.ranks_per_node);
  }
  const bool is_one_node = machine.ranks_per_node > 1 << 16;
  require(!is_one_node || (options.nodes.empty() && options.nics == 0 && !options.spine),
          "--nodes, --nics, --spine: the machine has one node; give --ranks-per-node, or a machine with a network");
  if (options.nics > 0) machine.nics_per_node = static_cast<int>(options.nics);
  if (options.spine) machine.spine = *options.spine;
  require(machine.spine > 0 && machine.spine <= 1, "--spine: must lie in (0, 1] (got {})", machine.spine);
  return machine;
}

Point simulate_point(const SimulateVerbOptions& options, int cp_size, const MachineModel& machine,
                     const std::vector<std::string>& strategies, ProgressBar& bar) {
  MaskOptions mask_options = options.mask;
  if (options.rows_per_rank != -1) {
    int64_t& length = mask_options.family.empty() ? mask_options.total_seqlen : mask_options.seqlen;
    length = options.rows_per_rank * cp_size;
  }
  DistOptions dist = options.dist;
  dist.cp_size = cp_size;
  DistAttnConfig config = make_config(dist);
  const NamedMask named = load_mask(mask_options);
  require(named.of_heads.empty(), "simulate: takes one mask for all heads (got {} of head groups)",
          named.of_heads.size());
  const PaddedMask padded = pad_mask(named.mask, config);
  Point point{cp_size, named.name, padded.mask.seqlen_q(), padded.mask.seqlen_k(), 0, {}};
  for (const std::string& strategy : strategies) {
    point.predictions.push_back(simulate(padded.mask, config, machine, strategy));
    bar.advance(cp_size);
  }
  config.cp_size = 1;
  config.dispatch = {};
  point.one_rank_s = simulate(padded.mask, config, machine, "tangram").step_s();
  return point;
}

// Share of one rank's rate that each of the ranks keeps.
double efficiency(const Point& point, const StrategyPrediction& prediction) {
  return prediction.step_s() > 0 ? point.one_rank_s / point.cp_size / prediction.step_s() : 0;
}

std::string remark(const StrategyPrediction& prediction, const MachineModel& machine) {
  if (!prediction.infeasible.empty()) return prediction.infeasible;
  if (!prediction.chosen.empty()) return "chose " + prediction.chosen;
  return prediction.peak_bytes > static_cast<double>(machine.memory_bytes) ? "does not fit into memory" : "";
}

// Whole words in lines of at most 120 columns, the first after `head`.
std::string wrapped(const std::string& head, const std::string& text) {
  constexpr size_t kColumns = 120;
  std::string lines, line = head;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (line.size() + 1 + end - at > kColumns) {
      lines += line + "\n";
      line.assign(3, ' ');
    }
    line += fmt::format(" {}", std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  return lines + line + "\n";
}

std::string points_text(const std::vector<Point>& points, const MachineModel& machine) {
  std::string text = fmt::format("machine    {}; {} ranks a node, rows moved by {}\nkernels    {}\n", machine.name,
                                 machine.ranks_per_node > 1 << 16 ? "all" : fmt::format("{}", machine.ranks_per_node),
                                 to_string(machine.engine), machine.kernels);
  text += "predicted by a cost model, not measured\n";
  bool has_hierarchical = false, has_nodes = false;
  for (const Point& point : points) {
    text += fmt::format("\n{}: {} tokens over {} rank{}\n", point.mask_name, with_commas(point.seqlen_q),
                        with_commas(point.cp_size), point.cp_size == 1 ? "" : "s");
    TextTable table(
        {"strategy", "step", "forward", "backward", "exposed", "rate", "received", "between nodes", "memory"});
    std::string remarks, cards;
    for (const StrategyPrediction& p : point.predictions) {
      has_hierarchical = has_hierarchical || p.strategy == "tangram_hierarchical";
      has_nodes = has_nodes || p.strategy == "tangram_nodes" || p.busiest_card_bytes > 0;
      if (const std::string said = remark(p, machine); !said.empty())
        remarks += wrapped(fmt::format("  {}:", p.strategy), said);
      if (!p.infeasible.empty()) {
        table.add({p.strategy, "–", "–", "–", "–", "–", "–", "–", "–"});
        continue;
      }
      table.add({p.strategy, seconds_text(p.step_s()), seconds_text(p.forward_s), seconds_text(p.backward_s),
                 seconds_text(p.exposed_s), fmt::format("{:.1f} %", 100 * efficiency(point, p)),
                 bytes_text((p.forward_bytes + p.backward_bytes) / point.cp_size), bytes_text(p.between_bytes),
                 bytes_text(p.peak_bytes)});
      if (p.busiest_card_bytes > 0) {
        cards += fmt::format("{} {} {}", cards.empty() ? "  busiest network card:" : ",", p.strategy,
                             bytes_text(p.busiest_card_bytes));
      }
    }
    text += table.text();
    if (!cards.empty()) text += cards + "\n";
    text += remarks;
  }
  text +=
      "\nexposed: communication that no compute hides; rate: share of one rank's rate that each rank keeps;\n"
      "received: by a rank, on average; memory: of the rank that needs most\n";
  if (has_hierarchical) {
    text += "tangram_hierarchical: tangram whose rows cross to each node once and are handed on inside it\n";
  }
  if (has_nodes) {
    text +=
        "tangram_nodes: the same, of a plan that knows nodes, its rows spread over the rails of a node\n"
        "busiest network card: what one card sends or receives in a step, of Tangram's own plans\n";
  }
  return text;
}

nlohmann::json points_json(const std::vector<Point>& points, const MachineModel& machine) {
  nlohmann::json list = nlohmann::json::array();
  for (const Point& point : points) {
    nlohmann::json strategies = nlohmann::json::array();
    for (const StrategyPrediction& p : point.predictions) {
      nlohmann::json entry = {{"strategy", p.strategy}, {"remark", remark(p, machine)}};
      if (p.infeasible.empty()) {
        entry.update({{"step_s", p.step_s()},
                      {"forward_s", p.forward_s},
                      {"backward_s", p.backward_s},
                      {"compute_s", p.compute_s},
                      {"exposed_s", p.exposed_s},
                      {"efficiency", efficiency(point, p)},
                      {"forward_bytes", p.forward_bytes},
                      {"backward_bytes", p.backward_bytes},
                      {"between_bytes", p.between_bytes},
                      {"busiest_card_bytes", p.busiest_card_bytes},
                      {"max_rank_bytes", p.max_rank_bytes},
                      {"kv_rows_moved", p.kv_rows_moved},
                      {"peak_bytes", p.peak_bytes},
                      {"balance", p.balance}});
      }
      list.push_back({{"mask", point.mask_name},
                      {"seqlen_q", point.seqlen_q},
                      {"seqlen_k", point.seqlen_k},
                      {"cp_size", point.cp_size},
                      {"one_rank_s", point.one_rank_s}});
      list.back().update(entry);
    }
  }
  return {{"version", kVersion}, {"machine", machine.name}, {"kernels", machine.kernels}, {"predictions", list}};
}

std::string points_csv(const std::vector<Point>& points, const MachineModel& machine, const HeadConfig& heads) {
  FigureCsv csv(machine.name);
  for (const Point& point : points) {
    for (const StrategyPrediction& p : point.predictions) {
      if (!p.infeasible.empty()) continue;
      const FigureContext context{
          point.mask_name, point.seqlen_q, point.seqlen_k, point.cp_size, 0, heads, "simulated", "", p.strategy};
      csv.add(context, "forward_time", "s", p.forward_s);
      csv.add(context, "backward_time", "s", p.backward_s);
      csv.add(context, "exposed_time", "s", p.exposed_s);
      csv.add(context, "efficiency", "1", efficiency(point, p));
      csv.add(context, "forward_traffic", "bytes", p.forward_bytes);
      csv.add(context, "backward_traffic", "bytes", p.backward_bytes);
      csv.add(context, "between_traffic", "bytes", p.between_bytes);
      if (p.busiest_card_bytes > 0) csv.add(context, "busiest_card_traffic", "bytes", p.busiest_card_bytes);
      csv.add(context, "peak_memory", "bytes", p.peak_bytes);
      csv.add(context, "balance", "1", p.balance);
    }
  }
  return csv.text();
}

std::string points_svg(const std::vector<Point>& points, const MachineModel& machine, bool by_tokens) {
  Chart step{"Step (forward + backward)", "", AxisUnit::kSeconds, {}, 0, ""};
  Chart rate{"Share of one rank's rate that each rank keeps", "", AxisUnit::kPercent, {}, 0, ""};
  Chart traffic{"Received by a rank in a step", "", AxisUnit::kBytes, {}, 0, ""};
  Chart memory{"Memory of the rank that needs most",
               "",
               AxisUnit::kBytes,
               {},
               static_cast<double>(machine.memory_bytes),
               "memory of a rank"};
  for (size_t s = 0; s < points.front().predictions.size(); ++s) {
    const std::string& name = points.front().predictions[s].strategy;
    for (Chart* chart : {&step, &rate, &traffic, &memory}) chart->series.push_back({name, {}});
    for (const Point& point : points) {
      const StrategyPrediction& p = point.predictions[s];
      if (!p.infeasible.empty()) continue;
      const double x = by_tokens ? static_cast<double>(point.seqlen_q) : point.cp_size;
      step.series.back().points.push_back({x, p.step_s()});
      rate.series.back().points.push_back({x, efficiency(point, p)});
      traffic.series.back().points.push_back({x, (p.forward_bytes + p.backward_bytes) / point.cp_size});
      memory.series.back().points.push_back({x, p.peak_bytes});
    }
  }
  std::vector<Chart> charts{step, rate, traffic, memory};
  for (Chart& chart : charts) {
    chart.x_label =
        by_tokens ? fmt::format("tokens ({} a rank)", with_commas(points.front().seqlen_q / points.front().cp_size))
                  : "ranks";
  }
  const Point& last = points.back();
  const std::string title = by_tokens ? fmt::format("{}, up to {} tokens on {} ranks: simulated for {}",
                                                    last.mask_name.substr(0, last.mask_name.find(',')),
                                                    with_commas(last.seqlen_q), with_commas(last.cp_size), machine.name)
                                      : fmt::format("{}, {} tokens: simulated for {}", last.mask_name,
                                                    with_commas(last.seqlen_q), machine.name);
  return svg_charts(charts, title, 2);
}

int simulate_main(SimulateVerbOptions options) {
  take_dtype_of_machine(options.dist);
  require(!(options.json && options.csv), "--csv: cannot be combined with --json");
  const bool is_printed = is_standard_stream(options.html) || is_standard_stream(options.svg);
  require(!is_printed || !(options.json || options.csv),
          "--html -, --svg -: cannot be combined with --json or --csv, which print too");
  require(options.rows_per_rank == -1 || (1 <= options.rows_per_rank && options.rows_per_rank <= int64_t{1} << 31),
          "--rows-per-rank: must be positive (got {})", options.rows_per_rank);
  require(options.rows_per_rank == -1 || (options.mask.seqlen == -1 && options.mask.total_seqlen == -1),
          "--rows-per-rank: cannot be combined with --seqlen or --total-seqlen");
  const std::vector<std::string> strategies = strategies_of(options.strategies);
  const HeadConfig heads = make_config(options.dist).heads;
  const MachineModel machine = machine_of(options, heads);
  const std::vector<int> cp_sizes = cp_sizes_of(options, machine);
  require_writable({{"--svg", options.svg}, {"--html", options.html}});
  std::vector<Point> points;
  {
    const double work = std::accumulate(cp_sizes.begin(), cp_sizes.end(), 0.0) * static_cast<double>(strategies.size());
    ProgressBar bar(work, "simulating");  // more ranks take longer, about in proportion
    for (const int cp_size : cp_sizes) points.push_back(simulate_point(options, cp_size, machine, strategies, bar));
  }
  const bool by_tokens = options.rows_per_rank != -1;
  const std::string text = points_text(points, machine);
  if (!options.svg.empty()) write_file(options.svg, "--svg", points_svg(points, machine, by_tokens));
  if (!options.html.empty()) {
    write_file(options.html, "--html", simulation_page(points_svg(points, machine, by_tokens), text));
  }
  const std::string shown = options.json  ? points_json(points, machine).dump(2) + "\n"
                            : options.csv ? points_csv(points, machine, heads)
                                          : text;
  if (!is_printed) print_text(shown);
  return kOk;
}

}  // namespace

Verb add_simulate_verb(CLI::App& app) {
  auto options = std::make_shared<SimulateVerbOptions>();
  options->dist.dtype.clear();  // that of the machine
  CLI::App* verb = app.add_subcommand("simulate", "Predict steps of several strategies for up to thousands of ranks");
  add_mask_options(*verb, options->mask);
  add_dist_options(*verb, options->dist);
  add_strategy_parameters(*verb, options->dist);
  const std::string group = "Simulation";
  verb->add_option("--cp-sizes", options->cp_sizes, "numbers of ranks, e.g. 8,64,512,4096 (default: --cp-size)")
      ->type_name("LIST")
      ->group(group);
  verb->add_option("--rows-per-rank", options->rows_per_rank, "grow the sequence with the ranks, instead of --seqlen")
      ->type_name("N")
      ->group(group);
  verb->add_option(
          "--strategies,--strategy", options->strategies,
          "all, or of tangram, tangram_hierarchical, tangram_nodes, ring, ulysses, all_gather, hcms, usp, loong_train, "
          "hybrid_cp, and auto: what plans would choose")
      ->type_name("LIST")
      ->group(group);
  verb->add_option("--engine", options->engine, "what moves rows inside a node: copy_engine, workers, host_threads")
      ->type_name("NAME")
      ->group(group);
  verb->add_option("--comm-workers", options->comm_workers, "multiprocessors that --engine workers takes")
      ->type_name("N")
      ->group(group);
  verb->add_option("--ranks-per-node", options->ranks_per_node, "devices of a node (default: the machine's)")
      ->type_name("N")
      ->group(group);
  verb->add_option("--nodes", options->nodes, "numbers of nodes, e.g. 1,8,64, instead of numbers of ranks")
      ->type_name("LIST")
      ->excludes(verb->get_option("--cp-sizes"))
      ->excludes(verb->get_option("--cp-size"))
      ->group(group);
  require_whole_number(
      *verb->add_option("--nics", options->nics,
                        "network cards of a node, shared by its ranks (default: the machine's, else one for each)")
           ->type_name("N")
           ->group(group),
      1, 1 << 16);
  verb->add_option("--spine", options->spine,
                   "what the network carries between nodes at once, as a share of all cards' rates (default: the "
                   "machine's, else 1)")
      ->type_name("SHARE")
      ->group(group);
  verb->add_flag("--json", options->json, "print JSON instead of text")->group("Output");
  verb->add_flag("--csv", options->csv, "print figures as CSV, as bench does")->group("Output");
  verb->add_option("--html", options->html, "also write a page with plots")->type_name("FILE")->group("Output");
  verb->add_option("--svg", options->svg, "also write the plots alone")->type_name("FILE")->group("Output");
  return {verb,
          [options] { return simulate_main(*options); },
          {"tangram simulate --family causal --rows-per-rank 8192 --cp-sizes 8,64,512",
           "tangram simulate --rows-per-rank 8192 --nodes 1,8,64 --strategies tangram,tangram_nodes",
           "tangram simulate --total-seqlen 1048576 --cp-sizes 64 --strategies tangram,usp,ring --html plots.html"}};
}

}  // namespace tangram::cli
