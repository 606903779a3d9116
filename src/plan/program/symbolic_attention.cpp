// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/symbolic_attention.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tangram/head_masks.hpp"

namespace tangram {

namespace {

/// dv would be dk if nothing told them apart.
const Element kOfDv = Element(7);

/// Sums, for heads of queries and of keys of elements over the intervals that slices show.
struct Sums {
  int64_t rows, keys;
  int heads_q, heads_kv;
  std::span<const AttnSlice> slices;

  int group() const { return heads_q / heads_kv; }

  /// [rows, heads_q] from [keys, heads_kv].
  std::vector<Element> over_keys(const std::vector<Element>& of_keys) const {
    std::vector<Element> result(static_cast<size_t>(rows * heads_q));
    const std::vector<Element> before = prefix(of_keys, keys, heads_kv);
    for (const AttnSlice& slice : slices) {
      for (int64_t i = slice.q_range.begin; i < slice.q_range.end; ++i) {
        const Range seen = slice.keys_of(i);
        if (seen.begin >= seen.end) continue;
        for (int h = 0; h < heads_q; ++h) {
          const auto sum = [&](int64_t end) { return before[static_cast<size_t>(end * heads_kv + h / group())]; };
          result[static_cast<size_t>(i * heads_q + h)] += sum(seen.end) - sum(seen.begin);
        }
      }
    }
    return result;
  }

  /// [keys, heads_kv] from [rows, heads_q]: over all query heads of a K/V head.
  std::vector<Element> over_queries(const std::vector<Element>& of_queries) const {
    std::vector<Element> grouped(static_cast<size_t>(rows * heads_kv));
    for_each_cell(rows, heads_q, [&](int64_t i, int h) {
      grouped[static_cast<size_t>(i * heads_kv + h / group())] += of_queries[static_cast<size_t>(i * heads_q + h)];
    });
    const std::vector<Element> before = prefix(grouped, rows, heads_kv);
    std::vector<Element> result(static_cast<size_t>(keys * heads_kv));
    for (const AttnSlice& slice : slices) {
      for (int64_t j = slice.k_range.begin; j < slice.k_range.end; ++j) {
        const Range seeing = slice.queries_of(j);
        if (seeing.begin >= seeing.end) continue;
        for (int g = 0; g < heads_kv; ++g) {
          const auto sum = [&](int64_t end) { return before[static_cast<size_t>(end * heads_kv + g)]; };
          result[static_cast<size_t>(j * heads_kv + g)] += sum(seeing.end) - sum(seeing.begin);
        }
      }
    }
    return result;
  }

 private:
  static std::vector<Element> prefix(const std::vector<Element>& values, int64_t rows, int heads) {
    std::vector<Element> sums(static_cast<size_t>((rows + 1) * heads));
    for (size_t i = 0; i < values.size(); ++i) sums[i + static_cast<size_t>(heads)] = sums[i] + values[i];
    return sums;
  }
};

/// [rows, heads] as attention reads them.
template <class Product>
std::vector<Element> elements(int64_t rows, int heads, const Product& product) {
  std::vector<Element> result;
  result.reserve(static_cast<size_t>(rows * heads));
  for_each_cell(rows, heads, [&](int64_t row, int head) { result.push_back(product(row, head)); });
  return result;
}

void require_shape(const char* name, const TensorRef& ref, int64_t rows, int heads, int dim) {
  if (ref.rows == rows && ref.heads == heads && ref.dim == dim) return;
  throw ProgramFault{
      fmt::format("{} must be [{}, {}, {}] (got [{}, {}, {}])", name, rows, heads, dim, ref.rows, ref.heads, ref.dim)};
}

/// A call takes sinks, and gives their gradients, as `[rows or one, sinks, heads]` from where the reference begins.
FloatRef contiguous(const FloatRef& ref, int heads) { return {ref.memory, ref.offset, heads, ref.region}; }

/// Sinks of the rows and heads of a tensor: `[rows or one, sinks, heads]`, `stride` values from one sink to the next.
struct Sinks {
  SymbolicMemory& memory;
  const CallShape& call;
  FloatRef ref;

  bool are_of_rows() const { return call.sink_layout == SinkLayout::kSsh; }
  int64_t place(int64_t row, int64_t sink) const { return are_of_rows() ? row * call.seqlen_sink + sink : sink; }
  Element one(int64_t row, int64_t sink, int head) const { return memory.read(ref, place(row, sink), head); }
  Element sum(int64_t row, int head) const {
    Element sum;
    for (int64_t s = 0; ref.memory != Memory::kNone && s < call.seqlen_sink; ++s) sum += one(row, s, head);
    return sum;
  }
  /// `shares`, `[rows, heads]`: lse times delta.
  void write_gradients(const FloatRef& dsink, int64_t rows, int heads, const std::vector<Element>& shares) const {
    if (ref.memory == Memory::kNone) throw ProgramFault{"writes dsink without a sink"};
    for (int64_t s = 0; s < call.seqlen_sink; ++s) {
      for (int h = 0; h < heads; ++h) {
        Element sum;
        for (int64_t i = 0; i < rows; ++i) {
          const Element share = shares[static_cast<size_t>(i * heads + h)];
          sum += share;
          if (are_of_rows()) memory.write(dsink, place(i, s), h, one(i, s, h) * share);
        }
        if (!are_of_rows()) memory.write(dsink, s, h, one(0, s, h) * sum);
      }
    }
  }
};

struct Call {
  SymbolicMemory& memory;
  const AttendOp& op;
  const CallShape& call;
  Sums sums;
  std::span<const LocalKvRange> local_ranges;
  int64_t border;

  std::vector<char> keys_seen() const {
    std::vector<char> seen(static_cast<size_t>(sums.keys));
    for (const AttnSlice& slice : sums.slices) {
      const Range keys = canonical(slice).k_range;
      std::fill(seen.begin() + keys.begin, seen.begin() + keys.end, 1);
    }
    return seen;
  }
  /// Keys that no slice shows may hold anything: zero.
  std::vector<Element> pairs() const {
    const std::vector<char> seen = keys_seen();
    return elements(sums.keys, sums.heads_kv,
                    [&](int64_t j, int g) { return seen[static_cast<size_t>(j)] == 0 ? Element() : pair(j, g); });
  }
  /// The place of a key tile decides from which of two tensors it is read. Own keys near the end of a range must be in
  /// both; others may be in the shard alone.
  Element pair(int64_t j, int g) const {
    for (const LocalKvRange& local_range : local_ranges) {
      if (j < local_range.keys.begin || j >= local_range.keys.end) continue;
      const int64_t row = local_range.row + j - local_range.keys.begin;
      const Element own = memory.read(op.k_local, row, g) * memory.read(op.v_local, row, g);
      const bool is_border = j < local_range.keys.begin + border || j >= local_range.keys.end - border;
      if (is_border && own != memory.read(op.k, j, g) * memory.read(op.v, j, g)) {
        throw ProgramFault{"finds other keys in the buffer than in the shard"};
      }
      return own;
    }
    return memory.read(op.k, j, g) * memory.read(op.v, j, g);
  }
  Element sink(int64_t row, int head) const {
    return Sinks{memory, call, contiguous(op.sink, sums.heads_q)}.sum(row, head);
  }
  void forward() const {
    const std::vector<Element> seen = sums.over_keys(pairs());
    for_each_cell(sums.rows, sums.heads_q, [&](int64_t i, int h) {
      Element value = memory.read(op.q, i, h) * seen[static_cast<size_t>(i * sums.heads_q + h)] + sink(i, h);
      if (op.accumulate) {
        const Element before = memory.read(op.out, i, h);
        if (memory.read(op.lse, i, h) != before) throw ProgramFault{"adds to out and lse of different calls"};
        value += before;
      }
      memory.write(op.out, i, h, value);
      memory.write(op.lse, i, h, value);
    });
    for (int h = 0; op.max_logits.memory != Memory::kNone && h < sums.heads_q; ++h) {
      Element logits = op.accumulate ? memory.read(op.max_logits, 0, h) : Element();
      for (int64_t i = 0; i < sums.rows; ++i) {
        logits += memory.read(op.q, i, h) * seen[static_cast<size_t>(i * sums.heads_q + h)];
      }
      memory.write(op.max_logits, 0, h, logits);
    }
  }

  void backward() const {
    const std::vector<Element> kv = pairs(), seen = sums.over_keys(kv);
    const std::vector<Element> shares =
        elements(sums.rows, sums.heads_q, [&](int64_t i, int h) { return memory.read(op.lse, i, h) * delta(i, h); });
    const std::vector<Element> weights = elements(sums.rows, sums.heads_q, [&](int64_t i, int h) {
      return memory.read(op.q, i, h) * memory.read(op.dout, i, h) * shares[static_cast<size_t>(i * sums.heads_q + h)];
    });
    for_each_cell(sums.rows, sums.heads_q, [&](int64_t i, int h) {
      const auto at = static_cast<size_t>(i * sums.heads_q + h);
      Element value = weights[at] * seen[at];
      if (op.accumulate) value += memory.read(op.dq, i, h);
      memory.write(op.dq, i, h, value);
    });
    const std::vector<Element> seeing = sums.over_queries(weights);
    const std::vector<char> is_seen = keys_seen();
    for_each_cell(sums.keys, sums.heads_kv, [&](int64_t j, int g) {
      if (op.accumulate_kv && is_seen[static_cast<size_t>(j)] == 0) return;
      const auto at = static_cast<size_t>(j * sums.heads_kv + g);
      Element dk = kv[at] * seeing[at], dv = dk * kOfDv;
      if (op.accumulate_kv) {
        dk += memory.read(op.dk, j, g);
        dv += memory.read(op.dv, j, g);
      }
      memory.write(op.dk, j, g, dk);
      memory.write(op.dv, j, g, dv);
    });
    if (op.dsink.memory == Memory::kNone) return;
    Sinks{memory, call, contiguous(op.sink, sums.heads_q)}.write_gradients(contiguous(op.dsink, sums.heads_q),
                                                                           sums.rows, sums.heads_q, shares);
  }
  Element delta(int64_t row, int head) const {
    if (op.delta.memory != Memory::kNone) return memory.read(op.delta, row, head);
    return memory.read(op.out, row, head) * memory.read(op.dout, row, head);
  }
};

void require_rows_of(const char* name, const TensorRef& ref, const TensorRef& like, int dim) {
  require_shape(name, ref, like.rows, like.heads, dim);
}

Element of_both(const SymbolicMemory& memory, const TensorRef& out, const TensorRef& lse, int64_t row, int head) {
  const Element value = memory.read(out, row, head);
  if (memory.read(lse, row, head) != value) throw ProgramFault{"merges out and lse of different calls"};
  return value;
}

}  // namespace

void attend(SymbolicMemory& memory, const AttendOp& op, const ProgramMask& mask, const CallShape& call) {
  const AttnShape& shape = mask.shape;
  require_shape("q", op.q, shape.seqlen_q, shape.num_heads_q, shape.head_dim);
  require_shape("k", op.k, shape.seqlen_k, shape.num_heads_kv, shape.head_dim);
  require_shape("v", op.v, shape.seqlen_k, shape.num_heads_kv, shape.head_dim_v);
  if (op.delta.memory == Memory::kNone) {
    require_shape("out", op.out, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  }
  const Call symbolic{
      memory,
      op,
      call,
      {shape.seqlen_q, shape.seqlen_k, shape.num_heads_q, shape.num_heads_kv, mask.slices},
      op.k_local.memory == Memory::kNone ? std::span<const LocalKvRange>{} : std::span(mask.local_ranges),
      mask.local_kv_halo};
  if (!op.backward) return symbolic.forward();
  require_shape("dout", op.dout, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v);
  require_shape("dq", op.dq, shape.seqlen_q, shape.num_heads_q, shape.head_dim);
  require_shape("dk", op.dk, shape.seqlen_k, shape.num_heads_kv, shape.head_dim);
  require_shape("dv", op.dv, shape.seqlen_k, shape.num_heads_kv, shape.head_dim_v);
  symbolic.backward();
}

void make_delta(SymbolicMemory& memory, const DeltaOp& op) {
  require_rows_of("dout", op.dout, op.out, op.out.dim);
  require_rows_of("delta", op.delta, op.out, 1);
  for_each_cell(op.out.rows, op.out.heads, [&](int64_t row, int head) {
    memory.write(op.delta, row, head, memory.read(op.out, row, head) * memory.read(op.dout, row, head));
  });
}

void merge(SymbolicMemory& memory, const MergeOp& op, const CallShape& call) {
  const bool has_others = op.other_out.memory != Memory::kNone, by_lists = op.other_rows.lists >= 0;
  require_rows_of("lse", op.lse, op.out, 1);
  if (has_others) {
    const int64_t rows = by_lists ? op.other_out.rows : op.out.rows;
    require_shape("the others' out", op.other_out, rows, op.out.heads, op.out.dim);
    require_shape("the others' lse", op.other_lse, rows, op.out.heads, 1);
  }
  const Sinks sinks{memory, call, op.sink};
  for_each_cell(op.out.rows, op.out.heads, [&](int64_t row, int head) {
    Element value = of_both(memory, op.out, op.lse, row, head) + sinks.sum(row, head);
    if (has_others && !by_lists) value += of_both(memory, op.other_out, op.other_lse, row, head);
    if (has_others && by_lists) {
      for (const int32_t from : memory.rows_of(op.other_rows, row)) {
        value += of_both(memory, op.other_out, op.other_lse, from, head);
      }
    }
    memory.write(op.out, row, head, value);
    memory.write(op.lse, row, head, value);
  });
}

void make_dsink(SymbolicMemory& memory, const SinkGradOp& op, const CallShape& call) {
  require_rows_of("lse", op.lse, op.lse, 1);
  require_rows_of("delta", op.delta, op.lse, 1);
  Sinks{memory, call, op.sink}.write_gradients(
      op.dsink, op.lse.rows, op.lse.heads, elements(op.lse.rows, op.lse.heads, [&](int64_t row, int head) {
        return memory.read(op.lse, row, head) * memory.read(op.delta, row, head);
      }));
}

Element sink_element(const CallShape& call, int64_t row, int64_t sink, int head) {
  const int64_t of_row = call.sink_layout == SinkLayout::kSsh ? row + 1 : 0;
  return Element::of(Memory::kSink, of_row * call.seqlen_sink + sink, head);
}

Element sum_of_sinks(const CallShape& call, int64_t row, int head) {
  Element sum;
  for (int64_t s = 0; s < call.seqlen_sink; ++s) sum += sink_element(call, row, s, head);
  return sum;
}

ExpectedResults::ExpectedResults(const Plan& plan, const CallShape& call)
    : heads_(plan.config.heads),
      groups_(static_cast<int>(num_head_masks(plan))),
      q_rows_(plan.q_dispatch.seqlen()),
      k_rows_(plan.k_dispatch.seqlen()),
      call_(call) {
  const Sums sums{plan.mask.seqlen_q(), plan.mask.seqlen_k(), heads_.num_heads_q / groups_,
                  heads_.num_heads_kv / groups_, plan.mask.slices()};
  keys_ = sums.over_keys(elements(sums.keys, sums.heads_kv, [&](int64_t j, int g) {
    const int64_t row = j % k_rows_, head = j / k_rows_ * sums.heads_kv + g;
    return Element::of(Memory::kK, row, head) * Element::of(Memory::kV, row, head);
  }));
  weights_ = elements(sums.rows, sums.heads_q, [&](int64_t i, int h) {
    const int64_t row = i % q_rows_;
    const int head = static_cast<int>(i / q_rows_) * sums.heads_q + h;
    return Element::of(Memory::kQ, row, head) * Element::of(Memory::kDout, row, head) * share(row, head);
  });
  queries_ = sums.over_queries(weights_);
}

Element ExpectedResults::out(int64_t row, int head) const {
  return Element::of(Memory::kQ, row, head) * keys_[at_q(row, head)] + sum_of_sinks(call_, row, head);
}
Element ExpectedResults::share(int64_t row, int head) const {
  return out(row, head) * out(row, head) * Element::of(Memory::kDout, row, head);
}
Element ExpectedResults::dq(int64_t row, int head) const { return weights_[at_q(row, head)] * keys_[at_q(row, head)]; }
Element ExpectedResults::dk(int64_t row, int head) const {
  return Element::of(Memory::kK, row, head) * Element::of(Memory::kV, row, head) * queries_[at_k(row, head)];
}
Element ExpectedResults::dv(int64_t row, int head) const { return dk(row, head) * kOfDv; }
Element ExpectedResults::dsink(int64_t row, int64_t sink, int head) const {
  if (call_.sink_layout == SinkLayout::kSsh) return sink_element(call_, row, sink, head) * share(row, head);
  Element sum;
  for (int64_t each = 0; each < q_rows_; ++each) sum += share(each, head);
  return sink_element(call_, row, sink, head) * sum;
}
Element ExpectedResults::max_logits(int head) const {
  Element sum;
  for (int64_t row = 0; row < q_rows_; ++row) sum += Element::of(Memory::kQ, row, head) * keys_[at_q(row, head)];
  return sum;
}

}  // namespace tangram
