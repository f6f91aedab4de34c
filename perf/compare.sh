#!/usr/bin/env bash
# Sluice beside the peers that are installed here: see perf/compare.py, which gets all options.
#
#   perf/compare.sh [--quick] [--out DIR] [--drive DIR] [--python FILE] [--llmc DIR] [PEER...]
set -eu
cd "$(dirname "$0")/.."
exec python3 perf/compare.py "$@"
