#!/usr/bin/env bash
# Sluice's Adam on the CPU beside the peers that are installed: see perf/compare_adam.py, which gets all
# options.
#
#   perf/compare_adam.sh [--python PYTHON] [OPTION...]     the interpreter that has the peers (python3)
#
# Builds the library that is compared (build/release) if it is not there. DeepSpeed compiles its
# optimizer at first use: it needs a C++ compiler and ninja; what it built is kept for the next run.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ "${1:-}" = --python ]; then
    [ $# -ge 2 ] || { echo "compare_adam.sh: --python needs an interpreter" >&2; exit 2; }
    python=$2
    shift 2
fi
command -v "$python" >/dev/null || { echo "compare_adam.sh: $python is not there" >&2; exit 2; }
library=build/release/perf/libadam_compared.so
[ -f "$library" ] || { cmake --preset release && cmake --build build/release --target adam_compared; } >&2
# DeepSpeed looks for ninja in the path, and asks for CUDA's compiler only where this does not say "cpu".
PATH=$(dirname "$(command -v "$python")"):$PATH
export PATH DS_ACCELERATOR=${DS_ACCELERATOR:-cpu}
exec "$python" perf/compare_adam.py --library "$library" "$@"
