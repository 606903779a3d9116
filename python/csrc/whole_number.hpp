// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How arguments of the extension become whole numbers: what Python would take for an index does (int, NumPy's and
// torch's integers). nanobind's own conversion calls int(), which cuts np.float32(3.7) or torch.tensor(3.7) down to 3
// and reads text.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace nanobind::detail {

// Uses nothing of nanobind but what its documentation promises, so that other versions than ours build it too.
template <typename T>
struct IndexCaster {
  NB_TYPE_CASTER(T, const_name("int"))

  template <typename Flags>
  bool from_python(handle source, Flags flags, cleanup_list*) noexcept {
    if (PyLong_CheckExact(source.ptr())) return load(source.ptr());
    if ((flags & static_cast<Flags>(cast_flags::convert)) == 0) return false;
    PyObject* index = PyNumber_Index(source.ptr());
    const bool loaded = index != nullptr && load(index);
    Py_XDECREF(index);
    PyErr_Clear();
    return loaded;
  }

  static handle from_cpp(T number, rv_policy, cleanup_list*) noexcept { return PyLong_FromLongLong(number); }

 private:
  // False for a number that T does not hold.
  bool load(PyObject* number) noexcept {
    const long long read = PyLong_AsLongLong(number);
    if (read == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return false;
    }
    value = static_cast<T>(read);
    return value == read;
  }
};

// Instead of the general caster of arithmetic types.
template <>
struct type_caster<int64_t> : IndexCaster<int64_t> {};
template <>
struct type_caster<int32_t> : IndexCaster<int32_t> {};

}  // namespace nanobind::detail
