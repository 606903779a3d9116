// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One step, forward and backward, on whole tensors: on a single rank, and over the ranks of a plan with dispatch and
// undispatch around it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/random_tensor.hpp"
#include "support/relative_error.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/local_group.hpp"

namespace tangram::testing {

using support::random_tensor;
using support::relative_error;

struct StepOptions {
  HeadConfig heads;
  AttnOptions attn;
  int64_t seqlen_sink = 0;
  SinkLayout sink_layout = SinkLayout::kSh;
  DsinkReduce dsink_reduce = DsinkReduce::kSum;
  DType result_dtype = DType::kFloat32;  // of out, dq, dk, dv
  std::optional<DType> grad_dtype;       // of dq, dk, dv, where unlike out
  bool use_kept = true;                  // pass KeptKv from forward to backward
};

struct StepInputs {
  HostTensor q, k, v, dout;
  std::vector<float> sink;
};

struct StepResults {
  HostTensor out, lse, dq, dk, dv;
  std::vector<float> max_logits, dsink;
};

inline StepInputs make_inputs(const Mask& mask, const StepOptions& options, uint32_t seed = 1) {
  std::mt19937 rng(seed);
  const HeadConfig& h = options.heads;
  StepInputs inputs;
  inputs.q = random_tensor(h.dtype, mask.seqlen_q(), h.num_heads_q, h.head_dim, rng);
  inputs.k = random_tensor(h.dtype, mask.seqlen_k(), h.num_heads_kv, h.head_dim, rng);
  inputs.v = random_tensor(h.dtype, mask.seqlen_k(), h.num_heads_kv, h.head_dim_v, rng);
  inputs.dout = random_tensor(h.dtype, mask.seqlen_q(), h.num_heads_q, h.head_dim_v, rng);
  const int64_t sets = options.sink_layout == SinkLayout::kSh ? 1 : mask.seqlen_q();
  std::normal_distribution<float> normal;
  inputs.sink.resize(static_cast<size_t>(sets * options.seqlen_sink * h.num_heads_q));
  for (float& value : inputs.sink) value = normal(rng);
  return inputs;
}

inline StepResults make_results(int64_t seqlen_q, int64_t seqlen_k, const StepOptions& options) {
  const HeadConfig& h = options.heads;
  const DType dtype = options.grad_dtype.value_or(options.result_dtype);
  StepResults results;
  results.out = HostTensor(options.result_dtype, seqlen_q, h.num_heads_q, h.head_dim_v);
  results.lse = HostTensor(DType::kFloat32, seqlen_q, h.num_heads_q, 1);
  results.dq = HostTensor(dtype, seqlen_q, h.num_heads_q, h.head_dim);
  results.dk = HostTensor(dtype, seqlen_k, h.num_heads_kv, h.head_dim);
  results.dv = HostTensor(dtype, seqlen_k, h.num_heads_kv, h.head_dim_v);
  for (HostTensor* t : {&results.out, &results.lse, &results.dq, &results.dk, &results.dv}) t->fill(std::nanf(""));
  results.max_logits.resize(static_cast<size_t>(h.num_heads_q), std::nanf(""));
  const int64_t sets = options.sink_layout == SinkLayout::kSh ? 1 : seqlen_q;
  results.dsink.resize(static_cast<size_t>(sets * options.seqlen_sink * h.num_heads_q), std::nanf(""));
  return results;
}

inline StepResults single_step(const Mask& mask, const StepOptions& options, const StepInputs& in,
                               const AttnBackend& backend) {
  StepResults r = make_results(mask.seqlen_q(), mask.seqlen_k(), options);
  FlexAttention attention(mask, options.heads, backend);
  const Sink sink{in.sink.data(), options.seqlen_sink, options.sink_layout};
  attention.forward({in.q, in.k, in.v, r.out, r.lse.data<float>(), r.max_logits.data(), sink, false, options.attn});
  attention.backward({in.q, in.k, in.v, r.out, r.lse.data<float>(), in.dout, r.dq, r.dk, r.dv,
                      options.seqlen_sink > 0 ? r.dsink.data() : nullptr, sink, false, false, options.attn});
  return r;
}

/// The sink that a rank passes: all of it, or its rows.
inline std::vector<float> sink_of_rank(const Plan& plan, int rank, const StepOptions& options, const StepInputs& in) {
  if (options.sink_layout == SinkLayout::kSh || options.seqlen_sink == 0) return in.sink;
  const int64_t columns = options.seqlen_sink * options.heads.num_heads_q;
  std::vector<float> rows;
  for (const int64_t row : position_ids(plan.q_dispatch, rank)) {
    rows.insert(rows.end(), in.sink.begin() + row * columns, in.sink.begin() + (row + 1) * columns);
  }
  return rows;
}

/// Collective: a rank's results as rows of the whole sequence.
inline void undispatch_results(const Plan& plan, Communicator& comm, const StepOptions& options,
                               const StepResults& local, StepResults& r) {
  undispatch_rows(plan.q_dispatch, comm, local.out, r.out);
  undispatch_rows(plan.q_dispatch, comm, local.lse, r.lse);
  undispatch_rows(plan.q_dispatch, comm, local.dq, r.dq);
  undispatch_rows(plan.k_dispatch, comm, local.dk, r.dk);
  undispatch_rows(plan.k_dispatch, comm, local.dv, r.dv);
  r.max_logits = local.max_logits;
  if (options.sink_layout == SinkLayout::kSh || options.seqlen_sink == 0) {
    r.dsink = local.dsink;
    return;
  }
  const int columns = static_cast<int>(options.seqlen_sink) * options.heads.num_heads_q;
  const Dispatch& dispatch = plan.q_dispatch;
  r.dsink.resize(static_cast<size_t>(dispatch.seqlen() * columns));
  undispatch_rows(dispatch, comm,
                  {local.dsink.data(), DType::kFloat32, dispatch.rows_per_rank(), 1, columns, columns, columns},
                  {{r.dsink.data(), DType::kFloat32, dispatch.seqlen(), 1, columns, columns, columns}});
}

/// The part of one rank: shards of `in`, results undispatched into `r` (each rank passes its own).
inline void rank_step(const StepOptions& options, const StepInputs& in, Communicator& comm, DistAttention& attention,
                      StepResults& r) {
  const Plan& plan = attention.plan();
  const int rank = comm.rank();
  const auto shard = [&](const Dispatch& dispatch, const HostTensor& global) {
    HostTensor local(global.dtype(), dispatch.rows_per_rank(), global.heads(), global.dim());
    dispatch_rows(dispatch, rank, global, local);
    return local;
  };
  const HostTensor q = shard(plan.q_dispatch, in.q), dout = shard(plan.q_dispatch, in.dout);
  const HostTensor k = shard(plan.k_dispatch, in.k), v = shard(plan.k_dispatch, in.v);
  StepResults local = make_results(attention.q_rows(), attention.k_rows(), options);

  const std::vector<float> sink_rows = sink_of_rank(plan, rank, options, in);
  const Sink sink{sink_rows.data(), options.seqlen_sink, options.sink_layout};
  KeptKv kept;
  KeptKv* kept_pointer = options.use_kept ? &kept : nullptr;
  attention.forward(
      {q, k, v, local.out, local.lse.data<float>(), local.max_logits.data(), sink, kept_pointer, options.attn});
  attention.backward({q, k, v, local.out, local.lse.data<float>(), dout, local.dq, local.dk, local.dv,
                      options.seqlen_sink > 0 ? local.dsink.data() : nullptr, sink, options.dsink_reduce, kept_pointer,
                      options.attn});
  undispatch_results(plan, comm, options, local, r);
}

/// The step over all ranks of `plan`; results as rank 0 has them. `inspect` sees each rank's object afterwards.
inline StepResults distributed_step(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& in,
                                    const AttnBackend& backend,
                                    const std::function<void(Communicator&, const DistAttention&)>& inspect = nullptr) {
  StepResults of_rank_0;
  run_local_ranks(plan->cp_size(), [&](Communicator& comm) {
    DistAttention attention(plan, comm, backend);
    StepResults results = make_results(plan->q_dispatch.seqlen(), plan->k_dispatch.seqlen(), options);
    rank_step(options, in, comm, attention, results);
    if (inspect) inspect(comm, attention);
    if (comm.rank() == 0) of_rank_0 = std::move(results);
  });
  return of_rank_0;
}

inline void expect_close(const StepResults& actual, const StepResults& expected, double tolerance) {
  EXPECT_LE(relative_error(actual.out, expected.out), tolerance) << "out";
  EXPECT_LE(relative_error(actual.lse, expected.lse), tolerance) << "lse";
  EXPECT_LE(relative_error(actual.dq, expected.dq), tolerance) << "dq";
  EXPECT_LE(relative_error(actual.dk, expected.dk), tolerance) << "dk";
  EXPECT_LE(relative_error(actual.dv, expected.dv), tolerance) << "dv";
  // No sum enters max_logits, so only the backend's own rounding may differ.
  for (size_t i = 0; i < expected.max_logits.size(); ++i) {
    if (std::isinf(expected.max_logits[i])) {
      EXPECT_EQ(actual.max_logits[i], expected.max_logits[i]) << "max_logits of head " << i;
    } else {
      EXPECT_NEAR(actual.max_logits[i], expected.max_logits[i], 1e-5 * (1 + std::abs(expected.max_logits[i])));
    }
  }
  ASSERT_EQ(actual.dsink.size(), expected.dsink.size());
  for (size_t i = 0; i < expected.dsink.size(); ++i) {
    EXPECT_NEAR(actual.dsink[i], expected.dsink[i], tolerance * (1 + std::abs(expected.dsink[i]))) << "dsink " << i;
  }
}

/// Index of the `nth` such event in a rank's trace.
inline size_t index_of(const std::vector<TraceEvent>& trace, AttnPass pass, TraceKind kind, int stage, size_t nth = 0) {
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace[i].pass == pass && trace[i].kind == kind && trace[i].stage == stage && nth-- == 0) return i;
  }
  ADD_FAILURE() << "no " << to_string(kind) << " of stage " << stage;
  return 0;
}

/// Bitwise, so that NaN counts as equal to itself.
inline bool same_bits(const HostTensor& a, const HostTensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data<char>(), b.data<char>(), static_cast<size_t>(a.bytes())) == 0;
}
inline void expect_same_bits(const StepResults& a, const StepResults& b) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same_bits(a.dq, b.dq)) << "dq";
  EXPECT_TRUE(same_bits(a.dk, b.dk)) << "dk";
  EXPECT_TRUE(same_bits(a.dv, b.dv)) << "dv";
}

}  // namespace tangram::testing
