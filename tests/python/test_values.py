# SPDX-License-Identifier: MIT
"""What arrives is what numpy reads from the files."""
import os
import pathlib
import zlib

import loaderd
import numpy
import pytest
from pictures import HEIGHT, PICTURES, WIDTH

MEAN = numpy.array([0.485, 0.456, 0.406], numpy.float32).reshape(1, 3, 1, 1)
STD = numpy.array([0.229, 0.224, 0.225], numpy.float32).reshape(1, 3, 1, 1)


def test_raw_records_and_labels(make, records):
    start = 0
    for ids, images, labels in make(last="keep"):
        rows = slice(start, start + len(ids))
        assert numpy.array_equal(ids, records.ids[rows]) and ids.dtype == numpy.uint32
        assert numpy.array_equal(images, records.images[rows]) and images.dtype == numpy.uint8
        assert numpy.array_equal(labels, records.labels[rows]) and labels.dtype == numpy.int64
        start += len(ids)
    assert start == len(records.ids)


def test_arrays_are_copies(make, records):
    loader = make()
    batches = list(loader)
    assert all(b[1].flags.writeable for b in batches)
    batches[0][1][:] = 0  # hurts nobody
    assert numpy.array_equal(batches[1][1], records.images[8:16])


@pytest.mark.parametrize("layout, dims, contiguous", [
    ("channels_last", (8, 3, 8, 8), False), ("nchw", (8, 3, 8, 8), True), ("nhwc", (8, 8, 8, 3), True)])
def test_layouts(make, records, layout, dims, contiguous):
    loader = make(layout=layout)
    assert loader.shapes["image"] == ("u8", dims)
    image = next(iter(loader))[1]
    assert image.shape == dims and image.flags.c_contiguous == contiguous
    if layout == "channels_last":
        assert image.transpose(0, 2, 3, 1).flags.c_contiguous
    expected = records.images[:8]
    assert numpy.array_equal(image, expected.transpose(0, 2, 3, 1) if layout == "nhwc" else expected)


@pytest.mark.parametrize("layout", ["channels_last", "nchw"])
def test_floats(make, records, layout):
    image = next(iter(make(dtype="f32", layout=layout)))[1]
    assert image.dtype == numpy.float32
    assert numpy.abs(image - records.images[:8].astype(numpy.float64) / 255).max() < 1e-7
    image = next(iter(make(normalize="imagenet", layout=layout)))[1]
    assert numpy.abs(image - (records.images[:8] / numpy.float32(255) - MEAN) / STD).max() < 1e-5
    half = next(iter(make(normalize=(MEAN.ravel(), STD.ravel()), dtype=numpy.float16, layout=layout)))[1]
    assert half.dtype == numpy.float16 and numpy.array_equal(half, image.astype(numpy.float16))


def test_bfloat16_needs_a_type(make):
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(loaderd.LoaderdError, match="ml_dtypes"):
            iter(make(dtype="bf16"))
        return
    assert next(iter(make(dtype="bf16")))[1].dtype == ml_dtypes.bfloat16


def test_fields(make, records):
    label, ids = next(iter(make(fields=["label", "id"])))
    assert numpy.array_equal(label, records.labels[:8]) and numpy.array_equal(ids, records.ids[:8])
    assert len(next(iter(make(drop=["id"])))) == 2
    batch = next(iter(make(as_dict=True, with_valid=True)))
    assert list(batch) == ["id", "image", "label", "valid"]
    with pytest.raises(loaderd.LoaderdError, match="no field 'pixels': there are id, image, label"):
        len(make(fields=["pixels"]))
    with pytest.raises(loaderd.LoaderdError, match="not both"):
        make(fields=["id"], drop=["id"])


def test_label_dtype(make, records):
    assert next(iter(make(label_dtype="i32")))[2].dtype == numpy.int32
    assert next(iter(make(label_dtype="i32", zero_copy=True)))[2].dtype == numpy.int32


def test_rows_tell_where_samples_come_from(make, records):
    loader = make(shuffle=True, seed=5)
    for ids, images, _ in loader:
        assert numpy.array_equal(loader.rows["sample"], ids)
        assert numpy.array_equal(images, records.images[ids])
    assert loader.rows["status"].max() == 0
    assert loader.dataset.path(3).endswith("records.bin#3")


def test_augment_is_a_function_of_seed_and_epoch(make):
    def images(seed):
        loader = make(shuffle=True, seed=seed, augment=["random-crop", "flip"], padding=2, image=8)
        return [[b[1].copy() for b in loader] for _ in range(2)]
    first, again, other = images(1), images(1), images(2)
    for a, b in zip(first, again):
        assert all(numpy.array_equal(x, y) for x, y in zip(a, b))
    assert not numpy.array_equal(first[0][0], first[1][0])
    assert not numpy.array_equal(first[0][0], other[0][0])


@pytest.fixture
def folder(tmp_path):
    for i, (_, data) in enumerate(PICTURES):
        (tmp_path / ("cat" if i < 2 else "dog")).mkdir(exist_ok=True)
        (tmp_path / ("cat" if i < 2 else "dog") / f"{i}.jpg").write_bytes(data)
    return tmp_path


def test_jpeg_folder(folder):
    with loaderd.Loader(folder, batch_size=4, image=(HEIGHT, WIDTH), augment="stretch", layout="nhwc", verbose=False,
                        keys={"workers": 1}) as loader:
        assert len(loader.dataset) == 4 and len(loader) == 1
        for image, label in loader:
            assert [zlib.crc32(row.tobytes()) for row in image] == [crc for crc, _ in PICTURES]
            assert label.tolist() == [0, 0, 1, 1]
            assert loader.rows["source_width"].tolist() == [WIDTH] * 4
        assert loader.dataset.path(2) == str(folder / "dog" / "2.jpg")


def test_a_path_object_is_a_path(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with loaderd.Loader(pathlib.Path(folder.name), batch_size=2, image=8, verbose=False) as loader:
        assert len(loader.dataset) == 4
    with pytest.raises(loaderd.LoaderdError) as e:
        len(loaderd.Loader("no-such-pipeline", verbose=False))
    assert "LOADERD_SOCKET" in str(e.value)


def test_npy_fields(tmp_path):
    a = numpy.arange(60, dtype=numpy.float64).reshape(10, 2, 3)
    numpy.save(tmp_path / "a.npy", a)
    numpy.save(tmp_path / "labels.npy", numpy.arange(10, dtype=numpy.int16))
    name = f"{tmp_path}/a.npy,{tmp_path}/labels.npy"
    with loaderd.Loader(name, batch_size=5, verbose=False) as loader:
        x, y = next(iter(loader))
        assert x.dtype == numpy.float64 and numpy.array_equal(x, a[:5])
        assert y.dtype == numpy.int64 and y.tolist() == [0, 1, 2, 3, 4]


def test_keys_are_checked_by_the_daemon(make, records):
    with pytest.raises(loaderd.LoaderdError, match="did you mean 'batch'"):
        len(make(bacth=3))
    with pytest.raises(loaderd.LoaderdError, match="flip-probability"):
        len(make(flip_probability=7))
    with pytest.raises(loaderd.LoaderdError, match="given twice"):
        make(batch=3)
    with pytest.raises(loaderd.LoaderdError, match="give both"):
        make(rank=0)
    with pytest.raises(loaderd.LoaderdError, match="rank 3 of 2"):
        len(make(rank=3, world_size=2))
    with pytest.raises(loaderd.LoaderdError, match="u8, f32, f16 or bf16"):
        make(dtype="int32")
    with pytest.raises(loaderd.LoaderdError, match="No such file") as e:
        len(loaderd.Loader(os.path.dirname(records.path) + "/nothing", verbose=False))
    import errno
    assert e.value.errno == errno.ENOENT


YOLO = pathlib.Path(__file__).parent.parent / "data" / "formats" / "boxes" / "yolo"


def test_undecoded_files():
    files = [(YOLO / "images" / "val" / f"{i}.jpg").read_bytes() for i in range(4)]
    with loaderd.Loader(str(YOLO / "images" / "val"), batch_size=4, bytes="image", bytes_cap="4K",
                        as_dict=True) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (4, 4096) and batch["image-length"].dtype == numpy.int32
    assert [bytes(f) for f in loaderd.ragged(batch["image"], batch["image-length"])] == files
    assert all(not row[len(f):].any() for row, f in zip(batch["image"], files))


def test_boxes_follow_what_the_row_says():
    """Edges in pixels of the row, by the crop and the mirrors that the row's geometry tells."""
    lines = {}
    for i in (0, 2, 3):
        lines[i] = [[float(n) for n in line.split()]
                    for line in (YOLO / "labels" / "val" / f"{i}.txt").read_text().splitlines()]
    side, seen = 32, 0
    with loaderd.Loader(str(YOLO / "images" / "val"), batch_size=4, boxes="beside", image=side, shuffle=True, seed=5,
                        augment="random-resized-crop,flip,flip-vertical", box_visible=0.25, as_dict=True) as loader:
        for _ in range(20):
            for batch in loader:
                for row, boxes in zip(loader.rows, loaderd.ragged(batch["boxes"], batch["boxes-count"])):
                    want = []
                    for c, *box in lines.get(int(row["sample"]), []):
                        centre, size = numpy.array(box).reshape(2, 2)
                        source = numpy.array([row["source_width"], row["source_height"]], float)
                        crop = numpy.array([[row["crop_x"], row["crop_y"]], [row["crop_width"], row["crop_height"]]], float)
                        edges = [numpy.clip((centre + s * size / 2) * source, 0, source) for s in (-1, 1)]
                        edges = [(e - crop[0]) / crop[1] * side for e in edges]
                        low, high = (numpy.clip(e, 0, side) for e in edges)
                        share = numpy.prod(high - low) / numpy.prod(edges[1] - edges[0])
                        for axis in (0, 1):
                            if int(row["flip"]) >> axis & 1:
                                low[axis], high[axis] = side - high[axis], side - low[axis]
                        if share > 0.25 - 1e-6:
                            want.append([*low, *high, c])
                    assert boxes.shape == (len(want), 5)
                    assert numpy.allclose(boxes, numpy.array(want).reshape(-1, 5), atol=1e-3)
                    seen += len(want)
    assert seen > 100


def floats_file(folder, dtype):
    values = numpy.random.RandomState(5).normal(0, 3, (40, 7)).astype(dtype)
    values.flat[::11] = numpy.nan
    values.flat[5::23] = -numpy.inf
    path = os.path.join(str(folder), f"{numpy.dtype(dtype).name}.bin")
    values.tofile(path)
    return path, values


@pytest.mark.parametrize("dtype, name", [("<f4", "f32"), ("<f8", "f64"), ("<f2", "f16")])
@pytest.mark.parametrize("engine", ["uring", "mmap", "pread"])
def test_floats_are_cleaned_as_by_numpy(tmp_path, dtype, name, engine):
    path, values = floats_file(tmp_path, dtype)
    arguments = {"batch_size": 8, "verbose": False, "keys": {"record": f"x:{name}[7]", "workers": 1, "engine": engine}}
    cases = [({"clamp": "-1.5,2"}, numpy.clip(values, numpy.dtype(dtype).type(-1.5), numpy.dtype(dtype).type(2))),
             ({"nan": "zero"}, numpy.nan_to_num(values, nan=0, posinf=numpy.inf, neginf=-numpy.inf)),
             ({"nan": "zero", "clamp": "0.25,1"},
              numpy.clip(numpy.nan_to_num(values, nan=0, posinf=numpy.inf, neginf=-numpy.inf),
                         numpy.dtype(dtype).type(0.25), numpy.dtype(dtype).type(1)))]
    for keys, wanted in cases:
        with loaderd.Loader(path, as_dict=True, epochs=1, **arguments, **keys) as loader:
            found = numpy.concatenate([batch["x"] for batch in loader])
        assert found.dtype == wanted.dtype
        assert numpy.array_equal(found.view(numpy.uint8), wanted.view(numpy.uint8))


def test_values_that_are_no_numbers_are_an_error(tmp_path):
    path, _ = floats_file(tmp_path, "<f4")
    with loaderd.Loader(path, batch_size=8, verbose=False, nan="error",
                        keys={"record": "x:f32[7]", "workers": 1}) as loader:
        with pytest.raises(loaderd.LoaderdError, match="field x is no number"):
            next(iter(loader))
    with pytest.raises(loaderd.LoaderdError, match="dataset has none"):
        with loaderd.Loader(path, batch_size=8, verbose=False, clamp="0,1", keys={"record": "x:i32[7]"}) as loader:
            next(iter(loader))
