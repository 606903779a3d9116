// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device side of ordering_stress: which ranges are pushed, and the kernels that check, pace and disturb them.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/system.cuh"
#include "cuda/ptx/tma.cuh"

namespace tangram::stress {

constexpr int kNumSlots = 64;      // receive buffers of a rank
constexpr int kCreditEpochs = 16;  // pushes between two waits for the receiver
constexpr uint32_t kMaxBytes = 1 << 20;
constexpr uint32_t kChunkBytes = 16 << 10;
constexpr size_t kSourceBytes = size_t{64} << 20;
constexpr uint64_t kTimeout_ns = 20'000'000'000;

__host__ __device__ inline uint64_t mix(uint64_t x) {
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
__host__ __device__ inline Push push_of(uint64_t e, int sender) {
  const uint64_t r = mix(e * 64 + static_cast<uint64_t>(sender)), s = mix(r);
  const uint64_t limit = (r & 1) ? kMaxBytes : uint64_t{16} << ((r >> 1) % 17);
  const uint32_t bytes = static_cast<uint32_t>((16 + s % limit) & ~uint64_t{15});
  const uint32_t capped = bytes > kMaxBytes ? kMaxBytes : bytes;
  return {(mix(s) % (kSourceBytes - kMaxBytes)) & ~uint64_t{15}, capped};
}
__host__ __device__ inline uint64_t source_word(uint64_t idx, int sender) {
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

/// Where a consumer finds what it checks, and whom it tells.
struct Inbox {
  const char* recv_buffers;    // [kNumSlots][kMaxBytes]
  const uint64_t* flags;       // [kNumSlots]
  uint64_t* acks;              // [kNumSlots], memory of the sender
  volatile uint64_t* checked;  // [kNumSlots], memory of the host
  int sender;
};

/// Block b consumes epochs first + b, first + b + gridDim.x, ... before `end`, each in its slot.
__global__ void consume(Inbox inbox, uint64_t first, uint64_t end, Findings* findings) {
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
  for (uint64_t e = first + blockIdx.x; e < end; e += gridDim.x) {
    const uint64_t slot = e % kNumSlots;
    const char* data = inbox.recv_buffers + slot * kMaxBytes;
    const Push push = push_of(e, inbox.sender);
    const uint32_t num_chunks = (push.bytes + kChunkBytes - 1) / kChunkBytes;
    const auto load = [&](uint32_t c) {
      const uint32_t bytes = min(kChunkBytes, push.bytes - c * kChunkBytes);
      ptx::mbarrier_arrive_expect_tx(&barriers[c % 2], bytes);
      ptx::bulk_load(chunk[c % 2], data + c * kChunkBytes, bytes, &barriers[c % 2]);
    };
    if (threadIdx.x == 0) {
      const uint64_t begin = ptx::global_timer_ns();
      arrived = 1;
      while (static_cast<int64_t>(ptx::load_acquire_system(&inbox.flags[slot]) - (e + 1)) < 0) {
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
        if (chunk[c % 2][i] != source_word(push.offset / 8 + word, inbox.sender)) {
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
      inbox.checked[slot] = e + 1;
      ptx::store_release_system(&inbox.acks[slot], e + 1);
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

/// Reads and writes the peer's memory, `rounds` times or, with `stop`, until that is set.
__global__ void make_traffic(uint4* peer, uint64_t count, int rounds, const volatile int* stop) {
  uint4 sum = {0, 0, 0, 0};
  for (int round = 0; stop != nullptr ? !*stop : round < rounds; ++round) {
    for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count / 2;
         i += uint64_t{gridDim.x} * blockDim.x) {
      const uint4 value = peer[i];
      sum.x ^= value.x;
      peer[count / 2 + i] = sum;
    }
  }
}

}  // namespace tangram::stress
