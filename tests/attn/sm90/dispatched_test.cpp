// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The masks that ranks get from plans of the distributed benchmark masks: each rank's call on its rows alone, put
// together again, against one call on the whole mask. Needs a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "reference/mask_cases.hpp"
#include "support/random_tensor.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

using test::HeadDims;

constexpr int kHeadsQ = 2, kHeadsKv = 1;
constexpr DType kInput = DType::kBFloat16, kSum = DType::kFloat32;

/// A tensor in device memory, contiguous.
struct DeviceTensor {
  DeviceTensor(DType dtype, int64_t rows, int heads, int dim)
      : buffer(static_cast<size_t>(rows * heads * dim) * size_of(dtype) + 16),
        view{{buffer.as<void>(), dtype, rows, heads, dim, int64_t{heads} * dim, dim}} {}
  char* row(int64_t i) const { return buffer.as<char>() + i * view.row_bytes(); }

  cuda::DeviceBuffer buffer;
  TensorView view;
};

void copy_rows(const DeviceTensor& from, Range rows, const DeviceTensor& to, int64_t to_row) {
  if (rows.empty()) return;
  cuda::check(cudaMemcpy(to.row(to_row), from.row(rows.begin), static_cast<size_t>(rows.size() * from.view.row_bytes()),
                         cudaMemcpyDeviceToDevice),
              "cudaMemcpy");
}

DeviceTensor random_on_device(int64_t rows, int heads, int dim, unsigned seed) {
  std::mt19937 rng(seed);
  const HostTensor values = support::random_tensor(kInput, rows, heads, dim, rng);
  DeviceTensor tensor(kInput, rows, heads, dim);
  cuda::check(
      cudaMemcpy(tensor.row(0), values.data<char>(), static_cast<size_t>(values.bytes()), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  return tensor;
}

std::vector<float> fetch(const DeviceTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.view.rows * tensor.view.heads * tensor.view.dim));
  cuda::check(cudaMemcpy(values.data(), tensor.row(0), values.size() * sizeof(float), cudaMemcpyDeviceToHost),
              "cudaMemcpy");
  return values;
}

struct Inputs {
  Inputs(HeadDims dims, int64_t rows)
      : q(random_on_device(rows, kHeadsQ, dims.qk, 1)),
        k(random_on_device(rows, kHeadsKv, dims.qk, 2)),
        v(random_on_device(rows, kHeadsKv, dims.v, 3)),
        dout(random_on_device(rows, kHeadsQ, dims.v, 4)) {}
  Inputs(HeadDims dims, int64_t rows, int64_t keys)
      : q(kInput, rows, kHeadsQ, dims.qk),
        k(kInput, keys, kHeadsKv, dims.qk),
        v(kInput, keys, kHeadsKv, dims.v),
        dout(kInput, rows, kHeadsQ, dims.v) {}
  DeviceTensor q, k, v, dout;
};

struct Outputs {
  Outputs(HeadDims dims, int64_t rows, int64_t keys)
      : out(kSum, rows, kHeadsQ, dims.v),
        lse(kSum, rows, kHeadsQ, 1),
        dq(kSum, rows, kHeadsQ, dims.qk),
        dk(kSum, keys, kHeadsKv, dims.qk),
        dv(kSum, keys, kHeadsKv, dims.v) {}
  DeviceTensor out, lse, dq, dk, dv;
};

void run(std::span<const AttnSlice> slices, const Inputs& in, const Outputs& result) {
  const Sm90Backend backend;
  const AttnShape shape{in.q.view.rows, in.k.view.rows, kHeadsQ, kHeadsKv, in.q.view.dim, in.v.view.dim, kInput};
  const auto mask = test::prepare_sm90(backend, slices, shape);
  const auto* lse = static_cast<float*>(result.lse.view.data);
  backend.forward(*mask, {in.q.view, in.k.view, in.v.view, result.out.view, const_cast<float*>(lse)});
  AttnBackwardArgs args;
  args.q = in.q.view, args.k = in.k.view, args.v = in.v.view, args.out = result.out.view, args.lse = lse;
  args.dout = in.dout.view, args.dq = result.dq.view, args.dk = result.dk.view, args.dv = result.dv.view;
  backend.backward(*mask, args);
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// Gathers a rank's rows, runs its mask, and scatters what it computed; dk and dv are added up on the host.
struct Assembled {
  Assembled(HeadDims head_dims, int64_t rows)
      : dims(head_dims),
        outputs(dims, rows, rows),
        dk(static_cast<size_t>(rows * kHeadsKv * dims.qk)),
        dv(static_cast<size_t>(rows * kHeadsKv * dims.v)) {}

  void add_rank(const Plan& plan, int rank, const Inputs& in) {
    const RankPlan& own = plan.ranks()[static_cast<size_t>(rank)];
    Inputs local(dims, plan.q_dispatch.rows_per_rank(), own.kv_rows);
    const std::vector<Range> rows = plan.q_dispatch.rows_of_rank(rank);
    int64_t at = 0;
    for (const Range& range : rows) {
      copy_rows(in.q, range, local.q, at);
      copy_rows(in.dout, range, local.dout, at);
      at += range.size();
    }
    for (const KvSegment& segment : own.segments) {
      copy_rows(in.k, segment.global, local.k, segment.row);
      copy_rows(in.v, segment.global, local.v, segment.row);
    }
    const Outputs results(dims, local.q.view.rows, own.kv_rows);
    run(own.slices, local, results);
    at = 0;
    for (const Range& range : rows) {
      const Range from{at, at + range.size()};
      copy_rows(results.out, from, outputs.out, range.begin);
      copy_rows(results.lse, from, outputs.lse, range.begin);
      copy_rows(results.dq, from, outputs.dq, range.begin);
      at = from.end;
    }
    const std::vector<float> rank_dk = fetch(results.dk), rank_dv = fetch(results.dv);
    const auto add = [&](std::vector<float>& sums, const std::vector<float>& of_rank, int dim) {
      const int64_t row = int64_t{kHeadsKv} * dim;
      for (const KvSegment& segment : own.segments) {
        for (int64_t i = 0; i < segment.global.size() * row; ++i) {
          sums[static_cast<size_t>(segment.global.begin * row + i)] +=
              of_rank[static_cast<size_t>(segment.row * row + i)];
        }
      }
    };
    add(dk, rank_dk, dims.qk);
    add(dv, rank_dv, dims.v);
  }

  HeadDims dims;
  Outputs outputs;
  std::vector<float> dk, dv;
};

void expect_close(const char* name, const std::vector<float>& actual, const std::vector<float>& expected,
                  double tolerance) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // infinities too
    difference += std::pow(double{actual[i]} - expected[i], 2);
    norm += double{expected[i]} * expected[i];
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name;  // not so where anything is NaN
}

TEST(Sm90Dispatched, RanksComputeWhatOneGpuComputes) {
  if (!check_hopper().found) GTEST_SKIP() << check_hopper().text;
  size_t index = 0;
  for (const reference::MaskCase& c : reference::load_mask_cases("dist_masks.json")) {
    if (c.seqlen > 32768) continue;
    const HeadDims dims = test::kHeadDims[index++ % std::size(test::kHeadDims)];  // in turn
    SCOPED_TRACE(dims);
    const Mask mask(c.seqlen, c.seqlen, c.slices);
    const Inputs in(dims, c.seqlen);
    const Outputs whole(dims, c.seqlen, c.seqlen);
    run(mask.slices(), in, whole);
    for (const int cp_size : {4, 8}) {
      SCOPED_TRACE(c.name + " over " + std::to_string(cp_size));
      DistAttnConfig config;
      config.cp_size = cp_size;
      config.heads = {kHeadsQ, kHeadsKv, dims.qk, dims.v, kInput};
      const Plan plan = make_plan(mask, config);
      Assembled assembled(dims, c.seqlen);
      for (int rank = 0; rank < cp_size; ++rank) assembled.add_rank(plan, rank, in);
      // Tiles begin elsewhere, so that probabilities meet other references before they are rounded to bfloat16, 2^-9.
      expect_close("out", fetch(assembled.outputs.out), fetch(whole.out), 4.0 / 512);
      expect_close("lse", fetch(assembled.outputs.lse), fetch(whole.lse), 1e-5);
      expect_close("dq", fetch(assembled.outputs.dq), fetch(whole.dq), 4.0 / 512);
      expect_close("dk", assembled.dk, fetch(whole.dk), 4.0 / 512);
      expect_close("dv", assembled.dv, fetch(whole.dv), 4.0 / 512);
    }
  }
}

}  // namespace
}  // namespace tangram
