// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The exceptions that Tangram throws. The text of each reads `function: requirement (got name=value, ...)`.
#pragma once

#include <memory>
#include <new>
#include <stdexcept>
#include <string>

namespace tangram {

/// Base of every exception of the library, so that a caller can catch all of them at once.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The caller passed something that the function cannot accept. Nothing was computed or sent.
class InvalidArgument : public Error {
  using Error::Error;
};

/// A CUDA runtime or driver call, or a kernel launch, failed.
class CudaError : public Error {
  using Error::Error;
};

/// A peer gave up or is gone, or a communication library (NCCL, MPI) reported a failure.
class CommError : public Error {
  using Error::Error;
};

/// A peer did not answer before the deadline. The text names the rank, the operation and the stage.
class Timeout : public Error {
  using Error::Error;
};

/// The requested feature does not exist on this machine or in this build (no GPU, not a Hopper GPU, no MPI).
class NotAvailable : public Error {
  using Error::Error;
};

/// An invariant of the library itself does not hold: a bug in Tangram, never the caller's fault.
class InternalError : public Error {
  using Error::Error;
};

/// Host memory that the system does not give, with what was asked for. A std::bad_alloc, which may come from elsewhere
/// too; in Python MemoryError.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& text) : text_(std::make_shared<const std::string>(text)) {}
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;  // so that copies cannot throw
};

}  // namespace tangram
