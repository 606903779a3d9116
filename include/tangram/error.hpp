// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The exceptions that Tangram throws. The text of each reads `function: requirement (got name=value, ...)`.
#pragma once

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tangram {

/// Base of every exception of the library, so that a caller can catch all of them at once.
class Error : public std::runtime_error {
 public:
  /// A text that begins with a name and a colon is of the function of this name.
  explicit Error(const std::string& text) : std::runtime_error(text) {
    constexpr const char* kOfNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:";
    const size_t end = text.find_first_not_of(kOfNames);
    if (end != std::string::npos && end > 1 && text[end] == ' ' && text[end - 1] == ':') function_size_ = end - 1;
  }
  Error(std::string_view function, std::string_view requirement)
      : std::runtime_error(std::string(function).append(": ").append(requirement)), function_size_(function.size()) {}

  /// The function that refuses, empty where none is named, and the text behind it: parts of what().
  std::string_view function() const { return std::string_view(what()).substr(0, function_size_); }
  std::string_view requirement() const {
    return std::string_view(what()).substr(function_size_ == 0 ? 0 : function_size_ + 2);
  }

 private:
  size_t function_size_ = 0;
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
