#!/bin/sh
# SPDX-License-Identifier: MIT
# An example of a Slurm prolog (slurm.conf: Prolog=, run as root on each node before a job's first step): makes sure
# that loaderd is up before GPUs are paid for. A node whose loaderd does not come is drained by Slurm, with this reason.
# Jobs in containers get the socket's directory, never the socket, so that a daemon that comes later is found:
# `srun --container-mounts=/run/loaderd:/run/loaderd` (pyxis), `singularity exec --bind /run/loaderd`.
#
# Checked by shellcheck and against stand-ins for systemctl and loaderctl; not on a cluster.
set -eu

seconds=${LOADERD_PROLOG_SECONDS:-30}

fail() {
    echo "loaderd prolog: job ${SLURM_JOB_ID:-?}: $*" >&2
    exit 1
}

systemctl start loaderd.socket || fail "loaderd.socket does not start; systemctl status loaderd.socket"
# The first connection starts the daemon; scans of datasets go on behind it.
i=0
until loaderctl status --json >/dev/null 2>&1; do
    i=$((i + 1))
    [ "$i" -lt "$seconds" ] || fail "no answer within $seconds s; journalctl -u loaderd"
    sleep 1
done
