# SPDX-License-Identifier: MIT
"""Epochs, lengths, last batches, and going on from a checkpoint at the very next batch."""
import json

import loaderd
import numpy
import pytest
from conftest import N


def ids_of(batches):
    return [batch[0].tolist() for batch in batches]


def test_each_iter_is_the_next_epoch(make):
    loader, other = make(shuffle=True), make(shuffle=True)
    epochs = [ids_of(loader) for _ in range(3)]
    assert loader.epoch == 2 and len(loader) == N // 8 == len(epochs[0])
    assert epochs[0] != epochs[1] != epochs[2]
    for epoch in (2, 0, 1, 1):  # any of them, in any order
        other.set_epoch(epoch)
        assert ids_of(other) == epochs[epoch]
    assert ids_of(other) == epochs[2]
    other.sampler.set_epoch(0)
    assert ids_of(other) == epochs[0]
    seen = numpy.concatenate([numpy.ravel(e) for e in epochs[:1]])
    assert len(set(seen)) == len(seen) == 8 * (N // 8)


def test_a_broken_off_epoch(make):
    reference = make(shuffle=True)
    epochs = [ids_of(reference) for _ in range(4)]
    loader = make(shuffle=True)
    first = next(iter(loader))[0].tolist()
    assert first == epochs[0][0]
    for i, batch in enumerate(loader):
        assert batch[0].tolist() == epochs[1][i]
        if i == len(loader) - 1:
            break  # behind the last batch, before the end was asked for
    assert ids_of(loader) == epochs[2]
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(1)
    assert ids_of(loader) == epochs[1]
    with pytest.raises(loaderd.LoaderdError, match="newer iterator"):
        next(iterator)


def test_a_finished_iterator_stays_finished(make):
    loader = make()
    iterator = iter(loader)
    assert len(list(iterator)) == len(loader)
    assert list(iterator) == []
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("arguments, sizes, valid", [
    ({"last": "drop"}, [8] * 4, [8] * 4),
    ({"drop_last": True}, [8] * 4, [8] * 4),
    ({"last": "keep"}, [8] * 4 + [5], [8] * 4 + [5]),
    ({"drop_last": False}, [8] * 4 + [5], [8] * 4 + [5]),
    ({"last": "pad"}, [8] * 5, [8] * 4 + [5]),
    ({}, [8] * 5, [8] * 4 + [5]),
    ({"shuffle": True}, [8] * 4, [8] * 4)])
def test_last(make, arguments, sizes, valid):
    loader = make(with_valid=True, **arguments)
    assert len(loader) == len(sizes)
    assert loader.drop_last == (len(sizes) == 4)
    found = []
    for ids, images, labels, mask in loader:
        assert len(ids) == len(images) == len(labels) == len(mask)
        assert mask.dtype == bool and numpy.array_equal(mask, loader.valid)
        assert numpy.array_equal(mask, loader.rows["status"] & loaderd.ROW_PADDING == 0)
        found.append((len(ids), int(mask.sum())))
    assert found == list(zip(sizes, valid))


def test_valid_counts_each_sample_once_over_all_ranks(make):
    seen = []
    for rank in range(3):
        for ids, *_, mask in make(batch_size=4, rank=rank, world_size=3, with_valid=True):
            seen += ids[mask].tolist()
    assert sorted(seen) == list(range(N))


def test_epochs_are_counted(make):
    loader = make(epochs=2)
    assert len(list(loader)) == len(list(loader)) == len(loader)
    with pytest.raises(loaderd.LoaderdError, match="epochs=2"):
        iter(loader)
    loader.set_epoch(1)
    assert len(list(loader)) == len(loader)
    loader.set_epoch(2)
    with pytest.raises(loaderd.LoaderdError, match="0 to 1"):
        iter(loader)


def through(loader, epochs):
    """(epoch, ids) of all batches to the end of `epochs`, the state before each."""
    batches, states = [], [loader.state_dict()]
    while loader.state_dict()["epoch"] < epochs:
        for batch in loader:
            batches.append((loader.epoch, batch[0].tolist()))
            states.append(loader.state_dict())
    return batches, states


def test_resume_is_exact_at_every_step(make):
    batches, states = through(make(shuffle=True, seed=9), 2)
    assert (states[0]["epoch"], states[0]["step"]) == (0, 0)
    for at, state in enumerate(states):
        loader = make(shuffle=True, seed=9)
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict() == state
        rest, _ = through(loader, 2)
        assert rest == batches[at:]
        loader.close()


def test_resume_and_set_epoch(make):
    """A loop that calls set_epoch() for the epoch that it resumes in."""
    batches, states = through(make(shuffle=True), 2)
    loader = make(shuffle=True)
    loader.load_state_dict(states[2])
    found = []
    for epoch in range(loader.epoch, 2):
        loader.set_epoch(epoch)
        found += [(epoch, batch[0].tolist()) for batch in loader]
    assert found == batches[2:]
    loader.load_state_dict(states[2])  # in the same process: back again
    assert next(iter(loader))[0].tolist() == batches[2][1]
    loader.load_state_dict(states[2])
    loader.set_epoch(1)  # another epoch: from its beginning
    assert next(iter(loader))[0].tolist() == batches[len(loader)][1]


def test_resume_with_another_world_size(make):
    one = make(shuffle=True, batch_size=8)
    batches, states = through(one, 1)
    halves = []
    for rank in range(2):
        loader = make(shuffle=True, batch_size=4, rank=rank, world_size=2)
        loader.load_state_dict(states[2])
        halves.append(ids_of(loader))
    assert [a + b for a, b in zip(*halves)] == [ids for _, ids in batches[2:]]


def test_states_of_other_data_are_refused(make):
    state = make(shuffle=True).state_dict()
    for arguments in ({"batch_size": 4}, {"shuffle": False}, {"dtype": "f32"}):
        loader = make(**{"shuffle": True, **arguments})
        loader.load_state_dict(state)
        with pytest.raises(loaderd.LoaderdError):
            iter(loader)
    with pytest.raises(loaderd.LoaderdError, match="version"):
        make().load_state_dict({"version": 2})


def test_a_state_is_refused_by_an_open_loader_too(make):
    state = make(shuffle=True, seed=3).state_dict()
    loader = make(shuffle=False)
    list(loader)
    loader.load_state_dict(state)
    with pytest.raises(loaderd.LoaderdError):
        iter(loader)


def test_closed_and_used_again(make):
    reference = make(shuffle=True)
    epochs = [ids_of(reference) for _ in range(2)]
    with make(shuffle=True) as loader:
        iterator = iter(loader)
        found = [next(iterator)[0].tolist()]
        loader.close()
        found += ids_of(iterator)
        assert found == epochs[0]
        loader.close()
        assert ids_of(loader) == epochs[1]


def test_attributes_that_loops_ask_for(make):
    loader = make(shuffle=True)
    assert loader.batch_size == 8 and loader.num_workers == 0 and loader.drop_last
    assert len(loader.dataset) == N and len(loader.sampler) == 8 * (N // 8)
    assert loader.batch_sampler is None and loader.pin_memory is False
    assert (loader.rank, loader.world_size) == (0, 1)
    with pytest.raises(TypeError):
        loader.dataset[0]
    list(loader)
    assert loader.statistics()["batches"] >= len(loader)
