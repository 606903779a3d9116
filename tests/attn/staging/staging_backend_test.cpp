// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Staging with the CPU backend as the device and a device memory on the heap that is poisoned: what staging does not
// copy is missing or NaN. Results must be those of the CPU backend called directly, bit by bit.
#include "attn/staging/staging_backend.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>

#include "attn/cpu/random_attention.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using test::make_random;
using test::RandomAttention;
using test::RandomConfig;

/// Counts what it does; fresh memory holds NaN (0xff in every byte).
class HeapMemory final : public DeviceMemory {
 public:
  struct Counters {
    std::set<void*> live;
    int allocations = 0;
    int synchronizations = 0;
    size_t uploaded = 0;
  };
  explicit HeapMemory(Counters& counters) : counters_(counters) {}

  void* allocate(size_t bytes) override {
    ++counters_.allocations;
    void* memory = std::malloc(bytes);
    std::memset(memory, 0xff, bytes);
    counters_.live.insert(memory);
    return memory;
  }
  void release(void* memory) noexcept override {
    counters_.live.erase(memory);
    std::free(memory);
  }
  void upload(void* device, size_t device_pitch, const void* from, const Pitched& host) override {
    counters_.uploaded += host.width * host.rows;
    for (size_t row = 0; row < host.rows; ++row) {
      std::memcpy(static_cast<char*>(device) + row * device_pitch, static_cast<const char*>(from) + row * host.pitch,
                  host.width);
    }
  }
  void download(void* to, const Pitched& host, const void* device, size_t device_pitch) override {
    for (size_t row = 0; row < host.rows; ++row) {
      std::memcpy(static_cast<char*>(to) + row * host.pitch, static_cast<const char*>(device) + row * device_pitch,
                  host.width);
    }
  }
  void* stream() const override { return nullptr; }
  void synchronize() override { ++counters_.synchronizations; }

 private:
  Counters& counters_;
};

std::unique_ptr<AttnBackend> cpu() { return make_attn_backend("cpu", {.num_threads = 1}); }

std::unique_ptr<StagingBackend> staged_cpu(HeapMemory::Counters& counters) {
  return std::make_unique<StagingBackend>(cpu(), std::make_unique<HeapMemory>(counters));
}

/// Fully masked rows and keys at both ends and in between.
std::vector<AttnSlice> holes() {
  return {AttnSlice::full({3, 20}, {5, 30}), AttnSlice::causal({20, 41}, {40, 61}), {{20, 50}, {2, 12}, -30, 0}};
}

RandomConfig config_of(bool strided) {
  RandomConfig config;
  config.shape = {53, 70, 4, 2, 8, 16, DType::kFloat32};
  config.softcap = 3;
  config.seqlen_sink = 2;
  config.sink_layout = strided ? SinkLayout::kSsh : SinkLayout::kSh;
  config.strided = strided;
  return config;
}

void expect_same_bytes(const HostTensor& a, const HostTensor& b, const char* name) {
  EXPECT_EQ(std::memcmp(a.data<char>(), b.data<char>(), static_cast<size_t>(a.bytes())), 0) << name;
}

// All outputs with the gaps between heads and rows, which no call may touch.
void expect_same(const RandomAttention& a, const RandomAttention& b) {
  expect_same_bytes(a.out, b.out, "out");
  expect_same_bytes(a.dq, b.dq, "dq");
  expect_same_bytes(a.dk, b.dk, "dk");
  expect_same_bytes(a.dv, b.dv, "dv");
  const auto bytes = [](const std::vector<float>& v) { return v.size() * sizeof(float); };
  EXPECT_EQ(std::memcmp(a.lse.data(), b.lse.data(), bytes(a.lse)), 0);
  EXPECT_EQ(std::memcmp(a.max_logits.data(), b.max_logits.data(), bytes(a.max_logits)), 0);
  EXPECT_EQ(std::memcmp(a.dsink.data(), b.dsink.data(), bytes(a.dsink)), 0);
}

TEST(StagingBackend, GivesWhatTheDeviceGives) {
  for (const bool strided : {false, true}) {
    RandomAttention direct = make_random(config_of(strided), holes(), 3),
                    staged = make_random(config_of(strided), holes(), 3);
    test::run(*cpu(), direct);
    HeapMemory::Counters counters;
    const auto backend = staged_cpu(counters);
    EXPECT_EQ(backend->memory(), MemoryKind::kHost);
    EXPECT_EQ(backend->name(), "cpu");
    test::run(*backend, staged);
    EXPECT_EQ(counters.synchronizations, 2);
    expect_same(staged, direct);
  }
}

TEST(StagingBackend, AccumulatesOverStagesAndLeavesRowsOfOthersAlone) {
  const std::vector<AttnSlice> slices = holes();
  RandomAttention direct = make_random(config_of(true), slices, 4), staged = make_random(config_of(true), slices, 4);
  const auto run_stages = [&](const AttnBackend& backend, RandomAttention& r) {
    for (HostTensor* tensor : {&r.dq, &r.dk, &r.dv}) tensor->fill(0.5f);
    for (size_t i = 0; i < slices.size(); ++i) {
      const auto mask = make_mask_slot(backend, {&slices[i], 1}, r.config.shape);
      AttnForwardArgs forward = r.forward_args();
      forward.accumulate = i > 0;
      if (i + 1 < slices.size()) forward.sink = {};
      backend.forward(*mask, forward);
    }
    for (size_t i = 0; i < slices.size(); ++i) {
      const auto mask = make_mask_slot(backend, {&slices[i], 1}, r.config.shape);
      AttnBackwardArgs backward = r.backward_args();
      backward.accumulate_dq = backward.accumulate_dkv = true;
      if (i > 0) backward.sink = {}, backward.dsink = nullptr;
      backend.backward(*mask, backward);
    }
  };
  run_stages(*cpu(), direct);
  HeapMemory::Counters counters;
  run_stages(*staged_cpu(counters), staged);
  expect_same(staged, direct);
}

TEST(StagingBackend, GivenDeltaReplacesOut) {
  RandomAttention direct = make_random(config_of(false), holes(), 8),
                  staged = make_random(config_of(false), holes(), 8);
  HeapMemory::Counters counters;
  const auto backend = staged_cpu(counters);
  EXPECT_TRUE(backend->caps().delta);
  const auto run_with_delta = [](const AttnBackend& of, RandomAttention& r) {
    const auto mask = make_mask_slot(of, r.slices, r.config.shape);
    of.forward(*mask, r.forward_args());
    AttnBackwardArgs backward = r.backward_args();
    const std::vector<float> delta(r.lse.size(), 0.25f);
    backward.out = {};
    backward.delta = delta.data();
    of.backward(*mask, backward);
  };
  run_with_delta(*cpu(), direct);
  run_with_delta(*backend, staged);
  expect_same(staged, direct);
}

// See NOTE [rows under way]: what a thread of the transport is writing must not even be read.
TEST(StagingBackend, ReadsNoFullyMaskedKeyRows) {
  RandomConfig config = config_of(false);
  config.seqlen_sink = 0;
  RandomAttention r = make_random(config, {AttnSlice::full({0, 53}, {10, 14})}, 5);
  HeapMemory::Counters counters;
  const auto backend = staged_cpu(counters);
  const auto mask = make_mask_slot(*backend, r.slices, config.shape);
  backend->forward(*mask, r.forward_args());
  const size_t queries = 53 * 4 * 8, keys = 4 * 2 * (8 + 16);
  EXPECT_EQ(counters.uploaded, (queries + keys) * sizeof(float));
}

TEST(StagingBackend, KeepsItsBuffersAndFreesThemInTheEnd) {
  HeapMemory::Counters counters;
  auto backend = staged_cpu(counters);
  RandomAttention r = make_random(config_of(false), holes(), 6);
  test::run(*backend, r);
  const int allocations = counters.allocations;
  EXPECT_GT(allocations, 0);
  for (int i = 0; i < 3; ++i) test::run(*backend, r);
  EXPECT_EQ(counters.allocations, allocations);
  backend.reset();
  EXPECT_TRUE(counters.live.empty());
}

TEST(StagingBackend, RefusesWrongArgumentsBeforeTheyAreCopied) {
  HeapMemory::Counters counters;
  const auto backend = staged_cpu(counters);
  RandomAttention r = make_random(config_of(false), holes(), 7);
  const auto mask = make_mask_slot(*backend, r.slices, r.config.shape);
  AttnForwardArgs args = r.forward_args();
  int not_null = 0;
  EXPECT_THROW(backend->forward(*mask, args, &not_null), InvalidArgument);
  args.q.rows -= 1;
  EXPECT_THROW(backend->forward(*mask, args), InvalidArgument);
  EXPECT_THROW(backend->forward(*make_mask_slot(*cpu(), r.slices, r.config.shape), r.forward_args()), InvalidArgument);
  AttnBackwardArgs backward = r.backward_args();
  backward.dout.rows -= 1;
  EXPECT_THROW(backend->backward(*mask, backward), InvalidArgument);
  EXPECT_EQ(counters.allocations, 0);
}

}  // namespace
}  // namespace tangram
