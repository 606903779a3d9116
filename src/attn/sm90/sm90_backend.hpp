// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention on Hopper GPUs (compute capability 9.0).
#pragma once

#include <memory>
#include <span>

#include "attn/sm90/hopper_check.hpp"
#include "attn/sm90/tokens/sm90_tokens.hpp"
#include "tangram/attention.hpp"

namespace tangram {

/// bfloat16 and float16, head_dim and head_dim_v any multiples of 8 up to 256, any number of key heads that divides the
/// query heads. Tensors lie in the memory of the current device, 16-byte aligned, with strides that are multiples of 16
/// bytes. Calls put one kernel on the stream (one more with max_logits and for few tiles of long keys, whose parts are
/// merged; backward three, and one for dsink) and never wait. Given a workspace they never allocate; without one they
/// share that of the device (cuda::Workspace). They can be captured in a CUDA graph. A PreparedMask holds tile lists
/// and nothing else; it belongs to the device that was current in prepare(), which needs a tile list for forward()
/// only. Making the backend needs no GPU; prepare() throws NotAvailable where the current device is not a Hopper GPU.
class Sm90Backend final : public AttnBackend {
 public:
  std::string_view name() const override { return "sm90"; }
  MemoryKind memory() const override { return MemoryKind::kDevice; }
  std::optional<TileShape> tile_shape(const AttnShape& shape) const override;
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                        const TileList* tiles) const override;
  bool can_wait_for_keys() const override { return true; }
  void prepare_ready_flags(PreparedMask& mask, std::span<const KeyReadyFlag> ready_flags) const override;
  bool wants_all_keys(std::span<const AttnSlice> slices, const AttnShape& shape) const override;
  bool supports_local_kv() const override { return true; }
  bool takes_delta() const override { return true; }
  void prepare_local_kv(PreparedMask& mask, std::span<const LocalKvRange> local_ranges) const override;
  int64_t local_kv_table_bytes(int64_t seqlen_k) const override;
  void write_local_kv_table(std::span<const LocalKvRange> local_ranges, int64_t seqlen_k, std::byte* to) const override;
  int64_t forward_workspace_bytes(const PreparedMask& mask) const override;
  void forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream = nullptr) const override;
  std::optional<TileShape> backward_tile_shape(const AttnShape& shape) const override;
  void prepare_backward(PreparedMask& mask, const TileList& transposed_tiles,
                        BackwardCalls calls = BackwardCalls::kBoth) const override;
  int64_t backward_workspace_bytes(const PreparedMask& mask) const override;
  bool takes_head_masks() const override { return true; }
  std::unique_ptr<PreparedMask> prepare_head_masks(std::span<const std::span<const AttnSlice>> slices,
                                                   const AttnShape& shape,
                                                   std::span<const TileList> tiles) const override;
  void prepare_backward_head_masks(PreparedMask& mask, std::span<const TileList> transposed_tiles,
                                   BackwardCalls calls = BackwardCalls::kBoth) const override;
  bool has_buffers() const override { return true; }
  std::unique_ptr<PreparedMask> make_buffer(const AttnShape& shape, const MaskCapacity& capacity) const override;
  void set_mask(PreparedMask& buffer, std::span<const AttnSlice> slices, int64_t num_keys, void* stream) const override;
  bool prepare_gathered_backward(PreparedMask& mask) const override;
  bool takes_gathered(const PreparedMask& mask, const AttnBackwardArgs& args) const override;
  void set_block_masks(PreparedMask& buffer, std::span<const std::span<const AttnSlice>> masks,
                       void* stream) const override;
  void set_mask_data(PreparedMask& buffer, const MaskData& data, void* stream) const override;
  void check_refused(const PreparedMask& buffer) const override;
  const TokenAttention* token_attention() const override { return &tokens_; }
  void backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream = nullptr) const override;

 private:
  sm90::Sm90Tokens tokens_;
};

}  // namespace tangram
