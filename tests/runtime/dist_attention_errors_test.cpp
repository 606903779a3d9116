// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What DistAttention refuses, alike on every rank, and how a failure of one rank ends the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "comm/device/host_memory_device.hpp"
#include "runtime/delegating_backend.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/staged_plan.hpp"
#include "runtime/step.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::DelegatingBackend;
using testing::DenseBackend;
using ::testing::HasSubstr;
using testing::heads_of;
using testing::kSeqlen;
using testing::plan_of;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

/// Fails on one rank at a given call.
class FailingBackend final : public DelegatingBackend {
 public:
  FailingBackend() : DelegatingBackend("failing") {}
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const override {
    if (args.accumulate && !failed.exchange(true)) throw std::runtime_error("out of luck");
    DelegatingBackend::forward(slot, args, stream);
  }
  mutable std::atomic<bool> failed = false;
};

TEST(DistAttentionErrors, BackendThatFailsOnOneRankEndsTheOthersAtOnce) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const FailingBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 4, 3, 3);
  std::atomic<int> num_told = 0;
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_local_ranks(
        4,
        [&](Communicator& comm) {
          DistAttention attention(plan, comm, backend);
          StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
          try {
            testing::rank_step(options, inputs, comm, attention, results);
          } catch (const CommError& error) {
            EXPECT_THAT(error.what(), HasSubstr("gave up: out of luck"));
            ++num_told;
            throw;
          }
        },
        60);
    FAIL() << "expected an error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("out of luck"));
  }
  EXPECT_EQ(num_told, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

/// Has no memory on rank 1, as a thread of which it is told.
class HungryBackend final : public DelegatingBackend {
 public:
  HungryBackend() : DelegatingBackend("hungry") {}
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const override {
    if (std::this_thread::get_id() == hungry) HostTensor(DType::kFloat32, int64_t{1} << 50, 1, 1);
    DelegatingBackend::forward(slot, args, stream);
  }
  void backward(MaskSlot&, const AttnBackwardArgs&, void*) const override {}
  mutable std::atomic<std::thread::id> hungry;
};

// Peers complain that the rank gave up, often before it ends itself: what counts is why.
TEST(DistAttentionErrors, OutOfMemoryOfARankThreadIsTheErrorOfTheGroup) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const HungryBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 2, DType::kFloat32);
  const StepInputs inputs = testing::make_inputs(mask, options);
  const auto plan = plan_of(mask, options.heads, 4, 3, 3);
  for (int round = 0; round < 10; ++round) {
    backend.hungry = std::thread::id();
    const auto run = [&](Communicator& comm) {
      if (comm.rank() == 1) backend.hungry = std::this_thread::get_id();
      DistAttention attention(plan, comm, backend);
      StepResults results = testing::make_results(kSeqlen, kSeqlen, options);
      testing::rank_step(options, inputs, comm, attention, results);
    };
    EXPECT_THAT([&] { run_local_ranks(4, run, 60); },
                ::testing::ThrowsMessage<OutOfMemory>(HasSubstr("1125899906842624, 1, 1]: 4503599627370496 bytes")));
  }
}

/// Runs `rank_main` and expects InvalidArgument with `text` on every rank, and a usable communicator afterwards.
void expect_refused_on_every_rank(int size, const std::string& text,
                                  const std::function<void(Communicator&)>& rank_main) {
  run_local_ranks(
      size,
      [&](Communicator& comm) {
        try {
          rank_main(comm);
          ADD_FAILURE() << "rank " << comm.rank() << " was not refused";
        } catch (const InvalidArgument& error) {
          EXPECT_THAT(error.what(), HasSubstr(text)) << "rank " << comm.rank();
        }
        comm.barrier("still usable");
      },
      20);
}

TEST(DistAttentionErrors, RanksThatDisagreeFindOutBeforeTheFirstTransfer) {
  const DenseBackend backend;
  const HeadConfig heads = heads_of(2, 2, DType::kFloat32);
  const auto full = plan_of(full_mask(kSeqlen, kSeqlen), heads, 3, 1, 1);
  const auto causal = plan_of(causal_mask(kSeqlen, kSeqlen), heads, 3, 1, 1);
  const auto other_stages = plan_of(full_mask(kSeqlen, kSeqlen), heads, 3, 2, 1);
  for (const auto& other : {causal, other_stages}) {
    const char* text = other == causal ? "masks differ (ranks 0, 2: " : "same call: configs differ (ranks 0, 2: ";
    expect_refused_on_every_rank(3, text, [&](Communicator& comm) {
      comm.reset_counters();
      try {
        DistAttention attention(comm.rank() == 1 ? other : full, comm, backend);
      } catch (...) {
        EXPECT_EQ(comm.counters().rows_sent + comm.counters().rows_received, 0);
        throw;
      }
    });
  }
}

TEST(DistAttentionErrors, PlanForAnotherNumberOfRanksIsRefused) {
  const DenseBackend backend;
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), heads_of(2, 2, DType::kFloat32), 4, 1, 1);
  expect_refused_on_every_rank(2, "plan must be for as many ranks as the communicator has (got 4 and 2)",
                               [&](Communicator& comm) { DistAttention attention(plan, comm, backend); });
}

/// Like DenseBackend, but for tensors on a device.
class LocalKvBackend final : public DelegatingBackend {
 public:
  LocalKvBackend() : DelegatingBackend("elsewhere") {}
  AttnCaps caps() const override {
    AttnCaps caps = DelegatingBackend::caps();
    caps.memory = MemoryKind::kDevice;
    return caps;
  }
};

TEST(DistAttentionErrors, BackendsForDeviceMemoryAreRefused) {
  const LocalKvBackend backend;
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), heads_of(2, 2, DType::kFloat32), 2, 1, 1);
  expect_refused_on_every_rank(2,
                               "backend must work on host memory, see AttnBackendOptions::host_memory (got elsewhere",
                               [&](Communicator& comm) { DistAttention attention(plan, comm, backend); });
}

TEST(DistAttentionErrors, BackendsForHostMemoryAreRefusedOnGpus) {
  const DenseBackend backend;
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), heads_of(2, 2, DType::kFloat32), 2, 1, 1);
  expect_refused_on_every_rank(2, "backend must work on the memory of GPUs, as the communicator (got dense",
                               [&](Communicator& comm) {
                                 testing::HostMemoryDevice device(comm);
                                 DistAttention attention(plan, device, backend);
                               });
}

TEST(DistAttentionErrors, PlansForAnotherNumberOfRanksAreRefusedOnGpus) {
  const LocalKvBackend backend;
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), heads_of(2, 2, DType::kFloat32), 4, 1, 1);
  expect_refused_on_every_rank(2, "plan must be for as many ranks as the communicator has (got 4 and 2)",
                               [&](Communicator& comm) {
                                 testing::HostMemoryDevice device(comm);
                                 DistAttention attention(plan, device, backend);
                               });
}

// What is of GPUs alone: in builds with CUDA these refuse, elsewhere there is nothing to ask.
TEST(DistAttentionErrors, GpusAreRefusedOnEveryRankWhereTheyCannotBe) {
  const LocalKvBackend backend;
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), heads_of(2, 2, DType::kFloat32), 2, 1, 1);
  run_local_ranks(2, [&](Communicator& comm) {
    testing::HostMemoryDevice device(comm);
    try {
      DistAttention attention(plan, device, backend, {.max_kept = 0});
      ADD_FAILURE() << "rank " << comm.rank() << " was not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("max_kept must be positive (got 0)"));
    } catch (const NotAvailable& error) {
      EXPECT_THAT(error.what(), HasSubstr("on GPUs needs a build with CUDA"));
    }
    comm.barrier("still usable");
  });
}

TEST(DistAttentionErrors, HostsNeedNoWorkspaceAndIgnoreOptionsOfGpus) {
  const DenseBackend backend;
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), heads_of(2, 2, DType::kFloat32), 2, 1, 1);
  run_local_ranks(2, [&](Communicator& comm) {
    const DistAttention attention(plan, comm, backend, {.forward = DeviceOverlap::kSingleLaunch, .max_kept = 0});
    EXPECT_EQ(attention.forward_workspace_bytes(), 0);
    EXPECT_EQ(attention.backward_workspace_bytes(), 0);
    EXPECT_EQ(attention.device_bytes(), 0);
  });
}

TEST(DistAttentionErrors, BadArgumentsOfOneRankAreRefusedOnEveryRank) {
  const Mask mask = full_mask(kSeqlen, kSeqlen);
  const DenseBackend backend;
  StepOptions options;
  options.heads = heads_of(2, 1, DType::kBFloat16);
  const auto plan = plan_of(mask, options.heads, 3, 2, 2);
  const auto forward_with = [&](const std::string& text, const std::function<void(DistForwardArgs&)>& spoil) {
    expect_refused_on_every_rank(3, text, [&](Communicator& comm) {
      DistAttention attention(plan, comm, backend);
      HostTensor q(DType::kBFloat16, attention.q_rows(), 2, 8), k(DType::kBFloat16, attention.k_rows(), 1, 8);
      HostTensor out(DType::kBFloat16, attention.q_rows(), 2, 8), lse(DType::kFloat32, attention.q_rows(), 2, 1);
      q.fill(1);
      k.fill(1);
      DistForwardArgs args{q, k, k, out, lse.data<float>(), nullptr, {}, nullptr, {}};
      if (comm.rank() == 2) spoil(args);
      attention.forward(args);
    });
  };
  forward_with("DistAttention::forward: q must be [80, 2, 8] (got bfloat16[79, 2, 8])",
               [](DistForwardArgs& args) { args.q.rows = 79; });
  forward_with(
      "DistAttention::forward: q must have strides of at least its dim (got row_stride=4, head_stride=8, dim=8)",
      [](DistForwardArgs& args) { args.q.row_stride = 4; });
  forward_with("DistAttention::forward: k must be bfloat16 as planned (got float32)",
               [](DistForwardArgs& args) { args.k.dtype = DType::kFloat32; });
  forward_with("DistAttention::forward: v must have memory", [](DistForwardArgs& args) { args.v.data = nullptr; });
  forward_with("DistAttention::forward: out must be bfloat16 or float32 (got float16)",
               [](DistForwardArgs& args) { args.out.dtype = DType::kFloat16; });
  forward_with("DistAttention::forward: lse must have memory", [](DistForwardArgs& args) { args.lse = nullptr; });
  forward_with("DistAttention::forward: softmax_scale must be finite and positive (got nan)",
               [](DistForwardArgs& args) { args.options.softmax_scale = std::nanf(""); });
  forward_with("DistAttention::forward: softcap must be finite and not negative (got -1)",
               [](DistForwardArgs& args) { args.options.softcap = -1; });
  forward_with("DistAttention::forward: sink must have memory",
               [](DistForwardArgs& args) { args.sink.seqlen_sink = 2; });
}

}  // namespace
}  // namespace tangram
