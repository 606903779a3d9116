// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/kernel_measure.hpp"

#include <algorithm>
#include <ctime>
#include <random>
#include <vector>

#include "cli/machine.hpp"
#include "plan/cost.hpp"
#include "tangram/backends.hpp"

namespace tangram::cli {

namespace {

constexpr int kNumHeads = 2;
// Granularity at which the CPU kernels leave out what nobody sees: a vector of lanes by eight steps.
constexpr KernelModel kTiles{.tile_rows = 16, .tile_cols = 8, .item_rows = 128};

// Masks whose calls differ in what the model tells apart: whole tiles, diagonals, many short items.
std::vector<std::vector<AttnSlice>> sample_masks(int64_t rows) {
  std::vector<std::vector<AttnSlice>> masks;
  for (int64_t n = rows; n >= std::max<int64_t>(128, rows / 8); n /= 2) {
    masks.push_back({AttnSlice::full({0, n}, {0, n})});
    masks.push_back({AttnSlice::causal({0, n}, {0, n})});
  }
  masks.push_back({AttnSlice::full({0, rows / 4}, {0, rows})});
  masks.push_back({AttnSlice::full({0, rows}, {0, rows / 4})});
  masks.push_back({{{0, rows}, {0, rows}, -rows / 8, 0}});
  masks.push_back({{{0, rows}, {0, rows}, -rows / 32, 0}});
  std::mt19937 rng(1);
  for (const int64_t longest : {rows / 4, rows / 16}) {
    std::vector<AttnSlice> documents;
    for (int64_t begin = 0; begin < rows;) {
      const int64_t end =
          std::min<int64_t>(rows, begin + 1 + static_cast<int64_t>(rng()) % std::max<int64_t>(1, longest));
      documents.push_back(AttnSlice::causal({begin, end}, {begin, end}));
      begin = end;
    }
    masks.push_back(std::move(documents));
  }
  return masks;
}

HostTensor random_tensor(DType dtype, int64_t rows, int dim, unsigned seed) {
  HostTensor tensor(DType::kFloat32, rows, kNumHeads, dim);
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> uniform(-1.7f, 1.7f);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = uniform(rng);
  return tensor.to(dtype);
}

// Processor time of this thread, which does all the work: others that use the machine do not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Function>
double fastest_seconds(int num_repeats, const Function& function) {
  double fastest = 0;
  for (int i = 0; i <= num_repeats; ++i) {  // one more, to warm up
    const double begin = thread_seconds();
    function();
    const double seconds = thread_seconds() - begin;
    if (i == 1 || (i > 1 && seconds < fastest)) fastest = seconds;
  }
  return fastest;
}

}  // namespace

KernelMeasurement measure_kernels(DType dtype, int head_dim, int64_t max_rows, int num_repeats,
                                  const std::function<void()>& barrier) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  std::vector<KernelSample> forward_samples;
  std::vector<KernelSample> backward_samples;
  for (const std::vector<AttnSlice>& slices : sample_masks(max_rows)) {
    AttnShape shape{0, 0, kNumHeads, kNumHeads, head_dim, head_dim, dtype};
    for (const AttnSlice& slice : slices) {
      shape.seqlen_q = std::max(shape.seqlen_q, slice.q_range.end);
      shape.seqlen_k = std::max(shape.seqlen_k, slice.k_range.end);
    }
    const HostTensor q = random_tensor(dtype, shape.seqlen_q, head_dim, 1);
    const HostTensor k = random_tensor(dtype, shape.seqlen_k, head_dim, 2);
    const HostTensor v = random_tensor(dtype, shape.seqlen_k, head_dim, 3);
    const HostTensor dout = random_tensor(dtype, shape.seqlen_q, head_dim, 4);
    HostTensor out = q.clone(), dq = q.clone(), dk = k.clone(), dv = v.clone();
    std::vector<float> lse(static_cast<size_t>(shape.seqlen_q * kNumHeads));
    const auto mask = backend->prepare(slices, shape, nullptr);
    const AttnForwardArgs forward{.q = q, .k = k, .v = v, .out = out, .lse = lse.data()};
    const AttnBackwardArgs backward{
        .q = q, .k = k, .v = v, .out = out, .lse = lse.data(), .dout = dout, .dq = dq, .dk = dk, .dv = dv};
    const KernelWork work = count_work(slices, kTiles);
    barrier();
    forward_samples.push_back(
        {work, kNumHeads, fastest_seconds(num_repeats, [&] { backend->forward(*mask, forward); })});
    backward_samples.push_back(
        {work, kNumHeads, fastest_seconds(num_repeats, [&] { backend->backward(*mask, backward); })});
  }
  const HeadConfig heads{kNumHeads, kNumHeads, head_dim, head_dim, dtype};
  KernelMeasurement result;
  result.forward = fit_kernel(kTiles, forward_samples, flops_per_head_cell(heads, Pass::kForward), 1);
  result.backward = fit_kernel(kTiles, backward_samples, flops_per_head_cell(heads, Pass::kBackward), 1);
  result.entry = {"cpu", probe_cpu().name, dtype, head_dim, 1, "measured", result.forward.model, result.backward.model};
  return result;
}

}  // namespace tangram::cli
