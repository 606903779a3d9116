// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/cpu/cpu_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "attn/arguments.hpp"
#include "attn/probability.hpp"
#include "core/host_pool.hpp"
#include "core/require.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace cpu {

void wait_for_turn(const int* progress, int turn) {
  // The tile in front was taken earlier, so some thread works on it; it may need our core to go on.
  for (int spins = 0; __atomic_load_n(progress, __ATOMIC_ACQUIRE) != turn; ++spins) {
    if (spins > 64) std::this_thread::yield();
  }
}

void finish_turn(int* progress, int turn) { __atomic_store_n(progress, turn + 1, __ATOMIC_RELEASE); }

}  // namespace cpu

namespace {

using cpu::LaneTile;
using cpu::TileIndex;

// Scratch of the threads of one call: masks keep none.
class Scratch {
 public:
  Scratch(int num_threads, size_t bytes)
      : stride_((bytes + 63) / 64 * 64), memory_(static_cast<size_t>(num_threads) * stride_) {}
  void* of_thread(int thread_idx) const { return memory_.data() + static_cast<size_t>(thread_idx) * stride_; }

 private:
  size_t stride_;
  HostBuffer memory_;
};

// What the backward pass needs beside the forward pass; made when it is first called.
struct BackwardIndex {
  BackwardIndex(std::span<const AttnSlice> slices, const AttnShape& shape)
      : tiles(cpu::transposed(slices), shape.seqlen_k) {
    num_grid_rows = (shape.seqlen_q + cpu::kQueryGrid - 1) / cpu::kQueryGrid;
    std::vector<int> next_turn(static_cast<size_t>(num_grid_rows), 0);
    for (const LaneTile& tile : tiles.tiles()) {
      turn_begin.push_back(turns.size());
      // The blocks that StepWalker makes: one for each grid row with a visible step.
      int64_t done = -1;
      for (const Range& range : tiles.steps(tile)) {
        const int64_t first = std::max(range.begin / cpu::kQueryGrid, done + 1);
        const int64_t last = (range.end - 1) / cpu::kQueryGrid;
        for (int64_t g = first; g <= last; ++g) turns.push_back(next_turn[static_cast<size_t>(g)]++);
        done = std::max(done, last);
      }
    }
  }

  int64_t memory_bytes() const {
    return static_cast<int64_t>(sizeof(*this) + turns.capacity() * sizeof(int) +
                                turn_begin.capacity() * sizeof(size_t)) +
           tiles.memory_bytes();
  }

  TileIndex tiles;
  int64_t num_grid_rows = 0;
  std::vector<int> turns;  // of each block of each tile, see NOTE [order of dq]
  std::vector<size_t> turn_begin;
};

class CpuMask final : public HostMask {
 public:
  CpuMask(std::span<const AttnSlice> slices_in, const AttnShape& shape_in)
      : slices(slices_in.begin(), slices_in.end()), shape(shape_in), forward(slices_in, shape_in.seqlen_q) {
    order.resize(forward.tiles().size());
    std::iota(order.begin(), order.end(), 0);
    // Longest first, so that the last ones to run are short.
    std::stable_sort(order.begin(), order.end(),
                     [this](size_t a, size_t b) { return forward.tiles()[a].area > forward.tiles()[b].area; });
  }

  int64_t host_bytes() const override {
    return static_cast<int64_t>(sizeof(*this) + slices.capacity() * sizeof(AttnSlice) +
                                order.capacity() * sizeof(size_t)) +
           forward.memory_bytes() + (backward_ == nullptr ? 0 : backward_->memory_bytes());
  }

  const BackwardIndex& backward() {
    if (backward_ == nullptr) backward_ = std::make_unique<BackwardIndex>(slices, shape);
    return *backward_;
  }

  std::vector<AttnSlice> slices;
  AttnShape shape;
  TileIndex forward;
  std::vector<size_t> order;  // of the forward tiles

 private:
  std::unique_ptr<BackwardIndex> backward_;
};

cpu::Tokens tokens(const ConstTensorView& view) {
  return {view.data, view.dtype, view.row_stride, view.head_stride, view.dim};
}

cpu::MutableTokens tokens(const TensorView& view) {
  return {view.data, view.dtype, view.row_stride, view.head_stride, view.dim};
}

HostVector<double> sink_lse_table(const Sink& sink, const AttnShape& shape) {
  const int64_t num_rows = sink.empty() ? 0 : sink.layout == SinkLayout::kSh ? 1 : shape.seqlen_q;
  HostVector<double> table;
  table.reserve(static_cast<size_t>(num_rows * shape.num_heads_q));
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int head = 0; head < shape.num_heads_q; ++head) {
      table.push_back(sink_lse(sink, shape.num_heads_q, row, head));
    }
  }
  return table;
}

// Rows are taken in blocks: for single rows, the shared counter would cost as much as the row itself.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t num_rows, const Body& body) {
  constexpr int64_t kRows = 64;
  pool.parallel_for((num_rows + kRows - 1) / kRows, [&](int64_t block, int thread_idx) {
    const int64_t end = std::min((block + 1) * kRows, num_rows);
    for (int64_t row = block * kRows; row < end; ++row) body(row, thread_idx);
  });
}

// dsink = -p(sink) * delta; kSh sums over rows, in float64 and in row order.
void backward_sink(const AttnBackwardArgs& args, const AttnShape& shape, const float* delta, const float* lse_rest) {
  const Sink& sink = args.sink;
  const int64_t num_heads = shape.num_heads_q;
  const bool shared = sink.layout == SinkLayout::kSh;
  std::vector<double> sums(static_cast<size_t>(shared ? sink.seqlen_sink * num_heads : 0), 0);
  for (int64_t row = 0; row < shape.seqlen_q; ++row) {
    for (int64_t s = 0; s < sink.seqlen_sink; ++s) {
      for (int head = 0; head < num_heads; ++head) {
        const int64_t at = sink_offset(sink, shape.num_heads_q, row, s, head);
        const int64_t row_head = row * num_heads + head;
        const bool has_rest = lse_rest != nullptr && !std::isnan(lse_rest[row_head]);
        const double lse = args.lse[row_head] + (has_rest ? double{lse_rest[row_head]} : 0);
        const double p = std::isinf(lse) && lse < 0 ? 0 : std::exp(sink.data[at] - lse);
        const double gradient = p == 0 ? 0 : -p * delta[row_head];
        if (shared) {
          sums[static_cast<size_t>(at)] += gradient;
        } else {
          args.dsink[at] = static_cast<float>(gradient);
        }
      }
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) args.dsink[i] = static_cast<float>(sums[i]);
}

void fill_zero(const TensorView& view) {
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int head = 0; head < view.heads; ++head) {
      std::fill_n(static_cast<float*>(view.data) + row * view.row_stride + head * view.head_stride, view.dim, 0.0f);
    }
  }
}

// float32 to a 16-bit view of the same shape.
void convert(const HostTensor& from, const TensorView& to, int64_t row) {
  for (int head = 0; head < to.heads; ++head) {
    const float* source = from.data<float>() + (row * to.heads + head) * to.dim;
    auto* target = static_cast<uint16_t*>(to.data) + row * to.row_stride + head * to.head_stride;
    for (int d = 0; d < to.dim; ++d) {
      target[d] = to.dtype == DType::kBFloat16 ? float_to_bfloat16(source[d]) : float_to_float16(source[d]);
    }
  }
}

bool has_large_lse(const LaneTile& tile, const float* lse, int64_t num_heads, int64_t head) {
  for (int64_t row = tile.rows.begin; row < tile.rows.end; ++row) {
    if (is_large_lse(lse[row * num_heads + head])) return true;
  }
  return false;
}

// BackwardJob::lse_rest and the delta that goes with it.
struct LargeRows {
  HostVector<float> lse_rest;  // empty: no row needs it, as with ordinary inputs
  HostVector<float> delta;     // where lse_rest is a number

  // delta of all rows: `of_out`, which is of a rounded out, where none is known.
  const float* complete_delta(const float* of_out) {
    for (size_t i = 0; i < delta.size(); ++i) {
      if (std::isnan(lse_rest[i])) delta[i] = of_out[i];
    }
    return delta.data();
  }
};

// Computes tiles that have a large lse once more, as the forward pass did, and keeps what that rounded.
LargeRows find_large_rows(const cpu::Kernels& kernels, ThreadPool& pool, const TileIndex& index, const AttnShape& shape,
                          const AttnBackwardArgs& args, const cpu::BackwardJob& job) {
  struct Item {
    size_t tile;
    int head;
  };
  const int num_heads = shape.num_heads_q;
  std::vector<Item> items;
  for (size_t t = 0; t < index.tiles().size(); ++t) {
    for (int head = 0; head < num_heads; ++head) {
      if (has_large_lse(index.tiles()[t], args.lse, num_heads, head)) items.push_back({t, head});
    }
  }
  if (items.empty()) return {};
  const auto size = static_cast<size_t>(shape.seqlen_q * num_heads);
  LargeRows result{HostVector<float>(size, std::numeric_limits<float>::quiet_NaN()), HostVector<float>(size)};
  HostVector<double> lse(size);
  const HostVector<double> sinks = sink_lse_table(args.sink, shape);
  const cpu::ExactRows exact{job.dout, job.dout.dtype == DType::kFloat32, lse.data(), result.delta.data()};
  cpu::ForwardJob forward{};
  forward.q = job.q;
  forward.k = job.k;
  forward.v = job.v;
  forward.sink_lse = sinks.empty() ? nullptr : sinks.data();
  forward.sink_per_row = args.sink.layout == SinkLayout::kSsh;
  forward.num_heads_q = num_heads;
  forward.group = job.group;
  forward.scale = job.scale;
  forward.softcap = job.softcap;
  forward.exact = &exact;
  const Scratch scratch(pool.num_threads(), kernels.forward_scratch_bytes(forward));
  pool.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t item, int thread_idx) {
    const auto [tile, head] = items[static_cast<size_t>(item)];
    kernels.forward_tile(forward, index, index.tiles()[tile], head, scratch.of_thread(thread_idx));
  });
  for (const auto [tile, head] : items) {
    const Range rows = index.tiles()[tile].rows;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const auto at = static_cast<size_t>(row * num_heads + head);
      result.lse_rest[at] = static_cast<float>(lse_rest(args.lse[at], lse[at]));
    }
  }
  return result;
}

struct Isa {
  const cpu::Kernels* kernels;
  bool available;
};

std::vector<Isa> all_isas() {
  std::vector<Isa> result;
#if defined(TANGRAM_CPU_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
#if defined(TANGRAM_CPU_AVX512)
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  result.push_back({&cpu::kAvx512Bf16Kernels, avx512 && __builtin_cpu_supports("avx512bf16") != 0});
  result.push_back({&cpu::kAvx512Kernels, avx512});
#endif
  result.push_back({&cpu::kAvx2Kernels, avx2});
#endif
  result.push_back({&cpu::kBaselineKernels, true});
  return result;
}

const cpu::Kernels& find_kernels(std::string isa) {
  if (isa.empty()) isa = Env::get().cpu_isa;
  std::string names;
  for (const Isa& entry : all_isas()) {
    if (!entry.available) continue;
    if (isa.empty() || isa == entry.kernels->name) return *entry.kernels;
    names += names.empty() ? entry.kernels->name : fmt::format(", {}", entry.kernels->name);
  }
  require(false, "CpuBackend: isa must be one that this machine has: {} (got '{}')", names, isa);
  return cpu::kBaselineKernels;
}

}  // namespace

std::vector<std::string> CpuBackend::available_isas() {
  std::vector<std::string> names;
  for (const Isa& entry : all_isas()) {
    if (entry.available) names.emplace_back(entry.kernels->name);
  }
  return names;
}

CpuBackend::CpuBackend(int num_threads, const std::string& isa) : kernels_(find_kernels(isa)), pool_(num_threads) {}

std::unique_ptr<HostMask> CpuBackend::prepare(std::span<const AttnSlice> slices, const AttnShape& shape) const {
  validate_mask("CpuBackend::build", slices, shape);
  return std::make_unique<CpuMask>(slices, shape);
}

void CpuBackend::index_backward(HostMask& mask) const { dynamic_cast<CpuMask&>(mask).backward(); }

void CpuBackend::forward_of(HostMask& mask, const AttnForwardArgs& args) const {
  const auto& prepared = dynamic_cast<CpuMask&>(mask);
  const AttnShape& shape = prepared.shape;
  validate_forward("CpuBackend::forward", shape, args);
  const HostVector<double> sinks = sink_lse_table(args.sink, shape);
  cpu::ForwardJob job{};
  job.q = tokens(args.q);
  job.k = tokens(args.k);
  job.v = tokens(args.v);
  job.out = tokens(args.out);
  job.lse = args.lse;
  job.sink_lse = sinks.empty() ? nullptr : sinks.data();
  job.sink_per_row = args.sink.layout == SinkLayout::kSsh;
  job.accumulate = args.accumulate;
  job.num_heads_q = shape.num_heads_q;
  job.group = shape.num_heads_q / shape.num_heads_kv;
  job.scale = softmax_scale_of(args.options, shape);
  job.softcap = args.options.softcap;

  const Scratch scratch(pool_.num_threads(), kernels_.forward_scratch_bytes(job));
  const std::span<const LaneTile> tiles = prepared.forward.tiles();
  const int64_t num_heads = shape.num_heads_q;
  HostVector<float> raw_max(tiles.size() * static_cast<size_t>(num_heads));
  pool_.parallel_for(static_cast<int64_t>(raw_max.size()), [&](int64_t item, int thread_idx) {
    const LaneTile& tile = tiles[prepared.order[static_cast<size_t>(item / num_heads)]];
    raw_max[static_cast<size_t>(item)] = kernels_.forward_tile(
        job, prepared.forward, tile, static_cast<int>(item % num_heads), scratch.of_thread(thread_idx));
  });
  if (args.max_logits == nullptr) return;
  for (int64_t head = 0; head < num_heads; ++head) {
    float max = -std::numeric_limits<float>::infinity();
    for (size_t t = 0; t < tiles.size(); ++t) {
      max = std::max(max, raw_max[t * static_cast<size_t>(num_heads) + static_cast<size_t>(head)]);
    }
    max *= job.scale;
    args.max_logits[head] = args.accumulate ? std::max(max, args.max_logits[head]) : max;
  }
}

void CpuBackend::backward_of(HostMask& mask, const AttnBackwardArgs& args) const {
  auto& prepared = dynamic_cast<CpuMask&>(mask);
  const AttnShape& shape = prepared.shape;
  validate_backward("CpuBackend::backward", shape, args);
  const BackwardIndex& index = prepared.backward();
  const int64_t num_heads = shape.num_heads_q;

  HostVector<float> own_delta(args.delta == nullptr ? static_cast<size_t>(shape.seqlen_q * num_heads) : 0);
  HostTensor dq_sum;  // when dq itself is too coarse to add to
  if (args.dq.dtype != DType::kFloat32) {
    dq_sum = HostTensor(DType::kFloat32, shape.seqlen_q, shape.num_heads_q, shape.head_dim);
  }
  const TensorView dq = args.dq.dtype == DType::kFloat32 ? args.dq : dq_sum.view();
  HostVector<int> progress(static_cast<size_t>(index.num_grid_rows * num_heads), 0);
  cpu::BackwardJob job{};
  job.q = tokens(args.q);
  job.k = tokens(args.k);
  job.v = tokens(args.v);
  job.dout = tokens(args.dout);
  job.lse = args.lse;
  job.delta = args.delta == nullptr ? own_delta.data() : args.delta;
  job.dq = tokens(dq);
  job.dk = tokens(args.dk);
  job.dv = tokens(args.dv);
  job.accumulate_dkv = args.accumulate_dkv;
  job.num_heads_q = shape.num_heads_q;
  job.group = shape.num_heads_q / shape.num_heads_kv;
  job.scale = softmax_scale_of(args.options, shape);
  job.softcap = args.options.softcap;
  job.progress = progress.data();
  job.num_grid_rows = index.num_grid_rows;

  const Scratch scratch(pool_.num_threads(), kernels_.backward_scratch_bytes(job));
  const cpu::Tokens out = tokens(args.out);
  for_rows(pool_, shape.seqlen_q, [&](int64_t row, int thread_idx) {
    if (args.delta == nullptr) {
      kernels_.row_delta(job, out, row, own_delta.data() + row * num_heads, scratch.of_thread(thread_idx));
    }
    if (!args.accumulate_dq) fill_zero(slice_rows(dq, {row, row + 1}));
  });
  LargeRows large = find_large_rows(kernels_, pool_, prepared.forward, shape, args, job);
  if (!large.lse_rest.empty()) {
    job.lse_rest = large.lse_rest.data();
    job.delta = large.complete_delta(job.delta);
  }
  if (args.dsink != nullptr) backward_sink(args, shape, job.delta, job.lse_rest);

  const std::span<const LaneTile> tiles = index.tiles.tiles();
  const int64_t num_kv_heads = shape.num_heads_kv;
  // Heads inside, tiles outside: neighbours in the schedule share no dq, so that they rarely wait for each other.
  pool_.parallel_for(static_cast<int64_t>(tiles.size()) * num_kv_heads, [&](int64_t item, int thread_idx) {
    const auto t = static_cast<size_t>(item / num_kv_heads);
    kernels_.backward_tile(job, index.tiles, tiles[t], static_cast<int>(item % num_kv_heads),
                           index.turns.data() + index.turn_begin[t], scratch.of_thread(thread_idx));
  });
  if (args.dq.dtype != DType::kFloat32) {
    for_rows(pool_, shape.seqlen_q, [&](int64_t row, int) { convert(dq_sum, args.dq, row); });
  }
}

}  // namespace tangram
