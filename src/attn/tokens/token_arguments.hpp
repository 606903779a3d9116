// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The checks that calls with token indices share, on every backend.
#pragma once

#include "core/require.hpp"
#include "tangram/token_attention.hpp"

namespace tangram {

/// Checks arguments of both passes. Throws InvalidArgument, beginning with `function`.
template <class Args>
void check_token_call(const char* function, const AttnShape& shape, const TokenIndices& tokens, const Args& args) {
  require(shape.num_heads_q > 0 && shape.num_heads_kv > 0 && shape.num_heads_q % shape.num_heads_kv == 0,
          "{}: num_heads_kv must divide num_heads_q (got num_heads_q={}, num_heads_kv={})", function, shape.num_heads_q,
          shape.num_heads_kv);
  require(tokens.topk >= 0 && (tokens.indices != nullptr || shape.seqlen_q * tokens.topk == 0),
          "{}: needs token indices (got topk={}, indices={})", function, tokens.topk,
          static_cast<const void*>(tokens.indices));
  require(args.sink.empty() && args.options.softcap == 0,
          "{}: token indices go without sink and softcap (got seqlen_sink={}, softcap={})", function,
          args.sink.seqlen_sink, args.options.softcap);
  require(args.ready_flags == nullptr && args.k_local.data == nullptr && args.v_local.data == nullptr,
          "{}: token indices need all keys in k and v (got arrivals or keys elsewhere)", function);
}

/// Throws InvalidArgument where something is given that such calls do not take. Tensors are checked elsewhere.
inline void check_tokens(const char* function, const AttnShape& shape, const TokenIndices& tokens,
                         const AttnForwardArgs& args) {
  check_token_call(function, shape, tokens, args);
  require(!args.accumulate && args.max_logits == nullptr,
          "{}: token indices give out and lse of one call (got accumulate={}, max_logits={})", function,
          args.accumulate, static_cast<const void*>(args.max_logits));
}

inline void check_tokens(const char* function, const AttnShape& shape, const TokenIndices& tokens,
                         const AttnBackwardArgs& args) {
  check_token_call(function, shape, tokens, args);
  require(!args.accumulate_dq && !args.accumulate_dkv && args.delta == nullptr && args.places.of_key == nullptr,
          "{}: token indices give the gradients of one call (got accumulate_dq={}, accumulate_dkv={}, delta or places)",
          function, args.accumulate_dq, args.accumulate_dkv);
}

}  // namespace tangram
