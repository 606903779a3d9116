// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which kernels backend sm90 is compiled with. Nothing here needs CUDA.
#pragma once

#include "attn/kernel_catalog.hpp"

namespace tangram::sm90 {

KernelCatalog kernel_catalog();

}  // namespace tangram::sm90
