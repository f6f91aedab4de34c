#!/bin/sh
# Checks which folder includes and links which other folder, against the table below.
#
#   check_includes.sh ROOT [LINKS]    checks the tree ROOT; LINKS: lines "folder: folder ..."
#   check_includes.sh --self-test     plants forbidden lines in a scratch tree; each must be found
#
# A folder may include its own files, what its row names, and system headers. A row's entry is a
# folder or one header. Headers named *_internal.h stay in their folder (tests may look inside).
# Tests are compiled with tests/simulated_gpu and its include folder in their path: they hold the
# simulated GPU's CUDA headers. Outside the tests, only kernels/cuda/device.cuh may include one of them.
# Exit 0: all allowed; 1: violations, one line each; 2: wrong use.
set -u
. "$(dirname "$0")/lib.sh"

# Each row names a folder and what it may include beside itself. The lowest layer comes first. +folder means
# that folder and everything in its row.
allowed_table()
{
    awk '{
        for (i = 2; i <= NF; i++)
            if (sub(/^\+/, "", $i))
                $i = $i " " rows[$i]
        folder = $1
        sub(/:$/, "", folder)
        rows[folder] = substr($0, length($1) + 2)
        print
    }' <<'TABLE'
src/base:
kernels: src/base
tiers: src/base
swap: tiers src/base
src/config: src/base
src/model: kernels src/base
src/plan: swap/program.h src/base
src/comm: tiers src/base
src/text: src/base
src/data: src/text src/base
src/format: src/base
src/report: swap/program.h src/base
src/setup: src/config src/model src/plan src/comm src/format kernels tiers swap/program.h src/base
src/engine: +src/setup swap src/report
src/state: +src/engine
src/hf: +src/state src/text
src/infer: +src/hf src/data src/text
src/train: +src/infer
src/profile: +src/train
src/probe: src/base kernels tiers src/config src/comm
src/cli: src/profile src/train src/infer src/hf src/state src/setup src/probe src/comm src/config src/plan src/data src/text src/report src/base
src/python: *
src: *
tests: *
perf: *
TABLE
}

# Prints a line per violation in the tree $1; exit 1 if there is one.
check_tree()
{
    (
        cd "$1" || exit 2
        find src kernels tiers swap tests perf -type f \
            \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' -o -name '*.inc' \) 2>/dev/null |
            LC_ALL=C sort
    ) | awk -v root="$1" -v table="$(allowed_table)" '
    # src/base/x.h -> src/base, kernels/cpu/x.h -> kernels, src/sluice.c -> src
    function folder_of(path,    parts, n)
    {
        n = split(path, parts, "/")
        return (parts[1] == "src" && n > 2) ? "src/" parts[2] : parts[1]
    }
    function clean(path)
    {
        while (sub(/[^\/]+\/\.\.\//, "", path) || sub(/\/\.\//, "/", path) || sub(/^\.\//, "", path))
            ;
        return path
    }
    # The file that an #include in `from` means, or "" for none of ours.
    function resolve(name, from, quoted,    dir, path)
    {
        if (quoted) {
            dir = from
            sub(/[^\/]+$/, "", dir)
            path = clean(dir name)
            if (path in exists)
                return path
        }
        if (clean(name) in exists)
            return clean(name)
        if (clean("src/" name) in exists)
            return clean("src/" name)
        return (folder_of(from) == "tests") ? simulated(name) : ""
    }
    # The header of the simulated GPU that `name` means, or "".
    function simulated(name,    path)
    {
        path = clean("tests/simulated_gpu/include/" name)
        if (path in exists)
            return path
        path = clean("tests/simulated_gpu/" name)
        return (path in exists) ? path : ""
    }
    function report(file, line, text)
    {
        printf "%s:%d: %s\n", file, line, text
        bad = 1
    }
    function check(file, line, name, quoted,    target, from, to)
    {
        target = resolve(name, file, quoted)
        from = folder_of(file)
        if (target == "") {
            # CUDA headers of the simulation bear CUDA names; simulated_*.h can only be its own.
            if (!quoted && name ~ /^simulated_/ && file != "kernels/cuda/device.cuh")
                report(file, line, from " may not include " simulated(name))
            if (quoted)
                report(file, line, "includes \"" name "\", which is not in the tree")
            return
        }
        to = folder_of(target)
        if (!(from in rows)) {
            report(file, line, "folder " from " has no row in the table of check_includes.sh")
        } else if (from != to && index(rows[from], " * ") == 0) {
            if (index(rows[from], " " to " ") == 0 && index(rows[from], " " target " ") == 0)
                report(file, line, from " may not include " target)
            else if (target ~ /_internal\.h$/)
                report(file, line, from " may not include the private header " target)
        }
    }
    BEGIN {
        count = split(table, lines, "\n")
        for (i = 1; i <= count; i++) {
            colon = index(lines[i], ":")
            rows[substr(lines[i], 1, colon - 1)] = substr(lines[i], colon + 1) " "
        }
    }
    { files[++file_count] = $0; exists[$0] = 1 }
    END {
        for (f = 1; f <= file_count; f++) {
            number = 0
            while ((getline text < (root "/" files[f])) > 0) {
                number++
                if (text !~ /^[ \t]*#[ \t]*include/)
                    continue
                if (match(text, /"[^"]+"/))
                    check(files[f], number, substr(text, RSTART + 1, RLENGTH - 2), 1)
                else if (match(text, /<[^>]+>/))
                    check(files[f], number, substr(text, RSTART + 1, RLENGTH - 2), 0)
            }
            close(root "/" files[f])
        }
        if (file_count == 0)
            report(root, 0, "no sources found")
        exit bad
    }'
}

# Prints a line per link in the file $1 that the table does not allow; exit 1 if there is one. A row
# that allows one header allows the link to the header's folder.
check_links()
{
    awk -v table="$(allowed_table)" '
    BEGIN {
        count = split(table, lines, "\n")
        for (i = 1; i <= count; i++) {
            colon = index(lines[i], ":")
            row = substr(lines[i], colon + 1) " "
            gsub(/\/[a-z_]+\.h /, " ", row)
            rows[substr(lines[i], 1, colon - 1)] = row
        }
    }
    {
        folder = $1
        sub(/:$/, "", folder)
        for (i = 2; i <= NF; i++)
            if (index(rows[folder], " " $i " ") == 0) {
                printf "%s: %s may not link %s\n", FILENAME, folder, $i
                bad = 1
            }
    }
    END { exit bad }' "$1"
}

# Plants one line in a small clean tree and expects it to be found; $1 file, $2 line, $3 what is said.
plant()
{
    printf '%s\n' "$2" >"$scratch/tree/$1"
    count=$((count + 1))
    said=$(check_tree "$scratch/tree")
    code=$?
    rm "$scratch/tree/$1"
    case "$code $said" in
    "1 "*"$3"*) echo "found: $said" ;;
    *) fail "$1 with '$2' gave exit $code: '$said', expected: '$3'" ;;
    esac
}

self_test()
{
    make_scratch check_includes
    for folder in src/base src/plan src/train src/cli src/config kernels/cpu kernels/cuda tiers swap \
        tests/simulated_gpu/include; do
        mkdir -p "$scratch/tree/$folder"
    done
    echo '#include <stdint.h>' >"$scratch/tree/src/base/error.h"
    echo '#include "base/error.h"' >"$scratch/tree/kernels/ops.h"
    echo '#include "kernels/ops.h"' >"$scratch/tree/kernels/cpu/cpu_internal.h"
    echo '#include "base/error.h"' >"$scratch/tree/tiers/io.h"
    echo '#include "base/error.h"' >"$scratch/tree/swap/program.h"
    echo '#include "tiers/io.h"' >"$scratch/tree/swap/lane_io.h"
    echo '#include "swap/program.h"' >"$scratch/tree/src/plan/plan.c"
    echo '#include "kernels/cpu/cpu_internal.h"' >"$scratch/tree/tests/test_kernels.c"
    echo '#include <stdint.h>' >"$scratch/tree/tests/simulated_gpu/include/simulated_launch.h"
    echo '#include "simulated_launch.h"' >"$scratch/tree/tests/simulated_gpu/launch.cc"
    echo '#include <simulated_launch.h>' >"$scratch/tree/kernels/cuda/device.cuh"
    check_tree "$scratch/tree" || fail "the clean tree was refused"
    plant swap/executor.c '#include "kernels/ops.h"' 'swap/executor.c:1: swap may not include kernels/ops.h'
    plant kernels/cpu/x.c '#include "swap/program.h"' 'kernels may not include swap/program.h'
    plant kernels/x.c '#include "../swap/program.h"' 'kernels may not include swap/program.h'
    plant tiers/x.c ' # include <swap/program.h>' 'tiers may not include swap/program.h'
    plant src/base/x.c '#include "tiers/io.h"' 'src/base may not include tiers/io.h'
    plant src/plan/x.c '#include "swap/lane_io.h"' 'src/plan may not include swap/lane_io.h'
    plant src/cli/x.c '#include "kernels/ops.h"' 'src/cli may not include kernels/ops.h'
    plant src/train/x.c '#include "kernels/cpu/cpu_internal.h"' 'the private header'
    plant src/train/y.c '#include "train/nowhere.h"' 'not in the tree'
    plant kernels/cuda/x.cu '#include <simulated_launch.h>' \
        'kernels may not include tests/simulated_gpu/include/simulated_launch.h'
    plant kernels/cuda/y.cu '#include "simulated_launch.h"' 'not in the tree'
    plant tests/x.c '#include "simulated_nothing.h"' 'not in the tree'
    mkdir "$scratch/tree/src/extra"
    plant src/extra/x.c '#include "base/error.h"' 'has no row'

    printf 'swap: tiers src/base\nsrc/plan: swap src/base\nsrc/base: \n' >"$scratch/links"
    check_links "$scratch/links" || fail "links that are allowed were refused"
    printf 'swap: tiers kernels\n' >"$scratch/links"
    ! check_links "$scratch/links" || fail "a forbidden link was not found"
    finish plants
}

case ${1:-} in
--self-test) self_test ;;
'' | -*)
    echo "use: check_includes.sh ROOT [LINKS] | --self-test" >&2
    exit 2
    ;;
*)
    check_tree "$1"
    status=$?
    if [ $# -gt 1 ]; then
        check_links "$2" || status=1
    fi
    exit "$status"
    ;;
esac
