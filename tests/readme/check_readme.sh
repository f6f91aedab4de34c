#!/bin/sh
# Runs the commands of README.md, src/README.md and src/plan/README.md, as a reader does, and compares what they print
# with what the documents show: check_readme.sh ROOT BUILD, or check_readme.sh --self-test
#
# The rules for these documents. In a block that begins with ```console
#   - a line "$ COMMAND" is run in a copy of the clone, one after the other in one shell. Its exit status must be 0; a
#     command that ends otherwise is followed by `; echo "exit status $?"`;
#   - the lines below it are its output, standard error included. A line "..." stands for any number of lines, "..."
#     within a line for any text. Words must be equal. Numbers vary with the machine: a number with any unit, or the "-"
#     of a table, takes the place of another, except in "exit status N". A plan for a machine that is only described
#     is the same everywhere: after "sluice plan ... --machine ..." numbers must be equal, too.
# A block that begins with ```sh is not run: it may hold only the commands of `not_run`, which install and build for
# minutes. CI is the second of them, and it has made BUILD by then.
#
# Two things differ from a reader's machine. runs/quickstart is the quickstart's job with 2 steps on documents of this
# repository, instead of 600 on a book, for time. And `timeout` is the program beside this file.
# --self-test plants faults in a small README; each must be found.
set -u
here=$(dirname "$(realpath "$0")")
. "$here/../checks/lib.sh"

not_run='./quickstart.sh
./test.sh'

# run_blocks FILE [ROOT]: runs the console blocks of ROOT/FILE in the present directory; prints a line for each fault,
# and what the command said. The output of the command of line N stays in got.N of the scratch directory.
run_blocks()
{
    bad_count=0
    document=$1
    readme=${2:-$scratch}/$document
    awk -v mode=list -f "$here/console_blocks.awk" "$readme" >"$scratch/commands"
    [ -s "$scratch/commands" ] || { echo "$document: no command was found" && bad_count=1; }
    while read -r line command <&3; do
        count=$((count + 1))
        got=$scratch/got.$line
        awk -v mode=want -v line="$line" -f "$here/console_blocks.awk" "$readme" >"$scratch/want"
        # shellcheck disable=SC2294 # the text is what a reader types
        eval "$command" >"$got" 2>&1 </dev/null
        status=$?
        case $command in "sluice plan "*--machine*) exact=1 ;; *) exact= ;; esac
        if [ $status -ne 0 ]; then
            found="$line: exit status $status"
        elif found=$(awk -v mode=compare -v line="$line" -v exact=$exact -f "$here/console_blocks.awk" "$scratch/want" "$got"); then
            continue
        fi
        bad_count=$((bad_count + 1))
        printf '%s:%s\n    $ %s\n' "$document" "${found:-$line: not compared}" "$command"
        sed 's/^/    /' "$got" | cut -c 1-160 | head -n 70
    done 3<"$scratch/commands"
    [ $bad_count -eq 0 ]
}

# The commands of README.md's blocks of kind sh, without comments.
list_builds()
{
    awk '/^```/ { is_sh = $0 == "```sh"; next } is_sh { sub(/ +#.*/, ""); if ($0 != "") print }' README.md
}

# copy_clone ROOT TARGET: what is tracked, or would be; outside of git all but builds and runs.
copy_clone()
{
    mkdir -p "$2"
    (cd "$1" && { git -c safe.directory='*' ls-files --cached --others --exclude-standard 2>/dev/null | grep . ||
        find . -name build -prune -o -name runs -prune -o -type f -print; } |
        while read -r file; do [ -f "$file" ] && echo "$file"; done | tar -cf - -T -) | tar -xf - -C "$2"
}

# What ./quickstart.sh leaves: a build, and a trained model.
make_quickstart()
{
    mkdir -p build runs/quickstart/text runs/quickstart/nvme
    ln -s "$build" build/release
    cat tiers/FORMAT.md perf/README.md >runs/quickstart/text/train.txt
    cat src/comm/README.md >runs/quickstart/text/valid.txt
    call build/release/src/cli/sluice train configs/jobs/quickstart.json --fresh --quiet --set run.steps=2 --set run.eval_batches=1
    [ $status -eq 0 ] || stop "the quickstart's job"
}

# expects WHAT TEXT: the blocks of the README that is TEXT must pass (WHAT is "pass") or have a fault whose line
# begins with WHAT.
expects()
{
    printf '%s\n' "$2" >"$scratch/README.md"
    if run_blocks README.md >"$scratch/said"; then
        [ "$1" = pass ] || fail "a planted fault was not found: $2"
    else
        grep -q "^README.md:$1" "$scratch/said" || fail "expected $1, and the check said: $(cat "$scratch/said")"
    fi
}

self_test()
{
    make_scratch readme_self_test "${TMPDIR:-/tmp}"
    cd "$scratch" || exit 2
    fence='```'
    block() # TEXT: a README with one block
    {
        printf 'Text\n%sconsole\n%s\n%s' "$fence" "$1" "$fence"
    }
    table='$ printf "a\nrate 1.5 MiB\nhome       -\nb 12 words in 3 s\nend\n"'
    expects pass "$(block "$table
a
rate 20.25 GiB
...
b 2 words ...
end")"
    expects pass "$(block "$table
...
home 4
...")"
    expects pass "$(block '$ sluice() { echo 4; }; sluice plan; sluice plan --machine a
5
6')"
    expects '4: ' "$(block '$ sluice plan --machine a 2>/dev/null || echo 4
5')"
    expects pass "$(block '$ x=1; cd /; false; echo "exit status $?"
exit status 1
$ echo "$x $PWD"
1 /')"
    expects '3: exit status 1' "$(block '$ false')"
    expects '4: ' "$(block '$ (exit 3); echo "exit status $?"
exit status 2')"
    expects '6: ' "$(block "$table
a
...
b 12 wards in 3 s
...")"
    expects '6: ' "$(block "$table
...
end
home -
...")"
    expects '4: ' "$(block "$table
rate 1.5 MiB
...")"
    expects '4: ' "$(block "$table
a")"
    expects '3: ' "$(block "$table")"
    expects '4: ' "$(block '$ true
something')"
    expects '' "$(block 'no command')"
    finish "small READMEs"
}

if [ "${1:?use: check_readme.sh ROOT BUILD, or --self-test}" = --self-test ]; then
    self_test
fi
root=$(realpath "$1")
build=$(realpath "${2:?use: check_readme.sh ROOT BUILD}")
make_scratch check_readme
HOME=$scratch
cpu_only
copy_clone "$root" "$scratch/clone"
cd "$scratch/clone" || exit 2
clone=$PWD
make_quickstart
PATH=$here:$PATH
list_builds | grep -vxF "$not_run" >"$scratch/unknown" &&
    fail "README.md: a block of kind sh has a command that nobody runs: $(cat "$scratch/unknown")"
run_blocks README.md "$clone" || failures=$((failures + bad_count))
awk '$2 == "sluice" && $3 == "eval" { print $1 }' "$scratch/commands" | while read -r line; do
    sed -n 's/^loss *\([0-9.]*\) nats.*/\1/p' "$scratch/got.$line"
done >"$scratch/losses"
awk 'NR > 1 && $1 >= before { exit 1 } { before = $1 } END { if (NR < 2) exit 1 }' "$scratch/losses" ||
    fail "the loss does not fall from one sluice eval of README.md to the next: $(cat "$scratch/losses")"
for document in src/README.md src/plan/README.md; do
    run_blocks $document "$clone" || failures=$((failures + bad_count))
done
[ "$(wc -l <README.md)" -le 300 ] || fail "README.md has more than 300 lines"
finish "commands of three documents"
