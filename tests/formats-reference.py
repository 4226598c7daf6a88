#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/formats/ and tests/formats-reference.h: small datasets made by the formats' own writers (numpy,
Python's tarfile and struct, webdataset, tfrecord, mosaicml-streaming), and the CRC-32 of what each field must hold when
all samples are read in order, computed from the arrays that were written.

    pip install numpy pillow webdataset tfrecord mosaicml-streaming
    python3 tests/formats-reference.py
"""
import gzip
import io
import os
import struct
import tarfile
import zlib

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data", "formats")
DTYPES = {"uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32", "uint64": "U64",
          "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64"}
cases = []


def path(name):
    full = os.path.join(DATA, name)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    return full


def write(name, data):
    with open(path(name), "wb") as f:
        f.write(data)


def case(what, keys, fields):
    """fields: (name, array as delivered, first axis: samples)."""
    cases.append((what, keys, fields))


def random(shape, dtype, seed):
    g = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return g.standard_normal(shape).astype(dtype)
    return g.integers(0, 100, shape).astype(dtype)


# ---- npy --------------------------------------------------------------------------------------------------------------
def npy():
    for dtype in "u1 i1 <u2 >u2 <i2 >i2 <u4 >u4 <i4 >i4 <u8 >u8 <i8 >i8 <f2 >f2 <f4 >f4 <f8 >f8".split():
        a = random((5, 2, 3), dtype, 1)
        name = "npy/x-%s.npy" % dtype.replace("<", "le-").replace(">", "be-")
        np.save(path(name), a)
        case(name, {"dataset": name}, [(os.path.basename(name)[:-4], a.astype(a.dtype.newbyteorder("<")))])
    f = np.asfortranarray(random((7, 4, 5), ">i4", 2))
    np.save(path("npy/fortran.npy"), f)
    case("fortran", {"dataset": "npy/fortran.npy"}, [("fortran", np.ascontiguousarray(f).astype("<i4"))])
    np.save(path("npy/fortran-6.npy"), np.asfortranarray(np.arange(6).reshape(2, 3)))
    case("fortran of the report", {"dataset": "npy/fortran-6.npy"}, [("fortran-6", np.arange(6).reshape(2, 3))])
    b = random((6,), "u1", 3) > 50
    np.save(path("npy/flag.npy"), b)
    case("bool", {"dataset": "npy/flag.npy"}, [("flag", b.astype("u1"))])
    for version in (1, 2, 3):
        a = random((4, 3), "<f4", version)
        with open(path("npy/v%d.npy" % version), "wb") as out:
            np.lib.format.write_array(out, a, version=(version, 0))
        case("version %d" % version, {"dataset": "npy/v%d.npy" % version}, [("v%d" % version, a)])
    images, labels = random((9, 3, 4, 5), "u1", 4), random((9,), ">i2", 5)
    np.save(path("npy/images.npy"), images)
    np.save(path("npy/labels.npy"), labels)
    case("pair by file names", {"dataset": "npy/images.npy,npy/labels.npy", "layout": "nchw"},
         [("image", images), ("label", labels.astype("<i4"))])
    case("pair by NAME=", {"dataset": "y=npy/labels.npy,label=npy/labels.npy,x=npy/images.npy", "label-dtype": "i64"},
         [("y", labels.astype("<i2")), ("label", labels.astype("<i8")), ("x", images)])
    column = random((9, 1), ">i8", 6)
    np.save(path("npy/column.npy"), column)
    case("a column of labels is cast and swapped", {"dataset": "label=npy/column.npy"},
         [("label", column.astype("<i4"))])
    np.save(path("npy/objects.npy"), np.array([{}, 1], dtype=object), allow_pickle=True)
    np.save(path("npy/scalar.npy"), np.array(3))
    np.save(path("npy/complex.npy"), np.zeros(3, "c8"))


# ---- idx: from the description of the format, with struct ------------------------------------------------------------
def idx_bytes(array, code):
    head = struct.pack(">BBBB%dI" % array.ndim, 0, 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def idx():
    for code, dtype in ((8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")):
        a = random((4, 2, 3), dtype, code)
        write("idx/x%02x" % code, idx_bytes(a, code))
        case("idx %02x" % code, {"dataset": "x=idx/x%02x" % code}, [("x", a)])
    images, labels = random((8, 28, 28), "u1", 7), random((8,), "u1", 8)
    write("idx/images-idx3-ubyte", idx_bytes(images, 8))
    write("idx/labels-idx1-ubyte", idx_bytes(labels, 8))
    pair = "idx/images-idx3-ubyte,idx/labels-idx1-ubyte"
    case("MNIST", {"dataset": pair}, [("image", images), ("label", labels.astype("<i4"))])
    case("MNIST as pictures", {"dataset": pair, "dtype": "f32", "layout": "nchw"},
         [("image", (images.astype("<f4") / np.float32(255))[:, None]), ("label", labels.astype("<i4"))])
    wide = random((3,), "i4", 9)
    write("idx/wide-labels", idx_bytes(wide, 12))
    case("idx labels of 4 bytes", {"dataset": "idx/wide-labels", "label-dtype": "i64"}, [("label", wide.astype("<i8"))])


# ---- CIFAR: from its description --------------------------------------------------------------------------------------
def cifar():
    small = np.zeros((3, 32, 32), "u1") # compresses well in a repository
    images = np.stack([small + i for i in range(6)])
    labels = np.array([3, 1, 4, 1, 5, 9], "u1")
    record = [bytes([l]) + i.tobytes() for l, i in zip(labels, images)]
    write("cifar10/data_batch_1.bin", b"".join(record[:2]))
    write("cifar10/data_batch_2.bin", b"".join(record[2:5]))
    write("cifar10/test_batch.bin", record[5])
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()
    write("cifar10/batches.meta.txt", ("\n".join(names) + "\n\n").encode())
    for keys in ({"dataset": "cifar10"}, {"dataset": "cifar10", "format": "cifar10"}):
        case("CIFAR-10", dict(keys, layout="nchw"), [("label", labels[:5].astype("<i4")), ("image", images[:5])])
    case("CIFAR-10, test", {"dataset": "cifar10/test_batch.bin", "format": "cifar10", "layout": "nchw"},
         [("label", labels[5:].astype("<i4")), ("image", images[5:])])
    coarse = labels // 2
    write("cifar100/train.bin", b"".join(bytes([c, l]) + i.tobytes() for c, l, i in zip(coarse, labels + 90, images)))
    write("cifar100/fine_label_names.txt", ("\n".join("c%d" % i for i in range(100)) + "\n").encode())
    case("CIFAR-100", {"dataset": "cifar100", "layout": "nchw"},
         [("coarse-label", coarse), ("label", labels.astype("<i4") + 90), ("image", images)])


# ---- tokens: from the descriptions of the formats ---------------------------------------------------------------------
def windows(ids, t):
    n = (len(ids) - 1) // t
    return np.stack([ids[i * t:i * t + t + 1] for i in range(n)]).astype("<i4")


def llmc(ids, magic, version, dtype):
    return struct.pack("<256i", magic, version, len(ids), *[0] * 253) + ids.astype(dtype).tobytes()


def formula(s, count):
    """Ids that are known without a file."""
    i = s * 1000003 + np.arange(count, dtype=np.uint64)
    return (((i * np.uint64(2654435761)) % np.uint64(1 << 32)) >> np.uint64(16)) % np.uint64(50257)


def tokens():
    sets = [formula(s, n) for s, n in enumerate((1000, 777, 1281))]
    for s, ids in enumerate(sets):
        write("tokens/tok_%04d.bin" % s, llmc(ids, 20240520, 1, "<u2"))
    case("llm.c", {"dataset": "tokens/tok_*.bin", "tokens": "16"},
         [("tokens", np.concatenate([windows(i, 16) for i in sets]))])
    wide = np.array([0, 32767, 32768, 50256, 65535, 65536, 70000, 2**31 - 1], "<u4")
    write("tokens/wide.bin", llmc(wide, 20240801, 7, "<u4"))
    case("llm.c u32", {"dataset": "tokens/wide.bin", "tokens": "3"}, [("tokens", windows(wide, 3))])
    edge = wide[:5].astype("<u2")
    write("tokens/bare-u16", edge.tobytes())
    write("tokens/bare-u32", wide.tobytes())
    case("bare u16", {"dataset": "tokens/bare-u16", "format": "tokens", "token-dtype": "u16", "tokens": "2"},
         [("tokens", windows(edge, 2))])
    case("bare u32", {"dataset": "tokens/bare-u32", "token-dtype": "u32", "tokens": "7"},
         [("tokens", windows(wide, 7))])
    # Megatron-LM, megatron/core/datasets/indexed_dataset.py
    documents = [formula(9, 10), formula(10, 1), formula(11, 25)]
    for name, code, dtype in (("meg-u16", 8, "<u2"), ("meg-i32", 4, "<i4"), ("meg-i64", 5, "<i8")):
        ids = np.concatenate(documents).astype(dtype)
        sizes = np.array([len(d) for d in documents], "<i4")
        places = (np.cumsum(sizes) - sizes).astype("<i8") * np.dtype(dtype).itemsize
        write("tokens/%s.bin" % name, ids.tobytes())
        write("tokens/%s.idx" % name, b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 3, 4) + sizes.tobytes() +
              places.tobytes() + np.arange(4, dtype="<i8").tobytes())
        path = "tokens/" + name + (".idx" if code == 8 else "")
        case(name, dict({"dataset": path, "tokens": "5"}, **({"format": "tokens"} if code == 5 else {})),
             [("tokens", windows(ids, 5))])


# ---- pictures, for the formats that hold encoded ones -----------------------------------------------------------------
def picture(i):
    """(JPEG bytes, pixels as Pillow decodes them) of a small picture."""
    from PIL import Image
    y, x = np.mgrid[0:8, 0:8]
    pixels = np.stack([x * 20 + i * 9, y * 20 + i * 5, (x + y) * 10 + i], -1).astype("u1")
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90, subsampling=0)
    return out.getvalue(), np.asarray(Image.open(io.BytesIO(out.getvalue())))


PICTURE_KEYS = {"image": "8", "augment": "stretch"}


def pictures(numbers):
    return ("image", np.stack([picture(i)[1] for i in numbers]))


def labels(values):
    return ("label", np.array(values, "<i4"))


# ---- webdataset: Python's tarfile, and webdataset itself --------------------------------------------------------------
def member(name, data, **more):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def tar(name, members, form=tarfile.USTAR_FORMAT, **more):
    with tarfile.open(path(name), "w", format=form, **more) as t:
        for info, data in members:
            t.addfile(info, io.BytesIO(data))
        end = t.offset + 1024
    os.truncate(path(name), end)  # tarfile fills up to 10 KiB


def patched(info, data, change):
    """Header and data of one member, the header changed and its checksum made right again."""
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    change(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + b"\0" * (-len(data) % 512)


def sample(key, i, label):
    return [member(key + ".jpg", picture(i)[0]), member(key + ".cls", b"%d" % label)]


def webdataset():
    tree = sum((sample("%s/%06d" % ("d" * 90, i), i, 10 - i) for i in range(4)), [])
    want = [pictures(range(4)), labels([10, 9, 8, 7])]
    forms = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    for name, form in forms.items():
        tar("wds/%s.tar" % name, tree, form)
        case("tar " + name, dict(PICTURE_KEYS, dataset="wds/%s.tar" % name), want)
    # names longer than 100 bytes in their last component: only gnu (L) and pax (path=) can
    long = sum((sample("%s/%s%d" % ("e" * 120, "f" * 130, i), i, i) for i in range(2)), [])
    tar("wds/long-gnu.tar", long, tarfile.GNU_FORMAT)
    tar("wds/long-pax.tar", long, tarfile.PAX_FORMAT, pax_headers={"comment": "a global header"})
    for name in ("long-gnu", "long-pax"):
        case(name, dict(PICTURE_KEYS, dataset="wds/%s.tar" % name), [pictures(range(2)), labels([0, 1])])
    import webdataset as wds
    with wds.TarWriter(path("wds/written-000.tar"), encoder=True, mtime=0) as w:
        for i in range(3):
            w.write({"__key__": "s%d" % i, "jpg": picture(i)[0], "cls": i * 7, "json": {"a": i}})
    tar("wds/written-001.tar", sample("s0", 5, -1))
    case("shards", dict(PICTURE_KEYS, dataset="wds/written-{000..001}.tar"),
         [pictures([0, 1, 2, 5]), labels([0, 7, 14, -1])])
    case("shards by pattern, fields by key", dict(PICTURE_KEYS, dataset="wds/written-*.tar",
                                                  fields="cls:label png;jpg:image"),
         [labels([0, 7, 14, -1]), pictures([0, 1, 2, 5])])
    # dots, directories, case, hidden names and those about the set (FMT-03)
    jpeg = [picture(i)[0] for i in range(8)]
    tar("wds/dots.tar", [member("v1.0/a.b.seg.jpg", jpeg[0]), member("v1.0/a.B.CLS", b" 3\n"),
                         member("v1.0/.hidden.jpg", jpeg[1]), member("__meta__/x.jpg", jpeg[1]),
                         member("nodot", b"x"), member("v1.0/a/", b"", type=tarfile.DIRTYPE)])
    case("dots", dict(PICTURE_KEYS, dataset="wds/dots.tar", fields="b.seg.jpg:image b.cls:label"),
         [pictures([0]), labels([3])])
    # not neighbours; the same again, as tar rf appends it (FMT-04)
    apart = [member("0.jpg", jpeg[0]), member("1.jpg", jpeg[1]), member("0.cls", b"4"), member("1.cls", b"5"),
             member("link.jpg", b"", type=tarfile.SYMTYPE, linkname="0.jpg")]
    tar("wds/apart.tar", apart)
    case("apart", dict(PICTURE_KEYS, dataset="wds/apart.tar"), [pictures([0, 1]), labels([4, 5])])
    tar("wds/twice.tar", apart[:4] + [member("0.jpg", jpeg[6]), member("2.jpg", jpeg[2])])
    case("twice", dict(PICTURE_KEYS, dataset="wds/twice.tar"), [pictures([6, 1]), labels([4, 5])])
    # by hand: a size in base 256, a size that a pax header overrides, the seventh edition's header
    def base256(block):
        block[124:136] = b"\x80" + (len(jpeg[3])).to_bytes(11, "big")

    def no_size(block):
        block[124:136] = b"%011o\0" % 0

    def v7(block):
        block[257:512] = b"\0" * 255

    record = b"size=%d\n" % len(jpeg[4])
    record = b"%d %s" % (len(record) + 3, record)
    by_hand = patched(*member("a.jpg", jpeg[3]), base256)
    by_hand += patched(*member("a.cls", b"1"), v7)
    by_hand += patched(*member("pax", record, type=b"x"), lambda block: None)
    by_hand += patched(*member("b.jpg", jpeg[4]), no_size) + patched(*member("b.cls", b"2"), v7)
    write("wds/by-hand.tar", by_hand + b"\0" * 1024)
    case("by hand", dict(PICTURE_KEYS, dataset="wds/by-hand.tar"), [pictures([3, 4]), labels([1, 2])])
    write("wds/v7.tar", patched(*member("a.jpg", jpeg[3]), v7) + b"\0" * 1024)
    case("v7", dict(PICTURE_KEYS, dataset="wds/v7.tar"), [pictures([3])])
    write("wds/sparse.tar", patched(*member("a.jpg", jpeg[3], type=b"S"), lambda block: None) + b"\0" * 1024)
    with open(path("wds/written-001.tar"), "rb") as f:
        write("wds/gzip.tar", gzip.compress(f.read(), mtime=0))


# ---- tfrecord: the package tfrecord (its crc32c and protocol buffers are other code than ours) -------------------------
def tfrecords(name, records):
    from tfrecord.writer import TFRecordWriter
    writer = TFRecordWriter(path(name))
    for r in records:
        writer.write(r)
    writer.close()


def tfrecord():
    tfrecords("tfrecord/a.tfrecord", [{"image/encoded": (picture(i)[0], "byte"), "image/class/label": (i * 3, "int"),
                                       "image/filename": (b"%d.jpg" % i, "byte")} for i in range(4)])
    tfrecords("tfrecord/b.tfrecord", [{"image/encoded": (picture(7)[0], "byte"), "image/class/label": (-1, "int")}])
    want = [pictures([0, 1, 2, 3, 7]), labels([0, 3, 6, 9, -1])]
    case("tfrecord", dict(PICTURE_KEYS, dataset="tfrecord/{a,b}.tfrecord"), want)
    case("tfrecord, fields", dict(PICTURE_KEYS, dataset="tfrecord/?.tfrecord", batch="5",
                                  fields="image/class/label:label nothing;image/encoded:image"), want[::-1])
    rng = np.random.default_rng(3)
    boxes, raw = rng.standard_normal((3, 4)).astype("<f4"), rng.integers(0, 256, (3, 6)).astype("u1")
    score = rng.standard_normal(3).astype("<f4")
    tfrecords("tfrecord/plain.tfrecord", [{"raw": (raw[i].tobytes(), "byte"), "box": (list(map(float, boxes[i])), "float"),
                                           "score": (float(score[i]), "float"), "n": (2**40 + i, "int")}
                                          for i in range(3)])
    case("tfrecord without a picture", {"dataset": "tfrecord/plain.tfrecord", "fields": "n:label raw:raw box:box score:s",
                                        "label-dtype": "i64"},
         [("label", 2**40 + np.arange(3)), ("raw", raw), ("box", boxes), ("s", score)])
    with open(path("tfrecord/b.tfrecord"), "rb") as f:
        write("tfrecord/gzip.tfrecord", gzip.compress(f.read(), mtime=0))


# ---- mds: mosaicml-streaming ------------------------------------------------------------------------------------------
def mds_set(name, columns, samples, **more):
    import shutil
    from streaming import MDSWriter
    shutil.rmtree(path(name), ignore_errors=True)
    with MDSWriter(out=path(name), columns=columns, size_limit=None, **more) as w:
        for s in samples:
            w.write(s)


def mds():
    photos = [{"photo": picture(i)[0], "class": i - 1, "note": "n%d" % i} for i in range(4)]
    columns = {"photo": "jpeg", "class": "int", "note": "str"}
    want = [pictures(range(4)), labels([-1, 0, 1, 2])]
    mds_set("mds/photos", columns, photos)
    case("mds", dict(PICTURE_KEYS, dataset="mds/photos"), want)
    case("mds by index.json, fields", dict(PICTURE_KEYS, dataset="mds/photos/index.json",
                                           fields="class:label photo:image"), want[::-1])
    mds_set("mds/zstd", columns, photos, compression="zstd:3")
    case("mds zstd", dict(PICTURE_KEYS, dataset="mds/zstd"), want)
    rng = np.random.default_rng(4)
    fixed, free = rng.integers(0, 99, (3, 2, 5)).astype("i2"), rng.standard_normal((3, 4)).astype("f4")
    any_ = rng.standard_normal((3, 2, 300)).astype("f8")
    half = rng.standard_normal(3).astype("f2")
    mds_set("mds/numbers", {"a": "ndarray:int16:2,5", "b": "ndarray:float32", "c": "ndarray", "h": "float16",
                            "t": "str_int", "u": "uint32", "raw": "bytes", "p": "pkl"},
            [{"a": fixed[i], "b": free[i], "c": any_[i], "h": half[i], "t": 2**33 - i, "u": np.uint32(2**31 + i),
              "raw": b"%04d" % i, "p": {}} for i in range(3)])
    mds_set("mds/pickled", {"x": "int32", "p": "pkl"}, [{"x": np.int32(i * i), "p": {}} for i in range(3)])
    case("mds beside a pickle", {"dataset": "mds/pickled"}, [("x", (np.arange(3) ** 2).astype("i4"))])
    case("mds arrays", {"dataset": "mds/numbers", "fields": "a:a b:b c:c h:h"}, [("a", fixed), ("b", free), ("c", any_), ("h", half)])
    case("mds numbers", {"dataset": "mds/numbers", "fields": "u:label t:t raw:raw u:u", "label-dtype": "i64"},
         [("label", 2**31 + np.arange(3)), ("t", 2**33 - np.arange(3)),
          ("raw", np.array([list(b"%04d" % i) for i in range(3)], "u1")),
          ("u", (2**31 + np.arange(3)).astype("u4"))])


WRITERS = {"npy": npy, "idx": idx, "cifar": cifar, "tokens": tokens, "webdataset": webdataset, "tfrecord": tfrecord, "mds": mds}


# ---- the table --------------------------------------------------------------------------------------------------------
def write_table(header, table, script):
    out = ["/* SPDX-License-Identifier: MIT */", "/* Made by tests/%s. */" % script,
           "static const struct reference %s[] = {" % table]
    for what, keys, fields in cases:
        flat = ", ".join('"%s", "%s"' % (k, v) for k, v in keys.items())
        out.append('    {"%s", {%s}, %d, %d,\n     {' % (what, flat, len(fields[0][1]), len(fields)))
        for name, array in fields:
            array = np.ascontiguousarray(array)
            out.append('         {"%s", LOADERD_%s, %d, {%s}, 0x%08xu},' % (
                name, DTYPES[array.dtype.name], array.ndim - 1, ", ".join(map(str, array.shape[1:])) or "0",
                zlib.crc32(array.tobytes())))
        out.append("     }},")
    out.append("};")
    with open(os.path.join(HERE, header), "w") as f:
        f.write("\n".join(out) + "\n")


def main():
    for name in WRITERS:
        WRITERS[name]()
    write_table("formats-reference.h", "references", "formats-reference.py")


if __name__ == "__main__":
    main()
