// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// TokenAttention: attention over keys that are named one by one, for each query and K/V head, as a program has chosen
// them. No mask is made of them and, on a GPU, no host sees them. docs/design/tokens.md.
#pragma once

#include <cstdint>
#include <string>

#include "tangram/attention.hpp"
#include "tangram/attn_shape.hpp"

namespace tangram {

/// The keys that queries see, in the memory of the backend. Query i sees, with the query heads of K/V head g, the rows
/// [i, g] of k and v. Rows may be in any order; -1, anywhere in the list, names none. A list that names a key below -1,
/// behind the last one, or twice is refused as a whole.
struct TokenIndices {
  const int32_t* indices = nullptr;  // [seqlen_q, num_heads_kv, topk], contiguous
  int64_t topk = 0;
};

/// Attention of a backend over TokenIndices. Calls keep nothing: shapes may change from one to the next, and the
/// backward pass reads the lists again. They use tensors, lse, softmax_scale, deterministic, sm_margin and the
/// workspace of AttnForwardArgs and AttnBackwardArgs. Any other argument (sink, softcap, max_logits, accumulation,
/// ready flags, local K/V, scatter maps, delta) throws InvalidArgument. A query whose list names no key, or is refused,
/// sees nothing: out and dq are 0, lse is -inf. Keys that no list names get gradients of 0, and what k and v hold there
/// (NaN too) reaches no result.
///
/// On a GPU calls are kernels in stream order; they never wait, and allocate only without a workspace. They can be
/// captured: replays read the lists of that time. The GPU finds a refused list, whose query then sees nothing. The next
/// call on that device once the host knows, or check_errors(), throws once for all lists refused until then. A call
/// that throws so enqueues nothing. In host memory the call itself throws.
class TokenAttention {
 public:
  virtual ~TokenAttention() = default;

  /// Empty, or why calls of this shape would throw, as it follows "needs": `head_dim 128 (got head_dim=80)`.
  virtual std::string refusal(const AttnShape& shape, int64_t topk) const = 0;

  /// Workspace bytes of calls, see AttnWorkspace; 0: none.
  virtual int64_t forward_workspace_bytes(const AttnShape& /*shape*/, int64_t /*topk*/) const { return 0; }
  virtual int64_t backward_workspace_bytes(const AttnShape& /*shape*/, int64_t /*topk*/, bool /*deterministic*/) const {
    return 0;
  }

  /// Writes out (the dtype of q or float32) and lse. Throws InvalidArgument, CudaError.
  virtual void forward(const AttnShape& shape, const TokenIndices& indices, const AttnForwardArgs& args,
                       void* stream = nullptr) const = 0;

  /// Writes dq, dk and dv (the dtype of q or float32), from out, lse and dout. On a GPU bitwise equal from run to run
  /// with options.deterministic alone, which takes more memory (up to about 1 GB) and time.
  virtual void backward(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs& args,
                        void* stream = nullptr) const = 0;

  /// Throws InvalidArgument for lists that the current device has refused, as far as the host knows by now, once. For
  /// all that was enqueued, wait for the stream first.
  virtual void check_errors() const {}
};

}  // namespace tangram
