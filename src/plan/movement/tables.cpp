// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What follows from the work of every rank: tables of all ranks, exchanges between them, predicted time.
#include <algorithm>
#include <numeric>

#include "plan/clock/stage_time.hpp"
#include "plan/cost.hpp"
#include "plan/movement/movement.hpp"
#include "plan/movement/rank_tables.hpp"
#include "plan/row_bytes.hpp"
#include "plan/stages.hpp"

namespace tangram {

namespace {

// Shard order and buffer order within a stage both follow the global order, so that both sides list the same pieces in
// the same order and join the same neighbours.
void fill_exchanges(std::vector<MovementRank>& ranks, std::vector<RowSegment> MovementRank::* segments_member,
                    Exchange MovementStage::* exchange_member) {
  std::vector<const RowSegment*> remote;
  std::vector<size_t> ends(ranks.size());  // of each owner's segments, which stay in order
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const std::vector<RowSegment>& segments = ranks[static_cast<size_t>(r)].*segments_member;
    std::fill(ends.begin(), ends.end(), 0);
    for (const RowSegment& segment : segments) ends[static_cast<size_t>(segment.owner)] += segment.owner != r;
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    remote.resize(ends.back());
    for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
      if (segment->owner != r) remote[--ends[static_cast<size_t>(segment->owner)]] = &*segment;
    }
    for (const RowSegment* segment : remote) {
      const size_t stage = static_cast<size_t>(segment->stage);
      const int64_t num_rows = segment->global.size();
      append_copy((ranks[static_cast<size_t>(r)].stages[stage].*exchange_member).recvs,
                  {segment->owner, {segment->row, segment->row + num_rows}, segment->owner_row});
      append_copy((ranks[static_cast<size_t>(segment->owner)].stages[stage].*exchange_member).sends,
                  {r, {segment->owner_row, segment->owner_row + num_rows}, segment->row});
    }
  }
}

// Seconds that an exchange keeps a link busy: the fuller direction counts.
double link_seconds(const CostModel& cost, const MovementStage& stage, double q_bytes, double kv_bytes, bool back) {
  const double q_in = static_cast<double>(stage.q.rows_received()) * q_bytes,
               q_out = static_cast<double>(stage.q.rows_sent()) * q_bytes;
  const double kv_in = static_cast<double>(stage.kv.rows_received()) * kv_bytes,
               kv_out = static_cast<double>(stage.kv.rows_sent()) * kv_bytes;
  const auto& q_copies = back ? stage.q.sends : stage.q.recvs;
  const auto& kv_copies = back ? stage.kv.sends : stage.kv.recvs;
  const size_t copies = (q_bytes > 0 ? q_copies.size() : 0) + (kv_bytes > 0 ? kv_copies.size() : 0);
  return std::max(q_in + kv_in, q_out + kv_out) / cost.link_bytes_per_s +
         static_cast<double>(copies) * cost.copy_latency_s;
}

}  // namespace

std::vector<OwnedRun> flattened_runs(const std::vector<OwnedRun>& runs, const Dispatch& dispatch, int head_groups) {
  std::vector<OwnedRun> result;
  result.reserve(runs.size() * static_cast<size_t>(head_groups));
  for (int g = 0; g < head_groups; ++g) {
    for (const OwnedRun& run : runs) {
      result.push_back({run.global.shifted(g * dispatch.seqlen()), run.owner, run.row + g * dispatch.rows_per_rank()});
    }
  }
  return result;
}

std::vector<Range> needed_queries(const std::vector<AttnSlice>& slices) {
  std::vector<AttnSlice> turned;
  turned.reserve(slices.size());
  for (const AttnSlice& slice : slices) turned.push_back({{}, slice.q_range});
  return needed_keys(turned);
}

std::vector<MovementRank> movement_tables(RankWork work, const std::vector<OwnedRun>& q_runs,
                                          const std::vector<OwnedRun>& k_runs, int num_stages) {
  std::vector<MovementRank> ranks;
  ranks.reserve(work.size());
  for (size_t r = 0; r < work.size(); ++r) {
    ranks.push_back(rank_tables(std::move(work[r]), static_cast<int>(r), q_runs, k_runs, num_stages));
  }
  fill_exchanges(ranks, &MovementRank::q_segments, &MovementStage::q);
  fill_exchanges(ranks, &MovementRank::kv_segments, &MovementStage::kv);
  return ranks;
}

std::vector<RankTime> movement_times(const DistAttnConfig& config, const std::vector<MovementRank>& ranks,
                                     int head_groups, AttnPass pass, ClockTrace* trace) {
  const RowBytes bytes = row_bytes(config, pass);
  const double share = 1.0 / head_groups;
  const int num_stages = static_cast<int>(ranks.front().stages.size()) - 1;
  StagedPass staged = staged_pass(ranks.size(), num_stages);
  for (size_t r = 0; r < ranks.size(); ++r) {
    double returned_bytes = 0;
    for (size_t s = 0; s < ranks[r].stages.size(); ++s) {
      const MovementStage& stage = ranks[r].stages[s];
      const double key_rows = static_cast<double>(stage.kv.rows_received()),
                   q_rows = static_cast<double>(stage.q.rows_received());
      StageSeconds& seconds = staged.stage(r, s);
      seconds.attend_s = share * compute_seconds(config, stage.area, pass) + (s > 0 ? config.cost.stage_overhead_s : 0);
      if (pass == AttnPass::kBackward && stage.area > 0) {
        seconds.attend_s += share * config.cost.backward_key_row_s * key_rows * config.heads.num_heads_q;
      }
      returned_bytes +=
          share * (q_rows * static_cast<double>(bytes.q_back) + key_rows * static_cast<double>(bytes.kv_back));
      if (s == 0) continue;
      seconds.cast_s = link_seconds(config.cost, stage, share * bytes.q_in, share * bytes.kv_in, false);
      seconds.return_s = link_seconds(config.cost, stage, share * bytes.q_back, share * bytes.kv_back, true);
    }
    // About as many results and gradients come as leave: read, and added to those that are there.
    staged.merge_s[r] = 2 * returned_bytes / config.cost.memory_bytes_per_s;
  }
  return time_of(staged, *movement_skeleton(pass, num_stages), trace);
}

}  // namespace tangram
