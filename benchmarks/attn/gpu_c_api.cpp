// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A C interface to FlexAttention over a backend of GPUs (TANGRAM_BENCH_BACKEND, of TANGRAM_BENCH_HEADER), for
// measurements from Python in the process of the peer. Tensors are contiguous bfloat16 in device memory. Functions
// return 0, or -1 with the error on stderr.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include TANGRAM_BENCH_HEADER
#include "tangram/flex_attention.hpp"

namespace {

const tangram::TANGRAM_BENCH_BACKEND kBackend;

tangram::TensorView device_view(void* data, int64_t rows, int heads, int dim) {
  tangram::TensorView view;
  view.data = data;
  view.dtype = tangram::DType::kBFloat16;
  view.rows = rows;
  view.heads = heads;
  view.dim = dim;
  view.row_stride = int64_t{heads} * dim;
  view.head_stride = dim;
  return view;
}

template <class Function>
int guarded(const Function& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}

}  // namespace

extern "C" {

/// `slices`: six values each, q begin and end, k begin and end, min and max diagonal. Null when it fails.
tangram::FlexAttention* tangram_bench_create(const int64_t* slices, int num_slices, int64_t seqlen_q, int64_t seqlen_k,
                                             int num_heads_q, int num_heads_kv, int head_dim) {
  tangram::FlexAttention* result = nullptr;
  guarded([&] {
    std::vector<tangram::AttnSlice> list;
    for (const int64_t* s = slices; s != slices + 6 * num_slices; s += 6) {
      list.push_back({{s[0], s[1]}, {s[2], s[3]}, s[4], s[5]});
    }
    const tangram::HeadConfig heads{num_heads_q, num_heads_kv, head_dim, head_dim, tangram::DType::kBFloat16};
    result = new tangram::FlexAttention(tangram::Mask(seqlen_q, seqlen_k, std::move(list)), heads, kBackend);
  });
  return result;
}

void tangram_bench_destroy(tangram::FlexAttention* attention) { delete attention; }

int tangram_bench_forward(tangram::FlexAttention* attention, void* q, void* k, void* v, void* out, float* lse,
                          void* stream) {
  return guarded([&] {
    const tangram::AttnShape& s = attention->shape();
    tangram::AttnForwardArgs args;
    args.q = device_view(q, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.k = device_view(k, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.v = device_view(v, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.out = device_view(out, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.lse = lse;
    attention->forward(args, stream);
  });
}

int tangram_bench_backward(tangram::FlexAttention* attention, void* q, void* k, void* v, void* out, float* lse,
                           void* dout, void* dq, void* dk, void* dv, int deterministic, void* stream) {
  return guarded([&] {
    const tangram::AttnShape& s = attention->shape();
    tangram::AttnBackwardArgs args;
    args.q = device_view(q, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.k = device_view(k, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.v = device_view(v, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.out = device_view(out, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.lse = lse;
    args.dout = device_view(dout, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.dq = device_view(dq, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.dk = device_view(dk, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.dv = device_view(dv, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.options.deterministic = deterministic != 0;
    attention->backward(args, stream);
  });
}

}  // extern "C"
