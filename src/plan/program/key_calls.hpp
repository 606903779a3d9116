// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The attention calls of a pass with K/V communication, and what each computes. Also which of a rank's own K/V rows
// kernels read in place, so that they are not copied into the K/V buffer.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "plan/program/emit.hpp"

namespace tangram {

/// One call, and the stages [begin, end) whose keys it needs beside those of earlier calls.
struct KeyCall {
  size_t begin = 0, end = 0;
  std::span<const AttnSlice> slices;  // of the plan

  /// Whether it is made: the first one sets the results of rows without keys.
  bool is_made() const { return begin == 0 || !slices.empty(); }
};
std::vector<KeyCall> key_calls(const RankPlan& rank, AttnPass pass, const ProgramTarget& target);

/// Whether no rank gets rows of others in any pass, and the keys of each are one range of its shard: calls read that.
/// Asked of all ranks: such ranks open no epoch, for which others would wait.
bool reads_shard(const Plan& plan);

/// The rank's own rows in ranges as long as they get: rows of the K/V buffer that are neighbours in the shard too.
std::vector<LocalKvRange> own_local_ranges(const RankPlan& rank, int self);

/// Rows of the shard in `local_ranges`, joined.
std::vector<Range> rows_of(const std::vector<LocalKvRange>& local_ranges);

/// Ranges of `own` that are longer than their halos, so that reading them in place spares copies.
std::vector<LocalKvRange> worth_reading(const std::vector<LocalKvRange>& own, int64_t border);

/// Ranges of `own` that must be copied if `read` are read in place: the halos of `read`, and all others.
std::vector<LocalKvRange> to_copy(const std::vector<LocalKvRange>& own, const std::vector<LocalKvRange>& read,
                                  int64_t border);

/// Own keys that calls read where they lie: none where the target cannot, or the shard serves whole.
std::vector<LocalKvRange> local_ranges_elsewhere(const Plan& plan, int rank, const ProgramTarget& target);

/// The keys that other ranks send in a pass, in order of arrival. The order is stage by stage, and in each from the
/// rank before this one, the one before that, and so on. Flags are numbered by stage and rank (KvReadyFlags).
std::vector<KeyReadyFlag> ready_flags_of(const RankPlan& rank, int self, int cp_size, AttnPass pass);

}  // namespace tangram
