// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// FlexAttention: attention over a mask on one device, with whatever the backend derives from the mask made once.
#pragma once

#include <memory>
#include <span>

#include "tangram/attention.hpp"
#include "tangram/config.hpp"
#include "tangram/mask.hpp"

namespace tangram {

/// The slices as `backend` wants them: with a tile list built for its tile shape, or as they are. The one place where
/// plan's tile lists and backends meet. `arrivals`: keys that come late, in the order in which they come, for calls
/// with AttnForwardArgs::arrivals; the tile list then begins with what needs them least. Throws what
/// AttnBackend::prepare throws.
std::unique_ptr<PreparedMask> prepare_slices(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                             const AttnShape& shape, std::span<const KeyArrival> arrivals = {});

/// A mask, its shape and a backend, ready to be called any number of times, one call at a time.
class FlexAttention {
 public:
  /// `backend` must outlive the object. Throws InvalidArgument for what the backend cannot do.
  FlexAttention(const Mask& mask, const HeadConfig& heads, const AttnBackend& backend);
  FlexAttention(std::span<const AttnSlice> slices, const AttnShape& shape, const AttnBackend& backend);

  const AttnShape& shape() const { return shape_; }
  const AttnBackend& backend() const { return *backend_; }

  /// As AttnBackend::forward and backward.
  void forward(const AttnForwardArgs& args, void* stream = nullptr);
  void backward(const AttnBackwardArgs& args, void* stream = nullptr);

 private:
  AttnShape shape_;
  const AttnBackend* backend_;
  std::unique_ptr<PreparedMask> prepared_;
};

}  // namespace tangram
