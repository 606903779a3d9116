// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The extension module tangram._core.
#include "bind.hpp"
#include "tangram/version.hpp"

NB_MODULE(_core, m) {
  using namespace tangram::python;
  // Frameworks keep compiled functions, and so masks, until after the interpreter has gone: no fault of a user.
  nb::set_leak_warnings(false);
  m.doc() = "The C++ library as Python sees it. Use the names of the package tangram.";
  m.attr("VERSION") = tangram::kVersion;
  translate_errors();
  hear_signals();
  bind_slice(m);
  bind_mask(m);
  bind_config(m);
  bind_plan(m);
  bind_shard_map(m);
  bind_env(m);
  bind_tensor(m);
  bind_attention(m);
  bind_token_attention(m);
  bind_group(m);
  bind_dist_attention(m);
  bind_dist_mask_buffer(m);
  bind_watched_values(m);
}
