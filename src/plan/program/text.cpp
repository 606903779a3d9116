// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/text.hpp"

#include <fmt/format.h>

#include <set>
#include <string_view>

namespace tangram {

namespace {

constexpr size_t kMostShown = 4;  // of the copies of an operation

std::string name_of(Memory where, int region) {
  static constexpr const char* kNames[] = {"nothing", "arena", "work", "stored", "returned",  "q",
                                           "k",       "v",     "out",  "dout",   "dq",        "dk",
                                           "dv",      "lse",   "sink", "dsink",  "max_logits"};
  static_assert(std::size(kNames) == kNumMemories);
  return region >= 0 ? fmt::format("r{}", region) : kNames[static_cast<size_t>(where)];
}

std::string text_of(const TensorRef& ref) {
  std::string text =
      fmt::format("{}[{}, {})", name_of(ref.memory, ref.region), ref.first_row, ref.first_row + ref.rows);
  if (ref.first_head > 0) text += fmt::format(" heads [{}, {})", ref.first_head, ref.first_head + ref.heads);
  return text;
}
std::string text_of(const FloatRef& ref) {
  const std::string name = name_of(ref.memory, ref.region);
  return ref.offset == 0 ? name : fmt::format("{} from value {}", name, ref.offset);
}

std::string text_of(const RowListsRef& ref) {
  return ref.lists < 0 ? "" : fmt::format(" by lists {} from {}", ref.lists, ref.first);
}

/// At most kMostShown of them.
template <class Item, class Text>
std::string list_of(const std::vector<Item>& items, const Text& text) {
  std::string result;
  for (size_t i = 0; i < items.size() && i < kMostShown; ++i) {
    if (i > 0) result += ", ";
    result += text(items[i]);
  }
  if (items.size() > kMostShown) result += fmt::format(", and {} more", items.size() - kMostShown);
  return result;
}

/// `word` stands between the rows and the ranks.
std::string traffic_of(const std::vector<RowCopy>& rows, std::string_view word) {
  int64_t count = 0;
  std::set<int> peers;
  for (const RowCopy& copy : rows) {
    count += copy.rows.size();
    peers.insert(copy.peer);
  }
  return fmt::format("{} rows {} {} rank(s)", count, word, peers.size());
}

std::string text_of(const GroupCast& cast) {
  std::string text = list_of(cast.items, [&](const GroupCastTensor& item) {
    return fmt::format("{} {} {}", text_of(item.source),
                       cast.by_lse ? "by lse +>"
                       : cast.adds ? "+>"
                                   : "->",
                       text_of(item.target));
  });
  const GroupCastTensor& first = cast.items.front();
  const auto& out = cast.adds ? first.exchange->recvs : first.exchange->sends;
  const auto& in = cast.adds ? first.exchange->sends : first.exchange->recvs;
  text += fmt::format("; sends {}, receives {}", traffic_of(out, "to"), traffic_of(in, "of"));
  if (cast.credited) text += "; once they have given";
  return text;
}

std::string text_of_sum(const RowSumOp& sum) {
  const std::string source = sum.source.memory == Memory::kNone ? "zeros" : text_of(sum.source);
  const std::string addend = sum.addend.memory == Memory::kNone ? "" : " + " + text_of(sum.addend);
  return fmt::format("{}{}{} -> {}", source, addend, text_of(sum.addend_rows), text_of(sum.result));
}

struct Describe {
  const Program& program;

  std::string operator()(const RowSumsOp& op) const { return "copy       " + list_of(op.sums, text_of_sum); }
  std::string operator()(const FloatCopiesOp& op) const {
    return "floats     " + list_of(op.copies, [](const FloatCopyOp& copy) {
             const std::string from =
                 copy.from.memory == Memory::kNone ? fmt::format("{}", copy.value) : text_of(copy.from);
             return fmt::format("{} -> {} ({} x {})", from, text_of(copy.to), copy.rows, copy.columns);
           });
  }
  std::string operator()(const ZeroOp& op) const { return "zero       " + text_of(op.tensor); }
  std::string operator()(const GroupCastOp& op) const {
    const GroupCast& cast = program.casts[static_cast<size_t>(op.cast)];
    if (cast.items.empty()) return fmt::format("group_cast {}: nothing", op.cast);
    return fmt::format("group_cast {} ({} {}): {}", op.cast, cast.items.front().label, cast.step, text_of(cast));
  }
  std::string operator()(const WaitOp& op) const { return fmt::format("wait       {}", op.cast); }
  std::string operator()(const WaitSendOp& op) const { return fmt::format("wait_send  {}", op.cast); }
  std::string operator()(const ReleaseCreditOp& op) const { return fmt::format("release    {}", op.cast); }
  std::string operator()(const AttendOp& op) const {
    std::string text =
        fmt::format("attend     step {}, mask {}: {} to {} -> ", op.step, op.mask, text_of(op.q), text_of(op.k));
    if (op.backward) {
      text += fmt::format("{}, {}, {}", text_of(op.dq), text_of(op.dk), text_of(op.dv));
    } else {
      text += fmt::format("{}, {}", text_of(op.out), text_of(op.lse));
    }
    if (op.accumulate) text += op.backward ? "; adds to dq" : "; adds to out and lse";
    if (op.accumulate_kv) text += "; adds to dk and dv";
    if (op.sink.memory != Memory::kNone) text += "; with the sink";
    if (op.beside_transfers) text += "; beside transfers";
    if (op.k_local.memory != Memory::kNone) {
      text += fmt::format("; own keys also from {}", text_of(op.k_local));
    }
    if (!op.ready_flags.empty()) {
      text += "; waits for casts " + list_of(op.ready_flags, [](int number) { return fmt::format("{}", number); });
    }
    if (!op.stores.empty()) text += "; stores " + list_of(op.stores, text_of_sum);
    return text;
  }
  std::string operator()(const DeltaOp& op) const {
    return fmt::format("delta      {} * {} -> {}", text_of(op.out), text_of(op.dout), text_of(op.delta));
  }
  std::string operator()(const MergeOp& op) const {
    std::string text = "merge      ";
    if (op.other_out.memory != Memory::kNone)
      text += fmt::format("{}, {}{} ", text_of(op.other_out), text_of(op.other_lse), text_of(op.other_rows));
    if (op.sink.memory != Memory::kNone) text += "and the sink ";
    return text + fmt::format("by lse +> {}, {}", text_of(op.out), text_of(op.lse));
  }
  std::string operator()(const SinkGradOp& op) const {
    return fmt::format("dsink      {}, {} -> {}", text_of(op.lse), text_of(op.delta), text_of(op.dsink));
  }
  std::string operator()(const OpenOp& op) const {
    return op.own.empty() ? "open" : "open       and copy " + list_of(op.own, text_of_sum);
  }
  std::string operator()(const FinishOp& op) const {
    std::string text = fmt::format("finish     {}, {} + what came back -> {}, {}", text_of(op.own_k), text_of(op.own_v),
                                   text_of(op.dk), text_of(op.dv));
    const auto rows_of = [](const Range& rows) { return fmt::format("[{}, {})", rows.begin, rows.end); };
    if (!op.left.empty()) text += "; leaves " + list_of(op.left, rows_of);
    return text;
  }
  std::string operator()(const LargestOp& op) const {
    return fmt::format("largest    {} -> {} (of {} x {})", text_of(op.from), text_of(op.to), op.rows, op.columns);
  }
};

}  // namespace

std::string program_text(const Program& program) {
  std::string text;
  for (size_t i = 0; i < program.regions.size(); ++i) {
    const Region& region = program.regions[i];
    const std::string shape =
        fmt::format("{}[{}, {}, {}]", to_string(region.dtype), region.rows, region.heads, region.dim);
    text += fmt::format("  {:<5} {:<6} {:<28} {:>14} bytes{}\n", fmt::format("r{}", i), name_of(region.memory, -1),
                        shape, region.bytes(), static_cast<int>(i) < program.num_kept ? ", may be kept" : "");
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    text += fmt::format("  {:>4}  {}\n", i, std::visit(Describe{program}, program.ops[i]));
  }
  return text;
}

}  // namespace tangram
