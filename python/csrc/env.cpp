// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/env.hpp.
#include "tangram/env.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind.hpp"
#include "tangram/host_memory.hpp"
#include "tangram/log.hpp"

namespace tangram::python {

void bind_env(nb::module_& m) {
  nb::class_<Env::Variable>(m, "EnvVariable", "An environment variable of Tangram.")
      .def_ro("name", &Env::Variable::name)
      .def_ro("value", &Env::Variable::value)
      .def_ro("is_set", &Env::Variable::is_set)
      .def_ro("help", &Env::Variable::help);
  m.def(
      "host_memory_use",
      [] {
        const HostMemoryUse use = host_memory_use();
        return std::make_tuple(use.used_bytes, use.num_kept, use.kept_bytes, use.max_kept_bytes);
      },
      "Large host buffers: bytes in use; how many are kept for the next pass, their bytes, and the bound of these.");
  m.def("set_max_kept_host_bytes", &set_max_kept_host_bytes, "max_kept_bytes"_a, "The bound of what is kept.");
  m.def("list_env", &Env::list, "All TANGRAM_* variables with their values.");
  nb::class_<Env>(m, "Env", "The values of the TANGRAM_* variables; tangram.configure changes them.")
      .def_rw("timeout_s", &Env::timeout_s)
      .def_rw("num_threads", &Env::num_threads)
      .def_rw("sanity_check", &Env::sanity_check)
      .def_rw("profile", &Env::profile)
      .def_static(
          "get", [] { return Env(Env::get()); }, "A copy of the process's values.")
      .def_static("set", &Env::set, "env"_a, "Puts these in their place; what was made before keeps its own.");
  // Waits are noticed by threads of the library, while the caller waits without the GIL.
  set_log_sink([](std::string_view line) {
    if (!Py_IsInitialized()) return;
    const nb::gil_scoped_acquire acquire;
    try {
      nb::module_::import_("logging").attr("getLogger")("tangram").attr("warning")("%s",
                                                                                   nb::str(line.data(), line.size()));
    } catch (const std::exception&) {  // a handler of the user's that fails must not end a thread of ours
      PyErr_Clear();
    }
  });
  m.def("env_node_id", [] { return Env::get().node_id; }, "TANGRAM_NODE_ID: on which node this process is; or empty.");
  m.def("timeout_s", [] { return Env::get().timeout_s; }, "Seconds that a communication operation waits for peers.");
}

}  // namespace tangram::python
