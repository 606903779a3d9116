// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A slot as calls of the Hopper kernels see it: exact_slot.hpp, list_buffer.hpp and block_buffer.hpp implement it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/key_sources.hpp"
#include "attn/sm90/query_backward/device_group_list.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90 {

/// Which forward kernel walks the lists of a slot.
struct ForwardChoice {
  ForwardWorkTiles work_tiles = ForwardWorkTiles::kPlain;
  bool gathers = false;    ///< one that loads chosen keys
  bool many_runs = false;  ///< one that fetches runs ahead
};

/// Where parts of tiles leave their results, and what joins them.
struct SplitTiles {
  const int32_t* part_rows = nullptr;  ///< of each work tile
  const schedule::TileParts* tiles = nullptr;
  const int32_t* heads = nullptr;  ///< of each tile the first query head; null: all
  int32_t num_tiles = 0;           ///< 0: no tile is split
  int64_t num_rows = 0;            ///< of the workspace, [rows, num_heads_q]
  int num_masks = 1;
};

/// Calls ask for what they read, and put it on their stream: each function is of a part that is installed.
class Sm90Slot : public MaskSlot {
 public:
  explicit Sm90Slot(const AttnShape& shape) : shape_(shape) {}
  const AttnShape& shape() const { return shape_; }

  /// As AttnBackend::install; throws InvalidArgument for metadata of another kind of slot.
  virtual void install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) = 0;
  /// As AttnBackend::install_device.
  virtual void install_device(const MaskData& data, cudaStream_t stream);

  /// Throw InvalidArgument, naming `function`, where what such a call reads is not installed.
  virtual void check_forward(const char* function) const = 0;
  virtual void check_backward(const char* function, const AttnBackwardArgs& args) const = 0;
  /// Before a call is put on `stream`: orders it behind the upload of what it reads, or lets a captured graph keep
  /// that.
  virtual void before_forward(cudaStream_t stream) const = 0;
  virtual void before_backward(const AttnBackwardArgs& args, cudaStream_t stream) const = 0;

  virtual ForwardChoice forward_choice() const = 0;
  /// Pointers and sizes of lists, with `pack` query heads a tile.
  virtual void fill(ForwardParams& params, int pack) const = 0;
  virtual const int32_t* key_groups() const { return nullptr; }  ///< of kernels that gather
  virtual SplitTiles split_tiles() const { return {}; }
  virtual const DeviceKeySources& forward_sources() const;

  /// Whether Q-stationary kernels take the call.
  virtual bool is_sparse(const AttnBackwardArgs& args) const = 0;
  virtual query_backward::GroupListView sparse_lists() const { return {}; }
  /// Of the KV-stationary kernels: lists, and pointers into a workspace of any content.
  virtual void fill(backward::Params& params, backward::PrePostParams& pre_post, const AttnBackwardArgs& args,
                    void* workspace) const = 0;
  /// That a call has; the most there can be where the host does not know.
  virtual int64_t num_backward_work_tiles(bool /*deterministic*/) const { return std::numeric_limits<int64_t>::max(); }
  virtual const DeviceKeySources& backward_sources(bool deterministic) const;

  /// Of KV-stationary calls; of all backward calls that can be made now.
  virtual size_t backward_workspace_bytes(bool deterministic) const = 0;
  virtual size_t backward_workspace_bytes() const = 0;

 private:
  AttnShape shape_;
};

/// Throws InvalidArgument for a slot of another backend.
const Sm90Slot& as_sm90(const MaskSlot& slot);
Sm90Slot& as_sm90(MaskSlot& slot);

}  // namespace tangram::sm90
