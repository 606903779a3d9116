// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports: what goes wrong on one rank ends in errors on all, and leaves the device usable.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "comm/device/device_ranks.hpp"
#include "tangram/error.hpp"
#include "tangram/log.hpp"

namespace tangram {
namespace {

using testing::can_run;
using testing::check;
using testing::DeviceBuffer;
using ::testing::HasSubstr;
using testing::kDim;
using testing::kHeads;
using testing::name_of;
using testing::ring_spec;
using testing::Stream;
using testing::view_of;

class DeviceErrors : public testing::DeviceTransports {};
INSTANTIATE_TEST_SUITE_P(Device, DeviceErrors, ::testing::Values(DeviceTransport::kCopyEngine, DeviceTransport::kNccl),
                         [](const auto& param_info) { return name_of(param_info.param); });

/// The error of `comm.check()`, empty when it passes.
template <class Error>
std::string check_error(DeviceCommunicator& comm) {
  try {
    comm.check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// One epoch of `pass` after `late`, whatever comes of it.
void run_epoch(DeviceCommunicator& comm, DevicePass& pass, std::chrono::milliseconds late = {}) {
  const Stream stream;
  const HostTensor shape(DType::kFloat32, 64, kHeads, kDim);
  const DeviceBuffer source = DeviceBuffer::zeros(static_cast<size_t>(shape.bytes()));
  comm.control().barrier("allocated");
  std::this_thread::sleep_for(late);
  pass.begin(stream);
  const ConstTensorView sources[] = {view_of(source, shape)};
  pass.cast(0, sources, stream);
  pass.wait_group_cast(0, stream);
  pass.end(stream);
  stream.synchronize();
  comm.control().barrier("waited");
}

TEST_P(DeviceErrors, RankThatDoesNotCastIsNamedAndTheContextStaysUsable) {
  if (!can_run(GetParam(), 3)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 3;
  constexpr int64_t kRows = 64;
  run(
      kSize,
      [&](DeviceCommunicator& comm) {
        const auto pass = comm.prepare_pass(ring_spec(comm.rank(), kSize, kRows, "forward"));
        const Stream stream;
        const HostTensor shape(DType::kFloat32, kRows, kHeads, kDim);
        const DeviceBuffer source = DeviceBuffer::zeros(static_cast<size_t>(shape.bytes()));
        comm.control().barrier("allocated");
        if (comm.rank() != 1) {
          pass->begin(stream);
          const ConstTensorView sources[] = {view_of(source, shape)};
          pass->cast(0, sources, stream);
          pass->wait_group_cast(0, stream);
          pass->end(stream);
          stream.synchronize();
        }
        comm.control().barrier("waited");
        if (comm.rank() != 1) {
          const std::string text = check_error<Timeout>(comm);
          EXPECT_THAT(text, HasSubstr("group_cast 'forward' stage 0: rank 1 did not take part within 0.5 s"));
          EXPECT_THROW(pass->begin(stream), Timeout);
        }
        // No sticky error: the device still works.
        check(cudaMemset(source.as<void>(), 1, source.bytes()), "memset");
        check(cudaDeviceSynchronize(), "synchronize");
        comm.control().barrier("done");
      },
      0.5);
}

TEST_P(DeviceErrors, RanksThatBeginDifferentPassesAreToldSo) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2;
  run(
      kSize,
      [&](DeviceCommunicator& comm) {
        const auto forward = comm.prepare_pass(ring_spec(comm.rank(), kSize, 64, "forward"));
        const auto backward = comm.prepare_pass(ring_spec(comm.rank(), kSize, 64, "backward"));
        run_epoch(comm, comm.rank() == 0 ? *forward : *backward);
        EXPECT_THAT(check_error<CommError>(comm), HasSubstr("all ranks must begin the same passes in the same order"));
        comm.control().barrier("done");
      },
      5);
}

// With equal traffic a softcap that one rank alone had gave a wrong number without a word.
TEST_P(DeviceErrors, RanksThatMakeDifferentCallsAreToldWhatDiffers) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  run(
      2,
      [&](DeviceCommunicator& comm) {
        const auto pass = comm.prepare_pass(ring_spec(comm.rank(), 2, 64, "forward"));
        CallFingerprint fingerprint;
        fingerprint.set(CallFingerprint::kMask, uint64_t{17});
        fingerprint.set(CallFingerprint::kSoftcap, 5.0f);
        comm.set_call_fingerprint(fingerprint);
        run_epoch(comm, *pass);
        EXPECT_EQ(check_error<InvalidArgument>(comm), "") << "the same call";
        comm.set_call_fingerprint({});
        run_epoch(comm, *pass);
        EXPECT_EQ(check_error<InvalidArgument>(comm), "") << "nothing said";
        fingerprint.set(CallFingerprint::kSoftcap, static_cast<float>(comm.rank()));
        comm.set_call_fingerprint(fingerprint);
        run_epoch(comm, *pass);
        EXPECT_THAT(check_error<InvalidArgument>(comm),
                    HasSubstr("every rank must make the same call: softcaps differ (rank 0: 0; rank 1: 1)"));
        comm.control().barrier("done");
      },
      5);
}

std::mutex notes_mutex;
std::string notes;

TEST_P(DeviceErrors, AWaitIsMentionedFromHalfOfItsTimeOn) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  notes.clear();
  set_log_sink([](std::string_view line) {
    const std::lock_guard lock(notes_mutex);
    (notes += line) += '\n';
  });
  run(
      2,
      [&](DeviceCommunicator& comm) {
        const auto pass = comm.prepare_pass(ring_spec(comm.rank(), 2, 64, "forward"));
        run_epoch(comm, *pass, std::chrono::milliseconds(comm.rank() == 1 ? 1400 : 0));
        comm.check();
        comm.control().barrier("done");
      },
      2);
  set_log_sink(nullptr);
  EXPECT_THAT(notes, HasSubstr("group_cast 'forward' stage 0: rank 0 has waited 1"));
  EXPECT_THAT(notes, HasSubstr("s for rank 1, and gives up after 2 s"));
}

TEST_P(DeviceErrors, HostThatGivesUpEndsTheWaitsOfItsPeers) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2;
  run(
      kSize,
      [&](DeviceCommunicator& comm) {
        const auto pass = comm.prepare_pass(ring_spec(comm.rank(), kSize, 64, "forward"));
        const Stream stream;
        const HostTensor shape(DType::kFloat32, 64, kHeads, kDim);
        const DeviceBuffer source = DeviceBuffer::zeros(static_cast<size_t>(shape.bytes()));
        comm.control().barrier("allocated");
        if (comm.rank() == 0) {
          pass->begin(stream);
          const ConstTensorView sources[] = {view_of(source, shape)};
          pass->cast(0, sources, stream);
          pass->wait_group_cast(0, stream);
          pass->end(stream);
          comm.abort("no luck");
          stream.synchronize();  // long before the deadline
        }
        comm.control().barrier("given up");
        EXPECT_THAT(check_error<CommError>(comm), HasSubstr("rank 0 gave up: no luck"));
        comm.control().barrier("done");
      },
      600);
}

TEST_P(DeviceErrors, WrongTensorsAreRefusedBeforeAnythingIsEnqueued) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  run(2, [&](DeviceCommunicator& comm) {
    const auto pass = comm.prepare_pass(ring_spec(comm.rank(), 2, 64, "forward"));
    const Stream stream;
    const HostTensor small(DType::kFloat32, 63, kHeads, kDim), half(DType::kBFloat16, 64, kHeads, kDim);
    const HostTensor good(DType::kFloat32, 64, kHeads, kDim);
    const DeviceBuffer buffer = DeviceBuffer::zeros(static_cast<size_t>(good.bytes()));
    const ConstTensorView views[] = {view_of(buffer, good)};
    comm.control().barrier("allocated");
    EXPECT_THROW(pass->cast(0, views, stream), InvalidArgument);
    EXPECT_THROW(pass->recv_buffers(1, 0), InvalidArgument);
    const ConstTensorView too_small[] = {view_of(buffer, small)}, wrong_dtype[] = {view_of(buffer, half)};
    EXPECT_THROW(pass->begin(wrong_dtype, stream), InvalidArgument);
    pass->begin(stream);
    EXPECT_THROW(pass->begin(stream), InvalidArgument);
    EXPECT_THROW(pass->cast(0, too_small, stream), InvalidArgument);
    EXPECT_THROW(pass->cast(0, wrong_dtype, stream), InvalidArgument);
    EXPECT_THROW(pass->cast(0, {}, stream), InvalidArgument);
    EXPECT_THROW(pass->wait_group_cast(0, stream), InvalidArgument);
    EXPECT_THROW(pass->end(stream), InvalidArgument);
    pass->cast(0, views, stream);
    pass->wait_group_cast(0, stream);
    pass->end(stream);
    stream.synchronize();
    comm.check();
    comm.control().barrier("done");
  });
}

}  // namespace
}  // namespace tangram
