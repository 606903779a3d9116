// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Puts the operations of a program on a stream. Knows no CUDA: what is done to memory besides attention and transfers
// is given, so that the same code runs over host memory in tests.
#pragma once

#include <functional>
#include <span>

#include "plan/program/arena.hpp"
#include "runtime/runner.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

/// What a program does to memory itself, on a stream.
struct ProgramDevice {
  std::function<void(std::span<const RowSum>, void* stream)> sum_rows;
  std::function<void(std::span<const FloatCopy>, void* stream)> copy_floats;
  std::function<void(void* data, int64_t num_bytes, void* stream)> zero;
  std::function<void(float* values, int64_t count, float factor, void* stream)> scale;
};

/// A program and where its regions lie.
struct DeviceProgram {
  Program program;
  ArenaLayout layout;
};

struct DeviceRun {
  const DeviceProgram& program;
  const ProgramRunner::Masks& masks;
  const ProgramArguments& arguments;
  TensorView arena;  ///< the landing tensor of the open epoch
  void* work = nullptr;
  AttnWorkspace attention;     ///< of one attention call at a time
  DevicePass* pass = nullptr;  ///< with its epoch open; null where nothing is cast
  const AttnBackend& backend;
  const ProgramDevice& device;
  int margin_beside_transfers = 0;  ///< multiprocessors that attention leaves free while transfers run
  bool overlaps = true;             ///< otherwise every cast is waited for at once
};
void run_on_stream(const DeviceRun& run, void* stream);

/// The casts of a program as a pass of a communicator, which lands in an arena of `arena_bytes`.
DevicePassSpec pass_spec(const DeviceProgram& program, const char* label, int64_t arena_bytes);

}  // namespace tangram
