// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How arguments of the extension become whole numbers: what Python would take for an index does (int, NumPy's and
// torch's integers). nanobind's own conversion calls int(), which cuts np.float32(3.7) or torch.tensor(3.7) down to 3
// and reads text.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace nanobind::detail {

template <typename T>
struct IndexCaster {
  NB_TYPE_CASTER(T, const_name("int"))

  bool from_python(handle source, uint8_t flags, cleanup_list*) noexcept {
    if (PyLong_CheckExact(source.ptr())) return load(source.ptr(), flags);
    if ((flags & static_cast<uint8_t>(cast_flags::convert)) == 0) return false;
    PyObject* index = PyNumber_Index(source.ptr());
    if (index == nullptr) {
      PyErr_Clear();
      return false;
    }
    const bool loaded = load(index, flags);
    Py_DECREF(index);
    return loaded;
  }

  static handle from_cpp(T value, rv_policy, cleanup_list*) noexcept { return PyLong_FromLongLong(value); }

 private:
  bool load(PyObject* number, uint8_t flags) noexcept {
    if constexpr (sizeof(T) == sizeof(int64_t)) {
      return load_i64(number, flags, reinterpret_cast<int64_t*>(&value));
    } else {
      return load_i32(number, flags, reinterpret_cast<int32_t*>(&value));
    }
  }
};

// Instead of the general caster of arithmetic types.
template <>
struct type_caster<int64_t> : IndexCaster<int64_t> {};
template <>
struct type_caster<int32_t> : IndexCaster<int32_t> {};

}  // namespace nanobind::detail
