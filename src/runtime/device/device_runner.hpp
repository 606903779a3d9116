// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Puts the operations of a program on a stream. Knows no CUDA: what is done to memory besides attention and transfers
// is given, so that the same code runs over host memory in tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "plan/program/arena.hpp"
#include "runtime/device/program_device.hpp"
#include "runtime/device/return_places.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

/// Program::row_lists where a runner finds them.
struct DeviceRowLists {
  std::shared_ptr<const KeptMemory> kept;  // int32: begins, then rows
  int64_t num_begins = 0;
  int64_t bytes = 0;
};
/// The program is read once more by kept.keep().
std::vector<DeviceRowLists> keep_row_lists(const Program& program, KeptTogether& kept);

/// A program and where its regions lie.
struct DeviceProgram {
  Program program;
  ArenaLayout layout;
};

struct DeviceRun {
  const DeviceProgram& program;
  std::span<const DeviceRowLists> row_lists;  ///< of the program
  const ProgramRunner::Masks& masks;
  const ProgramArguments& arguments;
  std::vector<TensorView>
      recv_buffers;       ///< tensors of the open epoch: the arena, or one for each of ArenaLayout::recv_buffers
  void* arena = nullptr;  ///< where the arena lies that is no receive buffer
  void* work = nullptr;
  AttnWorkspace attention;     ///< of one attention call at a time
  DevicePass* pass = nullptr;  ///< with its epoch open; null where nothing is cast
  const AttnBackend& backend;
  const ProgramDevice& device;
  int margin_beside_transfers = 0;  ///< multiprocessors that attention leaves free while transfers run
  bool overlaps = true;             ///< otherwise every cast is waited for at once
  /// Attention starts once the transfer that comes next is about to (LaunchOrder::kKernelBarrier).
  bool starts_transfers_first = false;
  const ReturnScatterMap* places = nullptr;  ///< of a call that stores rows
  /// Under TANGRAM_SANITY_CHECK: memory that the pass has not written is NaN, and so is what it leaves, but for
  /// regions that are kept. NaN that the pass has made throws InternalError.
  bool is_checked = false;
  bool is_kept = false;  ///< the kept regions hold what a forward pass left
  bool keeps = false;    ///< and are to hold what this one leaves
};
/// Closes the pass where the program does (Program::closes).
void run_on_stream(const DeviceRun& run, void* stream);

/// What DevicePass::begin copies the rows of an OpenOp from; none where the program does not begin with one.
std::vector<ConstTensorView> opening_sources(const Program& program, const ProgramArguments& arguments);

/// The casts of a program as a pass of a communicator. One arena has `arena_bytes`.
DevicePassSpec pass_spec(const DeviceProgram& program, const char* label, int64_t arena_bytes);

}  // namespace tangram
