// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Puts the operations of a program on a stream. Knows no CUDA: what is done to memory besides attention and transfers
// is given, so that the same code runs over host memory in tests.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "plan/program/arena.hpp"
#include "runtime/runner.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

/// `own` becomes the result of its keys, those of the rows of `others` (without memory: none) that belong to each row,
/// and the sink: out = sum_i exp(lse_i - lse) out_i, lse = logsumexp_i(lse_i), sinks without a value. Rows that nobody
/// computed get out 0, and lse -inf unless there is a sink. The sink's rows are those of `own`.
struct RowMerge {
  PartialRows own, others;
  RowListsView other_rows;
  SinkRows sinks;
};
/// dsink = -exp(sink - lse) * delta in the sink's layout and stride; SinkLayout::kSh adds up over rows. lse and delta
/// are [rows, heads, 1].
struct SinkGradient {
  ConstTensorView lse, delta;
  SinkRows sinks;
  float* dsink = nullptr;
};
/// to[column] = the largest of from[row * stride + column].
struct ColumnMaxima {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int columns = 0;
};

/// What a program does to memory itself, on a stream. In an order of its own, the same every time.
struct ProgramDevice {
  std::function<void(std::span<const RowSum>, void* stream)> sum_rows;
  std::function<void(std::span<const FloatCopy>, void* stream)> copy_floats;
  std::function<void(void* data, int64_t num_bytes, void* stream)> zero;
  std::function<void(float* values, int64_t count, float factor, void* stream)> scale;
  /// delta[row, head] = sum over dim of out * dout. Where out is zero dout is not looked at.
  std::function<void(const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta, void* stream)>
      find_delta;
  std::function<void(const RowMerge&, void* stream)> merge;
  std::function<void(const SinkGradient&, void* stream)> find_dsink;
  std::function<void(const ColumnMaxima&, void* stream)> find_maxima;
  /// Copies values to memory that lives as long as what is returned. Not while a pass is under way.
  std::function<std::shared_ptr<const int32_t>(std::span<const int32_t> values)> keep;
};

/// Program::row_lists where a runner finds them.
struct DeviceRowLists {
  std::shared_ptr<const int32_t> begins, rows;
  int64_t bytes = 0;
};
std::vector<DeviceRowLists> keep_row_lists(const Program& program, const ProgramDevice& device);

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
