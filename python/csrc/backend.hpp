// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A backend that several Python objects hold.
#pragma once

#include <memory>
#include <string>

#include "tangram/backends.hpp"

namespace tangram::python {

class Backend {
 public:
  static std::shared_ptr<Backend> make(const std::string& name, int num_threads) {
    AttnBackendOptions options;
    options.num_threads = num_threads;
    return std::make_shared<Backend>(make_attn_backend(name, options));
  }
  explicit Backend(std::unique_ptr<AttnBackend> backend) : backend_(std::move(backend)) {}

  const AttnBackend& get() const { return *backend_; }
  /// Whether tensors lie in GPU memory.
  bool on_gpu() const { return backend_->memory() == MemoryKind::kDevice; }

 private:
  std::unique_ptr<AttnBackend> backend_;
};

}  // namespace tangram::python
