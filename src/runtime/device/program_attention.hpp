// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ProgramAttention: one rank's part in a plan over memory that only streams may touch. What DistAttention is on GPUs,
// without CUDA.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/async_task.hpp"
#include "plan/program/emit.hpp"
#include "runtime/device/device_runner.hpp"
#include "runtime/rank_context.hpp"
#include "runtime/sanity.hpp"

namespace tangram {

struct ProgramOptions {
  /// Dtype of out, and of dq, dk and dv (unset: result_dtype), if heads are exchanged; else the caller's tensors
  /// decide.
  DType result_dtype = DType::kBFloat16;
  std::optional<DType> grad_dtype = std::nullopt;
  bool with_backward = true;
  int64_t row_sinks = 0;  ///< sinks of single rows that all calls pass, where heads are exchanged
  int max_kept = 1;       ///< forward passes kept at one time, where the plan can keep
  /// Whether transfers run beside attention; otherwise each ends before what follows it starts.
  bool overlaps_forward = true;
  bool overlaps_backward = true;
  int margin_beside_transfers = -1;     ///< negative: as many as the transport takes
  bool starts_transfers_first = false;  ///< LaunchOrder::kKernelBarrier
  ProgramTarget target = {};
};

/// Collective: throws InvalidArgument on every rank unless all ranks of a plan that exchanges heads name the same.
void agree_on_heads(Communicator& control, const Plan& plan, int64_t row_sinks, DType result_dtype, DType grad_dtype);

/// Facts that all ranks know of each other's passes, for a plan with K/V communication; `written` is a program of any
/// of them. Keeps the plan, whose tables it names.
std::shared_ptr<const AgreedRows> agreed_rows(std::shared_ptr<const Plan> plan, AttnPass pass,
                                              const DeviceProgram& written);

class ProgramAttention {
 public:
  /// Collective. `base` has plan, rank, shape and backend.
  ProgramAttention(RankContext& base, DeviceCommunicator& communicator, ProgramDevice device,
                   const ProgramOptions& options);

  /// Throw InvalidArgument before anything is put on a stream. Calls need a workspace.
  void check(const DistForwardArgs& args) const;
  void check(const DistBackwardArgs& args) const;
  /// Under TANGRAM_SANITY_CHECK, collective: throws InvalidArgument on every rank, naming what differs, before a row
  /// moves, unless all ranks make the same call. Else epochs compare them.
  void compare(const DistForwardArgs& args) const;
  void compare(const DistBackwardArgs& args) const;
  void forward(const DistForwardArgs& args, void* stream);
  void backward(const DistBackwardArgs& args, void* stream);

  /// Whether ranks do not meet to prepare, unless memory must grow.
  bool prepares_alone() const;
  /// Whether they do so even then: for memory of the pass's own.
  bool meets_peers() const { return !prepares_alone() || keeps(); }

  /// Workspace bytes of a call; device_bytes: bytes that the object holds.
  int64_t forward_workspace_bytes() const { return workspace_bytes(AttnPass::kForward); }
  int64_t backward_workspace_bytes() const { return options_.with_backward ? workspace_bytes(AttnPass::kBackward) : 0; }
  int64_t device_bytes() const;

  static constexpr int kReturnSlots = 2;  // a rank may be one pass ahead of its peers

 private:
  enum class Kind : int { kForward, kBackward, kBackwardKept };

  bool by_heads() const { return base_.plan->ulysses_degree() > 1; }
  bool moves_queries() const { return base_.plan->movement() != nullptr; }
  bool moves_keys_alone() const { return moves_kv_alone(*base_.plan); }
  bool keeps() const { return can_keep(*base_.plan) && options_.with_backward; }
  std::vector<Kind> kinds() const;
  DeviceProgram write(Kind kind, const CallShape& call) const;
  const DeviceProgram& program(Kind kind, const CallShape& call);
  /// Program of a call, verified under TANGRAM_SANITY_CHECK.
  const DeviceProgram& checked_program(Kind kind, const CallShape& call);
  template <class Args>
  void compare_calls(const Args& args) const;
  CallShape shape_of(DType result_dtype, const Sink& sink) const;
  CallShape shape_of(const DistBackwardArgs& args) const;
  /// Call shape for which passes are prepared: their casts are those of every call.
  CallShape prepared_shape() const;
  /// Each pass, so that its memory is the same whatever the results' type is.
  bool makes_one_call() const;
  void find_sizes();
  void prepare_passes();
  /// NOTE [lists ahead]: lists of the backend are begun first, on other threads. Lists of the forward pass are made
  /// beside the other parts of a key. Lists of the backward pass are made in the background until that pass is called,
  /// so the forward pass of a new mask never waits for them.
  void begin_masks();
  void prepare_masks();
  /// Tells the peers where it throws: they may have begun the pass.
  void finish_masks() const;
  int64_t workspace_bytes(AttnPass pass) const;
  /// The part of workspace_bytes that the backend gets.
  int64_t attention_bytes(AttnPass pass) const;
  bool is_needed(const ProgramMask& mask) const;
  /// The lists of mask `number`.
  void prepare_mask(size_t number);
  DevicePass* pass_of(Kind kind) const;
  /// Opens the pass of a kind, if it has one, in the slot that was kept where `kept` says so.
  void open(Kind kind, const Program& program, const ProgramArguments& arguments, const KeptKv* kept, void* stream);
  /// `keeps`: the pass is kept.
  void run(Kind kind, const DeviceProgram& program, const ProgramArguments& arguments, const AttnWorkspace& workspace,
           bool keeps, void* stream);
  void check_keys(const char* function, const ConstTensorView& k, const ConstTensorView& v, const KeptKv* kept) const;
  void check_kept_slot(const char* function, const KeptKv& kept) const;
  DType grad_dtype() const { return options_.grad_dtype.value_or(options_.result_dtype); }
  void check_result(const char* function, const char* name, DType dtype, DType prepared) const;
  void check_sink(const char* function, const Sink& sink) const;
  void reduce_dsink(const DistBackwardArgs& args, void* stream);

  RankContext& base_;
  DeviceCommunicator& communicator_;
  const ProgramDevice device_;
  const ProgramOptions options_;
  std::vector<std::unique_ptr<MaskSlot>> masks_;
  std::vector<ProgramMask> mask_programs_;
  std::vector<std::unique_ptr<AsyncTask>> masks_ahead_;
  std::map<std::pair<Kind, CallShape>, DeviceProgram> programs_;
  std::map<Kind, std::shared_ptr<DevicePass>> passes_;
  std::map<Kind, std::vector<DeviceRowLists>> row_lists_;  // alike for all calls
  std::unique_ptr<ReturnScatterMap> places_;               // of the backward pass
  ProgramCheck check_;
  int slot_ = 0;                 // of the open pass
  std::vector<int> kept_slots_;  // of forward passes whose backward has not come yet
  bool sizes_are_known_ = false;
  int64_t arena_bytes_ = 0;
  int64_t work_bytes_ = 0;       // of a workspace, the first; then come attention_bytes()
  int64_t own_arena_bytes_ = 0;  // the last, for passes without transfers, which land in nothing
};

}  // namespace tangram
