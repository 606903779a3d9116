// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the small kernels of the device transports do, done by the host to host memory, from the parameters with which
// they were launched: what passes put on streams is run, and replayed as a graph would replay it, without a GPU. Ranks
// are threads; waits spin.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "comm/device/kernels.hpp"
#include "cuda/counting_runtime.hpp"
#include "tangram/tensor.hpp"

namespace tangram::testing {

namespace host_kernels {

using namespace comm;

inline uint64_t load(const uint64_t* word) {
  return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
}
inline void store(uint64_t* word, uint64_t value) { std::atomic_ref(*word).store(value, std::memory_order_seq_cst); }

inline void report(const cuda::WaitContext& context, const cuda::WaitFailure& failure) {
  uint64_t none = 0;
  if (!std::atomic_ref(*context.abort).compare_exchange_strong(none, cuda::pack(failure))) return;
  for (int rank = 0; rank < context.size; ++rank) {
    store(&context.control_block[rank].report, cuda::pack(failure));
    if (rank != context.rank) store(context.aborts[rank], cuda::pack(failure));
  }
}

/// False when the group has failed, or does after ten seconds.
inline bool wait_for_flag(const cuda::WaitContext& context, const uint64_t* flag, uint64_t value,
                          const cuda::WaitFailure& failure) {
  const auto begin = std::chrono::steady_clock::now();
  while (static_cast<int64_t>(load(flag) - value) < 0) {
    if (load(context.abort) != 0 || load(&context.control_block[context.rank].host_abort) != 0) return false;
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(10)) {
      report(context, failure);
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

inline OpenedPass opened(const EpochParams& params, uint64_t epoch) {
  const uint32_t tag = params.tables_tag == nullptr ? params.tag : params.tag ^ *params.tables_tag;
  return {static_cast<uint32_t>(epoch), tag, params.pass};
}
inline void check_order(const EpochParams& params, int peer, uint64_t epoch) {
  const uint64_t* ring = params.order.ranks[params.rank] + peer * kOrderLength;
  const OpenedPass seen = unpack_opened(load(ring + epoch % kOrderLength));
  const cuda::WaitFailure failure = disagreement(opened(params, epoch), seen, params.rank, peer);
  if (failure.kind != cuda::WaitKind::kNone) report(*params.context, failure);
}

inline void move_chunks(const MoveParams& params) {
  const int begin = params.range == nullptr ? 0 : params.range[0];
  const int end = params.range == nullptr ? params.count : params.range[1];
  for (int i = begin; i < end; ++i) {
    const Chunk& chunk = params.chunks[i];
    std::memcpy(params.bases[chunk.peer] + chunk.to,
                static_cast<const char*>(params.sources[chunk.tensor]) + chunk.from,
                static_cast<size_t>(chunk.num_bytes));
  }
}

inline void begin_epoch(const EpochParams& params, const MoveParams& own) {
  const uint64_t epoch = ++*params.counter;
  for (int peer = 0; peer < params.size; ++peer) {
    if (peer == params.rank) continue;
    store(params.order.ranks[peer] + params.rank * kOrderLength + epoch % kOrderLength, pack(opened(params, epoch)));
    check_order(params, peer, epoch);
    for (const CreditParams* credit : {&params.recv_buffers, &params.returns}) {
      if ((credit->peers >> peer & 1) == 0) continue;
      wait_for_flag(*params.context, credit->released.ranks[params.rank] + credit->released.idx + peer,
                    *credit->last_epoch, {cuda::WaitKind::kCredit, params.rank, peer, 0, params.pass, 0});
    }
  }
  *params.recv_buffers.last_epoch = epoch;
  if (params.returns.last_epoch != nullptr) *params.returns.last_epoch = epoch;
  move_chunks(own);
}

inline void end_epoch(const EpochParams& params) {
  const uint64_t epoch = *params.recv_buffers.last_epoch;
  for (int peer = 0; peer < params.size; ++peer) {
    if (peer == params.rank) continue;
    check_order(params, peer, epoch);
    for (const CreditParams* credit : {&params.recv_buffers, &params.returns}) {
      if (credit->last_epoch == nullptr) continue;
      store(credit->released.ranks[peer] + credit->released.idx + params.rank, epoch);
    }
  }
}

inline void wait_flags(const WaitParams& params) {
  for (int i = 0; i < params.num_signals; ++i) {
    const int stage = static_cast<int>(params.signal_list[i] >> 8),
              peer = static_cast<int>(params.signal_list[i] & 255);
    store(params.signals.ranks[peer] + params.signals.idx + stage * params.size + params.context->rank, *params.epoch);
  }
  for (int i = 0; i < params.count; ++i) {
    const int stage = static_cast<int>(params.list[i] >> 8), peer = static_cast<int>(params.list[i] & 255);
    const uint64_t* flag = params.flags + stage * params.size + peer;
    if (!wait_for_flag(*params.context, flag, *params.epoch,
                       {params.kind, params.context->rank, peer, stage, params.pass, 0})) {
      return;
    }
  }
}

inline void exchange_rows(const ExchangeParams& params) {
  begin_epoch(params.epoch, params.own);
  move_chunks(params.sent);
  wait_flags(params.wait);
}

inline void merge_tensor(const MergeParams& params) {
  const auto value = [&](const void* data, DType dtype, int64_t row, int element) {
    const int64_t at = row * params.row_elements + element;
    if (dtype == DType::kFloat32) return static_cast<const float*>(data)[at];
    const uint16_t bits = static_cast<const uint16_t*>(data)[at];
    return dtype == DType::kBFloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
  };
  const int64_t rows = params.num_rows == nullptr ? params.rows : *params.num_rows;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = params.chosen == nullptr ? i : params.chosen[i];
    const bool has_own = params.num_before[i] >= 0;
    const int begin = params.begin[i], end = params.begin[i + 1];
    const int middle = begin + (has_own ? params.num_before[i] : ~params.num_before[i]);
    for (int element = 0; element < params.row_elements; ++element) {
      float sum = 0;
      const auto add = [&](int from, int to) {
        for (int k = from; k < to; ++k) {
          sum += value(params.returned, params.returned_dtype, params.entries[k], element);
        }
      };
      add(begin, middle);
      sum += has_own ? value(params.own, params.own_dtype, row, element) : 0.0f;
      add(middle, end);
      const int64_t at = row * params.row_elements + element;
      if (params.sums_dtype == DType::kFloat32) {
        static_cast<float*>(params.sums)[at] = sum;
      } else {
        static_cast<uint16_t*>(params.sums)[at] =
            params.sums_dtype == DType::kBFloat16 ? float_to_bfloat16(sum) : float_to_float16(sum);
      }
    }
  }
}

inline void merge_rows(const MergeJobs& jobs, unsigned num_tensors) {
  wait_flags(jobs.wait);
  for (unsigned t = 0; t < num_tensors; ++t) merge_tensor(jobs.tensors[t]);
  if (jobs.num_ended != nullptr) end_epoch(jobs.epoch);
}

inline void all_reduce(const AllReduceParams& params) {
  const uint64_t epoch = ++*params.counter;
  const int64_t stride = DeviceCommunicator::kMaxReduceValues;
  const int64_t inbox = static_cast<int64_t>(epoch % 2) * params.size * stride;
  for (int peer = 0; peer < params.size; ++peer) {
    if (peer == params.rank) continue;
    std::copy_n(params.values, params.count, params.inboxes[peer] + inbox + params.rank * stride);
    store(params.flags.ranks[peer] + params.flags.idx + params.rank, epoch);
  }
  for (int peer = 0; peer < params.size; ++peer) {
    if (peer == params.rank) continue;
    wait_for_flag(*params.context, params.flags.ranks[params.rank] + params.flags.idx + peer, epoch,
                  {cuda::WaitKind::kAllReduce, params.rank, peer, 0, 0, 0});
  }
  for (int i = 0; i < params.count; ++i) {
    float result = 0;
    for (int rank = 0; rank < params.size; ++rank) {
      const float value =
          rank == params.rank ? params.values[i] : params.inboxes[params.rank][inbox + rank * stride + i];
      result = rank == 0 ? value : params.is_max ? std::max(result, value) : result + value;
    }
    params.values[i] = result;
  }
}

template <class T>
T parameter(const KernelCall& call, int index) {
  return *static_cast<const T*>(call.parameters[index]);
}
/// Behind each other, for comparisons.
template <class... T>
std::vector<char> bytes_of(const T&... parameters) {
  std::vector<char> bytes;
  const auto append = [&](const auto& parameter) {
    const char* const first = reinterpret_cast<const char*>(&parameter);
    bytes.insert(bytes.end(), first, first + sizeof(parameter));
  };
  (append(parameters), ...);
  return bytes;
}

/// Without what lies between the members.
inline std::vector<char> bytes_of_jobs(const MergeJobs& jobs) {
  std::vector<char> bytes = bytes_of(jobs.wait, jobs.epoch, jobs.sent, jobs.num_ended);
  for (const MergeParams& of : jobs.tensors) {
    const std::vector<char> more =
        bytes_of(of.own, of.returned, of.sums, of.own_dtype, of.returned_dtype, of.sums_dtype, of.begin, of.entries,
                 of.num_before, of.chosen, of.rows, of.row_elements, of.num_rows);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

}  // namespace host_kernels

/// What a graph keeps of a launch.
struct HostKernel {
  std::string_view name;
  std::vector<char> parameters;
  std::function<void()> run;
};

/// `run` is null for kernels that have no host version.
inline HostKernel host_kernel(const KernelCall& call) {
  using namespace host_kernels;
  const auto is = [&](std::string_view name) { return call.name.find(name) != std::string_view::npos; };
  if (is("begin_epoch")) {
    const auto epoch = parameter<EpochParams>(call, 0);
    const auto own = parameter<MoveParams>(call, 1);
    return {"begin_epoch", bytes_of(epoch, own, call.blocks_x), [=] { begin_epoch(epoch, own); }};
  }
  if (is("exchange_rows")) {
    const auto rows = parameter<ExchangeParams>(call, 0);
    return {"exchange_rows", bytes_of(rows.epoch, rows.own, rows.sent, rows.wait, rows.state, call.blocks_x),
            [=] { exchange_rows(rows); }};
  }
  if (is("end_epoch")) {
    const auto epoch = parameter<EpochParams>(call, 0);
    return {"end_epoch", bytes_of(epoch, parameter<SentWord>(call, 1)), [=] { end_epoch(epoch); }};
  }
  if (is("wait_flags")) {
    const auto wait = parameter<WaitParams>(call, 0);
    return {"wait_flags", bytes_of(wait), [=] { wait_flags(wait); }};
  }
  if (is("move_chunks")) {
    const auto moves = parameter<MoveParams>(call, 0);
    return {"move_chunks", bytes_of(moves, call.blocks_x), [=] { move_chunks(moves); }};
  }
  if (is("merge_rows")) {
    const auto jobs = parameter<MergeJobs>(call, 0);
    const unsigned num_tensors = call.blocks_y;
    return {"merge_rows", bytes_of_jobs(jobs), [=] { merge_rows(jobs, num_tensors); }};
  }
  if (is("all_reduce")) {
    const auto reduce = parameter<AllReduceParams>(call, 0);
    return {"all_reduce", bytes_of(reduce), [=] { all_reduce(reduce); }};
  }
  return {call.name, {}, nullptr};
}

}  // namespace tangram::testing
