#!/bin/sh
# Runs the binary as a user would and checks exit statuses and messages: check_cli.sh SLUICE VERSION
#
# No training here: what a wrong command line says, and that each error is exactly one line.
set -u
sluice=${1:?use: check_cli.sh SLUICE VERSION}
version=$2
[ -x "$sluice" ] || { echo "no program $sluice"; exit 2; }
scratch=$(mktemp -d ./check_cli.XXXXXX) || exit 2
trap 'rm -rf "$scratch"' EXIT
failures=0
count=0

fail()
{
    echo "FAILED: $1"
    sed 's/^/    /' "$scratch/out" "$scratch/err"
    failures=$((failures + 1))
}

# run STATUS TEXT ARGS...: TEXT is looked for on standard error where STATUS is not 0, else on output.
run()
{
    want=$1
    text=$2
    shift 2
    count=$((count + 1))
    "$sluice" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
    [ "$status" -eq "$want" ] || fail "sluice $*: exit $status, expected $want"
    if [ "$want" -eq 0 ]; then
        grep -qF -- "$text" "$scratch/out" || fail "sluice $*: no '$text' on standard output"
    else
        grep -qF -- "sluice: error: " "$scratch/err" || fail "sluice $*: no error line"
        grep -qF -- "$text" "$scratch/err" || fail "sluice $*: no '$text' on standard error"
        [ "$(grep -c '' "$scratch/err")" -eq 1 ] || fail "sluice $*: more than one line of error"
    fi
}

run 0 "sluice $version" --version
run 0 "sluice train" help
run 0 "sluice train" --help
for command in train plan generate; do
    run 0 "options:" "$command" --help
    run 0 "options:" help "$command"
    run 2 "is missing" "$command"
    run 2 "unknown option" "$command" x --no-such-option
done
run 0 "default" train --help
run 0 "default" generate --help
run 2 "a command is missing"
run 2 'nearest is train' trian
run 2 'unknown command "frobnicate"' frobnicate
run 2 'nearest is --fresh' train job.json --fersh
run 2 'nearest is --set' plan job.json --sett a=b
run 2 '--set needs a value' train job.json --set
run 2 'takes no value' train job.json --fresh=1
run 2 'takes one JOB' train a.json b.json
run 2 "$scratch/none.json" train "$scratch/none.json"
run 2 "$scratch/none.json" plan "$scratch/none.json"
run 2 "$scratch/none" generate "$scratch/none" --prompt x
run 2 'whole number from' generate "$scratch" --tokens 0
run 2 'number from' generate "$scratch" --temperature -1

# What cannot be written is an error, and a reader that goes away is none.
if [ -c /dev/full ]; then
    "$sluice" help >/dev/full 2>"$scratch/err"
    [ $? -eq 1 ] || fail "help to a full device succeeded"
fi
{
    "$sluice" help
    echo $? >"$scratch/status"
} | true
[ "$(cat "$scratch/status")" -eq 0 ] || fail "a closed pipe is an error"

echo "$count command lines, $failures failures"
[ "$failures" -eq 0 ]
