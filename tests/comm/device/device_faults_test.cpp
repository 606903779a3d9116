// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Faults at random moments of passes over device transports, each in a pair of fresh processes. TANGRAM_FAULT_ROUNDS
// says how many (default 3 a transport), TANGRAM_FAULT_SEED where they start. The test itself must not touch CUDA.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

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
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::run_processes;
using testing::TemporaryFolder;

constexpr int kSize = 2;
constexpr int kVictim = 1;
constexpr int64_t kRows = 8192;
constexpr int kHeads = 4;
constexpr int kDim = 32;
constexpr int64_t kValues = kRows * kHeads * kDim;
constexpr double kTimeout_s = 2;
// From the last epoch that went well to the error: the deadline, and as much again for what ends after it.
constexpr double kMostSilent_s = 2 * kTimeout_s + 1;
constexpr auto kForever = std::chrono::seconds(60);

enum class Fault { kKilled, kStopped, kNeverConnects, kNeverOpens, kNeverBegins };
constexpr const char* kNames[] = {"killed", "stopped", "never connects", "never opens its GPU", "never begins"};

struct Round {
  Fault fault = Fault::kKilled;
  std::chrono::microseconds moment{};  // of kKilled and kStopped, from the first epoch on
};

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// Both ranks send all rows to each other in two stages, and get a gradient of each back.
DevicePassSpec swap_spec(int rank) {
  const int peer = 1 - rank;
  DevicePassSpec spec;
  spec.label = "swap";
  for (const Range rows : {Range{0, kRows / 2}, Range{kRows / 2, kRows}}) {
    spec.casts.push_back({{{peer, rows, rows.begin}}, {{peer, rows, rows.begin}}});
    spec.reduces.push_back({{{peer, rows, rows.begin}}, {{peer, rows, rows.begin}}});
  }
  spec.recv_buffers = {{kRows, kHeads, kDim, DType::kFloat32}};
  spec.returns = {{kRows, kRows, kHeads, kDim, DType::kFloat32, DType::kFloat32}};
  return spec;
}

void expect_all(const void* device, float value) {
  std::vector<float> host(static_cast<size_t>(kValues));
  check(cudaMemcpy(host.data(), device, host.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (const float got : host) ASSERT_EQ(got, value);
}

/// A tensor whose values are replaced from the host.
class Tensor {
 public:
  Tensor() : memory_(static_cast<size_t>(kValues) * sizeof(float)) {}
  TensorView view() const {
    return {{memory_.as<void>(), DType::kFloat32, kRows, kHeads, kDim, int64_t{kHeads} * kDim, kDim}};
  }
  void fill(float value) {
    const std::vector<float> host(static_cast<size_t>(kValues), value);
    cuda::upload(memory_.as<void>(), host.data(), host.size() * sizeof(float));
  }

 private:
  DeviceBuffer memory_;
};

/// Epochs with new numbers until something fails, which it must; then shows that the process is still of use.
void swap_until_failure(DeviceCommunicator& comm, const Round& round) {
  const int rank = comm.rank();
  const auto pass = comm.prepare_pass(swap_spec(rank));
  Tensor source, partial, sum;
  comm.control().barrier("ready");
  if (rank == kVictim && round.fault == Fault::kNeverBegins) std::this_thread::sleep_for(kForever);
  std::thread fault;
  if (rank == kVictim) {
    fault = std::thread([&] {
      std::this_thread::sleep_for(round.moment);
      ::kill(::getpid(), round.fault == Fault::kKilled ? SIGKILL : SIGSTOP);
    });
  }
  auto last = std::chrono::steady_clock::now();
  try {
    for (int epoch = 1;; ++epoch) {
      const auto value = static_cast<float>(epoch % 1000);
      source.fill(value + static_cast<float>(rank) * 1000);
      partial.fill(value * 2);
      const int slot = pass->begin(nullptr);
      const ConstTensorView sources[] = {source.view()}, partials[] = {partial.view()};
      for (const int stage : {0, 1}) pass->cast(stage, sources, nullptr);
      for (const int stage : {0, 1}) pass->wait_group_cast(stage, nullptr);
      for (const int stage : {0, 1}) pass->reduce(stage, partials, nullptr);
      const TensorView sums[] = {sum.view()};
      pass->finish_reduce(sources, sums, nullptr);
      pass->end(nullptr);
      check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
      comm.check();  // numbers are to be trusted only after it
      expect_all(pass->recv_buffers(0, slot).data, value + static_cast<float>(1 - rank) * 1000);
      expect_all(sum.view().data, value * 3 + static_cast<float>(rank) * 1000);
      last = std::chrono::steady_clock::now();
    }
  } catch (const Error&) {
    if (fault.joinable()) fault.join();
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - last).count(), kMostSilent_s);
    source.fill(7);
    expect_all(source.view().data, 7);
    throw;
  }
}

void run_rank(DeviceTransport transport, int rank, const std::string& folder, const Round& round) {
  const std::string victim_file = folder + "/victim";
  if (rank == kVictim) {
    std::ofstream(victim_file) << ::getpid();
    if (round.fault == Fault::kNeverConnects) std::this_thread::sleep_for(kForever);
  }
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  check(cudaSetDevice(rank % num_devices), "cudaSetDevice");
  check(cudaFree(nullptr), "cudaFree");
  const auto finish = [&] {  // the victim may stand still
    pid_t victim = 0;
    if (rank != kVictim && std::ifstream(victim_file) >> victim) ::kill(victim, SIGKILL);
  };
  try {
    SocketGroup group({rank, kSize, "unix:" + folder, round.fault == Fault::kNeverConnects ? kTimeout_s : 20});
    if (rank == kVictim && round.fault == Fault::kNeverOpens) std::this_thread::sleep_for(kForever);
    std::filesystem::create_directory(folder + "/quick");
    SocketGroup quick({rank, kSize, "unix:" + folder + "/quick", kTimeout_s});
    const auto comm = make_device_communicator(quick.communicator(), {transport, kTimeout_s});
    swap_until_failure(*comm, round);
  } catch (...) {
    finish();
    throw;
  }
}

class DeviceFaults : public ::testing::TestWithParam<DeviceTransport> {
 protected:
  void SetUp() override {
    const int wanted = GetParam() == DeviceTransport::kNccl ? kSize : 1;
    const auto outcome = run_processes(1, [wanted](int) {
      int count = 0;
      check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
      if (count < wanted) throw NotAvailable("too few GPUs");
    });
    if (!outcome[0].error_text.empty()) GTEST_SKIP() << outcome[0].error_text;
  }
};

TEST_P(DeviceFaults, AtRandomMomentsEndInErrorsOfTheSurvivor) {
  const int seed = number_from("TANGRAM_FAULT_SEED", 1), rounds = number_from("TANGRAM_FAULT_ROUNDS", 3);
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int i = 0; i < rounds; ++i) {
    Round round;
    // Two of three are killed or stopped while rows move.
    const unsigned draw = random() % 9;
    round.fault = draw < 3 ? Fault::kKilled : draw < 6 ? Fault::kStopped : static_cast<Fault>(draw - 4);
    round.moment = std::chrono::microseconds(random() % 40000);
    SCOPED_TRACE(fmt::format("round {} of seed {}: {} after {} us", i, seed, kNames[static_cast<int>(round.fault)],
                             round.moment.count()));
    const TemporaryFolder folder;
    const testing::Outcome survivor =
        run_processes(kSize, [&](int rank) { run_rank(GetParam(), rank, folder.path(), round); }, 40)[0];
    ASSERT_TRUE(survivor.ended);
    EXPECT_EQ(survivor.exit_code, 0);  // no wrong number, in time, and the device was still there
    EXPECT_THAT(survivor.error_type, AnyOf("Timeout", "CommError")) << survivor.error_text;
    EXPECT_THAT(survivor.error_text, HasSubstr("rank 1"));
  }
}
INSTANTIATE_TEST_SUITE_P(Device, DeviceFaults, ::testing::Values(DeviceTransport::kCopyEngine, DeviceTransport::kNccl),
                         [](const auto& param_info) {
                           return param_info.param == DeviceTransport::kNccl ? "Nccl" : "CopyEngine";
                         });

}  // namespace
}  // namespace tangram
