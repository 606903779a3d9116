// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/symbolic_rank.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tangram {

namespace {

std::vector<int64_t> shard_rows(const Dispatch& dispatch, int rank) {
  std::vector<int64_t> rows;
  for (const Range& range : dispatch.rows_of_rank(rank)) {
    for (int64_t row = range.begin; row < range.end; ++row) rows.push_back(row);
  }
  return rows;
}

// A cast that adds goes back the way of its exchange.
const std::vector<RowCopy>& sends(const GroupCast& cast, const GroupCastTensor& item) {
  return cast.adds ? item.exchange->recvs : item.exchange->sends;
}
const std::vector<RowCopy>& receipts(const GroupCast& cast, const GroupCastTensor& item) {
  return cast.adds ? item.exchange->sends : item.exchange->recvs;
}

}  // namespace

SymbolicRank::SymbolicRank(const Plan& plan, int rank, const Program& of_pass, std::vector<ProgramMask> of_masks,
                           const SymbolicMemory* kept)
    : program(of_pass),
      masks(std::move(of_masks)),
      memory(of_pass, kept),
      q_rows(shard_rows(plan.q_dispatch, rank)),
      k_rows(shard_rows(plan.k_dispatch, rank)),
      sent(of_pass.casts.size()),
      posted(of_pass.casts.size()),
      waited(of_pass.casts.size()),
      given(of_pass.casts.size()),
      ended_sends(of_pass.casts.size()) {}

void SymbolicRank::sum_rows(const RowSumOp& sum) {
  const bool copies = sum.source.memory != Memory::kNone, adds = sum.addend.memory != Memory::kNone;
  const bool by_lists = sum.addend_rows.lists >= 0;
  for (const TensorRef* ref : {&sum.source, &sum.addend}) {
    if (ref->memory == Memory::kNone) continue;
    const bool fits = ref->rows == sum.result.rows || (by_lists && ref == &sum.addend);
    if (!fits || ref->heads != sum.result.heads || ref->dim != sum.result.dim) {
      throw ProgramFault{"adds tensors of different shapes"};
    }
  }
  for_each_cell(sum.result.rows, sum.result.heads, [&](int64_t row, int head) {
    Element value = copies ? memory.read(sum.source, row, head) : Element();
    if (adds && !by_lists) value += memory.read(sum.addend, row, head);
    if (adds && by_lists) {
      for (const int32_t from : memory.rows_of(sum.addend_rows, row)) value += memory.read(sum.addend, from, head);
    }
    memory.write(sum.result, row, head, value);
  });
}

void SymbolicRank::copy_floats(const FloatCopyOp& copy) {
  for_each_cell(copy.rows, copy.columns, [&](int64_t row, int column) {
    const Element value = copy.from.memory == Memory::kNone ? Element() : memory.read(copy.from, row, column);
    memory.write(copy.to, row, column, value);
  });
}

void SymbolicRank::find_largest(const LargestOp& op) {
  for (int column = 0; column < op.columns; ++column) {
    Element sum;  // as if every cell counted once
    for (int64_t row = 0; row < op.rows; ++row) sum += memory.read(op.from, row, column);
    memory.write(op.to, 0, column, sum);
  }
}

std::vector<int> SymbolicRank::casts_that_return() const {
  std::vector<int> numbers;
  for (size_t cast = 0; cast < program.casts.size(); ++cast) {
    const std::vector<GroupCastTensor>& items = program.casts[cast].items;
    if (!items.empty() && items.front().target.memory == Memory::kReturned) numbers.push_back(static_cast<int>(cast));
  }
  return numbers;
}

void SymbolicRank::finish(const FinishOp& op) {
  const auto is_among = [](const std::vector<Range>& ranges, int64_t row) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [row](const Range& range) { return range.begin <= row && row < range.end; });
  };
  const std::vector<int> returning = casts_that_return();
  if (returning.empty()) throw ProgramFault{"finishes though nothing returns"};
  const std::vector<GroupCastTensor>& items = program.casts[static_cast<size_t>(returning.front())].items;
  if (items.size() != 2) throw ProgramFault{"finishes other than gradients of keys and of values"};
  const auto add = [&](const TensorRef& own, const TensorRef& returned, const TensorRef& result) {
    for (const TensorRef* ref : {&own, &returned}) {
      if (ref->rows != result.rows || ref->heads != result.heads || ref->dim != result.dim) {
        throw ProgramFault{"adds tensors of different shapes"};
      }
    }
    for_each_cell(result.rows, result.heads, [&](int64_t row, int head) {
      if (is_among(op.left, row)) return;
      const Element part = is_among(op.absent, row) ? Element() : memory.read(own, row, head);
      memory.write(result, row, head, part + memory.read(returned, row, head));
    });
  };
  add(op.own_k, items[0].target, op.dk);
  add(op.own_v, items[1].target, op.dv);
}

size_t SymbolicRank::checked_cast(int number) const {
  if (number < 0 || number >= std::ssize(program.casts)) throw ProgramFault{"names a cast that is none"};
  return static_cast<size_t>(number);
}

void SymbolicRank::post(int cast_number) {
  const size_t number = checked_cast(cast_number);
  const GroupCast& cast = program.casts[number];
  if (posted[number]) throw ProgramFault{"casts a second time"};
  if (cast.by_lse && (cast.items.size() != 2 || !cast.adds)) throw ProgramFault{"joins other than out and lse"};
  posted[number] = true;
  for (const GroupCastTensor& item : cast.items) {
    auto& copies_of = sent[number].emplace_back();
    for (const RowCopy& copy : sends(cast, item)) {
      copies_of[copy.peer].emplace_back(copy, memory.begin_read(item.source, copy.rows));
    }
    if (!cast.adds) continue;
    for (const RowCopy& copy : receipts(cast, item)) memory.begin_add(item.target, copy.rows);
  }
  if (!cast.by_lse) return;
  const auto elements_of = [&](size_t item) {
    std::vector<Element> elements;
    for (const auto& [peer, copies] : sent[number][item]) {
      for (const auto& copy : copies) elements.insert(elements.end(), copy.second.begin(), copy.second.end());
    }
    return elements;
  };
  if (elements_of(0) != elements_of(1)) throw ProgramFault{"sends out and lse of different calls"};
}

bool SymbolicRank::has_credit(int number, int self, std::span<const std::unique_ptr<SymbolicRank>> ranks) const {
  const size_t cast = checked_cast(number);
  if (!program.casts[cast].credited) return true;
  for (const GroupCastTensor& item : program.casts[cast].items) {
    // A transport may write by calls of the receiver's own.
    const bool receives = !item.exchange->recvs.empty() && !given[cast];
    if (receives) throw ProgramFault{"receives where it has not said that memory is free"};
    for (const RowCopy& copy : item.exchange->sends) {
      if (copy.peer < 0 || copy.peer >= std::ssize(ranks)) throw ProgramFault{"sends to a rank that is none"};
      if (copy.peer != self && !ranks[static_cast<size_t>(copy.peer)]->given[cast]) return false;
    }
  }
  return true;
}

void SymbolicRank::release_credit(int number) {
  const size_t cast = checked_cast(number);
  if (!program.casts[cast].credited || program.casts[cast].adds)
    throw ProgramFault{"releases a credit that no cast takes"};
  if (given[cast] || posted[cast]) throw ProgramFault{"releases a credit a second time, or too late"};
  given[cast] = true;
  for (const GroupCastTensor& item : program.casts[cast].items) {
    for (const RowCopy& copy : item.exchange->recvs) memory.expect(item.target, copy.rows, number);
  }
}

void SymbolicRank::end_sends(int number) {
  const size_t cast = checked_cast(number);
  if (!posted[cast] || ended_sends[cast]) throw ProgramFault{"has not begun to send, or knows that all is sent"};
  ended_sends[cast] = true;
  for (const GroupCastTensor& item : program.casts[cast].items) {
    for (const RowCopy& copy : sends(program.casts[cast], item)) memory.end_read(item.source, copy.rows);
  }
}

bool SymbolicRank::land(int number, int self, std::span<const std::unique_ptr<SymbolicRank>> ranks) {
  const size_t cast = checked_cast(number);
  if (!posted[cast]) throw ProgramFault{"waits for a cast that was not begun"};
  if (waited[cast]) throw ProgramFault{"waits for a cast a second time"};
  const std::vector<GroupCastTensor>& items = program.casts[cast].items;
  for (const GroupCastTensor& item : items) {
    for (const RowCopy& copy : receipts(program.casts[cast], item)) {
      if (copy.peer < 0 || copy.peer >= std::ssize(ranks)) throw ProgramFault{"receives from a rank that is none"};
      if (!ranks[static_cast<size_t>(copy.peer)]->posted[cast]) return false;
    }
  }
  for (size_t i = 0; i < items.size(); ++i) receive(cast, i, self, ranks);
  waited[cast] = true;
  if (waits_end_sends) end_sends(number);
  return true;
}

bool SymbolicRank::land_all(const std::vector<int>& numbers, int self,
                            std::span<const std::unique_ptr<SymbolicRank>> ranks) {
  for (const int number : numbers) {
    if (!waited[checked_cast(number)] && !land(number, self, ranks)) return false;
  }
  return true;
}

void SymbolicRank::receive(size_t cast, size_t number, int self, std::span<const std::unique_ptr<SymbolicRank>> ranks) {
  const bool adds = program.casts[cast].adds;
  const GroupCastTensor& item = program.casts[cast].items[number];
  std::map<int, size_t> taken;
  for (const RowCopy& copy : receipts(program.casts[cast], item)) {
    const auto& pieces = ranks[static_cast<size_t>(copy.peer)]->sent[cast][number];
    const auto found = pieces.find(self);
    const size_t piece = taken[copy.peer]++;
    if (found == pieces.end() || piece >= found->second.size()) {
      throw ProgramFault{fmt::format("waits for rows that rank {} does not send", copy.peer)};
    }
    const auto& [send, values] = found->second[piece];
    if (send.peer_row != copy.rows.begin || copy.peer_row != send.rows.begin || send.rows.size() != copy.rows.size()) {
      throw ProgramFault{fmt::format("takes rows [{}, {}) from row {} of rank {}, which sends [{}, {}) to row {}",
                                     copy.rows.begin, copy.rows.end, copy.peer_row, copy.peer, send.rows.begin,
                                     send.rows.end, send.peer_row)};
    }
    adds ? memory.add(item.target, copy.rows, values) : memory.land(item.target, copy.rows, values);
  }
  for (size_t peer = 0; peer < ranks.size(); ++peer) {
    if (!ranks[peer]->posted[cast]) continue;  // sends nothing, or it would have been waited for
    const auto& pieces = ranks[peer]->sent[cast][number];
    const auto found = pieces.find(self);
    if (found != pieces.end() && found->second.size() != taken[static_cast<int>(peer)]) {
      throw ProgramFault{fmt::format("is sent rows by rank {} that it does not wait for", peer)};
    }
  }
}

}  // namespace tangram
