// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/profile_range.hpp"

#include <nvtx3/nvToolsExt.h>

#include "tangram/env.hpp"

namespace tangram::cuda {

ProfileRange::ProfileRange(const char* name) : pushed_(Env::get().profile) {
  if (pushed_) static_cast<void>(nvtxRangePushA(name));
}

ProfileRange::~ProfileRange() {
  if (pushed_) static_cast<void>(nvtxRangePop());
}

}  // namespace tangram::cuda
