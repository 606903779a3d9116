# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Measures both passes where the query heads of a K/V head are no power of two, beside the next power of two.

Each ratio is compared twice: with as many K/V heads, whose calls are longer, and with as many query heads, whose calls
do the same work. All of one length and head dim run in one process as CUDA graphs, in turns of random order. Prints
CSV: TFLOP/s by visible area, and what share of the rates of the next power of two that is. Needs a Hopper GPU, torch
and the package tangram.

    python benchmarks/attn/gqa_ratios.py                                 # causal, head dims 64 and 128, two minutes
    python benchmarks/attn/gqa_ratios.py --rows 2048 --head-dims 64 --ratios 5
"""

import argparse

import torch
from head_masks import Calls, graph_of
from turns import take_turns

import tangram

ROUNDS = 5
KV_HEADS = {3: 8, 5: 8, 6: 8, 7: 8, 12: 4}  # of a ratio; as many query heads with the next power of two: see shapes_of


def next_power(ratio):
    return 1 << (ratio - 1).bit_length()


def shapes_of(ratio):
    """(query heads, K/V heads): of the ratio, and of the next power of two with as many K/V and query heads."""
    kv_heads, power = KV_HEADS[ratio], next_power(ratio)
    return (ratio * kv_heads, kv_heads), (power * kv_heads, kv_heads), (ratio * kv_heads, ratio * kv_heads // power)


def calls_of(rows, heads_q, heads_kv, head_dim, mask, backend):
    """Graphs of both passes."""
    heads = tangram.HeadConfig(heads_q, heads_kv, head_dim, head_dim, "bfloat16")
    calls = Calls(mask, heads, rows, rows, backend)
    graphs = {
        "forward": graph_of([calls], Calls.forward),
        "backward": graph_of([calls], lambda call: call.backward(False)),
    }
    return calls, graphs


def measure(rows, head_dim, ratios):
    """{pass: {(query heads, K/V heads): TFLOP/s}}"""
    mask, backend = tangram.Mask.causal(rows), tangram.Backend("sm90")
    shapes = dict.fromkeys(shape for ratio in ratios for shape in shapes_of(ratio))
    made = {shape: calls_of(rows, *shape, head_dim, mask, backend) for shape in shapes}
    rates = {}
    for name, products in (("forward", 2), ("backward", 5)):
        times = take_turns({shape: graphs[name].replay for shape, (_, graphs) in made.items()}, ROUNDS)
        rates[name] = {shape: 2 * products * mask.area * shape[0] * head_dim / ms / 1e9 for shape, ms in times.items()}
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="2048,4096,8192")
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--ratios", default=",".join(map(str, KV_HEADS)))
    args = parser.parse_args()
    rows, head_dims, ratios = ([int(x) for x in text.split(",")] for text in (args.rows, args.head_dims, args.ratios))

    torch.manual_seed(0)
    machine = torch.cuda.get_device_name().replace(" ", "_")
    print(
        "machine,head_dim,rows,ratio,heads_q,heads_kv,pass,tflops,of_next_power_same_kv_heads,of_next_power_same_work"
    )
    for head_dim in head_dims:
        for count in rows:
            rates = measure(count, head_dim, ratios)
            for ratio in ratios:
                shape, same_kv, same_work = shapes_of(ratio)
                for name, of_shape in rates.items():
                    rate = of_shape[shape]
                    shares = f"{rate / of_shape[same_kv]:.3f},{rate / of_shape[same_work]:.3f}"
                    before = f"{machine},{head_dim},{count},{ratio},{shape[0]},{shape[1]}"
                    print(f"{before},{name},{rate:.0f},{shares}", flush=True)


if __name__ == "__main__":
    main()
