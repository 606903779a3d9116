// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// FlexAttention: attention over a mask on one device, with whatever the backend derives from the mask made once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tangram/attention.hpp"
#include "tangram/attn_pass.hpp"
#include "tangram/config.hpp"
#include "tangram/mask.hpp"

namespace tangram {

class AsyncTask;

/// The slices as `backend` wants them: with a tile list built for its tile shape, or as they are. The one place where
/// plan's tile lists and backends meet. `ready_flags`: awaited keys, in the order in which they come, for calls with
/// AttnForwardArgs::ready_flags; the tile list then begins with the work tiles that need them least. Nothing is built
/// for a pass that was not asked for, whose calls a backend with tile lists then refuses. Throws what
/// AttnBackend::prepare throws.
std::unique_ptr<PreparedMask> prepare_slices(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                             const AttnShape& shape, std::span<const KeyReadyFlag> ready_flags = {},
                                             AttnPasses passes = AttnPasses::kBoth);

/// A mask, its shape and a backend, ready to be called any number of times, one call at a time. What only backward()
/// needs is made by its first call: what deterministic calls need by the first of these, and what the others need
/// likewise. With masks of small blocks, whose default calls gather keys, most need no more than lists of these.
class FlexAttention {
 public:
  /// `backend` must outlive the object. Throws InvalidArgument for what the backend cannot do.
  FlexAttention(const Mask& mask, const HeadConfig& heads, const AttnBackend& backend);
  FlexAttention(std::span<const AttnSlice> slices, const AttnShape& shape, const AttnBackend& backend);
  /// A mask for each of equal groups of heads: masks[g] is of K/V heads [g * n, (g + 1) * n), n = num_heads_kv /
  /// masks.size(), and of their query heads. Calls are of all heads, and one call of the backend where it
  /// takes_head_masks(); other backends of host memory are called once for each group. Throws InvalidArgument for no
  /// masks, masks of different sequences, a number of them that does not divide num_heads_kv, and other backends.
  FlexAttention(std::span<const Mask> masks, const HeadConfig& heads, const AttnBackend& backend);
  FlexAttention(FlexAttention&& other) noexcept;
  ~FlexAttention();

  const AttnShape& shape() const { return shape_; }
  const AttnBackend& backend() const { return *backend_; }
  /// Of what the backend prepared: PreparedMask::host_bytes.
  int64_t host_bytes() const;

  /// What calls need as their workspace, see AttnWorkspace. That of backward() prepares what such calls need; of
  /// `plain` ones, without softcap, dsink, accumulation and places, often less.
  int64_t forward_workspace_bytes() const;
  int64_t backward_workspace_bytes(bool deterministic = false, bool plain = false);
  /// Memory of a device that the object holds.
  int64_t device_bytes() const;

  /// Backward calls of this kind will come: what they need is made meanwhile, by a thread of the library, for the
  /// current device. forward() may be called beside it; all else waits. Does nothing for backends of host memory.
  void prepare_backward_async(bool deterministic, bool plain = false);

  /// As AttnBackend::forward and backward.
  void forward(const AttnForwardArgs& args, void* stream = nullptr);
  void backward(const AttnBackwardArgs& args, void* stream = nullptr);

 private:
  /// What backward calls need: lists of all keys, of default or of deterministic calls, or lists that gather them.
  enum class Lists { kDefault, kDeterministic, kGathered };
  Lists lists_of(bool deterministic, bool plain) const;
  void prepare_backward(Lists lists);
  void finish_ahead();
  void set_prepared(Lists lists);
  bool is_prepared(Lists lists) const { return is_prepared_[static_cast<int>(lists)]; }
  bool calls_by_groups() const { return prepared_.size() > 1; }

  AttnShape shape_;
  const AttnBackend* backend_;
  std::vector<std::unique_ptr<PreparedMask>> prepared_;  // one, or one for each group of heads
  std::vector<std::vector<AttnSlice>> slices_;           // of each group, until all of backward() is prepared
  bool is_prepared_[3] = {false, false, false};          // of Lists
  bool gathers_ = true;                                  // until it is known that default calls gain nothing by it
  Lists ahead_lists_ = Lists::kDefault;
  std::shared_ptr<bool> ahead_gathers_;  // whether what is made ahead, of Lists::kGathered, turned out to be such
  std::unique_ptr<AsyncTask> ahead_;     // the last member, which ends first
};

}  // namespace tangram
