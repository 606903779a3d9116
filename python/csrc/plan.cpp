// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/plan.hpp. Planning releases the GIL, so that a thread can plan the next step's mask.
#include "tangram/plan.hpp"

#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "bind.hpp"
#include "core/require.hpp"
#include "plan/program/emit.hpp"
#include "tangram/error.hpp"
#include "tangram/exchange.hpp"
#include "tangram/head_masks.hpp"

namespace tangram::python {

namespace {

// What a file held, read as text or as bytes.
std::string bytes_of_text(nb::handle text) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_Check(text.ptr()) && PyBytes_AsStringAndSize(text.ptr(), &data, &size) == 0) return {data, size_t(size)};
  if (!PyUnicode_Check(text.ptr())) throw nb::type_error("Plan.from_json: text must be str or bytes");
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 == nullptr) {  // half of a surrogate pair
    PyErr_Clear();
    throw InvalidArgument("Plan.from_json: text must be UTF-8 (got half of a surrogate pair)");
  }
  return {utf8, size_t(size)};
}

using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

void bind_parts(nb::module_& m) {
  nb::class_<Dispatch> dispatch(m, "Dispatch", "The map chunk -> rank over one sequence.");
  dispatch.def_ro("cp_size", &Dispatch::cp_size)
      .def_ro("chunk_size", &Dispatch::chunk_size)
      .def_prop_ro("rank_of_chunk", [](const Dispatch& self) { return self.rank_of_chunk.expanded(); })
      .def_prop_ro("seqlen", &Dispatch::seqlen)
      .def_prop_ro("rows_per_rank", &Dispatch::rows_per_rank)
      .def("rows_of_rank", &Dispatch::rows_of_rank, "rank"_a, "Global rows of a rank's shard, in shard order.");
  bind_equality(dispatch);
  nb::class_<RowCopy> copy(m, "RowCopy", "Rows of this rank and as many at peer, from peer_row on.");
  copy.def_ro("peer", &RowCopy::peer).def_ro("rows", &RowCopy::rows).def_ro("peer_row", &RowCopy::peer_row);
  bind_equality(copy);
  nb::class_<Exchange> exchange(m, "Exchange", "One rank's side of a group_cast.");
  exchange.def_ro("sends", &Exchange::sends)
      .def_ro("recvs", &Exchange::recvs)
      .def_prop_ro("rows_sent", &Exchange::rows_sent)
      .def_prop_ro("rows_received", &Exchange::rows_received);
  bind_equality(exchange);
  nb::class_<Stage> stage(m, "Stage", "One step of the overlap pipeline on one rank; stage 0 is local.");
  stage.def_ro("exchange", &Stage::exchange)
      .def_ro("kept", &Stage::kept)
      .def_ro("slices", &Stage::slices)
      .def_ro("area", &Stage::area);
  bind_equality(stage);
  nb::class_<RankPlan> rank(m, "RankPlan", "One rank's part: slices in (shard row, buffer row) coordinates, stages.");
  rank.def_ro("slices", &RankPlan::slices)
      .def_ro("area", &RankPlan::area)
      .def_ro("kv_rows", &RankPlan::kv_rows)
      .def_ro("remote_kv_rows", &RankPlan::remote_kv_rows)
      .def_ro("forward", &RankPlan::forward)
      .def_ro("backward", &RankPlan::backward)
      .def("__repr__", [](const RankPlan& self) {
        return fmt::format(
            "RankPlan(slices={}, area={}, kv_rows={}, remote_kv_rows={}, forward={}, backward={} stages)",
            self.slices.size(), self.area, self.kv_rows, self.remote_kv_rows, self.forward.size(),
            self.backward.size());
      });
  bind_equality(rank);
  nb::class_<PredictedTime>(m, "PredictedTime", "Seconds of a step on the slowest rank, by the cost model.")
      .def_ro("forward_s", &PredictedTime::forward_s)
      .def_ro("backward_s", &PredictedTime::backward_s)
      .def_ro("exposed_s", &PredictedTime::exposed_s)
      .def("__repr__", [](const PredictedTime& self) {
        return fmt::format("PredictedTime(forward_s={:.4g}, backward_s={:.4g}, exposed_s={:.4g})", self.forward_s,
                           self.backward_s, self.exposed_s);
      });
}

void bind_cache(nb::module_& m) {
  nb::class_<PlanCache>(m, "PlanCache", nb::is_weak_referenceable(),
                        "Least recently used plans by mask and config. Thread-safe.")
      .def(nb::init<size_t, int64_t>(), "capacity"_a = 128, "max_bytes"_a = PlanCache::kMaxBytes,
           "At most so many plans and so many bytes of them, but always the latest.")
      .def(
          "get",
          [](PlanCache& self, const Mask& mask, const DistAttnConfig& config) {
            try {
              return self.get(mask, config);
            } catch (const InvalidArgument& error) {
              throw InvalidArgument("PlanCache.get", error.requirement());
            }
          },
          "mask"_a, "config"_a, ReleaseGil(), "The plan, made on a miss.")
      .def("most_recent", &PlanCache::most_recent, "The plan that get returned last, None before the first.")
      .def_prop_ro("hits", [](const PlanCache& self) { return self.counters().hits; })
      .def_prop_ro("misses", [](const PlanCache& self) { return self.counters().misses; })
      .def("__len__", &PlanCache::size)
      .def_prop_ro("num_bytes", &PlanCache::bytes, "Memory of the plans.")
      .def_prop_rw("max_bytes", &PlanCache::max_bytes, &PlanCache::set_max_bytes,
                   "Its bound; a smaller one holds at once.")
      .def("clear", &PlanCache::clear, "Forgets all plans.");
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_parts(m);
  nb::class_<Plan> plan(m, "Plan", "Everything derived from (mask, config). A plain value.");
  plan.def_ro("mask", &Plan::mask)
      .def_ro("config", &Plan::config)
      .def_prop_ro(
          "memory_bytes", [](const Plan& self) { return memory_bytes(self); }, "Host memory that the plan takes.")
      .def_prop_ro(
          "executor_bytes", [](const Plan& self) { return executor_bytes(self); },
          "About as much as DistAttention on the CPU keeps beside the plan, on the rank where it is most.")
      .def_ro("q_dispatch", &Plan::q_dispatch)
      .def_ro("k_dispatch", &Plan::k_dispatch)
      .def_prop_ro(
          "ranks",
          [](nb::handle self) {  // tables are not copied
            const Plan& made = nb::cast<const Plan&>(self);
            if (!moves_kv_alone(made)) return nb::cast(made.rank_totals());
            return nb::cast(made.ranks(), nb::rv_policy::reference_internal, self);
          },
          nb::sig("def ranks(self) -> list[RankPlan]"))
      .def_ro("predicted", &Plan::predicted)
      .def_prop_ro(
          "candidates",
          [](const Plan& self) {
            std::vector<std::tuple<std::string, std::optional<PredictedTime>, std::string>> result;
            for (const StrategyCandidate& candidate : self.candidates) {
              const bool possible = candidate.impossible.empty();
              result.emplace_back(describe(candidate.strategy),
                                  possible ? std::optional(candidate.predicted) : std::nullopt, candidate.impossible);
            }
            return result;
          },
          "With strategy 'auto', what it compared, best first: (strategy and layout, predicted time or None, why it "
          "was impossible or ''). Empty where a strategy was named.")
      .def_prop_ro("algorithm", [](const Plan& self) { return std::string(to_string(self.algorithm)); })
      .def_prop_ro("cp_size", &Plan::cp_size)
      .def_prop_ro("balance", &Plan::balance, "Largest area of a rank divided by the mean.")
      .def_prop_ro("rows_moved", &Plan::rows_moved, "K/V rows that cross ranks in one cast.")
      .def_prop_ro(
          "exchanges_heads", [](const Plan& self) { return self.ulysses_degree() > 1; },
          "Whether ranks compute some heads of many rows, as with 'ulysses', instead of all heads of their own.")
      .def("peak_bytes", &Plan::peak_bytes, "rank"_a,
           "Bytes that the rank holds at the worst moment of a step on CPUs: the tensors of a pass and what it "
           "allocates beside them, to the byte.")
      .def("explain", &explain, "Who gets what and why: balance, rows moved, stages, memory.")
      .def("to_json", &plan_to_json, "The whole plan as text, exact; from_json reads it back.")
      .def_static(
          "from_json", [](nb::handle text) { return plan_from_json(bytes_of_text(text)); }, "text"_a,
          nb::sig("def from_json(text: str | bytes) -> Plan"),
          "Checks the format version and that the plan is consistent; raises InvalidArgument for other text, also for "
          "what is no UTF-8.")
      .def("__repr__", [](const Plan& self) {
        return fmt::format("Plan(cp_size={}, seqlen_q={}, seqlen_k={}, algorithm='{}', balance={:.4f}, rows_moved={})",
                           self.cp_size(), self.mask.seqlen_q(), self.mask.seqlen_k(), to_string(self.algorithm),
                           self.balance(), self.rows_moved());
      });
  bind_equality(plan);
  m.def(
      "make_plan", [](const Mask& mask, const DistAttnConfig& config) { return make_plan(mask, config); }, "mask"_a,
      "config"_a, ReleaseGil());
  m.def(
      "make_plan",
      [](const std::vector<Mask>& masks, const DistAttnConfig& config) { return make_plan(masks, config); }, "masks"_a,
      "config"_a, ReleaseGil(), "A mask for each group of heads.");
  m.def(
      "make_plan_after_dispatch",
      [](const std::vector<Mask>& masks, const DistAttnConfig& config, const Dispatch& q, const Dispatch& k) {
        return make_plan(masks, config, q, k);
      },
      "masks"_a, "config"_a, "q_dispatch"_a, "k_dispatch"_a, ReleaseGil());
  m.def(
      "make_plan_after_dispatch",
      [](const Mask& mask, const DistAttnConfig& config, const Dispatch& q, const Dispatch& k) {
        return make_plan(mask, config, q, k);
      },
      "mask"_a, "config"_a, "q_dispatch"_a, "k_dispatch"_a, ReleaseGil(),
      "Another mask over rows that are already sharded.");
  m.def(
      "compute_pad_size",
      [](nb::handle total_seqlen, nb::handle cp_size, nb::handle chunk_size) {
        constexpr const char* kFunction = "compute_pad_size";
        const int64_t ranks = whole(cp_size, kFunction, "cp_size");
        require(std::in_range<int>(ranks), "{}: cp_size must fit into 32 bits (got {})", kFunction, ranks);
        return compute_pad_size(whole(total_seqlen, kFunction, "total_seqlen"), static_cast<int>(ranks),
                                whole(chunk_size, kFunction, "chunk_size"));
      },
      "total_seqlen"_a.none(), "cp_size"_a.none(), "chunk_size"_a.none(),
      nb::sig("def compute_pad_size(total_seqlen: int, cp_size: int, chunk_size: int) -> int"),
      "Rows to append so that cp_size ranks get whole chunks. Raises InvalidArgument unless all are positive.");
  bind_cache(m);
}

}  // namespace tangram::python
