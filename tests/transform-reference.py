#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/transform-reference.h: what Pillow, numpy and torchvision's formulas say the transform stage must give.

    python3 -m venv venv && venv/bin/pip install pillow==12.0.0 numpy
    venv/bin/python tests/transform-reference.py > tests/transform-reference.h

Pillow 12 and before, horizontal pass first always: since 13.0 a picture that becomes wider and less high is resampled
vertically first, which changes some pixels by one.

Not needed at build or test time. Pixels come from Image.resize(), Image.crop() and Image.transpose() of real Pillow on
a picture made by formula (picture() here and in check_transform.c). Where torchvision is installed, its own functions
are run beside the formulas written out here, and the script stops where they differ.
"""
import decimal
import math
import random
import sys
import zlib

import numpy
import PIL
from PIL import Image

try:
    import torch
    import torchvision
    from torchvision.transforms import v2
except ImportError:
    torch = torchvision = None

FILTERS = {0: Image.Resampling.NEAREST, 2: Image.Resampling.BILINEAR, 3: Image.Resampling.BICUBIC}


def picture(width, height, channels):
    """A smooth part, edges and noise; 32-bit arithmetic."""
    y, x, c = numpy.meshgrid(numpy.arange(height, dtype=numpy.uint32), numpy.arange(width, dtype=numpy.uint32),
                             numpy.arange(channels, dtype=numpy.uint32), indexing="ij")
    noise = (x * numpy.uint32(2654435761) + y * numpy.uint32(2246822519) + c * numpy.uint32(3266489917))
    noise ^= noise >> numpy.uint32(15)
    noise *= numpy.uint32(2246822519)
    smooth = x * 3 + y * 5 + c * 85
    edge = numpy.where(((x // 7 + y // 5) & 1) == 1, numpy.uint32(255), numpy.uint32(0))
    kind = (x // 16 + y // 16) % 3
    value = numpy.where(kind == 0, smooth, numpy.where(kind == 1, edge, noise >> numpy.uint32(24))) & 255
    return value.astype(numpy.uint8)


def image(width, height, channels):
    pixels = picture(width, height, channels)
    return Image.fromarray(pixels[:, :, 0], "L") if channels == 1 else Image.fromarray(pixels, "RGB")


def crc(im):
    return zlib.crc32(numpy.asarray(im).tobytes())


def resize(im, width, height, number):
    return im if im.size == (width, height) else im.resize((width, height), FILTERS[number])


# Random numbers: Philox4x32-10, as base/random.h keys it. ------------------------------------------------------------

def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's known answer


def draw(key, operation, number):
    seed, epoch, position = key
    k = philox([epoch & 0xFFFFFFFF, epoch >> 32, 0x6C6F6164, 0x6572640A], [seed & 0xFFFFFFFF, seed >> 32])
    return philox([position & 0xFFFFFFFF, position >> 32, number, operation], k[:2])


def unit(word):
    return (word >> 8) / (1 << 24)


def below(high, low, n):
    return (((high << 32) | low) * n) >> 64


assert int(PIL.__version__.split(".")[0]) < 13, "the order of the passes is that of Pillow before 13"
CROP, FLIP = 3, 4


def get_params(width, height, scale, ratio, key):
    """torchvision's RandomResizedCrop.get_params() with our random numbers; returns left, top, width, height, tries."""
    area = height * width
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(10):
        shape, place = draw(key, CROP, 2 * attempt), draw(key, CROP, 2 * attempt + 1)
        target_area = area * (scale[0] + unit(shape[0]) * (scale[1] - scale[0]))
        aspect_ratio = math.exp(log_ratio[0] + unit(shape[1]) * (log_ratio[1] - log_ratio[0]))
        w = int(round(math.sqrt(target_area * aspect_ratio)))
        h = int(round(math.sqrt(target_area / aspect_ratio)))
        if 0 < w <= width and 0 < h <= height:
            i = below(place[0], place[1], height - h + 1)
            j = below(place[2], place[3], width - w + 1)
            return j, i, w, h, attempt
    in_ratio = float(width) / float(height)
    if in_ratio < min(ratio):
        w = width
        h = int(round(w / min(ratio)))
    elif in_ratio > max(ratio):
        h = height
        w = int(round(h * max(ratio)))
    else:
        w = width
        h = height
    return (width - w) // 2, (height - h) // 2, w, h, 10


def centre_crop(im, size, crop_width, crop_height, number):
    """Resize(size) and CenterCrop((crop_height, crop_width)); size 0: no resize."""
    original = im
    w, h = im.size
    if size:
        short, long = (w, h) if w <= h else (h, w)
        new_short, new_long = size, int(size * long / short)
        w, h = (new_short, new_long) if w <= h else (new_long, new_short)
        im = resize(im, w, h, number)
    left = int(round((w - crop_width) / 2.0)) if crop_width <= w else -((crop_width - w) // 2)
    top = int(round((h - crop_height) / 2.0)) if crop_height <= h else -((crop_height - h) // 2)
    result = im.crop((left, top, left + crop_width, top + crop_height))  # Pillow gives zeros outside
    if torchvision:
        mode = {0: v2.InterpolationMode.NEAREST, 2: v2.InterpolationMode.BILINEAR,
                3: v2.InterpolationMode.BICUBIC}[number]
        theirs = v2.functional.resize(original, [size], interpolation=mode) if size else original
        theirs = v2.functional.center_crop(theirs, [crop_height, crop_width])
        assert crc(theirs) == crc(result), (original.size, size, crop_width, crop_height)
    return result, (w, h, left, top)


# Tables. --------------------------------------------------------------------------------------------------------------

def resize_table():
    sizes = [(303, 260, 224, 224), (500, 375, 224, 224), (224, 224, 224, 224), (97, 61, 224, 224), (32, 32, 33, 31),
             (1, 1, 1, 1), (1, 1, 224, 224), (1, 300, 7, 5), (300, 1, 5, 7), (640, 3, 3, 64), (3, 640, 64, 3),
             (2, 2, 5, 5), (1000, 40, 13, 200), (40, 1000, 200, 13), (4097, 2, 1, 1), (2, 4097, 1, 1), (1, 4000, 1, 1),
             (255, 256, 256, 255), (224, 300, 224, 224), (300, 224, 224, 224), (1600, 1200, 96, 96),
             (8000, 9, 224, 9), (9, 8000, 9, 224), (5, 5, 4, 4), (7, 7, 700, 1), (100, 100, 99, 101)]
    chosen = random.Random(1)
    for _ in range(60):
        edge = lambda: int(math.exp(chosen.uniform(0, math.log(700))))
        sizes.append((edge(), edge(), edge(), edge()))
    for width, height, to_width, to_height in sizes:
        for channels in (1, 3):
            for number in FILTERS:
                out = image(width, height, channels).resize((to_width, to_height), FILTERS[number])
                print(f"    {{{width}, {height}, {channels}, {to_width}, {to_height}, {number}, 0x{crc(out):08x}}},")


def box_table():
    chosen = random.Random(2)
    for n in range(60):
        width, height = chosen.randint(1, 500), chosen.randint(1, 400)
        w, h = chosen.randint(1, width), chosen.randint(1, height)
        x, y = chosen.randint(0, width - w), chosen.randint(0, height - h)
        to_width, to_height = chosen.randint(1, 256), chosen.randint(1, 256)
        flip, upside_down, channels, number = n & 1, n >> 1 & 1, (1, 3)[n % 3 > 0], (0, 2, 3, 2)[n >> 2 & 3]
        if n % 10 == 0:
            to_width, to_height = w, h
        out = image(width, height, channels).crop((x, y, x + w, y + h)).resize((to_width, to_height), FILTERS[number])
        if flip:
            out = out.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if upside_down:
            out = out.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        print(f"    {{{width}, {height}, {channels}, {{{x}, {y}, {w}, {h}}}, {to_width}, {to_height}, {flip}, "
              f"{upside_down}, {number}, 0x{crc(out):08x}}},")


def centre_table():
    cases = [(500, 375, 256, 224, 224), (375, 500, 256, 224, 224), (256, 256, 256, 224, 224), (100, 80, 256, 224, 224),
             (300, 200, 0, 224, 224), (223, 225, 0, 224, 224), (10, 7, 0, 20, 31), (333, 1000, 232, 224, 224),
             (1000, 3, 33, 32, 32), (3, 1000, 33, 32, 32), (641, 480, 255, 200, 100), (480, 641, 255, 100, 200),
             (64, 48, 40, 64, 64), (48, 64, 40, 41, 39), (1, 1, 0, 4, 5), (1, 1, 3, 2, 2), (1024, 683, 342, 336, 336),
             (227, 149, 146, 131, 128)]
    for n, (width, height, size, crop_width, crop_height) in enumerate(cases):
        for number in FILTERS:
            channels = 1 if n % 5 == 4 else 3
            out, (w, h, left, top) = centre_crop(image(width, height, channels), size, crop_width, crop_height, number)
            print(f"    {{{width}, {height}, {channels}, {size}, {crop_width}, {crop_height}, {number}, {w}, {h}, "
                  f"{left}, {top}, 0x{crc(out):08x}}},")


def crop_table():
    sizes = [(500, 375), (375, 500), (64, 48), (1, 1), (1000, 3), (3, 1000), (1, 65535), (65535, 65535), (7, 5),
             (224, 224), (2, 1)]
    kinds = [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 1.0), (3 / 4, 4 / 3)), ((1.0, 1.0), (1.0, 1.0)),
             ((0.01, 0.02), (0.2, 5.0)), ((1.5, 2.0), (3 / 4, 4 / 3)), ((0.25, 0.25), (0.5, 0.5))]
    position = 0
    for width, height in sizes:
        for scale, ratio in kinds:
            for _ in range(3):
                key = (0x123456789ABCDEF0 + position % 5, position % 7, position * 0x100000001)
                x, y, w, h, tries = get_params(width, height, scale, ratio, key)
                flip = draw(key, FLIP, 0)
                flips = int(unit(flip[0]) < 0.5) | int(unit(flip[1]) < 0.25) << 1
                if h >= 1 and w >= 1:
                    print(f"    {{{width}, {height}, {{{scale[0]!r}, {scale[1]!r}}}, {{{ratio[0]!r}, {ratio[1]!r}}}, "
                          f"{{UINT64_C({key[0]}), {key[1]}, UINT64_C({key[2]})}}, {{{x}, {y}, {w}, {h}}}, {flips}}},"
                          f" /* {tries} */")
                position += 1


def padded_table():
    """RandomCrop(size, padding, pad_if_needed=True) on a 3-channel picture."""
    cases = [(32, 32, 32, 32, 4), (28, 28, 28, 28, 2), (40, 30, 32, 32, 0), (20, 50, 32, 24, 3), (5, 5, 16, 3, 1),
             (32, 32, 8, 8, 40), (1, 1, 1, 1, 3)]
    for n, (width, height, crop_width, crop_height, padding) in enumerate(cases):
        for m in range(6):
            key = (n, m, 1000 + n * m)
            flip = m & 1
            pad_x = pad_y = padding
            pad_x += max(crop_width - (width + 2 * padding), 0)
            pad_y += max(crop_height - (height + 2 * padding), 0)
            words = draw(key, CROP, 0)
            top = below(words[0], words[1], height + 2 * pad_y - crop_height + 1) - pad_y
            left = below(words[2], words[3], width + 2 * pad_x - crop_width + 1) - pad_x
            out = image(width, height, 3).crop((left, top, left + crop_width, top + crop_height))
            if flip:
                out = out.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            print(f"    {{{width}, {height}, {crop_width}, {crop_height}, {padding}, {{{key[0]}, {key[1]}, {key[2]}}}, "
                  f"{flip}, {left}, {top}, 0x{crc(out):08x}}},")


def to_bf16(value):
    """binary32 to bfloat16 bits, nearest even: by comparing the two neighbours exactly."""
    bits = int(numpy.float32(value).view(numpy.uint32))
    down, up = bits >> 16, (bits >> 16) + 1
    exact = lambda b: numpy.uint32(b << 16).view(numpy.float32).astype(numpy.float64)
    low, high, v = exact(down), exact(up), numpy.float64(value)
    if bits & 0xFFFF == 0 or abs(v - low) < abs(v - high):
        return down
    return up if abs(v - high) < abs(v - low) or down & 1 else down


def output_table():
    mean = numpy.array([0.485, 0.456, 0.406], numpy.float32)
    std = numpy.array([0.229, 0.224, 0.225], numpy.float32)
    pixels = picture(37, 23, 3)
    plain = pixels.astype(numpy.float32) / numpy.float32(255)
    product = pixels.astype(numpy.float32) * numpy.float32(1 / 255)  # v2's to_dtype(scale=True): within 1 ulp
    assert numpy.abs(plain.view(numpy.int32) - product.view(numpy.int32)).max() == 1
    normal = (plain - mean) / std
    assert normal.dtype == numpy.float32
    if torchvision:
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        theirs = tensor.to(torch.float32).div(255)  # as to_tensor() does
        assert numpy.array_equal(theirs.permute(1, 2, 0).numpy(), plain)
        theirs = v2.functional.normalize(theirs, mean.tolist(), std.tolist())
        assert numpy.array_equal(theirs.permute(1, 2, 0).numpy(), normal), \
            numpy.abs(theirs.permute(1, 2, 0).numpy() - normal).max()
        for kind, name in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
            bits = theirs.to(kind).view(torch.int16).permute(1, 2, 0).numpy().astype(numpy.uint16)
            assert numpy.array_equal(bits, narrow(normal, name)), name
    for normalize, values in ((0, plain), (1, normal)):
        for dtype in ("u8", "f32", "f16", "bf16"):
            if dtype == "u8" and normalize:
                continue
            data = {"u8": pixels, "f32": values}.get(dtype)
            data = narrow(values, dtype) if data is None else data
            nhwc, nchw = zlib.crc32(data.tobytes()), zlib.crc32(data.transpose(2, 0, 1).tobytes())
            print(f"    {{LOADERD_{dtype.upper()}, {normalize}, 0x{nhwc:08x}, 0x{nchw:08x}}},")


def narrow(values, dtype):
    if dtype == "f16":
        return values.astype(numpy.float16).view(numpy.uint16)
    return numpy.array([to_bf16(v) for v in values.ravel()], numpy.uint16).reshape(values.shape)


def half_table():
    """binary32 bits, binary16 bits (numpy), bfloat16 bits."""
    chosen = random.Random(3)
    bits = [0, 0x80000000, 0x33000000, 0x33000001, 0x32FFFFFF, 0x387FC000, 0x387FE000, 0x387FF000, 0x38800000,
            0x477FEFFF, 0x477FF000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x3F801000, 0x3F803000, 0x3F808000, 0x3F818000,
            0x33800000, 0x33C00000, 0xB3400000]
    bits += [chosen.randrange(0x32000000, 0x48000000) | chosen.choice((0, 0x80000000)) for _ in range(60)]
    with numpy.errstate(over="ignore"):
        for b in bits:
            v = numpy.uint32(b).view(numpy.float32)
            wide = 0x7F80 | (b >> 16 & 0x8000) if numpy.isinf(v) or b == 0x7F7FFFFF else to_bf16(v)
            print(f"    {{0x{b:08x}, 0x{int(v.astype(numpy.float16).view(numpy.uint16)):04x}, 0x{wide:04x}}},")


def clean_table():
    """dtype, are NaN zeroed, low, high, bits before and behind: numpy.nan_to_num and numpy.clip. bf16 as f32, since all
    bounds here are values of bf16."""
    ranges = [(-1.0, 1.0), (0.0, 1.0), (-0.5, -0.25), (2.0, 2.0), (-65504.0, 0.0), (-math.inf, math.inf)]
    values = [0.0, -0.0, 0.5, -0.5, -0.375, 1.0, -1.0, 1.25, -1.25, 3.0, 2.0, 60000.0, -60000.0, math.inf, -math.inf,
              math.nan]
    words = {"f16": numpy.uint16, "f32": numpy.uint32, "f64": numpy.uint64}
    for dtype, kind in (("f16", numpy.float16), ("f32", numpy.float32), ("f64", numpy.float64), ("bf16", numpy.float32)):
        for low, high in ranges:
            if dtype == "bf16" and low == -65504.0:
                continue
            for zero in (0, 1):
                before = numpy.array([v for v in values if dtype != "bf16" or abs(v) != 60000.0], kind)
                after = numpy.nan_to_num(before, nan=0.0, posinf=math.inf, neginf=-math.inf) if zero else before
                after = numpy.clip(after, kind(low), kind(high)) if math.isfinite(low) else after
                word, shift = words.get(dtype, numpy.uint32), 16 if dtype == "bf16" else 0
                for b, a in zip(before.view(word), after.view(word)):
                    text = [("-" if x < 0 else "") + "INFINITY" if math.isinf(x) else repr(x) for x in (low, high)]
                    print(f"    {{LOADERD_{dtype.upper()}, {zero}, {text[0]}, {text[1]}, 0x{int(b) >> shift:x}, "
                          f"0x{int(a) >> shift:x}}},")


def function_table(function):
    decimal.getcontext().prec = 60
    chosen = random.Random(4)
    if function == "exp":
        xs = [0.0, 1.0, -1.0, 0.5, 700.0, -700.0] + [chosen.uniform(-0.3, 0.3) for _ in range(60)]
        xs += [chosen.uniform(-700, 700) for _ in range(60)]
    else:
        xs = [1.0, 2.0, 0.5, 0.75, 4 / 3, 1 + 2 ** -52, 1 - 2 ** -53] + [chosen.uniform(0.5, 2) for _ in range(60)]
        xs += [math.exp(chosen.uniform(-300, 300)) for _ in range(60)]
    for x in xs:
        exact = decimal.Decimal(x).exp() if function == "exp" else decimal.Decimal(x).ln()
        print(f"    {{{x.hex()}, {float(exact).hex()}}},")


def pixel_table():
    """A picture small enough to read: 4x3 gray to 7x2, bilinear and bicubic."""
    for number in (2, 3):
        out = numpy.asarray(image(32, 32, 1).crop((14, 13, 18, 16)).resize((7, 2), FILTERS[number]))
        print("    {{" + ", ".join(str(v) for v in out.ravel()) + "}},")


def main():
    print("/* SPDX-License-Identifier: MIT */")
    print("/*\n * Made by tests/transform-reference.py (which says how) with "
          f"Pillow {PIL.__version__}, numpy {numpy.__version__}"
          + (f",\n * checked there against torch {torch.__version__} and torchvision {torchvision.__version__}"
             if torchvision else "") + ". Do not edit.\n */")
    tables = [
        ("resize_case resize_cases", resize_table), ("box_case box_cases", box_table),
        ("centre_case centre_cases", centre_table), ("crop_case crop_cases", crop_table),
        ("padded_case padded_cases", padded_table), ("output_case output_cases", output_table),
        ("half_case half_cases", half_table), ("function_case exp_cases", lambda: function_table("exp")),
        ("function_case log_cases", lambda: function_table("log")), ("pixel_case pixel_cases", pixel_table),
        ("clean_case clean_cases", clean_table)]
    for name, table in tables:
        print(f"\nstatic const struct {name}[] = {{")
        table()
        print("};")


if __name__ == "__main__":
    sys.exit(main())
