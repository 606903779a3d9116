// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <span>

#include "plan/program/program_cases.hpp"
#include "runtime/mask_families.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using testing::kStrategies;

using testing::Case;
using testing::kOnHost;
using testing::Random;
using testing::random_case;

StepPrograms programs_of(const Case& of) { return step_programs(*of.plan, of.call, of.target, of.kept); }

TEST(Verify, ProgramsOfRandomPlansAndCallsHaveNoFaults) {
  const uint32_t count = support::is_long_run() ? 5000 : 300;
  for (uint32_t seed = 0; seed < count; ++seed) {
    Random random(seed);
    const Case of = random_case(random);
    SCOPED_TRACE(::testing::Message() << of.text << ", seed " << seed);
    EXPECT_NO_THROW(verify(*of.plan, of.call, programs_of(of)));
  }
}

TEST(Verify, ProgramsOfEveryFamilyOfMasksHaveNoFaults) {
  support::Sample sample(5);
  for (const testing::NamedMask& family : testing::mask_families()) {
    for (const Strategy strategy : kStrategies) {
      for (const int cp_size : {2, 4, 8}) {
        if (!sample.takes_next()) continue;
        SCOPED_TRACE(::testing::Message() << family.name << ", " << to_string(strategy) << " on " << cp_size);
        const auto plan =
            testing::plan_of(family.mask, testing::heads_of(cp_size, 1, 8, 8), cp_size, {strategy, 0, 0, {}});
        const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
        EXPECT_NO_THROW(verify(*plan, call, step_programs(*plan, call, kOnHost, false)));
      }
    }
  }
}

// ---- Mutations: faults that are put into programs on purpose.

/// What can be broken in an operation.
std::vector<TensorRef*> tensors_of(Op& op) {
  std::vector<TensorRef*> refs;
  if (auto* sums = std::get_if<RowSumsOp>(&op)) {
    for (RowSumOp& sum : sums->sums) refs.insert(refs.end(), {&sum.source, &sum.addend, &sum.result});
  } else if (auto* opening = std::get_if<OpenOp>(&op)) {
    for (RowSumOp& own : opening->own) refs.insert(refs.end(), {&own.source, &own.result});
  } else if (auto* finish = std::get_if<FinishOp>(&op)) {
    refs = {&finish->own_k, &finish->own_v, &finish->dk, &finish->dv};
  } else if (auto* attend = std::get_if<AttendOp>(&op)) {
    refs = {&attend->q, &attend->k, &attend->v, &attend->out, &attend->dout, &attend->dq, &attend->dk, &attend->dv};
  } else if (auto* delta = std::get_if<DeltaOp>(&op)) {
    refs = {&delta->out, &delta->dout, &delta->delta};
  } else if (auto* merge = std::get_if<MergeOp>(&op)) {
    refs = {&merge->out, &merge->lse, &merge->other_out, &merge->other_lse};
  } else if (auto* dsink = std::get_if<SinkGradOp>(&op)) {
    refs = {&dsink->lse, &dsink->delta};
  }
  std::erase_if(refs, [](const TensorRef* ref) { return ref->memory == Memory::kNone || ref->rows == 0; });
  return refs;
}

struct Mutant {
  StepPrograms programs;
  Random& random;
  const Case& of;

  std::vector<Program>& pass() { return backward ? programs.backward : programs.forward; }
  Program& program() { return pass()[rank]; }
  template <class Kind>
  std::vector<size_t> ops_of() {
    std::vector<size_t> result;
    for (size_t i = 0; i < program().ops.size(); ++i) {
      if (std::holds_alternative<Kind>(program().ops[i])) result.push_back(i);
    }
    return result;
  }
  /// The number of an operation of a kind, or of none.
  template <class Kind>
  std::optional<size_t> any_op() {
    const std::vector<size_t> ops = ops_of<Kind>();
    if (ops.empty()) return std::nullopt;
    return random.one_of(ops);
  }
  /// One that names tensors.
  std::optional<size_t> any_op_with_tensors() {
    if (random.draw(0, 2) == 0) return any_op<AttendOp>();  // of which there are few
    std::vector<size_t> result;
    for (size_t i = 0; i < program().ops.size(); ++i) {
      if (!tensors_of(program().ops[i]).empty()) result.push_back(i);
    }
    return result.empty() ? std::nullopt : std::optional(random.one_of(result));
  }
  template <class Kind>
  Kind& get(size_t op) {
    return std::get<Kind>(program().ops[op]);
  }
  void erase(std::vector<Op>& ops, size_t op) { ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(op)); }

  bool backward = false;
  size_t rank = 0;
};

using Mutation = bool (*)(Mutant&);  // false: there is nothing of that kind

/// Of all ranks, so that they stay alike.
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

bool drop_attend(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return false;
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  if (masks[static_cast<size_t>(m.get<AttendOp>(*op).mask)].slices.empty()) return false;
  m.erase(m.program().ops, *op);
  return true;
}

bool attend_twice(Mutant& m) {
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
bool merge_wrongly(Mutant& m) {
  if (const auto op = m.any_op<MergeOp>(); op && m.random.coin()) {
    MergeOp& merge = m.get<MergeOp>(*op);
    if (merge.other_out.memory == Memory::kNone) return false;
    merge.other_lse = merge.lse;
    return true;
  }
  bool found = false;
  for (Program& program : m.pass()) {
    for (Cast& cast : program.casts) {
      found = found || cast.by_lse;
      if (cast.by_lse) cast.items.pop_back();
    }
  }
  return found;
}

bool drop_sum(Mutant& m) {
  const auto op = m.any_op<RowSumsOp>();
  if (!op) return false;
  auto& sums = m.get<RowSumsOp>(*op).sums;
  const auto index = m.random.draw(0, std::ssize(sums) - 1);
  // Adding to itself what is zero changes nothing.
  if (sums[static_cast<size_t>(index)].source == sums[static_cast<size_t>(index)].result) return false;
  sums.erase(sums.begin() + index);
  return true;
}

bool drop_float_copy(Mutant& m) {
  const auto op = m.any_op<FloatCopiesOp>();
  if (!op) return false;
  auto& copies = m.get<FloatCopiesOp>(*op).copies;
  const auto index = m.random.draw(0, std::ssize(copies) - 1);
  if (copies[static_cast<size_t>(index)].from.memory == Memory::kNone) return false;  // what others overwrite
  copies.erase(copies.begin() + index);
  return true;
}

/// A call that attends to something.
std::optional<size_t> any_attend_with_work(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return std::nullopt;
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  return masks[static_cast<size_t>(m.get<AttendOp>(*op).mask)].slices.empty() ? std::nullopt : op;
}

/// A call of attention writes its results, all of which count, beside their rows, onto those of others.
bool shift_results(Mutant& m) {
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
bool write_over_live(Mutant& m) {
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
bool shift_rows(Mutant& m) {
  const auto op = m.any_op_with_tensors();
  if (!op) return false;
  auto refs = tensors_of(m.program().ops[*op]);
  if (refs.empty()) return false;
  TensorRef& ref = *m.random.one_of(refs);
  ref.first_row += m.random.coin() ? 1 : -1;
  return true;
}

/// Parts of others that are joined with another row's.
bool shift_lists(Mutant& m) {
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
bool move_region(Mutant& m) {
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

bool swap_keys_and_values(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op || !m.get<AttendOp>(*op).backward) return false;  // forward, q(k v) is q(v k)
  AttendOp& attend = m.get<AttendOp>(*op);
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  if (masks[static_cast<size_t>(attend.mask)].slices.empty()) return false;
  std::swap(attend.dk, attend.dv);
  return true;
}

bool change_mask(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return false;
  const auto masks = program_masks(*m.of.plan, static_cast<int>(m.rank), m.of.target);
  int& mask = m.get<AttendOp>(*op).mask;
  const int other = static_cast<int>(m.random.draw(0, std::ssize(masks) - 1));
  if (masks[static_cast<size_t>(other)].slices == masks[static_cast<size_t>(mask)].slices) return false;
  mask = other;
  return true;
}

bool flip_accumulate(Mutant& m) {
  const auto op = m.any_op<AttendOp>();
  if (!op) return false;
  AttendOp& attend = m.get<AttendOp>(*op);
  // Without accumulation, steps before that saw nothing are lost without harm.
  if (attend.accumulate) return false;
  attend.accumulate = true;
  return true;
}

/// Its partners cast in another order.
bool swap_casts_of_a_rank(Mutant& m) {
  if (m.of.plan->cp_size() == 1) return false;
  const std::vector<size_t> casts = m.ops_of<CastOp>();
  if (casts.size() < 2) return false;
  const size_t a = m.random.one_of(casts), b = m.random.one_of(casts);
  if (a == b) return false;
  std::swap(m.program().ops[a], m.program().ops[b]);
  return true;
}

/// A table of its own, to be changed.
Exchange& own_exchange(CastItem& item) {
  const auto copy = std::make_shared<Exchange>(*item.exchange);
  item.exchange = copy;
  return *copy;
}

bool shift_receipt(Mutant& m) {
  if (m.program().casts.empty()) return false;
  Cast& cast = m.random.one_of(m.program().casts);
  CastItem& item = m.random.one_of(cast.items);
  if (item.exchange->recvs.empty()) return false;
  RowCopy& copy = m.random.one_of(own_exchange(item).recvs);
  m.random.coin() ? ++copy.peer_row : (++copy.rows.begin, ++copy.rows.end);
  return true;
}

bool drop_receipt(Mutant& m) {
  if (m.program().casts.empty()) return false;
  CastItem& item = m.random.one_of(m.random.one_of(m.program().casts).items);
  if (item.exchange->recvs.empty()) return false;
  std::vector<RowCopy>& rows = own_exchange(item).recvs;
  rows.erase(rows.begin() + m.random.draw(0, std::ssize(rows) - 1));
  return true;
}

bool drop_sending(Mutant& m) {
  if (m.program().casts.empty()) return false;
  CastItem& item = m.random.one_of(m.random.one_of(m.program().casts).items);
  if (item.exchange->sends.empty()) return false;
  std::vector<RowCopy>& rows = own_exchange(item).sends;
  rows.erase(rows.begin() + m.random.draw(0, std::ssize(rows) - 1));
  return true;
}

/// A region of the arena that is larger on one rank: all behind it lies elsewhere there.
bool grow_region(Mutant& m) {
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
bool wait_later(Mutant& m) {
  const auto op = m.any_op<WaitOp>();
  if (!op || *op + 1 == m.program().ops.size() || !std::holds_alternative<AttendOp>(m.program().ops[*op + 1]))
    return false;
  bool receives = false;
  const Cast& cast = m.program().casts[static_cast<size_t>(m.get<WaitOp>(*op).cast)];
  const AttendOp& attend = std::get<AttendOp>(m.program().ops[*op + 1]);
  for (const CastItem& item : cast.items) {
    receives = receives || (!item.exchange->recvs.empty() &&
                            (item.target.region == attend.k.region || item.target.region == attend.q.region));
  }
  if (!receives) return false;
  std::swap(m.program().ops[*op], m.program().ops[*op + 1]);
  return true;
}

/// Sends before what it sends was made.
bool cast_earlier(Mutant& m) {
  const auto op = m.any_op<CastOp>();
  if (!op || *op == 0) return false;
  const auto* sums = std::get_if<RowSumsOp>(&m.program().ops[*op - 1]);
  if (sums == nullptr) return false;
  const Cast& cast = m.program().casts[static_cast<size_t>(m.get<CastOp>(*op).cast)];
  bool made = false;
  for (const CastItem& item : cast.items) {
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
  const Cast& cast = m.program().casts[static_cast<size_t>(m.get<Kind>(*op).cast)];
  return ((*cast.items.front().exchange).*rows).empty() ? std::nullopt : op;
}

bool drop_credit(Mutant& m) {
  const auto op = any_op_that_moves<GiveOp>(m, &Exchange::recvs);
  if (op) m.erase(m.program().ops, *op);
  return op.has_value();
}

/// Whether rows of later casts come to where this cast sends rows from.
bool is_sent_over(const Program& program, size_t sent) {
  const Cast& cast = program.casts[static_cast<size_t>(std::get<SentOp>(program.ops[sent]).cast)];
  const auto meet = [](const CastItem& from, const CastItem& to) {
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
    const auto* later = std::get_if<CastOp>(&program.ops[op]);
    if (later == nullptr) continue;
    for (const CastItem& to : program.casts[static_cast<size_t>(later->cast)].items) {
      if (std::ranges::any_of(cast.items, [&](const CastItem& from) { return meet(from, to); })) return true;
    }
  }
  return false;
}

/// Rows that come to where others are still being sent from. Where none do, nobody needs the wait.
bool drop_sent(Mutant& m) {
  const auto op = any_op_that_moves<SentOp>(m, &Exchange::sends);
  if (!op || !is_sent_over(m.program(), *op)) return false;
  m.erase(m.program().ops, *op);
  return true;
}

/// A credit that is given before the last use has ended.
bool give_earlier(Mutant& m) {
  const auto op = any_op_that_moves<GiveOp>(m, &Exchange::recvs);
  if (!op || *op == 0 || std::holds_alternative<GiveOp>(m.program().ops[*op - 1])) return false;
  std::swap(m.program().ops[*op], m.program().ops[*op - 1]);
  return true;
}

/// Rows that come without a credit where others are in use.
bool cast_without_credit(Mutant& m) {
  const auto op = m.any_op<GiveOp>();
  if (!op) return false;
  const int cast = m.get<GiveOp>(*op).cast;
  for (Program& program : m.pass()) {
    program.casts[static_cast<size_t>(cast)].credited = false;
    std::erase_if(program.ops, [&](const Op& each) {
      const auto* give = std::get_if<GiveOp>(&each);
      return give != nullptr && give->cast == cast;
    });
  }
  return true;
}

struct NamedMutation {
  const char* name;
  Mutation mutate;
};
/// Of which every one does harm: what a result is made of, or what keeps ranks in step, is gone or another.
constexpr NamedMutation kHarmful[] = {
    {"a wait dropped", drop_everywhere<WaitOp>},
    {"a cast dropped", drop_everywhere<CastOp>},
    {"attention dropped", drop_attend},
    {"attention twice", attend_twice},
    {"results shifted onto others", shift_results},
    {"results written over what is live", write_over_live},
    {"dk and dv swapped", swap_keys_and_values},
    {"another mask", change_mask},
    {"added to nothing", flip_accumulate},
    {"casts of a rank swapped", swap_casts_of_a_rank},
    {"rows received elsewhere", shift_receipt},
    {"rows not received", drop_receipt},
    {"rows not sent", drop_sending},
    {"a region larger on one rank", grow_region},
    {"waited too late", wait_later},
    {"sent too early", cast_earlier},
    {"a merge dropped", drop<MergeOp>},
    {"merged with another lse", merge_wrongly},
    {"delta dropped", drop<DeltaOp>},
    {"dsink dropped", drop<SinkGradOp>},
    {"the largest not sought", drop<LargestOp>},
    {"a credit dropped", drop_credit},
    {"given too early", give_earlier},
    {"cast without a credit", cast_without_credit},
    {"not seen to be sent", drop_sent},
};
/// That may be harmless: rows that nobody reads or that are zero anyhow, two regions of equal content.
constexpr NamedMutation kMaybeHarmless[] = {
    {"a sum or copy dropped", drop_sum}, {"a copy of floats dropped", drop_float_copy}, {"rows shifted", shift_rows},
    {"another region", move_region},     {"parts of another row", shift_lists},
};

bool is_caught(const Mutant& mutant) {
  try {
    verify(*mutant.of.plan, mutant.of.call, mutant.programs);
    return false;
  } catch (const InvalidArgument&) {
    return true;
  }
}

struct Caught {
  int made = 0, caught = 0;

  void add(bool found) {
    ++made;
    caught += found ? 1 : 0;
  }
};

/// At least `wanted` mutations of these kinds, of random programs; prints how many of each kind were caught.
Caught mutate_programs(std::span<const NamedMutation> kinds, int wanted, uint32_t first_seed) {
  Caught all;
  std::vector<Caught> of_kind(kinds.size());
  const auto lacks_a_kind = [&] {
    return std::any_of(of_kind.begin(), of_kind.end(), [](const Caught& kind) { return kind.made == 0; });
  };
  const uint32_t last_seed = first_seed + static_cast<uint32_t>(wanted);
  for (uint32_t seed = first_seed; all.made < wanted || (lacks_a_kind() && seed < last_seed); ++seed) {
    Random of_case(seed), random(seed + 1'000'000);
    const Case of = random_case(of_case);
    for (size_t i = 0; i < kinds.size(); ++i) {
      Mutant mutant{programs_of(of), random, of};
      mutant.backward = random.coin();
      mutant.rank = static_cast<size_t>(random.draw(0, of.plan->cp_size() - 1));
      if (!kinds[i].mutate(mutant)) continue;
      const bool found = is_caught(mutant);
      all.add(found);
      of_kind[i].add(found);
    }
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    std::cout << kinds[i].name << ": " << of_kind[i].caught << " of " << of_kind[i].made << "\n";
    EXPECT_GT(of_kind[i].made, 0) << kinds[i].name;
  }
  std::cout << "caught in all: " << all.caught << " of " << all.made << "\n";
  return all;
}

TEST(Verify, HarmfulMutationsAreCaught) {
  const Caught result = mutate_programs(kHarmful, support::is_long_run() ? 10'000 : 600, 0);
  EXPECT_EQ(result.caught, result.made);
}

// Counted apart: those that are missed do no harm.
TEST(Verify, MostMutationsThatMayBeHarmlessAreCaught) {
  const Caught result = mutate_programs(kMaybeHarmless, support::is_long_run() ? 2'000 : 150, 0);
  EXPECT_GE(result.caught * 100, result.made * 90);
}

TEST(Verify, SaysRankOperationAndFault) {
  const auto plan =
      testing::plan_of(causal_mask(24, 24), testing::heads_of(2, 1, 8, 8), 2, {Strategy::kRing, 0, 0, {}});
  const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
  StepPrograms programs = step_programs(*plan, call, kOnHost, false);
  for (Program& program : programs.forward) {
    std::erase_if(program.ops, [](const Op& op) { return std::holds_alternative<WaitOp>(op); });
  }
  try {
    verify(*plan, call, programs);
    FAIL() << "a ring that does not wait";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("(got forward pass, rank 0, operation 2 (attend): uses rows that cast 0 brings, "
                          "which was not waited for)"));
  }
}

}  // namespace
}  // namespace tangram
