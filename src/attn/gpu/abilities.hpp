// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What kernels of GPU backends can do beside transfers; also for hosts that have no GPU.
#pragma once

namespace tangram {

/// AttnCaps::max_ready_flags: the bits of a word.
inline constexpr int kMaxReadyFlags = 64;

/// AttnCaps::local_kv_halo: a tile of at most 128 keys that meets a range reaches so many beyond it.
inline constexpr int kLocalKvHalo = 127;

}  // namespace tangram
