// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/clock/grid_time.hpp"

namespace tangram {

namespace {

AttnPass pass_of(bool backward) { return backward ? AttnPass::kBackward : AttnPass::kForward; }

// Rows of the loads: hops of a ring, or what AllGather moves; then the exchanges of heads.
enum RowLoad { kInnerBlock, kOuterBlock, kInnerGrads, kDiagonalGrads, kGatherAll, kScatterAll, kNumRowLoads };

class GridLoads {
 public:
  GridLoads(const GridPass& pass, const Skeleton& skeleton)
      : pass_(pass),
        num_groups_(static_cast<size_t>(pass.shape.row_groups)),
        loads_(empty_loads(skeleton, pass.shape.row_groups, kNumRowLoads + 2 * pass.num_chunks())) {
    loads_.hides = pass.hides;
    loads_.attend_s = pass.attend_s;
    for (size_t c = 0; c < skeleton.casts.size(); ++c) loads_.load_of_cast[c] = load_of(skeleton.casts[c]);
    for (size_t g = 0; g < num_groups_; ++g) {
      if (pass.shape.row_move == RowMove::kRing) set_hops(g);
      set(kGatherAll, g, pass.gather_s);
      set(kScatterAll, g, pass.scatter_s);
      for (size_t c = 0; c < pass.exchanges.size(); ++c) set_exchange(c, g);
    }
  }

  const ClockLoads& loads() const { return loads_; }

 private:
  int load_of(const Skeleton::CastOfStep& cast) const {
    if (cast.exchanges_heads) return kNumRowLoads + 2 * cast.step + (cast.results ? 1 : 0);
    if (pass_.shape.row_move == RowMove::kGather) return cast.results ? kScatterAll : kGatherAll;
    const int inner = pass_.shape.inner_ring_size;
    if (cast.results) return (cast.step + 1) % inner == 0 ? kDiagonalGrads : kInnerGrads;
    return cast.step % inner == 0 ? kOuterBlock : kInnerBlock;
  }

  CastLoad& set(int load, size_t group, double seconds) {
    CastLoad& of = loads_.cast(static_cast<size_t>(load), group);
    of.seconds = seconds;
    return of;
  }

  void set_hop(RowLoad load, size_t group, double seconds, size_t source, const HopSeconds& hop) {
    CastLoad& of = set(load, group, seconds);
    of.source = static_cast<int>(source);
    of.link = hop.between ? 1 : 0;
  }

  void set_hops(size_t g) {
    const RingHops& hops = pass_.hops[g];
    const size_t inner = static_cast<size_t>(pass_.shape.inner_ring_size), outer = num_groups_ / inner;
    const size_t o = g / inner, i = g % inner;
    const size_t before_o = (o + outer - 1) % outer, before_i = (i + inner - 1) % inner;
    set_hop(kInnerBlock, g, hops.inner.block_s, o * inner + before_i, hops.inner);
    set_hop(kOuterBlock, g, hops.outer.block_s, before_o * inner + i, hops.outer);
    set_hop(kInnerGrads, g, hops.inner.grads_s, o * inner + before_i, hops.inner);
    set_hop(kDiagonalGrads, g, hops.diagonal.grads_s, before_o * inner + before_i, hops.diagonal);
  }

  void set_exchange(size_t chunk, size_t group) {
    const ExchangeSeconds& exchange = pass_.exchanges[chunk];
    const int first = kNumRowLoads + 2 * static_cast<int>(chunk);
    set(first, group, exchange.in_s).before_s = exchange.pack_s;
    set(first + 1, group, exchange.back_s).after_s = exchange.unpack_s;
  }

  const GridPass& pass_;
  const size_t num_groups_;
  ClockLoads loads_;
};

}  // namespace

std::vector<RankTime> time_of(const GridPass& pass, ClockTrace* trace) {
  const SharedSkeleton skeleton = grid_skeleton(pass_of(pass.backward), pass.shape, pass.num_chunks());
  return run_clock(*skeleton, GridLoads(pass, *skeleton).loads(), trace);
}

std::vector<RankTime> time_of(const std::vector<std::vector<SubRingSeconds>>& steps, bool backward, bool hides,
                              ClockTrace* trace) {
  const SharedSkeleton skeleton = sub_ring_skeleton(pass_of(backward), static_cast<int>(steps.front().size()));
  const size_t num_casts = skeleton->casts.size();
  ClockLoads loads = empty_loads(*skeleton, static_cast<int>(steps.size()), static_cast<int>(num_casts));
  loads.hides = hides;
  for (size_t c = 0; c < num_casts; ++c) {
    const Skeleton::CastOfStep& cast = skeleton->casts[c];
    const auto step = static_cast<size_t>(cast.step);
    loads.load_of_cast[c] = static_cast<int>(c);
    for (size_t r = 0; r < steps.size(); ++r) {
      loads.cast(c, r).seconds = cast.results ? steps[r][step].grads_s : steps[r][step - 1].next_s;
    }
  }
  for (size_t r = 0; r < steps.size(); ++r) {
    for (size_t s = 0; s < steps[r].size(); ++s) loads.attend(s, r) = steps[r][s].attend_s;
  }
  return run_clock(*skeleton, loads, trace);
}

}  // namespace tangram
