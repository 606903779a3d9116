// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// CUDA C++ as the kernels use it, for a host compiler: words of the language, built-in functions, and, in the
// place of src/cuda/ptx, the instructions. The build puts headers of the same names in front, which include this one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attn/sm90/emulated/machine.hpp"

#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __launch_bounds__
#undef __shared__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // of one block at a time: run_one_by_one

struct EmulatedIndex {
  uint32_t x;
};
#define threadIdx (EmulatedIndex{tangram::emulated::self().index})
#define blockIdx (EmulatedIndex{tangram::emulated::self().block->index})
#define gridDim (EmulatedIndex{tangram::emulated::num_blocks()})

using std::max;
using std::min;

template <typename T>
uint64_t emulated_word(T value) {
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}
template <typename T>
T emulated_value(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
template <typename T>
T __shfl_sync(uint32_t, T value, int lane) {
  return emulated_value<T>(tangram::emulated::exchange_in_warp(emulated_word(value))[lane]);
}
template <typename T>
T __shfl_xor_sync(uint32_t, T value, int lanes) {
  const uint32_t other = threadIdx.x % 32 ^ static_cast<uint32_t>(lanes);
  return emulated_value<T>(tangram::emulated::exchange_in_warp(emulated_word(value))[other]);
}
inline void __syncwarp() { tangram::emulated::exchange_in_warp(0); }
inline bool __any_sync(uint32_t, bool value) {
  const uint64_t* words = tangram::emulated::exchange_in_warp(value);
  return std::any_of(words, words + 32, [](uint64_t word) { return word != 0; });
}
inline uint32_t __ballot_sync(uint32_t, bool value) {
  const uint64_t* words = tangram::emulated::exchange_in_warp(value);
  uint32_t lanes = 0;
  for (int lane = 0; lane < 32; ++lane) lanes |= static_cast<uint32_t>(words[lane]) << lane;
  return lanes;
}
inline int __ffs(int word) { return word == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(word)) + 1; }
inline int __popc(uint32_t word) { return std::popcount(word); }
inline bool __all_sync(uint32_t mask, bool value) { return !__any_sync(mask, !value); }
inline void __syncthreads() { tangram::emulated::meet_named(0, tangram::emulated::num_threads(), true, false); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { tangram::emulated::yield(); }

// Fibers take turns where they call something of the emulator: what lies between is atomic.
template <typename T, typename Change>
T emulated_atomic(T* place, const Change& change) {
  const T old = *place;
  *place = change(old);
  tangram::emulated::note_progress();
  return old;
}
inline int atomicAdd(int* place, int value) {
  return emulated_atomic(place, [=](int old) { return old + value; });
}
inline unsigned long long atomicAdd(unsigned long long* place, unsigned long long value) {
  return emulated_atomic(place, [=](unsigned long long old) { return old + value; });
}
inline unsigned atomicOr(unsigned* place, unsigned bits) {
  return emulated_atomic(place, [=](unsigned old) { return old | bits; });
}
inline int atomicMax(int* place, int value) {
  return emulated_atomic(place, [=](int old) { return std::max(old, value); });
}
inline unsigned atomicMin(unsigned* place, unsigned value) {
  return emulated_atomic(place, [=](unsigned old) { return std::min(old, value); });
}
inline int atomicCAS(int* place, int expected, int value) {
  return emulated_atomic(place, [=](int old) { return old == expected ? value : old; });
}
inline unsigned long long atomicCAS_system(unsigned long long* place, unsigned long long expected,
                                           unsigned long long value) {
  return emulated_atomic(place, [=](unsigned long long old) { return old == expected ? value : old; });
}
template <typename T>
T __ldg(const T* place) {
  return *place;
}
template <typename T>
T __ldcg(const T* place) {
  return *place;
}
template <typename T>
T __ldcs(const T* place) {
  return *place;
}
template <typename T>
void __stcg(T* place, T value) {
  *place = value;
}

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }

namespace tangram::emulated {

/// 128-byte swizzle of an offset in shared memory.
constexpr uint32_t swizzle(uint32_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

/// What stands in a TensorMap: sizes and strides in elements, the innermost dimension first.
struct TensorMap {
  uint16_t* data;
  int64_t sizes[4], strides[4];
  uint32_t box[4];
};
static_assert(sizeof(TensorMap) <= 128);

/// Calls visit(offset in the box, element or null where the box is outside of the tensor).
template <typename Visit>
void visit_box(const void* map, const int32_t (&at)[4], const Visit& visit) {
  const auto& tensor = *static_cast<const TensorMap*>(map);
  uint32_t count = 1;
  for (const uint32_t extent : tensor.box) count *= extent;
  for (uint32_t i = 0; i < count; ++i) {
    uint16_t* element = tensor.data;
    bool inside = true;
    for (uint32_t dim = 0, rest = i; dim < 4; rest /= tensor.box[dim++]) {
      const int64_t position = at[dim] + int64_t{rest % tensor.box[dim]};
      inside = inside && position >= 0 && position < tensor.sizes[dim];
      element += position * tensor.strides[dim];
    }
    visit(i * 2, inside ? element : nullptr);
  }
}

inline Barrier& barrier_at(uint64_t* word) { return *reinterpret_cast<Barrier*>(word); }

}  // namespace tangram::emulated

namespace tangram::ptx {

using emulated::barrier_at;
using emulated::self;

inline void* dynamic_shared_memory() { return self().block->shared; }
inline uint32_t smem_address(const void* pointer) {
  const auto offset = static_cast<const unsigned char*>(pointer) - self().block->shared;
  if (offset < 0 || offset >= static_cast<int64_t>(emulated::shared_bytes())) emulated::fail("not in shared memory");
  return static_cast<uint32_t>(offset);
}

// mbarrier.cuh
inline void mbarrier_init(uint64_t* barrier, uint32_t ready_flags) {
  emulated::initialise(barrier_at(barrier), ready_flags);
}
inline void fence_barrier_init() {}
inline void mbarrier_arrive(uint64_t* barrier) { emulated::arrive(barrier_at(barrier)); }
inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  barrier_at(barrier).bytes += static_cast<int32_t>(bytes);
  emulated::arrive(barrier_at(barrier));
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  emulated::wait_until("an mbarrier", [=] { return barrier_at(barrier).phase != parity % 2; });
}

// tma.cuh
inline void prefetch_tensor_map(const void*) {}
inline void tma_load_4d(void* destination, const void* map, uint64_t* barrier, int32_t c0, int32_t c1, int32_t c2,
                        int32_t c3) {
  unsigned char* shared = self().block->shared;
  const uint32_t begin = smem_address(destination);
  emulated::do_later([=] {
    int32_t bytes = 0;
    emulated::visit_box(map, {c0, c1, c2, c3}, [&](uint32_t offset, const uint16_t* element) {
      const uint16_t value = element != nullptr ? *element : uint16_t{0};
      std::memcpy(shared + emulated::swizzle(begin + offset), &value, sizeof(value));
      bytes += 2;
    });
    emulated::count_bytes(barrier_at(barrier), -bytes);
  });
}
inline void bulk_load(void* destination, const void* source, uint32_t bytes, uint64_t* barrier) {
  emulated::do_later([=] {
    std::memcpy(destination, source, bytes);
    emulated::count_bytes(barrier_at(barrier), -static_cast<int32_t>(bytes));
  });
}
inline void tma_store_4d(const void* map, const void* source, int32_t c0, int32_t c1, int32_t c2, int32_t c3) {
  const unsigned char* shared = self().block->shared;
  const uint32_t begin = smem_address(source);
  emulated::visit_box(map, {c0, c1, c2, c3}, [&](uint32_t offset, uint16_t* element) {
    if (element != nullptr) std::memcpy(element, shared + emulated::swizzle(begin + offset), sizeof(*element));
  });
}
inline void bulk_store(void* destination, const void* source, uint32_t bytes) {
  std::memcpy(destination, source, bytes);
}
inline void bulk_reduce_add_f32(float* destination, const void* source, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes / 4; ++i) destination[i] += static_cast<const float*>(source)[i];
}
inline void tma_store_commit() {}
template <int kPending>
void tma_store_wait_read() {}
template <int kPending>
void tma_store_wait() {}
inline void fence_proxy_async() {}
inline void fence_proxy_async_global() {}

// cp_async.cuh
inline void cp_async_16(uint32_t destination, const void* source, bool is_zero) {
  unsigned char* shared = self().block->shared;
  if (destination % 16 != 0 || reinterpret_cast<uintptr_t>(source) % 16 != 0) emulated::fail("cp.async not aligned");
  std::vector<std::shared_ptr<int>>& groups = self().copies;
  if (groups.empty()) groups.push_back(std::make_shared<int>(0));
  ++*groups.back();
  emulated::do_later([=, group = groups.back()] {
    unsigned char zeros[16] = {};
    std::memcpy(shared + destination, is_zero ? zeros : source, 16);
    --*group;
    emulated::note_progress();
  });
}
inline void cp_async_commit() {
  std::vector<std::shared_ptr<int>>& groups = self().copies;
  if (groups.empty()) groups.push_back(std::make_shared<int>(0));
  groups.push_back(std::make_shared<int>(0));
}
template <int kPending>
void cp_async_wait() {
  std::vector<std::shared_ptr<int>>& groups = self().copies;
  while (groups.size() > kPending + 1) {
    emulated::wait_until("cp.async", [group = groups.front()] { return *group == 0; });
    groups.erase(groups.begin());
  }
}

// warp.cuh
template <int kRegisters>
void register_increase() {}
template <int kRegisters>
void register_decrease() {}
inline bool elect_one() {
  __syncwarp();
  return threadIdx.x % 32 == 0;
}
inline void named_barrier_sync(uint32_t barrier, uint32_t threads) {
  emulated::meet_named(barrier, threads, true, false);
}
inline void named_barrier_arrive(uint32_t barrier, uint32_t threads) {
  emulated::meet_named(barrier, threads, false, false);
}
inline bool named_barrier_any(uint32_t barrier, uint32_t threads, bool predicate) {
  return emulated::meet_named(barrier, threads, true, predicate);
}
inline void store_matrix_x4(void* row, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  const uint64_t* rows = emulated::exchange_in_warp(reinterpret_cast<uint64_t>(row));
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t words[4] = {m0, m1, m2, m3};
  for (uint32_t m = 0; m < 4; ++m) {
    std::memcpy(reinterpret_cast<unsigned char*>(rows[m * 8 + lane / 4]) + lane % 4 * 4, &words[m], 4);
  }
}
inline void grid_dependency_wait() {}
inline void grid_dependency_launch() {}
inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float tanh_approx(float x) { return std::tanh(x); }

// memory.cuh, system.cuh
template <typename T>
T emulated_load(const T* place) {
  emulated::yield();
  return *static_cast<const volatile T*>(place);
}
template <typename T>
void emulated_store(T* place, T value) {
  *place = value;
  emulated::note_progress();
}
inline int32_t load_acquire(const int32_t* place) { return emulated_load(place); }
inline void store_release(int32_t* place, int32_t value) { emulated_store(place, value); }
inline void add_release(int32_t* place, int32_t value) { emulated_store(place, *place + value); }
inline void store_f32x4(float4* place, const float4& value) { *place = value; }
inline void reduce_add_f32x4(float4* place, const float4& value) {
  *place = {place->x + value.x, place->y + value.y, place->z + value.z, place->w + value.w};
}
inline uint64_t load_acquire_shared(const uint64_t* word) { return emulated_load(word); }
inline void store_release_shared(uint64_t* word, uint64_t value) { emulated_store(word, value); }
inline uint64_t load_acquire_system(const uint64_t* word) { return emulated_load(word); }
inline uint64_t load_relaxed_system(const uint64_t* word) { return emulated_load(word); }
inline void store_release_system(uint64_t* word, uint64_t value) { emulated_store(word, value); }
inline uint64_t global_timer_ns() { return 0; }

// convert.cuh
template <typename Element>
uint32_t pack_pair(float low, float high) {
  const auto bits = [](float value) {
    if constexpr (std::is_same_v<Element, __half>) return std::bit_cast<uint16_t>(__float2half_rn(value));
    return std::bit_cast<uint16_t>(__float2bfloat16_rn(value));
  };
  return bits(low) | static_cast<uint32_t>(bits(high)) << 16;
}
template <typename Element>
float2 unpack_pair(uint32_t packed) {
  const auto value = [](uint16_t bits) {
    if constexpr (std::is_same_v<Element, __half>) return __half2float(std::bit_cast<__half>(bits));
    return std::bit_cast<float>(uint32_t{bits} << 16);
  };
  return {value(static_cast<uint16_t>(packed)), value(static_cast<uint16_t>(packed >> 16))};
}
inline void make_opaque(uint32_t&) {}
inline void make_opaque(float&) {}
inline uint32_t read_thread_index() { return threadIdx.x; }

// ldmatrix.cuh, mma.cuh, reduce.cuh
inline void load_matrices(uint32_t (&matrices)[4], uint32_t row, bool transposed) {
  if (row % 16 != 0 || row + 16 > emulated::shared_bytes()) emulated::fail("ldmatrix: not a row in shared memory");
  const uint64_t* rows = emulated::exchange_in_warp(row);
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (uint32_t e = 0; e < 2; ++e) {
      const uint32_t matrix_row = transposed ? lane % 4 * 2 + e : lane / 4;
      const uint32_t column = transposed ? lane / 4 : lane % 4 * 2 + e;
      std::memcpy(&pair[e], self().block->shared + rows[m * 8 + matrix_row] + column * 2, 2);
    }
    matrices[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
}
inline void load_matrix_x4(uint32_t (&matrices)[4], uint32_t row) { load_matrices(matrices, row, false); }
inline void load_matrix_x4_transposed(uint32_t (&matrices)[4], uint32_t row) { load_matrices(matrices, row, true); }
template <typename Element>
void mma_m16n8k16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const emulated::WarpWords& lanes = emulated::exchange_in_warp({a[0], a[1], a[2], a[3], b0, b1});
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (uint32_t k = 0; k < 16; k += 2) {
      const uint32_t word_a = lanes[row * 4 + k % 8 / 2][k / 8 * 2 + i / 2];
      const uint32_t word_b = lanes[column * 4 + k % 8 / 2][4 + k / 8];
      const float2 pair_a = unpack_pair<Element>(word_a), pair_b = unpack_pair<Element>(word_b);
      d[i] += pair_a.x * pair_b.x + pair_a.y * pair_b.y;
    }
  }
}
inline void reduce_add_f32(float* address, float value) { *address += value; }

// wgmma.cuh
inline uint64_t wgmma_descriptor_plain(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  return (uint64_t{stride_bytes >> 4} << 32) | (uint64_t{leading_bytes >> 4} << 16) | address >> 4;
}
inline uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  return uint64_t{1} << 62 | wgmma_descriptor_plain(address, leading_bytes, stride_bytes);
}
inline uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }
inline void wgmma_fence() {}
template <int kCount>
void pin_registers(float (&)[kCount]) {}
template <typename T, int kN, int kTransA = 0, int kTransB = 0>
void wgmma_ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  self().issued.push_back({d, kN, false, kTransA != 0, kTransB != 0, accumulate, std::is_same_v<T, __half>, {}, a, b});
}
template <typename T, int kN, int kTransB = 0>
void wgmma_rs(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  self().issued.push_back(
      {d, kN, true, false, kTransB != 0, accumulate, std::is_same_v<T, __half>, {a[0], a[1], a[2], a[3]}, 0, b});
}
inline void wgmma_commit() { emulated::commit_matmuls(); }
template <int kPending>
void wgmma_wait() {
  emulated::wait_matmuls(kPending);
}

}  // namespace tangram::ptx
