// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What both passes of DistAttention share on one rank: the plan, the group, the backend, and on hosts the record of
// what happened.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/error.hpp"

namespace tangram {

/// Seconds on the steady clock.
double steady_now_s();

/// Collects the events of a pass and what it allocates.
class PassRecorder {
 public:
  /// Forgets the events of the last such pass.
  void begin(AttnPass pass);
  /// Runs `action` and records how long it took. Returns what it returns.
  template <class Action>
  auto timed(TraceKind kind, int stage, Action action) {
    // Entered before it runs, so that events stand in the order in which they began.
    const size_t index = events_.size();
    events_.push_back({kind, pass_, stage, steady_now_s(), 0});
    struct End {
      std::vector<TraceEvent>& events;
      size_t index;
      ~End() { events[index].end_s = steady_now_s(); }
    } end{events_, index};
    return action();
  }
  /// Waits for the operation and records the wait and the transfer.
  void wait(CommHandle& handle, TraceKind wait_kind, TraceKind transfer_kind, int stage);

  HostTensor allocate(DType dtype, int64_t rows, int heads, int dim);
  /// Like allocate(), filled with NaN under TANGRAM_SANITY_CHECK, so that use of a row before it arrives shows.
  HostTensor allocate_poisoned(DType dtype, int64_t rows, int heads, int dim);
  /// Gives back what one of these allocated.
  void release(HostTensor& tensor);
  /// Counts what is there for the whole pass, allocated by another.
  void hold(const HostTensor& tensor) { count(tensor.bytes()); }
  void set_remote_rows(int64_t rows) { memory_.remote_kv_rows = rows; }

  const std::vector<TraceEvent>& events() const { return events_; }
  const MemoryUse& memory() const { return memory_; }

 private:
  void count(int64_t bytes);

  AttnPass pass_ = AttnPass::kForward;
  std::vector<TraceEvent> events_;
  MemoryUse memory_;
  int64_t bytes_now_ = 0;
};

struct RankContext {
  std::shared_ptr<const Plan> plan;
  Communicator* communicator = nullptr;
  const AttnBackend* backend = nullptr;
  int rank = 0;
  AttnShape shape;              // q rows of the shard, k rows of the buffer
  CallFingerprint fingerprint;  // of the plan
  PassRecorder recorder;

  const RankPlan& rank_plan() const { return plan->ranks()[static_cast<size_t>(rank)]; }
  int64_t k_shard_rows() const { return plan->k_dispatch.rows_per_rank(); }

  /// Runs the backend; an error there is this rank's alone, so the peers are told.
  void compute(int stage, const std::function<void()>& call);
};

/// Runs `check`; when it refuses, so does this rank's part in the group's next operation, if there is to be one.
template <class Check>
void check_for_all(Communicator& communicator, bool will_communicate, Check check) {
  try {
    check();
  } catch (const Error& error) {
    if (will_communicate) communicator.refuse(error.what());
    throw;
  }
}

/// Check whose result ranks share through an Agreement, without a barrier.
template <class Check>
void check_for_all(Agreement& agreement, Check check) {
  try {
    check();
  } catch (const Error& error) {
    agreement.refuse(error.what());
    throw;
  }
}

/// Throws InvalidArgument unless the operands fit the plan. Looks at no element.
void validate(const RankContext& context, const DistForwardArgs& args);
void validate(const RankContext& context, const DistBackwardArgs& args);

/// Whether there is a gradient of a shared sink to be combined.
inline bool combines_dsink(const DistBackwardArgs& args) {
  return args.dsink != nullptr && args.sink.layout == SinkLayout::kSh && args.dsink_reduce != DsinkReduce::kNone;
}
/// Combines args.dsink over ranks as it says, where there is one to combine.
void reduce_dsink(RankContext& context, const DistBackwardArgs& args);
/// The maximum of args.max_logits over ranks, where wanted.
void reduce_max_logits(RankContext& context, const DistForwardArgs& args);

}  // namespace tangram
