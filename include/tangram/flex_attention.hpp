// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// FlexAttention: attention over a mask on one device, with whatever the backend derives from the mask made once.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tangram/attention.hpp"
#include "tangram/config.hpp"
#include "tangram/mask.hpp"

namespace tangram {

class AsyncTask;

/// A mask, its shape and a backend, ready to be called any number of times, one call at a time. What only backward()
/// needs is made by its first call: what deterministic calls need by the first of these, and what the others need
/// likewise. With masks of small blocks, whose plain calls load chosen keys, most need no more than lists of these.
class FlexAttention {
 public:
  /// `backend` must outlive the object. Throws InvalidArgument for what the backend cannot do.
  FlexAttention(const Mask& mask, const HeadConfig& heads, const AttnBackend& backend);
  FlexAttention(std::span<const AttnSlice> slices, const AttnShape& shape, const AttnBackend& backend);
  /// One mask for each of equal head groups: masks[g] is of K/V heads [g * n, (g + 1) * n) and their query heads, n =
  /// num_heads_kv / masks.size(). Calls are of all heads. Throws InvalidArgument for no masks, masks of different
  /// sequences, a number of them that does not divide num_heads_kv, and backends without AttnCaps::head_masks.
  FlexAttention(std::span<const Mask> masks, const HeadConfig& heads, const AttnBackend& backend);
  FlexAttention(FlexAttention&& other) noexcept;
  ~FlexAttention();

  const AttnShape& shape() const { return shape_; }
  const AttnBackend& backend() const { return *backend_; }
  /// Host bytes of the metadata that the backend derived from the mask.
  int64_t host_bytes() const { return slot_->host_bytes(); }

  /// Workspace bytes of calls, see AttnWorkspace. That of backward() prepares what such calls need; of `plain` ones,
  /// without softcap, dsink, accumulation and places, often less.
  int64_t forward_workspace_bytes() const { return backend_->workspace_bytes(*slot_, AttnPass::kForward); }
  int64_t backward_workspace_bytes(bool deterministic = false, bool plain = false);
  /// Memory of a device that the object holds.
  int64_t device_bytes() const;

  /// Announces backward calls of this kind: a thread of the library makes their lists meanwhile, for the current
  /// device. forward() may run beside it; all other calls wait. Does nothing for backends of host memory.
  void prepare_backward_async(bool deterministic, bool plain = false);

  /// Run one pass, like AttnBackend::forward and backward.
  void forward(const AttnForwardArgs& args, void* stream = nullptr) { backend_->forward(*slot_, args, stream); }
  void backward(const AttnBackwardArgs& args, void* stream = nullptr);

 private:
  FlexAttention(std::vector<std::vector<AttnSlice>> masks, const AttnShape& shape, const AttnBackend& backend);
  void prepare_backward(const CallOptions& call);
  void finish_ahead();
  /// The part that such calls read; a part of `installed` where one will do.
  MaskPart part_of(const CallOptions& call, MaskParts installed);
  void build_part(MaskPart part) const;

  AttnShape shape_;
  const AttnBackend* backend_;
  std::unique_ptr<MaskSlot> slot_;
  std::vector<std::vector<AttnSlice>> masks_;  // of each head group, until all of backward() is there
  std::optional<MaskPart> plain_part_;         // of plain calls, once it has been asked for
  std::unique_ptr<AsyncTask> ahead_;           // the last member, which ends first
};

}  // namespace tangram
