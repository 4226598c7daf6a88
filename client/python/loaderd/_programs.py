# SPDX-License-Identifier: MIT
"""The commands loaderd and loaderctl: those that a wheel carries, else the next ones in PATH."""
from __future__ import annotations

import os
import sys

from ._library import BUNDLE


def _run(folder: str, name: str) -> None:
    bundled = os.path.join(BUNDLE, folder, name)
    candidates = [bundled]
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(directory, name)
        if directory and os.path.realpath(path) != os.path.realpath(sys.argv[0]):
            candidates.append(path)
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK) and not _is_ours(path):
            os.execv(path, [name] + sys.argv[1:])
    sys.exit(f"{name}: this Python package was installed without the programs, and none is in PATH: install loaderd")


def _is_ours(path: str) -> bool:
    """A script like this one, of another environment: it would only look further."""
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


def loaderd() -> None:
    _run("sbin", "loaderd")


def loaderctl() -> None:
    _run("bin", "loaderctl")
