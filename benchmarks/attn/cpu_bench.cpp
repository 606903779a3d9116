// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Times the CPU backend and prints CSV: one line for each mask, size and pass, median of several runs. Fields as
// cpu_vs_torch.py reads them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "attn/cpu/cpu_backend.hpp"
#include "core/median.hpp"
#include "tangram/mask.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

struct Case {
  std::string mask;
  int64_t seqlen;
  int heads;
  int dim;
  DType dtype;
};

std::vector<AttnSlice> slices_of(const std::string& mask, int64_t n) {
  if (mask == "full") return {AttnSlice::full({0, n}, {0, n})};
  if (mask == "causal") return {AttnSlice::causal({0, n}, {0, n})};
  if (mask == "window") return {{{0, n}, {0, n}, -512, 0}};
  if (mask == "block_causal") {
    std::vector<AttnSlice> slices;
    for (int64_t b = 0; b < n; b += 512) slices.push_back(AttnSlice::full({b, b + 512}, {0, b + 512}));
    return slices;
  }
  // Packed documents of 64 to 1,024 rows, causal or full.
  std::vector<AttnSlice> slices;
  std::mt19937 rng(1);
  for (int64_t begin = 0; begin < n;) {
    const int64_t end = std::min(n, begin + std::uniform_int_distribution<int64_t>(64, 1024)(rng));
    const Range rows{begin, end};
    slices.push_back(mask == "docs_causal" ? AttnSlice::causal(rows, rows) : AttnSlice::full(rows, rows));
    begin = end;
  }
  return slices;
}

HostTensor random_tensor(DType dtype, int64_t rows, int heads, int dim, unsigned seed) {
  HostTensor tensor(DType::kFloat32, rows, heads, dim);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = normal(rng);
  return tensor.to(dtype);
}

/// Wall-clock and processor time of one call; the latter, over all threads, is what a busy machine leaves comparable.
struct Time {
  double ms;
  double cpu_ms;
};

template <class Function>
Time median_time(int num_runs, Function&& function) {
  std::vector<double> wall, cpu;
  function();
  for (int i = 0; i < num_runs; ++i) {
    const std::clock_t cpu_begin = std::clock();
    const auto begin = std::chrono::steady_clock::now();
    function();
    wall.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    cpu.push_back(1e3 * static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC);
  }
  return {median(wall), median(cpu)};
}

void measure(const CpuBackend& backend, const Case& c, int num_runs) {
  const AttnShape shape{c.seqlen, c.seqlen, c.heads, c.heads, c.dim, c.dim, c.dtype};
  const std::vector<AttnSlice> slices = slices_of(c.mask, c.seqlen);
  const auto mask = make_mask_slot(backend, slices, shape);
  const HostTensor q = random_tensor(c.dtype, c.seqlen, c.heads, c.dim, 1);
  const HostTensor k = random_tensor(c.dtype, c.seqlen, c.heads, c.dim, 2);
  const HostTensor v = random_tensor(c.dtype, c.seqlen, c.heads, c.dim, 3);
  const HostTensor dout = random_tensor(c.dtype, c.seqlen, c.heads, c.dim, 4);
  HostTensor out(c.dtype, c.seqlen, c.heads, c.dim), dq = out.clone(), dk = out.clone(), dv = out.clone();
  std::vector<float> lse(static_cast<size_t>(c.seqlen * c.heads));
  AttnForwardArgs forward;
  forward.q = q, forward.k = k, forward.v = v, forward.out = out, forward.lse = lse.data();
  AttnBackwardArgs backward;
  backward.q = q, backward.k = k, backward.v = v, backward.out = out, backward.dout = dout;
  backward.lse = lse.data(), backward.dq = dq, backward.dk = dk, backward.dv = dv;
  int64_t cells = 0;
  for (const AttnSlice& slice : slices) cells += area(slice);
  const double flops = 4.0 * static_cast<double>(cells) * c.heads * c.dim;
  const Time forward_time = median_time(num_runs, [&] { backend.forward(*mask, forward, nullptr); });
  const Time backward_time = median_time(num_runs, [&] { backend.backward(*mask, backward, nullptr); });
  const auto print = [&](const char* pass, const Time& time, double pass_flops) {
    fmt::print("tangram,{},{},{},{},{},{},{},{},{},{:.4f},{:.4f},{:.2f}\n", backend.isa(), backend.num_threads(),
               c.mask, to_string(c.dtype), c.seqlen, c.heads, c.dim, pass, cells, time.ms, time.cpu_ms,
               pass_flops / time.ms * 1e-6);
  };
  print("forward", forward_time, flops);
  print("backward", backward_time, 2.5 * flops);
}

}  // namespace
}  // namespace tangram

// attn_cpu_bench [threads [runs [mask,.. [seqlen,.. [dim,.. [dtype,..]]]]]]
int main(int argc, char** argv) {
  const auto list = [&](int i, const char* fallback) {
    std::vector<std::string> items(1);
    for (const char* at = argc > i ? argv[i] : fallback; *at != '\0'; ++at) {
      if (*at == ',') {
        items.emplace_back();
      } else {
        items.back() += *at;
      }
    }
    return items;
  };
  const tangram::CpuBackend backend(argc > 1 ? std::atoi(argv[1]) : 0);
  const int num_runs = argc > 2 ? std::atoi(argv[2]) : 5;
  fmt::print("library,isa,threads,mask,dtype,seqlen,heads,head_dim,pass,area,ms,cpu_ms,gflops\n");
  for (const std::string& dtype : list(6, "float32")) {
    for (const std::string& dim : list(5, "64,128")) {
      for (const std::string& seqlen : list(4, "2048,4096")) {
        for (const std::string& mask : list(3, "full,causal,window,docs_causal,docs_full,block_causal")) {
          tangram::measure(backend,
                           {mask, std::atoll(seqlen.c_str()), 8, std::atoi(dim.c_str()), tangram::parse_dtype(dtype)},
                           num_runs);
        }
      }
    }
  }
}
