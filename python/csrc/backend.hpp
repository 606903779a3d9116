// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A backend that several Python objects hold.
#pragma once

#include <memory>
#include <string>

#include "device.hpp"
#include "tangram/backends.hpp"

namespace tangram::python {

class Backend {
 public:
  /// `device`: the GPU of backends that work on one; -1 is the current one.
  static std::shared_ptr<Backend> make(const std::string& name, int num_threads, int device) {
    AttnBackendOptions options;
    options.num_threads = num_threads;
    const DeviceScope scope(device);
    return std::make_shared<Backend>(make_attn_backend(name, options), device);
  }
  Backend(std::unique_ptr<AttnBackend> backend, int device) : backend_(std::move(backend)), device_(device) {}

  const AttnBackend& get() const { return *backend_; }
  int device() const { return device_; }
  /// Whether tensors lie in GPU memory.
  bool on_gpu() const { return backend_->memory() == MemoryKind::kDevice; }

 private:
  std::unique_ptr<AttnBackend> backend_;
  int device_;
};

}  // namespace tangram::python
