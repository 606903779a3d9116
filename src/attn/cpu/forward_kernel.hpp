// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward pass of one tile: queries in lanes. S^T = K Q^T and O^T = V^T P^T are products of broadcast K or V elements
// with vectors over queries. So neither K nor V is transposed, row maxima and sums need no shuffles, and a mask is a
// bit per lane. Online softmax after Milakov and Gimelshein (2018) and FlashAttention (Dao et al., 2022).
#pragma once

#include "attn/cpu/microkernel.hpp"
#include "attn/cpu/segments.hpp"

namespace tangram::cpu::TANGRAM_ISA {

inline constexpr float kLog2E = 1.44269504088896f;
/// Lazy rescaling: the reference of the exponentials follows the row maximum only if that grew by more than this (in
/// powers of two). It is exact, because everything is relative to one reference.
inline constexpr float kRescaleThreshold = 8;
inline constexpr int kNumPanels = kTileLanes / kPanel;
inline constexpr int kLineFloats = 16;  // of a cache line

/// Elements of a row of `dim`: the inner size of products along it.
template <class Element>
TANGRAM_INLINE int inner_dim(int dim) {
  return (dim + Element::kWidth - 1) / Element::kWidth;
}

/// Floats between rows of V in scratch, which a product reads down its columns. A power of two would map all of them to
/// few sets of the L1 cache.
TANGRAM_INLINE int64_t v_stride(int dim_v) { return dim_v + kLineFloats; }

struct ForwardScratch {
  float* q_t;        // [panels, inner_dim, kPanel]
  float* out_t;      // [panels, head_dim_v, kPanel]
  float* k;          // [kMaxSteps, inner_dim]
  float* v;          // [kMaxSteps, v_stride] elements of two steps if bfloat16 pairs
  float* scores;     // [kMaxSteps, kPanel], then probabilities
  float* pairs;      // [kMaxSteps / 2, kPanel], probabilities as bfloat16 pairs
  float* rows;       // [kPanel, max(head_dim, head_dim_v)], also padded
  float* reference;  // [kTileLanes], of the exponentials: a score as `scores` holds it, not scaled yet
  float* sum;        // [kTileLanes]

  static size_t size(const ForwardJob& job) {
    const size_t dims = static_cast<size_t>(job.q.dim) + static_cast<size_t>(job.v.dim);
    return dims * (kTileLanes + kMaxSteps + kPanel) + 2 * kMaxSteps * static_cast<size_t>(kPanel) + 2 * kTileLanes +
           kMaxSteps * kLineFloats;
  }
  ForwardScratch(const ForwardJob& job, void* memory) {
    auto* at = static_cast<float*>(memory);
    const auto take = [&at](int64_t n) {
      float* result = at;
      at += n;
      return result;
    };
    const int64_t d = job.q.dim, dv = job.v.dim;
    reference = take(kTileLanes);
    sum = take(kTileLanes);
    scores = take(kMaxSteps * kPanel);
    pairs = take(kMaxSteps / 2 * kPanel);
    q_t = take(d * kTileLanes);
    out_t = take(dv * kTileLanes);
    k = take(kMaxSteps * d);
    v = take(kMaxSteps * v_stride(job.v.dim));
    rows = take(kPanel * (d > dv ? d : dv));
  }
};

/// Replaces masked scores, and NaN of poisoned lanes with them.
TANGRAM_INLINE void hide_masked(const StepBlock& block, int panel, const Segment& segment, float* scores) {
  for (int s = segment.begin; s < segment.end; ++s) {
    const uint64_t bits = panel_bits(block, panel, s);
    for (int v = segment.vec_begin; v < segment.vec_end; ++v) {
      float* at = scores + s * kPanel + v * kLanes;
      store(at, select_bits(bits >> (v * kLanes), load(at), splat(kMinusInf)));
    }
  }
}

/// cap * tanh(x / cap), in place; `factor` = scale / cap.
TANGRAM_INLINE void cap_scores(const Segment& segment, float* scores, float factor, float cap) {
  for (int s = segment.begin; s < segment.end; ++s) {
    for (int v = segment.vec_begin; v < segment.vec_end; ++v) {
      float* at = scores + s * kPanel + v * kLanes;
      const Vec raw = load(at);
      store(at, raw == kMinusInf ? raw : cap * tanh_vec(raw * factor));
    }
  }
}

TANGRAM_INLINE Vec max_of_steps(const Segment& segment, const float* scores, int v) {
  Vec a = splat(kMinusInf), b = a;
  int s = segment.begin;
  for (; s + 2 <= segment.end; s += 2) {
    a = vmax(load(scores + s * kPanel + v * kLanes), a);
    b = vmax(load(scores + (s + 1) * kPanel + v * kLanes), b);
  }
  if (s < segment.end) a = vmax(load(scores + s * kPanel + v * kLanes), a);
  return vmax(a, b);
}

/// exp(x - top), the difference taken in float64: both may be large.
TANGRAM_INLINE float exp_below(double x, double top) { return __builtin_expf(static_cast<float>(x - top)); }

TANGRAM_INLINE float dot(const float* values, const Tokens& tokens, int64_t row, int head) {
  const auto* bytes = static_cast<const char*>(row_of(tokens, row, head));
  double sum = 0;
  for (int d = 0; d < tokens.dim; ++d) {
    float other;
    load_row(&other, bytes + d * (tokens.dtype == DType::kFloat32 ? 4 : 2), tokens.dtype, 1);
    sum += double{values[d]} * other;
  }
  return static_cast<float>(sum);
}

/// One panel of one tile over its blocks.
template <class Element>
struct ForwardPanel {
  const ForwardJob& job;
  const ForwardScratch& scratch;
  int panel;
  int num_lanes;
  RowPrefetch& prefetch;
  Vec raw_max[kVecs];  // largest visible q.k, before softcap

  float* q_t() const { return scratch.q_t + int64_t{panel} * kPanel * inner_dim<Element>(job.q.dim); }
  float* out_t() const { return scratch.out_t + int64_t{panel} * kPanel * job.v.dim; }
  float* reference() const { return scratch.reference + panel * kPanel; }
  float* sum() const { return scratch.sum + panel * kPanel; }

  /// Moves the reference of vector `v` up to what the block brings, if that is far above it.
  void raise_reference(int v, Vec block_max, float to_log2) const {
    float* at = reference() + v * kLanes;
    const Vec old_reference = load(at);
    const Vec wanted = vmax(block_max, old_reference);
    // A lane that saw nothing so far has -inf: growth is then inf, or NaN (which is not above) if it still sees
    // nothing.
    if (!any_above((wanted - old_reference) * to_log2, kRescaleThreshold)) return;
    const Vec factor = old_reference == kMinusInf ? Vec{} : exp2_vec((old_reference - wanted) * to_log2);
    store(at, wanted);
    store(sum() + v * kLanes, load(sum() + v * kLanes) * factor);
    for (int d = 0; d < job.v.dim; ++d) {
      float* out = out_t() + d * kPanel + v * kLanes;
      store(out, load(out) * factor);
    }
  }

  /// scores -> exponentials, and their sums. The reference is subtracted before scaling. So scores near it keep all
  /// their digits, and the largest score of a row is exactly 0 away from it, however large scores are.
  void exponentials(const Segment& segment, float to_log2) const {
    float* scores = scratch.scores;
    for (int v = segment.vec_begin; v < segment.vec_end; ++v) {
      const Vec base = load(reference() + v * kLanes);
      const Vec offset = base == kMinusInf ? Vec{} : base;
      Vec total = load(sum() + v * kLanes);
      const auto probability = [&](int step) {
        const Vec p = exp2_vec((load(scores + step * kPanel + v * kLanes) - offset) * to_log2);
        total += p;
        return p;
      };
      if constexpr (Element::kWidth == 1) {
        for (int s = segment.begin; s < segment.end; ++s) store(scores + s * kPanel + v * kLanes, probability(s));
      } else {
        for (int s = segment.begin; s < segment.end; s += 2) {
          const Vec low = probability(s);
          const Vec high = s + 1 < segment.end ? probability(s + 1) : Vec{};
          store(scratch.pairs + s / 2 * kPanel + v * kLanes, Element::pair_up(low, high));
        }
      }
      store(sum() + v * kLanes, total);
    }
  }

  void add_block(const StepBlock& block) {
    Segment segments[kMaxSteps / kStepGroup];
    const int num_segments = find_segments(block, panel, num_lanes, segments);
    const bool capped = job.softcap > 0;
    const float to_log2 = (capped ? 1.0f : job.scale) * kLog2E;
    Vec block_max[kVecs];
    for (Vec& max : block_max) max = splat(kMinusInf);
    float* scores = scratch.scores;
    const int inner = inner_dim<Element>(job.q.dim);
    for (int n = 0; n < num_segments; ++n) {
      const Segment& g = segments[n];
      const int first = g.vec_begin * kLanes;
      product<Element, AOrder::kInnerContiguous>(
          {g.end - g.begin, inner, scratch.k + int64_t{g.begin} * inner, inner, q_t() + first, kPanel,
           scores + g.begin * kPanel + first, kPanel, false, &prefetch},
          g.vec_end - g.vec_begin);
      if (!block.full) hide_masked(block, panel, g, scores);
      for (int v = g.vec_begin; v < g.vec_end; ++v) {
        const Vec max = max_of_steps(g, scores, v);
        raw_max[v] = vmax(max, raw_max[v]);
        block_max[v] = vmax(max, block_max[v]);
      }
      if (capped) cap_scores(g, scores, job.scale / job.softcap, job.softcap);
    }
    for (int v = 0; v < kVecs; ++v) {
      if (capped) {
        const Vec max = block_max[v];
        block_max[v] = max == kMinusInf ? max : job.softcap * tanh_vec(max * (job.scale / job.softcap));
      }
      raise_reference(v, block_max[v], to_log2);
    }
    for (int n = 0; n < num_segments; ++n) {
      const Segment& g = segments[n];
      const int first = g.vec_begin * kLanes;
      exponentials(g, to_log2);
      const int step = g.begin / Element::kWidth;  // segments begin at multiples of kStepGroup
      const float* probabilities = Element::kWidth == 1 ? scores : scratch.pairs;
      product<Element, AOrder::kRowsContiguous>(
          {job.v.dim, inner_dim<Element>(g.end - g.begin), scratch.v + step * v_stride(job.v.dim), v_stride(job.v.dim),
           probabilities + step * kPanel + first, kPanel, out_t() + first, kPanel, true, &prefetch},
          g.vec_end - g.vec_begin);
    }
  }

  /// Normalises, merges with what is there and with the sink, and writes the panel's rows.
  void finish(int64_t first_row, int head) {
    const int dim_v = job.v.dim;
    transpose(scratch.rows, dim_v, out_t(), kPanel, dim_v, kPanel);
    for (int l = 0; l < num_lanes; ++l) {
      const int64_t row = first_row + l, at = row * job.num_heads_q + head;
      const float lane_sum = sum()[l];
      const double scale = job.softcap > 0 ? 1.0 : double{job.scale};  // of what the reference is
      // In float64, since float32 would round large scores twice more.
      double seen = lane_sum == 0 ? kMinusInf : reference()[l] * scale + __builtin_logf(lane_sum);
      const float before = job.accumulate ? job.lse[at] : kMinusInf;
      if (before != kMinusInf) seen = static_cast<float>(seen);  // rounded alike, equal parts have equal shares
      const double sink =
          job.sink_lse == nullptr ? kMinusInf : job.sink_lse[(job.sink_per_row ? row : 0) * job.num_heads_q + head];
      double total = seen;
      float share = 1, share_before = 0;  // share: of what this call saw, in the total
      if (before != kMinusInf || sink != kMinusInf) {
        double top = seen;
        if (before > top) top = before;
        if (sink > top) top = sink;
        const float of_seen = exp_below(seen, top), of_before = exp_below(before, top);
        const float sum_of_all = of_seen + of_before + exp_below(sink, top);
        // Shares by this sum and not by lse, which rounding may have left at `top`.
        total = top + __builtin_logf(sum_of_all);
        share = of_seen / sum_of_all;
        share_before = of_before / sum_of_all;
      }
      float* values = scratch.rows + int64_t{l} * dim_v;
      if (lane_sum == 0) {
        for (int d = 0; d < dim_v; ++d) values[d] = 0;
      } else {
        const float factor = share / lane_sum;
        for (int d = 0; d < dim_v; ++d) values[d] *= factor;
      }
      if (job.exact != nullptr) {
        job.exact->lse[at] = total;
        job.exact->delta[at] = dot(values, job.exact->dout, row, head);
        continue;
      }
      void* out = mutable_row_of(job.out, row, head);
      if (before != kMinusInf) {
        const auto* old_out = static_cast<const float*>(out);
        for (int d = 0; d < dim_v; ++d) values[d] += share_before * old_out[d];
      }
      job.lse[at] = static_cast<float>(total);
      store_row(out, job.out.dtype, values, dim_v);
    }
  }
};

/// A row as the inner side of a product reads it.
template <class Element>
TANGRAM_INLINE void load_inner_row(float* to, const Tokens& from, int64_t row, int head) {
  if constexpr (Element::kWidth == 1) {
    load_row(to, row_of(from, row, head), from.dtype, from.dim);
  } else {
    copy_16bit_row(to, row_of(from, row, head), from.dim);
  }
}

template <class Element>
static void load_queries(const ForwardJob& job, const LaneTile& tile, int head, const ForwardScratch& scratch) {
  const int num_rows = static_cast<int>(tile.rows.end - tile.rows.begin);
  const int inner = inner_dim<Element>(job.q.dim);
  for (int panel = 0; panel * kPanel < num_rows; ++panel) {
    const int num_lanes = min_of(kPanel, num_rows - panel * kPanel);
    for (int l = 0; l < kPanel; ++l) {
      float* row = scratch.rows + int64_t{l} * inner;
      if (l < num_lanes) {
        load_inner_row<Element>(row, job.q, tile.rows.begin + panel * kPanel + l, head);
      } else {
        for (int d = 0; d < inner; ++d) row[d] = 0;
      }
    }
    transpose(scratch.q_t + int64_t{panel} * kPanel * inner, kPanel, scratch.rows, inner, kPanel, inner);
  }
}

/// The keys and values of a block; steps beyond its end that a pair takes in become zero.
template <class Element>
static void load_block(const ForwardJob& job, const StepBlock& block, int kv_head, const ForwardScratch& scratch) {
  const int inner = inner_dim<Element>(job.k.dim);
  for (int s = 0; s < block.num_steps; ++s) {
    load_inner_row<Element>(scratch.k + int64_t{s} * inner, job.k, block.rows[s], kv_head);
  }
  for (int s = 0; s < block.num_steps; s += Element::kWidth) {
    float* to = scratch.v + s / Element::kWidth * v_stride(job.v.dim);
    const void* row = row_of(job.v, block.rows[s], kv_head);
    if constexpr (Element::kWidth == 1) {
      load_row(to, row, job.v.dtype, job.v.dim);
    } else {
      const bool has_second = s + 1 < block.num_steps;
      interleave_rows(to, row, has_second ? row_of(job.v, block.rows[s + 1], kv_head) : nullptr, job.v.dim);
    }
  }
}

static size_t forward_scratch_bytes(const ForwardJob& job) { return ForwardScratch::size(job) * sizeof(float); }

template <class Element>
static float forward_tile_as(const ForwardJob& job, const TileIndex& index, const LaneTile& tile, int head,
                             void* memory) {
  const ForwardScratch scratch(job, memory);
  const int num_rows = static_cast<int>(tile.rows.end - tile.rows.begin);
  const int kv_head = head / job.group;
  load_queries<Element>(job, tile, head, scratch);
  for (int l = 0; l < kTileLanes; ++l) scratch.reference[l] = kMinusInf;
  for (int l = 0; l < kTileLanes; ++l) scratch.sum[l] = 0;
  for (int64_t n = 0; n < int64_t{kTileLanes} * job.v.dim; ++n) scratch.out_t[n] = 0;

  float tile_max = kMinusInf;
  Vec raw_max[kNumPanels][kVecs];
  for (auto& of_panel : raw_max) {
    for (Vec& max : of_panel) max = splat(kMinusInf);
  }
  StepWalker walker(index, tile, kMaxSteps, 0);
  StepBlock blocks[2];
  RowPrefetch prefetch;
  bool has_block = walker.next(blocks[0]);
  for (int n = 0; has_block; n ^= 1) {
    const StepBlock& block = blocks[n];
    load_block<Element>(job, block, kv_head, scratch);
    prefetch.clear();
    has_block = walker.next(blocks[n ^ 1]);
    if (has_block) {
      prefetch.add(job.k, kv_head, blocks[n ^ 1]);
      prefetch.add(job.v, kv_head, blocks[n ^ 1]);
    }
    for (int panel = 0; panel * kPanel < num_rows; ++panel) {
      ForwardPanel<Element> state{job, scratch, panel, min_of(kPanel, num_rows - panel * kPanel), prefetch, {}};
      for (int v = 0; v < kVecs; ++v) state.raw_max[v] = raw_max[panel][v];
      state.add_block(block);
      for (int v = 0; v < kVecs; ++v) raw_max[panel][v] = state.raw_max[v];
    }
  }
  for (int panel = 0; panel * kPanel < num_rows; ++panel) {
    ForwardPanel<Element> state{job, scratch, panel, min_of(kPanel, num_rows - panel * kPanel), prefetch, {}};
    state.finish(tile.rows.begin + panel * kPanel, head);
    for (int l = 0; l < state.num_lanes; ++l) {
      const float lane = raw_max[panel][l / kLanes][l % kLanes];
      tile_max = lane > tile_max ? lane : tile_max;
    }
  }
  return tile_max;
}

static float forward_tile(const ForwardJob& job, const TileIndex& index, const LaneTile& tile, int head, void* memory) {
#if defined(__AVX512BF16__)
  const bool as_float32 = job.exact != nullptr && job.exact->as_float32;
  if (job.q.dtype == DType::kBFloat16 && !as_float32) {
    return forward_tile_as<BFloat16Pair>(job, index, tile, head, memory);
  }
#endif
  return forward_tile_as<Float32>(job, index, tile, head, memory);
}

}  // namespace tangram::cpu::TANGRAM_ISA
