// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the library has to say while it is at work. It prints nothing by itself.
#pragma once

#include <string_view>

namespace tangram {

/// Called with one line, on any thread. Must not throw, nor call the library.
using LogSink = void (*)(std::string_view line);

/// Where notes go from now on; null, as at first: nowhere. Python's go to the logger `tangram`, the program's to
/// stderr.
void set_log_sink(LogSink sink);

}  // namespace tangram
