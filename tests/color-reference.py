#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints tests/color-reference.h: CRC-32s of pictures whose colours Pillow changed as torchvision does on PIL images.

    python3 tests/color-reference.py > tests/color-reference.h        (Pillow 12.0.0)

The picture is a formula that tests/check_transform.c makes as well; the cube is 64 x 64 x 64 colours, every fourth level.
"""
import zlib

import numpy
import PIL
from PIL import Image, ImageEnhance

WIDTH, HEIGHT = 61, 47


def picture():
    y, x, c = numpy.mgrid[0:HEIGHT, 0:WIDTH, 0:3]
    return Image.fromarray(((x * 7 + y * 13 + c * 50 + (x * y) % 31 * 8) & 255).astype(numpy.uint8))


def cube():
    level = numpy.minimum(numpy.arange(64) * 4 + 3, 255).astype(numpy.uint8)
    r, g, b = numpy.meshgrid(level, level, level, indexing="ij")
    return Image.fromarray(numpy.stack([r, g, b], -1).reshape(512, 512, 3))


def adjust_hue(image, factor):
    h, s, v = image.convert("HSV").split()
    turned = (numpy.array(h).astype(numpy.int32) + int(factor * 255)) & 255  # the byte wraps
    h = Image.fromarray(turned.astype(numpy.uint8))
    return Image.merge("HSV", (h, s, v)).convert("RGB")


def grayscale(image, _):
    gray = numpy.array(image.convert("L"))
    return Image.fromarray(numpy.dstack([gray, gray, gray]))


OPERATIONS = [
    (lambda i, f: ImageEnhance.Brightness(i).enhance(f), [0.0, 0.3, 0.7, 1.0, 1.4, 2.5]),
    (lambda i, f: ImageEnhance.Contrast(i).enhance(f), [0.0, 0.3, 0.7, 1.0, 1.4, 2.5]),
    (lambda i, f: ImageEnhance.Color(i).enhance(f), [0.0, 0.3, 0.7, 1.0, 1.4, 2.5]),
    (adjust_hue, [-0.5, -0.21, -0.01, 0.0, 0.1, 0.333, 0.5]),
    (grayscale, [0.0]),
]

print("/* SPDX-License-Identifier: MIT */")
print(f"/* Made by tests/color-reference.py with Pillow {PIL.__version__}. Columns: operation, factor, CRC of picture, of cube. */")
print("static const struct {\n    int operation;\n    double factor;\n    uint32_t picture, cube;\n} color_reference[] = {")
for number, (operation, factors) in enumerate(OPERATIONS):
    for factor in factors:
        crcs = [zlib.crc32(operation(image, factor).tobytes()) for image in (picture(), cube())]
        print(f"    {{{number}, {factor}, 0x{crcs[0]:08x}, 0x{crcs[1]:08x}}},")
print("};")
