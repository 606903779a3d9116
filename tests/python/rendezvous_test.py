# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""How ranks meet through a store, which may hold what earlier meetings left. Ranks are threads here."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402

from tangram import CommError, Timeout  # noqa: E402
from tangram import _rendezvous as rendezvous  # noqa: E402
from tangram._rendezvous import Circle  # noqa: E402

LONG_S = 30.0


def meet_in_circle(store, ranks, rank, limit_s=LONG_S, folder="/nowhere"):
    return rendezvous.meet("group 'g'", ranks, rank, [Circle(store, rank, range(len(ranks)))], store, limit_s, folder)


def meet_in_mesh(stores, base, shape, rank, limit_s=LONG_S):
    """stores[dim][line]: of each process group."""
    rows, columns = shape
    row, column = divmod(rank, columns)
    circles = [
        Circle(stores[0][column], row, [r * columns + column for r in range(rows)]),
        Circle(stores[1][row], column, [row * columns + c for c in range(columns)]),
    ]
    return rendezvous.meet("the mesh", range(rows * columns), rank, circles, base, limit_s, "/nowhere")


def all_ranks(count, call):
    with ThreadPoolExecutor(count) as pool:
        return [future.result(timeout=60) for future in [pool.submit(call, rank) for rank in range(count)]]


@pytest.fixture(params=["hash", "file"])
def store(request, tmp_path):
    if request.param == "hash":
        return dist.HashStore()
    return dist.FileStore(str(tmp_path / "store"), -1)


def test_ranks_meet_again_in_a_store_that_holds_an_earlier_meeting(store):
    """Happens after destroy_process_group and init_process_group with a fresh peer and the old store."""
    places = set()
    for _ in range(3):
        met = all_ranks(3, lambda rank: meet_in_circle(store, [4, 5, 6], rank))
        assert len({(each.address, each.secret) for each in met}) == 1
        assert all(0 < each.rest_s <= LONG_S for each in met)
        places.add(met[0].secret)
    assert len(places) == 3


def test_a_rank_that_never_comes_is_named_and_ranks_meet_at_the_next_attempt():
    store = dist.HashStore()

    def attempt(rank):
        with pytest.raises(Timeout, match=r"group 'g' must make its first key .*no answer of rank 9 on rank [78] in"):
            meet_in_circle(store, [7, 8, 9], rank, limit_s=2)

    all_ranks(2, attempt)
    assert len(set(each.secret for each in all_ranks(3, lambda rank: meet_in_circle(store, [7, 8, 9], rank)))) == 1


def test_a_rank_that_is_interrupted_ends_the_meeting_of_all_and_they_can_meet_again(monkeypatch):
    store = dist.HashStore()
    both_are_here = threading.Barrier(2)  # with the token, which rank 0 gives on as long as they have not arrived
    attempts = threading.local()

    def host_id():
        if getattr(attempts, "rank", None):
            both_are_here.wait(60)
            if attempts.rank == 1:
                raise KeyboardInterrupt
        return "host"

    monkeypatch.setattr(rendezvous, "_host_id", host_id)

    def attempt(rank):
        attempts.rank = rank
        with pytest.raises(KeyboardInterrupt if rank == 1 else CommError) as error:
            meet_in_circle(store, [0, 1, 2], rank, folder="/")
        assert rank == 1 or "(got KeyboardInterrupt on rank 1)" in str(error.value)
        attempts.rank = None

    all_ranks(3, attempt)
    met = all_ranks(3, lambda rank: meet_in_circle(store, [0, 1, 2], rank, folder="/"))
    assert {each.address for each in met} == {"unix:/"}


def test_the_port_listens_before_it_is_given_out_and_nodes_are_told():
    """A port that was found free and closed again could be taken by another process meanwhile."""
    store = dist.HashStore()
    met = all_ranks(2, lambda rank: meet_in_circle(store, [0, 1], rank))
    assert [each.listener >= 0 for each in met] == [True, False]
    host, port = met[1].address.removeprefix("tcp:").split(":")
    listener = socket.socket(fileno=met[0].listener)
    with listener, socket.create_connection((host, int(port)), timeout=10) as caller:
        assert listener.accept()[1] == caller.getsockname()
    assert [node.name for node in met[0].nodes] == [socket.gethostname()] * 2 and met[0].nodes == met[1].nodes


def test_who_waits_for_long_says_for_whom(monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_NOTE_S", 0.2)
    with pytest.raises(Timeout):
        meet_in_circle(dist.HashStore(), [4, 6], 0, limit_s=1)
    assert [record.getMessage() for record in caplog.records] == [
        "tangram: rank 4 waits for rank 6, to make the first key of group 'g'"
    ]


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 2), (2, 3)])
def test_ranks_of_a_mesh_meet_by_the_groups_of_its_dimensions(shape):
    base = dist.HashStore()
    rows, columns = shape
    stores = [[dist.PrefixStore(f"{d}{i}", base) for i in range(n)] for d, n in enumerate((columns, rows))]
    for _ in range(2):
        met = all_ranks(rows * columns, lambda rank: meet_in_mesh(stores, base, shape, rank))
        assert len({(each.address, each.secret) for each in met}) == 1


def test_meetings_of_two_groups_at_once_do_not_mix():
    base = dist.HashStore()
    stores = [dist.PrefixStore(name, base) for name in "ab"]

    def both(rank):
        """Two threads, begun in another order on another rank."""
        order = stores if rank == 0 else stores[::-1]
        with ThreadPoolExecutor(2) as pool:
            met = list(pool.map(lambda store: meet_in_circle(store, [0, 1], rank).secret, order))
        return met if rank == 0 else met[::-1]

    first, second = all_ranks(2, both)
    assert first == second and first[0] != first[1]


def test_a_store_that_does_not_answer_is_a_timeout_that_names_its_host(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    answers = threading.Event()

    class Stuck:
        host, port = store.host, store.port

        def set(self, key, value):
            answers.wait()

    try:
        circle = Circle(Stuck(), 1, [0, 1])
        with pytest.raises(Timeout, match=r"which rank 0 of torch.distributed hosts at 127.0.0.1:\d+, must answer"):
            rendezvous.meet("group 'g'", [0, 1], 1, [circle], Stuck(), 1, "")
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        with pytest.raises(Timeout, match="which the launcher hosts at"):
            rendezvous.meet("group 'g'", [0, 1], 1, [circle], dist.PrefixStore("a", store), 1, "")
    finally:
        answers.set()


def test_a_store_that_fails_is_an_error_of_communication():
    class Broken:
        def set(self, key, value):
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(CommError, match=r"store of torch.distributed must work .*\(got Connection reset by peer\)"):
        rendezvous.meet("group 'g'", [0, 1], 1, [Circle(Broken(), 1, [0, 1])], Broken(), LONG_S, "")
