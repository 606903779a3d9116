// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Times the backward pass of masks with given schedules on a Hopper GPU, the schedules of a mask in turns in random
// order, and prints one figure a line in the project's CSV schema; `strategy` is the schedule
// (tile_schedule_cases.hpp).
//
//   time_tile_schedules tests/data/tile_schedule_masks.json machine [regular expression [tried | SCHEDULE ...]]
//
// `tried`: default calls, of the candidates that are tried on a kind of mask. SCHEDULE: default calls of the named
// schedules (as `p4_t1_i`), and of the chosen one.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/metadata.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/device_buffer.hpp"
#include "runtime/random_values.hpp"
#include "runtime/turns.hpp"
#include "schedule/tile_schedule_candidates.hpp"
#include "schedule/tile_schedule_cases.hpp"
#include "schedule/work_list.hpp"
#include "tangram/local_group.hpp"

namespace {

using namespace tangram;

constexpr bench::Repeats kRepeats{.seconds = 0.02, .warm_s = 0.1};

/// A contiguous tensor of random bfloat16.
struct Tensor {
  Tensor(int64_t rows, int heads, int dim, uint64_t seed)
      : buffer(static_cast<size_t>(rows * heads * dim) * 2), rows(rows), heads(heads), dim(dim) {
    bench::fill_random_bf16(buffer.as<void>(), rows * heads * dim, seed, nullptr);
  }
  TensorView view() { return {buffer.as<void>(), DType::kBFloat16, rows, heads, dim, int64_t{heads} * dim, dim}; }
  cuda::DeviceBuffer buffer;
  int64_t rows;
  int heads, dim;
};

/// Operands and results of one mask.
class Problem {
 public:
  explicit Problem(const test::ScheduleCase& of)
      : shape_(of.shape),
        mask_(of),
        q_(shape_.seqlen_q, shape_.num_heads_q, shape_.head_dim, 1),
        k_(shape_.seqlen_k, shape_.num_heads_kv, shape_.head_dim, 2),
        v_(shape_.seqlen_k, shape_.num_heads_kv, shape_.head_dim, 3),
        out_(shape_.seqlen_q, shape_.num_heads_q, shape_.head_dim, 4),
        dout_(shape_.seqlen_q, shape_.num_heads_q, shape_.head_dim, 5),
        dq_(shape_.seqlen_q, shape_.num_heads_q, shape_.head_dim, 6),
        dk_(shape_.seqlen_k, shape_.num_heads_kv, shape_.head_dim, 7),
        dv_(shape_.seqlen_k, shape_.num_heads_kv, shape_.head_dim, 8),
        lse_(static_cast<size_t>(shape_.seqlen_q * shape_.num_heads_q) * sizeof(float)) {
    const std::unique_ptr<MaskSlot> slot =
        make_mask_slot(backend_, of.slices, shape_, {.passes = AttnPasses::kForward});
    AttnForwardArgs args;
    set_operands(args);
    backend_.forward(*slot, args);
  }

  test::ScheduleProblem& mask() { return mask_; }

  /// A slot with a list of this schedule; kept by the caller while it is timed.
  std::unique_ptr<MaskSlot> lists(const test::ScheduleCase& of, const schedule::TileSchedule& how) {
    // Deterministic calls are not scheduled in pieces by length (docs/design/tile_schedule.md).
    const BackwardCalls calls = how.max_steps > 0 ? BackwardCalls::kDefault : BackwardCalls::kBoth;
    schedule::WorkList work =
        schedule::make_work_list(mask_.tiles, of.slices, shape_, gpu::gpu_of_current_device(), {}, {calls, how});
    const MaskParts parts = calls == BackwardCalls::kDefault ? MaskParts(MaskPart::kBackward) : kBackwardParts;
    std::unique_ptr<MaskSlot> slot = backend_.make_slot(shape_);
    backend_.install(*slot,
                     std::make_unique<gpu::BackwardMetadata>(parts, std::move(work), std::nullopt, gpu::KeySources()));
    return slot;
  }

  void backward(MaskSlot& lists, bool deterministic) {
    AttnBackwardArgs args;
    set_operands(args);
    args.dout = dout_.view();
    args.dq = dq_.view();
    args.dk = dk_.view();
    args.dv = dv_.view();
    args.options.deterministic = deterministic;
    backend_.backward(lists, args);
  }

 private:
  template <class Args>
  void set_operands(Args& args) {
    args.q = q_.view();
    args.k = k_.view();
    args.v = v_.view();
    args.out = out_.view();
    args.lse = lse_.as<float>();
  }

  Sm90Backend backend_;
  AttnShape shape_;
  test::ScheduleProblem mask_;
  Tensor q_, k_, v_, out_, dout_, dq_, dk_, dv_;
  cuda::DeviceBuffer lse_;
};

/// The schedules of all candidates, or of the tried ones; without two that put the same work tiles in the same order.
std::vector<schedule::TileSchedule> schedules_to_time(const test::ScheduleProblem& problem, const GpuModel& gpu,
                                                      bool tried) {
  const auto kind = static_cast<size_t>(schedule::kind_of(problem.extents, problem.spread));
  const schedule::Setting in = problem.setting(gpu);
  const bool same_begin = schedule::choose_direction(problem.extents).same_begin;
  std::set<std::vector<std::tuple<size_t, int, int, int>>> seen;
  std::vector<schedule::TileSchedule> result;
  for (const schedule::ScheduleCandidate& form : schedule::kScheduleCandidates) {
    if (tried && form.cost_factor[kind] == 0) continue;
    auto how = schedule::schedule_of(form, problem.extents, problem.shape, gpu, schedule::even_steps(in));
    if (!how) continue;
    how->heads_innermost = schedule::walks_heads_inside(*how, same_begin, problem.spread, problem.shape);
    std::vector<std::tuple<size_t, int, int, int>> scheduled;
    schedule::for_each_work_tile(problem.extents, problem.shape.num_heads_kv, *how,
                                 [&](size_t i, int head, int head_split, int head_splits) {
                                   scheduled.emplace_back(i, head, head_split, head_splits);
                                 });
    if (seen.insert(std::move(scheduled)).second) result.push_back(*how);
  }
  return result;
}

/// What is chosen, and what is named.
std::vector<schedule::TileSchedule> named_schedules(test::ScheduleProblem& problem, const GpuModel& gpu,
                                                    std::span<const std::string> names) {
  schedule::Extents extents = problem.extents;
  std::vector<schedule::TileSchedule> result{
      schedule::choose_tile_schedule(extents, problem.spread, problem.shape, gpu)};
  for (const std::string& name : names) {
    const schedule::TileSchedule how = test::schedule_from_text(name);
    if (problem.shape.num_heads_q / problem.shape.num_heads_kv % how.head_splits == 0) result.push_back(how);
  }
  return result;
}

/// `names`: none, `tried`, or schedules.
void time_case(const test::ScheduleCase& of, const std::string& machine, std::span<const std::string> names,
               Communicator& control) {
  const bool tried = names.size() == 1 && names[0] == "tried";
  Problem problem(of);
  struct Timed {
    schedule::TileSchedule how;
    bool deterministic;
    std::unique_ptr<MaskSlot> lists;
  };
  std::vector<Timed> all;
  const GpuModel gpu = gpu::gpu_of_current_device();
  for (const schedule::TileSchedule& how : names.empty() || tried ? schedules_to_time(problem.mask(), gpu, tried)
                                                                  : named_schedules(problem.mask(), gpu, names)) {
    all.push_back({how, false, problem.lists(of, how)});
    if (how.max_steps == 0 && names.empty()) all.push_back({how, true, problem.lists(of, how)});
  }
  std::vector<bench::TimedCall> calls;
  for (Timed& timed : all) {
    calls.push_back({[&problem, &timed] { problem.backward(*timed.lists, timed.deterministic); }});
  }
  const std::vector<bench::CallTime> times = bench::measure_in_turns(control, kRepeats, calls);
  const AttnShape& s = of.shape;
  for (size_t i = 0; i < all.size(); ++i) {
    fmt::print("{},{},{},{},{},1,0,{},{},{},{},bf16,sm90,,{},{},ms,{:.5f}\n", TANGRAM_VERSION, machine, of.name,
               s.seqlen_q, s.seqlen_k, s.num_heads_q, s.num_heads_kv, s.head_dim, s.head_dim_v,
               test::to_text(all[i].how), all[i].deterministic ? "backward_deterministic" : "backward",
               1e3 * times[i].device_s);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr,
               "usage: time_tile_schedules MASKS.json MACHINE [REGULAR EXPRESSION OF NAMES [tried | SCHEDULE ...]]\n");
    return 2;
  }
  try {
    fmt::print(
        "version,machine,mask,seqlen_q,seqlen_k,cp_size,chunk_size,heads_q,heads_kv,head_dim,head_dim_v,dtype,"
        "backend,transport,strategy,figure,unit,value\n");
    const std::vector<test::ScheduleCase> cases = test::read_schedule_cases(argv[1]);
    const std::vector<std::string> names(argv + std::min(argc, 4), argv + argc);
    run_local_ranks(1, [&](Communicator& control) {
      for (const test::ScheduleCase& of : cases) {
        if (argc < 4 || std::regex_search(of.name, std::regex(argv[3]))) time_case(of, argv[2], names, control);
      }
    });
  } catch (const std::exception& error) {
    fmt::print(stderr, "time_tile_schedules: {}\n", error.what());
    return 1;
  }
  return 0;
}
