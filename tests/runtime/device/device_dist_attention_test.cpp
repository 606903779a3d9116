// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention on GPUs against the CPU backend on a single rank. Ranks are threads, on one GPU or on as many as there
// are. Needs a Hopper GPU; skipped elsewhere.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "runtime/device/device_step.hpp"
#include "runtime/mask_families.hpp"
#include "tangram/backends.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::DeviceRun;
using ::testing::HasSubstr;
using testing::NamedMask;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

// Before CUDA starts. Where ranks share a GPU, no kernel may be loaded while another waits, which loading would wait
// for.
[[maybe_unused]] const int kLoading = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

// Out of 132 multiprocessors: four ranks may wait on one GPU and still leave room for the small kernels of each.
constexpr int kRoomForOthers = 108;
constexpr int64_t kSeqlen = 1536;  // 12 chunks of 128: divides by 2, 3 and 4 ranks
constexpr int64_t kChunkSize = 64;
// The kernels round probabilities and score gradients to 16 bits (2^-9 relative for bfloat16) and multiply those; the
// reference keeps float32. Their own tests allow as much.
constexpr double kTolerance = 6e-3;
// Another order of float32 sums and one more rounding of partial results; nothing else may differ between executions.
constexpr double kSameKernelTolerance = 3e-3;

HeadConfig heads_of(int num_heads_q, int num_heads_kv, DType dtype = DType::kBFloat16, int head_dim = 128) {
  return {num_heads_q, num_heads_kv, head_dim, head_dim, dtype};
}

struct PlanOptions {
  int cp_size = 2;
  int stages_fwd = 1;
  int stages_bwd = 1;
  bool keep = false;
  DType reduce_dtype = DType::kFloat32;
  LaunchOrder order = LaunchOrder::kAuto;
};

std::shared_ptr<const Plan> plan_of(const Mask& mask, const HeadConfig& heads, const PlanOptions& options) {
  DistAttnConfig config;
  config.cp_size = options.cp_size;
  config.heads = heads;
  config.dispatch = {DispatchAlgorithm::kTangram, kChunkSize, 0};  // auto leaves short masks in sequence
  config.overlap = {options.stages_fwd, options.stages_bwd, options.keep, options.order};
  config.reduce_dtype = options.reduce_dtype;
  return std::make_shared<const Plan>(make_plan(mask, config));
}

std::vector<NamedMask> mask_families() {
  return testing::mask_families({.seqlen = kSeqlen,
                                 .cu_seqlens = {0, 100, 611, 612, 1000, kSeqlen},
                                 .window = {200, 9},
                                 .window_of_documents = {90, 0},
                                 .causal_block = 200,
                                 .prefix_lm = 300,
                                 .shared_prefix = 400,
                                 .continuations = {500, 236, 400},
                                 .window_beside_global = {130, 0},
                                 .sparse_block_q = 256,
                                 .sparse_block_k = 384});
}

StepResults reference_step(const Mask& mask, const StepOptions& options, const StepInputs& inputs) {
  static const std::unique_ptr<AttnBackend> cpu = make_attn_backend("cpu");
  return testing::single_step(mask, options, inputs, *cpu);
}

struct Transport {
  const char* name;
  testing::MakeCommunicator make;
  bool shares_gpus = true;  // several ranks on one GPU
  bool on_device = true;    // the host never waits, nor moves rows
  bool has_flags = true;    // kernels may wait for rows
  bool has_nodes = false;   // ranks are on several nodes
};
void PrintTo(const Transport& transport, std::ostream* stream) { *stream << transport.name; }

testing::MakeCommunicator real(DeviceTransport transport, bool batch_copies = true) {
  return [=](Communicator& control) {
    return make_device_communicator(control, {.transport = transport,
                                              .timeout_s = 20,
                                              .batch_copies = batch_copies,
                                              .lockstep = testing::must_keep_step(control.size())});
  };
}

/// Four ranks are two nodes of two, fewer are nodes of one.
int ranks_per_node(int size) { return size == 4 ? 2 : 1; }

testing::MakeCommunicator over_nodes(DeviceTransport across) {
  return [across](Communicator& control) {
    return make_device_communicator(control, {.transport = across,
                                              .timeout_s = 20,
                                              .lockstep = testing::must_keep_step(control.size()),
                                              .ranks_per_node = ranks_per_node(control.size())});
  };
}

std::vector<Transport> transports() {
  return {{"Blocking", testing::make_blocking, true, false, false},
          {"BlockingWithFlags", testing::make_blocking_with_flags, true, false, true},
          {"CopyEngine", real(DeviceTransport::kCopyEngine), true, true, true},
          {"CopyEngineOneByOne", real(DeviceTransport::kCopyEngine, false), true, true, true},
          {"Nccl", real(DeviceTransport::kNccl), false, true, false},
          {"NodesOverCopyEngine", over_nodes(DeviceTransport::kCopyEngine), true, true, false, true},
          {"NodesOverNccl", over_nodes(DeviceTransport::kNccl), false, true, false, true}};
}

template <class Base>
class GpuTest : public Base {
 protected:
  void SetUp() override {
    if (!testing::have_hopper()) GTEST_SKIP() << "needs a Hopper GPU";
    if (!transport().shares_gpus && testing::num_gpus() < 2) GTEST_SKIP() << "needs a GPU for each rank";
  }
  virtual const Transport& transport() const = 0;
  /// At most `wanted` ranks: as many as there may be.
  static int ranks(const Transport& transport, int wanted) {
    return transport.shares_gpus ? wanted : std::min(wanted, testing::num_gpus());
  }
};

class DeviceDist : public GpuTest<::testing::TestWithParam<Transport>> {
 protected:
  const Transport& transport() const override { return GetParam(); }
  int ranks(int wanted) const { return GpuTest::ranks(GetParam(), wanted); }
  StepResults step(std::shared_ptr<const Plan> plan, const StepOptions& options, const StepInputs& inputs,
                   const DeviceRun& run = {}) const {
    return testing::device_step(std::move(plan), options, inputs, {}, GetParam().make, run);
  }
};

class DeviceMaskFamilies : public GpuTest<::testing::TestWithParam<std::tuple<NamedMask, Transport>>> {
 protected:
  const Transport& transport() const override { return std::get<1>(GetParam()); }
};

TEST_P(DeviceMaskFamilies, EqualsTheCpuReference) {
  const auto& [family, transport] = GetParam();
  const Mask& mask = family.mask;
  struct Variant {
    PlanOptions plan;
    HeadConfig heads;
    DeviceOverlap overlap;
  };
  const DType bf16 = DType::kBFloat16, f16 = DType::kFloat16;
  // Every value of each option meets several of the others.
  const Variant variants[] = {
      {{2, 1, 2, false}, heads_of(4, 2, bf16), DeviceOverlap::kSingleLaunch},
      {{2, 3, 1, false, bf16}, heads_of(2, 2, bf16, 64), DeviceOverlap::kNone},
      {{3, 2, 2, true}, heads_of(8, 1, f16, 64), DeviceOverlap::kStages},
      {{4, 3, 3, false}, heads_of(6, 2, bf16), DeviceOverlap::kStages},
      {{3, 2, 2, true, bf16}, heads_of(4, 1, bf16), DeviceOverlap::kSingleLaunch},
      {{4, 2, 3, false, bf16}, heads_of(8, 2, bf16, 64), DeviceOverlap::kSingleLaunch},
      {{4, 1, 1, true, bf16}, heads_of(4, 2, f16), DeviceOverlap::kNone},
      {{1, 1, 1, false}, heads_of(4, 1, bf16), DeviceOverlap::kStages},
  };
  for (const Variant& variant : variants) {
    if (ranks(transport, variant.plan.cp_size) < variant.plan.cp_size) continue;
    SCOPED_TRACE(::testing::Message() << "cp_size " << variant.plan.cp_size << ", heads " << variant.heads.num_heads_q
                                      << "/" << variant.heads.num_heads_kv << ", " << to_string(variant.overlap)
                                      << ", keep " << variant.plan.keep);
    StepOptions options;
    options.heads = variant.heads;
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = reference_step(mask, options, inputs);
    const bool must_be_auto = variant.overlap == DeviceOverlap::kSingleLaunch && !transport.has_flags;
    const DeviceOverlap overlap = must_be_auto ? DeviceOverlap::kAuto : variant.overlap;
    const DistAttentionOptions how{.forward = overlap, .backward = overlap};
    if (overlap == DeviceOverlap::kSingleLaunch) options.attn.sm_margin = kRoomForOthers;
    const auto plan = plan_of(mask, options.heads, variant.plan);
    testing::expect_close(testing::device_step(plan, options, inputs, how, transport.make), expected, kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceMaskFamilies,
                         ::testing::Combine(::testing::ValuesIn(mask_families()), ::testing::ValuesIn(transports())),
                         [](const auto& param_info) {
                           return std::string(std::get<0>(param_info.param).name) + "Over" +
                                  std::get<1>(param_info.param).name;
                         });
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceDist, ::testing::ValuesIn(transports()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_P(DeviceDist, EveryLaunchOrderGivesTheSameResults) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(4, 2);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = reference_step(mask, options, inputs);
  for (const LaunchOrder order : {LaunchOrder::kSmMargin, LaunchOrder::kHighPriority, LaunchOrder::kKernelBarrier}) {
    SCOPED_TRACE(to_string(order));
    const auto plan =
        plan_of(mask, options.heads, {.cp_size = ranks(3), .stages_fwd = 2, .stages_bwd = 2, .order = order});
    const DistAttentionOptions how{.forward = DeviceOverlap::kStages, .backward = DeviceOverlap::kStages};
    testing::expect_close(testing::device_step(plan, options, inputs, how, GetParam().make), expected, kTolerance);
  }
}

TEST_P(DeviceDist, OwnRowsThatAreReadWhereTheyLieAndRowsOfOthersMeet) {
  StepOptions options;
  options.heads = heads_of(4, 2);
  const std::vector<int64_t> cu_seqlens = {0, 1111, 1500, 2 * kSeqlen};
  for (const Mask& mask : {causal_mask(2 * kSeqlen, 2 * kSeqlen), varlen_mask(cu_seqlens, true),
                           sliding_window_mask(2 * kSeqlen, {600, 0})}) {
    const StepInputs inputs = testing::make_inputs(mask, options);
    const StepResults expected = reference_step(mask, options, inputs);
    for (const int stages : {1, 2}) {
      DistAttnConfig config;
      config.cp_size = ranks(4);
      config.heads = options.heads;
      config.dispatch = {DispatchAlgorithm::kTangram, 3 * 128, 0};  // longer than two borders
      config.overlap = {stages, stages, false, LaunchOrder::kAuto};
      const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
      // The second step finds what the first left in the buffers.
      testing::expect_close(step(plan, options, inputs, {.num_steps = 2}), expected, kTolerance);
    }
  }
}

TEST_P(DeviceDist, SinkSoftcapAndScaleEnterOnce) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  for (const SinkLayout layout : {SinkLayout::kSh, SinkLayout::kSsh}) {
    for (const DsinkReduce reduce : {DsinkReduce::kSum, DsinkReduce::kAvg}) {
      StepOptions options;
      options.heads = heads_of(4, 2);
      options.attn.softcap = 20;
      options.attn.softmax_scale = 0.11f;
      options.seqlen_sink = 3;
      options.sink_layout = layout;
      options.dsink_reduce = reduce;
      const StepInputs inputs = testing::make_inputs(mask, options);
      StepResults expected = reference_step(mask, options, inputs);
      if (reduce == DsinkReduce::kAvg && layout == SinkLayout::kSh) {
        for (float& value : expected.dsink) value /= static_cast<float>(ranks(3));
      }
      const auto plan = plan_of(mask, options.heads, {ranks(3), 2, 2});
      testing::expect_close(step(plan, options, inputs), expected, kTolerance);
    }
  }
}

TEST_P(DeviceDist, SixteenBitResultsAreTheRoundedSums) {
  const Mask mask = varlen_mask(std::vector<int64_t>{0, 700, kSeqlen}, true);
  StepOptions options;
  options.heads = heads_of(4, 2);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, {ranks(4), 2, 2});
  const StepResults exact = step(plan, options, inputs);
  options.result_dtype = DType::kBFloat16;
  const StepResults rounded = step(plan, options, inputs);
  // out is rounded to nearest, and so is dq, dk and dv; the latter also see the rounding of out through delta.
  EXPECT_LE(testing::relative_error(rounded.out, exact.out), 0x1p-9);
  EXPECT_LE(testing::relative_error(rounded.dq, exact.dq), 0x1p-7);
  EXPECT_LE(testing::relative_error(rounded.dk, exact.dk), 0x1p-7);
  EXPECT_LE(testing::relative_error(rounded.dv, exact.dv), 0x1p-9);
}

TEST_P(DeviceDist, NoRankAndNoStageChangesMoreThanRounding) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(4, 2);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults one = step(plan_of(mask, options.heads, {1, 1, 1}), options, inputs);
  for (const int stages : {1, 2, 4}) {
    const auto plan = plan_of(mask, options.heads, {ranks(4), stages, stages});
    testing::expect_close(step(plan, options, inputs), one, kSameKernelTolerance);
  }
}

/// Bitwise, so that NaN would count as equal to itself.
void expect_same(const StepResults& a, const StepResults& b) {
  const auto same = [](const HostTensor& x, const HostTensor& y) {
    return std::memcmp(x.view().data, y.view().data, static_cast<size_t>(x.bytes())) == 0;
  };
  EXPECT_TRUE(same(a.out, b.out)) << "out";
  EXPECT_TRUE(same(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same(a.dq, b.dq)) << "dq";
  EXPECT_TRUE(same(a.dk, b.dk)) << "dk";
  EXPECT_TRUE(same(a.dv, b.dv)) << "dv";
  EXPECT_EQ(a.max_logits, b.max_logits);
}

TEST_P(DeviceDist, DeterministicStepsAreBitwiseEqualOverAndOver) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(4, 2);
  options.attn.deterministic = true;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, {ranks(4), 2, 2});
  const StepResults first = step(plan, options, inputs);
  for (int i = 0; i < 3; ++i) expect_same(step(plan, options, inputs, {.num_steps = 1 + i}), first);
}

TEST_P(DeviceDist, CapturedStepsReplay) {
  if (!GetParam().on_device) GTEST_SKIP() << "this transport waits on the host";
  if (testing::must_keep_step(2)) GTEST_SKIP() << "hosts cannot keep graphs in step: needs a GPU for each rank";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(4, 2);
  options.attn.deterministic = true;
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, {std::min(4, testing::num_gpus()), 2, 2});
  const StepResults eager = step(plan, options, inputs);
  expect_same(step(plan, options, inputs, {.num_steps = 5, .as_graph = true}), eager);
}

TEST_P(DeviceDist, MovesExactlyTheRowsOfThePlan) {
  if (!GetParam().on_device) GTEST_SKIP() << "this transport's counters include what the test itself moves";
  const Mask mask = sliding_window_mask(kSeqlen, {200, 0});
  StepOptions options;
  options.heads = heads_of(4, 2);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, {ranks(3), 2, 2});
  testing::run_device_ranks(ranks(3), GetParam().make, [&](DeviceCommunicator& comm) {
    const Sm90Backend backend;
    DistAttention attention(plan, comm, backend);
    StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
    comm.reset_counters();
    testing::device_rank_step(options, {}, inputs, comm, attention, results);
    int64_t received = 0, sent = 0;
    const RankPlan& rank = plan->ranks()[static_cast<size_t>(comm.rank())];
    for (const Stage& stage : rank.forward) received += stage.exchange.rows_received();
    for (const Stage& stage : rank.forward) sent += stage.exchange.rows_sent();
    // K and V are cast in both passes; dk and dv go the other way.
    EXPECT_EQ(comm.counters().rows_received, 4 * received + 2 * sent);
    EXPECT_EQ(comm.counters().rows_sent, 4 * sent + 2 * received);
    EXPECT_TRUE(attention.trace().empty());  // of hosts, as this
    EXPECT_EQ(attention.memory_use().buffer_bytes, 0);
  });
}

TEST_P(DeviceDist, RowsCrossToANodeOnceInBothDirections) {
  if (!GetParam().has_nodes) GTEST_SKIP() << "all ranks are on one node";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(4, 2);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const int size = ranks(4), per_node = ranks_per_node(size);
  const auto plan = plan_of(mask, options.heads, {size, 2, 2});
  const auto node_of = [&](int rank) { return rank / per_node; };
  // (from, to node): rows of a pass that cross, and what would cross if each rank were sent its own.
  const auto rows_across = [&](const std::vector<Stage> RankPlan::* pass, int from, int to_node) {
    std::set<int64_t> needed;
    int64_t to_each = 0;
    for (const Stage& stage : plan->ranks()[static_cast<size_t>(from)].*pass) {
      for (const RowCopy& copy : stage.exchange.sends) {
        if (node_of(copy.peer) != to_node) continue;
        to_each += copy.rows.size();
        for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row) needed.insert(row);
      }
    }
    return std::pair<int64_t, int64_t>(std::ssize(needed), to_each);
  };
  testing::run_device_ranks(size, GetParam().make, [&](DeviceCommunicator& comm) {
    const Sm90Backend backend;
    DistAttention attention(plan, comm, backend);
    const int rank = comm.rank();
    int64_t cast = 0, returned = 0, saved = 0;  // rows that this rank sends
    for (int node = 0; node < size / per_node; ++node) {
      if (node == node_of(rank)) continue;
      const auto [forward, to_each] = rows_across(&RankPlan::forward, rank, node);
      cast += forward + rows_across(&RankPlan::backward, rank, node).first;
      saved += to_each - forward;
      // Rows sent as the relay of the rank with its number in the other node.
      returned += rows_across(&RankPlan::backward, node * per_node + rank % per_node, node_of(rank)).first;
    }
    comm.reset_counters();
    StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
    testing::device_rank_step(options, {}, inputs, comm, attention, results);
    EXPECT_EQ(comm.across_nodes().rows_sent, 2 * cast + 2 * returned);  // K and V, dk and dv
    if (per_node > 1) {
      EXPECT_GT(saved, 0);  // else this shows nothing
    }
  });
}

TEST_P(DeviceDist, APeerThatStopsIsNamedAndTheProcessStaysUsable) {
  if (!GetParam().on_device || !GetParam().shares_gpus || GetParam().has_nodes)
    GTEST_SKIP() << "deadlines on the device are what is tested";
  if (Env::get().sanity_check) GTEST_SKIP() << "hosts find that a rank is missing before a pass begins";
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(4, 2);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, {3, 1, 1});
  for (const DeviceOverlap overlap : {DeviceOverlap::kSingleLaunch, DeviceOverlap::kStages}) {
    const auto impatient = [](Communicator& control) {
      return make_device_communicator(control, {.transport = DeviceTransport::kCopyEngine, .timeout_s = 1});
    };
    testing::run_device_ranks(3, impatient, [&](DeviceCommunicator& comm) {
      const Sm90Backend backend;
      DistAttention attention(plan, comm, backend, {.forward = overlap, .backward = overlap});
      testing::DeviceOperands on(*plan, comm.rank(), options, inputs);
      AttnOptions attn;
      attn.sm_margin = kRoomForOthers;
      // Not the legacy stream: ranks that share a GPU would share it.
      cudaStream_t stream = nullptr;
      cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      comm.control().barrier("ready");
      if (comm.rank() == 1) {
        comm.control().barrier("the others have given up");
        cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
        return;
      }
      std::string text;
      try {
        attention.forward({on.q, on.k, on.v, on.out, on.lse.as<float>(), nullptr, {}, nullptr, attn}, stream);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "no sticky error";
        comm.check();
      } catch (const Error& error) {
        text = error.what();
      }
      EXPECT_THAT(text, HasSubstr("rank 1"));
      comm.control().barrier("the others have given up");
      cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    });
    // A new group on the same devices.
    testing::expect_close(testing::device_step(plan, options, inputs, {}, GetParam().make),
                          reference_step(mask, options, inputs), kTolerance);
  }
}

TEST_P(DeviceDist, WrongArgumentsAreRefusedAndTheObjectStaysUsable) {
  const Mask mask = causal_mask(kSeqlen, kSeqlen);
  StepOptions options;
  options.heads = heads_of(4, 2);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const StepResults expected = reference_step(mask, options, inputs);
  const auto plan = plan_of(mask, options.heads, {ranks(2), 1, 1});
  testing::run_device_ranks(ranks(2), GetParam().make, [&](DeviceCommunicator& comm) {
    const Sm90Backend backend;
    DistAttention attention(plan, comm, backend);
    testing::DeviceOperands on(*plan, comm.rank(), options, inputs);
    KeptKv kept;
    const auto refuses = [&](const std::string& text, const std::function<void(DistForwardArgs&)>& spoil) {
      DistForwardArgs args{on.q, on.k, on.v, on.out, on.lse.as<float>(), nullptr, {}, nullptr, {}};
      spoil(args);
      try {
        attention.forward(args, nullptr);
        ADD_FAILURE() << "not refused: " << text;
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    refuses("q must be [", [](DistForwardArgs& args) { args.q.rows += 1; });
    refuses("lse must have memory", [](DistForwardArgs& args) { args.lse = nullptr; });
    refuses("rows of k must be contiguous", [](DistForwardArgs& args) { args.k.head_stride = 256; });
    refuses("kept must be given where the plan keeps", [&](DistForwardArgs& args) { args.kept = &kept; });
    StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
    testing::device_rank_step(options, {}, inputs, comm, attention, results);
    testing::expect_close(results, expected, kTolerance);
  });
}

}  // namespace
}  // namespace tangram
