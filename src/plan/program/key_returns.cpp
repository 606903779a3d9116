// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/key_returns.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/range_sets.hpp"
#include "plan/program/key_calls.hpp"
#include "tangram/dkv_scatter_map.hpp"

namespace tangram {

namespace {

/// The rows of the buffer that are the whole shard in order, where there are such.
std::optional<Range> whole_shard(const std::vector<LocalKvRange>& own, int64_t shard_rows) {
  if (own.size() != 1 || own.front().row != 0 || own.front().keys.size() != shard_rows) return std::nullopt;
  return own.front().keys;
}

/// Whether one call may store rows at their owners: as places say it (DkvScatterMap), and transports take it.
bool can_store(const Plan& plan, const ProgramTarget& target) {
  const int64_t most_rows = plan.k_dispatch.rows_per_rank() * plan.cp_size();  // that come back to an owner
  const DType move = plan.config.reduce_dtype;
  return target.stores_at_owners && target.backward_calls == KeyCalls::kAsTheyCome &&
         (move == DType::kFloat32 || move == plan.config.heads.dtype) && most_rows <= int64_t{1} << kGradientRowBits;
}

}  // namespace

KeyReturns::KeyReturns(ProgramWriter& writer, const Plan& plan, int rank, const PassArguments& given, size_t num_calls)
    : rank_(plan.ranks()[static_cast<size_t>(rank)]),
      shard_(given.keys),
      results_(given.key_grads),
      own_(own_local_ranges(rank_, rank)),
      moves_(rank_.backward.size() > 1),
      several_(num_calls > 1) {
  const int64_t shard_rows = shard_.k.rows;
  const std::optional<Range> whole = whole_shard(own_, shard_rows);
  if (reads_shard(plan) && whole) {
    writes_results_ = true;
    computed_ = results_;
    return;
  }
  const DType move = plan.config.reduce_dtype;
  stores_ = moves_ && can_store(plan, writer.target());
  if (stores_) {
    computed_ = {writer.stored(move, rank_.kv_rows, shard_.k.heads, shard_.k.dim),
                 writer.stored(move, rank_.kv_rows, shard_.v.heads, shard_.v.dim)};
    own_part_ = work_pair(writer, move, shard_rows, shard_);
    store_rows();
  } else {
    computed_ = work_pair(writer, DType::kFloat32, rank_.kv_rows, shard_);
    if (moves_) own_part_ = whole ? slice(computed_, *whole) : work_pair(writer, DType::kFloat32, shard_rows, shard_);
  }
  if (moves_) {
    returned_ = {writer.returned(move, shard_rows, shard_.k.heads, shard_.k.dim),
                 writer.returned(move, shard_rows, shard_.v.heads, shard_.v.dim)};
  }
  if (!several_) return;  // the one call sets all rows
  writer.zero(computed_.k);
  writer.zero(computed_.v);
}

std::vector<Range> KeyReturns::find_final_rows() const {
  std::vector<Range> sent;
  for (const Stage& stage : rank_.backward) {
    for (const RowCopy& copy : stage.exchange.sends) sent.push_back(copy.rows);
  }
  return ranges_without(rows_of(own_), joined_ranges(std::move(sent)));
}

void KeyReturns::store_rows() {
  final_rows_ = find_final_rows();
  for (const LocalKvRange& own : own_) {
    const Range all{own.row, own.row + own.keys.size()};
    const int64_t shift = own.keys.begin - own.row;
    const auto append = [&](const Range& rows, const PairRef& to) {
      if (!rows.empty()) append_copies(stores_of_call_, slice(computed_, rows.shifted(shift)), slice(to, rows));
    };
    int64_t row = all.begin;
    auto final_rows = std::upper_bound(final_rows_.begin(), final_rows_.end(), row,
                                       [](int64_t first, const Range& range) { return first < range.end; });
    for (; final_rows != final_rows_.end() && final_rows->begin < all.end; ++final_rows) {
      const Range rows = intersect(*final_rows, all);
      append({row, rows.begin}, own_part_);
      append(rows, results_);
      row = rows.end;
    }
    append({row, all.end}, own_part_);
  }
}

RowLists KeyReturns::lists_of_shard() const {
  RowLists lists;
  lists.begins.resize(static_cast<size_t>(shard_.k.rows) + 1);
  lists.rows.resize(static_cast<size_t>(shard_.k.rows));
  auto begin = lists.begins.begin() + 1;  // of the next row
  auto to = lists.rows.begin();
  const auto skip_to = [&](int64_t row) {
    const auto end = lists.begins.begin() + 1 + row;
    std::fill(begin, end, static_cast<int32_t>(to - lists.rows.begin()));
    begin = end;
  };
  std::vector<LocalKvRange> by_row = own_;
  std::sort(by_row.begin(), by_row.end(), [](const LocalKvRange& a, const LocalKvRange& b) { return a.row < b.row; });
  for (const LocalKvRange& own : by_row) {
    skip_to(own.row);
    const int64_t count = own.keys.size();
    std::iota(begin, begin + count, static_cast<int32_t>(to - lists.rows.begin()) + 1);
    std::iota(to, to + count, static_cast<int32_t>(own.keys.begin));
    begin += count;
    to += count;
  }
  skip_to(shard_.k.rows);
  lists.rows.erase(to, lists.rows.end());
  return lists;
}

void KeyReturns::add_to(AttendOp& call) const {
  call.dk = computed_.k;
  call.dv = computed_.v;
  call.accumulate_kv = several_;
  if (!stores_) return;
  call.stores = stores_of_call_;
  call.stored_dk = own_part_.k;
  call.stored_dv = own_part_.v;
}

void KeyReturns::send_back(ProgramWriter& writer, const Exchange& exchange, size_t stage) {
  writer.cast(add_pair_cast(writer, borrowed(exchange), computed_, returned_, "dkv stage",
                            {{}, true, static_cast<int>(stage), true}));
}

void KeyReturns::finish(ProgramWriter& writer) {
  if (writes_results_) return;
  const bool is_gathered = !stores_ && (!moves_ || own_part_.k.region != computed_.k.region);
  if (is_gathered) {
    const RowListsRef lists = writer.add_lists(lists_of_shard());
    const PairRef to = moves_ ? own_part_ : results_;
    writer.sum_rows({{{}, computed_.k, to.k, lists}, {{}, computed_.v, to.v, lists}});
  }
  if (!moves_) return;
  FinishOp finish{own_part_.k, own_part_.v, results_.k, results_.v, {}, {}};
  if (stores_) {
    finish.left = final_rows_;
    finish.absent = ranges_without({{0, shard_.k.rows}}, rows_of(own_));  // that no query of this rank sees
  }
  writer.append(finish);
}

}  // namespace tangram
