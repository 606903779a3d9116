// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tangram over several nodes with relays: a row crosses to each node once, on the rail of its owner or another one
// (NOTE [rails]). What each network card and each rank moves is counted exactly, from unions of what a node needs.
#include <algorithm>
#include <limits>

#include "core/require.hpp"
#include "plan/clock/kv_time.hpp"
#include "plan/cost.hpp"
#include "plan/dispatch.hpp"
#include "plan/nodes/node_stages.hpp"
#include "plan/simulate/plan_sketch.hpp"
#include "plan/simulate/rank_needs.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

namespace {

// Rows that network cards and the network itself carry in one direction, of one stage or a pass.
class CardLoads {
 public:
  CardLoads(const MachineModel& machine, const NodeShape& nodes, const NodeTraffic& traffic)
      : machine_(machine),
        nodes_(nodes),
        num_cards_(machine.nics_per_node > 0 ? machine.nics_per_node : nodes.ranks_per_node),
        traffic_(traffic) {
    for (const std::vector<int64_t>* rows : {&traffic.sent, &traffic.received}) {
      cards_.emplace_back(static_cast<size_t>(nodes.num_nodes() * num_cards_));
      for (int r = 0; r < nodes.cp_size; ++r) cards_.back()[card(r)] += (*rows)[static_cast<size_t>(r)];
    }
  }

  // Until a node has the rows of `pieces`, with what their senders send to others meanwhile.
  double seconds(int node, const std::vector<NodePiece>& pieces, double row_bytes) const {
    if (pieces.empty()) return 0;
    int64_t most = 0;
    int num_messages = 0;
    for (const NodePiece& piece : pieces) {
      const int sender = nodes_.rank(nodes_.node_of(piece.owner), piece.rail), relay = nodes_.rank(node, piece.rail);
      most = std::max({most, cards_[0][card(sender)], cards_[1][card(relay)]});
      num_messages = std::max(num_messages, traffic_.messages[static_cast<size_t>(relay)]);
    }
    return std::max(static_cast<double>(most) * row_bytes / card_rate(), spine_seconds(row_bytes)) +
           num_messages * machine_.between.latency_s;
  }

  // Until the busiest card and the network are done.
  double seconds(double row_bytes) const {
    return std::max(static_cast<double>(busiest()) * row_bytes / card_rate(), spine_seconds(row_bytes));
  }

  int64_t busiest() const {
    return std::max(*std::max_element(cards_[0].begin(), cards_[0].end()),
                    *std::max_element(cards_[1].begin(), cards_[1].end()));
  }

 private:
  size_t card(int rank) const {
    const int of_node = std::min(nodes_.rail_of(rank) * num_cards_ / nodes_.ranks_per_node, num_cards_ - 1);
    return static_cast<size_t>(nodes_.node_of(rank) * num_cards_ + of_node);
  }
  // If a node has more cards than ranks, each rank has several.
  double card_rate() const {
    return machine_.between.bytes_per_s * std::max(1.0, static_cast<double>(num_cards_) / nodes_.ranks_per_node);
  }
  double spine_seconds(double row_bytes) const {
    const double rate = machine_.between.bytes_per_s * num_cards_ * nodes_.num_nodes() * machine_.spine;
    return static_cast<double>(traffic_.total()) * row_bytes / rate;
  }

  const MachineModel& machine_;
  const NodeShape& nodes_;
  const int num_cards_;
  const NodeTraffic& traffic_;
  std::vector<std::vector<int64_t>> cards_;  // sent, received
};

class NodeSim {
 public:
  NodeSim(const SimInput& input, const Dispatch& q_dispatch, const Dispatch& k_dispatch, bool evens_rails)
      : input_(input), nodes_{input.cp_size(), input.machine.ranks_per_node}, runs_(key_runs(k_dispatch, input)) {
    std::vector<std::vector<AttnSlice>> slices = cut_by_rank(input.mask, owned_runs(q_dispatch), input.cp_size());
    std::vector<std::vector<Range>> needed;
    for (int r = 0; r < input.cp_size(); ++r) {
      ranks_.push_back(needs_of(std::move(slices[static_cast<size_t>(r)]), runs_, r));
      needed.emplace_back();
      for (const RemotePiece& piece : ranks_.back().remote) needed.back().push_back(piece.global);
    }
    rows_ = node_rows(needed, runs_.all, nodes_);
    if (evens_rails) even_rails(rows_, nodes_);
    traffic_ = traffic_of(rows_, nodes_);
    if (traffic_.total() > 0) {
      const CostModel cost = with_nodes({}, input.machine);
      margin_ = static_cast<double>(cost.sms) / (cost.sms - cost.between_sms);
    }
    count_ways();
  }

  bool any_remote() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const RankNeeds& needs) { return needs.remote_rows > 0; });
  }

  struct BestPass {
    SlowestPass pass;
    int num_stages = 0;
  };
  BestPass play_best(AttnPass pass) const {
    const OverlapConfig& overlap = input_.config.overlap;
    const int given = pass == AttnPass::kForward ? overlap.num_stages_fwd : overlap.num_stages_bwd;
    if (!any_remote() || given > 0) return {play(pass, any_remote() ? given : 0), given};
    BestPass best{play(pass, 1), 1};
    for (int count = 2; count <= kMaxAutoStages; ++count) {
      const SlowestPass trial = play(pass, count);
      if (trial.total_s < best.pass.total_s) best = {trial, count};
    }
    return best;
  }

  void count(StrategyPrediction& prediction, KvSketch sketch) const {
    const double cast = cast_bytes(), step = 2 * cast + grad_bytes();
    double largest_area = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const RankNeeds& needs = ranks_[r];
      const auto received = static_cast<double>(received_[r]);
      prediction.kv_rows_moved += needs.remote_rows;
      prediction.forward_bytes += received * cast;
      prediction.backward_bytes += received * (step - cast);
      prediction.max_rank_bytes = std::max(prediction.max_rank_bytes, received * step);
      prediction.peak_bytes = std::max(prediction.peak_bytes, static_cast<double>(sketch.peak_bytes(needs)));
      largest_area = std::max(largest_area, count_work(needs.slices, input_.machine.forward).area);
    }
    prediction.between_bytes = static_cast<double>(traffic_.total()) * step;
    prediction.busiest_card_bytes = static_cast<double>(CardLoads(input_.machine, nodes_, traffic_).busiest()) * step;
    const double mean = static_cast<double>(input_.mask.area()) / input_.cp_size();
    prediction.balance = mean > 0 ? largest_area / mean : 1;
  }

 private:
  double cast_bytes() const { return static_cast<double>(kv_row_bytes(input_.config.heads)); }
  double grad_bytes() const {
    return static_cast<double>(kv_grad_row_bytes(input_.config.heads, input_.config.reduce_dtype));
  }

  // Rows that each rank receives, and sends inside its node, on all their ways.
  void count_ways() {
    received_ = traffic_.received;
    sent_inside_ = traffic_.hops;
    const std::vector<Transfer> sent = sent_rows(ranks_, runs_, input_);
    for (int node = 0; node < nodes_.num_nodes(); ++node) {
      const std::vector<NodePiece>& pieces = rows_[static_cast<size_t>(node)];
      for (const NodePiece& piece : pieces) {
        const int sender = nodes_.rank(nodes_.node_of(piece.owner), piece.rail);
        if (sender != piece.owner) received_[static_cast<size_t>(sender)] += piece.rows.size();
      }
      for (int rail = 0; rail < nodes_.ranks_per_node; ++rail) {
        const auto r = static_cast<size_t>(nodes_.rank(node, rail));
        sent_inside_[r] += static_cast<int64_t>(sent[r].inside.bytes);
        received_[r] += ranks_[r].remote_rows;
        auto piece = pieces.begin();
        for (const RemotePiece& remote : ranks_[r].remote) {
          while (piece != pieces.end() && piece->rows.end <= remote.global.begin) ++piece;
          for (auto at = piece; at != pieces.end() && at->rows.begin < remote.global.end; ++at) {
            const int64_t num_rows = intersect(at->rows, remote.global).size();
            if (at->rail == rail) {
              received_[r] -= num_rows;  // counted as relay
            } else {
              sent_inside_[static_cast<size_t>(nodes_.rank(node, at->rail))] += num_rows;
            }
          }
        }
      }
    }
  }

  SlowestPass play(AttnPass pass, int num_stages) const {
    const std::vector<std::vector<int64_t>> ends = part_ends(rows_, num_stages);
    StagedNodeRows staged = num_stages > 0 ? by_parts(rows_, ends, num_stages) : StagedNodeRows{};
    StagedPass played = staged_pass(ranks_.size(), num_stages);
    played.hides = hides_transfers(input_.machine);
    for (int r = 0; r < input_.cp_size(); ++r) set_rank(r, pass, ends[static_cast<size_t>(nodes_.node_of(r))], played);
    for (size_t s = 0; s < staged.size(); ++s) {
      const NodeTraffic traffic = traffic_of(staged[s], nodes_);
      const CardLoads cards(input_.machine, nodes_, traffic);
      for (int r = 0; r < input_.cp_size(); ++r) {
        const int node = nodes_.node_of(r);
        StageSeconds& stage = played.stage(static_cast<size_t>(r), s + 1);
        const std::vector<NodePiece>& pieces = staged[s][static_cast<size_t>(node)];
        if (stage.cast_s == 0 || pieces.empty()) continue;
        stage.cast_s += cards.seconds(node, pieces, cast_bytes());
        stage.return_s += cards.seconds(node, pieces, grad_bytes());
        stage.crosses = true;
      }
    }
    SlowestPass slowest;
    slowest.take(time_of(played, *kv_skeleton(pass, num_stages, false)));
    // No link may be asked for more than a pass has time for, on its sending side too.
    const double bytes = pass == AttnPass::kForward ? cast_bytes() : std::max(cast_bytes(), grad_bytes());
    slowest.take(RankTime{CardLoads(input_.machine, nodes_, traffic_).seconds(bytes), slowest.compute_s});
    const int64_t most = *std::max_element(sent_inside_.begin(), sent_inside_.end());
    const Transfer sent{{static_cast<double>(most) * bytes, 0}, {}};
    slowest.take(RankTime{transfer_seconds(input_.machine, sent), slowest.compute_s});
    return slowest;
  }

  void set_rank(int rank, AttnPass pass, const std::vector<int64_t>& ends, StagedPass& staged) const {
    const RankNeeds& needs = ranks_[static_cast<size_t>(rank)];
    const DistAttnConfig& config = input_.config;
    const StagedNeeds split =
        split_node_stages(needs, runs_, nodes_.node_of(rank), ends, staged.num_stages, input_.kernel(pass));
    const bool has_remote = needs.remote_rows > 0;
    for (size_t s = 0; s < split.work.size(); ++s) {
      StageSeconds& stage = staged.stage(static_cast<size_t>(rank), s);
      const double local = static_cast<double>(needs.buffer_rows - needs.remote_rows);
      const Work work = of_one_call(split.work[s], s == 0 ? local : split.rows[s].bytes(), input_.kernel(pass));
      stage.attend_s = margin_ * work_seconds(input_, pass, work, config.heads.num_heads_q, has_remote);
      if (s == 0) {
        // Local rows are copied to their places among the remote ones.
        stage.attend_s += copy_seconds(input_.machine, has_remote ? local * cast_bytes() : 0);
        continue;
      }
      stage.attend_s += input_.machine.stage_overhead_s;
      if (input_.machine.engine != CommEngine::kCopyEngine && split.work[s].area > 0) {
        stage.attend_s +=
            accumulate_seconds(input_, pass, input_.mask.seqlen_q() / input_.cp_size(), config.heads.num_heads_q);
      }
      if (split.rows[s].empty()) continue;
      stage.cast_s = transfer_seconds(input_.machine, scaled(split.rows[s], cast_bytes()));
      stage.return_s = transfer_seconds(input_.machine, scaled(split.rows[s], grad_bytes()));
    }
    // About as many gradients come as leave, and relays add up what their node returns: read, and added.
    const int64_t added = needs.remote_rows + traffic_.received[static_cast<size_t>(rank)];
    staged.merge_s[static_cast<size_t>(rank)] =
        packing_seconds(input_.machine, static_cast<double>(2 * added) * grad_bytes());
  }

  const SimInput& input_;
  const NodeShape nodes_;
  const KeyRuns runs_;
  std::vector<RankNeeds> ranks_;
  NodeRows rows_;
  NodeTraffic traffic_;
  double margin_ = 1;                 // of attention, from which transfers between nodes take multiprocessors
  std::vector<int64_t> received_;     // [ranks], on all ways
  std::vector<int64_t> sent_inside_;  // [ranks]: to own node, as owner or relay
};

StrategyPrediction simulate_relays(const SimInput& input, bool evens_rails) {
  require(!input.config.overlap.keep_remote_kv, "simulate: keep_remote_kv is not modelled; leave it off");
  StrategyPrediction prediction;
  if (input.num_nodes() == 1) {
    prediction.infeasible = "all ranks are in one node";
    return prediction;
  }
  if (input.cp_size() % input.machine.ranks_per_node != 0) {
    prediction.infeasible = "needs equally many ranks on every node";
    return prediction;
  }
  const Dispatch q_dispatch = dispatch_queries(input.mask, input.config).dispatch;
  const Dispatch k_dispatch =
      input.mask.is_self_attention() ? q_dispatch : dispatch_keys(input.mask, q_dispatch, input.config);
  const NodeSim sim(input, q_dispatch, k_dispatch, evens_rails);
  const SlowestPass forward = sim.play_best(AttnPass::kForward).pass;
  const auto [backward, num_stages] = sim.play_best(AttnPass::kBackward);
  set_times(prediction, forward, backward);
  sim.count(prediction, KvSketch(input.config, q_dispatch, k_dispatch, sim.any_remote(), num_stages));
  return prediction;
}

}  // namespace

StrategyPrediction simulate_tangram_hierarchical(const SimInput& input) { return simulate_relays(input, false); }

StrategyPrediction simulate_tangram_nodes(const SimInput& input) {
  DistAttnConfig config = input.config;
  const bool divides = input.cp_size() % input.machine.ranks_per_node == 0;
  if (divides && input.num_nodes() > 1) config.cost = with_nodes(config.cost, input.machine);
  return simulate_relays({input.mask, config, input.machine}, true);
}

}  // namespace tangram::sim
