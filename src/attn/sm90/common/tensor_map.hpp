// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tangram::sm90 {

/// An opaque CUtensorMap: 128 bytes, aligned to 64.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

}  // namespace tangram::sm90
