// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Fits the constants of kernels (KernelModel) to CSV of benchmarks/attn/sm90_vs_cudnn.py, or those of links (LinkModel)
// to rates of benchmarks/comm/link_bench.cu:
//
//   fit_kernels docs/results/data/sm90_h200.csv 64 8 128             # heads_q, heads_kv, head_dim: rows to take
//   fit_kernels docs/results/data/links_h200.csv one_way_gb_s        # column
//
// What it prints of the committed tables is what include/tangram/machine.hpp has: tests/machine/h200_test.cpp.
#include <fmt/format.h>

#include <cstdlib>
#include <exception>

#include "machine/measured_kernels.hpp"

namespace {

using namespace tangram;

void fit_pass(const char* path, const test::KernelRows& rows, const KernelModel& tiles) {
  const auto samples = test::read_kernel_samples(path, rows, tiles);
  const KernelFit fit = fit_kernel(tiles, samples, rows.flops(), h200::kMultiprocessors);
  const KernelModel& model = fit.model;
  fmt::print("{}: flops_per_s {:.4g}, masked_tile_cost {:.3g}, item_s {:.3g}, call_s {:.3g}, tail {:.3g}; ", rows.pass,
             model.flops_per_s, model.masked_tile_cost, model.item_s, model.call_s, model.tail);
  fmt::print("{} cells, off by {:.1f} % (root mean square), {:.1f} % at most\n", samples.size(), 100 * fit.rms_error,
             100 * fit.max_error);
}

void fit_links(const char* path, const char* column) {
  const LinkFit fit = fit_link(test::read_link_samples(path, column));
  fmt::print("bytes_per_s {:.3g}, latency_s {:.3g}; off by {:.1f} % (root mean square)\n", fit.link.bytes_per_s,
             fit.link.latency_s, 100 * fit.rms_error);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3) {
      fit_links(argv[1], argv[2]);
    } else if (argc == 5) {
      const int heads_q = std::atoi(argv[2]), heads_kv = std::atoi(argv[3]), head_dim = std::atoi(argv[4]);
      fit_pass(argv[1], {"forward", heads_q, heads_kv, head_dim}, h200::kForward);
      fit_pass(argv[1], {"backward", heads_q, heads_kv, head_dim}, h200::kBackward);
    } else {
      fmt::print(stderr, "usage: fit_kernels CSV HEADS_Q HEADS_KV HEAD_DIM, or fit_kernels CSV COLUMN\n");
      return 2;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "fit_kernels: {}\n", error.what());
    return 1;
  }
  return 0;
}
