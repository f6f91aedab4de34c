#!/bin/sh
# Runs the tests of sluice.torch over the extension of a build folder: check_torch.sh ROOT BUILD [PYTHON]
#
# PYTHON is one that has torch; without it, python3 or else a virtual environment for the time of the test,
# if CI is "true". Skipped (77) where there is no torch.
set -u
root=${1:?use: check_torch.sh ROOT BUILD [PYTHON]}
build=${2:?use: check_torch.sh ROOT BUILD [PYTHON]}
python=${3:-python3}
. "$root/tests/checks/lib.sh"
make_scratch torch-test
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONPYCACHEPREFIX="$scratch/bytecode" # of what is imported, once

has_torch()
{
    "$1" -c 'import torch' >"$scratch/log" 2>&1
}
if ! has_torch "$python" && [ "${CI:-}" = true ]; then
    # the smallest set of what PyPI serves; it is several GB and takes minutes
    "$python" -m venv "$scratch/venv" >"$scratch/log" 2>&1 || skip "$python cannot make a virtual environment (python3-venv)"
    timeout 600 "$scratch/venv/bin/pip" install -q --no-cache-dir --no-compile --retries 1 --timeout 20 torch >"$scratch/log" 2>&1 ||
        skip "pip cannot install torch: is there a network?"
    python=$scratch/venv/bin/python
fi
has_torch "$python" || skip "$python has no torch (SLUICE_TORCH_PYTHON at configuration names one that has)"

mkdir "$scratch/site" && cp -rs "$(realpath "$root")/src/python/sluice" "$scratch/site/" || exit 1
ln -s "$build/src/python/_native.abi3.so" "$scratch/site/sluice/" || exit 1
cd "$scratch" || exit 1
PYTHONPATH=$scratch/site SLUICE_COMMAND=$build/src/cli/sluice PATH=/usr/bin:/bin \
    "$python" -m unittest discover -s "$root/tests/python" -p 'test_torch_*.py' -v
