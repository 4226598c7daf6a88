#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Packs by the letter of loaderd-pack(5), with nothing but Python: another writer and reader for the tests.

  pack-reference.py write FILE   the pack that tests/check_pack.c knows (tests/data/pack/tiny.pack)
  pack-reference.py read FILE    one line a record: number, crc verdict, lengths, values, name
  pack-reference.py picture FILE RECORD OUT   the bytes of a record's first picture
"""
import struct
import sys


def crc32c(data):
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


DTYPES = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64"]
SIZES = [1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8]


def field(name, dtype, dims, storage, entry):
    shape = list(dims) + [0] * (7 - len(dims))
    return struct.pack("<32sII7qIIII16x", name.encode(), DTYPES.index(dtype) + 1, len(dims), *shape, storage, 0, 0, entry)


def write(path):
    classes = b"apple\0pear\0"
    origin = b"source=by hand\n\0"
    fields = [field("label", "i64", [], 1, 12), field("x", "f32", [2], 2, 0), field("image", "u8", [-1, -1, -1], 3, 20)]
    meta = 4096
    index = meta + -(-(len(classes) + len(origin)) // 8) * 8
    entry_bytes, records = 32, 3
    data = 4096 * 2
    pictures = [b"first picture", b"", b"third"]
    entries, body = b"", b""
    for i, picture in enumerate(pictures):
        record = struct.pack("<2f", i + 0.5, -i) + picture
        body += bytes(-len(body) % 8)
        entries += struct.pack("<QIqIHHBBBB", data + len(body), crc32c(record), [1, 0, -7][i], len(picture), 640 + i, 480, 1,
                               3, 0x22, 0x60)
        body += record
    names = [b"a/one.jpg\0", b"a/two.jpg\0", b"b/three.jpg\0"]
    names_offset = data + -(-len(body) // 8) * 8
    places = [8 * (records + 1)]
    for name in names:
        places.append(places[-1] + len(name))
    text = struct.pack("<4Q", *places) + b"".join(names)
    front = bytearray(data)
    front[meta:meta + len(classes) + len(origin)] = classes + origin
    front[index:index + len(entries)] = entries
    header = struct.pack("<8sII4IQQ6QIIIIIIIIQQ16s6Q", b"LOADPACK", 1, 4096, 0, crc32c(front[meta:index]),
                         crc32c(front[index:data]), crc32c(text), names_offset + len(text), records, meta, index, data,
                         len(body), names_offset, len(text), entry_bytes, 8, len(fields), 2, len(classes), len(origin), 0, 1,
                         0, 4, b"sixteen bytes id", 1, 0, 0, 0, 0, 0)
    front[:len(header)] = header
    front[512:512 + 128 * len(fields)] = b"".join(fields)
    front[16:20] = struct.pack("<I", crc32c(front[:4096]))
    with open(path, "wb") as out:
        out.write(front + body + bytes(names_offset - data - len(body)) + text)


class Pack:
    def __init__(self, path):
        self.bytes = b = open(path, "rb").read()
        h = struct.unpack_from("<8sII4IQQ6QIIIIIIIIQQ16s6Q", b)
        assert h[0] == b"LOADPACK" and h[1] == 1 and h[2] == 4096 and h[7] == len(b), h
        assert h[3] == crc32c(b[:16] + bytes(4) + b[20:4096]), "header"
        self.records, meta, self.index, data = h[8], h[9], h[10], h[11]
        assert h[4] == crc32c(b[meta:self.index]) and h[5] == crc32c(b[self.index:data]), "meta, index"
        assert h[6] == crc32c(b[h[13]:h[13] + h[14]]), "names"
        self.names, self.entry_bytes = h[13], h[15]
        self.fields = []
        for i in range(h[17]):
            f = struct.unpack_from("<32sII7qIIII16x", b, 512 + 128 * i)
            size = SIZES[f[1] - 1]
            for dim in f[3:3 + f[2]]:
                size *= dim
            self.fields.append((f[0].rstrip(b"\0").decode(), f[10], f[13], size))

    def record(self, i):
        at = self.index + i * self.entry_bytes
        offset, crc = struct.unpack_from("<QI", self.bytes, at)
        fixed = sum(size for _, storage, _, size in self.fields if storage == 2)
        lengths, values = [], []
        for _, storage, entry, _ in self.fields:
            if storage == 3:
                lengths.append(struct.unpack_from("<I", self.bytes, at + entry)[0])
            elif storage == 1:
                values.append(struct.unpack_from("<q", self.bytes, at + entry)[0])
        record = self.bytes[offset:offset + fixed + sum(lengths)]
        return record, crc, fixed, lengths, values

    def name(self, i):
        begin, end = struct.unpack_from("<QQ", self.bytes, self.names + 8 * i)
        return self.bytes[self.names + begin:self.names + end - 1].decode()


def main():
    what, path = sys.argv[1:3]
    if what == "write":
        write(path)
        return
    pack = Pack(path)
    if what == "picture":
        record, _, fixed, lengths, _ = pack.record(int(sys.argv[3]))
        open(sys.argv[4], "wb").write(record[fixed:fixed + lengths[0]])
        return
    for i in range(pack.records):
        record, crc, fixed, lengths, values = pack.record(i)
        print(i, "good" if crc32c(record) == crc else "damaged", fixed, lengths, values, pack.name(i))


main()
