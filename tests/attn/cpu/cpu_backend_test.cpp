// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The CPU backends against dense attention in float64. Each instruction set that this machine has is a backend of its
// own; the float64 reference backend is held to the same.
#include "attn/cpu/cpu_backend.hpp"

#include <fmt/format.h>

#include "attn/cpu/random_attention.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using test::make_random;
using test::RandomAttention;
using test::RandomConfig;

// float32 sums of up to a few hundred products: each rounding is 6e-8, and they add up like a random walk.
constexpr double kFloatTolerance = 1e-5;

struct BackendCase {
  std::string name;
  std::string isa;
};

std::vector<BackendCase> backend_cases() {
  std::vector<BackendCase> cases{{"reference", ""}};
  for (const std::string& isa : CpuBackend::available_isas()) cases.push_back({"cpu", isa});
  return cases;
}

std::unique_ptr<AttnBackend> make(const BackendCase& backend, int num_threads = 2) {
  return make_attn_backend(backend.name, {num_threads, backend.isa});
}

class CpuAttention : public testing::TestWithParam<BackendCase> {};

INSTANTIATE_TEST_SUITE_P(Isa, CpuAttention, testing::ValuesIn(backend_cases()), [](const auto& instance) {
  return instance.param.isa.empty() ? instance.param.name : instance.param.isa;
});

TEST_P(CpuAttention, RandomSlicesEqualDenseReference) {
  const auto backend = make(GetParam());
  std::mt19937 rng(7);
  const auto draw = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  const int dims[] = {1, 3, 8, 17, 32, 33, 64, 72, 128, 130};
  const std::pair<int, int> heads[] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}};
  for (unsigned n = 0; n < 60; ++n) {
    RandomConfig config;
    config.shape.seqlen_q = draw(1, 300);
    config.shape.seqlen_k = draw(1, 300);
    std::tie(config.shape.num_heads_q, config.shape.num_heads_kv) = heads[draw(0, 3)];
    config.shape.head_dim = dims[draw(0, 9)];
    config.shape.head_dim_v = dims[draw(0, 9)];
    config.shape.dtype = DType::kFloat32;
    config.softcap = n % 3 == 0 ? 2.0f : 0.0f;
    if (n % 4 == 0) config.scale = 0.3f;
    config.seqlen_sink = draw(-2, 3);
    if (config.seqlen_sink < 0) config.seqlen_sink = 0;
    config.sink_layout = n % 2 == 0 ? SinkLayout::kSh : SinkLayout::kSsh;
    config.strided = n % 5 == 0;
    RandomAttention r = make_random(
        config, reference::random_disjoint_slices(rng, config.shape.seqlen_q, config.shape.seqlen_k, draw(0, 12)), n);
    run(*backend, r);
    std::string what = fmt::format("case {}", n);
    for (const AttnSlice& slice : r.slices) what.append(" ").append(to_string(slice));
    test::expect_close(r, kFloatTolerance, what);
  }
}

}  // namespace
}  // namespace tangram
