// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports: rows that land where others were used before in the same epoch.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "comm/device/device_ranks.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::can_run;
using testing::check;
using testing::DeviceBuffer;
using testing::DeviceTransports;
using ::testing::HasSubstr;
using testing::kDim;
using testing::kHeads;
using testing::name_of;
using testing::Stream;

class DeviceCredits : public DeviceTransports {};

INSTANTIATE_TEST_SUITE_P(Device, DeviceCredits, ::testing::Values(DeviceTransport::kCopyEngine, DeviceTransport::kNccl),
                         [](const auto& param_info) { return name_of(param_info.param); });

constexpr int kBlocks = 3;  // in which a rank holds what comes
constexpr int64_t kRows = 4096;
constexpr size_t kBlockBytes = kRows * kHeads * kDim * sizeof(float);

/// The block that a stage brings, and that it sends on.
Range block(int number) { return {(number % kBlocks) * kRows, (number % kBlocks + 1) * kRows}; }

/// Stage s brings block s + 1 from the previous rank, from which it is sent on in the next stage.
DevicePassSpec ring_of_blocks(int rank, int size, int num_stages) {
  DevicePassSpec spec;
  spec.label = "ring";
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  for (int stage = 0; stage < num_stages; ++stage) {
    const Range from = block(stage), to = block(stage + 1);
    spec.casts.push_back({{{next, from, to.begin}}, {{previous, to, from.begin}}});
    if (stage + 1 >= kBlocks) spec.credited.push_back(stage);
  }
  spec.reuses_sources = true;
  spec.recv_buffers = {{kBlocks * kRows, kHeads, kDim, DType::kFloat32}};
  return spec;
}

char* block_of(const TensorView& recv_buffers, int number) {
  return static_cast<char*>(recv_buffers.data) + static_cast<size_t>(number % kBlocks) * kBlockBytes;
}

/// One rank works much longer with each block than the others, another one each time.
void expect_blocks_whole(DeviceCommunicator& comm) {
  const int rank = comm.rank(), size = comm.size(), num_stages = 2 * size + 3;
  constexpr int kEpochs = 6, kWork = 40;
  const auto pass = comm.prepare_pass(ring_of_blocks(rank, size, num_stages));
  const Stream stream;
  const DeviceBuffer used(kBlockBytes * static_cast<size_t>(num_stages)), busy(size_t{64} << 20);
  comm.control().barrier("allocated");
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const int slot = pass->begin(stream);
    const TensorView recv_buffers = pass->recv_buffers(0, slot);
    const ConstTensorView sources[] = {recv_buffers};
    check(cudaMemsetAsync(block_of(recv_buffers, 0), 16 * rank + epoch, kBlockBytes, stream), "memset");
    for (int step = 0; step < num_stages; ++step) {
      if (step > 0) pass->wait_group_cast(step - 1, stream);
      // Credit of the block of the step before, which has been sent on and is not used again.
      if (step > 0 && step + 1 < num_stages) {
        pass->wait_send(step - 1, stream);
        if (step + 1 >= kBlocks - 1) pass->release_credit(step + 1, stream);
      }
      pass->cast(step, sources, stream);
      if (rank == epoch % size) {
        for (int i = 0; i < kWork; ++i) check(cudaMemsetAsync(busy.as<void>(), i, busy.bytes(), stream), "memset");
      }
      check(cudaMemcpyAsync(used.as<char>() + static_cast<size_t>(step) * kBlockBytes, block_of(recv_buffers, step),
                            kBlockBytes, cudaMemcpyDeviceToDevice, stream),
            "copy");
    }
    pass->wait_group_cast(num_stages - 1, stream);
    pass->end(stream);
    stream.synchronize();
    comm.check();
    std::vector<unsigned char> bytes(used.bytes());
    check(cudaMemcpy(bytes.data(), used.as<void>(), bytes.size(), cudaMemcpyDeviceToHost), "copy");
    for (int step = 0; step < num_stages; ++step) {
      const int owner = ((rank - step) % size + size) % size;
      const auto begin = bytes.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(step) * kBlockBytes);
      EXPECT_EQ(std::count(begin, begin + static_cast<ptrdiff_t>(kBlockBytes), 16 * owner + epoch),
                static_cast<ptrdiff_t>(kBlockBytes))
          << "step " << step << ", epoch " << epoch;
    }
  }
  comm.control().barrier("done");
}

TEST_P(DeviceCredits, BlocksOfARingStayWholeUntilTheyAreGiven) {
  for (const int size : {2, 3}) {
    if (!can_run(GetParam(), size)) continue;
    SCOPED_TRACE(size);
    run(size, expect_blocks_whole);
  }
}

TEST_P(DeviceCredits, RefuseToCastWhatWasNotGiven) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  run(2, [](DeviceCommunicator& comm) {
    const auto pass = comm.prepare_pass(ring_of_blocks(comm.rank(), 2, kBlocks));
    const Stream stream;
    const int slot = pass->begin(stream);
    const ConstTensorView sources[] = {pass->recv_buffers(0, slot)};
    for (int stage = 0; stage + 1 < kBlocks; ++stage) pass->cast(stage, sources, stream);
    EXPECT_THROW(pass->release_credit(0, stream), InvalidArgument) << "which is not credited";
    EXPECT_THROW(pass->cast(kBlocks - 1, sources, stream), InvalidArgument);
    comm.control().barrier("refused");
    DevicePassSpec spec = ring_of_blocks(comm.rank(), 2, kBlocks);
    spec.credited = {kBlocks};
    EXPECT_THROW(comm.prepare_pass(spec), InvalidArgument);
  });
}

TEST(CreditFailures, ARankThatNeverGivesIsNamed) {
  testing::run_device_ranks(
      DeviceTransport::kCopyEngine, 2,
      [](DeviceCommunicator& comm) {
        const auto pass = comm.prepare_pass(ring_of_blocks(comm.rank(), 2, kBlocks));
        const Stream stream;
        const int slot = pass->begin(stream);
        const ConstTensorView sources[] = {pass->recv_buffers(0, slot)};
        for (int stage = 0; stage + 1 < kBlocks; ++stage) pass->cast(stage, sources, stream);
        if (comm.rank() == 0) {
          pass->release_credit(kBlocks - 1, stream);
          pass->cast(kBlocks - 1, sources, stream);
          stream.synchronize();
          try {
            comm.check();
            ADD_FAILURE() << "a rank that sends where another still reads";
          } catch (const Timeout& error) {
            EXPECT_THAT(error.what(), HasSubstr("group_cast 'ring' stage 2 (memory that it reuses): rank 1 did not"));
          }
        }
        comm.control().barrier("noticed");
      },
      1.5);
}

}  // namespace
}  // namespace tangram
