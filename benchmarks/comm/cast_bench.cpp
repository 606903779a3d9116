// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a cast of the transport copy_engine gives: every rank sends all its rows to all others, as ranges of one
// size, eager and as a graph replay; GB/s that a rank sends, from begin to the arrival of all rows, and host time of an
// epoch. Ranks are processes. Prints CSV.
//
//     cast_bench RANKS
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "comm/socket/forked_ranks.hpp"
#include "core/median.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/device_communicator.hpp"

namespace {

using namespace tangram;
using cuda::check;

constexpr int kHeads = 8;
constexpr int kDim = 128;
constexpr int64_t kRowBytes = kHeads * kDim * 2;
constexpr int kNumEpochs = 20;
constexpr int kNumRounds = 5;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// All rows to all peers, every second range of the receive buffer left out, so that ranges do not merge.
DevicePassSpec all_to_all(int rank, int size, int64_t rows, int64_t local_range_rows) {
  DevicePassSpec spec;
  spec.label = "all to all";
  Exchange exchange;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    for (int64_t row = 0; row < rows; row += local_range_rows) {
      const int64_t end = std::min(rows, row + local_range_rows);
      exchange.sends.push_back({peer, {row, end}, 2 * (rank * rows + row)});
      exchange.recvs.push_back({peer, {2 * (peer * rows + row), 2 * (peer * rows + row) + end - row}, row});
    }
  }
  spec.casts = {exchange};
  spec.recv_buffers.assign(2, {2 * size * rows, kHeads, kDim, DType::kBFloat16});
  return spec;
}

class CastBench {
 public:
  CastBench(DeviceCommunicator& comm, int64_t rows, int64_t local_range_rows)
      : comm_(comm),
        rows_(rows),
        local_range_rows_(local_range_rows),
        pass_(comm.prepare_pass(all_to_all(comm.rank(), comm.size(), rows, local_range_rows))),
        source_(static_cast<size_t>(rows * kRowBytes)) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }

  void run() {
    comm_.reset_counters();
    epoch();
    check(cudaStreamSynchronize(stream_), "synchronize");
    const int64_t bytes = comm_.counters().bytes_sent;
    const auto eager = measure([&] { epoch(); });
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    epoch();
    check(cudaStreamEndCapture(stream_, &graph), "end capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    const auto graphed = measure([&] { check(cudaGraphLaunch(replay, stream_), "launch"); });
    comm_.check();
    const double planned = static_cast<double>(2 * (comm_.size() - 1) * rows_ * kRowBytes);
    std::printf("cast,%d,%d,%lld,%lld,%.3f,%.1f,%.1f,%.1f,%.1f,%d\n", comm_.size(), comm_.rank(),
                static_cast<long long>(rows_), static_cast<long long>(local_range_rows_ * kRowBytes >> 10),
                static_cast<double>(bytes) / 1e6, static_cast<double>(bytes) / 1e3 / eager.device_us,
                static_cast<double>(bytes) / 1e3 / graphed.device_us, eager.host_us, graphed.host_us,
                static_cast<double>(bytes) == planned ? 1 : 0);
    std::fflush(stdout);
    comm_.control().barrier("size done");
    check(cudaGraphExecDestroy(replay), "destroy");
    check(cudaGraphDestroy(graph), "destroy");
  }

 private:
  struct Times {
    double device_us = 0;
    double host_us = 0;
  };

  void epoch() {
    pass_->begin(stream_);
    const ConstTensorView source{source_.as<void>(), DType::kBFloat16, rows_, kHeads, kDim, kHeads * kDim, kDim};
    const ConstTensorView sources[] = {source, source};
    pass_->cast(0, sources, stream_);
    pass_->wait_group_cast(0, stream_);
    pass_->end(stream_);
  }

  template <class Work>
  Times measure(Work work) {
    std::vector<double> device, host;
    for (int round = 0; round <= kNumRounds; ++round) {
      comm_.control().barrier("round");
      check(cudaEventRecord(begin_, stream_), "record");
      const double start_s = now_s();
      for (int i = 0; i < kNumEpochs; ++i) work();
      host.push_back((now_s() - start_s) * 1e6 / kNumEpochs);
      check(cudaEventRecord(end_, stream_), "record");
      check(cudaStreamSynchronize(stream_), "synchronize");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
      device.push_back(ms * 1e3 / kNumEpochs);
    }
    return {median(device), median(host)};
  }

  DeviceCommunicator& comm_;
  const int64_t rows_;
  const int64_t local_range_rows_;
  std::shared_ptr<DevicePass> pass_;
  cuda::DeviceBuffer source_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

int run_rank(Communicator& control) {
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  check(cudaSetDevice(control.rank() % num_devices), "cudaSetDevice");
  const auto comm = make_device_communicator(control);
  if (control.rank() == 0) {
    std::printf(
        "kind,ranks,rank,rows,local_range_kib,mb,eager_gb_per_s,graph_gb_per_s,eager_host_us,graph_host_us,bytes_as_"
        "planned"
        "\n");
    std::fflush(stdout);
  }
  for (const int64_t rows : {int64_t{8192}, int64_t{32768}}) {
    for (const int64_t local_range_rows : {int64_t{8}, int64_t{64}, int64_t{512}, int64_t{2048}, int64_t{8192}}) {
      CastBench(*comm, rows, local_range_rows).run();
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tangram::comm::run_forked_ranks(
      argc > 1 ? std::atoi(argv[1]) : 2, run_rank,
      [](const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
      },
      30);
}
