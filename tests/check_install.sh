#!/bin/sh
# Installs the build to a scratch prefix and uses it as a stranger would: check_install.sh BUILD CC
#
# A small program is built with a C compiler and the flags of pkg-config alone, once with what it needs of
# the library and once with all of it, and must print the version that the installed binary prints and
# pkg-config reports. The binary itself needs neither a C++ library nor CUDA's.
set -eu
build=$(cd "${1:?use: check_install.sh BUILD CC}" && pwd)
compiler=${2:-cc}
scratch=$(mktemp -d "$PWD/check_install.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >"$scratch/install.log" || {
    cat "$scratch/install.log"
    exit 1
}
pc_file=$(find "$scratch/prefix" -name sluice.pc)
[ -n "$pc_file" ] || { echo "no sluice.pc was installed"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$pc_file")
export PKG_CONFIG_PATH

cat >"$scratch/hello.c" <<'PROGRAM'
#include <stdio.h>
#include <sluice.h>

int main(void)
{
    printf("%s %d.%d.%d\n", sluice_version(), SLUICE_VERSION_MAJOR, SLUICE_VERSION_MINOR,
           SLUICE_VERSION_PATCH);
    return 0;
}
PROGRAM
# shellcheck disable=SC2046 # the flags are words on purpose
"$compiler" -o "$scratch/hello" "$scratch/hello.c" $(pkg-config --cflags --libs sluice)
# shellcheck disable=SC2046
"$compiler" -o "$scratch/hello_all" "$scratch/hello.c" -Wl,--whole-archive \
    "$(pkg-config --variable=libdir sluice)/libsluice.a" -Wl,--no-whole-archive \
    $(pkg-config --cflags --libs sluice)

version=$(pkg-config --modversion sluice)
for program in hello hello_all; do
    said=$("$scratch/$program")
    echo "library: $said"
    [ "$said" = "$version $version" ] || { echo "pkg-config says $version"; exit 1; }
done
if [ -x "$scratch/prefix/bin/sluice" ]; then
    said=$("$scratch/prefix/bin/sluice" --version)
    echo "binary: $said"
    [ "$said" = "sluice $version" ] || { echo "pkg-config says $version"; exit 1; }
    needed=$(readelf -d "$scratch/prefix/bin/sluice" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    echo "needed: $(echo "$needed" | tr "\n" " ")"
    if printf '%s\n' "$needed" | grep -E '^lib(stdc\+\+|cu|nv|nccl)'; then
        echo "the binary is linked to a library that it does not need"
        exit 1
    fi
fi
[ -s "$scratch/prefix/share/sluice/jobs/quickstart.json" ] || {
    echo "the job files were not installed"
    exit 1
}
for name in models/gpt-1t clusters/8xh100; do
    [ -s "$scratch/prefix/share/sluice/$name.json" ] || { echo "$name.json was not installed"; exit 1; }
done
