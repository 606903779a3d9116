// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Exceptions of the library become those of tangram.errors, which are typed and documented there.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include "bind.hpp"
#include "tangram/error.hpp"

namespace tangram::python {

namespace {

enum Kind { kInvalidArgument, kTimeout, kCommError, kCudaError, kNotAvailable, kInternalError, kError, kNumKinds };

// Borrowed for the life of the process: a module is never unloaded.
std::array<PyObject*, kNumKinds> classes{};

// Functions as C++ and Python spell them, and what Python calls the argument `name` of functions that parse one.
struct Name {
  std::string_view cpp, python, argument;
};
constexpr Name kNames[] = {
    {"varlen_mask", "Mask.varlen"},
    {"sliding_window_mask", "Mask.sliding_window"},
    {"block_causal_mask", "Mask.block_causal"},
    {"prefix_lm_mask", "Mask.prefix_lm"},
    {"varlen_prefix_lm_mask", "Mask.varlen_prefix_lm"},
    {"shared_prefix_mask", "Mask.shared_prefix"},
    {"global_window_mask", "Mask.global_window"},
    {"block_sparse_mask", "Mask.block_sparse"},
    {"mask_from_block_indices", "Mask.from_block_indices"},
    {"plan_from_json", "Plan.from_json"},
    {"parse_dispatch_algorithm", "DispatchConfig", "algorithm"},
    {"parse_launch_order", "OverlapConfig", "launch_order"},
    {"parse_movement", "MovementConfig", "algorithm"},
    {"parse_strategy", "DistAttnConfig", "strategy"},
    {"parse_dtype", "HeadConfig"},
    {"make_attn_backend", "Backend"},
};

std::string as_in_python(const Error& error) {
  if (error.function().empty()) return error.what();
  std::string function(error.function()), requirement(error.requirement());
  const auto* known = std::ranges::find(kNames, function, &Name::cpp);
  if (known != std::end(kNames)) {
    function = known->python;
    if (!known->argument.empty()) requirement.replace(0, std::string_view("name").size(), known->argument);
  }
  for (size_t at = 0; (at = function.find("::")) != std::string::npos;) function.replace(at, 2, ".");
  return function + ": " + requirement;
}

// Texts quote what was given, which may be no UTF-8.
void raise(Kind kind, const Error& error) {
  const std::string what = as_in_python(error);
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
