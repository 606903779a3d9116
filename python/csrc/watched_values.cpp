// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// src/cuda/watched_values.hpp: what tells a call whether values on a GPU are still those that the host has read.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "core/require.hpp"
#include "device.hpp"

#ifdef TANGRAM_HAVE_CUDA
#include "cuda/watched_values.hpp"
#endif

namespace tangram::python {

namespace {

using Values = std::tuple<uintptr_t, uintptr_t, int64_t>;  // now, copy, bytes
using Result = std::pair<uintptr_t, int64_t>;              // address, bytes

/// Watched values of one GPU. The caller keeps the addresses valid.
class WatchedValues {
 public:
#ifdef TANGRAM_HAVE_CUDA
  WatchedValues(const std::vector<Values>& values, int device) : device_(device) {
    require(values.size() <= cuda::kMostWatched, "WatchedValues: takes {} values at most (got {})", cuda::kMostWatched,
            values.size());
    for (const auto& [now, known, num_bytes] : values) {
      values_.push_back({reinterpret_cast<const void*>(now), reinterpret_cast<const void*>(known), num_bytes});
    }
  }

  void poison_if_changed(const std::vector<Result>& results, uintptr_t stream) const {
    std::vector<cuda::WatchedResult> watched;
    for (const auto& [data, num_bytes] : results) watched.push_back({reinterpret_cast<void*>(data), num_bytes});
    const nb::gil_scoped_release release;
    const DeviceScope scope(device_);
    cuda::poison_if_changed(values_, watched, reinterpret_cast<cudaStream_t>(stream));
  }

 private:
  std::vector<cuda::WatchedValues> values_;
  int device_;
#else
  WatchedValues(const std::vector<Values>&, int) {
    require(false, "WatchedValues: needs a build with CUDA (got one without)");
  }
  void poison_if_changed(const std::vector<Result>&, uintptr_t) const {}
#endif
};

bool take_changed_values() {
#ifdef TANGRAM_HAVE_CUDA
  return cuda::take_changed();
#else
  return false;
#endif
}

}  // namespace

void bind_watched_values(nb::module_& m) {
  nb::class_<WatchedValues>(m, "WatchedValues", "Values in the memory of a GPU that the host has read once.")
      .def(nb::init<const std::vector<Values>&, int>(), "values"_a, "device"_a,
           "values: address, address of a copy, and bytes of each, which the caller keeps.")
      .def(
          "poison_if_changed", &WatchedValues::poison_if_changed, "results"_a, "stream"_a,
          "Enqueues a comparison: if a value differs from its copy, the results (address and bytes of each) become NaN "
          "and take_changed_values() returns True later.");
  m.def("take_changed_values", &take_changed_values,
        "Whether a comparison has found other values since this was asked last, as far as the host knows by now.");
}

}  // namespace tangram::python
