#!/usr/bin/env bash
# How well plans foretell steps on this machine: see perf/predict.py, which gets all options.
#
#   perf/predict.sh [--machine machine.json] [--dir DIRECTORY] [--steps N] [--lanes] [JOB...]
set -eu
cd "$(dirname "$0")/.."
exec python3 perf/predict.py "$@"
