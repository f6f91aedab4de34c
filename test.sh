#!/usr/bin/env bash
# Builds Sluice and runs its tests, from a fresh clone, with one command.
#
#   ./test.sh                  install what is missing, build, test (slow tests excluded)
#   ./test.sh --all            the slow tests too (they need memory, disk and time)
#   ./test.sh --deps [PKG...]  only install what is missing (and these further packages)
#
# Three builds: `release` runs everything; `debug` (ASan and UBSan) builds and runs the tests labelled debug;
# `tsan` (ThreadSanitizer) those labelled tsan. The CUDA backend is built where nvcc is; tests labelled gpu are
# skipped without a GPU, and their simulated twins run everywhere. The last line is "N passed, N failed,
# N skipped" over all of them, the line before it says what became of the tests for a GPU; the exit
# status is 0 only if nothing failed. JOBS=n in the environment sets how many jobs run side by side
# (default: all cores) and one test more, since tests wait for a fifth of the time. SLUICE_ISA=avx2 and the
# like run all as on a CPU whose best set that is.
set -u
cd "$(dirname "$0")" || exit 1

packages="gcc g++ cmake ninja-build pkg-config libdnnl-dev liburing-dev libnuma-dev libjansson-dev
          libxxhash-dev libpcre2-dev libutf8proc-dev libcmocka-dev strace libopenmpi-dev openmpi-bin iproute2
          python3-dev python3-venv"
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
run_slow=no
deps_only=no
extra_packages=
passed=0
failed=0
skipped=0
gpu_summary=

usage()
{
    sed -n '2,14s/^# \{0,1\}//p' "$0"
}

while [ $# -gt 0 ]; do
    case $1 in
    --all) run_slow=yes ;;
    --deps)
        deps_only=yes
        shift
        extra_packages="$*"
        break
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "test.sh: unknown option '$1'" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
done

# --- what must be installed ---

is_installed() # PACKAGE
{
    case $1 in
    gcc | g++ | cmake | pkg-config | strace) command -v "$1" >/dev/null 2>&1 ;;
    ninja-build) command -v ninja >/dev/null 2>&1 ;;
    *) dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed ;;
    esac
}

as_root() # COMMAND...
{
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    elif [ -t 0 ]; then
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

install_missing() # PACKAGE...
{
    local missing="" package
    if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "test.sh: no dpkg on this system; these must be there already: $*"
        return 0
    fi
    for package in "$@"; do
        is_installed "$package" || missing="$missing $package"
    done
    if [ -z "$missing" ]; then
        echo "test.sh: all packages are installed"
        return 0
    fi
    if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null 2>&1; then
        echo "test.sh: missing packages, and neither root nor sudo to install them." >&2
        echo "test.sh: as root, run: apt-get install$missing" >&2
        return 1
    fi
    echo "test.sh: installing$missing"
    # The lists may be there already: only where that fails are they fetched.
    # shellcheck disable=SC2086 # the names are words on purpose
    as_root apt-get install -y -q --no-install-recommends $missing </dev/null >/dev/null 2>&1 && return 0
    # shellcheck disable=SC2086
    as_root apt-get update -q </dev/null &&
        as_root apt-get install -y -q --no-install-recommends $missing </dev/null && return 0
    echo "test.sh: apt-get could not install:$missing" >&2
    echo "test.sh: see its messages above; without a network, install them by other means" >&2
    return 1
}

# shellcheck disable=SC2086
install_missing $packages $extra_packages || exit 1
[ "$deps_only" = yes ] && exit 0

# --- building and testing ---

finish()
{
    [ -z "$gpu_summary" ] || echo "test.sh: $gpu_summary"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit $?
}

build() # PRESET TARGET [CMAKE-OPTION...]
{
    local preset=$1 target=$2 began=$SECONDS
    shift 2
    echo "test.sh: building $preset"
    if ! cmake --preset "$preset" "$@" || ! cmake --build --preset "$preset" -j "$jobs" -t "$target"; then
        echo "test.sh: preset $preset does not build" >&2
        failed=$((failed + 1))
        return 1
    fi
    echo "test.sh: built $preset in $((SECONDS - began)) s; CUDA backend $(cuda_text "$preset"); MPI $(mpi_text "$preset")"
}

cuda_text() # PRESET: "compiled by ..." or "not compiled: ..."
{
    sed -n 's/^SLUICE_CUDA_TEXT:INTERNAL=//p' "build/$1/CMakeCache.txt"
}

mpi_text() # PRESET: "compiled with ..." or "not compiled: ..."
{
    sed -n 's/^SLUICE_MPI_TEXT:INTERNAL=//p' "build/$1/CMakeCache.txt"
}

attribute() # NAME FILE: a count in the <testsuite> element of a JUnit file
{
    tr '\n\t' '  ' <"$2" | sed -n 's/.*<testsuite[^>]*[[:space:]]'"$1"'="\([0-9]*\)".*/\1/p'
}

# Runs CTest in build/PRESET and adds its counts to the sums.
run_tests() # PRESET CTEST-OPTION...
{
    local preset=$1 report status total bad left_out disabled began=$SECONDS at_once=$((jobs + 1))
    shift
    report=$PWD/build/$preset/junit.xml
    rm -f "$report"
    echo "test.sh: testing $preset"
    $launcher ctest --test-dir "build/$preset" --output-on-failure -j "$at_once" \
        --output-junit "$report" "$@" </dev/null
    status=$?
    echo "test.sh: tested $preset in $((SECONDS - began)) s"
    if [ ! -s "$report" ]; then
        [ "$status" -eq 0 ] || failed=$((failed + 1))
        return
    fi
    total=$(attribute tests "$report")
    bad=$(attribute failures "$report")
    left_out=$(attribute skipped "$report")
    disabled=$(attribute disabled "$report")
    total=${total:-0} bad=${bad:-0} left_out=${left_out:-0} disabled=${disabled:-0}
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        # Tests that could not even be started count as skipped in the file; CTest knows better.
        bad=$((left_out > 0 ? left_out : 1))
        left_out=0
    fi
    passed=$((passed + total - bad - left_out - disabled))
    failed=$((failed + bad))
    skipped=$((skipped + left_out + disabled))
}

# What became of the tests labelled gpu in build/PRESET, by their names in its JUnit file.
count_gpu_tests() # PRESET
{
    local names run left_out
    names=$(ctest --test-dir "build/$1" -N -L '^gpu$' | sed -n 's/^ *Test *#[0-9]*: *//p')
    if [ -z "$names" ]; then
        gpu_summary="no tests for a GPU were built: CUDA backend $(cuda_text "$1")"
        return
    fi
    read -r run left_out < <(tr '\n\t' '  ' <"build/$1/junit.xml" | sed 's/<testcase /\n&/g' |
        awk -v names="$names" '
        BEGIN { count = split(names, list, "\n"); for (i = 1; i <= count; i++) is_gpu[list[i]] = 1 }
        match($0, /^<testcase name="[^"]*"/) {
            if (substr($0, 17, RLENGTH - 17) in is_gpu)
                counts[index($0, "<skipped") > 0]++
        }
        END { print counts[0] + 0, counts[1] + 0 }')
    gpu_summary="of the tests for a GPU, $run ran and $left_out were skipped"
    [ "$run" -gt 0 ] || gpu_summary="$left_out tests were skipped because there is no GPU here"
}

# ThreadSanitizer needs its address ranges free, which some kernels' address randomization does not
# leave; then setarch -R turns that off for the tests. Sets `launcher`; 1 if it cannot run at all.
find_tsan_launcher()
{
    local probe=build/tsan-probe
    mkdir -p build
    echo 'int main(void) { return 0; }' >"$probe.c"
    cc -fsanitize=thread -o "$probe" "$probe.c" || return 1
    launcher=
    "$probe" >/dev/null 2>&1 && return 0
    launcher="setarch $(uname -m) -R"
    $launcher "$probe" >/dev/null 2>&1
}

if command -v ccache >/dev/null 2>&1; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache \
        CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi
launcher=
if [ "$run_slow" = yes ]; then
    build release all && run_tests release --no-tests=error
else
    build release all && run_tests release --no-tests=error -LE '^slow$'
fi
[ -s build/release/CTestTestfile.cmake ] || finish
[ ! -s build/release/junit.xml ] || count_gpu_tests release

build debug debug_tests -DSLUICE_PERF=OFF && run_tests debug -L '^debug$' -LE '^slow$'

if find_tsan_launcher; then
    build tsan tsan_tests -DSLUICE_PERF=OFF && run_tests tsan -L '^tsan$' -LE '^slow$'
else
    echo "test.sh: ThreadSanitizer does not run on this machine; its tests are skipped" >&2
    skipped=$((skipped + 1))
fi
finish
