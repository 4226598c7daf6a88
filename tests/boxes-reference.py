#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/formats/boxes/ and tests/boxes-reference.h: pictures with rectangles in the ways in which people keep
them, and fields of bytes that are delivered undecoded; with the CRC-32 of what each field must hold when all samples are
read in order. Rectangles are moved by numpy here, pictures by Pillow.

    pip install numpy "pillow<13" tfrecord mosaicml-streaming
    python3 tests/boxes-reference.py
"""
import importlib.util
import io
import json
import os
import shutil

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("formats_reference", os.path.join(HERE, "formats-reference.py"))
formats = importlib.util.module_from_spec(spec)
spec.loader.exec_module(formats)
path, write, case, member, tar = formats.path, formats.write, formats.case, formats.member, formats.tar

SIZES = [(40, 30), (30, 40), (17, 33), (25, 25)]  # width, height
# class and left, top, right, bottom in shares of the picture; multiples of 1/64 are the same in text and in binary
BOXES = [
    [(3, 0.25, 0.125, 0.75, 0.5), (0, 0, 0, 1, 1), (80, 0.90625, 0.9375, 1, 1), (5, -0.25, 0.5, 0.25, 1.25)],
    [],
    [(1, 0.03125, 0.5, 0.0625, 0.53125)],
    [(i, i / 64, i / 64, i / 64 + 0.25, i / 64 + 0.5) for i in range(8)],
]
MOST = 5


def picture(i):
    w, h = SIZES[i]
    y, x = np.mgrid[0:h, 0:w]
    out = io.BytesIO()
    Image.fromarray(np.stack([x * 5, y * 5, (x + y) * 3 + i], -1).astype("u1")).save(out, "JPEG", quality=90, subsampling=0)
    return out.getvalue()


def stretch(w, h):
    """Size of the whole picture in the row, and where the row begins in it."""
    return lambda size: ((w, h), (0, 0), (w, h))


def centre(short, side):
    def f(size):
        w, h = size
        full = (short, int(short * h / w)) if w <= h else (int(short * w / h), short)
        at = [-((side - s) // 2) if side > s else int(round((s - side) / 2.0)) for s in full]
        return full, tuple(at), (side, side)
    return f


def move_picture(data, how, flip=False, upside=False):
    image = Image.open(io.BytesIO(data))
    full, at, out = how(image.size)
    image = image.resize(full, Image.BILINEAR).crop((at[0], at[1], at[0] + out[0], at[1] + out[1]))
    pixels = np.asarray(image)
    return pixels[::-1 if upside else 1, ::-1 if flip else 1]


def move_boxes(boxes, size, how, flip=False, upside=False, visible=0.0, most=MOST):
    """boxes in pixels of a picture of `size`: rows of the batch and their number."""
    full, at, out = how(size)
    rows = []
    for c, *sides in boxes:
        low, high = np.array(sides[:2], "f8"), np.array(sides[2:], "f8")
        size_, out_ = np.array(size, "f8"), np.array(out, "f8")
        low, high = np.clip(low, 0, size_), np.clip(high, 0, size_)
        low, high = (v * (np.array(full, "f8") / size_) - np.array(at, "f8") for v in (low, high))
        area = np.prod(high - low)
        low, high = np.clip(low, 0, out_), np.clip(high, 0, out_)
        share = np.prod(high - low) / area if area > 0 else 0
        if share <= 0 or share < visible:
            continue
        for axis, mirrored in enumerate((flip, upside)):
            if mirrored:
                low[axis], high[axis] = out_[axis] - high[axis], out_[axis] - low[axis]
        rows.append([*low, *high, c])
    rows = rows[:most]
    return np.array(rows + [[0] * 5] * (most - len(rows)), "f8").astype("f4"), len(rows)


def pixels(i):
    w, h = SIZES[i]
    return [(c, a * w, b * h, d * w, e * h) for c, a, b, d, e in BOXES[i]]


WAYS = {
    "stretch": ({"image": "16x24", "augment": "stretch"}, stretch(24, 16), {}),
    "centre": ({"image": "16", "resize": "20", "augment": "center-crop"}, centre(20, 16), {}),
    "padded": ({"image": "24", "resize": "18", "augment": "center-crop"}, centre(18, 24), {}),
    "flipped": ({"image": "16", "resize": "20", "augment": "center-crop,flip", "flip-probability": "1"}, centre(20, 16),
                {"flip": True}),
    "both flipped": ({"image": "16x24", "augment": "stretch,flip,flip-vertical", "flip-probability": "1"},
                     stretch(24, 16), {"flip": True, "upside": True}),
}
KEYS = {"box-max": str(MOST), "on-overflow": "truncate"}


def box_case(what, way, keys, boxes, order=range(4), visible=0.0):
    way_keys, how, mirrors = WAYS[way]
    if visible:
        way_keys = dict(way_keys, **{"box-visible": str(visible)})
    moved = [move_boxes(boxes[i], SIZES[i], how, visible=visible, **mirrors) for i in order]
    case("%s, %s" % (what, way), {**way_keys, **KEYS, **keys},
         [("image", np.stack([move_picture(picture(i), how, **mirrors) for i in order])),
          ("boxes", np.stack([m[0] for m in moved])), ("boxes-count", np.array([m[1] for m in moved], "<i4"))])


def yolo_lines(i):
    return "".join("%d %r %r %r %r\n" % (c, (a + d) / 2, (b + e) / 2, d - a, e - b) for c, a, b, d, e in BOXES[i])


def yolo():
    shutil.rmtree(path("boxes/yolo"), ignore_errors=True)
    for i in range(4):
        write("boxes/yolo/images/val/%d.jpg" % i, picture(i))
        if i != 1:  # a picture without a file of labels has no boxes
            write("boxes/yolo/labels/val/%d.txt" % i, yolo_lines(i).encode())
    every = [pixels(i) for i in range(4)]
    for way in WAYS:
        box_case("yolo", way, {"dataset": "boxes/yolo/images/val", "boxes": "beside"}, every)
    box_case("yolo, half visible", "centre", {"dataset": "boxes/yolo/images/val", "boxes": "beside"}, every, visible=0.5)
    box_case("yolo in a folder", "stretch", {"dataset": "boxes/yolo/images/val", "boxes": "boxes/yolo/labels/val"}, every)
    write("boxes/yolo/list.txt", b"images/val/3.jpg\nimages/val/0.jpg\n")
    box_case("yolo of a list", "stretch", {"dataset": "boxes/yolo/list.txt", "boxes": "beside"}, every, order=(3, 0))


def inside(box):
    """Corners as shares must lie in the picture; centres with sizes and pixels need not."""
    return [min(max(v, 0), 1) for v in box[1:]]


def in_json():
    def annotations(i):
        return {"license": [1, {"x": "\"]}"}], "annotations": [
            {"id": k, "bbox": [a, b, d - a, e - b], "category_id": c, "segmentation": [[1.5, 2]]}
            for k, (c, a, b, d, e) in enumerate(pixels(i))]}
    tar("boxes/coco.tar", sum(([member("%d.jpg" % i, picture(i)), member("%d.json" % i, json.dumps(annotations(i)).encode())]
                               for i in range(4)), []))
    every = [[(c, a, b, a + (d - a), b + (e - b)) for c, a, b, d, e in pixels(i)] for i in range(4)]
    for way in ("centre", "both flipped"):
        box_case("json", way, {"dataset": "boxes/coco.tar", "fields": "jpg:image json:boxes"}, every)
    tar("boxes/corners.tar",
        sum(([member("%d.jpg" % i, picture(i)),
              member("%d.objects.json" % i, json.dumps({"a": {"corners": [inside(b) + [b[0]] for b in BOXES[i]]}}).encode()),
              member("%d.apart.json" % i, json.dumps({"b": [inside(b) for b in BOXES[i]], "c": [b[0] for b in BOXES[i]]}).encode())]
             for i in range(4)), []))
    box_case("json of five numbers", "stretch",
             {"dataset": "boxes/corners.tar", "fields": "jpg:image objects.json:boxes", "box-json": "a.corners",
              "box-form": "relative-xyxy"}, [pixels(i) for i in range(4)])
    box_case("json of two lists", "padded",
             {"dataset": "boxes/corners.tar", "fields": "jpg:image apart.json:boxes", "box-json": "b,c",
              "box-form": "relative-xyxy"}, [pixels(i) for i in range(4)])


def in_tfrecord():
    records = []
    for i in range(4):
        record = {"image/encoded": (picture(i), "byte"), "image/object/class/text": (b"-", "byte")}
        edges = np.array([inside(b) for b in BOXES[i]], "f4").reshape(-1, 4)
        for k, name in enumerate(("xmin", "ymin", "xmax", "ymax")):
            record["image/object/bbox/" + name] = ([float(v) for v in edges[:, k]], "float")
        record["image/object/class/label"] = ([b[0] for b in BOXES[i]], "int")
        records.append(record)
    formats.tfrecords("boxes/detection.tfrecord", records)
    for way in ("centre", "both flipped"):
        box_case("tfrecord boxes", way,
                 {"dataset": "boxes/detection.tfrecord", "fields": "image/encoded:image image/object/bbox:boxes"},
                 [pixels(i) for i in range(4)])


# ---- bytes ------------------------------------------------------------------------------------------------------------
TEXTS = ["", "one", "two words\n", "äöü" * 20]


def rows(items, cap):
    return np.stack([np.frombuffer(d[:cap].ljust(cap, b"\0"), "u1") for d in items])


def byte_case(what, keys, fields, cap, others=()):
    """fields: (name, items) that are delivered as they are; others stand before them."""
    out = list(others) + [(name, rows(items, cap)) for name, items in fields]
    out += [(name + "-length", np.array([min(len(d), cap) for d in items], "<i4")) for name, items in fields]
    case(what, dict(keys, **{"bytes-cap": str(cap)}), out)


def ragged():
    files = [picture(i) for i in range(4)]
    cap = max(map(len, files))
    byte_case("bytes of a folder", {"dataset": "boxes/yolo/images/val", "bytes": "image"}, [("image", files)], cap)
    byte_case("bytes, cut", {"dataset": "boxes/yolo/images/val", "bytes": "image", "on-overflow": "truncate"},
              [("image", files)], 100)
    byte_case("bytes of a list", {"dataset": "boxes/yolo/list.txt", "bytes": "image"}, [("image", [files[3], files[0]])],
              cap)
    texts = [t.encode() for t in TEXTS]
    tar("boxes/texts.tar", sum(([member("%d.jpg" % i, files[i]), member("%d.txt" % i, texts[i]),
                                 member("%d.cls" % i, b"%d" % i)] for i in range(4)), []))
    byte_case("bytes of a tar", {"dataset": "boxes/texts.tar", "fields": "jpg:image txt:text cls:c", "bytes": "c,image"},
              [("image", files), ("text", texts), ("c", [b"%d" % i for i in range(4)])], cap)
    formats.tfrecords("boxes/texts.tfrecord", [{"e": (files[i], "byte"), "t": (texts[i], "byte"), "n": (i, "int")}
                                               for i in range(4)])
    byte_case("bytes of a tfrecord", {"dataset": "boxes/texts.tfrecord", "fields": "e:image t:text n:label",
                                      "bytes": "image text"},
              [("image", files), ("text", texts)], cap)
    cases = formats.cases  # the label stands behind them in the dataset, before their lengths
    cases[-1][2].insert(2, ("label", np.arange(4, dtype="<i4")))
    shutil.rmtree(path("boxes/texts.mds"), ignore_errors=True)
    formats.mds_set("boxes/texts.mds", {"b": "bytes", "j": "json", "photo": "jpeg", "s": "str", "x": "int32"},
                    [{"photo": files[i], "s": TEXTS[i], "b": texts[i][::-1], "j": {"a": i}, "x": np.int32(i)}
                     for i in range(4)])
    byte_case("mds bytes", {"dataset": "boxes/texts.mds", "fields": "photo:image s:text b:raw j:meta",
                            "bytes": "image,raw"},
              [("image", files), ("text", texts), ("raw", [t[::-1] for t in texts]),
               ("meta", [json.dumps({"a": i}).encode() for i in range(4)])], cap)


def main():
    for part in (yolo, in_json, in_tfrecord, ragged):
        part()
    formats.write_table("boxes-reference.h", "box_references", "boxes-reference.py")


main()
