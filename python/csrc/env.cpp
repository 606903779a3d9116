// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/env.hpp.
#include "tangram/env.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"

namespace tangram::python {

void bind_env(nb::module_& m) {
  nb::class_<Env::Variable>(m, "EnvVariable", "An environment variable of Tangram.")
      .def_ro("name", &Env::Variable::name)
      .def_ro("value", &Env::Variable::value)
      .def_ro("is_set", &Env::Variable::is_set)
      .def_ro("help", &Env::Variable::help);
  m.def("list_env", &Env::list, "All TANGRAM_* variables with their values.");
  m.def("timeout_s", [] { return Env::get().timeout_s; }, "Seconds that a communication operation waits for peers.");
}

}  // namespace tangram::python
