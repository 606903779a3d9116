// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backward calls that the kernels for gathered keys take.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/sm90/query_backward/device_group_list.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90::query_backward {

/// Whether these kernels can take the call, of a mask that has a list for them: no softcap, no gradients of sinks, no
/// awaited keys, no local K/V in other tensors, gradients neither added to others nor spread over tensors, in any
/// order.
bool takes(const AttnBackwardArgs& args, bool awaited_keys);

/// Enqueues the call, whose arguments have been checked.
void enqueue(const GroupListView& lists, const AttnShape& shape, const AttnBackwardArgs& args, void* workspace,
             cudaStream_t stream);

}  // namespace tangram::sm90::query_backward
