#!/bin/sh
# Packs the binaries of a build folder as a wheel: build_wheel.sh BUILD TARGET-DIR
#
# Before it: cmake --build BUILD -t python_package. $PYTHON (default: python3) has pip and
# scikit-build-core. The wheel's name states the oldest glibc that all its binaries run with, as
# manylinux tags do; installers refuse it on an older system.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?use: build_wheel.sh BUILD TARGET-DIR}" && pwd)
target=${2:?use: build_wheel.sh BUILD TARGET-DIR}
python=${PYTHON:-python3}
if ! "$python" -c 'import pip, scikit_build_core' 2>/dev/null; then
    echo "build_wheel.sh: $python lacks pip or scikit-build-core: name a Python that has both (PYTHON=...)" >&2
    exit 2
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Of the versions that the binaries ask for, the latest.
glibc_of() # FILE...
{
    for file in "$@"; do
        objdump -T "$file"
    done | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -n 1 | cut -d_ -f2
}

DESTDIR=$scratch cmake -DCMAKE_INSTALL_PREFIX=/ -DCMAKE_INSTALL_COMPONENT=python \
    -P "$build/src/python/cmake_install.cmake" >/dev/null
glibc=$(glibc_of "$scratch"/sluice/_native.abi3.so "$scratch"/sluice/bin/sluice "$scratch"/sluice/lib/*)
_PYTHON_HOST_PLATFORM=manylinux_$(echo "$glibc" | tr . _)_$(uname -m)
export _PYTHON_HOST_PLATFORM
"$python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$target" "$here" \
    -C cmake.source-dir=. -C cmake.define.SLUICE_BUILD="$build" >&2
echo "$target"/sluice-*-"$_PYTHON_HOST_PLATFORM".whl
