#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What formats cost, as Markdown tables: index building against `cat`, random access by format against the folder, the
pack against the folder, second starts and index memory of a large set. Rounds are interleaved, figures are medians.

    tests/bench/formats.py FOLDER-OF-PICTURES      (from the build directory, or BUILD=...)

In the environment: WORK (several GB, a new folder in TMPDIR or /tmp), COPIES (of each picture, 5), ROUNDS (5), SECONDS_EACH
(of each warm measurement, 2; a cold one takes four times as long), SAMPLES (of the large set, 1281167), LINKS=no (no
folder of so many hard links), PARTS (some of "indexes access crops cold large"), FORMATS (of the second table, the
folder first), ORDER (shuffle=, full), WORKERS and DEPTH (of the cold table: as many as CPUs, 16).

A cold measurement ends before any sample is read twice: one that does not is repeated for a shorter time.
Before it the page cache is emptied of the
files in question by posix_fadvise(), which needs no rights; names, inodes and what the file system keeps of its tables stay
cached, unless DROP=yes, which needs root and empties the caches of the whole machine, as a first epoch after a start finds
them. What a disk's own cache or the host of a virtual one keeps cannot be emptied: make the set larger (COPIES) than that, and
look at the MB/s. The kernel's count of bytes from the device stands beside each figure; a pass that took less than a
twentieth of its bytes from there is an error.

Needs Python's standard library; for TFRecord the package crc32c."""
import glob
import io
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("BUILD", "."))
TOOL = os.path.join(BUILD, "loaderctl")
COPIES, ROUNDS = int(os.environ.get("COPIES", "5")), int(os.environ.get("ROUNDS", "5"))
SECONDS = os.environ.get("SECONDS_EACH", "2")
SAMPLES = int(os.environ.get("SAMPLES", "1281167"))
BYTES = ["--bytes", "image", "--bytes-cap", "256K", "--on-overflow", "truncate", "--batch", "16"]
CROP = ["--image", "224", "--augment", "random-resized-crop,flip", "--batch", "16"]
ORDER = ["--shuffle", os.environ.get("ORDER", "full")]
ONE = ["--workers", "1", "--seconds", SECONDS]


# ---- data -------------------------------------------------------------------------------------------------------------
def masked(data):
    import crc32c
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def piece(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(**features):
    return piece(1, b"".join(piece(1, piece(1, k.encode()) + piece(2, piece(1, piece(1, v)) if isinstance(v, bytes)
                                                                    else piece(3, piece(1, varint(v)))))
                             for k, v in features.items()))


def record(data):
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))


def mds(folder, samples, shards):
    """samples: (bytes, label); encodings bytes and int."""
    os.makedirs(folder)
    entries = []
    for i in range(shards):
        mine = samples[len(samples) * i // shards:len(samples) * (i + 1) // shards]
        records = [struct.pack("<I", len(data)) + data + struct.pack("<q", label) for data, label in mine]
        offsets, at = [], 4 + 4 * (len(mine) + 1)
        for r in records:
            offsets.append(at)
            at += len(r)
        name = "shard.%05d.mds" % i
        with open(os.path.join(folder, name), "wb") as f:
            f.write(struct.pack("<%dI" % (len(mine) + 2), len(mine), *offsets, at) + b"".join(records))
        entries.append({"column_encodings": ["bytes", "int"], "column_names": ["image", "label"], "column_sizes": [None, 8],
                        "compression": None, "format": "mds", "hashes": [], "version": 2, "zip_data": None,
                        "raw_data": {"basename": name, "bytes": at, "hashes": {}}, "samples": len(mine), "size_limit": None})
    with open(os.path.join(folder, "index.json"), "w") as f:
        json.dump({"version": 2, "shards": entries}, f)


def make(work, pictures):
    """The same pictures in every format, in the same order."""
    files = sorted(os.path.join(d, f) for d, _, names in os.walk(pictures) for f in names
                   if f.lower().endswith((".jpeg", ".jpg")))
    if not files:
        sys.exit("no JPEG files below " + pictures)
    data = {"folder": os.path.join(work, "folder"), "list": os.path.join(work, "folder", "list"),
            "webdataset": os.path.join(work, "wds-*.tar"), "mds": os.path.join(work, "mds"),
            "pack": os.path.join(work, "pack"), "coefficients": os.path.join(work, "coefficients.pack")}
    try:
        import crc32c  # noqa: F401
        data["tfrecord"] = os.path.join(work, "*.tfrecord")
    except ImportError:
        print("tfrecord is left out: pip install crc32c", file=sys.stderr)
    if os.path.isdir(data["folder"]):
        return data
    samples, lines = [], []
    for copy in range(COPIES):
        for i, file in enumerate(files):
            with open(file, "rb") as f:
                samples.append((f.read(), i % 100))
    order = sorted(range(len(samples)), key=lambda i: (samples[i][1], i))
    samples = [samples[i] for i in order]
    for i, (content, label) in enumerate(samples):
        name = "c%03d/%06d.jpg" % (label, i)
        os.makedirs(os.path.join(data["folder"], name[:4]), exist_ok=True)
        with open(os.path.join(data["folder"], name), "wb") as f:
            f.write(content)
        lines.append("%s\t%d\n" % (name, label))
    with open(data["list"], "w") as f:
        f.writelines(lines)
    for shard in range(4):
        span = range(len(samples) * shard // 4, len(samples) * (shard + 1) // 4)
        with tarfile.open(os.path.join(work, "wds-%d.tar" % shard), "w", format=tarfile.USTAR_FORMAT) as t:
            for i in span:
                for suffix, content in (("jpg", samples[i][0]), ("cls", b"%d" % samples[i][1])):
                    info = tarfile.TarInfo("%06d.%s" % (i, suffix))
                    info.size = len(content)
                    t.addfile(info, io.BytesIO(content))
        if "tfrecord" in data:
            with open(os.path.join(work, "%d.tfrecord" % shard), "wb") as f:
                for i in span:
                    f.write(record(example(image=samples[i][0], label=samples[i][1])))
    mds(data["mds"], samples, 4)
    subprocess.run([TOOL, "pack", data["folder"], data["pack"], "--shards", "4", "--metadata", "keep"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([TOOL, "pack", data["folder"], data["coefficients"], "--jpeg", "coefficients"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.sync()
    return data


def files_of(path):
    for name in glob.glob(path):
        if os.path.isdir(name):
            for d, _, names in os.walk(name):
                yield from (os.path.join(d, n) for n in names)
        else:
            yield name


def evict(path):
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    if os.environ.get("DROP") == "yes":
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")


def warm(path):
    for name in files_of(path):
        with open(name, "rb") as f:
            while f.read(1 << 20):
                pass


# ---- measurements -----------------------------------------------------------------------------------------------------
values = {}


def note(name, value):
    values.setdefault(name, []).append(value)


def median(name):
    return statistics.median(values[name]) if values.get(name) else float("nan")


def bench(path, *keys):
    run = subprocess.run([TOOL, "bench", path, *keys, "--json"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return json.loads(run.stdout[run.stdout.index("{"):])


cold_seconds = {}


def bench_cold(data, name, path, *keys):
    """Of the dataset `name`, whose files lie at `path`: less than one pass from a cold cache."""
    total = sum(f.endswith(".jpg") for f in files_of(data["folder"]))
    seconds = cold_seconds.get((name, keys), 4 * float(SECONDS))
    while True:
        evict(path)
        result = bench(name, *keys, "--seconds", "%.3f" % seconds)
        taken = result["samples"] + result["warmup"]["samples"] + 8 * 16
        if taken <= total:
            break
        seconds *= 0.8 * total / taken
    cold_seconds[name, keys] = seconds
    if result["page_cache"] == "warm":
        sys.exit("%s: the page cache held what was to be read from the device" % path)
    return result


def bench_state(data, name, path, state, *keys):
    if state == "cold":
        return bench_cold(data, name, path, "--workers", "1", *keys)
    warm(path)
    return bench(name, *keys, *ONE)


def fields_of(name):
    return {"tfrecord": ["--fields", "image:image label:label"], "mds": ["--fields", "image:image label:label"]}.get(name, [])


def cat(path):
    begun = time.perf_counter()
    subprocess.run(["cat", *files_of(path)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def open_seconds(path, name, index="none"):
    """Of opening alone: one batch is taken."""
    run = subprocess.run([TOOL, "bench", path, "--index", index, "--workers", "1", "--batch", "1", "--bytes", "image",
                          "--bytes-cap", "1K", "--on-overflow", "truncate", "--seconds", "0.01", "--json", *fields_of(name)],
                         capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return json.loads(run.stdout[run.stdout.index("{"):])["open_ms"] / 1e3


def table(title, *heads):
    print("\n%s\n\n| %s |\n|%s" % (title, " | ".join(heads), "---|" * len(heads)))


def line(*cells):
    print("| %s |" % " | ".join(str(c) for c in cells), flush=True)


def indexes(data):
    names = [n for n in ("webdataset", "tfrecord", "mds", "pack") if n in data]
    for _ in range(ROUNDS):
        for name in names:
            for state in ("cold", "warm"):
                for what in ("index", "cat"):
                    evict(data[name]) if state == "cold" else warm(data[name])
                    note((name, state, what), cat(data[name]) if what == "cat" else open_seconds(data[name], name))
    table("Index building against reading the same bytes once with `cat`", "format", "cold: s", "`cat`", "ratio",
          "warm: s", "`cat`", "ratio")
    for name in names:
        v = {(s, w): median((name, s, w)) for s in ("cold", "warm") for w in ("index", "cat")}
        line(name, *sum((["%.3f" % v[s, "index"], "%.3f" % v[s, "cat"], "%.3f" % (v[s, "index"] / v[s, "cat"])]
                         for s in ("cold", "warm")), []))


def access(data):
    names = [n for n in os.environ.get("FORMATS", "folder list webdataset tfrecord mds pack").split() if n in data]
    for _ in range(ROUNDS):
        for name in names:
            for state in ("warm", "cold"):
                path = data["folder"] if name == "list" else data[name]
                result = bench_state(data, data[name], path, state, *BYTES, *ORDER, *fields_of(name))
                note((name, state), result["samples_per_s"])
    table("Random access, undecoded, one worker", "format", "warm: samples/s", "to folder", "cold: samples/s", "to folder")
    for name in names:
        line(name, *sum((["%.0f" % median((name, s)), "%.2f" % (median((name, s)) / median(("folder", s)))]
                         for s in ("warm", "cold")), []))


def crops(data):
    names = ("folder", "pack", "coefficients")
    for _ in range(ROUNDS):
        for name in names:
            for state in ("warm", "cold"):
                note((name, state, "crop"), bench_state(data, data[name], data[name], state, *CROP, *ORDER)["samples_per_s"])
    table("JPEG, RandomResizedCrop 224 and flip, samples/s of one worker", "stored as", "warm", "to folder", "cold",
          "to folder")
    for name in names:
        line(name, *sum((["%.0f" % median((name, s, "crop")),
                          "%.2f" % (median((name, s, "crop")) / median(("folder", s, "crop")))] for s in ("warm", "cold")), []))


def cold(data):
    """Cold reads in turns, the first one another in each round; `cat` of the pack in the same rounds says what the
    disk gave. `chunked` keeps neighbours together, four runs of 64 at a time: a pack has them side by side."""
    orders = {"full": ["--shuffle", "full"], "chunked": ["--shuffle", "chunked", "--chunk", "64", "--window", "4"]}
    works = {"undecoded": BYTES, "RandomResizedCrop": CROP}
    names = ("folder", "pack", "coefficients")
    jobs = [(w, o, n) for w in works for o in orders for n in names
            if (w, n) != ("undecoded", "coefficients")] + ["cat"]  # coefficients are no bytes for others
    keys = ["--workers", os.environ.get("WORKERS", str(os.cpu_count())), "--depth", os.environ.get("DEPTH", "16")]
    for turn in range(ROUNDS):
        rates = {}
        for job in jobs[turn % len(jobs):] + jobs[:turn % len(jobs)]:
            if job == "cat":
                evict(data["pack"])
                size = sum(os.path.getsize(f) for f in files_of(data["pack"]))
                note("cat", size / cat(data["pack"]) / 1e6)
                continue
            work, order, name = job
            result = bench_cold(data, data[name], data[name], *works[work], *orders[order], *keys)
            rates[job] = result["samples_per_s"]
            note((job, "rate"), rates[job])
            note((job, "device"), result["device_bytes"] / result["samples"])
            note((job, "mb"), result["device_bytes"] / result["seconds"] / 1e6)
        for work, order, name in rates:
            note(((work, order, name), "ratio"), rates[work, order, name] / rates[work, order, "folder"])
    table("From a cold cache (`cat` of the pack: median %.0f MB/s, %.0f to %.0f; %s)" % (
        median("cat"), min(values["cat"]), max(values["cat"]),
        "caches of the machine emptied" if os.environ.get("DROP") == "yes" else "names and inodes cached"),
          "what", "order", "stored as", "samples/s", "to folder", "rounds", "device MB/s", "device kB a sample")
    for job in jobs[:-1]:
        rate, ratio = median((job, "rate")), median((job, "ratio"))
        folder = job[2] == "folder"
        line(*job, "%.0f" % rate, "1" if folder else "%.2f" % ratio,
             "" if folder else "%.2f to %.2f" % (min(values[(job, "ratio")]), max(values[(job, "ratio")])),
             "%.0f" % median((job, "mb")), "%.1f" % (median((job, "device")) / 1e3))


def large(work):
    """A set of SAMPLES: first and second start, and what its index takes."""
    sets = {}
    with open(next(files_of(os.path.join(work, "folder", "c000"))), "rb") as f:
        picture = f.read()
    base = os.path.join(work, "large")
    os.makedirs(base, exist_ok=True)
    names = ["c%03d/%07d.jpg" % (i * 1000 // SAMPLES, i) for i in range(SAMPLES)]
    sets["list"] = os.path.join(base, "list")
    with open(sets["list"], "w") as f:
        f.writelines("%s\t%s\n" % (n, n[1:4]) for n in names)
    sets["webdataset"] = os.path.join(base, "w-*.tar")
    info = tarfile.TarInfo("0" * 7 + ".txt")
    info.size = 1
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[148:156] = b" " * 8
    total = sum(block) - 7 * 48
    for shard in range(64):
        with open(os.path.join(base, "w-%02d.tar" % shard), "wb") as f:
            for i in range(SAMPLES * shard // 64, SAMPLES * (shard + 1) // 64):
                name = b"%07d" % i
                block[:7] = name
                block[148:156] = b"%06o\0 " % (total + sum(name))
                f.write(block + b"x".ljust(512, b"\0"))
            f.write(b"\0" * 1024)
    if "crc32c" in sys.modules:
        sets["tfrecord"] = os.path.join(base, "*.tfrecord")
        for shard in range(16):
            with open(os.path.join(base, "%02d.tfrecord" % shard), "wb") as f:
                one = record(example(text=b"x", label=shard))
                f.write(one * (SAMPLES * (shard + 1) // 16 - SAMPLES * shard // 16))
    if os.environ.get("LINKS") != "no":
        sets["folder"] = os.path.join(base, "folder")
        for i, name in enumerate(names):
            target = os.path.join(base, "folder", name)
            if i == 0 or name[:4] != names[i - 1][:4]:
                os.makedirs(os.path.dirname(target))
                first = target
                with open(first, "wb") as f:
                    f.write(picture)
            else:
                os.link(first, target)
    table("Starts with %d samples" % SAMPLES, "format", "first: s", "second: s", "index: bytes a sample")
    keys = {"webdataset": ["--fields", "txt:text"], "tfrecord": ["--fields", "text:text label:label", "--bytes", "text"]}
    time.sleep(3)  # so that the scan is not as young as what it scans
    for name, path in sets.items():
        index = os.path.join(base, name + ".index")
        run = [TOOL, "bench", path, "--index", index, "--workers", "1", "--batch", "1", "--bytes-cap", "1K", "--seconds",
               "0.01", "--json", "--on-error", "blank", *keys.get(name, [])]
        seconds = []
        for _ in range(1 + ROUNDS):
            out = subprocess.run(run, capture_output=True, text=True)
            if out.returncode != 0:
                sys.exit(out.stderr)
            seconds.append(json.loads(out.stdout[out.stdout.index("{"):])["open_ms"] / 1e3)
        size = os.path.getsize(index) if os.path.exists(index) else float("nan")
        line(name, "%.2f" % seconds[0], "%.3f" % statistics.median(seconds[1:]), "%.1f" % (size / SAMPLES))


def main():
    if len(sys.argv) != 2 or not os.access(TOOL, os.X_OK):
        sys.exit(__doc__)
    work = os.environ.get("WORK") or tempfile.mkdtemp(prefix="loaderd-formats.")
    try:
        data = make(work, sys.argv[1])
        for part in os.environ.get("PARTS", "indexes access crops cold large").split():
            {"indexes": indexes, "access": access, "crops": crops, "cold": cold, "large": lambda _: large(work)}[part](data)
    finally:
        if not os.environ.get("WORK"):
            shutil.rmtree(work)


main()
