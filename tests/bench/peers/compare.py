#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""loaderd beside other loaders: the same pictures, crops and cores, in turns of a second or two, as a Markdown table.

    python3 -m venv peers && peers/bin/pip install -r tests/bench/peers/requirements.txt   # or one package at a time
    BUILD=build peers/bin/python tests/bench/peers/compare.py FOLDER [--cores 2] [--rounds 9] [--seconds 1.5]
    ... --trainer 50      the same with a loop beside it that launches for 50 ms a batch on the same cores

FOLDER holds JPEG files. Each loader is a process that lives through all rounds, limited to the cores, and stopped
(SIGSTOP, with all that it started) while another one is measured. The figures are medians of the rounds; the ratios are
medians of the ratios of ours to the other one in the same round. "A CPU second" counts the time of all the processes of
a loader, its consumer's too: on a machine that does other things besides it says more than the clock. A loader that cannot be had stands there with its
reason. SPDL wants the shared libraries of FFmpeg; FFCV those of OpenCV and libjpeg-turbo with their headers.

WORK (a new folder in TMPDIR or /tmp) takes the tar, the pack and the records: about 2 GB."""
import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import loaders  # noqa: E402

TAR_COPIES = 4
RECORDS = 900  # of 602,112 bytes
TAG = "LOADERD_PEERS_CONTENDER"


def make_data(folder: str, work: str, build: str, batch: int, workers: int) -> loaders.Job:
    job = loaders.Job(folder=folder, tar=os.path.join(work, "pictures.tar"), records=os.path.join(work, "records.f32"),
                      pack=os.path.join(work, "pictures.pack"), work=work, batch=batch, workers=workers)
    if not os.path.exists(job.tar):
        with tarfile.open(job.tar + ".new", "w", format=tarfile.USTAR_FORMAT) as tar:
            for copy in range(TAR_COPIES):
                for i, path in enumerate(loaders.files_of(folder)):
                    tar.add(path, arcname=f"{copy}{i:07d}.jpg")
        os.rename(job.tar + ".new", job.tar)
    if not os.path.exists(job.records):
        with open(job.records, "wb") as file:
            for _ in range(RECORDS):
                file.write(os.urandom(602112 // 4) * 4)
    if not os.path.exists(job.pack):
        subprocess.run([os.path.join(build, "loaderctl"), "pack", folder, job.pack, "--jpeg", "coefficients"],
                       check=True, stdout=subprocess.DEVNULL)
    return job


class Contender:
    """One loader's process and all that it started."""

    def __init__(self, name: str, job: loaders.Job, cores: List[int], step_ms: float, environment: Dict[str, str]):
        self.name, self.title, self.error = name, loaders.CONTENDERS[name].title, ""
        self.rounds: Dict[int, float] = {}  # samples a second
        self.costs: Dict[int, float] = {}   # samples a second of CPU time
        self.tag = f"{os.getpid()}.{name}"
        command = [sys.executable, os.path.join(HERE, "loaders.py"), name, json.dumps(job._asdict())]
        if step_ms:
            command += ["--step-ms", str(step_ms)]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        env={**environment, TAG: self.tag}, start_new_session=True,
                                        preexec_fn=lambda: os.sched_setaffinity(0, cores))
        self._take(self._answer(180))

    def _answer(self, seconds: float) -> Dict[str, Any]:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return {"error": f"no answer within {seconds:.0f} s"}
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            tail = " ".join(self.log.read()[-300:].split())
            return {"error": f"it died: {tail}"}
        return json.loads(line)

    def _take(self, answer: Dict[str, Any]) -> Dict[str, Any]:
        if "error" in answer:
            self.error = answer["error"]
            self.end()
        return answer

    def _all(self) -> List[int]:
        """Every process that carries our mark: also those that left the session, as a private daemon does."""
        mark = f"{TAG}={self.tag}".encode()
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(pid)
            except OSError:
                continue
        return found

    def _cpu(self) -> float:
        """Seconds of CPU time that these have had."""
        ticks = 0
        for pid in self._all():
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                    words = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def signal(self, number: int) -> None:
        for pid in self._all():
            try:
                os.kill(pid, number)
            except OSError:
                continue

    def measure(self, turn: int, seconds: float, warm: float) -> None:
        if self.error:
            return
        assert self.process.stdin
        before = self._cpu()
        self.signal(signal.SIGCONT)
        self.process.stdin.write(f"{seconds} {warm}\n".encode())
        self.process.stdin.flush()
        answer = self._take(self._answer(60 + 20 * seconds))
        if "rate" not in answer:
            return
        self.signal(signal.SIGSTOP)
        self.rounds[turn] = answer["rate"]
        self.costs[turn] = answer["samples"] / max(self._cpu() - before, 1e-2)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)


def median_ratio(a: Dict[int, float], b: Dict[int, float]) -> str:
    both = [a[t] / b[t] for t in a if b.get(t)]
    return f"{statistics.median(both):.2f}" if both else "-"


def print_table(contenders: List[Contender], kind: str, unit: str) -> None:
    mine = [c for c in contenders if loaders.CONTENDERS[c.name].kind == kind]
    if not mine:
        return
    ours = mine[0]
    print(f"| {kind} | {unit} | quartiles | loaderd against it | {unit.split('/')[0]} a CPU second | loaderd against it |")
    print("|---|---|---|---|---|---|")
    for c in mine:
        if not c.rounds:
            print(f"| {c.title} | not measured | | {c.error} | | |")
            continue
        rates = sorted(c.rounds.values())
        quartiles = statistics.quantiles(rates, n=4) if len(rates) > 1 else [rates[0]] * 3
        by_clock, by_cpu = median_ratio(ours.rounds, c.rounds), median_ratio(ours.costs, c.costs)
        print(f"| {c.title} | {statistics.median(rates):.0f} | {quartiles[0]:.0f} to {quartiles[2]:.0f} | "
              f"{'' if c is ours else by_clock} | {statistics.median(c.costs.values()):.0f} | "
              f"{'' if c is ours else by_cpu} |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--cores", type=int, default=0, help="as many of the allowed ones (default: all)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--warm", type=float, default=0.7, help="seconds of a turn that do not count")
    parser.add_argument("--trainer", type=float, default=0, metavar="MS", help="a loop that launches so long a batch")
    parser.add_argument("--only", help="names, separated by commas: " + ", ".join(loaders.CONTENDERS))
    arguments = parser.parse_args()
    build = os.path.abspath(os.environ.get("BUILD", "."))
    cores = sorted(os.sched_getaffinity(0))
    cores = cores[:arguments.cores or len(cores)]
    names = arguments.only.split(",") if arguments.only else list(loaders.CONTENDERS)
    if arguments.trainer and not arguments.only:
        names = [n for n in names if loaders.CONTENDERS[n].kind == "pictures"]
    python = os.path.join(HERE, "..", "..", "..", "client", "python")
    environment = {**os.environ, "LOADERD_DAEMON": os.path.join(build, "loaderd"), "OMP_NUM_THREADS": "1",
                   "LOADERD_LIBRARY": os.path.join(build, ".libs", "libloaderd.so"),
                   "PYTHONPATH": os.pathsep.join([python, os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory(prefix="loaderd-peers.") as own:
        work = os.environ.get("WORK", own)
        os.makedirs(work, exist_ok=True)
        job = make_data(os.path.abspath(arguments.folder), work, build, arguments.batch, len(cores))
        contenders = []
        try:
            for name in names:
                print(f"starting {name}", file=sys.stderr, flush=True)
                contenders.append(Contender(name, job, cores, arguments.trainer, environment))
                contenders[-1].measure(-1, 0.3, arguments.warm)  # first use costs what later turns do not
                contenders[-1].rounds.clear()
                contenders[-1].costs.clear()
            for turn in range(arguments.rounds):
                print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
                order = contenders[turn % len(contenders):] + contenders[:turn % len(contenders)]
                for contender in order:
                    contender.measure(turn, arguments.seconds, arguments.warm)
        finally:
            for contender in contenders:
                contender.end()
    beside = f", a launch-bound trainer of {arguments.trainer:g} ms a batch beside" if arguments.trainer else ""
    print(f"{len(cores)} cores, batch {arguments.batch}, RandomResizedCrop {loaders.SIZE}, {arguments.rounds} rounds of "
          f"{arguments.seconds:g} s{beside}, {time.strftime('%Y-%m-%d')}\n")
    print_table(contenders, "pictures", "samples/s")
    print_table(contenders, "records", "samples/s")


if __name__ == "__main__":
    main()
