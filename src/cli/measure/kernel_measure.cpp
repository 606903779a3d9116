// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/kernel_measure.hpp"

#include <algorithm>
#include <ctime>
#include <random>
#include <vector>

#include "cli/machine.hpp"
#include "tangram/backends.hpp"

namespace tangram::cli {

namespace {

constexpr int kNumHeads = 2;
// Granularity at which the CPU kernels skip fully masked parts: a vector of lanes by eight steps.
constexpr KernelModel kTiles{.tile_rows = 16, .tile_cols = 8, .item_rows = 128};

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

KernelMeasurement measure_kernels(DType dtype, const HeadDims& dims, int64_t max_rows, int num_repeats,
                                  const std::function<void()>& barrier) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  const HeadConfig heads{kNumHeads, kNumHeads, dims.head_dim, dims.head_dim_v, dtype};
  const SampleRows sizes{max_rows, std::max<int64_t>(128, max_rows / 8), max_rows / 4};
  std::vector<TimedCalls> calls;
  for (std::vector<AttnSlice>& slices : sample_masks(sizes)) {
    const AttnShape shape = shape_of_call(slices, heads);
    const HostTensor q = random_tensor(dtype, shape.seqlen_q, dims.head_dim, 1);
    const HostTensor k = random_tensor(dtype, shape.seqlen_k, dims.head_dim, 2);
    const HostTensor v = random_tensor(dtype, shape.seqlen_k, dims.head_dim_v, 3);
    const HostTensor dout = random_tensor(dtype, shape.seqlen_q, dims.head_dim_v, 4);
    HostTensor out = dout.clone(), dq = q.clone(), dk = k.clone(), dv = v.clone();
    std::vector<float> lse(static_cast<size_t>(shape.seqlen_q * kNumHeads));
    const auto mask = make_mask_slot(*backend, slices, shape);
    const AttnForwardArgs forward{.q = q, .k = k, .v = v, .out = out, .lse = lse.data()};
    const AttnBackwardArgs backward{
        .q = q, .k = k, .v = v, .out = out, .lse = lse.data(), .dout = dout, .dq = dq, .dk = dk, .dv = dv};
    barrier();
    const double forward_s = fastest_seconds(num_repeats, [&] { backend->forward(*mask, forward); });
    const double backward_s = fastest_seconds(num_repeats, [&] { backend->backward(*mask, backward); });
    calls.push_back({std::move(slices), forward_s, backward_s});
  }
  return fit_entry({"cpu", probe_cpu().name, dtype, dims.head_dim, dims.head_dim_v, 1, "measured", kTiles, kTiles},
                   calls, kNumHeads);
}

}  // namespace tangram::cli
