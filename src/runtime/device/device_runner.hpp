// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Puts the operations of a program on a stream. Knows no CUDA: ProgramDevice does the operations on memory other than
// attention and transfers, so that the code runs over host memory in tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "plan/program/arena.hpp"
#include "runtime/device/program_device.hpp"
#include "runtime/device/return_places.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

/// One of Program::row_lists, in device memory.
struct DeviceRowLists {
  std::shared_ptr<const KeptMemory> kept;  // int32: begins, then rows
  int64_t num_begins = 0;
  int64_t bytes = 0;
};
/// Puts the row lists of a program into `kept`. kept.keep() reads the program once more.
std::vector<DeviceRowLists> keep_row_lists(const Program& program, KeptTogether& kept);

/// A program and where its regions lie.
struct DeviceProgram {
  Program program;
  ArenaLayout layout;
};

/// Arguments of run_on_stream.
struct DeviceRun {
  const DeviceProgram& program;
  std::span<const DeviceRowLists> row_lists;  ///< as keep_row_lists made them
  const ProgramRunner::Masks& masks;
  const ProgramArguments& arguments;
  std::vector<TensorView>
      recv_buffers;            ///< tensors of the open epoch: the arena, or one for each of ArenaLayout::recv_buffers
  void* arena = nullptr;       ///< begin of an arena that is not a receive buffer
  void* work = nullptr;        ///< begin of the work memory
  AttnWorkspace attention;     ///< workspace of one attention call at a time
  DevicePass* pass = nullptr;  ///< pass whose epoch is open; null if the program has no casts
  const AttnBackend& backend;
  const ProgramDevice& device;
  int margin_beside_transfers = 0;  ///< multiprocessors that attention leaves free while transfers run
  bool overlaps = true;             ///< false: waits for every cast at once
  /// Whether attention starts after the next transfer is ready to start (LaunchOrder::kKernelBarrier).
  bool starts_transfers_first = false;
  const ReturnScatterMap* places = nullptr;  ///< destinations of dk and dv, for a call that stores rows
  /// TANGRAM_SANITY_CHECK: memory is filled with NaN before and after the pass, except kept regions. NaN that the pass
  /// has made throws InternalError.
  bool is_checked = false;
  bool is_kept = false;  ///< whether the kept regions hold rows of a forward pass
  bool keeps = false;    ///< whether this pass keeps its rows in them
};
/// Enqueues the program. Closes the pass if the program does (Program::closes).
void run_on_stream(const DeviceRun& run, void* stream);

/// Tensors from which DevicePass::begin copies the rows of an OpenOp; none if the program does not begin with one.
std::vector<ConstTensorView> opening_sources(const Program& program, const ProgramArguments& arguments);

/// The casts of a program as a pass of a communicator. One arena has `arena_bytes`.
DevicePassSpec pass_spec(const DeviceProgram& program, const char* label, int64_t arena_bytes);

}  // namespace tangram
