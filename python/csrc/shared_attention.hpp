// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What Python attends with: one call at a time, from any thread and on any stream.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <utility>

#include "backend.hpp"
#include "core/fork.hpp"
#include "tangram/attention.hpp"

namespace tangram::python {

/// Prepared masks are used by one call at a time, and calls let the GIL go: hence the lock, taken without the GIL.
class SharedAttention {
 public:
  explicit SharedAttention(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
  virtual ~SharedAttention() = default;
  SharedAttention(const SharedAttention&) = delete;
  SharedAttention& operator=(const SharedAttention&) = delete;

  virtual const AttnShape& shape() const = 0;
  const Backend& backend() const { return *backend_; }

  void forward(const AttnForwardArgs& args, void* stream) {
    run(stream, [&] { call_forward(args, stream); });
  }
  void backward(const AttnBackwardArgs& args, void* stream) {
    run(stream, [&] { call_backward(args, stream); });
  }

 protected:
  virtual void call_forward(const AttnForwardArgs& args, void* stream) = 0;
  virtual void call_backward(const AttnBackwardArgs& args, void* stream) = 0;
  /// If the stream is being captured, keeps what calls read until the graph is gone.
  virtual void keep_while_graph_lives(void* /*stream*/) {}

  /// `call` with nothing else running, behind what was put on other streams.
  template <class Call>
  void run(void* stream, const Call& call) {
    run_alone([&] {
      if (backend_->on_gpu()) {
        order_.enter(stream);
        keep_while_graph_lives(stream);
      }
      call();
    });
  }
  /// Runs a call that uses no stream.
  template <class Call>
  void run_alone(const Call& call) {
    const nanobind::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(backend_->device());
    call();
  }

 private:
  std::shared_ptr<Backend> backend_;
  StreamOrder order_;
  ForkMutex mutex_;
};

}  // namespace tangram::python
