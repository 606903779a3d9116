// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/config.hpp: immutable values with keyword arguments.
#include "tangram/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "bind.hpp"
#include "core/require.hpp"

namespace tangram::python {

namespace {

std::string repr(const DispatchConfig& c) {
  return fmt::format("DispatchConfig(algorithm='{}', chunk_size={}, seed={})", to_string(c.algorithm), c.chunk_size,
                     c.seed);
}
std::string repr(const OverlapConfig& c) {
  return fmt::format(
      "OverlapConfig(num_stages_fwd={}, num_stages_bwd={}, keep_remote_kv={}, launch_order='{}', sm_margin={})",
      c.num_stages_fwd, c.num_stages_bwd, c.keep_remote_kv ? "True" : "False", to_string(c.launch_order), c.sm_margin);
}
std::string repr(const HeadConfig& c) {
  return fmt::format("HeadConfig(num_heads_q={}, num_heads_kv={}, head_dim={}, head_dim_v={}, dtype='{}')",
                     c.num_heads_q, c.num_heads_kv, c.head_dim, c.head_dim_v, to_string(c.dtype));
}
std::string repr(const CostModel& c) {
  return fmt::format(
      "CostModel(forward_flops_per_s={}, backward_flops_per_s={}, link_bytes_per_s={}, copy_latency_s={}, "
      "stage_overhead_s={}, tile_rows={}, memory_bytes_per_s={}, backward_key_row_s={})",
      c.forward_flops_per_s, c.backward_flops_per_s, c.link_bytes_per_s, c.copy_latency_s, c.stage_overhead_s,
      c.tile_rows, c.memory_bytes_per_s, c.backward_key_row_s);
}
std::string repr(const MovementConfig& c) {
  return fmt::format("MovementConfig(algorithm='{}', head_groups={})", to_string(c.algorithm), c.head_groups);
}
std::string repr(const DistAttnConfig& c) {
  return fmt::format(
      "DistAttnConfig(cp_size={}, heads={}, dispatch={}, overlap={}, cost={}, reduce_dtype='{}', strategy='{}', "
      "head_ranks={}, inner_ring={}, head_chunks=[{}], document_rows={}, movement={})",
      c.cp_size, repr(c.heads), repr(c.dispatch), repr(c.overlap), repr(c.cost), to_string(c.reduce_dtype),
      to_string(c.strategy.name), c.strategy.head_ranks, c.strategy.inner_ring, fmt::join(c.strategy.head_chunks, ", "),
      c.strategy.document_rows, repr(c.movement));
}

// The text holds every field, so that it serves as hash too.
template <class Config>
void finish(nb::class_<Config>& config) {
  bind_equality(config);
  config.def("__hash__", [](const Config& self) { return nb::hash(nb::cast(repr(self))); })
      .def("__repr__", [](const Config& self) { return repr(self); });
}

void bind_parts(nb::module_& m) {
  nb::class_<DispatchConfig> dispatch(m, "DispatchConfig", "How rows are dealt to ranks.");
  dispatch
      .def(
          "__init__",
          [](DispatchConfig* self, const std::string& algorithm, int64_t chunk_size, uint64_t seed) {
            new (self) DispatchConfig{parse_dispatch_algorithm(algorithm), chunk_size, seed};
          },
          "algorithm"_a = "auto", "chunk_size"_a = 0, "seed"_a = 0,
          "chunk_size 0 lets the planner choose the coarsest that balances; seed is for 'random'.")
      .def_prop_ro("algorithm", [](const DispatchConfig& c) { return std::string(to_string(c.algorithm)); })
      .def_ro("chunk_size", &DispatchConfig::chunk_size)
      .def_ro("seed", &DispatchConfig::seed);
  finish(dispatch);

  nb::class_<OverlapConfig> overlap(m, "OverlapConfig", "How transfers hide behind compute.");
  overlap
      .def(
          "__init__",
          [](OverlapConfig* self, int fwd, int bwd, bool keep, const std::string& order, int sm_margin) {
            new (self) OverlapConfig{fwd, bwd, keep, parse_launch_order(order), sm_margin};
          },
          "num_stages_fwd"_a = 0, "num_stages_bwd"_a = 0, "keep_remote_kv"_a = false, "launch_order"_a = "auto",
          "sm_margin"_a = 0,
          "Remote stages of each pass, 0: the cost model chooses. keep_remote_kv keeps the last stage's K/V for the "
          "backward pass, which hides its tail. launch_order, between GPUs: how transfers come to run beside kernels "
          "that fill the device: 'auto', 'copy_engine', 'sm_margin', 'high_priority' or 'kernel_barrier'; sm_margin "
          "multiprocessors are left to them, 0: as many as the transport takes.")
      .def_ro("num_stages_fwd", &OverlapConfig::num_stages_fwd)
      .def_ro("num_stages_bwd", &OverlapConfig::num_stages_bwd)
      .def_ro("keep_remote_kv", &OverlapConfig::keep_remote_kv)
      .def_prop_ro("launch_order", [](const OverlapConfig& c) { return std::string(to_string(c.launch_order)); })
      .def_ro("sm_margin", &OverlapConfig::sm_margin);
  finish(overlap);

  nb::class_<MovementConfig> movement(m, "MovementConfig", "Which rows travel between ranks.");
  movement
      .def(
          "__init__",
          [](MovementConfig* self, const std::string& algorithm, int head_groups) {
            new (self) MovementConfig{parse_movement(algorithm), head_groups};
          },
          "algorithm"_a = "kv", "head_groups"_a = 0,
          "'kv': K/V rows travel to the queries; any other name: queries may travel too, and results come back. "
          "head_groups, a divisor of num_heads_kv: groups of heads that are dealt out on their own; 0: the planner "
          "chooses.")
      .def_prop_ro("algorithm", [](const MovementConfig& c) { return std::string(to_string(c.algorithm)); })
      .def_ro("head_groups", &MovementConfig::head_groups);
  finish(movement);

  nb::class_<HeadConfig> heads(m, "HeadConfig", "Heads and sizes of attention.");
  heads
      .def(
          "__init__",
          [](HeadConfig* self, int num_heads_q, int num_heads_kv, int head_dim, int head_dim_v,
             const std::string& dtype) {
            new (self) HeadConfig{num_heads_q, num_heads_kv, head_dim, head_dim_v, parse_dtype(dtype)};
          },
          "num_heads_q"_a = 1, "num_heads_kv"_a = 1, "head_dim"_a = 128, "head_dim_v"_a = 128, "dtype"_a = "bfloat16")
      .def_ro("num_heads_q", &HeadConfig::num_heads_q)
      .def_ro("num_heads_kv", &HeadConfig::num_heads_kv)
      .def_ro("head_dim", &HeadConfig::head_dim)
      .def_ro("head_dim_v", &HeadConfig::head_dim_v)
      .def_prop_ro("dtype", [](const HeadConfig& c) { return std::string(to_string(c.dtype)); });
  finish(heads);

  const CostModel defaults;
  nb::class_<CostModel> cost(m, "CostModel", "Constants of the machine in which the planner compares.");
  cost.def(
          "__init__",
          [](CostModel* self, double forward, double backward, double link, double copy, double stage, int64_t tile,
             double memory,
             double key_row) { new (self) CostModel{forward, backward, link, copy, stage, tile, memory, key_row}; },
          "forward_flops_per_s"_a = defaults.forward_flops_per_s,
          "backward_flops_per_s"_a = defaults.backward_flops_per_s, "link_bytes_per_s"_a = defaults.link_bytes_per_s,
          "copy_latency_s"_a = defaults.copy_latency_s, "stage_overhead_s"_a = defaults.stage_overhead_s,
          "tile_rows"_a = defaults.tile_rows, "memory_bytes_per_s"_a = defaults.memory_bytes_per_s,
          "backward_key_row_s"_a = defaults.backward_key_row_s)
      .def_ro("forward_flops_per_s", &CostModel::forward_flops_per_s)
      .def_ro("backward_flops_per_s", &CostModel::backward_flops_per_s)
      .def_ro("link_bytes_per_s", &CostModel::link_bytes_per_s)
      .def_ro("copy_latency_s", &CostModel::copy_latency_s)
      .def_ro("stage_overhead_s", &CostModel::stage_overhead_s)
      .def_ro("tile_rows", &CostModel::tile_rows)
      .def_ro("memory_bytes_per_s", &CostModel::memory_bytes_per_s)
      .def_ro("backward_key_row_s", &CostModel::backward_key_row_s);
  finish(cost);
}

}  // namespace

void bind_config(nb::module_& m) {
  bind_parts(m);
  nb::class_<DistAttnConfig> config(
      m, "DistAttnConfig", "The configuration of distributed attention; every default is right for most users.");
  config
      .def(
          "__init__",
          [](DistAttnConfig* self, int cp_size, const HeadConfig& heads, const DispatchConfig& dispatch,
             const OverlapConfig& overlap, const CostModel& cost, const std::string& reduce_dtype,
             const std::string& strategy, int head_ranks, int inner_ring, std::vector<int> head_chunks,
             int64_t document_rows, const MovementConfig& movement, const std::optional<std::string>& planner) {
            MovementConfig moves = movement;
            if (planner) {
              require(*planner == "kv" || *planner == "any", "DistAttnConfig: planner must be 'kv' or 'any' (got '{}')",
                      *planner);
              require(movement == MovementConfig{}, "DistAttnConfig: takes planner or movement (got both)");
              moves.algorithm = *planner == "any" ? Movement::kAuto : Movement::kKv;
            }
            new (self) DistAttnConfig{
                cp_size,
                heads,
                dispatch,
                overlap,
                cost,
                parse_dtype(reduce_dtype),
                {parse_strategy(strategy), head_ranks, inner_ring, std::move(head_chunks), document_rows},
                moves};
          },
          nb::kw_only(), "cp_size"_a = 1, "heads"_a = HeadConfig{}, "dispatch"_a = DispatchConfig{},
          "overlap"_a = OverlapConfig{}, "cost"_a = CostModel{}, "reduce_dtype"_a = "float32", "strategy"_a = "tangram",
          "head_ranks"_a = 0, "inner_ring"_a = 0, "head_chunks"_a = std::vector<int>{}, "document_rows"_a = 0,
          "movement"_a = MovementConfig{}, "planner"_a = nb::none(),
          "cp_size and heads are filled in by the functions that make keys. strategy: 'tangram', 'ulysses', 'hcms', "
          "'ring', 'all_gather', 'usp', 'loong_train', 'hybrid_cp', or 'auto', the fastest of them by the cost model, "
          "which Plan.explain() accounts for. head_ranks is for usp and "
          "loong_train, inner_ring for loong_train, head_chunks (K/V heads of each chunk) for hcms, document_rows (the "
          "longest document that stays whole on one rank) for hybrid_cp; 0 and [] let the planner choose. planner: "
          "'kv' "
          "(default), only K/V rows travel, or 'any', queries and results may too, in host memory: short for "
          "movement=MovementConfig('auto').")
      .def_ro("cp_size", &DistAttnConfig::cp_size)
      .def_ro("heads", &DistAttnConfig::heads)
      .def_ro("dispatch", &DistAttnConfig::dispatch)
      .def_ro("overlap", &DistAttnConfig::overlap)
      .def_ro("cost", &DistAttnConfig::cost)
      .def_ro("movement", &DistAttnConfig::movement)
      .def_prop_ro("reduce_dtype", [](const DistAttnConfig& c) { return std::string(to_string(c.reduce_dtype)); })
      .def_prop_ro("strategy", [](const DistAttnConfig& c) { return std::string(to_string(c.strategy.name)); })
      .def_prop_ro("head_ranks", [](const DistAttnConfig& c) { return c.strategy.head_ranks; })
      .def_prop_ro("inner_ring", [](const DistAttnConfig& c) { return c.strategy.inner_ring; })
      .def_prop_ro("head_chunks", [](const DistAttnConfig& c) { return c.strategy.head_chunks; })
      .def_prop_ro("document_rows", [](const DistAttnConfig& c) { return c.strategy.document_rows; });
  finish(config);
}

}  // namespace tangram::python
