// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Runs a fuzz target without libFuzzer: over the files of a folder, each as it is and then mutated a number of times
// with a fixed seed. This is what the ordinary tests do with any compiler; `make fuzz` searches with coverage.
//
//   fuzz_<target> FOLDER NUM_MUTATIONS
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> read_folder(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// A few small changes: bits, bytes that mean something, numbers, pieces cut out, doubled or taken from another input.
Bytes mutated(Bytes bytes, const std::vector<Bytes>& inputs, std::mt19937& rng) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : rng() % n; };
  constexpr const char* kWords[] = {"-1", "0",  "1e308", "9223372036854775807", "null", "[", "]", "{", "}",
                                    ",",  "\"", "true"};
  for (size_t n = 1 + below(4); n > 0; --n) {
    const size_t at = below(bytes.size() + 1);
    const size_t length = std::min(bytes.size() - at, below(16));
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<uint8_t>("0123456789-.eE[]{},:\"x"[below(22)]);
        break;
      case 2: bytes.erase(place, place + static_cast<std::ptrdiff_t>(length)); break;
      case 3: {
        const Bytes copy(place, place + static_cast<std::ptrdiff_t>(length));
        bytes.insert(place, copy.begin(), copy.end());
        break;
      }
      case 4: {
        const std::string word = kWords[below(std::size(kWords))];
        bytes.insert(place, word.begin(), word.end());
        break;
      }
      default: {
        const Bytes& other = inputs[below(inputs.size())];
        const size_t from = below(other.size());
        const size_t count = std::min(other.size() - from, below(64));
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        bytes.insert(place, begin, begin + static_cast<std::ptrdiff_t>(count));
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER NUM_MUTATIONS\n", argv[0]);
    return 2;
  }
  const std::vector<Bytes> inputs = read_folder(argv[1]);
  if (inputs.empty()) {
    std::fprintf(stderr, "%s: has no files\n", argv[1]);
    return 1;
  }
  for (const Bytes& input : inputs) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937 rng(1);
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const Bytes input = mutated(inputs[rng() % inputs.size()], inputs, rng);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  return 0;
}
