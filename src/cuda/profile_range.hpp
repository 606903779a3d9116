// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NVTX ranges, by which Nsight Systems names kernels and copies after the call that enqueued them.
#pragma once

namespace tangram::cuda {

/// Names what this thread enqueues while it lives, where Env::profile is set; costs a look at a flag elsewhere.
class ProfileRange {
 public:
  /// `name` must live until the range ends.
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  const bool pushed_;
};

}  // namespace tangram::cuda
