#!/bin/sh
# Runs the tests of sluice.torch over the extension of a build folder: check_torch.sh ROOT BUILD [PYTHON]
#
# PYTHON is one that has torch; without it, python3. If CI is "true", and one of torch, transformers and NumPy is absent,
# all are installed in a virtual environment for the time of the test. Skipped (77) where there is no torch; where the
# others are absent, the tests that need them are skipped.
set -u
root=${1:?use: check_torch.sh ROOT BUILD [PYTHON]}
build=${2:?use: check_torch.sh ROOT BUILD [PYTHON]}
python=${3:-python3}
. "$root/tests/checks/lib.sh"
make_scratch torch-test
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONPYCACHEPREFIX="$scratch/bytecode" # of what is imported, once

has()
{
    "$python" -c "import $1" >"$scratch/log" 2>&1
}
if [ "${CI:-}" = true ] && ! has torch,transformers,numpy; then
    # the smallest set of what PyPI serves; it is several GB and takes minutes
    if "$python" -m venv "$scratch/venv" &&
        timeout 600 "$scratch/venv/bin/pip" install -q --no-cache-dir --no-compile --retries 1 --timeout 20 \
            torch transformers numpy; then
        python=$scratch/venv/bin/python
    else
        echo "no virtual environment with torch, transformers and numpy: is there a network, and python3-venv?"
    fi
fi
has torch || skip "$python has no torch (SLUICE_TORCH_PYTHON at configuration names one that has)"

mkdir "$scratch/site" && cp -rs "$(realpath "$root")/src/python/sluice" "$scratch/site/" || exit 1
ln -s "$build/src/python/_native.abi3.so" "$scratch/site/sluice/" || exit 1
cd "$scratch" || exit 1
PYTHONPATH=$scratch/site SLUICE_COMMAND=$build/src/cli/sluice PATH=/usr/bin:/bin \
    "$python" -m unittest discover -s "$root/tests/python" -p 'test_torch_*.py' -v
