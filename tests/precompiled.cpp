// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Owns the precompiled header of the tests; CMake wants a source.
