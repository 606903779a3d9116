// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports with ranks as processes, one of which may fail. The test itself must not touch CUDA: it forks.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "comm/exchange_tables.hpp"
#include "comm/nccl/nccl_api.hpp"
#include "comm/process_group.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/env.hpp"
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
constexpr int64_t kRows = 4096;
constexpr double kTimeout_s = 2;

struct GroupSetup {
  DeviceCommunicatorConfig config;
  int size = kSize;
  int forged_ranks_per_node = 0;  // so many claim to share a node; 0: none claims anything
  int failing_epoch = 3;
};

/// Before anything looks at the node: this process claims to be on node a, b, ... NCCL then takes it for another host,
/// lets it share a GPU with ranks of others, and reaches them through sockets.
void claim_node(int node) {
  Env env = Env::get();
  env.node_id = std::string(1, static_cast<char>('a' + node));
  Env::set(env);
  ::setenv("NCCL_HOSTID", env.node_id.c_str(), 1);
  ::setenv("NCCL_NET", "Socket", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

/// All ranks send all rows to all others.
DevicePassSpec swap_spec(int rank, int size) {
  DevicePassSpec spec;
  spec.label = "forward";
  Exchange& exchange = spec.casts.emplace_back();
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    exchange.sends.push_back({peer, {0, kRows}, rank * kRows});
    exchange.recvs.push_back({peer, {peer * kRows, (peer + 1) * kRows}, 0});
  }
  spec.recv_buffers = {{size * kRows, 2, 8, DType::kFloat32}};
  return spec;
}

/// Swaps rows in a few epochs, before one of which `fail` is called on the last rank; the first error of check().
void swap_rows(const GroupSetup& setup, int rank, const std::string& folder, const std::function<void()>& fail) {
  if (setup.forged_ranks_per_node > 0) claim_node(rank / setup.forged_ranks_per_node);
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  check(cudaSetDevice(rank % num_devices), "cudaSetDevice");
  SocketGroup group({rank, setup.size, "unix:" + folder, 20});
  const auto comm = make_device_communicator(group.communicator(), setup.config);
  const auto pass = comm->prepare_pass(swap_spec(rank, setup.size));
  const HostTensor host = testing::make_filled(DType::kFloat32, kRows, 2, 8, rank, 0);
  const DeviceBuffer source = DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes()));
  ConstTensorView view = host.view();
  view.data = source.as<void>();
  group.communicator().barrier("ready");
  int slot = 0;
  for (int epoch = 0; epoch < 6; ++epoch) {
    if (epoch == setup.failing_epoch && rank == setup.size - 1 && fail) fail();
    slot = pass->begin(nullptr);
    pass->cast(0, {&view, 1}, nullptr);
    pass->wait_group_cast(0, nullptr);
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
  HostTensor got(DType::kFloat32, setup.size * kRows, 2, 8);
  check(cudaMemcpy(got.view().data, pass->recv_buffers(0, slot).data, static_cast<size_t>(got.bytes()),
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  for (int peer = 0; peer < setup.size; ++peer) {
    for (int64_t row = 0; row < kRows && peer != rank; row += 13) {
      ASSERT_EQ(got.at(peer * kRows + row, 1, 7), testing::element_value(peer, 0, row, 1, 7)) << "row " << row;
    }
  }
  if (const int per_node = setup.forged_ranks_per_node; per_node > 0) {
    // Each row crosses once to each other node, however many ranks of it receive it, in each of the epochs.
    EXPECT_EQ(comm->name(), "hierarchical");
    const int64_t other_nodes = setup.size / per_node - 1;
    EXPECT_EQ(comm->across_nodes().rows_sent, 6 * kRows * other_nodes);
    EXPECT_EQ(comm->across_nodes().rows_received, 6 * kRows * other_nodes);
    EXPECT_EQ(comm->across_nodes().bytes_sent, 6 * kRows * other_nodes * 2 * 8 * 4);
  }
  group.communicator().barrier("done");
}

std::vector<testing::Outcome> run(const GroupSetup& setup, const std::function<void()>& fail, double limit_s) {
  const TemporaryFolder folder;
  return run_processes(setup.size, [&](int rank) { swap_rows(setup, rank, folder.path(), fail); }, limit_s);
}
std::vector<testing::Outcome> run(DeviceTransport transport, const std::function<void()>& fail, double limit_s) {
  return run({{.transport = transport, .timeout_s = kTimeout_s}}, fail, limit_s);
}

/// Two nodes of two ranks, of which the last one may be lost.
std::vector<testing::Outcome> run_nodes(DeviceTransport transport, const std::function<void()>& fail, double limit_s) {
  return run({{.transport = transport, .timeout_s = kTimeout_s, .ranks_per_node = 2}, 4}, fail, limit_s);
}

void skip_without(int num_gpus) {
  // Asked in a process of its own, since this one must not touch CUDA.
  const auto outcome = run_processes(1, [num_gpus](int) {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (count < num_gpus) throw NotAvailable("too few GPUs");
  });
  if (!outcome[0].error_text.empty()) GTEST_SKIP() << outcome[0].error_text;
}

class DeviceProcesses : public ::testing::TestWithParam<DeviceTransport> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceTransport::kNccl) skip_without(kSize);  // it wants a GPU for each rank
  }
  static void need_gpus_of_four(DeviceTransport transport) {
    if (transport == DeviceTransport::kNccl) skip_without(4);
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

TEST_P(DeviceProcesses, SwapRowsBetweenNodes) {
  need_gpus_of_four(GetParam());
  if (IsSkipped()) return;
  for (const testing::Outcome& outcome : run_nodes(GetParam(), nullptr, 60)) {
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_text, "");
  }
}

TEST_P(DeviceProcesses, RankThatIsLostIsNamedOnAllNodes) {
  need_gpus_of_four(GetParam());
  if (IsSkipped()) return;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const auto outcomes = run_nodes(GetParam(), [signal] { raise(signal); }, 15);
    for (size_t rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(::testing::Message() << "signal " << signal << ", rank " << rank);
      EXPECT_THAT(outcomes[rank].error_type, ::testing::AnyOf("CommError", "Timeout"));
      EXPECT_THAT(outcomes[rank].error_text, HasSubstr("rank 3"));
    }
  }
}

struct ForgedNodes {
  int num_nodes = 2;
  int ranks_per_node = 1;
};
void PrintTo(const ForgedNodes& nodes, std::ostream* stream) {
  *stream << nodes.num_nodes << "x" << nodes.ranks_per_node;
}

class ForgedNodesOf : public ::testing::TestWithParam<ForgedNodes> {
 protected:
  void SetUp() override {
    skip_without(1);
    if (IsSkipped()) return;
    try {
      static_cast<void>(comm::NcclApi::get());
    } catch (const NotAvailable& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static GroupSetup setup() {
    GroupSetup setup;
    setup.config.timeout_s = kTimeout_s;
    setup.size = GetParam().num_nodes * GetParam().ranks_per_node;
    setup.forged_ranks_per_node = GetParam().ranks_per_node;
    return setup;
  }
};
INSTANTIATE_TEST_SUITE_P(Device, ForgedNodesOf,
                         ::testing::Values(ForgedNodes{2, 1}, ForgedNodes{4, 1}, ForgedNodes{2, 2}),
                         [](const auto& param_info) {
                           return std::to_string(param_info.param.num_nodes) + "NodesOf" +
                                  std::to_string(param_info.param.ranks_per_node);
                         });

TEST_P(ForgedNodesOf, AreFoundAndSwapRowsThatCrossToEachNodeOnce) {
  GroupSetup patient = setup();
  patient.config.timeout_s = 30;
  for (const testing::Outcome& outcome : run(patient, nullptr, 120)) {
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_text, "");
  }
}

TEST_P(ForgedNodesOf, ARankThatIsLostIsNamedWithItsNodeOnAllRanks) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const int epoch : {0, 3}) {
      GroupSetup failing = setup();
      failing.failing_epoch = epoch;
      const auto outcomes = run(failing, [signal] { raise(signal); }, 60);
      const std::string lost = "rank " + std::to_string(failing.size - 1) + " (node ";
      for (int rank = 0; rank + 1 < failing.size; ++rank) {
        SCOPED_TRACE(::testing::Message() << "signal " << signal << ", epoch " << epoch << ", rank " << rank);
        const testing::Outcome& outcome = outcomes[static_cast<size_t>(rank)];
        EXPECT_TRUE(outcome.ended) << "it hangs";
        EXPECT_THAT(outcome.error_type, ::testing::AnyOf("CommError", "Timeout"));
        EXPECT_THAT(outcome.error_text, HasSubstr(lost + static_cast<char>('a' + GetParam().num_nodes - 1) + ")"));
      }
    }
  }
}

}  // namespace
}  // namespace tangram
