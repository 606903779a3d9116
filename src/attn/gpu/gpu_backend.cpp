// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/gpu_backend.hpp"

#include <utility>

#include "attn/gpu/block_buffer.hpp"
#include "attn/gpu/exact_slot.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/list_buffer.hpp"
#include "cuda/stream.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/choose_sparse_backward.hpp"

namespace tangram::gpu {

// Only KV-stationary kernels wait for keys, or read them elsewhere.
MaskPart GpuBackend::backward_part(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                                   const CallOptions& call) const {
  if (call.deterministic) return MaskPart::kBackwardOrdered;
  if (!call.plain) return MaskPart::kBackward;
  const schedule::KernelTable kernels = kernel_table(shape);
  const schedule::SparseBackwardChoice choice(masks, shape, kernels);
  const bool sparse = call.awaits_keys ? masks.size() == 1 && choice.is_likely() : choice.may_choose();
  return sparse ? MaskPart::kBackwardSparse : MaskPart::kBackward;
}

std::unique_ptr<MaskSlot> GpuBackend::make_slot(const AttnShape& shape, const MaskCapacity* capacity) const {
  check(shape);
  require_device();
  const schedule::KernelTable kernels = kernel_table(shape);
  if (capacity == nullptr) return std::make_unique<ExactSlot>(shape, kernels);
  const schedule::PaddedChoice choice = schedule::choose_padded(shape, *capacity, kernels, gpu_of_current_device());
  if (choice.is_of_blocks) return std::make_unique<BlockBuffer>(shape, kernels, choice);
  return std::make_unique<ListBuffer>(shape, kernels, choice);
}

void GpuBackend::install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const {
  GpuSlot& own = as_gpu_slot(slot);
  const bool forward = metadata->parts().has(MaskPart::kForward);
  own.install(std::move(metadata), cuda::as_stream(stream));
  if (forward && own.forward_view().num_part_tiles > 0) load_combine(own.shape());
}

void GpuBackend::install_device(MaskSlot& slot, const MaskData& data, void* stream) const {
  as_gpu_slot(slot).install_device(data, cuda::as_stream(stream));
}

}  // namespace tangram::gpu
