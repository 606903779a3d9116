// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "schedule/builder/places.hpp"

namespace tangram::schedule::builder {

/// Error text for the caller of a refused mask.
std::string report_text(const Report& report);

}  // namespace tangram::schedule::builder
