// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/npy.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/text_file.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeaderBytes = 64 << 10;
constexpr int64_t kMaxElements = int64_t{1} << 40;

// Reads the header's dictionary, a Python literal such as
// {'descr': '<f4', 'fortran_order': False, 'shape': (128, 8, 64), }
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  void read(NpyHeader& header) {
    bool seen[3] = {};
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : -1;
      require(which >= 0 && !seen[which], "{}: .npy header must hold descr, fortran_order and shape once (got '{}')",
              what_, key);
      seen[which] = true;
      if (which == 0) header.descr = descr();
      if (which == 1) header.fortran_order = boolean();
      if (which == 2) header.shape = shape();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    require(text_.empty(), "{}: .npy header must end after its dictionary", what_);
    require(seen[0] && seen[1] && seen[2], "{}: .npy header must hold descr, fortran_order and shape", what_);
  }

 private:
  void skip_space() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n' || text_[0] == '\t')) text_.remove_prefix(1);
  }
  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    require(accept(c), "{}: .npy header is malformed (expected '{}' before '{}')", what_, c, text_.substr(0, 20));
  }
  std::string quoted() {
    skip_space();
    const char quote = text_.empty() ? '\0' : text_[0];
    const size_t end = quote == '\'' || quote == '"' ? text_.find(quote, 1) : std::string_view::npos;
    require(end != std::string_view::npos && end <= 64, "{}: .npy header is malformed (expected a name at '{}')", what_,
            text_.substr(0, 20));
    std::string word(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return word;
  }
  std::string descr() {
    skip_space();
    require(text_.empty() || text_[0] != '[', "{}: .npy file must hold float32 (descr '<f4'), not records", what_);
    return quoted();
  }
  bool boolean() {
    skip_space();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(0, word.size()) != word) continue;
      text_.remove_prefix(word.size());
      return value;
    }
    require(false, "{}: .npy header is malformed (fortran_order must be True or False)", what_);
    return false;
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t size = -1;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      require(error == std::errc() && size >= 0, "{}: .npy header is malformed (shape at '{}')", what_,
              text_.substr(0, 20));
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      sizes.push_back(size);
      require(sizes.size() <= 32, "{}: .npy header must not have more than 32 dimensions", what_);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }

  std::string_view text_;
  std::string_view what_;
};

std::string shape_text(std::span<const int64_t> shape) {
  std::string text;
  for (const int64_t size : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  return "[" + text + "]";
}

}  // namespace

NpyHeader parse_npy_header(std::string_view file, std::string_view what) {
  require(file.size() >= 10 && file.substr(0, kMagic.size()) == kMagic,
          "{}: must be a .npy file (it does not start as one)", what);
  const int major = static_cast<unsigned char>(file[6]);
  require(1 <= major && major <= 3 && file[7] == 0, "{}: .npy format must be 1.0, 2.0 or 3.0 (got {}.{})", what, major,
          static_cast<int>(static_cast<unsigned char>(file[7])));
  const size_t num_length_bytes = major == 1 ? 2 : 4;
  const size_t text_begin = 8 + num_length_bytes;
  require(file.size() >= text_begin, "{}: .npy file is truncated within its header", what);
  size_t length = 0;
  for (size_t i = 0; i < num_length_bytes; ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(file[8 + i])) << (8 * i);
  }
  require(length <= kMaxHeaderBytes, "{}: .npy header must not exceed {} bytes (got {})", what, kMaxHeaderBytes,
          length);
  require(file.size() >= text_begin + length, "{}: .npy file is truncated within its header", what);
  NpyHeader header;
  HeaderReader(file.substr(text_begin, length), what).read(header);
  header.data_offset = static_cast<int64_t>(text_begin + length);
  return header;
}

HostTensor read_npy(const std::string& path, std::string_view what) {
  const std::string name = fmt::format("{} '{}'", what, path);
  std::error_code error;
  require(std::filesystem::exists(path, error), "{}: cannot be read: {}", name,
          error ? error.message() : "No such file or directory");
  require(std::filesystem::is_regular_file(path, error), "{}: must be a .npy file", name);
  const int64_t file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), "{}: cannot be read: {}", name, std::strerror(errno));
  std::string head(kMaxHeaderBytes + 12, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  const NpyHeader header = parse_npy_header(head, name);

  require(header.descr == "<f4", "{}: must hold little-endian float32, '<f4' (got '{}')", name, header.descr);
  require(!header.fortran_order, "{}: must be in C order (got fortran_order: True); save np.ascontiguousarray(x)",
          name);
  require(header.shape.size() == 3, "{}: shape must be [seqlen, heads, dim] (got {})", name, shape_text(header.shape));
  int64_t num_elements = 1;
  for (const int64_t size : header.shape) {
    require(size > 0 && size <= kMaxElements / num_elements, "{}: shape must be positive and fit in memory (got {})",
            name, shape_text(header.shape));
    num_elements *= size;
  }
  require(header.shape[1] <= 1 << 16 && header.shape[2] <= 1 << 16, "{}: heads and dim must not exceed 65536 (got {})",
          name, shape_text(header.shape));
  // Before anything is allocated: a header may lie.
  const int64_t expected_bytes = header.data_offset + num_elements * 4;
  require(file_bytes == expected_bytes, "{}: must be {} bytes long for shape {} (got {}: {})", name, expected_bytes,
          shape_text(header.shape), file_bytes, file_bytes < expected_bytes ? "truncated" : "trailing bytes");

  HostTensor tensor(DType::kFloat32, header.shape[0], static_cast<int>(header.shape[1]),
                    static_cast<int>(header.shape[2]));
  file.clear();
  file.seekg(header.data_offset);
  file.read(reinterpret_cast<char*>(tensor.data<float>()), num_elements * 4);
  require(file.gcount() == num_elements * 4, "{}: ended early while it was read", name);
  return tensor;
}

void write_npy(const std::string& path, std::span<const float> values, std::span<const int64_t> shape) {
  std::string sizes;
  for (const int64_t size : shape) sizes += fmt::format("{}, ", size);
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", sizes);
  // The data starts at a multiple of 64 bytes, after a newline.
  const size_t prefix_bytes = 10;
  header.append(63 - (prefix_bytes + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string file(kMagic);
  file += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  file += header;

  write_file(path, "--out-dir", file, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

}  // namespace tangram::cli
