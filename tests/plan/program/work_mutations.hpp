// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Faults in what a rank computes: attention, merges, sums and copies, and the rows that these name.
#pragma once

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "plan/program/mutant.hpp"

namespace tangram::testing {

inline bool drop_attend(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return false;
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  if (masks[static_cast<size_t>(m.get<AttendOp>(*op).mask)].slices.empty()) return false;
  m.erase(m.program().ops, *op);
  return true;
}

inline bool attend_twice(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return false;
  AttendOp again = m.get<AttendOp>(*op);
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  if (masks[static_cast<size_t>(again.mask)].slices.empty()) return false;
  again.accumulate = true;
  m.program().ops.insert(m.program().ops.begin() + static_cast<std::ptrdiff_t>(*op) + 1, again);
  return true;
}

/// On one rank.
template <class Kind>
bool drop(Mutant& m) {
  const auto op = m.any_op<Kind>();
  if (op) m.erase(m.program().ops, *op);
  return op.has_value();
}

/// The lse of the owner's own part with the out of the others', or what comes back without its lse.
inline bool merge_wrongly(Mutant& m) {
  if (const auto op = m.any_op<MergeOp>(); op && m.random.coin()) {
    MergeOp& merge = m.get<MergeOp>(*op);
    if (merge.other_out.memory == Memory::kNone) return false;
    merge.other_lse = merge.lse;
    return true;
  }
  bool found = false;
  for (Program& program : m.pass()) {
    for (GroupCast& cast : program.casts) {
      found = found || cast.by_lse;
      if (cast.by_lse) cast.items.pop_back();
    }
  }
  return found;
}

inline bool drop_sum(Mutant& m) {
  const auto op = m.any_op<RowSumsOp>();
  if (!op) return false;
  auto& sums = m.get<RowSumsOp>(*op).sums;
  const auto index = m.random.draw(0, std::ssize(sums) - 1);
  // Adding to itself what is zero changes nothing.
  if (sums[static_cast<size_t>(index)].source == sums[static_cast<size_t>(index)].result) return false;
  sums.erase(sums.begin() + index);
  return true;
}

inline bool drop_float_copy(Mutant& m) {
  const auto op = m.any_op<FloatCopiesOp>();
  if (!op) return false;
  auto& copies = m.get<FloatCopiesOp>(*op).copies;
  const auto index = m.random.draw(0, std::ssize(copies) - 1);
  if (copies[static_cast<size_t>(index)].from.memory == Memory::kNone) return false;  // what others overwrite
  copies.erase(copies.begin() + index);
  return true;
}

/// A call that attends to something.
inline std::optional<size_t> any_attend_with_work(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return std::nullopt;
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  return masks[static_cast<size_t>(m.get<AttendOp>(*op).mask)].slices.empty() ? std::nullopt : op;
}

/// A call of attention writes its results, all of which count, beside their rows, onto those of others.
inline bool shift_results(Mutant& m) {
  const auto op = any_attend_with_work(m);
  if (!op) return false;
  AttendOp& attend = m.get<AttendOp>(*op);
  std::vector<TensorRef*> refs{&attend.dq, &attend.dk, &attend.dv};
  if (!attend.backward) refs = {&attend.out};
  std::erase_if(refs, [](const TensorRef* ref) { return ref->memory == Memory::kNone || ref->rows == 0; });
  if (refs.empty()) return false;
  m.random.one_of(refs)->first_row += m.random.coin() ? 1 : -1;
  return true;
}

/// A call of attention writes one of its results over another, or over what it reads: over what is live.
inline bool write_over_live(Mutant& m) {
  const auto op = any_attend_with_work(m);
  if (!op) return false;
  AttendOp& attend = m.get<AttendOp>(*op);
  std::vector<std::pair<TensorRef*, const TensorRef*>> pairs;  // what is written, and over what
  if (attend.backward) {
    pairs = {{&attend.dk, &attend.k}, {&attend.dv, &attend.v}, {&attend.dq, &attend.q}, {&attend.dk, &attend.dv}};
  } else {
    pairs = {{&attend.out, &attend.q}};
  }
  std::erase_if(pairs, [](const auto& pair) {
    return pair.first->region < 0 || pair.second->region < 0 || pair.first->rows == 0 ||
           pair.first->region == pair.second->region;
  });
  if (pairs.empty()) return false;
  const auto [written, live] = m.random.one_of(pairs);
  written->memory = live->memory;
  written->region = live->region;
  written->first_row = live->first_row;
  return true;
}

/// A region shifted by some rows.
inline bool shift_rows(Mutant& m) {
  const auto op = m.any_op_with_tensors();
  if (!op) return false;
  auto refs = tensors_of(m.program().ops[*op]);
  if (refs.empty()) return false;
  TensorRef& ref = *m.random.one_of(refs);
  ref.first_row += m.random.coin() ? 1 : -1;
  return true;
}

/// Parts of others that are joined with another row's.
inline bool shift_lists(Mutant& m) {
  std::vector<RowListsRef*> refs;
  for (Op& op : m.program().ops) {
    if (auto* merge = std::get_if<MergeOp>(&op)) refs.push_back(&merge->other_rows);
    if (auto* sums = std::get_if<RowSumsOp>(&op)) {
      for (RowSumOp& sum : sums->sums) refs.push_back(&sum.addend_rows);
    }
  }
  std::erase_if(refs, [](const RowListsRef* ref) { return ref->lists < 0; });
  if (refs.empty()) return false;
  m.random.one_of(refs)->first += m.random.coin() ? 1 : -1;
  return true;
}

/// Another region of the same shape, which is live or was never written.
inline bool move_region(Mutant& m) {
  const auto op = m.any_op_with_tensors();
  if (!op) return false;
  auto refs = tensors_of(m.program().ops[*op]);
  std::erase_if(refs, [](const TensorRef* ref) { return ref->region < 0; });
  if (refs.empty()) return false;
  TensorRef& ref = *m.random.one_of(refs);
  std::vector<int> others;
  for (int i = 0; i < std::ssize(m.program().regions); ++i) {
    const Region &mine = m.program().regions[static_cast<size_t>(ref.region)],
                 &other = m.program().regions[static_cast<size_t>(i)];
    if (i != ref.region && other == mine) others.push_back(i);
  }
  if (others.empty()) return false;
  ref.region = m.random.one_of(others);
  return true;
}

inline bool swap_keys_and_values(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op || !m.get<AttendOp>(*op).backward) return false;  // forward, q(k v) is q(v k)
  AttendOp& attend = m.get<AttendOp>(*op);
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  if (masks[static_cast<size_t>(attend.mask)].slices.empty()) return false;
  std::swap(attend.dk, attend.dv);
  return true;
}

inline bool change_mask(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return false;
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  int& mask = m.get<AttendOp>(*op).mask;
  const int other = static_cast<int>(m.random.draw(0, std::ssize(masks) - 1));
  if (masks[static_cast<size_t>(other)].slices == masks[static_cast<size_t>(mask)].slices) return false;
  mask = other;
  return true;
}

inline bool flip_accumulate(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return false;
  AttendOp& attend = m.get<AttendOp>(*op);
  // Without accumulation, steps before that saw nothing are lost without harm.
  if (attend.accumulate) return false;
  attend.accumulate = true;
  return true;
}

}  // namespace tangram::testing
