// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// .npy files from strangers: refused with InvalidArgument, or float32 of the shape that they state.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cli/npy.hpp"
#include "fuzz/fuzz.hpp"

namespace {

// A file of its own, overwritten for each input and removed at the end.
class ScratchFile {
 public:
  ScratchFile() : descriptor_(mkstemp(path_)) { FUZZ_CHECK(descriptor_ >= 0); }
  ~ScratchFile() {
    close(descriptor_);
    unlink(path_);
  }
  void write(const uint8_t* data, size_t size) const {
    FUZZ_CHECK(ftruncate(descriptor_, 0) == 0);
    FUZZ_CHECK(pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size));
  }
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/tangram_fuzz_XXXXXX";
  int descriptor_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tangram;
  fuzz::accepts_or_refuses([&] {
    const cli::NpyHeader header =
        cli::parse_npy_header(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    FUZZ_CHECK(0 < header.data_offset && header.data_offset <= static_cast<int64_t>(size));
  });
  static const ScratchFile file;
  file.write(data, size);
  fuzz::accepts_or_refuses([&] {
    const HostTensor tensor = cli::read_npy(file.path(), "fuzz");
    FUZZ_CHECK(tensor.dtype() == DType::kFloat32);
    FUZZ_CHECK(tensor.bytes() <= static_cast<int64_t>(size));
    // Every byte is there to be read.
    float sum = 0;
    for (int64_t i = 0; i < tensor.size(); ++i) sum += tensor.data<float>()[i];
    volatile float keep = sum;
    (void)keep;
  });
  return 0;
}
