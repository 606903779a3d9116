// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The instances of the backward kernels for any head dimensions of class 128.

#include "attn/sm90/backward/instances.hpp"
#include "attn/sm90/backward/launch_impl.cuh"

namespace tangram::sm90::backward {

template void launch_any_dim<128, 128>(const Variant&, const Params&, const PrePostParams&, int, cudaStream_t);

}  // namespace tangram::sm90::backward
