// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the files of the extension share: one bind function per public header, and conversions of arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "tangram/range.hpp"
#include "tangram/tensor.hpp"
#include "whole_number.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tangram::python {

/// The exception classes of tangram.errors stand for those of tangram/error.hpp from now on.
void translate_errors();

/// Python's signal handlers run while the library waits or computes on the main thread.
void hear_signals();

void bind_slice(nb::module_& m);
void bind_mask(nb::module_& m);
void bind_config(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_env(nb::module_& m);
void bind_tensor(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_token_attention(nb::module_& m);
void bind_group(nb::module_& m);
void bind_dist_attention(nb::module_& m);
void bind_dist_mask_buffer(nb::module_& m);
void bind_shard_map(nb::module_& m);
void bind_watched_values(nb::module_& m);

/// `==` for values; other types are unequal. nanobind's own operator would be typed more narrowly than object's.
template <class T, class... Extra>
void bind_equality(nb::class_<T, Extra...>& type) {
  type.def(
      "__eq__", [](const T& a, const T& b) { return a == b; }, nb::is_operator(),
      nb::sig("def __eq__(self, other: object, /) -> bool"));
}

/// Raises a TypeError with our text for arguments that nanobind would refuse with a text of its own.
[[noreturn]] void refuse_type(const char* function, const char* name, const char* needed, nb::handle given);
int64_t whole(nb::handle number, const char* function, const char* name);
template <class T>
T field(nb::handle value, const char* function, const char* name, const char* needed) {
  T result{};
  if (!nb::try_cast(value, result)) refuse_type(function, name, needed, value);
  return result;
}

/// [n, 2] rows `begin, end` of an int32 or int64 array on the host, or a sequence of pairs. `function`, `name` and what
/// a pair is are for the message of InvalidArgument.
std::vector<Range> ranges_of(nb::handle object, const char* function, const char* name,
                             const char* pair = "(begin, end)");
/// A list or a one-dimensional int32 or int64 array on the host.
std::vector<int64_t> integers_of(nb::handle object, const char* function, const char* name);

/// Rows of integers: a list of lists, whose row i is values[offsets[i]] and on, or a two-dimensional array, row after
/// row without offsets.
struct IntegerRows {
  std::vector<int64_t> values;
  std::vector<int64_t> offsets;
  int64_t num_rows = 0;
};
IntegerRows integer_rows_of(nb::handle object, const char* function, const char* name);

}  // namespace tangram::python
