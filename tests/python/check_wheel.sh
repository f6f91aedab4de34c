#!/bin/sh
# Builds the wheel from a build folder, installs it in a fresh virtual environment without a compiler
# in its path, and runs the tests of the package: check_wheel.sh ROOT BUILD [PYTHON]
#
# Skipped (77) without Python's venv and pip, or if scikit-build-core cannot be installed.
set -u
root=${1:?use: check_wheel.sh ROOT BUILD [PYTHON]}
build=${2:?use: check_wheel.sh ROOT BUILD [PYTHON]}
python=${3:-python3}
. "$root/tests/checks/lib.sh"
make_scratch wheel-test
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip "$python is not Python 3.9 or later"
"$python" -m venv "$scratch/tools" >"$scratch/log" 2>&1 || skip "$python cannot make a virtual environment (python3-venv)"
tools=$scratch/tools/bin
"$tools/pip" install -q --retries 1 --timeout 10 "scikit-build-core>=0.10" >"$scratch/log" 2>&1 || {
    tail -n 3 "$scratch/log"
    skip "pip cannot install scikit-build-core: is there a network?"
}
wheel=$(PYTHON=$tools/python "$root/src/python/build_wheel.sh" "$build" "$scratch/wheel" 2>"$scratch/log") || {
    tail -n 30 "$scratch/log"
    echo "the wheel cannot be built" >&2
    exit 1
}
ls -l "$wheel"

"$python" -m venv "$scratch/fresh" || exit 1
fresh=$scratch/fresh/bin
PATH=$fresh "$fresh/pip" install -q --no-index "$wheel" || exit 1
cd "$scratch" || exit 1
PATH=$fresh:/usr/bin:/bin SLUICE_SOURCE_DIR=$root "$fresh/python" -m unittest discover -s "$root/tests/python" -v
