// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DelegatingBackend: DenseBackend under another name, to be overridden where a test wants something else of it.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "runtime/dense_backend.hpp"

namespace tangram::testing {

class DelegatingBackend : public AttnBackend {
 public:
  explicit DelegatingBackend(std::string_view name) : name_(name) {}
  AttnCaps caps() const override {
    AttnCaps caps = dense_.caps();
    caps.name = name_;
    caps.delta = false;
    return caps;
  }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override { return dense_.build(request); }
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity) const override {
    return dense_.make_slot(shape, capacity);
  }
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const override {
    dense_.install(slot, std::move(metadata), stream);
  }
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const override {
    dense_.forward(slot, args, stream);
  }
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream) const override {
    dense_.backward(slot, args, stream);
  }

 private:
  std::string_view name_;
  DenseBackend dense_;
};

}  // namespace tangram::testing
