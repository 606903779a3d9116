// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/verify.hpp"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/require.hpp"
#include "plan/program/symbolic.hpp"
#include "plan/program/symbolic_attention.hpp"
#include "plan/program/symbolic_rank.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

const char* name_of(const Op& op) {
  static constexpr const char* kNames[] = {"row sums", "float copies", "zero",      "group_cast", "wait",
                                           "attend",   "delta",        "merge",     "dsink",      "largest",
                                           "open",     "finish",       "wait_send", "release"};
  return kNames[op.index()];
}

class PlayedPass {
 public:
  PlayedPass(const Plan& plan, const CallShape& call, const StepPrograms& step, bool backward, const PlayedPass* kept)
      : equal_arenas_(step.equal_arenas),
        heads_(plan.config.heads),
        call_(call),
        backward_(backward),
        expected_(plan, call) {
    const std::vector<Program>& programs = backward ? step.backward : step.forward;
    require(std::ssize(programs) == plan.cp_size(), "verify: there must be a program for each of {} ranks (got {})",
            plan.cp_size(), programs.size());
    for (int r = 0; r < plan.cp_size(); ++r) {
      const auto index = static_cast<size_t>(r);
      ranks_.push_back(std::make_unique<SymbolicRank>(plan, r, programs[index], program_masks(plan, r, step.target),
                                                      kept == nullptr ? nullptr : &kept->ranks_[index]->memory));
      ranks_.back()->waits_end_sends = step.target.sends_from_anywhere;
      at_fault_ = r;
      guard("before its operations", [&] { add_arguments(*ranks_.back()); });
    }
  }

  void play() {
    compare_arenas();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      at_fault_ = static_cast<int>(r);
      guard("before its operations", [&] { expect_rows(*ranks_[r]); });
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        at_fault_ = static_cast<int>(r);
        while (ranks_[r]->next < ranks_[r]->program.ops.size() && step(*ranks_[r])) moved = true;
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      at_fault_ = static_cast<int>(r);
      check_end(*ranks_[r]);
    }
    check_results();
  }

 private:
  template <class Action>
  void guard(const std::string& where, const Action& action) const {
    try {
      action();
    } catch (const ProgramFault& fault) {
      throw InvalidArgument(fmt::format("verify: a program must be free of faults (got {} pass, rank {}, {}: {})",
                                        backward_ ? "backward" : "forward", at_fault_, where, fault.text));
    }
  }

  void fill(SymbolicRank& rank, Memory where, const std::vector<int64_t>& rows, int heads, bool read_only,
            const std::function<Element(int64_t, int)>& value) const {
    rank.memory.add_argument(where, std::ssize(rows), heads, read_only);
    Cells& cells = rank.memory.argument(where);
    for (size_t i = 0; i < rows.size() && value; ++i) {
      for (int h = 0; h < heads; ++h) {
        cells.cells[i * static_cast<size_t>(heads) + static_cast<size_t>(h)] = {value(rows[i], h), true};
      }
    }
  }

  void add_arguments(SymbolicRank& rank) const {
    const int q = heads_.num_heads_q, kv = heads_.num_heads_kv;
    const auto own = [](Memory where) {
      return [where](int64_t row, int head) { return Element::of(where, row, head); };
    };
    fill(rank, Memory::kQ, rank.q_rows, q, true, own(Memory::kQ));
    fill(rank, Memory::kK, rank.k_rows, kv, true, own(Memory::kK));
    fill(rank, Memory::kV, rank.k_rows, kv, true, own(Memory::kV));
    add_sinks(rank, Memory::kSink, true);
    if (!backward_) {
      fill(rank, Memory::kOut, rank.q_rows, q, false, nullptr);
      fill(rank, Memory::kLse, rank.q_rows, q, false, nullptr);
      rank.memory.add_argument(Memory::kMaxLogits, 1, q, false);
      return;
    }
    const auto out = [this](int64_t row, int head) { return expected_.out(row, head); };
    fill(rank, Memory::kOut, rank.q_rows, q, true, out);
    fill(rank, Memory::kLse, rank.q_rows, q, true, out);
    fill(rank, Memory::kDout, rank.q_rows, q, true, own(Memory::kDout));
    fill(rank, Memory::kDq, rank.q_rows, q, false, nullptr);
    fill(rank, Memory::kDk, rank.k_rows, kv, false, nullptr);
    fill(rank, Memory::kDv, rank.k_rows, kv, false, nullptr);
    add_sinks(rank, Memory::kDsink, false);
  }

  bool sinks_of_rows() const { return call_.sink_layout == SinkLayout::kSsh; }

  void add_sinks(SymbolicRank& rank, Memory where, bool given) const {
    const int q = heads_.num_heads_q;
    const int64_t rows = sinks_of_rows() ? std::ssize(rank.q_rows) : 1;
    rank.memory.add_argument(where, rows, call_.seqlen_sink * q, given);
    if (!given) return;
    Cells& cells = rank.memory.argument(where);
    for (size_t at = 0; at < cells.cells.size(); ++at) {
      const int64_t row = static_cast<int64_t>(at) / cells.columns, column = static_cast<int64_t>(at) % cells.columns;
      const int64_t global = sinks_of_rows() ? rank.q_rows[static_cast<size_t>(row)] : 0;
      cells.cells[at] = {sink_element(call_, global, column / q, static_cast<int>(column % q)), true};
    }
  }

  /// Regions of the arena, and where the tensors of each cast lie in it, are alike on all ranks.
  void compare_arenas() const {
    const auto arena_of = [this](const Program& program) {
      std::vector<int64_t> bytes;
      for (const Region& region : program.regions) {
        if (region.memory == Memory::kArena) bytes.push_back(equal_arenas_ ? region.bytes() : 0);
      }
      return bytes;
    };
    const auto place_of = [](const Program& program, const TensorRef& ref) {
      int64_t number = 0;
      for (int i = 0; i < ref.region && i < std::ssize(program.regions); ++i) {
        if (program.regions[static_cast<size_t>(i)].memory == Memory::kArena) ++number;
      }
      return std::pair(number, ref.first_row);
    };
    const auto order_of = [](const Program& program) {
      std::vector<int> stages;
      for (const Op& op : program.ops) {
        if (const auto* cast = std::get_if<GroupCastOp>(&op)) stages.push_back(cast->cast);
      }
      return stages;
    };
    const Program& first = ranks_.front()->program;
    for (const auto& rank : ranks_) {
      const Program& other = rank->program;
      require(order_of(other) == order_of(first),
              "verify: casts must come in one order on all ranks (got rank {} unlike rank 0)", &rank - ranks_.data());
      require(arena_of(other) == arena_of(first) && other.casts.size() == first.casts.size(),
              "verify: regions of the arena and casts must be alike on all ranks (got rank {} unlike rank 0)",
              &rank - ranks_.data());
      for (size_t c = 0; c < first.casts.size(); ++c) {
        const auto &mine = other.casts[c].items, &items = first.casts[c].items;
        bool alike = mine.size() == items.size();
        for (size_t i = 0; alike && i < items.size(); ++i) {
          alike = place_of(other, mine[i].target) == place_of(first, items[i].target) &&
                  other.casts[c].credited == first.casts[c].credited &&
                  mine[i].target.row_bytes() == items[i].target.row_bytes() &&
                  (mine[i].source.row_bytes() == items[i].target.row_bytes() ||
                   items[i].target.memory == Memory::kReturned);
        }
        require(alike, "verify: casts must be alike on all ranks (got cast {} of rank {} unlike that of rank 0)", c,
                &rank - ranks_.data());
      }
    }
  }

  void expect_rows(SymbolicRank& rank) const {
    for (size_t c = 0; c < rank.program.casts.size(); ++c) {
      for (const GroupCastTensor& item : rank.program.casts[c].items) {
        if (rank.program.casts[c].adds || rank.program.casts[c].credited) continue;
        for (const RowCopy& copy : item.exchange->recvs) {
          rank.memory.expect(item.target, copy.rows, static_cast<int>(c));
        }
      }
    }
  }

  /// The next operation of a rank; false where it has to wait for a peer.
  bool step(SymbolicRank& rank) {
    const Op& op = rank.program.ops[rank.next];
    bool done = true;
    guard(fmt::format("operation {} ({})", rank.next, name_of(op)), [&] {
      if (const auto* sums = std::get_if<RowSumsOp>(&op)) {
        for (const RowSumOp& sum : sums->sums) rank.sum_rows(sum);
      } else if (const auto* copies = std::get_if<FloatCopiesOp>(&op)) {
        for (const FloatCopyOp& copy : copies->copies) rank.copy_floats(copy);
      } else if (const auto* zero = std::get_if<ZeroOp>(&op)) {
        for_each_cell(zero->tensor.rows, zero->tensor.heads,
                      [&](int64_t row, int head) { rank.memory.write(zero->tensor, row, head, Element()); });
      } else if (const auto* cast = std::get_if<GroupCastOp>(&op)) {
        done = rank.has_credit(cast->cast, at_fault_, ranks_);
        if (done) rank.post(cast->cast);
      } else if (const auto* wait = std::get_if<WaitOp>(&op)) {
        done = rank.land(wait->cast, at_fault_, ranks_);
      } else if (const auto* sent = std::get_if<WaitSendOp>(&op)) {
        rank.end_sends(sent->cast);
      } else if (const auto* give = std::get_if<ReleaseCreditOp>(&op)) {
        rank.release_credit(give->cast);
      } else if (const auto* call = std::get_if<AttendOp>(&op)) {
        if (call->mask < 0 || call->mask >= std::ssize(rank.masks)) {
          throw ProgramFault{"computes with a mask that is none"};
        }
        if (call->backward != backward_) throw ProgramFault{"computes another pass"};
        done = rank.land_all(call->ready_flags, at_fault_, ranks_);
        if (!done) return;
        attend(rank.memory, *call, rank.masks[static_cast<size_t>(call->mask)], call_);
        for (const RowSumOp& store : call->stores) rank.sum_rows(store);
      } else if (const auto* delta = std::get_if<DeltaOp>(&op)) {
        make_delta(rank.memory, *delta);
      } else if (const auto* parts = std::get_if<MergeOp>(&op)) {
        merge(rank.memory, *parts, call_);
      } else if (const auto* dsink = std::get_if<SinkGradOp>(&op)) {
        make_dsink(rank.memory, *dsink, call_);
      } else if (const auto* opening = std::get_if<OpenOp>(&op)) {
        for (const RowSumOp& own : opening->own) rank.sum_rows(own);
      } else if (const auto* finish = std::get_if<FinishOp>(&op)) {
        done = rank.land_all(rank.casts_that_return(), at_fault_, ranks_);
        if (done) rank.finish(*finish);
      } else {
        rank.find_largest(std::get<LargestOp>(op));
      }
    });
    if (done) ++rank.next;
    return done;
  }

  void check_end(const SymbolicRank& rank) const {
    guard("at its end", [&] {
      if (rank.next < rank.program.ops.size()) {
        throw ProgramFault{
            fmt::format("operation {} ({}) waits for ever", rank.next, name_of(rank.program.ops[rank.next]))};
      }
      for (size_t cast = 0; cast < rank.posted.size(); ++cast) {
        if (!rank.waited[cast]) throw ProgramFault{fmt::format("cast {} is not waited for", cast)};
      }
    });
  }

  void check(const SymbolicRank& rank, Memory where, const char* name, const std::vector<int64_t>& rows,
             const std::function<Element(int64_t, int)>& value) const {
    const Cells& cells = const_cast<SymbolicRank&>(rank).memory.argument(where);
    guard("at its end", [&] {
      for (size_t at = 0; at < cells.cells.size(); ++at) {
        const auto row = static_cast<int64_t>(at) / cells.columns, column = static_cast<int64_t>(at) % cells.columns;
        const char* const what =
            !cells.cells[at].written ? "is not written"
            : value && cells.cells[at].value != value(rows[static_cast<size_t>(row)], static_cast<int>(column))
                ? "is not the sum of what the mask shows, each cell once"
                : nullptr;
        if (what != nullptr) throw ProgramFault{fmt::format("row {}, column {} of {} {}", row, column, name, what)};
      }
    });
  }

  void check_results() {
    std::vector<Element> max_logits(backward_ ? 0 : static_cast<size_t>(heads_.num_heads_q));
    std::vector<Element> dsink(static_cast<size_t>(call_.seqlen_sink * heads_.num_heads_q));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      at_fault_ = static_cast<int>(r);
      SymbolicRank& rank = *ranks_[r];
      if (!backward_) {
        const auto out = [this](int64_t row, int head) { return expected_.out(row, head); };
        check(rank, Memory::kOut, "out", rank.q_rows, out);
        check(rank, Memory::kLse, "lse", rank.q_rows, out);
        check(rank, Memory::kMaxLogits, "max_logits", {}, nullptr);
        const Cells& cells = rank.memory.argument(Memory::kMaxLogits);
        for (size_t head = 0; head < max_logits.size(); ++head) max_logits[head] += cells.cells[head].value;
        continue;
      }
      check(rank, Memory::kDq, "dq", rank.q_rows, [this](int64_t row, int head) { return expected_.dq(row, head); });
      check(rank, Memory::kDk, "dk", rank.k_rows, [this](int64_t row, int head) { return expected_.dk(row, head); });
      check(rank, Memory::kDv, "dv", rank.k_rows, [this](int64_t row, int head) { return expected_.dv(row, head); });
      if (call_.seqlen_sink == 0 || !call_.wants_dsink) continue;
      if (sinks_of_rows()) {
        const int q = heads_.num_heads_q;
        check(rank, Memory::kDsink, "dsink", rank.q_rows,
              [&](int64_t row, int column) { return expected_.dsink(row, column / q, column % q); });
        continue;
      }
      check(rank, Memory::kDsink, "dsink", {}, nullptr);
      const Cells& cells = rank.memory.argument(Memory::kDsink);
      for (size_t at = 0; at < dsink.size(); ++at) dsink[at] += cells.cells[at].value;
    }
    for (size_t head = 0; head < max_logits.size(); ++head) {
      require(max_logits[head] == expected_.max_logits(static_cast<int>(head)),
              "verify: max_logits of all ranks must be of the cells that the mask shows (got others for head {})",
              head);
    }
    for (size_t at = 0; backward_ && call_.wants_dsink && !sinks_of_rows() && at < dsink.size(); ++at) {
      const auto head = static_cast<int>(static_cast<int64_t>(at) % heads_.num_heads_q);
      require(dsink[at] == expected_.dsink(0, static_cast<int64_t>(at) / heads_.num_heads_q, head),
              "verify: dsink of all ranks must add up to that of the mask (got another one for head {})", head);
    }
  }

  bool equal_arenas_;
  HeadConfig heads_;
  CallShape call_;
  bool backward_;
  ExpectedResults expected_;
  std::vector<std::unique_ptr<SymbolicRank>> ranks_;
  int at_fault_ = 0;
};

}  // namespace

StepPrograms step_programs(const Plan& plan, const CallShape& call, const ProgramTarget& target, bool kept) {
  // The K/V rows of a rank alone land in tensors of their own, as long as they are.
  StepPrograms programs{target, {}, {}, kept, !target.sends_from_anywhere && !moves_kv_alone(plan)};
  CallShape forward = call;
  forward.keeps = kept;
  for (int rank = 0; rank < plan.cp_size(); ++rank) {
    programs.forward.push_back(forward_program(plan, rank, forward, target));
    programs.backward.push_back(backward_program(plan, rank, call, target, kept));
  }
  return programs;
}

void verify(const Plan& plan, const CallShape& call, const StepPrograms& programs) {
  PlayedPass forward(plan, call, programs, false, nullptr);
  forward.play();
  PlayedPass backward(plan, call, programs, true, programs.kept ? &forward : nullptr);
  backward.play();
}

}  // namespace tangram
