#!/bin/sh
# Installs the build to a scratch prefix and uses it as a stranger would: check_install.sh BUILD CC
#
# A small program is built with the flags of pkg-config alone and must print the version that the
# installed binary prints and pkg-config reports.
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

version=$(pkg-config --modversion sluice)
said=$("$scratch/hello")
echo "library: $said"
[ "$said" = "$version $version" ] || { echo "pkg-config says $version"; exit 1; }
if [ -x "$scratch/prefix/bin/sluice" ]; then
    said=$("$scratch/prefix/bin/sluice" --version)
    echo "binary: $said"
    [ "$said" = "sluice $version" ] || { echo "pkg-config says $version"; exit 1; }
fi
[ -s "$scratch/prefix/share/sluice/jobs/quickstart.json" ] || {
    echo "the configs were not installed"
    exit 1
}
