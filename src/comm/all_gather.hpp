// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Small plain values from every rank to every rank, over the host communicator.
#pragma once

#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tangram/communicator.hpp"

namespace tangram::comm {

/// `num_bytes` bytes of every rank, by rank, the own ones included. Collective; the same number on all ranks.
std::vector<char> all_gather_bytes(Communicator& control, const void* data, size_t num_bytes, std::string_view label);

/// One value of every rank, by rank. Collective.
template <class T>
std::vector<T> all_gather(Communicator& control, const T& value, std::string_view label) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<char> bytes = all_gather_bytes(control, &value, sizeof(T), label);
  std::vector<T> values(static_cast<size_t>(control.size()));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Equally many values of every rank, those of rank 0 first. Collective.
template <class T>
std::vector<T> all_gather(Communicator& control, const std::vector<T>& own, std::string_view label) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (own.empty()) return {};
  const std::vector<char> bytes = all_gather_bytes(control, own.data(), own.size() * sizeof(T), label);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace tangram::comm
