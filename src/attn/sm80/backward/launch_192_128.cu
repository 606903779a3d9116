// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels for head_dim up to 192 and head_dim_v up to 128.
#include "attn/sm80/launch_impl.cuh"

namespace tangram::sm80 {

template void launch_backward_class<192, 128>(const Variant&, const backward::Params&, const backward::PrePostParams&,
                                              int, cudaStream_t);

}  // namespace tangram::sm80
