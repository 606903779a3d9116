// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Keys that come while the Hopper kernels run. Needs a Hopper GPU; skipped elsewhere.

#include "attn/gpu/ready_flags.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "attn/gpu/metadata.hpp"
#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/wait_context.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/gather_runs.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"
#include "support/random_tensor.hpp"
#include "support/relative_error.hpp"
#include "tangram/error.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {
namespace {

TileShape forward_tile(const AttnShape& shape) {
  return schedule::forward_tile(test::TestedBackend().kernel_table(shape), shape);
}

using cuda::check;
using cuda::DeviceBuffer;
using support::random_tensor;
using support::relative_error;

constexpr int kSize = 4;
constexpr int kRank = 2;
constexpr uint64_t kEpoch = 7;
constexpr int64_t kQueries = 768, kKeys = 2048;
constexpr int kHeadsQ = 8, kHeadsKv = 2;
const std::vector<AttnSlice> kSlices = {AttnSlice::causal({0, 512}, {0, 2000}),
                                        AttnSlice::full({512, 768}, {300, 2048})};
// In the order in which they come; flags are stage * kSize + rank.
const std::vector<KeyReadyFlag> kReadyFlags = {
    {{512, 1024}, 1}, {{1500, 2048}, 4 + 3}, {{0, 100}, 0}, {{1024, 1100}, 0}};

// What differs is the order of the keys of the first work tiles, and of the additions to dq.
constexpr double kTolerance = 3e-3;

/// Both passes on the device, with everything that a communicator would give to their kernels.
class ReadyFlagsTest : public ::testing::TestWithParam<test::HeadDims> {
 protected:
  void SetUp() override {
    if (!test::check_tested().found) GTEST_SKIP() << test::check_tested().text;
    std::mt19937 rng(11);
    const auto [dim, dim_v] = GetParam();
    q_ = random_tensor(DType::kBFloat16, kQueries, kHeadsQ, dim, rng);
    dout_ = random_tensor(DType::kBFloat16, kQueries, kHeadsQ, dim_v, rng);
    k_ = random_tensor(DType::kBFloat16, kKeys, kHeadsKv, dim, rng);
    v_ = random_tensor(DType::kBFloat16, kKeys, kHeadsKv, dim_v, rng);
    check(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaHostAlloc(reinterpret_cast<void**>(&control_block_), kSize * sizeof(cuda::ControlBlockRow),
                        cudaHostAllocMapped),
          "cudaHostAlloc");
    std::fill_n(control_block_, kSize, cuda::ControlBlockRow{});
    for (const HostTensor* tensor : {&q_, &dout_, &k_, &v_}) add_input(*tensor);
    out_ = allocate(DType::kFloat32, kQueries, kHeadsQ, dim_v), dq_ = allocate(DType::kFloat32, kQueries, kHeadsQ, dim);
    dk_ = allocate(DType::kFloat32, kKeys, kHeadsKv, dim), dv_ = allocate(DType::kFloat32, kKeys, kHeadsKv, dim_v);
    lse_ = allocate(DType::kFloat32, kQueries, kHeadsQ, 1);
    make_ready_flags();
  }
  void TearDown() override {
    if (control_block_ == nullptr) return;
    cudaStreamDestroy(compute_);
    cudaStreamDestroy(copies_);
    cudaFreeHost(control_block_);
  }

  static AttnShape shape() { return test::shape_of(kQueries, kKeys, kHeadsQ, kHeadsKv, GetParam()); }
  TensorView allocate(DType dtype, int64_t rows, int heads, int dim) {
    memory_.emplace_back(static_cast<size_t>(rows * heads * dim) * size_of(dtype));
    return {{memory_.back().as<void>(), dtype, rows, heads, dim, int64_t{heads} * dim, dim}};
  }
  void add_input(const HostTensor& host) {
    inputs_.push_back(allocate(host.dtype(), host.rows(), host.heads(), host.dim()));
    cuda::upload(inputs_.back().data, host.view().data, static_cast<size_t>(host.bytes()));
  }
  HostTensor fetch(const TensorView& view) const {
    HostTensor host(view.dtype, view.rows, view.heads, view.dim);
    check(cudaMemcpy(host.view().data, view.data, static_cast<size_t>(host.bytes()), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return host;
  }

  void make_ready_flags(uint64_t timeout_ns = 20'000'000'000) {
    flags_ = DeviceBuffer::zeros(2 * kSize * sizeof(uint64_t));
    epoch_ = DeviceBuffer::copy_of(&kEpoch, sizeof(kEpoch));
    abort_ = DeviceBuffer::zeros(sizeof(uint64_t));
    const std::vector<uint64_t*> aborts(kSize, abort_.as<uint64_t>());
    aborts_ = DeviceBuffer::copy_of(aborts.data(), aborts.size() * sizeof(uint64_t*));
    const cuda::WaitContext context{
        abort_.as<uint64_t>(), aborts_.as<uint64_t*>(), control_block_, timeout_ns, kRank, kSize};
    context_ = DeviceBuffer::copy_of(&context, sizeof(context));
    ready_flags_ = {flags_.as<uint64_t>(), epoch_.as<uint64_t>(), kSize, 5, context_.as<void>()};
  }

  void poison_awaited_keys() {
    for (const KeyReadyFlag& ready_flag : kReadyFlags) {
      for (const size_t tensor : {2, 3}) {
        const TensorView rows = slice_rows(inputs_[tensor], ready_flag.keys);
        check(cudaMemset(rows.data, 0xff, static_cast<size_t>(rows.rows * rows.row_bytes())), "cudaMemset");  // NaN
      }
    }
    check(cudaMemset(flags_.as<void>(), 0, flags_.bytes()), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  /// Copies the late rows, each followed by its flag, as a peer would.
  void deliver() {
    for (size_t i = 0; i < kReadyFlags.size(); ++i) {
      for (const auto& [tensor, host] : {std::pair<size_t, const HostTensor*>{2, &k_}, {3, &v_}}) {
        const TensorView to = slice_rows(inputs_[tensor], kReadyFlags[i].keys);
        const ConstTensorView from = slice_rows(host->view(), kReadyFlags[i].keys);
        check(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.rows * to.row_bytes()), cudaMemcpyHostToDevice,
                              copies_),
              "cudaMemcpyAsync");
      }
      if (i + 1 < kReadyFlags.size() && kReadyFlags[i + 1].flag == kReadyFlags[i].flag) continue;
      check(cudaMemcpyAsync(flags_.as<uint64_t>() + kReadyFlags[i].flag, epoch_.as<uint64_t>(), sizeof(uint64_t),
                            cudaMemcpyDeviceToDevice, copies_),
            "cudaMemcpyAsync");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  void forward(MaskSlot& mask, const KvReadyFlags* ready_flags) {
    AttnForwardArgs args{.q = inputs_[0], .k = inputs_[2], .v = inputs_[3], .out = out_};
    args.lse = static_cast<float*>(lse_.data);
    args.ready_flags = ready_flags;
    backend_.forward(mask, args, compute_);
  }
  void backward(MaskSlot& mask, const KvReadyFlags* ready_flags, bool deterministic) {
    AttnBackwardArgs args{.q = inputs_[0], .k = inputs_[2], .v = inputs_[3], .out = out_};
    args.lse = static_cast<const float*>(lse_.data);
    args.dout = inputs_[1];
    args.dq = dq_, args.dk = dk_, args.dv = dv_;
    args.options.deterministic = deterministic;
    args.ready_flags = ready_flags;
    backend_.backward(mask, args, compute_);
  }
  void wait() const { check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize"); }

  void expect_waiting(const std::vector<AttnSlice>& slices) {
    const auto plain = make_mask_slot(backend_, slices, shape());
    forward(*plain, nullptr);
    wait();
    const HostTensor out = fetch(out_), lse = fetch(lse_);
    // ReadyFlags cut runs, so that this mask is walked in parts, and `plain` is not: the kernel that merges them is
    // launched for the first time behind one that waits, and loading it then would keep the call from returning.
    const auto late = make_mask_slot(backend_, slices, shape(), {.ready_flags = kReadyFlags});
    for (const bool deterministic : {false, true}) {
      backward(*plain, nullptr, deterministic);
      wait();
      const HostTensor dq = fetch(dq_), dk = fetch(dk_), dv = fetch(dv_);
      for (int round = 0; round < 3; ++round) {
        poison_awaited_keys();
        forward(*late, &ready_flags_);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        EXPECT_EQ(cudaStreamQuery(compute_), cudaErrorNotReady) << "it must wait";
        deliver();
        wait();
        EXPECT_LE(relative_error(fetch(out_), out), kTolerance);
        EXPECT_LE(relative_error(fetch(lse_), lse), kTolerance);
        poison_awaited_keys();
        backward(*late, &ready_flags_, deterministic);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        EXPECT_EQ(cudaStreamQuery(compute_), cudaErrorNotReady) << "it must wait";
        deliver();
        wait();
        EXPECT_LE(relative_error(fetch(dq_), dq), kTolerance);
        EXPECT_LE(relative_error(fetch(dk_), dk), kTolerance);
        EXPECT_LE(relative_error(fetch(dv_), dv), kTolerance);
      }
    }
    EXPECT_EQ(control_block_[kRank].report, 0U) << "nothing failed";
  }

  const test::TestedBackend backend_;
  HostTensor q_, dout_, k_, v_;
  std::vector<TensorView> inputs_;  // q, dout, k, v
  TensorView out_, lse_, dq_, dk_, dv_;
  std::vector<DeviceBuffer> memory_;
  DeviceBuffer flags_, epoch_, abort_, aborts_, context_;
  KvReadyFlags ready_flags_;
  cudaStream_t compute_ = nullptr, copies_ = nullptr;
  cuda::ControlBlockRow* control_block_ = nullptr;
};

// Alone in its process, as ctest runs it: kernels that have never run are launched behind one that waits.
TEST_P(ReadyFlagsTest, TheFirstCallsOfAProcessDoNotLoadKernelsBehindOneThatWaits) {
  const auto late = make_mask_slot(backend_, kSlices, shape(), {.ready_flags = kReadyFlags});
  poison_awaited_keys();
  forward(*late, &ready_flags_);
  EXPECT_EQ(cudaStreamQuery(compute_), cudaErrorNotReady) << "the call must not take as long as the keys";
  deliver();
  wait();
  const HostTensor out = fetch(out_), lse = fetch(lse_);
  poison_awaited_keys();
  backward(*late, &ready_flags_, false);
  EXPECT_EQ(cudaStreamQuery(compute_), cudaErrorNotReady) << "the call must not take as long as the keys";
  deliver();
  wait();
  const HostTensor dq = fetch(dq_), dk = fetch(dk_), dv = fetch(dv_);
  EXPECT_EQ(control_block_[kRank].report, 0U) << "nothing failed";
  const auto plain = make_mask_slot(backend_, kSlices, shape());
  forward(*plain, nullptr);
  wait();
  EXPECT_LE(relative_error(out, fetch(out_)), kTolerance);
  EXPECT_LE(relative_error(lse, fetch(lse_)), kTolerance);
  backward(*plain, nullptr, false);
  wait();
  EXPECT_LE(relative_error(dq, fetch(dq_)), kTolerance);
  EXPECT_LE(relative_error(dk, fetch(dk_)), kTolerance);
  EXPECT_LE(relative_error(dv, fetch(dv_)), kTolerance);
}

TEST_P(ReadyFlagsTest, KernelsWaitForTheKeysThatTheyNeed) { expect_waiting(kSlices); }

TEST_P(ReadyFlagsTest, KernelsWaitForTheKeysThatTheyGather) {
  if (!GetParam().is_128()) GTEST_SKIP() << "of head_dim 128 alone: others gather nothing where keys are awaited";
  std::vector<AttnSlice> blocks;
  for (int64_t q = 0; q < 768; q += 96) {
    for (int64_t k = q % 192 / 3; k + 48 <= 2048; k += 128) blocks.push_back(AttnSlice::full({q, q + 96}, {k, k + 48}));
  }
  ASSERT_TRUE(schedule::gather_runs(schedule::build_tile_list(blocks, kQueries, kKeys, forward_tile(shape()))));
  expect_waiting(blocks);
}

TEST_P(ReadyFlagsTest, KeysThatNeverComeEndTheKernelAndAreNamed) {
  make_ready_flags(50'000'000);
  const auto late = make_mask_slot(backend_, kSlices, shape(), {.ready_flags = kReadyFlags});
  poison_awaited_keys();
  const auto begin = std::chrono::steady_clock::now();
  forward(*late, &ready_flags_);
  wait();  // no error, no hang
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  const cuda::WaitFailure expected{cuda::WaitKind::kReadyFlag, 2, 1, 0, 5, 0};
  EXPECT_TRUE(cuda::unpack(control_block_[kRank].report) == expected) << "report " << control_block_[kRank].report;
  make_ready_flags();
  control_block_[kRank].report = 0;
  deliver();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  forward(*late, &ready_flags_);
  wait();
  EXPECT_EQ(control_block_[kRank].report, 0U) << "usable as before";
}

// Work tiles are drawn when the one before begins: what a CTA has drawn no other CTA computes.
TEST_P(ReadyFlagsTest, ACtaThatWaitsHoldsBackOneTileMore) {
  constexpr int64_t kTiles = 40;
  const auto [dim, dim_v] = GetParam();
  AttnShape shape{0, 1024, 4, 1, dim, dim_v, DType::kBFloat16};
  const int64_t tile_rows = forward_tile(shape).block_m;  // of four heads on one key head
  shape.seqlen_q = kTiles * tile_rows;
  const std::vector<AttnSlice> slices = {AttnSlice::full({0, tile_rows}, {0, 1024}),
                                         AttnSlice::full({tile_rows, shape.seqlen_q}, {0, 128})};
  TileList tiles = schedule::build_tile_list(slices, shape.seqlen_q, shape.seqlen_k, forward_tile(shape));
  ASSERT_EQ(tiles.work_tiles.size(), static_cast<size_t>(kTiles));
  const std::vector<KeyReadyFlag> ready_flags{{{512, 1024}, 1}};  // what the first tile, scheduled first, waits for
  const std::span<const AttnSlice> of_mask = slices;
  const auto mask = backend_.make_slot(shape);
  backend_.install(
      *mask,
      std::make_unique<gpu::ForwardMetadata>(
          schedule::choose_forward(std::move(tiles), of_mask, shape, backend_.kernel_table(shape), backend_.caps().gpu),
          gpu::KeySources(MaskRequest{.masks = {&of_mask, 1}, .shape = shape, .ready_flags = ready_flags})));
  const TensorView q = allocate(DType::kBFloat16, shape.seqlen_q, 4, dim);
  const TensorView k = allocate(DType::kBFloat16, shape.seqlen_k, 1, dim);
  const TensorView v = allocate(DType::kBFloat16, shape.seqlen_k, 1, dim_v);
  const TensorView out = allocate(DType::kFloat32, shape.seqlen_q, 4, dim_v);
  const TensorView lse = allocate(DType::kFloat32, shape.seqlen_q, 4, 1);
  for (const TensorView& zeros : {q, k, v}) {
    check(cudaMemset(zeros.data, 0, static_cast<size_t>(zeros.rows * zeros.row_bytes())), "cudaMemset");
  }
  check(cudaMemset(out.data, 0xff, static_cast<size_t>(out.rows * out.row_bytes())), "cudaMemset");  // NaN
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  AttnForwardArgs args{.q = q, .k = k, .v = v, .out = out};
  args.lse = static_cast<float*>(lse.data);
  args.ready_flags = &ready_flags_;
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  args.options.sm_margin = multiprocessors - 2;
  backend_.forward(*mask, args, compute_);
  HostTensor now(DType::kFloat32, out.rows, 4, dim_v);
  const auto unwritten = [&] {
    check(cudaMemcpyAsync(now.view().data, out.data, static_cast<size_t>(now.bytes()), cudaMemcpyDeviceToHost, copies_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(copies_), "cudaStreamSynchronize");
    int64_t count = 0;
    for (int64_t tile = 0; tile < kTiles; ++tile) count += std::isnan(now.at(tile * tile_rows, 0, 0));
    return count;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (unwritten() > 2 && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_LE(unwritten(), 2) << "the tile that waits, and one that its CTA has drawn";
  EXPECT_EQ(cudaStreamQuery(compute_), cudaErrorNotReady) << "it must wait";
  check(cudaMemcpyAsync(flags_.as<uint64_t>() + 1, epoch_.as<uint64_t>(), sizeof(uint64_t), cudaMemcpyDeviceToDevice,
                        copies_),
        "cudaMemcpyAsync");
  wait();
  EXPECT_EQ(unwritten(), 0);
}

TEST_P(ReadyFlagsTest, TooManyFlagsAreRefused) {
  std::vector<KeyReadyFlag> ready_flags;
  for (int i = 0; i < 65; ++i) ready_flags.push_back({{i * 16, i * 16 + 16}, i});
  EXPECT_THROW(make_mask_slot(backend_, kSlices, shape(), {.ready_flags = ready_flags}), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Dims, ReadyFlagsTest, test::every_head_dim(), test::name_of_dims);

}  // namespace
}  // namespace tangram
