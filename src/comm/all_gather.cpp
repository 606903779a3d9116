// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/all_gather.hpp"

#include "tangram/tensor.hpp"

namespace tangram::comm {

std::vector<char> all_gather_bytes(Communicator& control, const void* data, size_t num_bytes, std::string_view label) {
  const int size = control.size();
  // Rows of an exchange are tensor rows, so bytes move as float32 words, on which no arithmetic is done.
  const int words = static_cast<int>((num_bytes + 3) / 4);
  HostTensor send(DType::kFloat32, size, 1, words), received(DType::kFloat32, size, 1, words);
  const size_t row_bytes = static_cast<size_t>(words) * 4;
  for (size_t rank = 0; rank < static_cast<size_t>(size); ++rank) {
    std::memcpy(send.data<char>() + rank * row_bytes, data, num_bytes);
  }
  const std::vector<int64_t> one_each(static_cast<size_t>(size), 1);
  control.all_to_all_v(send, one_each, received, one_each, label)->wait();
  std::vector<char> bytes(static_cast<size_t>(size) * num_bytes);
  for (size_t rank = 0; rank < static_cast<size_t>(size); ++rank) {
    std::memcpy(bytes.data() + rank * num_bytes, received.data<char>() + rank * row_bytes, num_bytes);
  }
  return bytes;
}

}  // namespace tangram::comm
