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
#include "tangram/dtype.hpp"

namespace tangram {

namespace {

// Shard order and buffer order within a stage both follow the global order. So both sides list the same pieces in the
// same order and join the same neighbours.
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

// Rows of a side that slices see, at most `all`.
int64_t rows_of(const std::vector<AttnSlice>& slices, Range AttnSlice::* side, int64_t all) {
  int64_t rows = 0;
  for (const AttnSlice& slice : slices) rows += (slice.*side).size();
  return std::min(rows, all);
}

// Extra bytes of memory, read plus written, that QO communication costs a rank in a pass. The baseline is one launch
// over all keys, which leaves results in the dtype of the heads and reads keys in place.
class ExtraBytes {
 public:
  ExtraBytes(const DistAttnConfig& config, AttnPass pass, double share) : is_forward_(pass == AttnPass::kForward) {
    const HeadConfig& heads = config.heads;
    const RowBytes row = row_bytes(config, pass);
    const double floats = share * sizeof(float), element = share * static_cast<double>(size_of(heads.dtype));
    const double q = heads.num_heads_q * (is_forward_ ? heads.head_dim_v : heads.head_dim);
    const double kv = heads.num_heads_kv * (heads.head_dim + heads.head_dim_v);
    sum_ = 2 * q * floats;
    finish_ = q * (floats + element);
    add_keys_ = is_forward_ ? 0 : 2 * kv * floats;
    finish_keys_ = is_forward_ ? 0 : kv * (floats + element);
    copy_q_ = 2 * share * static_cast<double>(row.q_in);
    copy_keys_ = 2 * share * static_cast<double>(row.kv_in);
  }

  // What others fetch is copied to where casts read, own keys to among those that come.
  double before(const MovementRank& rank) const {
    int64_t sent = 0;
    for (const MovementStage& stage : rank.stages) sent += stage.q.rows_sent();
    return copy_q_ * static_cast<double>(sent) + copy_keys_ * static_cast<double>(own_keys(rank));
  }
  // Each call but the first adds to what is there, in float32: own results, and gradients of all keys that it sees.
  double of_stage(const MovementRank& rank, size_t number) const {
    const MovementStage& stage = rank.stages[number];
    double bytes = 0;
    if (number > 0) bytes += sum_ * static_cast<double>(own_rows(stage));
    for (const std::vector<AttnSlice>* slices : {&stage.own_slices, &stage.moved_slices}) {
      bytes += add_keys_ * static_cast<double>(rows_of(*slices, &AttnSlice::k_range, rank.kv_rows));
    }
    return bytes;
  }
  // At last own results are rounded, and own gradients of keys.
  double after(const MovementRank& rank) const {
    int64_t rows = 0;
    for (const MovementStage& stage : rank.stages) rows = std::max(rows, own_rows(stage));
    return finish_ * static_cast<double>(rows) + finish_keys_ * static_cast<double>(own_keys(rank));
  }

 private:
  static int64_t own_keys(const MovementRank& rank) { return rank.kv_rows - rank.remote_kv_rows; }
  // Rows of the shard: slices of a row lie side by side, so that no more rows are seen than their hull has.
  static int64_t own_rows(const MovementStage& stage) {
    Range all;
    for (const AttnSlice& slice : stage.own_slices) all = hull(all, slice.q_range);
    return rows_of(stage.own_slices, &AttnSlice::q_range, all.size());
  }

  bool is_forward_;
  double sum_, finish_, add_keys_, finish_keys_, copy_q_, copy_keys_;  // of a row
};

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
  const ExtraBytes extra(config, pass, share);
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
      // Own queries and fetched ones are a call each.
      if (!stage.own_slices.empty() && !stage.moved_slices.empty()) seconds.attend_s += config.cost.stage_overhead_s;
      double bytes_of_calls = extra.of_stage(ranks[r], s);
      if (s == 0) bytes_of_calls += extra.before(ranks[r]);
      if (s + 1 == ranks[r].stages.size()) bytes_of_calls += extra.after(ranks[r]);
      seconds.attend_s += bytes_of_calls / config.cost.memory_bytes_per_s;
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
