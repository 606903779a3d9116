// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Faults in what ranks send each other: casts, the rows of their tables, waits and credits.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/program/mutant.hpp"

namespace tangram::testing {

/// Drops an operation on all ranks, so that their programs stay alike.
template <class Kind>
bool drop_everywhere(Mutant& m) {
  const auto op = m.any_op<Kind>();
  if (!op) return false;
  const int cast = m.get<Kind>(*op).cast;
  for (Program& program : m.pass()) {
    std::erase_if(program.ops, [&](const Op& each) {
      const Kind* found = std::get_if<Kind>(&each);
      return found != nullptr && found->cast == cast;
    });
  }
  return true;
}

/// Its partners cast in another order.
inline bool swap_casts_of_a_rank(Mutant& m) {
  if (m.of.plan->cp_size() == 1) return false;
  const std::vector<size_t> casts = m.ops_of<GroupCastOp>();
  if (casts.size() < 2) return false;
  const size_t a = m.random.one_of(casts), b = m.random.one_of(casts);
  if (a == b) return false;
  std::swap(m.program().ops[a], m.program().ops[b]);
  return true;
}

/// A table of its own, to be changed.
inline Exchange& own_exchange(GroupCastTensor& item) {
  const auto copy = std::make_shared<Exchange>(*item.exchange);
  item.exchange = copy;
  return *copy;
}

inline bool shift_receipt(Mutant& m) {
  if (m.program().casts.empty()) return false;
  GroupCast& cast = m.random.one_of(m.program().casts);
  GroupCastTensor& item = m.random.one_of(cast.items);
  if (item.exchange->recvs.empty()) return false;
  RowCopy& copy = m.random.one_of(own_exchange(item).recvs);
  m.random.coin() ? ++copy.peer_row : (++copy.rows.begin, ++copy.rows.end);
  return true;
}

inline bool drop_receipt(Mutant& m) {
  if (m.program().casts.empty()) return false;
  GroupCastTensor& item = m.random.one_of(m.random.one_of(m.program().casts).items);
  if (item.exchange->recvs.empty()) return false;
  std::vector<RowCopy>& rows = own_exchange(item).recvs;
  rows.erase(rows.begin() + m.random.draw(0, std::ssize(rows) - 1));
  return true;
}

inline bool drop_sending(Mutant& m) {
  if (m.program().casts.empty()) return false;
  GroupCastTensor& item = m.random.one_of(m.random.one_of(m.program().casts).items);
  if (item.exchange->sends.empty()) return false;
  std::vector<RowCopy>& rows = own_exchange(item).sends;
  rows.erase(rows.begin() + m.random.draw(0, std::ssize(rows) - 1));
  return true;
}

/// A region of the arena that is larger on one rank: all behind it lies elsewhere there.
inline bool grow_region(Mutant& m) {
  if (m.of.plan->cp_size() == 1 || !m.programs.equal_arenas) return false;
  std::vector<Region*> regions;
  for (Region& region : m.program().regions) {
    if (region.memory == Memory::kArena) regions.push_back(&region);
  }
  if (regions.empty()) return false;
  ++m.random.one_of(regions)->rows;
  return true;
}

/// Work before the wait for what it reads.
inline bool wait_later(Mutant& m) {
  const auto op = m.any_op<WaitOp>();
  if (!op || *op + 1 == m.program().ops.size() || !std::holds_alternative<AttendOp>(m.program().ops[*op + 1]))
    return false;
  bool receives = false;
  const GroupCast& cast = m.program().casts[static_cast<size_t>(m.get<WaitOp>(*op).cast)];
  const AttendOp& attend = std::get<AttendOp>(m.program().ops[*op + 1]);
  for (const GroupCastTensor& item : cast.items) {
    receives = receives || (!item.exchange->recvs.empty() &&
                            (item.target.region == attend.k.region || item.target.region == attend.q.region));
  }
  if (!receives) return false;
  std::swap(m.program().ops[*op], m.program().ops[*op + 1]);
  return true;
}

/// Sends before what it sends was made.
inline bool cast_earlier(Mutant& m) {
  const auto op = m.any_op<GroupCastOp>();
  if (!op || *op == 0) return false;
  const auto* sums = std::get_if<RowSumsOp>(&m.program().ops[*op - 1]);
  if (sums == nullptr) return false;
  const GroupCast& cast = m.program().casts[static_cast<size_t>(m.get<GroupCastOp>(*op).cast)];
  bool made = false;
  for (const GroupCastTensor& item : cast.items) {
    for (const RowSumOp& sum : sums->sums) {
      made =
          made || (!item.exchange->sends.empty() && sum.result.region == item.source.region && sum.result.region >= 0);
    }
  }
  if (!made) return false;
  std::swap(m.program().ops[*op], m.program().ops[*op - 1]);
  return true;
}

/// An operation of a kind whose cast brings rows to this rank, or sends some.
template <class Kind>
std::optional<size_t> any_op_that_moves(Mutant& m, std::vector<RowCopy> Exchange::* rows) {
  const auto op = m.any_op<Kind>();
  if (!op) return std::nullopt;
  const GroupCast& cast = m.program().casts[static_cast<size_t>(m.get<Kind>(*op).cast)];
  return ((*cast.items.front().exchange).*rows).empty() ? std::nullopt : op;
}

inline bool drop_credit(Mutant& m) {
  const auto op = any_op_that_moves<ReleaseCreditOp>(m, &Exchange::recvs);
  if (op) m.erase(m.program().ops, *op);
  return op.has_value();
}

/// Whether rows of later casts come to where this cast sends rows from.
inline bool is_sent_over(const Program& program, size_t sent) {
  const GroupCast& cast = program.casts[static_cast<size_t>(std::get<WaitSendOp>(program.ops[sent]).cast)];
  const auto meet = [](const GroupCastTensor& from, const GroupCastTensor& to) {
    const auto rows_of = [](const TensorRef& tensor, const RowCopy& copy) {
      return Range{tensor.first_row + copy.rows.begin, tensor.first_row + copy.rows.end};
    };
    if (from.source.region < 0 || from.source.region != to.target.region) return false;
    return std::ranges::any_of(from.exchange->sends, [&](const RowCopy& send) {
      return std::ranges::any_of(to.exchange->recvs, [&](const RowCopy& receipt) {
        return !intersect(rows_of(from.source, send), rows_of(to.target, receipt)).empty();
      });
    });
  };
  for (size_t op = sent + 1; op < program.ops.size(); ++op) {
    const auto* later = std::get_if<GroupCastOp>(&program.ops[op]);
    if (later == nullptr) continue;
    for (const GroupCastTensor& to : program.casts[static_cast<size_t>(later->cast)].items) {
      if (std::ranges::any_of(cast.items, [&](const GroupCastTensor& from) { return meet(from, to); })) return true;
    }
  }
  return false;
}

/// Rows that come to where others are still being sent from. Where none do, the wait is not needed.
inline bool drop_sent(Mutant& m) {
  const auto op = any_op_that_moves<WaitSendOp>(m, &Exchange::sends);
  if (!op || !is_sent_over(m.program(), *op)) return false;
  m.erase(m.program().ops, *op);
  return true;
}

/// A credit that is given before the last use has ended.
inline bool give_earlier(Mutant& m) {
  const auto op = any_op_that_moves<ReleaseCreditOp>(m, &Exchange::recvs);
  if (!op || *op == 0 || std::holds_alternative<ReleaseCreditOp>(m.program().ops[*op - 1])) return false;
  std::swap(m.program().ops[*op], m.program().ops[*op - 1]);
  return true;
}

/// Rows that come without a credit where others are in use.
inline bool cast_without_credit(Mutant& m) {
  const auto op = m.any_op<ReleaseCreditOp>();
  if (!op) return false;
  const int cast = m.get<ReleaseCreditOp>(*op).cast;
  for (Program& program : m.pass()) {
    program.casts[static_cast<size_t>(cast)].credited = false;
    std::erase_if(program.ops, [&](const Op& each) {
      const auto* give = std::get_if<ReleaseCreditOp>(&each);
      return give != nullptr && give->cast == cast;
    });
  }
  return true;
}

}  // namespace tangram::testing
