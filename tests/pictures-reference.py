#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/pictures-reference.h: small PNG and WebP files with the CRC-32 of the pixels that Pillow gives.

    pip install pillow numpy && python3 tests/pictures-reference.py >tests/pictures-reference.h

With a folder as its argument it writes the files there instead (seeds of the fuzz targets).

PNG files that Pillow cannot write (interlaced, 2 and 4 bits gray, gray or colour of 16 bits with alpha) are put
together here by ISO/IEC 15948. Of 16-bit gray the table takes the high byte; of label pictures the samples as they are.
"""
import io
import struct
import sys
import zlib

import numpy
import PIL
from PIL import Image, ImageOps, features

RANDOM = numpy.random.RandomState(7)
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack_rows(samples, depth):
    """samples: height x width x channels of integers below 2**depth; each row behind filter byte 0."""
    out = b""
    for row in samples:
        if depth == 16:
            data = row.astype(">u2").tobytes()
        elif depth == 8:
            data = row.astype(numpy.uint8).tobytes()
        else:
            bits = "".join(format(int(v), "0%db" % depth) for v in row.ravel())
            data = bytes(int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8))
        out += b"\0" + data
    return out


def make_png(samples, color, depth, interlaced=False, extra=b"", split=0):
    height, width = samples.shape[:2]
    data = b""
    for x, y, dx, dy in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        part = samples[y::dy, x::dx]
        if part.size:
            data += pack_rows(part, depth)
    data = zlib.compress(data, 9)
    split = split or len(data)
    body = b"".join(chunk(b"IDAT", data[i : i + split]) for i in range(0, len(data), split))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + body + chunk(b"IEND", b"")


def picture(width, height, channels, top):
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [(x * (3 + c) * top // 40 + y * (5 - c) * top // 60 + RANDOM.randint(0, top // 4 + 1, x.shape)) % (top + 1)
              for c in range(channels)]
    return numpy.stack(planes, -1)


def palette_chunk(colors):
    return chunk(b"PLTE", RANDOM.randint(0, 256, colors * 3).astype(numpy.uint8).tobytes())


def png_files():
    names = {0: "gray", 2: "RGB", 3: "palette", 4: "gray+alpha", 6: "RGBA"}
    for color, channels, depths in ((0, 1, (1, 2, 4, 8, 16)), (2, 3, (8, 16)), (3, 1, (1, 2, 4, 8)), (4, 2, (8, 16)),
                                    (6, 4, (8, 16))):
        for depth in depths:
            for interlaced in (False, True):
                samples = picture(13, 11, channels, (1 << depth) - 1)
                extra = palette_chunk(1 << depth) if color == 3 else b""
                if color == 3:
                    extra += chunk(b"tRNS", bytes(range(0, 1 << depth, 2)))
                name = "%s %d bits%s" % (names[color], depth, " interlaced" if interlaced else "")
                yield name, make_png(samples, color, depth, interlaced, extra, 50 if interlaced or color == 2 else 0), samples
    samples = picture(9, 7, 3, 255)
    yield "RGB with tRNS", make_png(samples, 2, 8, False, chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))), samples
    yield "RGB with text and gamma", make_png(
        samples, 2, 8, False, chunk(b"gAMA", struct.pack(">I", 100000)) + chunk(b"tEXt", b"Title\0x")), samples


def webp_files():
    rgb = Image.fromarray(picture(37, 29, 3, 255).astype(numpy.uint8))
    smooth = Image.fromarray(picture(5, 4, 3, 255).astype(numpy.uint8)).resize((45, 37), Image.BICUBIC)
    rgba = smooth.convert("RGBA")
    rgba.putalpha(Image.fromarray(picture(45, 37, 1, 255)[:, :, 0].astype(numpy.uint8)))
    for name, image, options in (("lossy", smooth, {"quality": 60}), ("lossy noise", rgb, {"quality": 90}),
                                 ("lossless", rgb, {"lossless": True}), ("lossless smooth", smooth, {"lossless": True}),
                                 ("lossy alpha", rgba, {"quality": 50}),
                                 ("lossless alpha", rgba, {"lossless": True, "exact": True})):
        out = io.BytesIO()
        image.save(out, "WEBP", **options)
        yield name, out.getvalue(), None


def jpeg_files():
    smooth = Image.fromarray(picture(5, 4, 3, 255).astype(numpy.uint8)).resize((45, 37), Image.BICUBIC)
    for name, image in (("4:2:0", smooth), ("gray", smooth.convert("L"))):
        out = io.BytesIO()
        image.save(out, "JPEG", quality=80)
        yield name, out.getvalue(), None


def tiff(orientation, order):
    """A directory with another tag first; the orientation as SHORT."""
    entries = [(0x010F, 2, 4, b"Cam\0"), (0x0112, 3, 1, struct.pack(order + "HH", orientation, 0))]
    return (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, len(entries)) + b"".join(
        struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries) + b"\0\0\0\0"


def oriented_jpegs():
    smooth = Image.fromarray(picture(5, 4, 3, 255).astype(numpy.uint8)).resize((29, 19), Image.BICUBIC)
    for orientation in range(10):
        out = io.BytesIO()
        smooth.save(out, "JPEG", quality=70, subsampling=orientation % 3,
                    exif=b"Exif\0\0" + tiff(orientation, "<>"[orientation % 2]))
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(out.getvalue())))
        yield orientation, out.getvalue(), image


def animated_webp():
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "blue")]
    out = io.BytesIO()
    frames[0].save(out, "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True)
    return out.getvalue()


def print_array(name, data):
    print("static const unsigned char %s[] __attribute__((unused)) = {" % name)
    for at in range(0, len(data), 24):
        print("    " + ",".join(str(b) for b in data[at : at + 24]) + ",")
    print("};")


def crc(array):
    return zlib.crc32(numpy.ascontiguousarray(array, dtype=numpy.uint8).tobytes())


def reference(data, samples):
    image = Image.open(io.BytesIO(data))
    color = data[25] if data[1:4] == b"PNG" else 2
    depth = data[24] if data[1:4] == b"PNG" else 8
    if depth == 16 and color == 0:
        gray = samples[:, :, 0] >> 8
        rgb = numpy.stack([gray] * 3, -1)
    else:
        rgb = numpy.asarray(image.convert("RGB"))
        gray = numpy.asarray(image.convert("L"))
    values = samples[:, :, 0] if color in (0, 3, 4) and depth <= 8 else None
    if image.format == "JPEG" and image.mode == "L":
        values = gray
    return image.size, 1 if image.mode == "L" else 3 if color & 2 else 1, crc(rgb), crc(gray), values


def write_files(folder):
    for kind, files in (("png", png_files()), ("webp", webp_files())):
        for name, data, _ in files:
            with open("%s/%s/%s" % (folder, kind, name.replace(" ", "-").replace("+", "-")), "wb") as out:
                out.write(data)
    for orientation, data, _ in oriented_jpegs():
        with open("%s/exif/orientation-%d" % (folder, orientation), "wb") as out:
            out.write(data[:120])


def main():
    if len(sys.argv) > 1:
        return write_files(sys.argv[1])
    print("/* SPDX-License-Identifier: MIT */")
    print("/* Written by tests/pictures-reference.py with Pillow %s, numpy %s, libwebp %s: do not edit. */" %
          (PIL.__version__, numpy.__version__, features.version("webp")))
    print("/* clang-format off */")
    rows = []
    for kind, files in (("png", png_files()), ("webp", webp_files()), ("jpeg", jpeg_files())):
        for i, (name, data, samples) in enumerate(files):
            (width, height), channels, rgb, gray, values = reference(data, samples)
            print_array("%s_%d" % (kind, i), data)
            rows.append('    {"%s %s", %s_%d, sizeof %s_%d, %d, %d, %d, 0x%08xu, 0x%08xu, %s, 0x%08xu},' % (
                kind, name, kind, i, kind, i, width, height, channels, rgb, gray,
                "false" if values is None else "true", 0 if values is None else crc(values)))
    print_array("webp_animated", animated_webp())
    turned = []
    for orientation, data, image in oriented_jpegs():
        print_array("turned_%d" % orientation, data)
        turned.append("    {turned_%d, sizeof turned_%d, %d, %d, %d, 0x%08xu}," % (
            orientation, orientation, orientation, image.size[0], image.size[1], crc(image.convert("RGB"))))
    print("static const struct {\n    const unsigned char *bytes;\n    size_t length;")
    print("    unsigned orientation, width, height, rgb; /* of the tag; as turned by Pillow's exif_transpose() */")
    print("} turned[] = {")
    print("\n".join(turned))
    print("};")
    print("static const struct reference {\n    const char *name;\n    const unsigned char *bytes;\n    size_t length;")
    print("    unsigned width, height, channels, rgb, gray; /* CRC-32 of the pixels */")
    print("    bool has_values;\n    unsigned values;\n} references[] = {")
    print("\n".join(rows))
    print("};")


if __name__ == "__main__":
    sys.exit(main())
