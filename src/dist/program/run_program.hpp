// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Puts the operations of a GridProgram on a stream. Knows no CUDA: what is done to memory besides attention and
// transfers is given, so that the same code runs over host memory in tests.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dist/program/grid_program.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

/// `result = source + addend`, all of equal shape; an addend without memory stands for zeros.
struct RowSum {
  ConstTensorView source;
  ConstTensorView addend;
  TensorView result;
};

/// Rows of `columns` values, `from_stride` and `to_stride` values apart; without `from` all become `value`.
struct FloatCopy {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t from_stride = 0;
  int64_t to_stride = 0;
  int64_t rows = 0;
  int columns = 0;
  float value = 0;
};

/// What a program does to memory itself, on a stream.
struct ProgramDevice {
  std::function<void(std::span<const RowSum>, void* stream)> sum_rows;
  std::function<void(std::span<const FloatCopy>, void* stream)> copy_floats;
  std::function<void(void* data, int64_t num_bytes, void* stream)> zero;
  std::function<void(float* values, int64_t count, float factor, void* stream)> scale;
};

/// Where the places of a pass are. Arguments that a pass only reads are not written.
struct ProgramMemory {
  TensorView arena;  ///< the landing tensor of the open epoch
  void* work = nullptr;
  AttnWorkspace attention;  ///< of one attention call at a time
  std::array<TensorView, kNumPlaces> tensors;
  std::array<float*, kNumPlaces> floats{};
  SinkLayout sink_layout = SinkLayout::kSh;
  int64_t seqlen_sink = 0;

  TensorView& tensor(Place place) { return tensors[static_cast<size_t>(place)]; }
  float*& values(Place place) { return floats[static_cast<size_t>(place)]; }
};

struct ProgramRun {
  const GridProgram& program;
  const std::vector<std::unique_ptr<PreparedMask>>& masks;  ///< of grid_masks
  const ProgramMemory& memory;
  DevicePass* pass = nullptr;  ///< with its epoch open; null where nothing is cast
  const AttnBackend& backend;
  const ProgramDevice& device;
  AttnOptions options;
  int margin_beside_transfers = 0;  ///< multiprocessors that attention leaves free while transfers run
  bool overlaps = true;             ///< otherwise every cast is waited for at once
};
void run_program(const ProgramRun& run, void* stream);

/// The casts of a program as a pass of a communicator, which lands in an arena of `arena_bytes`.
DevicePassSpec pass_spec(const GridProgram& program, const char* label, int64_t arena_bytes);

}  // namespace tangram
