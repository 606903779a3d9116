// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention over ranks that are threads, with the Hopper kernels on host tensors, against float64 on one rank.
// Rows that have not come yet are NaN. Needs a Hopper GPU; skipped elsewhere.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/dense_backend.hpp"
#include "runtime/host_steps.hpp"
#include "tangram/backends.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

constexpr int64_t kSeqlen = 768;

bool have_sm90() {
  const std::vector<AttnBackendInfo> listed = list_attn_backends();
  return std::any_of(listed.begin(), listed.end(), [](const auto& b) { return b.name == "sm90" && b.available; });
}

struct Sm90Case {
  const char* name;
  Mask mask;
  int cp_size;
  DType dtype;
  SinkLayout sink_layout;
};
void PrintTo(const Sm90Case& param, std::ostream* stream) { *stream << param.name; }

class Sm90OverRanks : public ::testing::TestWithParam<Sm90Case> {
 protected:
  void SetUp() override {
    if (!have_sm90()) GTEST_SKIP() << "no Hopper GPU";
  }
};

TEST_P(Sm90OverRanks, EqualsFloat64OnOneRank) {
  const auto& [name, mask, cp_size, dtype, sink_layout] = GetParam();
  testing::StepOptions options;
  options.heads = {4, 2, 64, 64, dtype};
  options.seqlen_sink = 2;
  options.sink_layout = sink_layout;
  options.attn.softcap = 20;
  const testing::StepInputs inputs = testing::make_inputs(mask, options);
  const testing::StepResults expected = testing::single_step(mask, options, inputs, testing::DenseBackend());
  const auto backend = make_attn_backend("sm90", {.host_memory = true});
  for (const bool keep : {false, true}) {
    DistAttnConfig config;
    config.cp_size = cp_size;
    config.heads = options.heads;
    config.dispatch = {DispatchAlgorithm::kTangram, 32, 0};  // auto leaves short masks in sequence
    config.overlap = {2, 3, keep};
    const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
    // All ranks share the backend: its calls take turns.
    const testing::StepResults results = testing::distributed_step(plan, options, inputs, *backend);
    // Kernels round probabilities and dS to the inputs' dtype, 2^-9 (bfloat16) or 2^-12: see tests/attn/sm90.
    testing::expect_close(results, expected, dtype == DType::kBFloat16 ? 4.0 / 512 : 8.0 / 4096);
  }
}

std::vector<Sm90Case> sm90_cases() {
  const std::vector<int64_t> cu_seqlens = {0, 33, 100, 101, 250, kSeqlen};
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, 0}, {0, 3}, {1, 2}, {3, 0}, {3, 2}, {2, 1}};
  return {
      {"CausalBfloat16", causal_mask(kSeqlen, kSeqlen), 4, DType::kBFloat16, SinkLayout::kSh},
      {"FullFloat16", full_mask(kSeqlen, kSeqlen), 2, DType::kFloat16, SinkLayout::kSsh},
      {"VarlenBfloat16", varlen_mask(cu_seqlens, true), 3, DType::kBFloat16, SinkLayout::kSh},
      {"WindowFloat16", sliding_window_mask(kSeqlen, {70, 5}), 4, DType::kFloat16, SinkLayout::kSh},
      {"BlockSparseBfloat16", block_sparse_mask(kSeqlen, kSeqlen, 90, 110, blocks), 3, DType::kBFloat16,
       SinkLayout::kSsh},
  };
}

INSTANTIATE_TEST_SUITE_P(Dist, Sm90OverRanks, ::testing::ValuesIn(sm90_cases()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace tangram
