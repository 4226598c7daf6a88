# SPDX-License-Identifier: MIT
"""zero_copy: views stay what they are as long as they live, and cost the ring a slot."""
import errno
import gc
import threading

import loaderd
import numpy
import pytest
from conftest import is_running, wait_gone


def test_views_are_read_only_and_stay(make, records):
    loader = make(zero_copy=True, shuffle=True, fields=["id", "image"])
    previous = None
    for _ in range(3):
        for ids, images in loader:
            assert not images.flags.writeable and not images.flags.owndata
            with pytest.raises(ValueError):
                images[0] = 0
            assert numpy.array_equal(images, records.images[ids])
            if previous is not None:  # still held while the loop asked for this one
                assert numpy.array_equal(previous[1], records.images[previous[0]])
            previous = ids, images[:, 1:]
            previous = ids, images


def test_a_slice_holds_the_batch(make, records):
    loader = make(zero_copy=True, fields=["image"], held=3)
    iterator = iter(loader)
    kept = next(iterator)[0][3, :, 2:4]
    for _ in range(len(loader) - 1):
        next(iterator)
    assert numpy.array_equal(kept, records.images[3, :, 2:4])


def test_too_many_held(make, records):
    loader = make(zero_copy=True, slots=4)
    kept, iterator = [], iter(loader)
    with pytest.raises(loaderd.LoaderdError, match="still referred to") as e:
        for batch in iterator:
            kept.append(batch)
    assert e.value.errno == errno.EBUSY
    assert len(kept) == 4
    expected = kept[1][1].copy()
    kept[0] = None  # the loop may go on
    gc.collect()
    assert numpy.array_equal(kept[1][1], expected)
    assert numpy.array_equal(next(iterator)[0], records.ids[32:40] if len(records.ids) >= 40 else
                             numpy.concatenate([records.ids[32:], records.ids[:3]]))


def test_views_outlive_close(make, records):
    loader = make(zero_copy=True)
    ids, images, _ = next(iter(loader))
    pid = loader.daemon_pid
    loader.close()
    assert is_running(pid)  # the session lives as long as its memory is looked at
    assert numpy.array_equal(images, records.images[:8])
    del ids, images, _
    gc.collect()
    assert wait_gone(pid)


def test_views_dropped_in_another_thread(make, records):
    loader = make(zero_copy=True, shuffle=True, fields=["id", "image"], held=4)
    queue, stop = [], threading.Event()

    def drop():
        while not stop.is_set() or queue:
            if queue:
                ids, images = queue.pop(0)
                assert numpy.array_equal(images, records.images[ids])
                del ids, images

    thread = threading.Thread(target=drop)
    thread.start()
    for _ in range(20):
        for batch in loader:
            queue.append(batch)
            while len(queue) > 2:
                pass
    del batch
    stop.set()
    thread.join()
    assert loader._session._leases == 0 or (gc.collect() >= 0 and loader._session._leases == 0)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_dropped_loader_ends_at_once(records, zero_copy):
    loader = loaderd.Loader(records.path, batch_size=8, verbose=False, keys=records.keys, zero_copy=zero_copy)
    gc.collect()
    gc.disable()
    try:
        for batch in loader:
            break
        pid = loader.daemon_pid
        del loader, batch
        assert wait_gone(pid)
    finally:
        gc.enable()


def test_large_copies_reuse_their_memory():
    with loaderd.Loader("synthetic:64x3x300x300:f32", batch_size=8, verbose=False, fields=["image"]) as loader:
        addresses = set()
        kept = next(iter(loader))[0]
        checksum = kept.sum()
        for _ in range(2):
            for (x,) in loader:
                assert x.ctypes.data != kept.ctypes.data
                addresses.add(x.ctypes.data)
        assert len(addresses) <= 4 and kept.sum() == checksum
