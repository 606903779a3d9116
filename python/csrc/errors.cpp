// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Exceptions of the library become those of tangram.errors, which are typed and documented there.
#include <array>
#include <string_view>

#include "bind.hpp"
#include "tangram/error.hpp"

namespace tangram::python {

namespace {

enum Kind { kInvalidArgument, kTimeout, kCommError, kCudaError, kNotAvailable, kInternalError, kError, kNumKinds };

// Borrowed for the life of the process: a module is never unloaded.
std::array<PyObject*, kNumKinds> classes{};

// Texts quote what was given, which may be no UTF-8.
void raise(Kind kind, const std::exception& error) {
  const std::string_view what = error.what();
  const nb::object text = nb::steal(PyUnicode_DecodeUTF8(what.data(), std::ssize(what), "backslashreplace"));
  PyErr_SetObject(classes[kind], text.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgument& error) {
    raise(kInvalidArgument, error);
  } catch (const Timeout& error) {
    raise(kTimeout, error);
  } catch (const CommError& error) {
    raise(kCommError, error);
  } catch (const CudaError& error) {
    raise(kCudaError, error);
  } catch (const NotAvailable& error) {
    raise(kNotAvailable, error);
  } catch (const InternalError& error) {
    raise(kInternalError, error);
  } catch (const Error& error) {
    raise(kError, error);
  }
}

}  // namespace

void translate_errors() {
  constexpr std::array<const char*, kNumKinds> names{"InvalidArgument", "Timeout",       "CommError", "CudaError",
                                                     "NotAvailable",    "InternalError", "Error"};
  const nb::module_ errors = nb::module_::import_("tangram.errors");
  for (size_t i = 0; i < names.size(); ++i) classes[i] = nb::object(errors.attr(names[i])).release().ptr();
  nb::register_exception_translator(translate);
}

}  // namespace tangram::python
