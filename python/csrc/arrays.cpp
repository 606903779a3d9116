// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Arguments that are lists or small integer arrays.
#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <concepts>
#include <string>

#include "bind.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::python {

namespace {

using HostArray = nb::ndarray<nb::ro, nb::device::cpu>;

std::string name_of(const nb::dlpack::dtype& dtype) {
  using enum nb::dlpack::dtype_code;
  const auto is = [&](nb::dlpack::dtype_code code) { return dtype.code == static_cast<uint8_t>(code); };
  const char* kind = is(Int) ? "int" : is(UInt) ? "uint" : is(Float) ? "float" : is(Bool) ? "bool" : "other, ";
  return fmt::format("{}{}", kind, static_cast<int>(dtype.bits));
}

// The elements of an array of any strides in row-major order, widened.
std::vector<int64_t> elements(const HostArray& array, const char* function, const char* name) {
  const bool is_int32 = array.dtype() == nb::dtype<int32_t>();
  require(is_int32 || array.dtype() == nb::dtype<int64_t>(), "{}: {} must hold int32 or int64 (got {})", function, name,
          name_of(array.dtype()));
  const int64_t rows = static_cast<int64_t>(array.shape(0));
  const int64_t columns = array.ndim() == 2 ? static_cast<int64_t>(array.shape(1)) : 1;
  const int64_t column_stride = array.ndim() == 2 ? array.stride(1) : 0;
  std::vector<int64_t> result;
  result.reserve(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i * array.stride(0) + j * column_stride;
      result.push_back(is_int32 ? static_cast<const int32_t*>(array.data())[at]
                                : static_cast<const int64_t*>(array.data())[at]);
    }
  }
  return result;
}

bool is_array(nb::handle object) { return nb::hasattr(object, "__dlpack__") || nb::hasattr(object, "__array__"); }

HostArray host_array(nb::handle object, const char* function, const char* name) {
  HostArray array;
  require(
      nb::try_cast(object, array),
      "{}: {} must be a list or an integer array in host memory; of a tensor in GPU memory pass tensor.cpu() (got {})",
      function, name, nb::type_name(object.type()).c_str());
  return array;
}

// In words of its own: as arguments of require the text of a whole list would be written where nothing is refused.
[[noreturn]] void refuse(const char* function, const char* name, const char* needed, nb::handle given) {
  throw InvalidArgument(fmt::format("{}: {} {} (got {})", function, name, needed, nb::repr(given).c_str()));
}

// Most are plain ints, of which a mask has tens of thousands: these take a tenth of the way of all others.
int64_t integer_of(nb::handle object, const char* function, const char* name) {
  if (PyLong_CheckExact(object.ptr())) {
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    if (overflow == 0) return value;
  }
  int64_t value = 0;
  if (!nb::try_cast(object, value)) refuse(function, name, "must hold integers", object);
  return value;
}

// The elements of a tuple or list of two, borrowed; else {nullptr, nullptr}.
std::pair<PyObject*, PyObject*> pair_in(nb::handle item) {
  PyObject* object = item.ptr();
  if (PyTuple_Check(object) && PyTuple_Size(object) == 2)
    return {PyTuple_GetItem(object, 0), PyTuple_GetItem(object, 1)};
  if (PyList_Check(object) && PyList_Size(object) == 2) return {PyList_GetItem(object, 0), PyList_GetItem(object, 1)};
  return {nullptr, nullptr};
}

}  // namespace

void refuse_type(const char* function, const char* name, const char* needed, nb::handle given) {
  throw nb::type_error(
      fmt::format("{}: {} must be {} (got {:.60})", function, name, needed, nb::repr(given).c_str()).c_str());
}

int64_t whole(nb::handle number, const char* function, const char* name) {
  int64_t value = 0;
  if (!nb::try_cast(number, value)) refuse_type(function, name, "a whole number of 64 bits", number);
  return value;
}

std::vector<int64_t> integers_of(nb::handle object, const char* function, const char* name) {
  if (is_array(object)) {
    const HostArray array = host_array(object, function, name);
    require(array.ndim() == 1, "{}: {} must have one dimension (got {})", function, name, array.ndim());
    return elements(array, function, name);
  }
  if (!nb::isinstance<nb::sequence>(object)) refuse(function, name, "must be a list or an integer array", object);
  std::vector<int64_t> result;
  result.reserve(nb::len(object));
  for (const nb::handle item : object) result.push_back(integer_of(item, function, name));
  return result;
}

IntegerRows integer_rows_of(nb::handle object, const char* function, const char* name) {
  if (is_array(object)) {
    const HostArray array = host_array(object, function, name);
    require(array.ndim() == 2, "{}: {} must have two dimensions (got {})", function, name, array.ndim());
    return {elements(array, function, name), {}, static_cast<int64_t>(array.shape(0))};
  }
  if (!nb::isinstance<nb::sequence>(object)) {
    refuse(function, name, "must be a list of lists or an integer array", object);
  }
  IntegerRows rows{{}, {0}, static_cast<int64_t>(nb::len(object))};
  for (const nb::handle item : object) {
    const std::vector<int64_t> row = integers_of(item, function, name);
    rows.values.insert(rows.values.end(), row.begin(), row.end());
    rows.offsets.push_back(static_cast<int64_t>(rows.values.size()));
  }
  return rows;
}

std::vector<Range> ranges_of(nb::handle object, const char* function, const char* name, const char* pair) {
  std::vector<Range> result;
  if (is_array(object)) {
    const HostArray array = host_array(object, function, name);
    require(array.ndim() == 2 && array.shape(1) == 2, "{}: {} must have shape [n, 2] (got dimensions={})", function,
            name, array.ndim());
    const std::vector<int64_t> ends = elements(array, function, name);
    result.reserve(ends.size() / 2);
    for (size_t i = 0; i + 1 < ends.size(); i += 2) result.push_back({ends[i], ends[i + 1]});
    return result;
  }
  if (!nb::isinstance<nb::sequence>(object)) {
    refuse(function, name, fmt::format("must be a list of {} or an array [n, 2]", pair).c_str(), object);
  }
  result.reserve(nb::len(object));
  for (const nb::handle item : object) {
    Range range;
    // Pairs first: asking whether something is a Range takes longer than all the rest.
    if (const auto [begin, end] = pair_in(item); begin != nullptr) {
      range = {integer_of(begin, function, name), integer_of(end, function, name)};
    } else if (nb::isinstance<nb::sequence>(item) && nb::len(item) == 2) {
      range = {integer_of(item[0], function, name), integer_of(item[1], function, name)};
    } else if (!nb::try_cast(item, range)) {
      refuse(function, name, fmt::format("must hold pairs {}", pair).c_str(), item);
    }
    result.push_back(range);
  }
  return result;
}

}  // namespace tangram::python
