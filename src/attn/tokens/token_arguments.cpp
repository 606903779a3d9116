// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/tokens/token_arguments.hpp"

#include "attn/arguments.hpp"
#include "core/require.hpp"

namespace tangram {
namespace {

template <class Args>
void validate_common(const char* function, const AttnShape& shape, const TokenIndices& tokens, const Args& args) {
  validate_prepare(function, {}, shape);
  require(tokens.topk >= 0, "{}: topk must not be negative (got topk={})", function, tokens.topk);
  require(tokens.indices != nullptr || shape.seqlen_q * tokens.topk == 0,
          "{}: token indices must have memory (got null)", function);
  require(args.sink.empty() && args.options.softcap == 0,
          "{}: token indices go without sink and softcap (got seqlen_sink={}, softcap={})", function,
          args.sink.seqlen_sink, args.options.softcap);
  require(args.arrivals == nullptr && args.k_elsewhere.data == nullptr && args.v_elsewhere.data == nullptr,
          "{}: token indices need all keys in k and v (got arrivals or keys elsewhere)", function);
}

}  // namespace

void validate_tokens(const char* function, const AttnShape& shape, const TokenIndices& indices,
                     const AttnForwardArgs& args) {
  validate_common(function, shape, indices, args);
  require(!args.accumulate && args.max_logits == nullptr,
          "{}: token indices give out and lse of one call (got accumulate={}, max_logits={})", function,
          args.accumulate, args.max_logits != nullptr);
  validate_forward(function, shape, args);
}

void validate_tokens(const char* function, const AttnShape& shape, const TokenIndices& indices,
                     const AttnBackwardArgs& args) {
  validate_common(function, shape, indices, args);
  require(!args.accumulate_dq && !args.accumulate_dkv && args.delta == nullptr && args.places.of_key == nullptr,
          "{}: token indices give the gradients of one call (got accumulate_dq={}, accumulate_dkv={}, delta or places)",
          function, args.accumulate_dq, args.accumulate_dkv);
  validate_backward(function, shape, args);
}

}  // namespace tangram
