// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Gradients of keys that go row by row where tables say, final_tensor rows among them, against the same call that
// writes them to one tensor. Needs a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "support/relative_error.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using support::relative_error;
using test::make_random;
using test::OnDevice;
using test::RandomAttention;
using test::RandomConfig;

constexpr int64_t kSpareRows = 3;  // of final_tensor tensors, that no table names
constexpr unsigned char kPoison = 0xff;

constexpr int kNumOthers = 3;

/// Where the rows of both gradients go: row `final_tensor[key]` of the final_tensor tensor, or row `place[key]` of all
/// other tensors one after the other: the call's own, then kNumOthers.
struct Destinations {
  std::vector<int64_t> final_tensor;  // -1: not final_tensor
  std::vector<int64_t> place;
  int64_t tensor_rows;  // of each of the others

  Destinations(int64_t keys, double share, std::mt19937& rng) : final_tensor(static_cast<size_t>(keys), -1) {
    tensor_rows = keys / (kNumOthers + 1) + 1;
    place.resize(static_cast<size_t>(tensor_rows * (kNumOthers + 1)));
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), rng);
    std::vector<int64_t> rows(final_tensor.size() + kSpareRows);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), rng);
    for (size_t key = 0; key < final_tensor.size(); ++key) {
      if (std::bernoulli_distribution(share)(rng)) final_tensor[key] = rows[key];
    }
    std::vector<uint32_t> table;
    for (size_t key = 0; key < final_tensor.size(); ++key) {
      const int64_t tensor = place[key] / tensor_rows, row = place[key] % tensor_rows;
      table.push_back(final_tensor[key] >= 0 ? dkv_scatter_target(kFinalTensor, final_tensor[key])
                      : tensor == 0          ? dkv_scatter_target(kOwnTensor, row)
                                    : dkv_scatter_target(kFirstOtherTensor + static_cast<uint32_t>(tensor) - 1, row));
    }
    of_key = cuda::DeviceBuffer::copy_of(table.data(), table.size() * sizeof(uint32_t));
  }

  cuda::DeviceBuffer of_key;
};

/// Memory of the device with `row_bytes` every `pitch`, all poison before.
struct Rows {
  Rows(int64_t count, int64_t row_bytes_in, int64_t pitch_in)
      : row_bytes(row_bytes_in), pitch(pitch_in), buffer(static_cast<size_t>(count * pitch_in)) {
    cuda::check(cudaMemset(buffer.as<void>(), kPoison, buffer.bytes()), "cudaMemset");
  }
  char* row(int64_t i) const { return buffer.as<char>() + i * pitch; }
  std::string fetch() const {
    std::string bytes(buffer.bytes(), 0);
    if (!bytes.empty())
      cuda::check(cudaMemcpy(bytes.data(), row(0), bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return bytes;
  }

  int64_t row_bytes, pitch;
  cuda::DeviceBuffer buffer;
};

/// One of dk and dv, spread.
struct SpreadGradient {
  SpreadGradient(const TensorView& like, DType final_dtype, int64_t row_stride, const Destinations& to)
      : scattered(to.tensor_rows * (kNumOthers + 1), like.heads * like.dim * bytes_of(like.dtype),
                  row_stride * bytes_of(like.dtype)),
        final_rows(like.rows + kSpareRows, like.heads * like.dim * bytes_of(final_dtype),
                   row_stride * bytes_of(final_dtype)),
        own{{scattered.row(0), like.dtype, to.tensor_rows, like.heads, like.dim, row_stride, like.dim}},
        final_tensor{
            {final_rows.row(0), final_dtype, like.rows + kSpareRows, like.heads, like.dim, row_stride, like.dim}} {
    std::vector<void*> bases;
    for (int i = 1; i <= kNumOthers; ++i) bases.push_back(scattered.row(i * to.tensor_rows));
    others = cuda::DeviceBuffer::copy_of(bases.data(), bases.size() * sizeof(void*));
  }
  static int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

  Rows scattered, final_rows;
  TensorView own, final_tensor;
  cuda::DeviceBuffer others;
};

/// The elements of a tensor of the device as floats, gaps left out.
std::vector<float> values_of(const ConstTensorView& view) {
  HostTensor packed(view.dtype, view.rows, view.heads, view.dim);
  const auto element = static_cast<int64_t>(size_of(view.dtype));
  for (int64_t row = 0; row < view.rows; ++row) {
    cuda::check(cudaMemcpy(packed.data<char>() + row * view.row_bytes(),
                           static_cast<const char*>(view.data) + row * view.row_stride * element,
                           static_cast<size_t>(view.row_bytes()), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
  }
  std::vector<float> values;
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int head = 0; head < view.heads; ++head) {
      for (int d = 0; d < view.dim; ++d) values.push_back(packed.at(row, head, d));
    }
  }
  return values;
}

class Sm90RowTables : public testing::Test {
 protected:
  void SetUp() override {
    if (!check_hopper().found) GTEST_SKIP() << check_hopper().text;
  }
  /// Runs with `args` after out, lse and dq have been made what they were before any call.
  void run(OnDevice& device, MaskSlot& mask, const AttnBackwardArgs& args) {
    test::poison_workspace(mask);
    if (args.accumulate_dq) {
      const size_t bytes = static_cast<size_t>(args.dq.rows * args.dq.row_stride) * size_of(args.dq.dtype);
      cuda::check(cudaMemset(args.dq.data, 0x3e, bytes), "cudaMemset");  // 0.186
    }
    test::wait_for_device();
    backend_.forward(mask, device.forward);
    backend_.backward(mask, args);
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  Sm90Backend backend_;
};

/// Expects every row of `spread` where the tables sent it, equal to that of the plain call in its dtype, and nothing
/// written elsewhere. `in_final_dtype` and `in_own_dtype` are what plain calls gave.
void expect_rows(const char* name, const SpreadGradient& spread, const Destinations& to,
                 const std::vector<float>& in_own_dtype, const std::vector<float>& in_final_dtype, double tolerance) {
  const std::string scattered = spread.scattered.fetch(), final_tensor = spread.final_rows.fetch();
  std::string untouched_scattered(scattered.size(), static_cast<char>(kPoison));
  std::string untouched_final(final_tensor.size(), static_cast<char>(kPoison));
  const auto keep = [](std::string& expected, const std::string& actual, int64_t at, int64_t count) {
    std::copy_n(actual.begin() + at, count, expected.begin() + at);
  };
  const TensorView& view = spread.own;
  ConstTensorView places = view;  // of all scattered rows
  places.rows = to.tensor_rows * (kNumOthers + 1);
  const std::vector<float> got_scattered = values_of(places), got_final = values_of(spread.final_tensor);
  const auto row_values = static_cast<size_t>(view.heads * view.dim);
  std::vector<float> got, expected;
  for (size_t key = 0; key < to.final_tensor.size(); ++key) {
    const bool is_final = to.final_tensor[key] >= 0;
    const auto from = static_cast<size_t>(is_final ? to.final_tensor[key] : to.place[key]);
    const std::vector<float>& all = is_final ? got_final : got_scattered;
    const std::vector<float>& plain = is_final ? in_final_dtype : in_own_dtype;
    for (size_t i = 0; i < row_values; ++i) {
      got.push_back(all[from * row_values + i]);
      expected.push_back(plain[key * row_values + i]);
    }
    const Rows& rows = is_final ? spread.final_rows : spread.scattered;
    keep(is_final ? untouched_final : untouched_scattered, is_final ? final_tensor : scattered,
         static_cast<int64_t>(from) * rows.pitch, rows.row_bytes);
  }
  EXPECT_LE(relative_error(got, expected), tolerance) << name;
  EXPECT_TRUE(scattered == untouched_scattered) << name << ": writes between rows";
  EXPECT_TRUE(final_tensor == untouched_final) << name << ": writes final_tensor rows that no entry names";
}

/// Causal documents, windows, whole rectangles and fully masked keys, over a few tiles.
std::vector<AttnSlice> draw_slices(int64_t rows, int64_t keys, std::mt19937& rng) {
  std::vector<AttnSlice> slices;
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); };
  for (int64_t q = 0, k = 0; q < rows && k < keys;) {
    const int64_t q_end = std::min(rows, q + draw(1, rows)), k_end = std::min(keys, k + draw(1, keys));
    const int64_t kind = draw(0, 3);
    if (kind == 0) slices.push_back(AttnSlice::full({q, q_end}, {k, k_end}));
    if (kind == 1) slices.push_back(AttnSlice::causal({q, q_end}, {k, k_end}));
    if (kind == 2) slices.push_back({{q, q_end}, {k, k_end}, k - q - 60, k - q + 20});
    q = q_end, k = k_end;
  }
  return slices;
}

TEST_F(Sm90RowTables, RowsAreThoseOfOneTensorWhereverTheyGo) {
  const auto rounds = static_cast<unsigned>(test::num_rounds(112));
  for (unsigned round = 0; round < rounds; ++round) {
    std::mt19937 rng(round);
    const auto one_of = [&](auto a, auto b) { return rng() % 2 == 0 ? a : b; };
    RandomConfig config;
    const int heads_kv = one_of(1, 2);
    const test::HeadDims dims = test::kHeadDims[round % std::size(test::kHeadDims)];
    const DType dtype = round / 8 % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    const auto rows = static_cast<int64_t>(rng() % 400 + 1), keys = static_cast<int64_t>(rng() % 500 + 1);
    config.shape = test::shape_of(rows, keys, heads_kv * one_of(1, 4), heads_kv, dims, dtype);
    if (rng() % 4 == 0) config.softcap = 5.0f;
    const DType own_dtype = one_of(dtype, DType::kFloat32), final_dtype = one_of(dtype, DType::kFloat32);
    config.grad_dtype = DType::kFloat32;  // of dq
    const std::vector<AttnSlice> slices = draw_slices(rows, keys, rng);
    const bool deterministic = rng() % 4 != 0;
    const double share = round % 7 == 0 ? 0.0 : round % 7 == 1 ? 1.0 : 0.5;
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << to_string(dtype) << ", " << dims << ", "
                                    << to_string(own_dtype) << " and final_tensor " << to_string(final_dtype));
    RandomAttention r = make_random(config, slices, round);
    const auto mask = test::prepare_sm90(backend_, slices, config.shape);
    OnDevice device(r);
    AttnBackwardArgs args = device.backward;
    args.options.deterministic = deterministic;
    args.accumulate_dq = rng() % 3 == 0;

    const auto plain = [&](DType grad_dtype) {
      const int64_t head_bytes = int64_t{heads_kv} * static_cast<int64_t>(size_of(grad_dtype));
      const Rows dk(keys, head_bytes * dims.qk, head_bytes * dims.qk),
          dv(keys, head_bytes * dims.v, head_bytes * dims.v);
      AttnBackwardArgs call = args;
      call.dk.data = dk.row(0), call.dv.data = dv.row(0);
      call.dk.dtype = call.dv.dtype = grad_dtype;
      run(device, *mask, call);
      return std::array{values_of(call.dk), values_of(call.dv), values_of(call.dq)};
    };
    const auto in_own = plain(own_dtype), in_final = plain(final_dtype);

    const Destinations to(keys, share, rng);
    const int64_t gap = one_of(0, 16);
    TensorView like_dk = args.dk, like_dv = args.dv;
    like_dk.dtype = like_dv.dtype = own_dtype;
    const SpreadGradient dk(like_dk, final_dtype, int64_t{heads_kv} * dims.qk + gap, to);
    const SpreadGradient dv(like_dv, final_dtype, int64_t{heads_kv} * dims.v + gap, to);
    args.dk = dk.own, args.dv = dv.own;
    args.places = {to.of_key.as<uint32_t>(), {}, {}, dk.others.as<void*>(), dv.others.as<void*>()};
    if (share > 0) args.places.dk_final = dk.final_tensor, args.places.dv_final = dv.final_tensor;
    run(device, *mask, args);
    // Otherwise pieces add up in any order: float32, before rounding to what is compared.
    const double tolerance = deterministic                                              ? 0.0
                             : own_dtype == final_dtype && own_dtype == DType::kFloat32 ? 1e-5
                                                                                        : 1e-3;
    expect_rows("dk", dk, to, in_own[0], in_final[0], tolerance);
    expect_rows("dv", dv, to, in_own[1], in_final[1], tolerance);
    EXPECT_LE(relative_error(values_of(args.dq), in_own[2]), deterministic ? 0.0 : 1e-5) << "dq";
    if (HasFailure()) return;
  }
}

TEST_F(Sm90RowTables, TablesThatDoNotFitAreRefused) {
  RandomConfig config;
  config.shape = {64, 128, 2, 1, 64, 64, DType::kBFloat16};
  RandomAttention r = make_random(config, {AttnSlice::full({0, 64}, {0, 128})}, 1);
  const auto mask = test::prepare_sm90(backend_, r.slices, config.shape);
  OnDevice device(r);
  std::mt19937 rng(1);
  const Destinations to(128, 0.5, rng);
  TensorView like = device.backward.dk;
  const SpreadGradient dk(like, DType::kBFloat16, 64, to), dv(like, DType::kBFloat16, 64, to);
  AttnBackwardArgs valid = device.backward;
  valid.dk = dk.own, valid.dv = dv.own;
  valid.places = {to.of_key.as<uint32_t>(), dk.final_tensor, dv.final_tensor, dk.others.as<void*>(),
                  dv.others.as<void*>()};
  const auto message = [&](const std::function<void(AttnBackwardArgs&)>& change) -> std::string {
    AttnBackwardArgs args = valid;
    change(args);
    try {
      backend_.backward(*mask, args);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const auto expect = [&](const char* text, const std::function<void(AttnBackwardArgs&)>& change) {
    const std::string got = message(change);
    EXPECT_NE(got.find(text), std::string::npos) << got;
  };
  expect("places must be given without accumulate_dkv", [](auto& a) {
    a.dk.dtype = a.dv.dtype = DType::kFloat32;
    a.accumulate_dkv = true;
  });
  expect("dk_others and dv_others must be given together", [](auto& a) { a.places.dv_others = nullptr; });
  expect("dk_final and dv_final must be given together, with places", [](auto& a) { a.places.dv_final = {}; });
  expect("dk_final and dv_final must be given together, with places", [&](auto& a) {
    a.places.of_key = nullptr;
    a.dk = device.backward.dk, a.dv = device.backward.dv;
  });
  expect("dk_final and dv_final must have one dtype (got bfloat16 and float32)",
         [](auto& a) { a.places.dv_final.dtype = DType::kFloat32; });
  expect("dk_final and dv_final must have as many rows (got 131 and 130)",
         [](auto& a) { a.places.dv_final.rows = 130; });
  expect("dk_final must have the prepared dtype bfloat16 or float32 (got float16)",
         [](auto& a) { a.places.dk_final.dtype = a.places.dv_final.dtype = DType::kFloat16; });
  expect("dk_final must have shape [131, 1, 64]", [](auto& a) { a.places.dk_final.dim = 128; });
  expect("dv_final must have the strides 64 and 64 of the gradient (got 128 and 64)",
         [](auto& a) { a.places.dv_final.row_stride = 128; });
  expect("dk_final must not be null and be aligned to 16 bytes",
         [](auto& a) { a.places.dk_final.data = static_cast<char*>(a.places.dk_final.data) + 2; });
  EXPECT_EQ(message([](auto&) {}), "nothing was thrown");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace
}  // namespace tangram
