// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks as threads, each with a GPU of the counting runtime, and how often they meet.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "attn/sm90/sm90_backend.hpp"
#include "cuda/counting_runtime.hpp"
#include "tangram/communicator.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/env.hpp"
#include "tangram/local_group.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::counted {

/// Passes everything on, and counts what all ranks do together.
class CountingControl final : public Communicator {
 public:
  explicit CountingControl(Communicator& of) : of_(of) {}

  int64_t meetings() const { return meetings_; }

  int rank() const override { return of_.rank(); }
  int size() const override { return of_.size(); }
  std::string_view name() const override { return of_.name(); }
  std::unique_ptr<CommHandle> group_cast(const Exchange& exchange, std::span<const CastTensor> tensors,
                                         std::string_view label) override {
    ++meetings_;
    return of_.group_cast(exchange, tensors, label);
  }
  std::unique_ptr<CommHandle> group_reduce(const Exchange& exchange, std::span<const ReduceTensor> tensors, ReduceOp op,
                                           std::string_view label) override {
    ++meetings_;
    return of_.group_reduce(exchange, tensors, op, label);
  }
  std::unique_ptr<CommHandle> group_reduce_lse(const Exchange& exchange, const LseReduceTensors& tensors,
                                               std::string_view label) override {
    ++meetings_;
    return of_.group_reduce_lse(exchange, tensors, label);
  }
  std::unique_ptr<CommHandle> all_to_all_v(const ConstTensorView& send, std::span<const int64_t> send_rows,
                                           const TensorView& recv, std::span<const int64_t> recv_rows,
                                           std::string_view label) override {
    ++meetings_;
    return of_.all_to_all_v(send, send_rows, recv, recv_rows, label);
  }
  void all_reduce(std::span<float> values, ReduceOp op, std::string_view label) override {
    ++meetings_;
    of_.all_reduce(values, op, label);
  }
  void barrier(std::string_view label) override {
    ++meetings_;
    of_.barrier(label);
  }
  void require_agreement(uint64_t value, std::string_view what) override {
    ++meetings_;
    of_.require_agreement(value, what);
  }
  void set_call_fingerprint(const CallFingerprint& fingerprint) override { of_.set_call_fingerprint(fingerprint); }
  void refuse(std::string_view reason) override { of_.refuse(reason); }
  void abort(std::string_view reason) noexcept override { of_.abort(reason); }
  TrafficCounters counters() const override { return of_.counters(); }
  void reset_counters() override { of_.reset_counters(); }

 private:
  Communicator& of_;
  std::atomic<int64_t> meetings_ = 0;
};

/// Causal documents of `total` rows, other ones for each seed, as many each time.
inline Mask make_documents(unsigned seed, int64_t total, int documents) {
  std::mt19937 rng(seed);
  std::lognormal_distribution<double> length(0, 1);
  std::vector<double> ends = {0};
  for (int i = 0; i < documents; ++i) ends.push_back(ends.back() + length(rng));
  std::vector<int64_t> rows;
  for (const double end : ends) rows.push_back(static_cast<int64_t>(end / ends.back() * static_cast<double>(total)));
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return varlen_mask(rows, true);
}

inline constexpr HeadConfig kHeads{.num_heads_q = 4, .num_heads_kv = 1, .head_dim = 128, .head_dim_v = 128};

inline std::shared_ptr<const Plan> make_pack_plan(unsigned seed, int cp_size, int64_t total, int documents,
                                                  const OverlapConfig& overlap = {}) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = kHeads;
  config.overlap = overlap;
  return std::make_shared<const Plan>(make_plan(make_documents(seed, total, documents), config));
}

/// Operands of one rank, and calls on them.
class Tensors {
 public:
  /// `with_backward`: for both passes.
  explicit Tensors(const DistAttention& of, bool with_backward = true, const HeadConfig& heads = kHeads)
      : q_rows_(of.q_rows()),
        k_rows_(of.k_rows()),
        q_heads_(heads.num_heads_q),
        k_heads_(heads.num_heads_kv),
        memory_(
            new char[static_cast<size_t>(std::max(q_rows_, k_rows_)) * static_cast<size_t>(q_heads_) * 128 * 2 + 256]),
        work_bytes_(std::max(of.forward_workspace_bytes(), with_backward ? of.backward_workspace_bytes() : 0)),
        work_(new char[static_cast<size_t>(work_bytes_) + 256]) {}

  DistForwardArgs forward() {
    DistForwardArgs args;
    args.q = view(q_rows_, q_heads_), args.k = view(k_rows_, k_heads_), args.v = view(k_rows_, k_heads_),
    args.out = view(q_rows_, q_heads_);
    args.lse = static_cast<float*>(args.out.data);
    args.workspace = workspace();
    return args;
  }
  DistBackwardArgs backward() {
    DistBackwardArgs args;
    args.q = view(q_rows_, q_heads_), args.k = view(k_rows_, k_heads_), args.v = view(k_rows_, k_heads_),
    args.out = view(q_rows_, q_heads_);
    args.lse = static_cast<const float*>(args.out.data);
    args.dout = view(q_rows_, q_heads_), args.dq = view(q_rows_, q_heads_), args.dk = view(k_rows_, k_heads_),
    args.dv = view(k_rows_, k_heads_);
    args.workspace = workspace();
    return args;
  }

 private:
  static void* aligned(void* data) {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(data) + 255) / 256 * 256);
  }
  TensorView view(int64_t rows, int heads) {
    return {{aligned(memory_.get()), DType::kBFloat16, rows, heads, 128, heads * 128, 128}};
  }
  AttnWorkspace workspace() { return {aligned(work_.get()), work_bytes_}; }

  int64_t q_rows_, k_rows_;
  int q_heads_, k_heads_;
  std::unique_ptr<char[]> memory_;  // which is never touched
  int64_t work_bytes_;
  std::unique_ptr<char[]> work_;
};

/// What all ranks together did.
struct Counts {
  int64_t meetings = 0, waits = 0, allocations = 0, frees = 0, copies = 0, events = 0, queries = 0, event_calls = 0,
          stream_waits = 0;
  double host_us = 0;  // of this rank's thread
};

/// Processor microseconds of this thread.
inline double cpu_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

class Ranks {
 public:
  /// `checked`: under TANGRAM_SANITY_CHECK.
  explicit Ranks(int size, bool checked = false) : size_(size), before_(Env::get()), barrier_(size) {
    testing::set_devices(size);
    Env env = before_;
    env.sanity_check = checked;
    Env::set(env);
  }
  ~Ranks() {
    testing::set_devices(1);
    Env::set(before_);
  }

  struct Rank {
    CountingControl& control;
    DeviceCommunicator& communicator;
    const AttnBackend& backend;
    std::function<Counts(const std::function<void()>&)> count;
  };
  void run(const std::function<void(Rank&)>& body, double timeout_s = 20) {
    run_local_ranks(
        size_,
        [&](Communicator& plain) {
          CountingControl control(plain);
          cudaSetDevice(control.rank());
          const auto communicator = make_device_communicator(control, {.timeout_s = timeout_s});
          const Sm90Backend backend;
          Rank rank{control, *communicator, backend,
                    [&](const std::function<void()>& call) { return count(control, call); }};
          body(rank);
          control.barrier("end");
        },
        timeout_s);
  }

 private:
  Counts count(CountingControl& control, const std::function<void()>& call) {
    barrier_.arrive_and_wait();
    const testing::RuntimeCounts before = testing::runtime_counts();
    const int64_t meetings = control.meetings();
    barrier_.arrive_and_wait();
    const double start = cpu_us();
    call();
    const double end = cpu_us();
    barrier_.arrive_and_wait();
    const testing::RuntimeCounts now = testing::runtime_counts();
    barrier_.arrive_and_wait();
    return {control.meetings() - meetings,
            now.waits - before.waits,
            now.allocations + now.host_allocations - before.allocations - before.host_allocations,
            now.frees - before.frees,
            now.copies - before.copies,
            now.events - before.events,
            now.device_queries - before.device_queries,
            now.event_calls - before.event_calls,
            now.stream_waits - before.stream_waits,
            end - start};
  }

  const int size_;
  const Env before_;
  std::barrier<> barrier_;
};

}  // namespace tangram::counted
