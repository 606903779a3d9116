// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports with ranks as processes, one of which may fail. The test itself must not touch CUDA: it forks.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "comm/exchange_tables.hpp"
#include "comm/process_group.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/error.hpp"
#include "tangram/socket_group.hpp"

namespace tangram {
namespace {

using cuda::check;
using cuda::DeviceBuffer;
using ::testing::HasSubstr;
using testing::run_processes;
using testing::TemporaryFolder;

constexpr int kSize = 2;
constexpr int kVictim = 1;
constexpr int64_t kRows = 4096;
constexpr double kTimeout_s = 2;

/// Both ranks send all rows to each other.
DevicePassSpec swap_spec(int rank) {
  DevicePassSpec spec;
  spec.label = "forward";
  spec.casts = {{{{1 - rank, {0, kRows}, 0}}, {{1 - rank, {0, kRows}, 0}}}};
  spec.landing = {{kRows, 2, 8, DType::kFloat32}};
  return spec;
}

/// Swaps rows in a few epochs, in the middle of which `fail` is called on the victim; the first error of check().
void swap_rows(DeviceTransport transport, int rank, const std::string& folder, const std::function<void()>& fail) {
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  check(cudaSetDevice(rank % num_devices), "cudaSetDevice");
  SocketGroup group({rank, kSize, "unix:" + folder, 20});
  const auto comm = make_device_communicator(group.communicator(), {transport, kTimeout_s});
  const auto pass = comm->prepare_pass(swap_spec(rank));
  const HostTensor host = testing::make_filled(DType::kFloat32, kRows, 2, 8, rank, 0);
  const DeviceBuffer source = DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes()));
  ConstTensorView view = host.view();
  view.data = source.as<void>();
  group.communicator().barrier("ready");
  int slot = 0;
  for (int epoch = 0; epoch < 6; ++epoch) {
    if (epoch == 3 && rank == kVictim && fail) fail();
    slot = pass->begin(nullptr);
    pass->cast(0, {&view, 1}, nullptr);
    pass->wait_cast(0, nullptr);
    pass->end(nullptr);
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    try {
      comm->check();
    } catch (const Error&) {
      // The device is still there.
      check(cudaMemset(source.as<void>(), 0, source.bytes()), "cudaMemset");
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      throw;
    }
  }
  HostTensor got(DType::kFloat32, kRows, 2, 8);
  check(cudaMemcpy(got.view().data, pass->landing(0, slot).data, static_cast<size_t>(got.bytes()),
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  for (int64_t row = 0; row < kRows; row += 13) {
    ASSERT_EQ(got.at(row, 1, 7), testing::element_value(1 - rank, 0, row, 1, 7)) << "row " << row;
  }
  group.communicator().barrier("done");
}

std::vector<testing::Outcome> run(DeviceTransport transport, const std::function<void()>& fail, double limit_s) {
  const TemporaryFolder folder;
  return run_processes(kSize, [&](int rank) { swap_rows(transport, rank, folder.path(), fail); }, limit_s);
}

class DeviceProcesses : public ::testing::TestWithParam<DeviceTransport> {
 protected:
  void SetUp() override {
    // NCCL wants a GPU for each rank. Asked in a process of its own, since this one must not touch CUDA.
    if (GetParam() != DeviceTransport::kNccl) return;
    const auto outcome = run_processes(1, [](int) {
      int count = 0;
      check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
      if (count < kSize) throw NotAvailable("too few GPUs");
    });
    if (!outcome[0].error_text.empty()) GTEST_SKIP() << outcome[0].error_text;
  }
};
INSTANTIATE_TEST_SUITE_P(Device, DeviceProcesses,
                         ::testing::Values(DeviceTransport::kCopyEngine, DeviceTransport::kNccl),
                         [](const auto& param_info) {
                           return param_info.param == DeviceTransport::kNccl ? "Nccl" : "CopyEngine";
                         });

TEST_P(DeviceProcesses, SwapRows) {
  for (const testing::Outcome& outcome : run(GetParam(), nullptr, 60)) {
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_text, "");
  }
}

TEST_P(DeviceProcesses, KilledRankIsNamedWithOperationAndStage) {
  const testing::Outcome survivor = run(GetParam(), [] { raise(SIGKILL); }, 60)[0];
  EXPECT_EQ(survivor.error_type, "CommError");
  EXPECT_THAT(survivor.error_text, HasSubstr("rank 1 has ended (noticed by rank 0)"));
  // Over NCCL the host may notice while nothing is under way.
  if (GetParam() == DeviceTransport::kCopyEngine) {
    EXPECT_THAT(survivor.error_text, HasSubstr("'forward'"));
  }
}

TEST_P(DeviceProcesses, StoppedRankIsNamedWithOperationAndStageAtTheDeadline) {
  const testing::Outcome survivor = run(GetParam(), [] { raise(SIGSTOP); }, 20)[0];
  EXPECT_EQ(survivor.error_type, "Timeout");
  EXPECT_THAT(survivor.error_text,
              HasSubstr("group_cast 'forward' stage 0: rank 1 did not take part within 2 s (noticed by rank 0)"));
}

}  // namespace
}  // namespace tangram
