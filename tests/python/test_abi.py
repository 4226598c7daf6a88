# SPDX-License-Identifier: MIT
"""The structs of loaderd/_library.py against the compiler's view of the headers."""
import ctypes
import os
import shutil
import subprocess

import pytest
from conftest import SOURCE
from loaderd import _arrays, _library

STRUCTS = [("loaderd/loaderd.h", {"loaderd_field": _library.Field, "loaderd_batch": _library.Batch,
                                  "loaderd_state": _library.State, "loaderd_options": _library.Options,
                                  "loaderd_info": _library.Info, "loaderd_statistics": _library.Statistics}),
           ("loaderd/cuda.h", {"loaderd_cuda_finish_spec": _library.FinishSpec,
                               "loaderd_cuda_options": _library.CudaOptions, "loaderd_cuda_info": _library.CudaInfo,
                               "loaderd_cuda_statistics": _library.CudaStatistics})]


def fields_of(structure):
    return [(name, getattr(structure, name)) for name, *_ in structure._fields_ if not name.startswith("_")]


def compiled(header, lines, folder):
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    include = os.path.join(SOURCE, "include")
    if compiler is None or not os.path.exists(os.path.join(include, header)):
        pytest.skip(f"no C compiler, or no {header}")
    source = os.path.join(folder, "abi.c")
    with open(source, "w") as f:
        f.write(f"#include <{header}>\n#include <stddef.h>\n#include <stdio.h>\n"
                "#define MEMBER(s, m) printf(#m \" %zu %zu\\n\", offsetof(struct s, m), sizeof ((struct s *)0)->m)\n"
                "#define SIZE(s) printf(\"size %zu 0\\n\", sizeof(struct s))\nint main(void) {\n"
                + "\n".join(lines) + "}\n")
    subprocess.run([compiler, "-I", include, "-o", source[:-2], source], check=True)
    output = subprocess.run([source[:-2]], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    return [(name, int(offset), int(size)) for name, offset, size in (line.split() for line in output.splitlines())]


@pytest.mark.parametrize("header, name, structure", [(h, n, s) for h, structs in STRUCTS for n, s in structs.items()])
def test_structs(header, name, structure, tmp_path):
    members = fields_of(structure)
    found = compiled(header, [f"MEMBER({name}, {m});" for m, _ in members] + [f"SIZE({name});"], str(tmp_path))
    assert found[:-1] == [(m, member.offset, member.size) for m, member in members]
    room = getattr(structure, "_room", None)
    if room is None:
        assert found[-1][1] == ctypes.sizeof(structure)
    else:  # what the library fills, and more
        assert found[-1][1] <= ctypes.sizeof(structure) - 128
        assert found[-1][1] == room.offset


def test_rows(tmp_path):
    names = _arrays.ROW.names
    found = compiled("loaderd/loaderd.h", [f"MEMBER(loaderd_row, {m});" for m in names] + ["SIZE(loaderd_row);"],
                     str(tmp_path))
    assert found[:-1] == [(m, _arrays.ROW.fields[m][1], _arrays.ROW.fields[m][0].itemsize) for m in names]
    assert found[-1][1] == _arrays.ROW.itemsize


def test_constants():
    path = os.path.join(SOURCE, "include", "loaderd", "loaderd.h")
    if not os.path.exists(path):
        pytest.skip("no header: the installed package is tested")
    with open(path) as f:
        text = f.read()
    for value, name in _library.DTYPE_NAMES.items():
        assert f"LOADERD_{name.upper()} = {value}" in text
    for name in ("ROW_PADDING", "ROW_SUBSTITUTED", "ROW_BLANK", "ROW_DAMAGED", "BATCH_LAST"):
        assert f"#define LOADERD_{name} {getattr(_library, name):#x}u" in text
