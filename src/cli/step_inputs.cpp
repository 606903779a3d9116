// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/step_inputs.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>

#include "cli/npy.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

float drawn(uint64_t key, uint64_t index) {
  const uint64_t bits = splitmix64(key + index);
  const auto sum =
      static_cast<double>((bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48));
  // The sum of four uniform 16-bit numbers: mean 2 * 65535, variance (65536^2 - 1) / 3.
  constexpr double kDeviation = 37837.227;
  return static_cast<float>((sum - 2.0 * 65535.0) / kDeviation);
}

// The tensor in `dtype` with `rows` rows: from `file`, or drawn where there is none.
HostTensor padded_tensor(const HostTensor& file, uint64_t key, DType dtype, int64_t rows, int64_t num_real_rows,
                         int heads, int dim) {
  HostTensor values(DType::kFloat32, rows, heads, dim);
  float* data = values.data<float>();
  const int64_t num_real = num_real_rows * heads * dim;
  if (file.size() > 0) {
    std::memcpy(data, file.data<float>(), static_cast<size_t>(num_real) * sizeof(float));
  } else {
    for (int64_t i = 0; i < num_real; ++i) data[i] = drawn(key, static_cast<uint64_t>(i));
  }
  std::memset(data + num_real, 0, static_cast<size_t>(values.size() - num_real) * sizeof(float));
  return dtype == DType::kFloat32 ? std::move(values) : values.to(dtype);
}

// Takes `value` over from a file unless the option contradicts it.
void adopt(int64_t& option, int64_t value, const char* name, const char* file) {
  require(option == 0 || option == value, "{}: must agree with {} (got {} and {})", name, file, option, value);
  option = value;
}

}  // namespace

void add_step_options(CLI::App& app, StepOptions& options) {
  const std::string group = "Computation";
  const auto add_file = [&](const char* name, std::string& value, const char* help) {
    app.add_option(name, value, help)->type_name("FILE.npy")->group(group);
  };
  add_file("--q", options.q_file, "float32 [seqlen, heads, dim]; drawn from --seed when not given");
  add_file("--k", options.k_file, "likewise");
  add_file("--v", options.v_file, "likewise");
  add_file("--dout", options.dout_file, "gradient of out");
  app.add_option("--backend", options.backend, "attention: auto, or a name that doctor lists")
      ->type_name("NAME")
      ->group(group);
  CLI::Option* gpus =
      app.add_option(
             "--gpus", options.num_gpus,
             "ranks are processes with a GPU each, instead of --cp-size threads; those of mpirun, torchrun or Slurm")
          ->type_name("N")
          ->group(group);
  require_whole_number(*gpus, 1);
  app.add_option("--transport", options.transport,
                 "between GPUs: copy_engine (default) or nccl; with --ranks-per-node between nodes, default nccl")
      ->type_name("NAME")
      ->group(group);
  CLI::Option* ranks_per_node =
      app.add_option("--ranks-per-node", options.ranks_per_node,
                     "send rows once to each node of so many ranks, which hands them on (default: one node)")
          ->type_name("N")
          ->group(group);
  require_whole_number(*ranks_per_node, 1, 1 << 16);
  app.add_option("--softmax-scale", options.softmax_scale, "default 1 / sqrt(head_dim)")
      ->type_name("X")
      ->group(group)
      ->each([&options](const std::string&) { options.has_softmax_scale = true; });
  app.add_option("--softcap", options.softcap, "0: none (default)")->type_name("X")->group(group);
  app.add_flag("--deterministic", options.deterministic, "bitwise equal from run to run")->group(group);
}

AttnOptions make_attn_options(const StepOptions& options) {
  AttnOptions attn;
  // Checked as float32, for which 1e39 is too large and 1e-50 too small.
  const float scale = static_cast<float>(options.softmax_scale), softcap = static_cast<float>(options.softcap);
  if (options.has_softmax_scale) {
    require(std::isfinite(scale) && scale > 0, "--softmax-scale: must be finite and positive in float32 (got {})",
            options.softmax_scale);
    attn.softmax_scale = scale;
  }
  require(std::isfinite(softcap) && options.softcap >= 0 && (softcap > 0 || options.softcap == 0),
          "--softcap: must be finite and not negative in float32 (got {})", options.softcap);
  attn.softcap = softcap;
  attn.deterministic = options.deterministic;
  return attn;
}

FileTensors read_tensors(const StepOptions& options, DistOptions& dist) {
  FileTensors files;
  const bool any = !options.q_file.empty() || !options.k_file.empty() || !options.v_file.empty();
  require(any || options.dout_file.empty(), "--dout: needs --q, --k and --v as well");
  if (!any) return files;
  require(!options.q_file.empty() && !options.k_file.empty() && !options.v_file.empty(),
          "--q, --k, --v: must be given together");
  files.q = read_npy(options.q_file, "--q");
  files.k = read_npy(options.k_file, "--k");
  files.v = read_npy(options.v_file, "--v");
  require(files.k.rows() == files.v.rows() && files.k.heads() == files.v.heads(),
          "--k, --v: must have equal rows and heads (got {} and {})", shape_text(files.k), shape_text(files.v));
  require(files.q.dim() == files.k.dim(), "--q, --k: must have equal dims (got {} and {})", shape_text(files.q),
          shape_text(files.k));
  adopt(dist.num_heads_q, files.q.heads(), "--heads-q", "--q");
  adopt(dist.num_heads_kv, files.k.heads(), "--heads-kv", "--k");
  adopt(dist.head_dim, files.q.dim(), "--head-dim", "--q");
  adopt(dist.head_dim_v, files.v.dim(), "--head-dim-v", "--v");
  if (!options.dout_file.empty()) {
    files.dout = read_npy(options.dout_file, "--dout");
    require(files.dout.rows() == files.q.rows() && files.dout.heads() == files.q.heads() &&
                files.dout.dim() == files.v.dim(),
            "--dout: must have the rows and heads of q and the dim of v (got {}, q {}, v {})", shape_text(files.dout),
            shape_text(files.q), shape_text(files.v));
  }
  return files;
}

StepInputs make_inputs(const PlanSummary& summary, const FileTensors& files, uint64_t seed) {
  const Plan& plan = *summary.plan;
  const HeadConfig& heads = plan.config.heads;
  const int64_t rows_q = plan.q_dispatch.seqlen();
  const int64_t rows_k = plan.k_dispatch.seqlen();
  const int64_t real_q = rows_q - summary.pad_q;
  const int64_t real_k = rows_k - summary.pad_k;
  require(files.q.size() == 0 || files.q.rows() == real_q, "--q: must have the {} rows of the mask (got {})", real_q,
          files.q.rows());
  require(files.k.size() == 0 || files.k.rows() == real_k, "--k, --v: must have the {} rows of the mask (got {})",
          real_k, files.k.rows());
  const auto key = [seed](uint64_t tensor) { return splitmix64(4 * seed + tensor); };
  StepInputs inputs;
  inputs.q = padded_tensor(files.q, key(0), heads.dtype, rows_q, real_q, heads.num_heads_q, heads.head_dim);
  inputs.k = padded_tensor(files.k, key(1), heads.dtype, rows_k, real_k, heads.num_heads_kv, heads.head_dim);
  inputs.v = padded_tensor(files.v, key(2), heads.dtype, rows_k, real_k, heads.num_heads_kv, heads.head_dim_v);
  inputs.dout = padded_tensor(files.dout, key(3), heads.dtype, rows_q, real_q, heads.num_heads_q, heads.head_dim_v);
  return inputs;
}

}  // namespace tangram::cli
