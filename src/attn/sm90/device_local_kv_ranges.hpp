// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which keys of a mask lie in other tensors than k and v, in device memory. Apart from local_kv_ranges.hpp, so that
// kernels do not depend on how a mask keeps its memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/packed_arrays.hpp"
#include "schedule/local_kv_table.hpp"

namespace tangram::sm90 {

/// Those of a mask, uploaded once.
class DeviceLocalKvRanges {
 public:
  DeviceLocalKvRanges() = default;
  /// `of_granule`: as local_ranges_of_granules() has it; `num_rows`: that the other tensors must have, 0: none.
  DeviceLocalKvRanges(const std::vector<GranuleRange>& of_granule, int64_t num_rows);

  bool empty() const { return num_rows_ == 0; }
  /// Rows that the other tensors must have.
  int64_t num_rows() const { return num_rows_; }
  /// Before each call is put on `stream`.
  void before_call(cudaStream_t stream) const { arrays_.before_call(stream); }
  LocalKvParams params() const { return {arrays_.at<GranuleRange>(of_granule_)}; }
  size_t device_bytes() const { return arrays_.device_bytes(); }

 private:
  cuda::PackedArrays arrays_;
  cuda::PackedArray of_granule_;
  int64_t num_rows_ = 0;
};

}  // namespace tangram::sm90
