// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DelegatingBackend: DenseBackend under another name, to be overridden where a test wants something else of it.
#pragma once

#include "runtime/dense_backend.hpp"

namespace tangram::testing {

class DelegatingBackend : public AttnBackend {
 public:
  explicit DelegatingBackend(std::string_view name) : name_(name) {}
  std::string_view name() const final { return name_; }
  std::optional<TileShape> tile_shape(const AttnShape& shape) const final { return dense_.tile_shape(shape); }
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                        const TileList* tiles) const final {
    return dense_.prepare(slices, shape, tiles);
  }
  void forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream) const override {
    dense_.forward(mask, args, stream);
  }
  void backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream) const override {
    dense_.backward(mask, args, stream);
  }

 private:
  std::string_view name_;
  DenseBackend dense_;
};

}  // namespace tangram::testing
