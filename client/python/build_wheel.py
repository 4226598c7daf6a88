#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes wheels of the package. Two uses:

As the build backend of pyproject.toml (PEP 517, PEP 660): `pip install ./client/python`. Plain Python, no dependency;
the package then uses the libloaderd that is installed.

As a program: a wheel that carries loaderd, loaderctl and the libraries, with the shared libraries that they need beside
them, found by RPATH (patchelf). It needs the C library of the machine it was built on, or a newer one, and nothing
else:

    client/python/build_wheel.py --build BUILD [--output FOLDER]
"""
from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from typing import Dict, Iterator, List, Optional, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "loaderd")
NAME = "loaderd"
EPOCH = (1980, 1, 1, 0, 0, 0)

#: of the C library: they belong to the machine (and so do those of a driver, which nothing here links)
SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl)|linux-vdso|libcuda)\.so")


def version() -> str:
    with open(os.path.join(PACKAGE, "__init__.py"), encoding="utf-8") as f:
        return re.search(r'^__version__ = "(.*)"', f.read(), re.M).group(1)


def metadata() -> str:
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {version()}",
             "Summary: Training batches, ready in shared memory: the Python side of loaderd", "License: MIT",
             "Requires-Python: >=3.9", "Requires-Dist: numpy>=1.21", "Provides-Extra: torch",
             'Requires-Dist: torch>=2.0; extra == "torch"', "Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


ENTRY_POINTS = "[console_scripts]\nloaderctl = loaderd._programs:loaderctl\nloaderd = loaderd._programs:loaderd\n"


def package_files() -> Iterator[Tuple[str, str]]:
    """(name in the wheel, file) of the Python sources."""
    for name in sorted(os.listdir(PACKAGE)):
        if name.endswith(".py") or name == "py.typed":
            yield f"{NAME}/{name}", os.path.join(PACKAGE, name)


class Wheel:
    """A zip with a RECORD. The same files give the same bytes."""

    def __init__(self, folder: str, tag: str):
        self.tag = tag
        self.info = f"{NAME}-{version()}.dist-info"
        self.name = f"{NAME}-{version()}-{tag}.whl"
        os.makedirs(folder, exist_ok=True)
        self.zip = zipfile.ZipFile(os.path.join(folder, self.name), "w", zipfile.ZIP_DEFLATED)
        self.record: List[Tuple[str, str, str]] = []

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        item = zipfile.ZipInfo(name, EPOCH)
        item.external_attr = (0o100000 | mode) << 16
        item.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(item, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append((name, f"sha256={digest}", str(len(data))))

    def add_file(self, name: str, path: str, mode: int = 0o644) -> None:
        with open(path, "rb") as f:
            self.add(name, f.read(), mode)

    def finish(self) -> str:
        pure = "true" if self.tag.endswith("-any") else "false"
        self.add(f"{self.info}/METADATA", metadata().encode())
        self.add(f"{self.info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: {NAME} build_wheel\nRoot-Is-Purelib: {pure}\n"
                                       f"Tag: {self.tag}\n".encode())
        self.add(f"{self.info}/entry_points.txt", ENTRY_POINTS.encode())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.record + [(f"{self.info}/RECORD", "", "")])
        item = zipfile.ZipInfo(f"{self.info}/RECORD", EPOCH)
        item.external_attr = 0o100644 << 16
        self.zip.writestr(item, text.getvalue())
        self.zip.close()
        return self.name


# ---- the backend -----------------------------------------------------------------------------------------------------

def build_wheel(wheel_directory: str, config_settings: Optional[dict] = None,
                metadata_directory: Optional[str] = None) -> str:
    wheel = Wheel(wheel_directory, "py3-none-any")
    for name, path in package_files():
        wheel.add_file(name, path)
    return wheel.finish()


def build_editable(wheel_directory: str, config_settings: Optional[dict] = None,
                   metadata_directory: Optional[str] = None) -> str:
    wheel = Wheel(wheel_directory, "py3-none-any")
    wheel.add(f"__editable__.{NAME}.pth", f"{HERE}\n".encode())
    return wheel.finish()


def build_sdist(sdist_directory: str, config_settings: Optional[dict] = None) -> str:
    base = f"{NAME}-{version()}"
    name = f"{base}.tar.gz"
    with tarfile.open(os.path.join(sdist_directory, name), "w:gz", format=tarfile.PAX_FORMAT) as tar:
        data = metadata().encode()
        item = tarfile.TarInfo(f"{base}/PKG-INFO")
        item.size = len(data)
        tar.addfile(item, io.BytesIO(data))
        for member in ("pyproject.toml", "README.md", "build_wheel.py"):
            tar.add(os.path.join(HERE, member), f"{base}/{member}")
        for member, path in package_files():
            tar.add(path, f"{base}/{member}")
    return name


def get_requires_for_build_wheel(config_settings: Optional[dict] = None) -> List[str]:
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel


# ---- the wheel that carries everything -------------------------------------------------------------------------------

def needed(path: str) -> Dict[str, str]:
    """Shared libraries that a file needs, by soname, as the dynamic linker finds them here."""
    output = subprocess.run(["ldd", path], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    found = {}
    for line in output.splitlines():
        match = re.match(r"\s*(\S+) => (.*?) \(0x", line)
        if match and not SYSTEM.match(match.group(1)):
            found[match.group(1)] = match.group(2)
        elif "not found" in line:
            sys.exit(f"build_wheel: {path} needs what this machine does not have: {line.strip()}")
    return found


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def installed(build: str, folder: str) -> Dict[str, str]:
    """What `make install-exec` makes of the build, under `folder`: the folders of programs and libraries there."""
    output = subprocess.run(["make", "-s", "-C", build, "--eval", "folders: ; @echo $(sbindir):$(bindir):$(libdir)",
                             "folders"], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    names = output.strip().splitlines()[-1].split(":")
    run("make", "-s", "-C", build, "install-exec", f"DESTDIR={folder}")
    return {key: folder + name for key, name in zip(("sbin", "bin", "lib"), names)}


def gather(folders: Dict[str, str], work: str) -> List[Tuple[str, str]]:
    """(name in the bundle, file), each a copy in `work` with its RPATH set."""
    files = []
    for name in ("sbin/loaderd", "bin/loaderctl", "lib/libloaderd.so.0", "lib/libloaderd-cuda.so.0"):
        folder, base = name.split("/")
        path = os.path.join(folders[folder], base)
        if os.path.exists(path):
            files.append((name, path))
        elif "cuda" not in name:
            sys.exit(f"build_wheel: the build installs no {name}; was it configured with --disable-shared?")
    ours = {os.path.basename(name) for name, _ in files}
    os.environ["LD_LIBRARY_PATH"] = folders["lib"]
    others: Dict[str, str] = {}
    for _, path in files:
        others.update((soname, p) for soname, p in needed(path).items() if soname not in ours)
    files += [(f"lib/{soname}", path) for soname, path in sorted(others.items())]
    result = []
    for name, path in files:
        copy = os.path.join(work, name.replace("/", "-"))
        shutil.copyfile(os.path.realpath(path), copy)
        os.chmod(copy, 0o755)
        run("strip", "--strip-unneeded", copy)
        rpath = "$ORIGIN" if name.startswith("lib/") else "$ORIGIN/../lib"
        run("patchelf", "--force-rpath", "--set-rpath", rpath, copy)
        result.append((name, copy))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a wheel that carries loaderd, loaderctl and the libraries.")
    parser.add_argument("--build", required=True, help="folder that configure and make have filled")
    parser.add_argument("--output", default=".", help="where the wheel goes (default: the current folder)")
    options = parser.parse_args()
    for tool in ("patchelf", "ldd", "strip", "make"):
        if shutil.which(tool) is None:
            sys.exit(f"build_wheel: no {tool} in PATH")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    with tempfile.TemporaryDirectory() as work:
        folders = installed(os.path.abspath(options.build), os.path.join(work, "install"))
        wheel = Wheel(options.output, f"py3-none-{platform}")
        for name, path in package_files():
            wheel.add_file(name, path)
        for name, path in gather(folders, work):
            wheel.add_file(f"{NAME}/_bundle/{name}", path, 0o755)
        print(os.path.join(options.output, wheel.finish()))


if __name__ == "__main__":
    main()
