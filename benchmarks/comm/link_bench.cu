// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the links between GPUs give to copy engines: GB/s of pushes by size, with and without a flag copy after each,
// eager and as a graph, one way and all ranks at once; and the time that a flag takes. Prints CSV.
//
//     link_bench RANKS
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm/heap/symmetric_heap.hpp"
#include "comm/socket/forked_ranks.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/ptx/system.cuh"

namespace {

using namespace tangram;
using cuda::check;

constexpr size_t kAreaBytes = size_t{256} << 20;
constexpr int kNumRounds = 5;
constexpr uint64_t kTimeout_ns = 5'000'000'000;

/// Answers `count` flags: waits for `flag` to reach i, then writes i to `reply`.
__global__ void answer(const uint64_t* flag, uint64_t* reply, uint64_t first, uint64_t count) {
  const uint64_t begin = ptx::global_timer_ns();
  for (uint64_t i = first; i < first + count; ++i) {
    while (ptx::load_acquire_system(flag) < i) {
      if (ptx::global_timer_ns() - begin > kTimeout_ns) return;
    }
    ptx::store_release_system(reply, i);
  }
}
/// Sends `count` flags by store and waits for each reply; the nanoseconds of all.
__global__ void ask(uint64_t* flag, const uint64_t* reply, uint64_t first, uint64_t count, uint64_t* elapsed) {
  const uint64_t begin = ptx::global_timer_ns();
  for (uint64_t i = first; i < first + count; ++i) {
    ptx::store_release_system(flag, i);
    while (ptx::load_acquire_system(reply) < i) {
      if (ptx::global_timer_ns() - begin > kTimeout_ns) return;
    }
  }
  *elapsed = ptx::global_timer_ns() - begin;
}
__global__ void stamp(uint64_t* time) { *time = ptx::global_timer_ns(); }
__global__ void stamp_when(const uint64_t* flag, uint64_t value, uint64_t* time) {
  const uint64_t begin = ptx::global_timer_ns();
  while (ptx::load_acquire_system(flag) < value) {
    if (ptx::global_timer_ns() - begin > kTimeout_ns) return;
  }
  *time = ptx::global_timer_ns();
}
__global__ void set_value(uint64_t* cell, uint64_t value) { *cell = value; }

enum class Api { kMemcpy, kBatch };

struct Bench {
  Communicator& control;
  comm::SymmetricHeap heap;
  std::unique_ptr<comm::SymmetricBlock> area, flags;
  cuda::DeviceBuffer source, cells;
  cudaStream_t stream = nullptr, other = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;

  explicit Bench(Communicator& c)
      : control(c),
        heap(c, 30),
        area(heap.allocate(kAreaBytes, "area")),
        flags(heap.allocate(4096, "flags")),
        source(kAreaBytes),
        cells(cuda::DeviceBuffer::zeros(4096)) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
  }

  int next() const { return (control.rank() + 1) % control.size(); }
  uint64_t* flag(int rank, int idx) const { return reinterpret_cast<uint64_t*>(flags->peer(rank)) + 8 * idx; }

  void push_all(Api api, size_t bytes, int count, bool with_flag) {
    char* const to = area->peer(next());
    for (int i = 0; i < count; ++i) {
      const size_t offset = bytes * static_cast<size_t>(i) % kAreaBytes;
      if (api == Api::kMemcpy) {
        check(cudaMemcpyAsync(to + offset, source.as<char>() + offset, bytes, cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
      } else {
        void* targets[1] = {to + offset};
        const void* sources[1] = {source.as<char>() + offset};
        cudaMemcpyAttributes attributes = {};
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
        size_t first = 0;
        check(cudaMemcpyBatchAsync(targets, sources, &bytes, 1, &attributes, &first, 1, stream), "batch");
      }
      if (with_flag) {
        check(cudaMemcpyAsync(flag(next(), 20), cells.as<void>(), 8, cudaMemcpyDeviceToDevice, stream), "flag");
      }
    }
  }

  double median_gb_per_s(const std::function<void()>& work, double bytes, bool active) {
    std::vector<double> rates;
    for (int round = 0; round <= kNumRounds; ++round) {
      control.barrier("round");
      if (active) {
        check(cudaEventRecord(begin, stream), "record");
        work();
        check(cudaEventRecord(end, stream), "record");
        check(cudaStreamSynchronize(stream), "synchronize");
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
        if (round > 0) rates.push_back(bytes / 1e6 / ms);
      }
      control.barrier("round end");
    }
    if (!active) return 0;
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() / 2];
  }

  void sweep(const char* pattern, bool all) {
    const bool active = all || control.rank() == 0;
    for (size_t bytes = size_t{64} << 10; bytes <= size_t{64} << 20; bytes *= 4) {
      const int count = static_cast<int>(std::clamp<size_t>((size_t{512} << 20) / bytes, 8, 512));
      const double total = static_cast<double>(bytes) * count;
      const auto measure = [&](Api api, bool with_flag) {
        return median_gb_per_s([&] { push_all(api, bytes, count, with_flag); }, total, active);
      };
      const double plain = measure(Api::kMemcpy, false), batch = measure(Api::kBatch, false);
      const double flagged = measure(Api::kMemcpy, true);
      cudaGraph_t graph;
      cudaGraphExec_t replay;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
      push_all(Api::kMemcpy, bytes, count, true);
      check(cudaStreamEndCapture(stream, &graph), "capture");
      check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
      const double graphed =
          median_gb_per_s([&] { check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch"); }, total, active);
      check(cudaGraphExecDestroy(replay), "destroy");
      check(cudaGraphDestroy(graph), "destroy");
      if (!active) continue;
      std::printf("push,%s,%d,%zu,%.1f,%.1f,%.1f,%.1f\n", pattern, control.rank(), bytes >> 10, plain, batch, flagged,
                  graphed);
    }
  }

  /// Rank 0 asks, rank 1 answers; the others look on.
  void flag_latency() {
    constexpr uint64_t kCount = 1000;
    uint64_t* const times = cells.as<uint64_t>() + 8;
    control.barrier("latency");
    if (control.rank() == 1) answer<<<1, 1, 0, stream>>>(flag(1, 0), flag(0, 1), 1, kCount);
    if (control.rank() == 0) ask<<<1, 1, 0, stream>>>(flag(1, 0), flag(0, 1), 1, kCount, times);
    check(cudaStreamSynchronize(stream), "ping-pong");
    uint64_t elapsed = 0;
    check(cudaMemcpy(&elapsed, times, 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
    const double store_us = static_cast<double>(elapsed) / 1e3 / kCount / 2;
    std::vector<double> copy_us;
    for (uint64_t i = kCount + 1; i < kCount + 22; ++i) {
      control.barrier("copy latency");
      if (control.rank() == 1) answer<<<1, 1, 0, stream>>>(flag(1, 0), flag(0, 1), i, 1);
      if (control.rank() == 0) stamp_when<<<1, 1, 0, other>>>(flag(0, 1), i, times + 1);
      control.barrier("waiting");
      if (control.rank() == 0) {
        set_value<<<1, 1, 0, stream>>>(cells.as<uint64_t>() + 4, i);
        stamp<<<1, 1, 0, stream>>>(times);
        check(cudaMemcpyAsync(flag(1, 0), cells.as<uint64_t>() + 4, 8, cudaMemcpyDeviceToDevice, stream), "flag");
      }
      check(cudaDeviceSynchronize(), "copy latency");
      uint64_t both[2];
      check(cudaMemcpy(both, times, 16, cudaMemcpyDeviceToHost), "cudaMemcpy");
      copy_us.push_back(static_cast<double>(both[1] - both[0]) / 1e3 - store_us);
    }
    std::sort(copy_us.begin(), copy_us.end());
    if (control.rank() == 0) {
      std::printf("flag,store,,,%.2f\nflag,copy_after_kernel,,,%.2f\n", store_us, copy_us[copy_us.size() / 2]);
    }
    control.barrier("latency end");
  }
};

int run_rank(Communicator& control) {
  int num_devices = 0, engines = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  check(cudaSetDevice(control.rank() % num_devices), "cudaSetDevice");
  check(cudaDeviceGetAttribute(&engines, cudaDevAttrAsyncEngineCount, control.rank() % num_devices), "attribute");
  Bench bench(control);
  if (control.rank() == 0) {
    std::printf("async_engine_count,%d\nkind,pattern,rank,kib,memcpy,batch,memcpy_flag,graph_flag\n", engines);
  }
  bench.flag_latency();
  bench.sweep("one_way", false);
  bench.sweep("all_to_next", true);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Loading a kernel while another one waits for its work would wait for that one.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return tangram::comm::run_forked_ranks(
      argc > 1 ? std::atoi(argv[1]) : 2, run_rank,
      [](const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
      },
      60);
}
