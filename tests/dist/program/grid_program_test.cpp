// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The strategies as tables of operations, executed over host memory: results against one rank and against the host's
// executor, bytes against the closed forms, order of operations, and what is refused. The same tables run on GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/device/host_memory_device.hpp"
#include "dist/pass_plan.hpp"
#include "dist/program/host_program_device.hpp"
#include "dist/program/program_attention.hpp"
#include "dist/strategy_cases.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::DenseBackend;
using ::testing::HasSubstr;
using testing::HostMemoryDevice;
using testing::kSeqlen;
using testing::kStrategies;
using testing::NamedMask;
using testing::plan_of;
using testing::same_bits;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

#if defined(__SANITIZE_THREAD__)
constexpr int kCpSizes[] = {2, 3};
#else
constexpr int kCpSizes[] = {1, 2, 4};  // 3: see MovesTheBytesOfTheClosedForms, 8: EveryShapeOfTheGridOverAndOver
#endif

/// Rows of a head are multiples of 16 bytes, as kernels want them.
HeadConfig heads_of(int cp_size, int variant, DType dtype = DType::kFloat32) {
  return testing::heads_of(cp_size, variant, 8, 8, dtype);
}

/// One rank with its operands in host memory.
struct Rank {
  RankContext base;
  HostMemoryDevice device;
  std::unique_ptr<ProgramAttention> attention;

  Rank(std::shared_ptr<const Plan> plan, Communicator& control, const AttnBackend& backend,
       const ProgramOptions& options)
      : device(control) {
    base.plan = plan;
    base.communicator = &control;
    base.backend = &backend;
    base.rank = control.rank();
    base.shape = rank_shape(*plan, control.rank());
    attention = std::make_unique<ProgramAttention>(base, device, testing::host_program_device(), options);
    memory.resize(static_cast<size_t>(attention->forward_workspace_bytes()) + 1);
  }
  /// Of one call; what an earlier one has left there is poison.
  AttnWorkspace workspace() {
    std::fill(memory.begin(), memory.end(), char{-1});
    return {memory.data(), attention->forward_workspace_bytes()};
  }

 private:
  std::vector<char> memory;
};

int64_t row_sinks_of(const StepOptions& options) {
  return options.sink_layout == SinkLayout::kSsh ? options.seqlen_sink : 0;
}

using Inspect = std::function<void(Communicator&, AttnPass)>;

/// As rank_step of dist/step.hpp. `inspect` is called after each pass.
void rank_step(const StepOptions& options, const StepInputs& in, Communicator& comm, const AttnBackend& backend,
               std::shared_ptr<const Plan> plan, int num_steps, const Inspect& inspect, StepResults& r) {
  Rank rank(plan, comm, backend, {.result_dtype = options.result_dtype, .row_sinks = row_sinks_of(options)});
  const auto shard = [&](const Dispatch& dispatch, const HostTensor& global) {
    HostTensor local(global.dtype(), dispatch.rows_per_rank(), global.heads(), global.dim());
    dispatch_rows(dispatch, comm.rank(), global, local);
    return local;
  };
  const HostTensor q = shard(plan->q_dispatch, in.q), dout = shard(plan->q_dispatch, in.dout);
  const HostTensor k = shard(plan->k_dispatch, in.k), v = shard(plan->k_dispatch, in.v);
  StepResults local = make_results(plan->q_dispatch.rows_per_rank(), plan->k_dispatch.rows_per_rank(), options);
  const std::vector<float> sink_rows = testing::sink_of_rank(*plan, comm.rank(), options, in);
  const Sink sink{sink_rows.data(), options.seqlen_sink, options.sink_layout};
  KeptKv kept;
  KeptKv* const kept_or_null = options.use_kept ? &kept : nullptr;
  for (int step = 0; step < num_steps; ++step) {
    comm.reset_counters();
    const DistForwardArgs forward{q,
                                  k,
                                  v,
                                  local.out,
                                  local.lse.data<float>(),
                                  local.max_logits.data(),
                                  sink,
                                  kept_or_null,
                                  options.attn,
                                  rank.workspace()};
    rank.attention->check(forward);
    rank.attention->forward(forward, nullptr);
    if (inspect) inspect(comm, AttnPass::kForward);
    comm.reset_counters();
    const DistBackwardArgs backward{q,
                                    k,
                                    v,
                                    local.out,
                                    local.lse.data<float>(),
                                    dout,
                                    local.dq,
                                    local.dk,
                                    local.dv,
                                    options.seqlen_sink > 0 ? local.dsink.data() : nullptr,
                                    sink,
                                    options.dsink_reduce,
                                    kept_or_null,
                                    options.attn,
                                    rank.workspace()};
    rank.attention->check(backward);
    rank.attention->backward(backward, nullptr);
    if (inspect) inspect(comm, AttnPass::kBackward);
  }
  testing::undispatch_results(*plan, comm, options, local, r);
}

StepResults program_step(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& in,
                         const AttnBackend& backend, int num_steps = 1, const Inspect& inspect = nullptr) {
  StepResults of_rank_0;
  run_local_ranks(plan->cp_size(), [&](Communicator& comm) {
    StepResults results = make_results(plan->mask.seqlen_q(), plan->mask.seqlen_k(), options);
    rank_step(options, in, comm, backend, plan, num_steps, inspect, results);
    if (comm.rank() == 0) of_rank_0 = std::move(results);
  });
  return of_rank_0;
}

StepResults step_of_program(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& inputs) {
  return program_step(plan, options, inputs, DenseBackend());
}

class ProgramMasks : public ::testing::TestWithParam<NamedMask> {};

TEST_P(ProgramMasks, DistributedEqualsSingleRank) {
  testing::expect_family_close(GetParam(), kCpSizes, 8, 8, step_of_program);
}

INSTANTIATE_TEST_SUITE_P(Dist, ProgramMasks, ::testing::ValuesIn(testing::mask_families()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// The host's executor makes the same calls and adds in the same order, so not a bit may differ, but in one place: its
// reduce-scatter rounds the own part to reduce_dtype before it adds, as a transport must that only sees tensors of it.
TEST(GridProgram, HasTheBitsOfTheHostsExecutor) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int variant = 0; variant < 3; ++variant) {
      StepOptions options;
      options.heads = heads_of(4, variant, DType::kBFloat16);
      options.result_dtype = DType::kBFloat16;
      const StepInputs inputs = testing::make_inputs(mask, options);
      for (const Strategy strategy : kStrategies) {
        SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", variant " << variant);
        const auto plan = plan_of(mask, options.heads, 4, {strategy, 0, 0, {}}, reduce_dtype);
        const StepResults host = testing::distributed_step(plan, options, inputs, backend);
        const StepResults program = program_step(plan, options, inputs, backend);
        EXPECT_TRUE(same_bits(program.out, host.out));
        EXPECT_TRUE(same_bits(program.lse, host.lse));
        EXPECT_TRUE(same_bits(program.dq, host.dq));
        if (strategy == Strategy::kAllGather && reduce_dtype != DType::kFloat32) continue;
        EXPECT_TRUE(same_bits(program.dk, host.dk));
        EXPECT_TRUE(same_bits(program.dv, host.dv));
      }
    }
  }
}

TEST(GridProgram, EveryShapeOfTheGridOverAndOver) {
  testing::expect_grid_shapes_close(8, 8, [](const auto& plan, const StepOptions& options, const StepInputs& inputs) {
    return program_step(plan, options, inputs, DenseBackend(), 3);
  });
}

TEST(GridProgram, CrossAttentionAndGivenDispatches) { testing::expect_cross_attention_close(8, 8, step_of_program); }

TEST(GridProgram, HcmsHasTheBitsOfUlysses) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true);
  const DenseBackend backend;
  StepOptions options;
  options.heads = {16, 8, 8, 8, DType::kBFloat16};
  options.result_dtype = DType::kBFloat16;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto step = [&](const StrategyConfig& strategy) {
    return program_step(plan_of(mask, options.heads, 2, strategy), options, inputs, backend);
  };
  const StepResults ulysses = step({Strategy::kUlysses, 0, 0, {}});
  for (const std::vector<int>& chunks : {std::vector<int>{4}, {2, 2}, {1, 2, 1}, {3, 1}}) {
    const StepResults hcms = step({Strategy::kHcms, 0, 0, chunks});
    testing::expect_same_bits(hcms, ulysses);
  }
}

TEST(GridProgram, SinksOfSingleRowsTravelWithTheHeads) {
  constexpr int kSizes[] = {2, 4};
  testing::expect_row_sinks_close(kSizes, 8, 8, step_of_program);
}

TEST(GridProgram, MovesTheBytesOfTheClosedForms) {
  const DenseBackend backend;
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  support::Sample sample(5);
  for (const int cp_size : {2, 3}) {
    for (int variant = 0; variant < 3; ++variant) {
      for (const auto& [use_kept, row_sinks] : {std::pair(false, 0), {true, 0}, {false, 2}, {true, 2}}) {
        StepOptions options;
        options.heads = heads_of(cp_size, variant, DType::kBFloat16);
        options.result_dtype = DType::kBFloat16;
        options.use_kept = use_kept;
        options.seqlen_sink = row_sinks;
        options.sink_layout = SinkLayout::kSsh;
        const StepInputs inputs = testing::make_inputs(mask, options);
        for (const Strategy strategy : kStrategies) {
          if (!sample.takes_next()) continue;
          SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", cp_size " << cp_size << ", variant " << variant
                                            << ", kept " << use_kept << ", sinks " << row_sinks);
          const auto plan = plan_of(mask, options.heads, cp_size, {strategy, 0, 0, {}});
          std::mutex mutex;
          int64_t bytes[] = {0, 0};
          program_step(plan, options, inputs, backend, 1, [&](Communicator& comm, AttnPass pass) {
            const std::lock_guard lock(mutex);
            bytes[static_cast<int>(pass)] += comm.counters().bytes_received;
          });
          const GridTraffic expected =
              grid_traffic(*plan, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, use_kept, row_sinks});
          EXPECT_EQ(bytes[0], expected.forward_bytes);
          EXPECT_EQ(bytes[1], expected.backward_bytes);
        }
      }
    }
  }
}

/// The index of the nth operation of a kind.
template <class Op>
size_t index_of(const GridProgram& program, int stage) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op* op = std::get_if<Op>(&program.ops[i]);
    if (op != nullptr && op->stage == stage) return i;
  }
  ADD_FAILURE() << "no operation of stage " << stage;
  return 0;
}

TEST(GridProgram, ChunksOfHcmsTravelWhileOthersCompute) {
  const auto plan =
      plan_of(full_mask(kSeqlen, kSeqlen), {12, 6, 8, 8, DType::kFloat32}, 2, {Strategy::kHcms, 0, 0, {1, 1, 1}});
  for (const bool backward : {false, true}) {
    const GridCallShape call{DType::kFloat32, 0, SinkLayout::kSh};
    const GridProgram program = backward ? backward_program(*plan, 0, call, false) : forward_program(*plan, 0, call);
    ASSERT_EQ(program.casts.size(), 6u);  // inputs of three chunks, then results
    for (int chunk = 0; chunk < 3; ++chunk) {
      const size_t compute = index_of<AttendOp>(program, chunk);
      EXPECT_LT(index_of<CastOp>(program, 2), index_of<AttendOp>(program, 0));
      EXPECT_LT(index_of<WaitOp>(program, chunk), compute);
      EXPECT_LT(compute, index_of<CastOp>(program, 3 + chunk));
      EXPECT_GT(index_of<WaitOp>(program, 3 + chunk), index_of<AttendOp>(program, 2));
      if (chunk < 2) {
        EXPECT_LT(index_of<CastOp>(program, 3 + chunk), index_of<AttendOp>(program, chunk + 1));
        EXPECT_GT(index_of<WaitOp>(program, chunk + 1), compute);
      }
      EXPECT_TRUE(std::get<AttendOp>(program.ops[compute]).beside_transfers);
    }
  }
}

TEST(GridProgram, TheNextBlockOfARingTravelsWhileOneComputes) {
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), heads_of(4, 1), 4, {Strategy::kRing, 0, 0, {}});
  const GridProgram forward = forward_program(*plan, 1, {DType::kFloat32, 0, SinkLayout::kSh});
  for (int step = 0; step + 1 < 4; ++step) {
    EXPECT_LT(index_of<CastOp>(forward, step), index_of<AttendOp>(forward, step));
    EXPECT_LT(index_of<AttendOp>(forward, step), index_of<WaitOp>(forward, step));
  }
  // Stages 0 to 2 bring blocks, 3 to 6 gradients: these travel while the next step computes.
  const GridProgram backward = backward_program(*plan, 1, {DType::kFloat32, 0, SinkLayout::kSh}, false);
  for (int step = 0; step + 1 < 4; ++step) {
    EXPECT_LT(index_of<CastOp>(backward, 3 + step), index_of<AttendOp>(backward, step + 1));
    EXPECT_GT(index_of<WaitOp>(backward, 3 + step), index_of<AttendOp>(backward, step + 1));
  }
}

/// The byte behind the last one of a tensor or of floats in memory of `place`, 0 for those elsewhere.
int64_t end_of(const TensorRef& ref, Place place) {
  return ref.place == place ? ref.offset + (ref.first_row + ref.rows) * ref.row_bytes() : 0;
}
int64_t end_of(const FloatRef& ref, Place place, int64_t rows, int columns) {
  if (ref.place != place || rows == 0) return 0;
  return (ref.offset + (rows - 1) * ref.stride + columns) * static_cast<int64_t>(sizeof(float));
}

int64_t last_byte(const GridProgram& program, Place place) {
  int64_t last = 0;
  const auto tensors = [&](std::initializer_list<TensorRef> refs) {
    for (const TensorRef& ref : refs) last = std::max(last, end_of(ref, place));
  };
  for (const GridOp& op : program.ops) {
    if (const auto* sums = std::get_if<RowSumsOp>(&op)) {
      for (const RowSumOp& sum : sums->sums) tensors({sum.source, sum.addend, sum.result});
    } else if (const auto* copies = std::get_if<FloatCopiesOp>(&op)) {
      for (const FloatCopyOp& copy : copies->copies) {
        last = std::max(last, end_of(copy.from, place, copy.rows, copy.columns));
        last = std::max(last, end_of(copy.to, place, copy.rows, copy.columns));
      }
    } else if (const auto* zero = std::get_if<ZeroOp>(&op)) {
      tensors({zero->tensor});
    } else if (const auto* attend = std::get_if<AttendOp>(&op)) {
      tensors({attend->q, attend->k, attend->v, attend->out, attend->dout, attend->dq, attend->dk, attend->dv});
      last = std::max(last, end_of(attend->lse, place, attend->q.rows, attend->q.heads));
    }
  }
  return last;
}

TEST(GridProgram, EverythingLiesInsideItsMemoryAndFillsIt) {
  for (const int cp_size : {2, 4, 6}) {
    for (int variant = 0; variant < 3; ++variant) {
      for (const Strategy strategy : kStrategies) {
        SCOPED_TRACE(::testing::Message() << to_string(strategy) << ", " << cp_size << " ranks, variant " << variant);
        const auto plan = plan_of(varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true),
                                  heads_of(cp_size, variant, DType::kBFloat16), cp_size, {strategy, 0, 0, {}});
        std::vector<int64_t> arenas;
        for (int rank = 0; rank < cp_size; ++rank) {
          const GridCallShape call{DType::kBFloat16, 1, cp_size == 4 ? SinkLayout::kSsh : SinkLayout::kSh};
          const GridProgram programs[] = {forward_program(*plan, rank, call),
                                          backward_program(*plan, rank, call, false),
                                          backward_program(*plan, rank, call, plan->grid.head_ranks > 1)};
          for (const GridProgram& program : programs) {
            EXPECT_LE(last_byte(program, Place::kArena), program.arena_bytes);
            EXPECT_LE(last_byte(program, Place::kWork), program.work_bytes);
            EXPECT_GT(last_byte(program, Place::kWork) + 256, program.work_bytes);  // but for alignment
            for (const Exchange& exchange : program.casts) {
              for (const RowCopy& copy : exchange.sends) EXPECT_LE(copy.rows.end * kArenaUnit, program.arena_bytes);
              for (const RowCopy& copy : exchange.recvs) EXPECT_LE(copy.rows.end * kArenaUnit, program.arena_bytes);
            }
            arenas.push_back(program.arena_bytes);
          }
        }
        for (size_t i = 3; i < arenas.size(); ++i) EXPECT_EQ(arenas[i], arenas[i - 3]) << "alike on all ranks";
      }
    }
  }
}

TEST(GridProgram, RefusesWhatCannotTravel) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  const auto plan = plan_of(mask, heads_of(2, 0, DType::kBFloat16), 2, {Strategy::kUlysses, 0, 0, {}});
  StepOptions options;
  options.heads = plan->config.heads;
  options.result_dtype = DType::kBFloat16;
  options.seqlen_sink = 1;
  options.sink_layout = SinkLayout::kSsh;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto message_of = [&](const StepOptions& how, DType prepared_for) {
    std::string message;
    run_local_ranks(2, [&](Communicator& comm) {
      Rank rank(plan, comm, backend, {.result_dtype = prepared_for});
      StepResults local = make_results(kSeqlen / 2, kSeqlen / 2, how);
      const ConstTensorView q = inputs.q.view(), k = inputs.k.view(), v = inputs.v.view();
      const Range half = {0, kSeqlen / 2};
      try {
        rank.attention->check(DistForwardArgs{slice_rows(q, half),
                                              slice_rows(k, half),
                                              slice_rows(v, half),
                                              local.out,
                                              local.lse.data<float>(),
                                              nullptr,
                                              {inputs.sink.data(), how.seqlen_sink, how.sink_layout}});
      } catch (const InvalidArgument& error) {
        if (comm.rank() == 0) message = error.what();
      }
    });
    return message;
  };
  EXPECT_THAT(message_of(options, DType::kBFloat16),
              HasSubstr("sinks of single rows must be as many as prepared for, since they travel with heads "
                        "(got 1 and DeviceDistOptions::row_sinks=0)"));
  options.sink_layout = SinkLayout::kSh;
  EXPECT_EQ(message_of(options, DType::kBFloat16), "");
  EXPECT_THAT(message_of(options, DType::kFloat32), HasSubstr("out must be float32, in which it travels"));
}

TEST(GridProgram, RanksAgreeOnWhatTravelsBesideHeads) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  const auto messages_of = [&](Strategy strategy, int64_t row_sinks, DType result_dtype) {  // of rank 1
    const auto plan = plan_of(mask, heads_of(2, 0, DType::kBFloat16), 2, {strategy, 0, 0, {}});
    std::vector<std::string> messages(2);
    run_local_ranks(2, [&](Communicator& comm) {
      const bool is_other = comm.rank() == 1;
      try {
        agree_on_heads(comm, *plan, is_other ? row_sinks : 1, is_other ? result_dtype : DType::kBFloat16);
      } catch (const InvalidArgument& error) {
        messages[static_cast<size_t>(comm.rank())] = error.what();
      }
      comm.barrier("works on");
    });
    return messages;
  };
  const auto refused = ::testing::Each(HasSubstr("row_sinks and result_dtype: must be equal on every rank"));
  EXPECT_THAT(messages_of(Strategy::kUlysses, 2, DType::kBFloat16), refused);
  EXPECT_THAT(messages_of(Strategy::kUlysses, 1, DType::kFloat32), refused);
  EXPECT_THAT(messages_of(Strategy::kUlysses, 1, DType::kBFloat16), ::testing::Each(""));
  EXPECT_THAT(messages_of(Strategy::kRing, 2, DType::kFloat32), ::testing::Each("")) << "nothing travels with heads";
}

}  // namespace
}  // namespace tangram
