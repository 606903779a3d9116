# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What every rank of a group checks; distributed_test.py starts the ranks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402

import tangram  # noqa: E402
from ranks.compiled_checks import check_compiled, check_compiled_steps  # noqa: E402
from ranks.device_checks import check_as_device  # noqa: E402
from ranks.key_checks import (  # noqa: E402
    check_bytes_of_keys,
    check_errors,
    check_keys,
    check_keys_are_hard_to_misuse,
    check_refusals,
)
from ranks.large_checks import check_large_logits  # noqa: E402
from ranks.published_checks import check_published  # noqa: E402
from ranks.row_checks import (  # noqa: E402
    check_bytes_of_a_key,
    check_labels,
    check_positions_of_padded_rows,
    check_rows,
    check_rows_of_any_kind,
)
from ranks.step_checks import (  # noqa: E402
    DIM,
    HEADS,
    HEADS_KV,
    RANGES,
    check_cross,
    check_head_masks,
    check_hybrid,
    check_padding,
    check_step,
    check_strategies,
    flex_key,
    whole,
)
from ranks.value_checks import check_collectives  # noqa: E402
from tangram import DistAttnConfig, MovementConfig, OverlapConfig, _rendezvous  # noqa: E402


def check_death(how):
    """A rank that stops answering is named by the others at the deadline, one that dies at once."""
    key = flex_key(RANGES, 150, None)
    shards = [tangram.dispatch(x, key) for x in whole(150, 1)]
    out, _ = tangram.calc_attn(*shards, key)
    if dist.get_rank() == 1:
        if how == "silence":
            time.sleep(10)
        os._exit(0)
    started = time.monotonic()
    try:
        out.sum().backward()
    except tangram.Timeout as error:
        assert how == "silence" and 3.5 < time.monotonic() - started < 9.5, error
        assert isinstance(error, TimeoutError) and isinstance(error, RuntimeError)
        assert "rank 1" in str(error) and "grad" in str(error) or "stage" in str(error), error
    except tangram.CommError as error:
        assert how == "kill" and time.monotonic() - started < 20, error  # the deadline is 30 s
        assert "rank 1" in str(error) and isinstance(error, RuntimeError), error
    else:
        raise AssertionError("the backward pass of a single rank came to an end")
    print(f"rank {dist.get_rank()} saw it", flush=True)


def check_missing_peer():
    """The first key is where ranks meet."""
    if dist.get_rank() == 1:
        time.sleep(3)
        os._exit(0)
    try:
        flex_key(RANGES, 150, None)
    except tangram.Timeout as error:
        assert "must make its first key" in str(error) and "of rank 1 on rank 0" in str(error), error
    else:
        raise AssertionError("made a key alone")
    print("rank 0 saw it", flush=True)


def main():
    dist.init_process_group("gloo")
    if sys.argv[1] in ("silence", "kill"):
        check_death(sys.argv[1])
        os._exit(0)
    if sys.argv[1] == "hosts":
        # Simulates a host for each rank: they meet at a port of rank 0.
        rank = dist.get_rank()
        _rendezvous._host_id = lambda: f"host {rank}"
        check_step(dist.group.WORLD)
        check_rows(dist.group.WORLD)
        dist.barrier()
        dist.destroy_process_group()
        return
    if sys.argv[1] == "published":
        check_published(dist.group.WORLD)
        dist.barrier()
        dist.destroy_process_group()
        return
    if sys.argv[1] == "values":
        check_collectives("cpu", dist.group.WORLD)
        check_positions_of_padded_rows(dist.group.WORLD)
        check_large_logits(dist.group.WORLD)
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        check_large_logits(alone[dist.get_rank()])
        dist.barrier()
        dist.destroy_process_group()
        return
    if sys.argv[1] == "alone":
        check_missing_peer()
        os._exit(0)
    world = dist.group.WORLD
    check_keys(None)
    check_bytes_of_keys(None)
    check_rows(world)
    check_step(world)
    check_step(world, softcap=2.0, sink=True)
    check_step(world, DistAttnConfig(overlap=OverlapConfig(2, 2, keep_remote_kv=True)))
    check_step(world, DistAttnConfig(movement=MovementConfig("qo", head_groups=HEADS_KV)), softcap=2.0, sink=True)
    keeps = OverlapConfig(keep_remote_kv=True)
    check_step(world, DistAttnConfig(overlap=keeps, movement=MovementConfig("qo", head_groups=1)))
    check_step(world, dtype=torch.bfloat16)
    for head_dims in ((192, 128), (80, 80), (256, 256)):
        check_step(world, head_dims=head_dims)
    check_hybrid(world)
    check_head_masks(world)
    check_errors(world)
    check_compiled(world)
    check_compiled_steps(world)
    check_cross(world)
    check_labels(world)
    check_padding(world)
    check_rows_of_any_kind(world)
    check_bytes_of_a_key(world)
    check_refusals(world)
    check_keys_are_hard_to_misuse(world)
    check_as_device(world)
    check_strategies(world)
    check_published(world)
    if dist.get_world_size() == 4:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        check_step(mesh["cp"].get_group())  # two groups at once
        check_step(mesh["dp"].get_group())
        flat = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
        for whole_mesh in (mesh["cp"], flat, mesh):
            key = tangram.mask_key(tangram.Mask.causal(64), HEADS, HEADS_KV, DIM, whole_mesh)
            assert key.cp_size == whole_mesh.size() and tangram.get_most_recent_key(whole_mesh) is key
            x = torch.arange(64)
            assert torch.equal(tangram.undispatch(tangram.dispatch(x, key), key), x)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
