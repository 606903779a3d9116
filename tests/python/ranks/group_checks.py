# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Groups of torch.distributed that come, go, and share their ranks; groups_test.py starts the ranks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import tangram
from tangram import _torch_group

TOTAL = 64
ADDRESS = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
WAIT_S = 60.0


def key_of(group, total=TOTAL):
    return tangram.mask_key(tangram.Mask.causal(total), 2, 2, 8, group, chunk_size=8)


def check_rows(group, number):
    """Rows of this group alone come back."""
    x = torch.arange(TOTAL) + 1000 * number
    for _ in range(5):
        key = key_of(group)
        assert torch.equal(tangram.undispatch(tangram.dispatch(x, key), key), x), (number, dist.get_rank())


def wait_for(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_threads_in_another_order():
    """Groups over the same ranks, each used by its own thread: the first on one rank is the last on the other."""
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    begun = [threading.Event() for _ in groups]
    make = _torch_group.TorchGroup.__init__
    errors = []

    def noted(self, *arguments):
        begun[int(threading.current_thread().name)].set()
        make(self, *arguments)

    def use(number):
        try:
            check_rows(groups[number], number)
        except BaseException as error:
            errors.append(error)

    _torch_group.TorchGroup.__init__ = noted
    threads = [threading.Thread(target=use, args=(i,), name=str(i)) for i in range(len(groups))]
    order = range(len(groups)) if dist.get_rank() == 0 else reversed(range(len(groups)))
    for number in order:
        threads[number].start()
        assert begun[number].wait(WAIT_S)
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    _torch_group.TorchGroup.__init__ = make
    assert not errors, errors


def check_one_group_by_two_threads():
    """Both wait for one meeting."""
    group = dist.new_group([0, 1])
    groups = []
    threads = [threading.Thread(target=lambda: groups.append(_torch_group.torch_group(group))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(groups) == 2 and groups[0] is groups[1]


def check_names_of_one_group():
    """None, the group of all ranks, and a mesh of one dimension over it are one group; every other is its own."""
    world = dist.group.WORLD
    key = key_of(None)
    assert key_of(world) is key and tangram.get_most_recent_key(world) is key
    flat = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    assert key_of(flat).group is _torch_group.torch_group(flat.get_group())
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "cp"))
    other = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "cp"))
    again = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "cp"))
    made = [key_of(g) for g in (mesh, other, again, mesh["cp"], other["dp"])]
    assert len({id(each.group) for each in (key, *made[:3])}) == 4
    assert key_of(mesh) is made[0] and key_of(mesh["dp", "cp"]) is made[0]
    assert key_of(mesh["cp"].get_group()) is made[3]
    for number, each in enumerate((mesh, other, again)):
        check_rows(each, number)
    alone = key_of(mesh["dp"])
    assert alone.cp_size == 1


def check_destroyed_groups():
    for number in range(3):
        group = dist.new_group([0, 1])
        check_rows(group, number)
        key = key_of(group)
        known = len(_torch_group._groups)
        dist.destroy_process_group(group)
        try:
            key_of(group)
        except tangram.InvalidArgument as error:
            assert "(got one that is destroyed)" in str(error), error
        else:
            raise AssertionError("made a key for a group that is gone")
        key_of(None)
        assert len(_torch_group._groups) < known
        del key
    only = dist.new_group([0])
    try:
        assert key_of(only).cp_size == 1 and dist.get_rank() == 0
    except tangram.InvalidArgument as error:
        assert "got rank 1" in str(error) and dist.get_rank() == 1, error


def check_fresh_peer(folder):
    """Rank 0 lives on; its peers are fresh processes, each of which takes part in one life of torch.distributed."""
    number = int(os.environ["RANK"])
    for life in range(1, 3):
        if number not in (0, life):
            if number > life:  # not before its turn
                wait_for(Path(folder, f"over{life}").exists)
            continue
        dist.init_process_group("gloo", init_method=ADDRESS, rank=min(number, 1), world_size=2)
        check_rows(None, life)
        check_rows(dist.group.WORLD, life)
        check_rows(dist.new_group([0, 1]), life)
        dist.barrier()
        ended = Path(folder, f"ended{life}{number}")
        ended.touch()
        wait_for(Path(folder, f"ended{life}{life - number}").exists)
        world = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        assert world() is None  # with it its store, which the next life would find
        if number == 0:
            Path(folder, f"over{life}").touch()


def check_stopped_host(folder):
    """Rank 0, which hosts the store, is stopped before the first key: the others end in time and name it."""
    dist.init_process_group("gloo")
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    rank = dist.get_rank()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    wait_for(lambda: Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
    started = time.monotonic()
    try:
        key_of(None)
    except tangram.Timeout as error:
        assert "which rank 0 of torch.distributed hosts" in str(error), error
        assert 2.9 < time.monotonic() - started < 10, error
    else:
        raise AssertionError("met without rank 0")
    print(f"rank {rank} saw it", flush=True)
    Path(folder, f"saw{rank}").touch()
    if rank == 1:
        wait_for(lambda: all(Path(folder, f"saw{r}").exists() for r in range(1, len(pids))))
        os.kill(pids[0], signal.SIGCONT)
    os._exit(0)


def main():
    if sys.argv[1] == "stopped":
        check_stopped_host(sys.argv[2])
    if sys.argv[1] == "fresh":
        check_fresh_peer(sys.argv[2])
        return
    dist.init_process_group("gloo")
    check_threads_in_another_order()
    check_one_group_by_two_threads()
    check_names_of_one_group()
    check_destroyed_groups()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
