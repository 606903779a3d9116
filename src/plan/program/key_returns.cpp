// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/key_returns.hpp"

#include <algorithm>
#include <optional>

#include "plan/program/key_calls.hpp"
#include "plan/program/own_stretches.hpp"
#include "tangram/gradient_places.hpp"

namespace tangram {

namespace {

std::vector<Range> ranges_of(const std::vector<char>& marked) {
  std::vector<Range> ranges;
  for (int64_t row = 0; row < std::ssize(marked); ++row) {
    if (marked[static_cast<size_t>(row)] == 0) continue;
    if (ranges.empty() || ranges.back().end != row) ranges.push_back({row, row});
    ranges.back().end = row + 1;
  }
  return ranges;
}

/// The rows of the buffer that are the whole shard in order, where there are such.
std::optional<Range> whole_shard(const std::vector<KeyStretch>& own, int64_t shard_rows) {
  if (own.size() != 1 || own.front().row != 0 || own.front().keys.size() != shard_rows) return std::nullopt;
  return own.front().keys;
}

/// Whether one call may store rows at their owners: as places say it (GradientPlaces), and transports take it.
bool can_store(const Plan& plan, const ProgramTarget& target) {
  const int64_t most_rows = plan.k_dispatch.rows_per_rank() * plan.cp_size();  // that come back to an owner
  const DType travel = plan.config.reduce_dtype;
  return target.stores_at_owners && target.backward_calls == KeyCalls::kAsTheyCome &&
         (travel == DType::kFloat32 || travel == plan.config.heads.dtype) &&
         most_rows <= int64_t{1} << kGradientRowBits;
}

}  // namespace

KeyReturns::KeyReturns(ProgramWriter& writer, const Plan& plan, int rank, const PassArguments& given, size_t num_calls)
    : rank_(plan.ranks[static_cast<size_t>(rank)]),
      shard_(given.keys),
      results_(given.key_grads),
      own_(own_stretches(rank_, rank)),
      moves_(rank_.backward.size() > 1),
      several_(num_calls > 1) {
  const int64_t shard_rows = shard_.k.rows;
  const std::optional<Range> whole = whole_shard(own_, shard_rows);
  if (reads_shard(rank_) && whole) {
    writes_results_ = true;
    computed_ = results_;
    return;
  }
  const DType travel = plan.config.reduce_dtype;
  stores_ = moves_ && can_store(plan, writer.target());
  if (stores_) {
    computed_ = {writer.stored(travel, rank_.kv_rows, shard_.k.heads, shard_.k.dim),
                 writer.stored(travel, rank_.kv_rows, shard_.v.heads, shard_.v.dim)};
    own_part_ = work_pair(writer, travel, shard_rows, shard_);
    store_rows();
  } else {
    computed_ = work_pair(writer, DType::kFloat32, rank_.kv_rows, shard_);
    if (moves_) own_part_ = whole ? slice(computed_, *whole) : work_pair(writer, DType::kFloat32, shard_rows, shard_);
  }
  if (moves_) {
    returned_ = {writer.returned(travel, shard_rows, shard_.k.heads, shard_.k.dim),
                 writer.returned(travel, shard_rows, shard_.v.heads, shard_.v.dim)};
  }
  if (!several_) return;  // the one call sets all rows
  writer.zero(computed_.k);
  writer.zero(computed_.v);
}

std::vector<char> KeyReturns::find_settled_rows() const {
  std::vector<char> settled(static_cast<size_t>(shard_.k.rows), 0);
  const auto mark = [&](const Range& rows, char value) {
    std::fill(settled.begin() + rows.begin, settled.begin() + rows.end, value);
  };
  for (const KeyStretch& own : own_) mark({own.row, own.row + own.keys.size()}, 1);
  for (const Stage& stage : rank_.backward) {
    for (const RowCopy& sent : stage.exchange.sends) mark(sent.rows, 0);
  }
  return settled;
}

void KeyReturns::store_rows() {
  const std::vector<char> settled = find_settled_rows();
  settled_ = ranges_of(settled);
  for (const KeyStretch& own : own_) {
    const int64_t end = own.row + own.keys.size(), shift = own.keys.begin - own.row;
    for (int64_t row = own.row; row < end;) {
      const auto begin = settled.begin() + row;
      const Range rows{row, row + (std::find(begin, settled.begin() + end, *begin == 0 ? 1 : 0) - begin)};
      append_copies(stores_of_call_, slice(computed_, rows.shifted(shift)),
                    slice(*begin == 0 ? own_part_ : results_, rows));
      row = rows.end;
    }
  }
}

RowLists KeyReturns::lists_of_shard() const {
  RowLists lists;
  int64_t row = 0;
  const auto skip_to = [&](int64_t next) {
    for (; row < next; ++row) lists.begins.push_back(static_cast<int32_t>(lists.rows.size()));
  };
  std::vector<KeyStretch> by_row = own_;
  std::sort(by_row.begin(), by_row.end(), [](const KeyStretch& a, const KeyStretch& b) { return a.row < b.row; });
  for (const KeyStretch& own : by_row) {
    skip_to(own.row);
    for (int64_t key = own.keys.begin; key < own.keys.end; ++key, ++row) {
      lists.rows.push_back(static_cast<int32_t>(key));
      lists.begins.push_back(static_cast<int32_t>(lists.rows.size()));
    }
  }
  skip_to(shard_.k.rows);
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
    finish.left = settled_;
    std::vector<char> absent(static_cast<size_t>(shard_.k.rows), 1);  // that no query of this rank sees
    for (const KeyStretch& own : own_) std::fill_n(absent.begin() + own.row, own.keys.size(), char{0});
    finish.absent = ranges_of(absent);
  }
  writer.append(finish);
}

}  // namespace tangram
