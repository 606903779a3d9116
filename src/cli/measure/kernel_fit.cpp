// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/kernel_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "plan/cost.hpp"

namespace tangram::cli {

std::vector<std::vector<AttnSlice>> sample_masks(const SampleRows& sizes) {
  const int64_t rows = sizes.most;
  std::vector<std::vector<AttnSlice>> masks;
  for (int64_t n = rows; n >= sizes.shortest; n /= 2) {
    masks.push_back({AttnSlice::full({0, n}, {0, n})});
    masks.push_back({AttnSlice::causal({0, n}, {0, n})});
  }
  for (int64_t few = rows / 4; few >= sizes.fewest; few /= 4) {
    masks.push_back({AttnSlice::full({0, few}, {0, rows})});
    masks.push_back({AttnSlice::full({0, rows}, {0, few})});
  }
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

std::vector<std::vector<AttnSlice>> gpu_sample_masks(int64_t rows) {
  return sample_masks({rows, std::max<int64_t>(128, rows / 32), std::max<int64_t>(16, rows / 16)});
}

AttnShape shape_of_call(std::span<const AttnSlice> slices, const HeadConfig& heads) {
  AttnShape shape{0, 0, heads.num_heads_q, heads.num_heads_kv, heads.head_dim, heads.head_dim_v, heads.dtype};
  for (const AttnSlice& slice : slices) {
    shape.seqlen_q = std::max(shape.seqlen_q, slice.q_range.end);
    shape.seqlen_k = std::max(shape.seqlen_k, slice.k_range.end);
  }
  return shape;
}

KernelMeasurement fit_entry(KernelEntry entry, std::span<const TimedCalls> calls, int num_heads) {
  const HeadConfig heads{num_heads, num_heads, entry.head_dim, entry.head_dim_v, entry.dtype};
  const auto fit = [&](const KernelModel& tiles, AttnPass pass) {
    std::vector<KernelSample> samples;
    for (const TimedCalls& call : calls) {
      const auto keys = static_cast<double>(shape_of_call(call.slices, heads).seqlen_k);
      samples.push_back({of_one_call(count_work(call.slices, tiles), keys, tiles), static_cast<double>(num_heads),
                         pass == AttnPass::kForward ? call.forward_s : call.backward_s});
    }
    return fit_kernel(tiles, samples, flops_per_head_cell(heads, pass), entry.workers);
  };
  KernelMeasurement result;
  result.forward = fit(entry.forward, AttnPass::kForward);
  result.backward = fit(entry.backward, AttnPass::kBackward);
  entry.forward = result.forward.model;
  entry.backward = result.backward.model;
  result.entry = std::move(entry);
  return result;
}

std::string errors_text(const KernelMeasurement& kernels) {
  return fmt::format("model off by {:.1f} % and {:.1f} % (root mean square), {:.1f} % and {:.1f} % at most",
                     100 * kernels.forward.rms_error, 100 * kernels.backward.rms_error, 100 * kernels.forward.max_error,
                     100 * kernels.backward.max_error);
}

}  // namespace tangram::cli
