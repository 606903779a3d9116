// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "cli/doc_lengths.hpp"
#include "cli/machine_file.hpp"
#include "cli/text_file.hpp"
#include "core/require.hpp"
#include "plan/validate.hpp"
#include "tangram/error.hpp"
#include "tangram/plan.hpp"

namespace tangram::cli {

namespace {

// What the letter behind a number multiplies it by; 1 without one.
int64_t unit_of(const std::string& text) {
  if (text.size() < 2) return 1;
  switch (text.back()) {
    case 'K':
    case 'k': return int64_t{1} << 10;
    case 'M':
    case 'm': return int64_t{1} << 20;
    default: return 1;
  }
}

}  // namespace

void require_whole_number(CLI::Option& option, int64_t min, int64_t max) {
  const auto read = [min, max](std::string& text) -> std::string {
    int64_t value = 0;
    const int64_t unit = unit_of(text);
    const char* const last = text.data() + text.size() - (unit > 1 ? 1 : 0);
    const auto [end, error] = std::from_chars(text.data(), last, value);
    if (end != last || text.empty() || error == std::errc::invalid_argument) {
      return fmt::format("must be a whole number (got '{}'), K or M behind it for 1,024 or 1,024^2",
                         text.substr(0, 40));
    }
    const bool is_too_large = error == std::errc::result_out_of_range || __builtin_mul_overflow(value, unit, &value);
    if (is_too_large) {
      return fmt::format("must be a number of 64 bits (got {})", text.substr(0, 40));
    }
    if (max != INT64_MAX && !(min <= value && value <= max)) {
      return fmt::format("must lie in [{}, {}] (got {})", min, max, value);
    }
    if (value < min) return fmt::format("must {} (got {})", min == 0 ? "not be negative" : "be positive", value);
    text = std::to_string(value);  // without leading zeros, which would make it octal
    return {};
  };
  option.transform(CLI::Validator(read, ""));
}

void add_mask_options(CLI::App& app, MaskOptions& options) {
  const std::string group = "Mask (one source)";
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->group(group);
  };
  add("--mask", options.mask_file,
      "JSON file: {seqlen, q_ranges, k_ranges, attn_types | bands}, {cases: [...]}, or {head_masks: [...]}, a mask "
      "for each group of heads; -: standard input")
      ->type_name("FILE");
  add("--case", options.case_name, "which of the file's cases")->type_name("NAME:SEQLEN");
  add("--family", options.family,
      "full, causal, sliding_window, block_causal, prefix_lm (per document where documents are given); shared_prefix, "
      "global_window; varlen_* draws documents")
      ->type_name("NAME");
  add("--seqlen", options.seqlen, "tokens, with --family; 128K are 131,072")->type_name("N");
  add("--window", options.window, "keys before and after a query, itself besides; -1: no bound (default 1024,0)")
      ->type_name("L,R");
  add("--block", options.block, "rows of a block of block_causal (default 2048)")->type_name("N");
  add("--prefix", options.prefix, "rows of the prefix of prefix_lm, shared_prefix")->type_name("N");
  add("--continuations", options.continuations, "lengths after the shared prefix")->type_name("LIST");
  add("--global", options.num_global, "rows that global_window shows to all")->type_name("N");
  add("--cu-seqlens", options.cu_seqlens, "document borders 0,n1,n1+n2,... or a file of them")->type_name("LIST|FILE");
  add("--doc-lengths", options.doc_lengths, "document lengths, one a line")->type_name("FILE");
  add("--sequences", options.sequences,
      "JSON file of sequences that share prefixes: {sequences: [[token, ...], ...], min_shared}, or {lengths, parents} "
      "of a tree's nodes")
      ->type_name("FILE");
  add("--total-seqlen", options.total_seqlen, "draw documents of real lengths up to so many tokens")->type_name("N");
  add("--seed", options.seed, "of the drawn documents and of random data (default 0)")->type_name("S");
  add("--length-histogram", options.length_histogram, "draw from this histogram instead of the built-in one")
      ->type_name("FILE");
}

void add_dist_options(CLI::App& app, DistOptions& options) {
  const std::string group = "Distribution";
  const auto add = [&](const char* name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group(group);
  };
  const auto add_count = [&](const char* name, int64_t& value, const char* help) {
    require_whole_number(*add(name, value, help)->type_name("N"), 1);
  };
  add("--cp-size", options.cp_size, "ranks (default 4)")->type_name("N");
  add_count("--chunk-size", options.chunk_size, "rows of a chunk (default: chosen)");
  add("--dispatch", options.dispatch,
      "auto, sequential, zigzag, min_heap, sorted_sequential, tangram, lower_bound, dynamic_programming, batch_topp, "
      "random")
      ->type_name("NAME");
  add("--stages", options.stages, "remote stages: auto, N, or FORWARD,BACKWARD")->type_name("N[,N]");
  app.add_flag("--keep-remote-kv", options.keep_remote_kv, "keep the last stage's K/V for the backward pass")
      ->group(group);
  add("--launch-order", options.launch_order,
      "transfers beside kernels on GPUs: auto, copy_engine, sm_margin, high_priority, kernel_barrier")
      ->type_name("NAME");
  add_count("--sm-margin", options.sm_margin, "multiprocessors left to transfers (default: as many as these take)");
  add_count("--heads-q", options.num_heads_q, "query heads (default 8)");
  add_count("--heads-kv", options.num_heads_kv, "key/value heads (default: as many)");
  add_count("--head-dim", options.head_dim, "of q and k (default 128)");
  add_count("--head-dim-v", options.head_dim_v, "of v and out (default: the same)");
  add("--dtype", options.dtype,
      options.dtype.empty() ? "fp32, bf16 or fp16 (default: of the machine's kernels, bf16 on GPUs)"
                            : "fp32, bf16 or fp16 (default " + options.dtype + ")")
      ->type_name("TYPE")
      ->each([&options](const std::string&) { options.has_dtype = true; });
  add("--machine", options.machine, "constants that doctor --measure wrote (default: those of H200 nodes)")
      ->type_name("FILE");
  add("--machine-backend", options.machine_backend, "which kernels of the machine (default: the first)")
      ->type_name("NAME");
  add("--machine-transport", options.machine_transport, "which links of the machine (default: the first)")
      ->type_name("NAME");
}

void add_strategy_options(CLI::App& app, DistOptions& options) {
  app.add_option("--strategy", options.strategy,
                 "tangram (default), ulysses, hcms, ring, all_gather, usp, loong_train, hybrid_cp, or auto: the "
                 "fastest by the cost model")
      ->type_name("NAME")
      ->group("Distribution");
  add_strategy_parameters(app, options);
  app.add_option(
         "--movement", options.movement,
         "kv (default): move K/V rows only; qo: move Q to K/V and partial outputs back; auto: the fastest by the cost "
         "model; least_bytes: least traffic among balanced plans; published, for comparison: "
         "greedy_random_grid, binary_greedy, network_flow")
      ->type_name("NAME")
      ->group("Distribution");
  CLI::Option* head_groups =
      app.add_option("--head-groups", options.head_groups,
                     "with --movement: head groups that are assigned independently (default: chosen by the planner)")
          ->type_name("N")
          ->group("Distribution");
  require_whole_number(*head_groups, 1);
}

void add_strategy_parameters(CLI::App& app, DistOptions& options) {
  const std::string group = "Distribution";
  const auto add_count = [&](const char* name, int64_t& value, const char* help) {
    require_whole_number(*app.add_option(name, value, help)->type_name("N")->group(group), 1);
  };
  add_count("--ulysses-degree", options.ulysses_degree,
            "usp, loong_train: ranks that exchange heads (default: chosen)");
  add_count("--inner-ring-size", options.inner_ring_size, "loong_train: row groups of an inner ring (default: chosen)");
  app.add_option("--head-chunks", options.head_chunks, "hcms: K/V heads of each chunk, e.g. 1,2,1 (default: chosen)")
      ->type_name("LIST")
      ->group(group);
  add_count("--document-rows", options.document_rows,
            "hybrid_cp: the longest document that one rank takes whole (default: chosen)");
}

void add_output_options(CLI::App& app, OutputOptions& options) {
  app.add_flag("--json", options.json, "print JSON instead of text")->group("Output");
  app.add_option("--html", options.html, "also write a report that opens offline; -: print it instead")
      ->type_name("FILE")
      ->group("Output");
}

namespace {

int whole_at_most(int64_t value, int64_t min, int64_t max, const char* name) {
  require(min <= value && value <= max, "{}: must lie in [{}, {}] (got {})", name, min, max, value);
  return static_cast<int>(value);
}

void set_stages(const std::string& text, OverlapConfig& overlap) {
  if (text == "auto") return;
  const std::vector<int64_t> counts = parse_number_list(text, "--stages");
  require(counts.size() == 1 || counts.size() == 2, "--stages: must be auto, N or FORWARD,BACKWARD (got '{}')", text);
  overlap.num_stages_fwd = whole_at_most(counts.front(), 1, 64, "--stages");
  overlap.num_stages_bwd = whole_at_most(counts.back(), 1, 64, "--stages");
}

StrategyConfig strategy_of(const DistOptions& options) {
  constexpr int64_t kMaxRanks = 1 << 16;
  StrategyConfig strategy;
  strategy.name = parse_strategy(options.strategy);
  strategy.ulysses_degree = whole_at_most(options.ulysses_degree, 0, kMaxRanks, "--ulysses-degree");
  strategy.inner_ring_size = whole_at_most(options.inner_ring_size, 0, kMaxRanks, "--inner-ring-size");
  strategy.document_rows = options.document_rows;
  if (options.head_chunks.empty()) return strategy;
  for (const int64_t heads : parse_number_list(options.head_chunks, "--head-chunks")) {
    strategy.head_chunks.push_back(whole_at_most(heads, 1, kMaxRanks, "--head-chunks"));
  }
  return strategy;
}

int64_t padding_unit(int64_t seqlen, const DistAttnConfig& config) {
  if (config.dispatch.chunk_size > 0) return config.dispatch.chunk_size;
  for (int64_t unit = 128; unit > 1; unit /= 2) {
    if (compute_pad_size(seqlen, config.cp_size, unit) <= seqlen / 16) return unit;
  }
  return 1;
}

int64_t pad_for(int64_t seqlen, const char* name, const DistAttnConfig& config) {
  require(seqlen > 0, "mask: {} must be positive (got {})", name, seqlen);
  return compute_pad_size(seqlen, config.cp_size, padding_unit(seqlen, config));
}

}  // namespace

void require_effect(const DistAttnConfig& config) {
  for (const auto& useless : {find_useless(config.strategy), find_useless(config.movement)}) {
    if (!useless) continue;
    std::string option = useless->name;
    std::replace(option.begin(), option.end(), '_', '-');
    throw InvalidArgument(fmt::format("--{}: needs {}", option, useless->needs));
  }
}

DistAttnConfig make_config(const DistOptions& options) {
  DistAttnConfig config;
  config.cp_size = whole_at_most(options.cp_size, 1, 1 << 16, "--cp-size");
  require(options.chunk_size <= int64_t{1} << 31, "--chunk-size: must lie in [1, 2^31] (got {})", options.chunk_size);
  config.dispatch.chunk_size = options.chunk_size;
  config.dispatch.algorithm = parse_dispatch_algorithm(options.dispatch);
  set_stages(options.stages, config.overlap);
  config.overlap.keep_remote_kv = options.keep_remote_kv;
  config.overlap.launch_order = parse_launch_order(options.launch_order);
  config.overlap.sm_margin = whole_at_most(options.sm_margin, 0, 128, "--sm-margin");
  constexpr int64_t kMaxHeads = 1 << 16;
  HeadConfig& heads = config.heads;
  heads.num_heads_q = options.num_heads_q == 0 ? 8 : whole_at_most(options.num_heads_q, 1, kMaxHeads, "--heads-q");
  heads.num_heads_kv =
      options.num_heads_kv == 0 ? heads.num_heads_q : whole_at_most(options.num_heads_kv, 1, kMaxHeads, "--heads-kv");
  require(heads.num_heads_q % heads.num_heads_kv == 0, "--heads-q: must be a multiple of --heads-kv (got {} and {})",
          heads.num_heads_q, heads.num_heads_kv);
  heads.head_dim = options.head_dim == 0 ? 128 : whole_at_most(options.head_dim, 1, kMaxHeads, "--head-dim");
  heads.head_dim_v =
      options.head_dim_v == 0 ? heads.head_dim : whole_at_most(options.head_dim_v, 1, kMaxHeads, "--head-dim-v");
  heads.dtype = parse_dtype(options.dtype);
  config.strategy = strategy_of(options);
  config.movement.algorithm = parse_movement(options.movement);
  config.movement.head_groups = whole_at_most(options.head_groups, 0, kMaxHeads, "--head-groups");
  const bool names_machine =
      !options.machine.empty() || !options.machine_backend.empty() || !options.machine_transport.empty();
  if (names_machine) config.cost = cost_model_of(load_machine(options, heads));
  if (options.ranks_per_node > 0) {
    require(config.cp_size % options.ranks_per_node == 0,
            "--ranks-per-node: must divide the number of ranks (got {} for {})", options.ranks_per_node,
            config.cp_size);
    MachineModel machine = load_machine(options, heads);
    machine.ranks_per_node = static_cast<int>(options.ranks_per_node);
    config.cost = with_nodes(config.cost, machine);
  }
  return config;
}

MachineModel load_machine(const DistOptions& options, const HeadConfig& heads) {
  constexpr int64_t kMaxFileBytes = 1 << 20;
  const MachineChoice choice{options.machine_backend, options.machine_transport};
  if (options.machine.empty()) return choose_machine(builtin_machine_file(), choice, heads, "machine");
  const std::string what = fmt::format("--machine '{}'", options.machine);
  return choose_machine(parse_machine_file(read_text_file(options.machine, "--machine", kMaxFileBytes), what), choice,
                        heads, what);
}

void take_dtype_of_machine(DistOptions& options) {
  if (options.has_dtype) return;
  options.dtype = load_machine(options, HeadConfig{}).kernels.starts_with("sm90") ? "bf16" : "fp32";
}

PaddedMask pad_mask(const Mask& mask, const DistAttnConfig& config) {
  PaddedMask padded;
  padded.pad_q = pad_for(mask.seqlen_q(), "seqlen_q", config);
  padded.pad_k = pad_for(mask.seqlen_k(), "seqlen_k", config);
  padded.mask = mask.padded(mask.seqlen_q() + padded.pad_q, mask.seqlen_k() + padded.pad_k);
  return padded;
}

}  // namespace tangram::cli
