// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What backends refuse, and in which words; nothing may be computed before.
#include "attn/arguments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "attn/cpu/random_attention.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using support::message_of;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

test::RandomAttention valid_problem(DType dtype = DType::kFloat32) {
  test::RandomConfig config;
  config.shape = {.seqlen_q = 6,
                  .seqlen_k = 7,
                  .num_heads_q = 2,
                  .num_heads_kv = 1,
                  .head_dim = 4,
                  .head_dim_v = 3,
                  .dtype = dtype};
  config.seqlen_sink = 1;
  return test::make_random(config, {AttnSlice::causal({0, 6}, {0, 7})}, 1);
}

class Arguments : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<AttnBackend> backend_ = make_attn_backend(GetParam(), {.num_threads = 1, .cpu_isa = ""});

  std::string prepare_error(std::vector<AttnSlice> slices, const std::function<void(AttnShape&)>& change = {}) {
    AttnShape shape = valid_problem().config.shape;
    if (change) change(shape);
    return message_of([&] { make_mask_slot(*backend_, slices, shape); });
  }
  std::string forward_error(const std::function<void(AttnForwardArgs&)>& change, DType dtype = DType::kFloat32) {
    test::RandomAttention r = valid_problem(dtype);
    const auto mask = make_mask_slot(*backend_, r.slices, r.config.shape);
    AttnForwardArgs args = r.forward_args();
    change(args);
    const std::string message = message_of([&] { backend_->forward(*mask, args); });
    EXPECT_TRUE(std::isnan(r.lse[0])) << "computed before it refused";
    return message;
  }
  std::string backward_error(const std::function<void(AttnBackwardArgs&)>& change, DType dtype = DType::kFloat32) {
    test::RandomAttention r = valid_problem(dtype);
    const auto mask = make_mask_slot(*backend_, r.slices, r.config.shape);
    backend_->forward(*mask, r.forward_args());
    AttnBackwardArgs args = r.backward_args();
    change(args);
    const std::string message = message_of([&] { backend_->backward(*mask, args); });
    EXPECT_TRUE(std::isnan(r.dk.at(0, 0, 0))) << "computed before it refused";
    return message;
  }
};

INSTANTIATE_TEST_SUITE_P(Backend, Arguments, testing::Values("cpu", "reference"),
                         [](const auto& instance) { return instance.param; });

TEST_P(Arguments, PrepareRefusesShapesAndSlices) {
  EXPECT_THAT(prepare_error({}, [](AttnShape& s) { s.num_heads_q = 3, s.num_heads_kv = 2; }),
              HasSubstr("num_heads_q must be a multiple of num_heads_kv (got num_heads_q=3, num_heads_kv=2)"));
  EXPECT_THAT(prepare_error({}, [](AttnShape& s) { s.head_dim = 0; }), HasSubstr("head dims must be positive"));
  EXPECT_THAT(prepare_error({}, [](AttnShape& s) { s.seqlen_k = -1; }), HasSubstr("must not be negative"));
  EXPECT_THAT(prepare_error({}, [](AttnShape& s) { s.num_heads_kv = 0; }), HasSubstr("heads must be positive"));
  EXPECT_THAT(prepare_error({AttnSlice::full({0, 7}, {0, 7})}),
              HasSubstr("slices[0].q_range must lie in [0, 6) (got [0, 7))"));
  EXPECT_THAT(prepare_error({AttnSlice::full({0, 1}, {0, 1}), AttnSlice::full({0, 6}, {-1, 7})}),
              HasSubstr("slices[1].k_range must lie in [0, 7) (got [-1, 7))"));
  EXPECT_THAT(prepare_error({AttnSlice::full({0, 3}, {0, 3}), AttnSlice::full({2, 4}, {2, 4})}),
              HasSubstr("slices must not cover a cell twice (got slices[0] = [0, 3) x [0, 3)"));
}

TEST_P(Arguments, ForwardRefusesWhatDoesNotFit) {
  EXPECT_THAT(forward_error([](auto& a) { a.options.softmax_scale = kNan; }),
              HasSubstr("softmax_scale must be finite"));
  EXPECT_THAT(forward_error([](auto& a) { a.options.softmax_scale = 0.0f; }), HasSubstr("positive (got 0)"));
  EXPECT_THAT(forward_error([](auto& a) { a.options.softcap = -1; }), HasSubstr("softcap must be finite"));
  EXPECT_THAT(forward_error([](auto& a) { a.q.rows = 5; }), HasSubstr("q must be [6, 2, 4] (got float32[5, 2, 4])"));
  EXPECT_THAT(forward_error([](auto& a) { a.k.heads = 2; }), HasSubstr("k must be [7, 1, 4] (got float32[7, 2, 4])"));
  EXPECT_THAT(forward_error([](auto& a) { a.v.dim = 4; }), HasSubstr("v must be [7, 1, 3]"));
  EXPECT_THAT(forward_error([](auto& a) { a.v.dtype = DType::kFloat16; }), HasSubstr("v must be float32 as prepared"));
  EXPECT_THAT(forward_error([](auto& a) { a.q.data = nullptr; }), HasSubstr("q must have memory"));
  EXPECT_THAT(forward_error([](auto& a) { a.q.row_stride = 1; }), HasSubstr("strides of at least its dim"));
  EXPECT_THAT(forward_error([](auto& a) { a.out.dtype = DType::kBFloat16; }), HasSubstr("out must be float32 (got"));
  EXPECT_THAT(forward_error([](auto& a) { a.out.dtype = DType::kBFloat16, a.accumulate = true; }, DType::kBFloat16),
              HasSubstr("out must be float32 to accumulate (got bfloat16)"));
  EXPECT_THAT(forward_error([](auto& a) { a.lse = nullptr; }), HasSubstr("lse must have memory"));
  EXPECT_THAT(forward_error([](auto& a) { a.sink.data = nullptr; }), HasSubstr("sink must have memory"));
  EXPECT_THAT(forward_error([](auto& a) { a.sink.seqlen_sink = -1; }), HasSubstr("seqlen_sink must not be negative"));
}

TEST_P(Arguments, BackwardRefusesWhatDoesNotFit) {
  EXPECT_THAT(backward_error([](auto& a) { a.dout.rows = 7; }), HasSubstr("dout must be [6, 2, 3]"));
  EXPECT_THAT(backward_error([](auto& a) { a.dq.dtype = DType::kFloat16; }), HasSubstr("dq must be float32"));
  EXPECT_THAT(backward_error([](auto& a) { a.dk.dtype = DType::kBFloat16, a.accumulate_dkv = true; }, DType::kBFloat16),
              HasSubstr("dk must be float32 to accumulate (got bfloat16)"));
  EXPECT_THAT(backward_error([](auto& a) { a.dv.dim = 4; }), HasSubstr("dv must be [7, 1, 3]"));
  EXPECT_THAT(backward_error([](auto& a) { a.lse = nullptr; }), HasSubstr("lse must have memory"));
  EXPECT_THAT(backward_error([](auto& a) { a.sink = {}; }), HasSubstr("dsink needs the sink (got seqlen_sink=0)"));
}

class ForeignSlot final : public MaskSlot {};

TEST_P(Arguments, MasksOfOtherBackendsAreRefused) {
  test::RandomAttention r = valid_problem();
  ForeignSlot foreign;
  EXPECT_THAT(message_of([&] { backend_->forward(foreign, r.forward_args()); }), HasSubstr("slot must be of backend"));
  EXPECT_THAT(message_of([&] { backend_->backward(foreign, r.backward_args()); }),
              HasSubstr("slot must be of backend"));
  const auto other = make_attn_backend(GetParam() == std::string("cpu") ? "reference" : "cpu");
  const auto slot = make_mask_slot(*other, r.slices, r.config.shape);
  EXPECT_THAT(message_of([&] { backend_->forward(*slot, r.forward_args()); }), HasSubstr("slot must be of backend"));
  const auto empty = backend_->make_slot(r.config.shape);
  EXPECT_THAT(message_of([&] { backend_->forward(*empty, r.forward_args()); }), HasSubstr("must be installed first"));
}

TEST(Backends, AreMadeByNameOrRefusedWithTheList) {
  EXPECT_EQ(make_attn_backend("cpu")->name(), "cpu");
  EXPECT_EQ(make_attn_backend("reference")->name(), "reference");
  EXPECT_THAT(message_of([] { make_attn_backend("gpu"); }), HasSubstr("name must be one of"));
  EXPECT_THAT(message_of([] { make_attn_backend("gpu"); }), HasSubstr("cpu, reference"));
  EXPECT_THAT(message_of([] { make_attn_backend("cpu", {.num_threads = -1, .cpu_isa = ""}); }),
              HasSubstr("num_threads must not be negative (got -1)"));
  EXPECT_THAT(message_of([] { make_attn_backend("cpu", {.num_threads = 1, .cpu_isa = "mmx"}); }),
              HasSubstr("isa must be one that this machine has"));
  for (const AttnBackendInfo& info : list_attn_backends()) EXPECT_FALSE(info.detail.empty()) << info.name;
}

TEST(Backends, TheBestIsTheFirstOfItsMemory) {
  EXPECT_EQ(best_attn_backend(MemoryKind::kHost), "cpu");
  EXPECT_EQ(best_attn_backend(MemoryKind::kDevice), "sm90") << "also where it cannot run";
}

TEST(Backends, Sm90IsListedWithItsReasonAndRefusedWithItWhereItCannotRun) {
  const std::vector<AttnBackendInfo> listed = list_attn_backends();
  const auto sm90 = std::find_if(listed.begin(), listed.end(), [](const auto& info) { return info.name == "sm90"; });
  ASSERT_NE(sm90, listed.end());
  if (sm90->available) {
    EXPECT_EQ(make_attn_backend("sm90")->memory(), MemoryKind::kDevice);
    EXPECT_EQ(make_attn_backend("sm90", {.host_memory = true})->memory(), MemoryKind::kHost);
    return;
  }
  try {
    make_attn_backend("sm90");
    FAIL() << "was made";
  } catch (const NotAvailable& error) {
    EXPECT_EQ(error.what(), "make_attn_backend: sm90 cannot run here: " + sm90->detail);
  }
}

}  // namespace
}  // namespace tangram
