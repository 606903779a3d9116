// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The instances of the forward kernel for any head dimensions of class 32.

#include "attn/sm90/forward/instances.hpp"
#include "attn/sm90/forward/launch_impl.cuh"

namespace tangram::sm90 {

template void launch_any_dim<32, 32>(const ForwardVariant&, const ForwardParams&, int, cudaStream_t);

}  // namespace tangram::sm90
