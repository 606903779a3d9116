// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A slot that holds lists as large as they are, in device memory of their own (NOTE [list memory]).
#pragma once

#include <cstdint>
#include <memory>

#include "attn/sm90/backward/device_work_list.hpp"
#include "attn/sm90/metadata.hpp"
#include "attn/sm90/query_backward/device_group_list.hpp"
#include "attn/sm90/slot.hpp"
#include "cuda/packed_arrays.hpp"

namespace tangram::sm90 {

/// What the forward pass reads of a mask: its tile list, and where parts of tiles leave their results.
struct ForwardLists {
  cuda::PackedArrays arrays;
  cuda::PackedArray work_tiles, runs, intervals;
  cuda::PackedArray groups;            ///< of gathered runs; empty for most masks
  cuda::PackedArray counters;          ///< of the kernel's scheduler, zeros between calls
  cuda::PackedArray part_rows, tiles;  ///< empty for most masks; else work tiles are parts
  cuda::PackedArray work_tile_groups;  ///< of masks of head groups (schedule::HeadLists), else empty
  cuda::PackedArray part_heads;        ///< of these in parts: of each of `tiles`
  int32_t num_work_tiles = 0;
  int32_t num_part_tiles = 0;
  int64_t num_part_rows = 0;  ///< of the workspace, [rows, num_heads_q]
  int64_t total_steps = 0;    ///< key tiles of all work tiles of one head group
  int64_t longest_steps = 0;  ///< key tiles of the longest work tile
  int num_masks = 1;
  ForwardChoice choice;
  DeviceKeySources sources;

  /// Enqueues their copy. Throw CudaError.
  ForwardLists(const ForwardMetadata& metadata, const AttnShape& shape);
  ForwardLists(const HeadForwardMetadata& metadata, const AttnShape& shape);
  bool in_parts() const { return num_part_tiles > 0; }
};

class ExactSlot final : public Sm90Slot {
 public:
  using Sm90Slot::Sm90Slot;

  void install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) override;

  void check_forward(const char* function) const override;
  void check_backward(const char* function, const AttnBackwardArgs& args) const override;
  void before_forward(cudaStream_t stream) const override;
  void before_backward(const AttnBackwardArgs& args, cudaStream_t stream) const override;

  ForwardChoice forward_choice() const override { return forward_->choice; }
  void fill(ForwardParams& params, int pack) const override;
  const int32_t* key_groups() const override { return forward_->arrays.at<int32_t>(forward_->groups); }
  SplitTiles split_tiles() const override;
  const DeviceKeySources& forward_sources() const override { return forward_->sources; }

  bool is_sparse(const AttnBackwardArgs& args) const override;
  query_backward::GroupListView sparse_lists() const override { return sparse_->view(); }
  void fill(backward::Params& params, backward::PrePostParams& pre_post, const AttnBackwardArgs& args,
            void* workspace) const override;
  int64_t num_backward_work_tiles(bool deterministic) const override;
  const DeviceKeySources& backward_sources(bool deterministic) const override;
  size_t backward_workspace_bytes(bool deterministic) const override;
  size_t backward_workspace_bytes() const override;

  int64_t device_bytes() const override;
  const ForwardLists& forward_lists() const { return *forward_; }

 private:
  struct Backward {
    Backward(const BackwardMetadata& metadata, const AttnShape& shape);
    backward::DeviceWorkList lists;
    DeviceKeySources sources;
  };
  const Backward* backward_of(bool deterministic) const { return (deterministic ? ordered_ : backward_).get(); }

  std::unique_ptr<const ForwardLists> forward_;
  std::shared_ptr<const Backward> backward_, ordered_;  // one object where a list is of both
  std::unique_ptr<const query_backward::DeviceGroupList> sparse_;
};

}  // namespace tangram::sm90
