// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What `tangram` returns to the shell. Listed in --help and in docs/guide/cli.md.
#pragma once

namespace tangram::cli {

enum ExitCode : int {
  kOk = 0,
  kVerificationFailed = 1,  ///< `verify`: a result is outside its bound
  kBadInput = 2,            ///< usage, unreadable or inconsistent input, unwritable output
  kNotAvailable = 3,        ///< what was asked for does not exist on this machine or in this build
  kCommFailed = 4,          ///< a peer did not answer in time, or a transport failed
  kInternal = 5,            ///< a bug in Tangram
};

}  // namespace tangram::cli
