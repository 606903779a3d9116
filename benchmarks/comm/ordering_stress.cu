// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whether a kernel that sees the flag of a copy engine sees the data too: every rank pushes stretches of random size to
// the next one with copy engines, each followed by an 8-byte copy of the epoch to a flag; thread blocks of the receiver
// poll the flags, load the data by TMA, and compare every word. See docs/design/comm_gpu.md.
//
//     ordering_stress RANKS EPOCHS [API] [BACKGROUND] [ROUND]     API: memcpy | batch; BACKGROUND: 0 | 1
//
// All stands still after every ROUND epochs (default: never).
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/heap/symmetric_heap.hpp"
#include "comm/socket/forked_ranks.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/system.cuh"
#include "cuda/ptx/tma.cuh"

namespace {

using namespace tangram;
using cuda::check;

constexpr int kNumSlots = 64;      // landing areas of a rank, one for each consuming thread block
constexpr int kCreditEpochs = 16;  // pushes between two waits for the receiver
constexpr uint32_t kMaxBytes = 1 << 20;
constexpr uint32_t kChunkBytes = 16 << 10;
constexpr size_t kSourceBytes = size_t{64} << 20;
constexpr uint64_t kTimeout_ns = 20'000'000'000;

__host__ __device__ uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// What epoch `e` of a sender moves: `bytes` from `offset` of its source, multiples of 16. Half of the sizes are spread
/// evenly up to 1 MB, half evenly over the powers of two.
struct Push {
  uint64_t offset;
  uint32_t bytes;
};
__host__ __device__ Push push_of(uint64_t e, int sender) {
  const uint64_t r = mix(e * 64 + static_cast<uint64_t>(sender)), s = mix(r);
  const uint64_t limit = (r & 1) ? kMaxBytes : uint64_t{16} << ((r >> 1) % 17);
  const uint32_t bytes = static_cast<uint32_t>((16 + s % limit) & ~uint64_t{15});
  const uint32_t capped = bytes > kMaxBytes ? kMaxBytes : bytes;
  return {(mix(s) % (kSourceBytes - kMaxBytes)) & ~uint64_t{15}, capped};
}
__host__ __device__ uint64_t source_word(uint64_t idx, int sender) {
  return mix(idx * 64 + static_cast<uint64_t>(sender) + 0x1234567);
}

__global__ void fill_source(uint64_t* source, uint64_t count, int sender) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x) {
    source[i] = source_word(i, sender);
  }
}
__global__ void fill_epochs(uint64_t* cells, uint64_t count) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x) {
    cells[i] = i + 1;
  }
}

/// What a consumer found. The first bad word is kept.
struct Findings {
  unsigned long long num_bad_words;
  unsigned long long num_bad_epochs;
  unsigned long long num_timeouts;
  unsigned long long num_words;
  unsigned long long first_epoch;
  unsigned long long first_word;
};

/// Block b consumes epochs first + b, first + b + kNumSlots, ... before `end` of `sender` and acknowledges each at
/// `acks[b]`, memory of the sender.
__global__ void consume(const char* landing, const uint64_t* flags, uint64_t* acks, int sender, uint64_t first,
                        uint64_t end, Findings* findings) {
  __shared__ alignas(128) uint64_t chunk[2][kChunkBytes / 8];
  __shared__ uint64_t barriers[2];
  __shared__ int arrived;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&barriers[0], 1);
    ptx::mbarrier_init(&barriers[1], 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  uint32_t parity[2] = {0, 0};
  const char* data = landing + uint64_t{blockIdx.x} * kMaxBytes;
  for (uint64_t e = first + blockIdx.x; e < end; e += kNumSlots) {
    const Push push = push_of(e, sender);
    const uint32_t num_chunks = (push.bytes + kChunkBytes - 1) / kChunkBytes;
    const auto load = [&](uint32_t c) {
      const uint32_t bytes = min(kChunkBytes, push.bytes - c * kChunkBytes);
      ptx::mbarrier_arrive_expect_tx(&barriers[c % 2], bytes);
      ptx::bulk_load(chunk[c % 2], data + c * kChunkBytes, bytes, &barriers[c % 2]);
    };
    if (threadIdx.x == 0) {
      const uint64_t begin = ptx::global_timer_ns();
      arrived = 1;
      while (static_cast<int64_t>(ptx::load_acquire_system(&flags[blockIdx.x]) - (e + 1)) < 0) {
        if (ptx::global_timer_ns() - begin < kTimeout_ns) continue;
        atomicAdd(&findings->num_timeouts, 1ULL);
        arrived = 0;
        break;
      }
      ptx::fence_proxy_async_global();
      if (arrived) load(0);
    }
    __syncthreads();
    if (!arrived) return;
    unsigned long long num_bad = 0, bad_word = 0;
    for (uint32_t c = 0; c < num_chunks; ++c) {
      if (threadIdx.x == 0 && c + 1 < num_chunks) load(c + 1);
      ptx::mbarrier_wait(&barriers[c % 2], parity[c % 2]);
      parity[c % 2] ^= 1;
      const uint32_t num_words = min(kChunkBytes, push.bytes - c * kChunkBytes) / 8;
      for (uint32_t i = threadIdx.x; i < num_words; i += blockDim.x) {
        const uint64_t word = c * (kChunkBytes / 8) + i;
        if (chunk[c % 2][i] != source_word(push.offset / 8 + word, sender)) {
          ++num_bad;
          bad_word = word;
        }
      }
      __syncthreads();
    }
    if (num_bad > 0 && atomicAdd(&findings->num_bad_words, num_bad) == 0) {
      findings->first_epoch = e;
      findings->first_word = bad_word;
    }
    const int bad_epoch = __syncthreads_or(num_bad > 0);
    if (threadIdx.x == 0) {
      if (bad_epoch) atomicAdd(&findings->num_bad_epochs, 1ULL);
      atomicAdd(&findings->num_words, static_cast<unsigned long long>(push.bytes / 8));
      ptx::store_release_system(&acks[blockIdx.x], e + 1);
    }
  }
}

/// Waits until the slots of epochs [first, first + kCreditEpochs) were consumed kNumSlots epochs before.
__global__ void wait_credit(const uint64_t* acks, uint64_t first) {
  const uint64_t e = first + threadIdx.x;
  if (e < kNumSlots) return;
  const uint64_t begin = ptx::global_timer_ns();
  while (static_cast<int64_t>(ptx::load_acquire_system(&acks[e % kNumSlots]) - (e - kNumSlots + 1)) < 0) {
    if (ptx::global_timer_ns() - begin > kTimeout_ns) return;
  }
}

/// Reads and writes the peer's memory until the flag is set.
__global__ void make_traffic(uint4* peer, uint64_t count, const volatile int* stop) {
  uint4 sum = {0, 0, 0, 0};
  while (!*stop) {
    for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count / 2;
         i += uint64_t{gridDim.x} * blockDim.x) {
      const uint4 value = peer[i];
      sum.x ^= value.x;
      peer[count / 2 + i] = sum;
    }
  }
}

/// The stop flag of make_traffic, memory of the host.
struct StopFlag {
  StopFlag() { check(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped), "cudaHostAlloc"), *flag = 0; }
  volatile int* device() const { return flag; }
  int* flag = nullptr;
};

void push_data(bool batch, char* to, const char* from, size_t bytes, cudaStream_t stream) {
  if (!batch) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
    return;
  }
  // Two pieces in one batch, whose order among each other nobody promises.
  const size_t half = bytes / 32 * 16, sizes[2] = {bytes - half, half};
  void* targets[2] = {to, to + sizes[0]};
  const void* sources[2] = {from, from + sizes[0]};
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;
  check(cudaMemcpyBatchAsync(targets, sources, sizes, half > 0 ? 2 : 1, &attributes, &first, 1, stream),
        "cudaMemcpyBatchAsync");
}

struct Options {
  uint64_t num_epochs = 0;
  uint64_t round = 0;  // a multiple of kNumSlots
  bool batch = false;
  bool background = false;
};

int run_rank(Communicator& control, const Options& options) {
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  const int rank = control.rank(), size = control.size(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
  check(cudaSetDevice(rank % num_devices), "cudaSetDevice");
  comm::SymmetricHeap heap(control, 30);
  const auto landing = heap.allocate(size_t{kNumSlots} * kMaxBytes, "landing");
  const auto flags = heap.allocate(4096, "flags");  // the first kNumSlots: arrivals; the next: acknowledgements
  const auto spare = heap.allocate(size_t{64} << 20, "background");
  const cuda::DeviceBuffer source(kSourceBytes), cells(options.num_epochs * 8), findings(sizeof(Findings));
  check(cudaMemset(findings.as<void>(), 0, sizeof(Findings)), "cudaMemset");
  fill_source<<<256, 256>>>(source.as<uint64_t>(), kSourceBytes / 8, rank);
  fill_epochs<<<256, 256>>>(cells.as<uint64_t>(), options.num_epochs);
  cudaStream_t consumer, sender, traffic, copies;
  for (cudaStream_t* stream : {&consumer, &sender, &traffic, &copies}) {
    check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  StopFlag stop;
  // What the first call of a kind sets up would wait for the consumer.
  for (const bool batch : {false, true}) push_data(batch, spare->peer(next), source.as<char>(), 4096, sender);
  wait_credit<<<1, kCreditEpochs, 0, sender>>>(source.as<uint64_t>(), 0);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  control.barrier("start");

  const auto begin = std::chrono::steady_clock::now();
  uint64_t* const arrivals = reinterpret_cast<uint64_t*>(flags->local());
  const auto start_round = [&](uint64_t first) {
    *stop.flag = 0;
    consume<<<kNumSlots, 256, 0, consumer>>>(
        landing->local(), arrivals, reinterpret_cast<uint64_t*>(flags->peer(previous)) + kNumSlots, previous, first,
        std::min(first + options.round, options.num_epochs), findings.as<Findings>());
    if (!options.background) return;
    make_traffic<<<8, 512, 0, traffic>>>(reinterpret_cast<uint4*>(spare->peer(next)), (size_t{16} << 20) / 16,
                                         stop.device());
  };
  const auto end_round = [&] {
    check(cudaGetLastError(), "launch");
    check(cudaStreamSynchronize(sender), "sender");
    check(cudaStreamSynchronize(consumer), "consumer");
    *stop.flag = 1;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  };
  char* const target = landing->peer(next);
  uint64_t* const target_flags = reinterpret_cast<uint64_t*>(flags->peer(next));
  uint64_t bytes_moved = 0;
  for (uint64_t e = 0; e < options.num_epochs; ++e) {
    if (e % options.round == 0) {
      if (e > 0) end_round();
      start_round(e);
    }
    if (e % kCreditEpochs == 0) wait_credit<<<1, kCreditEpochs, 0, sender>>>(arrivals + kNumSlots, e);
    const Push push = push_of(e, rank);
    push_data(options.batch, target + (e % kNumSlots) * kMaxBytes, source.as<char>() + push.offset, push.bytes, sender);
    push_data(false, reinterpret_cast<char*>(target_flags + e % kNumSlots), cells.as<char>() + e * 8, 8, sender);
    bytes_moved += push.bytes;
    if (options.background && e % 512 == 0) {
      push_data(false, spare->peer(next) + (size_t{32} << 20), source.as<char>(), size_t{32} << 20, copies);
    }
  }
  end_round();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  Findings found;
  check(cudaMemcpy(&found, findings.as<void>(), sizeof(found), cudaMemcpyDeviceToHost), "cudaMemcpy");
  const bool complete = found.num_words * 8 == [&] {
    uint64_t expected = 0;
    for (uint64_t e = 0; e < options.num_epochs; ++e) expected += push_of(e, previous).bytes;
    return expected;
  }();
  std::printf("%d,%d,%s,%d,%llu,%.3f,%.1f,%.2f,%llu,%llu,%llu,%d,%llu,%llu\n", size, rank,
              options.batch ? "batch" : "memcpy", options.background ? 1 : 0,
              static_cast<unsigned long long>(options.num_epochs), static_cast<double>(bytes_moved) / 1e9,
              static_cast<double>(bytes_moved) / 1e9 / seconds, seconds, found.num_bad_epochs, found.num_bad_words,
              found.num_timeouts, complete ? 1 : 0, found.first_epoch, found.first_word);
  std::fflush(stdout);
  control.barrier("end");
  return found.num_bad_epochs == 0 && found.num_timeouts == 0 && complete ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: ordering_stress RANKS EPOCHS [memcpy|batch] [0|1] [ROUND]\n");
    return 2;
  }
  // Loading a kernel while another one waits for its work would wait for that one.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  Options options;
  options.num_epochs = std::strtoull(argv[2], nullptr, 10);
  options.batch = argc > 3 && std::string(argv[3]) == "batch";
  options.background = argc > 4 && std::string(argv[4]) == "1";
  const uint64_t round = argc > 5 ? std::strtoull(argv[5], nullptr, 10) : options.num_epochs;
  options.round = (std::max<uint64_t>(round, 1) + kNumSlots - 1) / kNumSlots * kNumSlots;
  std::printf(
      "ranks,rank,api,background,epochs,gb,gb_per_s,seconds,bad_epochs,bad_words,timeouts,complete,first_bad_epoch,"
      "first_bad_word\n");
  std::fflush(stdout);
  return tangram::comm::run_forked_ranks(
      std::atoi(argv[1]), [&](tangram::Communicator& control) { return run_rank(control, options); },
      [](const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
      },
      60);
}
