// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The instances of the forward kernel for any head dimensions of class (192, 128).

#include "attn/sm90/forward/instances.hpp"
#include "attn/sm90/forward/launch_impl.cuh"

namespace tangram::sm90 {

template void launch_any_dim<192, 128>(const ForwardVariant&, const ForwardParams&, int, cudaStream_t);

}  // namespace tangram::sm90
