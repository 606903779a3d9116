// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A C interface to backend sm80, for measurements from Python in the process of the peer (sm80_vs_flash2.py). Tensors
// are contiguous bfloat16 in device memory. Functions return 0, or -1 with the error on stderr.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "attn/sm80/sm80_backend.hpp"

namespace {

const tangram::Sm80Backend kBackend;

struct Prepared {
  tangram::AttnShape shape;
  std::unique_ptr<tangram::MaskSlot> slot;
};

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
Prepared* tangram_sm80_create(const int64_t* slices, int num_slices, int64_t rows, int num_heads_q, int num_heads_kv,
                              int head_dim, int head_dim_v) {
  Prepared* result = nullptr;
  guarded([&] {
    std::vector<tangram::AttnSlice> list;
    for (const int64_t* s = slices; s != slices + 6 * num_slices; s += 6) {
      list.push_back({{s[0], s[1]}, {s[2], s[3]}, s[4], s[5]});
    }
    const tangram::AttnShape shape{
        rows, rows, num_heads_q, num_heads_kv, head_dim, head_dim_v, tangram::DType::kBFloat16};
    result = new Prepared{shape, tangram::make_mask_slot(kBackend, list, shape)};
  });
  return result;
}

void tangram_sm80_destroy(Prepared* prepared) { delete prepared; }

int tangram_sm80_forward(Prepared* prepared, void* q, void* k, void* v, void* out, float* lse, void* stream) {
  return guarded([&] {
    const tangram::AttnShape& s = prepared->shape;
    tangram::AttnForwardArgs args;
    args.q = device_view(q, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.k = device_view(k, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.v = device_view(v, s.seqlen_k, s.num_heads_kv, s.head_dim_v);
    args.out = device_view(out, s.seqlen_q, s.num_heads_q, s.head_dim_v);
    args.lse = lse;
    kBackend.forward(*prepared->slot, args, stream);
  });
}

int tangram_sm80_backward(Prepared* prepared, void* q, void* k, void* v, void* out, float* lse, void* dout, void* dq,
                          void* dk, void* dv, int deterministic, void* stream) {
  return guarded([&] {
    const tangram::AttnShape& s = prepared->shape;
    tangram::AttnBackwardArgs args;
    args.q = device_view(q, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.k = device_view(k, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.v = device_view(v, s.seqlen_k, s.num_heads_kv, s.head_dim_v);
    args.out = device_view(out, s.seqlen_q, s.num_heads_q, s.head_dim_v);
    args.lse = lse;
    args.dout = device_view(dout, s.seqlen_q, s.num_heads_q, s.head_dim_v);
    args.dq = device_view(dq, s.seqlen_q, s.num_heads_q, s.head_dim);
    args.dk = device_view(dk, s.seqlen_k, s.num_heads_kv, s.head_dim);
    args.dv = device_view(dv, s.seqlen_k, s.num_heads_kv, s.head_dim_v);
    args.options.deterministic = deterministic != 0;
    kBackend.backward(*prepared->slot, args, stream);
  });
}

}  // extern "C"
