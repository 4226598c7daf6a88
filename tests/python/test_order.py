# SPDX-License-Identifier: MIT
"""Orders that the trainer says (supply), and trainers that share one ring (group)."""
import errno
import threading

import loaderd
import numpy
import pytest
from conftest import N


def ids_of(loader):
    return [batch["id"].tolist() for batch in loader]


def test_an_explicit_order(make, records):
    order = numpy.random.RandomState(3).randint(0, N, 50)
    loader = make(shuffle="explicit", as_dict=True)
    loader.supply(order[:10])
    loader.supply(order[10:].tolist())
    loader.end_supply()
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    found = list(loader)
    assert [len(b["id"]) for b in found] == [8] * 6 + [2]
    ids = numpy.concatenate([b["id"] for b in found])
    assert numpy.array_equal(ids, order)
    for batch in found:
        assert numpy.array_equal(batch["image"], records.images[batch["id"]])
        assert numpy.array_equal(batch["label"], records.labels[batch["id"]])


def test_more_ids_than_there_is_room_for(make):
    order = numpy.arange(40000) * 7 % N  # hundreds of rings full
    loader = make(shuffle="explicit", as_dict=True, fields=["id"])
    loader.supply(order)
    loader.end_supply()
    assert numpy.array_equal(numpy.concatenate([b["id"] for b in loader]), order)


def test_ids_within_the_loop(make):
    loader = make(shuffle="explicit", as_dict=True)
    loader.supply(range(8))
    found = []
    for batch in loader:  # each batch says which comes next
        found.append(batch["id"].tolist())
        if len(found) == 20:
            break
        loader.supply((batch["id"].astype(numpy.int64) + 8) % N)
    assert found == [[(8 * n + i) % N for i in range(8)] for n in range(20)]


def test_what_cannot_be_supplied(make):
    for ids in ([-1], [0.5], [[1, 2]], ["a"]):
        with pytest.raises(loaderd.LoaderdError, match="non-negative integers") as e:
            make(shuffle="explicit").supply(ids)
        assert e.value.errno == errno.EINVAL
    with pytest.raises(loaderd.LoaderdError) as e:  # the order is another one
        make(shuffle=True).supply([1])
    assert e.value.errno == errno.EINVAL
    loader = make(shuffle="explicit")
    loader.supply([N] * 8)
    with pytest.raises(loaderd.LoaderdError, match=str(N)) as e:
        next(iter(loader))
    assert e.value.errno == errno.EINVAL
    loader = make(shuffle="explicit")
    loader.end_supply()
    with pytest.raises(loaderd.LoaderdError, match="end_supply"):
        loader.supply([1])


def test_a_group_shares_one_ring(make):
    alone = ids_of(make(shuffle=True, as_dict=True))
    members = [make(shuffle=True, as_dict=True, group="trial:3", job="group") for _ in range(3)]
    found = [None] * 3

    def train(i):
        found[i] = ids_of(members[i])

    threads = [threading.Thread(target=train, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [alone] * 3
    assert len({m._session.daemon_pid for m in members}) == 1


def test_a_group_that_is_none(make):
    with pytest.raises(loaderd.LoaderdError, match="group") as e:
        len(make(group="trial"))
    assert e.value.errno == errno.EINVAL
