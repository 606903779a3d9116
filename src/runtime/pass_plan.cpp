// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/pass_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/options_word.hpp"
#include "core/require.hpp"
#include "plan/program/emit.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {

namespace {

class Hasher {
 public:
  void add(uint64_t value) { hash_ = (hash_ ^ value) * 0x9e3779b97f4a7c15 ^ (hash_ >> 29); }
  void add(const Dispatch& dispatch) {
    add(static_cast<uint64_t>(dispatch.chunk_size));
    for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) {
      add(static_cast<uint64_t>(run.end));
      add(static_cast<uint64_t>(run.rank));
    }
  }
  void add(const Exchange& exchange) {
    for (const auto* copies : {&exchange.sends, &exchange.recvs}) {
      for (const RowCopy& copy : *copies) {
        for (const int64_t value : {int64_t{copy.peer}, copy.rows.begin, copy.rows.end, copy.peer_row}) {
          add(static_cast<uint64_t>(value));
        }
      }
    }
  }
  void add(const MovementPlan& movement) {
    add(static_cast<uint64_t>(movement.head_groups));
    for (const auto* ranks : {&movement.forward, &movement.backward}) {
      for (const MovementRank& rank : *ranks) {
        for (const MovementStage& stage : rank.stages) {
          add(stage.q);
          add(stage.kv);
        }
      }
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

uint64_t hash_of_dispatch(const Plan& plan) {
  Hasher hasher;
  hasher.add(plan.q_dispatch);
  hasher.add(plan.k_dispatch);
  return hasher.value();
}

/// Hash of the config without mask, heads and dispatch.
uint64_t hash_of_config(const Plan& plan) {
  Hasher hasher;
  hasher.add(static_cast<uint64_t>(plan.config.cp_size));
  hasher.add(static_cast<uint64_t>(plan.config.reduce_dtype));
  const StrategyConfig& strategy = plan.config.strategy;
  for (const int value : {static_cast<int>(strategy.name), plan.ulysses_degree(), strategy.inner_ring_size}) {
    hasher.add(static_cast<uint64_t>(value));
  }
  if (const GridPlan* grid = plan.grid()) {
    for (const int chunk : grid->head_chunks) hasher.add(static_cast<uint64_t>(chunk));
  }
  hasher.add(plan.movement() != nullptr ? *plan.movement() : MovementPlan{});
  if (plan.config.cost.ranks_per_node > 0) hasher.add(static_cast<uint64_t>(plan.config.cost.ranks_per_node));
  const std::vector<RankPlan> totals = moves_kv_alone(plan) ? std::vector<RankPlan>{} : plan.rank_totals();
  for (const RankPlan& rank : moves_kv_alone(plan) ? plan.ranks() : totals) {
    for (const auto* stages : {&rank.forward, &rank.backward}) {
      for (const Stage& stage : *stages) {
        hasher.add(static_cast<uint64_t>(stage.exchange.rows_received()) * 2 + (stage.kept ? 1 : 0));
      }
    }
  }
  return hasher.value();
}

/// Sinks of a row, and whether each row has its own.
uint64_t sink_word(const Sink& sink) {
  if (sink.empty()) return 0;
  return static_cast<uint64_t>(sink.seqlen_sink) * 2 + (sink.layout == SinkLayout::kSsh ? 1 : 0);
}

CallFingerprint fingerprint_of(const CallFingerprint& plan, AttnPass pass, const AttnOptions& options, const Sink& sink,
                               int head_dim) {
  CallFingerprint fingerprint = plan;
  fingerprint.set(CallFingerprint::kPass, static_cast<uint64_t>(pass));
  fingerprint.set(CallFingerprint::kScale,
                  options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(head_dim))));
  fingerprint.set(CallFingerprint::kSoftcap, options.softcap);
  fingerprint.set(CallFingerprint::kSink, sink_word(sink));
  return fingerprint;
}

bool moves_queries(const std::vector<MovementRank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const MovementRank& rank) { return rank.remote_q_rows > 0; });
}

}  // namespace

CallFingerprint fingerprint_of(const Plan& plan) {
  const HeadConfig& heads = plan.config.heads;
  CallFingerprint fingerprint;
  fingerprint.set(CallFingerprint::kMask, plan.mask.hash());
  fingerprint.set(CallFingerprint::kDispatch, hash_of_dispatch(plan));
  fingerprint.set(CallFingerprint::kHeads,
                  CallFingerprint::heads_word(heads.num_heads_q, heads.num_heads_kv, heads.head_dim, heads.head_dim_v,
                                              static_cast<int>(heads.dtype)));
  fingerprint.set(CallFingerprint::kConfig, hash_of_config(plan));
  return fingerprint;
}

CallFingerprint fingerprint_of(const CallFingerprint& of_plan, const Plan& plan, const DistForwardArgs& args) {
  CallFingerprint fingerprint = fingerprint_of(of_plan, AttnPass::kForward, args.options, args.sink, args.q.dim);
  fingerprint.set(CallFingerprint::kResults, args.max_logits != nullptr ? uint64_t{CallFingerprint::kMaxLogits} : 0);
  if (plan.ulysses_degree() > 1)
    fingerprint.set(CallFingerprint::kDTypes, CallFingerprint::dtypes_word({args.out.dtype}));
  return fingerprint;
}

CallFingerprint fingerprint_of(const CallFingerprint& of_plan, const Plan& plan, const DistBackwardArgs& args) {
  CallFingerprint fingerprint = fingerprint_of(of_plan, AttnPass::kBackward, args.options, args.sink, args.q.dim);
  uint64_t results = args.kept != nullptr && args.kept->valid ? uint64_t{CallFingerprint::kKept} : 0;
  if (args.dsink != nullptr) {
    results |= CallFingerprint::kDsink;
    if (args.dsink_reduce == DsinkReduce::kSum) results |= CallFingerprint::kDsinkSum;
    if (args.dsink_reduce == DsinkReduce::kAvg) results |= CallFingerprint::kDsinkAvg;
  }
  fingerprint.set(CallFingerprint::kResults, results);
  if (const int ulysses_degree = plan.ulysses_degree(); ulysses_degree > 1) {
    std::optional<DType> dk, dv;  // ranks that share a head of K/V send sums in reduce_dtype
    if (plan.config.heads.num_heads_kv >= ulysses_degree) dk = args.dk.dtype, dv = args.dv.dtype;
    fingerprint.set(CallFingerprint::kDTypes,
                    CallFingerprint::dtypes_word({args.out.dtype, args.dout.dtype, args.dq.dtype, dk, dv}));
  } else if (plan.movement() != nullptr && moves_queries(plan.movement()->backward)) {
    fingerprint.set(CallFingerprint::kDTypes, CallFingerprint::dtypes_word({std::nullopt, args.dout.dtype}));
  }
  return fingerprint;
}

namespace {

void agree(Communicator& communicator, const CallFingerprint& fingerprint, const std::string& what) {
  Hasher hasher;
  for (const uint64_t word : fingerprint.words) hasher.add(word);
  const SharedFingerprint shared(communicator, fingerprint);
  communicator.require_agreement(hasher.value(), what);
}

}  // namespace

void agree_on_plan(Communicator& communicator, const CallFingerprint& plan) {
  agree(communicator, plan, "DistAttention: mask, config and dispatch");
}

void agree_on_call(Communicator& communicator, const CallFingerprint& call) {
  agree(communicator, call, "DistAttention: mask, config, dispatch and arguments of a call");
}

uint64_t hash_of_options(const DistAttentionOptions& options, const AttnBackend& backend) {
  Hasher hasher;
  const AttnCaps caps = backend.caps();
  const std::array values = {static_cast<int64_t>(options.forward), static_cast<int64_t>(options.backward),
                             int64_t{options.with_backward},        int64_t{options.max_kept},
                             int64_t{caps.max_ready_flags},         int64_t{caps.local_kv_halo}};
  for (const int64_t value : values) hasher.add(static_cast<uint64_t>(value));
  return options_word(caps.name, hasher.value());
}

void check_plan(const Plan& plan, int size) {
  require(plan.cp_size() == size,
          "DistAttention: plan must be for as many ranks as the communicator has (got {} and {})", plan.cp_size(),
          size);
  if (!moves_kv_alone(plan)) return;
  for (const RankPlan& rank : plan.ranks()) {
    TANGRAM_ASSERT(!rank.forward.empty() && rank.forward.size() == plan.ranks().front().forward.size());
    TANGRAM_ASSERT(!rank.backward.empty() && rank.backward.size() == plan.ranks().front().backward.size());
    for (const auto* stages : {&rank.forward, &rank.backward}) {
      int64_t remote_rows = 0;
      for (const Stage& stage : *stages) remote_rows += stage.exchange.rows_received();
      TANGRAM_ASSERT(remote_rows == rank.remote_kv_rows);
    }
  }
}

}  // namespace tangram
