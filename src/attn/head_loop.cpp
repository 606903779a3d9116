// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/head_loop.hpp"

#include <type_traits>

#include "core/require.hpp"

namespace tangram {
namespace {

/// The query or the K/V heads of a group.
struct Heads {
  int first, count;
};

template <typename View>
View heads_of(const View& view, const Heads& heads) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  View part = view;
  if (view.data == nullptr) return part;
  part.heads = heads.count;
  part.data =
      static_cast<Byte*>(view.data) + heads.first * view.head_stride * static_cast<int64_t>(size_of(view.dtype));
  return part;
}

/// Float32 of which the head is innermost, of `rows` rows and all heads, as calls of one group want it: by itself.
class OfGroup {
 public:
  OfGroup(int64_t rows, int num_heads, const Heads& heads) : rows_(rows), num_heads_(num_heads), heads_(heads) {}

  /// A copy; null of null.
  const float* read(const float* from) {
    if (from == nullptr) return nullptr;
    float* to = write(from);
    for_each([&](size_t at, size_t in_group) { to[in_group] = from[at]; });
    return to;
  }
  /// Room for what store() then copies; null where `to` is.
  float* write(const float* to) {
    if (to == nullptr) return nullptr;
    values_.resize(static_cast<size_t>(rows_ * heads_.count));
    return values_.data();
  }
  void store(float* to) const {
    if (to == nullptr) return;
    for_each([&](size_t at, size_t in_group) { to[at] = values_[in_group]; });
  }

 private:
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int head = 0; head < heads_.count; ++head) {
        visit(static_cast<size_t>(row * num_heads_ + heads_.first + head),
              static_cast<size_t>(row * heads_.count + head));
      }
    }
  }

  int64_t rows_;
  int num_heads_;
  Heads heads_;
  std::vector<float> values_;
};

int64_t sink_rows(const Sink& sink, const AttnShape& shape) {
  return sink.seqlen_sink * (sink.layout == SinkLayout::kSsh ? shape.seqlen_q : 1);
}

template <typename Args>
void check_heads(const AttnShape& shape, const Args& args) {
  require(args.q.heads == shape.num_heads_q && args.k.heads == shape.num_heads_kv && args.v.heads == shape.num_heads_kv,
          "FlexAttention: q, k and v must have {}, {} and {} heads (got {}, {} and {})", shape.num_heads_q,
          shape.num_heads_kv, shape.num_heads_kv, args.q.heads, args.k.heads, args.v.heads);
  require(args.ready_flags == nullptr && args.k_local.data == nullptr && args.v_local.data == nullptr,
          "FlexAttention: with masks of head groups keys must lie in k and v from the start");
}

/// Calls visit(g, query heads, K/V heads).
template <typename Visit>
void for_each_group(const AttnShape& shape, int num_masks, const Visit& visit) {
  const AttnShape one = shape_of_group(shape, num_masks);
  for (int g = 0; g < num_masks; ++g) {
    visit(static_cast<size_t>(g), Heads{g * one.num_heads_q, one.num_heads_q},
          Heads{g * one.num_heads_kv, one.num_heads_kv});
  }
}

}  // namespace

AttnShape shape_of_group(const AttnShape& shape, int num_masks) {
  AttnShape one = shape;
  one.num_heads_q /= num_masks;
  one.num_heads_kv /= num_masks;
  return one;
}

void forward_by_groups(int num_masks, const AttnShape& shape, const AttnForwardArgs& args,
                       const std::function<void(size_t, const AttnForwardArgs&)>& forward) {
  check_heads(shape, args);
  require(args.out.heads == shape.num_heads_q, "FlexAttention: out must have {} heads (got {})", shape.num_heads_q,
          args.out.heads);
  for_each_group(shape, num_masks, [&](size_t g, const Heads& of_q, const Heads& of_kv) {
    OfGroup lse(shape.seqlen_q, shape.num_heads_q, of_q), sink(sink_rows(args.sink, shape), shape.num_heads_q, of_q);
    AttnForwardArgs one = args;
    one.q = heads_of(args.q, of_q);
    one.k = heads_of(args.k, of_kv);
    one.v = heads_of(args.v, of_kv);
    one.out = heads_of(args.out, of_q);
    one.lse = lse.write(args.lse);
    if (args.accumulate) lse.read(args.lse);
    if (args.max_logits != nullptr) one.max_logits = args.max_logits + of_q.first;
    one.sink.data = sink.read(args.sink.data);
    forward(g, one);
    lse.store(args.lse);
  });
}

void backward_by_groups(int num_masks, const AttnShape& shape, const AttnBackwardArgs& args,
                        const std::function<void(size_t, const AttnBackwardArgs&)>& backward) {
  check_heads(shape, args);
  for (const ConstTensorView& of_q : {ConstTensorView(args.dout), ConstTensorView(args.dq)}) {
    require(of_q.heads == shape.num_heads_q, "FlexAttention: dout and dq must have {} heads (got {})",
            shape.num_heads_q, of_q.heads);
  }
  for (const ConstTensorView& of_kv : {ConstTensorView(args.dk), ConstTensorView(args.dv)}) {
    require(of_kv.heads == shape.num_heads_kv, "FlexAttention: dk and dv must have {} heads (got {})",
            shape.num_heads_kv, of_kv.heads);
  }
  require(args.places.of_key == nullptr, "FlexAttention: with masks of head groups gradients must go to dk and dv");
  for_each_group(shape, num_masks, [&](size_t g, const Heads& of_q, const Heads& of_kv) {
    OfGroup lse(shape.seqlen_q, shape.num_heads_q, of_q), delta = lse;
    OfGroup sink(sink_rows(args.sink, shape), shape.num_heads_q, of_q), dsink = sink;
    AttnBackwardArgs one = args;
    one.q = heads_of(args.q, of_q);
    one.k = heads_of(args.k, of_kv);
    one.v = heads_of(args.v, of_kv);
    one.out = heads_of(args.out, of_q);
    one.dout = heads_of(args.dout, of_q);
    one.dq = heads_of(args.dq, of_q);
    one.dk = heads_of(args.dk, of_kv);
    one.dv = heads_of(args.dv, of_kv);
    one.lse = lse.read(args.lse);
    one.delta = delta.read(args.delta);
    one.sink.data = sink.read(args.sink.data);
    one.dsink = dsink.write(args.dsink);
    backward(g, one);
    dsink.store(args.dsink);
  });
}

}  // namespace tangram
