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
#include "machine/head_dim_rates.hpp"
#include "plan/validate.hpp"

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
std::string repr(const HeadDimRate& c) {
  return fmt::format("HeadDimRate(head_dim={}, head_dim_v={}, forward={}, backward={})", c.head_dim, c.head_dim_v,
                     c.forward, c.backward);
}
std::string repr(const CostModel& c) {
  std::string rates;
  for (const HeadDimRate& rate : c.head_dim_rates) rates += (rates.empty() ? "" : ", ") + repr(rate);
  return fmt::format(
      "CostModel(forward_flops_per_s={}, backward_flops_per_s={}, link_bytes_per_s={}, copy_latency_s={}, "
      "stage_overhead_s={}, tile_rows={}, memory_bytes_per_s={}, backward_key_row_s={}, head_dim_rates=[{}], "
      "ranks_per_node={}, between_bytes_per_s={}, between_message_s={}, between_sms={}, sms={})",
      c.forward_flops_per_s, c.backward_flops_per_s, c.link_bytes_per_s, c.copy_latency_s, c.stage_overhead_s,
      c.tile_rows, c.memory_bytes_per_s, c.backward_key_row_s, rates, c.ranks_per_node, c.between_bytes_per_s,
      c.between_message_s, c.between_sms, c.sms);
}
std::string repr(const MovementConfig& c) {
  return fmt::format("MovementConfig(algorithm='{}', head_groups={})", to_string(c.algorithm), c.head_groups);
}
std::string repr(const DistAttnConfig& c) {
  return fmt::format(
      "DistAttnConfig(cp_size={}, heads={}, dispatch={}, overlap={}, cost={}, reduce_dtype='{}', strategy='{}', "
      "ulysses_degree={}, inner_ring_size={}, head_chunks=[{}], document_rows={}, movement={})",
      c.cp_size, repr(c.heads), repr(c.dispatch), repr(c.overlap), repr(c.cost), to_string(c.reduce_dtype),
      to_string(c.strategy.name), c.strategy.ulysses_degree, c.strategy.inner_ring_size,
      fmt::join(c.strategy.head_chunks, ", "), c.strategy.document_rows, repr(c.movement));
}

// The text holds every field, so that it serves as hash too.
template <class Config>
void finish(nb::class_<Config>& config) {
  bind_equality(config);
  config.def("__hash__", [](const Config& self) { return nb::hash(nb::cast(repr(self))); })
      .def("__repr__", [](const Config& self) { return repr(self); });
}

DType reduce_dtype_of(const std::string& name) {
  try {
    return parse_dtype(name);
  } catch (const InvalidArgument&) {
    throw InvalidArgument(
        fmt::format("DistAttnConfig: reduce_dtype must be float32, bfloat16 or float16 (got '{}')", name));
  }
}

int small(nb::handle value, const char* config, const char* name) {
  return field<int>(value, config, name, "a whole number of 32 bits");
}

std::string text(nb::handle value, const char* config, const char* name) {
  return field<std::string>(value, config, name, "a str");
}

bool flag(nb::handle value, const char* config, const char* name) { return field<bool>(value, config, name, "a bool"); }

void refuse_unknown(const nb::kwargs& rest, const char* config, const char* known) {
  for (const auto& [name, value] : rest) {
    throw nb::type_error(fmt::format("{}: has the fields {} (got {}={:.60})", config, known, nb::str(name).c_str(),
                                     nb::repr(value).c_str())
                             .c_str());
  }
}

void bind_parts(nb::module_& m) {
  nb::class_<DispatchConfig> dispatch(m, "DispatchConfig", "How rows are sharded over ranks.");
  dispatch
      .def(
          "__init__",
          [](DispatchConfig* self, nb::handle algorithm, nb::handle chunk_size, nb::handle seed,
             const nb::kwargs& rest) {
            constexpr const char* kName = "DispatchConfig";
            refuse_unknown(rest, kName, "algorithm, chunk_size, seed");
            new (self) DispatchConfig{parse_dispatch_algorithm(text(algorithm, kName, "algorithm")),
                                      whole(chunk_size, kName, "chunk_size"),
                                      field<uint64_t>(seed, kName, "seed", "a whole number from 0 on")};
          },
          "algorithm"_a.none() = "auto", "chunk_size"_a.none() = 0, "seed"_a.none() = 0, "rest"_a,
          nb::sig("def __init__(self, algorithm: str = 'auto', chunk_size: int = 0, seed: int = 0) -> None"),
          "chunk_size 0 lets the planner choose the coarsest that balances; seed is for 'random'.")
      .def_prop_ro("algorithm", [](const DispatchConfig& c) { return std::string(to_string(c.algorithm)); })
      .def_ro("chunk_size", &DispatchConfig::chunk_size)
      .def_ro("seed", &DispatchConfig::seed);
  finish(dispatch);

  nb::class_<OverlapConfig> overlap(m, "OverlapConfig", "How transfers hide behind compute.");
  overlap
      .def(
          "__init__",
          [](OverlapConfig* self, nb::handle fwd, nb::handle bwd, nb::handle keep, nb::handle order, nb::handle margin,
             const nb::kwargs& rest) {
            constexpr const char* kName = "OverlapConfig";
            refuse_unknown(rest, kName, "num_stages_fwd, num_stages_bwd, keep_remote_kv, launch_order, sm_margin");
            new (self) OverlapConfig{small(fwd, kName, "num_stages_fwd"), small(bwd, kName, "num_stages_bwd"),
                                     flag(keep, kName, "keep_remote_kv"),
                                     parse_launch_order(text(order, kName, "launch_order")),
                                     small(margin, kName, "sm_margin")};
          },
          "num_stages_fwd"_a.none() = 0, "num_stages_bwd"_a.none() = 0, "keep_remote_kv"_a.none() = false,
          "launch_order"_a.none() = "auto", "sm_margin"_a.none() = 0, "rest"_a,
          nb::sig("def __init__(self, num_stages_fwd: int = 0, num_stages_bwd: int = 0, keep_remote_kv: bool = False, "
                  "launch_order: str = 'auto', sm_margin: int = 0) -> None"),
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

  nb::class_<MovementConfig> movement(m, "MovementConfig", "Which rows move between ranks.");
  movement
      .def(
          "__init__",
          [](MovementConfig* self, nb::handle algorithm, nb::handle head_groups, const nb::kwargs& rest) {
            constexpr const char* kName = "MovementConfig";
            refuse_unknown(rest, kName, "algorithm, head_groups");
            new (self) MovementConfig{parse_movement(text(algorithm, kName, "algorithm")),
                                      small(head_groups, kName, "head_groups")};
          },
          "algorithm"_a.none() = "kv", "head_groups"_a.none() = 0, "rest"_a,
          nb::sig("def __init__(self, algorithm: str = 'kv', head_groups: int = 0) -> None"),
          "'kv': K/V rows move to the queries; any other name: queries may move too, and results come back. "
          "head_groups, a divisor of num_heads_kv: groups of heads whose work is assigned separately; 0: the planner "
          "chooses.")
      .def_prop_ro("algorithm", [](const MovementConfig& c) { return std::string(to_string(c.algorithm)); })
      .def_ro("head_groups", &MovementConfig::head_groups);
  finish(movement);

  nb::class_<HeadConfig> heads(m, "HeadConfig", "Heads and sizes of attention.");
  heads
      .def(
          "__init__",
          [](HeadConfig* self, nb::handle num_heads_q, nb::handle num_heads_kv, nb::handle head_dim,
             nb::handle head_dim_v, nb::handle dtype, const nb::kwargs& rest) {
            constexpr const char* kName = "HeadConfig";
            refuse_unknown(rest, kName, "num_heads_q, num_heads_kv, head_dim, head_dim_v, dtype");
            const int dim = small(head_dim, kName, "head_dim");
            const HeadConfig value{small(num_heads_q, kName, "num_heads_q"), small(num_heads_kv, kName, "num_heads_kv"),
                                   dim, head_dim_v.is_none() ? dim : small(head_dim_v, kName, "head_dim_v"),
                                   parse_dtype(field<std::string>(dtype, kName, "dtype", "a str such as 'bfloat16'"))};
            validate_heads(value, kName);
            new (self) HeadConfig{value};
          },
          "num_heads_q"_a.none() = 1, "num_heads_kv"_a.none() = 1, "head_dim"_a.none() = 128,
          "head_dim_v"_a.none() = nb::none(), "dtype"_a.none() = "bfloat16", "rest"_a,
          nb::sig("def __init__(self, num_heads_q: int = 1, num_heads_kv: int = 1, head_dim: int = 128, "
                  "head_dim_v: int | None = None, dtype: str = 'bfloat16') -> None"),
          "num_heads_q must be a multiple of num_heads_kv. head_dim is of q and k, head_dim_v of v and out; None: as "
          "head_dim. Raises InvalidArgument for other values.")
      .def_ro("num_heads_q", &HeadConfig::num_heads_q)
      .def_ro("num_heads_kv", &HeadConfig::num_heads_kv)
      .def_ro("head_dim", &HeadConfig::head_dim)
      .def_ro("head_dim_v", &HeadConfig::head_dim_v)
      .def_prop_ro("dtype", [](const HeadConfig& c) { return std::string(to_string(c.dtype)); });
  finish(heads);

  nb::class_<HeadDimRate> rate(m, "HeadDimRate", "What kernels of a class of head dims reach beside others.");
  rate.def(
          "__init__",
          [](HeadDimRate* self, nb::handle head_dim, nb::handle head_dim_v, nb::handle forward, nb::handle backward,
             const nb::kwargs& rest) {
            constexpr const char* kName = "HeadDimRate";
            refuse_unknown(rest, kName, "head_dim, head_dim_v, forward, backward");
            const HeadDimRate value{small(head_dim, kName, "head_dim"), small(head_dim_v, kName, "head_dim_v"),
                                    field<double>(forward, kName, "forward", "a number"),
                                    field<double>(backward, kName, "backward", "a number")};
            validate_head_dim_rates({&value, 1}, kName, "rates");
            new (self) HeadDimRate{value};
          },
          "head_dim"_a.none(), "head_dim_v"_a.none(), "forward"_a.none() = 1.0, "backward"_a.none() = 1.0, "rest"_a,
          nb::sig("def __init__(self, head_dim: int, head_dim_v: int, forward: float = 1.0, backward: float = 1.0) "
                  "-> None"),
          "Columns of q and k and of v that a class of kernels is compiled for, and what its rates are as multiples of "
          "CostModel's, without a unit. Dimensions belong to the first class of a list that holds both, and take as "
          "long as its own; larger ones have the factors of the last class. Raises InvalidArgument for what is not "
          "positive.")
      .def_ro("head_dim", &HeadDimRate::head_dim)
      .def_ro("head_dim_v", &HeadDimRate::head_dim_v)
      .def_ro("forward", &HeadDimRate::forward)
      .def_ro("backward", &HeadDimRate::backward);
  finish(rate);

  const CostModel defaults;
  nb::class_<CostModel> cost(m, "CostModel", "Constants of the machine in which the planner compares.");
  cost.def(
          "__init__",
          [](CostModel* self, nb::handle forward, nb::handle backward, nb::handle link, nb::handle copy,
             nb::handle stage, nb::handle tile, nb::handle memory, nb::handle key_row, nb::handle rates,
             nb::handle per_node, nb::handle between, nb::handle message, nb::handle between_sms, nb::handle sms,
             const nb::kwargs& rest) {
            constexpr const char* kName = "CostModel";
            refuse_unknown(rest, kName,
                           "forward_flops_per_s, backward_flops_per_s, link_bytes_per_s, copy_latency_s, "
                           "stage_overhead_s, tile_rows, memory_bytes_per_s, backward_key_row_s, head_dim_rates, "
                           "ranks_per_node, between_bytes_per_s, between_message_s, between_sms, sms");
            const auto number = [](nb::handle value, const char* name) {
              return field<double>(value, kName, name, "a number");
            };
            new (self) CostModel{number(forward, "forward_flops_per_s"),
                                 number(backward, "backward_flops_per_s"),
                                 number(link, "link_bytes_per_s"),
                                 number(copy, "copy_latency_s"),
                                 number(stage, "stage_overhead_s"),
                                 whole(tile, kName, "tile_rows"),
                                 number(memory, "memory_bytes_per_s"),
                                 number(key_row, "backward_key_row_s"),
                                 field<std::vector<HeadDimRate>>(rates, kName, "head_dim_rates", "HeadDimRates"),
                                 small(per_node, kName, "ranks_per_node"),
                                 number(between, "between_bytes_per_s"),
                                 number(message, "between_message_s"),
                                 small(between_sms, kName, "between_sms"),
                                 small(sms, kName, "sms")};
          },
          "forward_flops_per_s"_a.none() = defaults.forward_flops_per_s,
          "backward_flops_per_s"_a.none() = defaults.backward_flops_per_s,
          "link_bytes_per_s"_a.none() = defaults.link_bytes_per_s, "copy_latency_s"_a.none() = defaults.copy_latency_s,
          "stage_overhead_s"_a.none() = defaults.stage_overhead_s, "tile_rows"_a.none() = defaults.tile_rows,
          "memory_bytes_per_s"_a.none() = defaults.memory_bytes_per_s,
          "backward_key_row_s"_a.none() = defaults.backward_key_row_s,
          "head_dim_rates"_a.none() = defaults.head_dim_rates, "ranks_per_node"_a.none() = defaults.ranks_per_node,
          "between_bytes_per_s"_a.none() = defaults.between_bytes_per_s,
          "between_message_s"_a.none() = defaults.between_message_s, "between_sms"_a.none() = defaults.between_sms,
          "sms"_a.none() = defaults.sms, "rest"_a,
          nb::sig("def __init__(self, forward_flops_per_s: float = ..., backward_flops_per_s: float = ..., "
                  "link_bytes_per_s: float = ..., copy_latency_s: float = ..., stage_overhead_s: float = ..., "
                  "tile_rows: int = ..., memory_bytes_per_s: float = ..., backward_key_row_s: float = ..., "
                  "head_dim_rates: collections.abc.Sequence[HeadDimRate] = ..., ranks_per_node: int = ..., "
                  "between_bytes_per_s: float = ..., between_message_s: float = ..., between_sms: int = ..., "
                  "sms: int = ...) -> None"),
          "forward_flops_per_s and backward_flops_per_s: attention by visible area, of the class of head dims whose "
          "factors in head_dim_rates are 1 (by default 128); of others times their factors. An empty list: the same "
          "rates for all head dims. link_bytes_per_s: of a rank, each way. copy_latency_s: of a contiguous copy. "
          "stage_overhead_s: of a further stage. tile_rows: query rows of a kernel tile. memory_bytes_per_s: rows that "
          "are copied or added, read plus written. backward_key_row_s: of a key row of another rank, for each query "
          "head. ranks_per_node: 0, or at least cp_size, if all ranks are on one node; else a divisor of cp_size, and "
          "the "
          "planner assigns rows to nodes first. Between nodes: between_bytes_per_s of a rank, each way; "
          "between_message_s of a message; between_sms of its sms multiprocessors, which transfers take from "
          "attention. The planner raises InvalidArgument for rates that are not positive and negative times.")
      .def_ro("forward_flops_per_s", &CostModel::forward_flops_per_s)
      .def_ro("backward_flops_per_s", &CostModel::backward_flops_per_s)
      .def_ro("link_bytes_per_s", &CostModel::link_bytes_per_s)
      .def_ro("copy_latency_s", &CostModel::copy_latency_s)
      .def_ro("stage_overhead_s", &CostModel::stage_overhead_s)
      .def_ro("tile_rows", &CostModel::tile_rows)
      .def_ro("memory_bytes_per_s", &CostModel::memory_bytes_per_s)
      .def_ro("backward_key_row_s", &CostModel::backward_key_row_s)
      .def_ro("head_dim_rates", &CostModel::head_dim_rates)
      .def_ro("ranks_per_node", &CostModel::ranks_per_node)
      .def_ro("between_bytes_per_s", &CostModel::between_bytes_per_s)
      .def_ro("between_message_s", &CostModel::between_message_s)
      .def_ro("between_sms", &CostModel::between_sms)
      .def_ro("sms", &CostModel::sms);
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
          [](DistAttnConfig* self, nb::handle cp_size, nb::handle heads, nb::handle dispatch, nb::handle overlap,
             nb::handle cost, nb::handle reduce_dtype, nb::handle strategy, nb::handle ulysses_degree,
             nb::handle inner_ring_size, nb::handle head_chunks, nb::handle document_rows, nb::handle movement,
             nb::handle planner, const nb::kwargs& rest) {
            constexpr const char* kName = "DistAttnConfig";
            refuse_unknown(
                rest, kName,
                "cp_size, heads, dispatch, overlap, cost, reduce_dtype, strategy, ulysses_degree, inner_ring_size, "
                "head_chunks, document_rows, movement, planner");
            MovementConfig moves = field<MovementConfig>(movement, kName, "movement", "a MovementConfig");
            if (!planner.is_none()) {
              const std::string chosen = text(planner, kName, "planner");
              require(chosen == "kv" || chosen == "any", "DistAttnConfig: planner must be 'kv' or 'any' (got '{}')",
                      chosen);
              require(moves == MovementConfig{}, "DistAttnConfig: takes planner or movement (got both)");
              moves.algorithm = chosen == "any" ? Movement::kAuto : Movement::kKv;
            }
            new (self) DistAttnConfig{
                small(cp_size, kName, "cp_size"),
                field<HeadConfig>(heads, kName, "heads", "a HeadConfig"),
                field<DispatchConfig>(dispatch, kName, "dispatch", "a DispatchConfig"),
                field<OverlapConfig>(overlap, kName, "overlap", "an OverlapConfig"),
                field<CostModel>(cost, kName, "cost", "a CostModel"),
                reduce_dtype_of(text(reduce_dtype, kName, "reduce_dtype")),
                {parse_strategy(text(strategy, kName, "strategy")), small(ulysses_degree, kName, "ulysses_degree"),
                 small(inner_ring_size, kName, "inner_ring_size"),
                 field<std::vector<int>>(head_chunks, kName, "head_chunks", "whole numbers"),
                 whole(document_rows, kName, "document_rows")},
                moves};
          },
          nb::kw_only(), "cp_size"_a.none() = 1, "heads"_a.none() = HeadConfig{},
          "dispatch"_a.none() = DispatchConfig{}, "overlap"_a.none() = OverlapConfig{}, "cost"_a.none() = CostModel{},
          "reduce_dtype"_a.none() = "float32", "strategy"_a.none() = "tangram", "ulysses_degree"_a.none() = 0,
          "inner_ring_size"_a.none() = 0, "head_chunks"_a.none() = std::vector<int>{}, "document_rows"_a.none() = 0,
          "movement"_a.none() = MovementConfig{}, "planner"_a.none() = nb::none(), "rest"_a,
          nb::sig("def __init__(self, *, cp_size: int = 1, heads: HeadConfig = ..., dispatch: DispatchConfig = ..., "
                  "overlap: OverlapConfig = ..., cost: CostModel = ..., reduce_dtype: str = 'float32', "
                  "strategy: str = 'tangram', ulysses_degree: int = 0, inner_ring_size: int = 0, "
                  "head_chunks: collections.abc.Sequence[int] = [], document_rows: int = 0, "
                  "movement: MovementConfig = ..., planner: str | None = None) -> None"),
          "cp_size and heads are filled in by the functions that make keys. strategy: 'tangram', 'ulysses', 'hcms', "
          "'ring', 'all_gather', 'usp', 'loong_train', 'hybrid_cp', or 'auto', the fastest of them by the cost model, "
          "which Plan.explain() accounts for. ulysses_degree is for usp and "
          "loong_train, inner_ring_size for loong_train, head_chunks (K/V heads of each chunk) for hcms, document_rows "
          "(the "
          "longest document that stays whole on one rank) for hybrid_cp; 0 and [] let the planner choose. planner: "
          "'kv' "
          "(default), only K/V rows move, or 'any', queries and results may too, in host memory: short for "
          "movement=MovementConfig('auto').")
      .def_ro("cp_size", &DistAttnConfig::cp_size)
      .def_ro("heads", &DistAttnConfig::heads)
      .def_ro("dispatch", &DistAttnConfig::dispatch)
      .def_ro("overlap", &DistAttnConfig::overlap)
      .def_ro("cost", &DistAttnConfig::cost)
      .def_ro("movement", &DistAttnConfig::movement)
      .def_prop_ro("reduce_dtype", [](const DistAttnConfig& c) { return std::string(to_string(c.reduce_dtype)); })
      .def_prop_ro("strategy", [](const DistAttnConfig& c) { return std::string(to_string(c.strategy.name)); })
      .def_prop_ro("ulysses_degree", [](const DistAttnConfig& c) { return c.strategy.ulysses_degree; })
      .def_prop_ro("inner_ring_size", [](const DistAttnConfig& c) { return c.strategy.inner_ring_size; })
      .def_prop_ro("head_chunks", [](const DistAttnConfig& c) { return c.strategy.head_chunks; })
      .def_prop_ro("document_rows", [](const DistAttnConfig& c) { return c.strategy.document_rows; });
  finish(config);
}

}  // namespace tangram::python
