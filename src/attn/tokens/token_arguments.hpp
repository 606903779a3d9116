// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The checks that calls with token indices share, on every backend.
#pragma once

#include "tangram/token_attention.hpp"

namespace tangram {

/// Throws InvalidArgument unless every argument fits `shape` and none is given that such calls do not take. Looks at no
/// element. `function` starts the message.
void validate_tokens(const char* function, const AttnShape& shape, const TokenIndices& indices,
                     const AttnForwardArgs& args);
void validate_tokens(const char* function, const AttnShape& shape, const TokenIndices& indices,
                     const AttnBackwardArgs& args);

}  // namespace tangram
