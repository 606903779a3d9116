// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention with the backend that users run on a CPU, whose tiles and vectors reach beyond single rows: rows that
// are not there yet are NaN, and rows under way to their owners must be left alone (the thread sanitizer looks).
#include <gtest/gtest.h>

#include "runtime/host_steps.hpp"
#include "tangram/backends.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int64_t kSeqlen = 384;  // a hundred times slower there
#else
constexpr int64_t kSeqlen = 768;
#endif

struct CpuCase {
  const char* name;
  Mask mask;
  int cp_size;
  DType dtype;
};
void PrintTo(const CpuCase& param, std::ostream* stream) { *stream << param.name; }

class CpuBackendCases : public ::testing::TestWithParam<CpuCase> {};

TEST_P(CpuBackendCases, DistributedEqualsSingleRank) {
  const auto& [name, mask, cp_size, dtype] = GetParam();
  const auto single = make_attn_backend("cpu", {.num_threads = 2});
  testing::StepOptions options;
  options.heads = {4, 2, 32, 48, dtype};
  options.seqlen_sink = 2;
  options.attn.softcap = 20;
  const testing::StepInputs inputs = testing::make_inputs(mask, options);
  const testing::StepResults expected = testing::single_step(mask, options, inputs, *single);
  for (const bool keep : {false, true}) {
    DistAttnConfig config;
    config.cp_size = cp_size;
    config.heads = options.heads;
    config.dispatch = {DispatchAlgorithm::kTangram, 32, 0};  // auto leaves short masks in sequence
    config.overlap = {2, 3, keep};
    const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
    testing::StepResults of_rank_0;
    run_local_ranks(cp_size, [&](Communicator& comm) {
      const auto backend = make_attn_backend("cpu", {.num_threads = 1});
      DistAttention attention(plan, comm, *backend);
      testing::StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
      testing::rank_step(options, inputs, comm, attention, results);
      if (comm.rank() == 0) of_rank_0 = std::move(results);
    });
    // float32 sums in another order; with bfloat16 the probabilities, scaled by another row maximum per stage, round
    // to the inputs' dtype differently before they meet V.
    testing::expect_close(of_rank_0, expected, dtype == DType::kFloat32 ? 1e-5 : 1.0 / 256);
  }
}

std::vector<CpuCase> cpu_cases() {
  const std::vector<int64_t> cu_seqlens = {0, 33, 100, 101, 250, kSeqlen};
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, 0}, {0, 3}, {1, 2}, {3, 0}, {3, 2}, {2, 1}};
  return {
      {"CausalFloat32", causal_mask(kSeqlen, kSeqlen), 4, DType::kFloat32},
      {"FullBfloat16", full_mask(kSeqlen, kSeqlen), 2, DType::kBFloat16},
      {"VarlenFloat32", varlen_mask(cu_seqlens, true), 3, DType::kFloat32},
      {"WindowFloat16", sliding_window_mask(kSeqlen, {70, 5}), 4, DType::kFloat16},
      {"BlockSparseFloat32", block_sparse_mask(kSeqlen, kSeqlen, 90, 110, blocks), 3, DType::kFloat32},
  };
}

INSTANTIATE_TEST_SUITE_P(Dist, CpuBackendCases, ::testing::ValuesIn(cpu_cases()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace tangram
