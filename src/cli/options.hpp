// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The options that verbs share: where the mask comes from, how it is spread, and what is printed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tangram/config.hpp"
#include "tangram/mask.hpp"
#include "tangram/simulate.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tangram::cli {

/// Where the mask comes from. Unset text is empty, unset numbers are -1.
struct MaskOptions {
  std::string mask_file;
  std::string case_name;
  std::string family;
  int64_t seqlen = -1;
  std::string window;
  int64_t block = -1;
  int64_t prefix = -1;
  int64_t num_global = -1;
  std::string continuations;
  std::string cu_seqlens;
  std::string doc_lengths;
  std::string sequences;  // file of token lists, or of lengths with parents
  int64_t total_seqlen = -1;
  int64_t seed = 0;
  std::string length_histogram;
};

struct DistOptions {
  int64_t cp_size = 4;
  int64_t chunk_size = 0;
  std::string dispatch = "auto";
  std::string stages = "auto";
  bool keep_remote_kv = false;
  std::string launch_order = "auto";
  int64_t sm_margin = 0;
  int64_t num_heads_q = 0;   // 0: 8, or what --q says
  int64_t num_heads_kv = 0;  // 0: num_heads_q, or what --k says
  int64_t head_dim = 0;      // 0: 128, or what --q says
  int64_t head_dim_v = 0;    // 0: head_dim, or what --v says
  std::string strategy = "tangram";
  int64_t ulysses_degree = 0;   // 0: chosen
  int64_t inner_ring_size = 0;  // 0: chosen
  std::string head_chunks;      // empty: chosen
  int64_t document_rows = 0;    // 0: chosen
  std::string movement = "kv";
  int64_t head_groups = 0;  // 0: chosen
  std::string dtype = "float32";
  bool has_dtype = false;         // given, so that --gpus keeps it
  int64_t ranks_per_node = 0;     // 0: one node
  std::string machine;            // file of constants; empty: those of H200 nodes
  std::string machine_backend;    // which kernels of the file; empty: the first
  std::string machine_transport;  // which links of the file; empty: the first
};

struct OutputOptions {
  bool json = false;
  std::string html;
};

/// Makes the program read the option as a decimal number and refuse anything but whole numbers in [min, max]. `min` is
/// 0, or 1 for options whose 0 means "not given". K and M behind a number are 1,024 and 1,024^2. CLI11 alone reads
/// "010" as 8 and clips what 64 bits do not hold.
void require_whole_number(CLI::Option& option, int64_t min, int64_t max = INT64_MAX);

void add_mask_options(CLI::App& app, MaskOptions& options);
void add_dist_options(CLI::App& app, DistOptions& options);
/// Adds the options of verbs that plan a step: strategy, its parameters, and movement.
void add_strategy_options(CLI::App& app, DistOptions& options);
/// The parameters alone, for the strategies that have them.
void add_strategy_parameters(CLI::App& app, DistOptions& options);
void add_output_options(CLI::App& app, OutputOptions& options);

/// The mask that the options name, not yet padded, and how they name it.
struct NamedMask {
  Mask mask;
  std::string name;
  std::vector<Mask> of_heads = {};  // of groups of heads that see different cells, `mask` the first; else empty
};
/// Throws InvalidArgument unless exactly one source is given, completely.
NamedMask load_mask(const MaskOptions& options);

/// The constants that --machine and its companions name, or those of H200 nodes.
MachineModel load_machine(const DistOptions& options, const HeadConfig& heads);

/// Sets the default of --dtype for verbs that only predict: bf16 for kernels of GPUs, fp32 for those of CPUs.
void take_dtype_of_machine(DistOptions& options);

/// Refuses parameters of a plan that its strategy or movement does not have. Throws InvalidArgument.
void require_effect(const DistAttnConfig& config);

/// The typed configuration; throws InvalidArgument naming the option at fault.
DistAttnConfig make_config(const DistOptions& options);

/// The mask made divisible for `config`, and what that took. A given chunk size is met exactly. Otherwise rows of a
/// rank become a multiple of a power of two up to 128, so that the planner can choose chunks. It is the largest that
/// costs at most one row in 16.
struct PaddedMask {
  Mask mask;
  int64_t pad_q = 0;
  int64_t pad_k = 0;
};
/// Throws InvalidArgument when there are fewer chunks than ranks.
PaddedMask pad_mask(const Mask& mask, const DistAttnConfig& config);

}  // namespace tangram::cli
