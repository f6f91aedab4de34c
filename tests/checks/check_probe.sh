#!/bin/sh
# Runs `sluice probe` as a user would: check_probe.sh SLUICE stop|quick
#
#   stop   files that it refuses to overwrite, wrong use, and that Ctrl-C ends it and leaves no file (some seconds)
#   quick  a whole `sluice probe --quick`, twice over the same file; how long it took is printed, not judged
set -u
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?use: check_probe.sh SLUICE stop|quick}") || exit 2
part=${2:-stop}
make_scratch check_probe
cd "$scratch" || exit 2
mkdir drive

# run STATUS TEXT ARGS...: TEXT must be on standard error, or on standard output if STATUS is 0.
run()
{
    want=$1
    text=$2
    shift 2
    call "$sluice" probe "$@"
    exits "$want" "probe $*"
    stream=err
    [ "$want" -ne 0 ] || stream=out
    says $stream "$text" "probe $*"
}

if [ "$part" = stop ]; then
    run 0 "options:" --help
    run 2 "takes options alone" machine.json
    run 2 "unknown option" --fast
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 run 2 "mpirun" --quick
    echo "not a machine" >notes.txt
    run 2 "not overwritten" --out notes.txt
    echo "{}" >job.json
    run 2 "not overwritten" --out job.json
    : >empty.json
    run 2 "not overwritten" --out empty.json
    run 2 "cannot be written" --out no/such/machine.json
    run 2 "--out is empty" --out ""
    run 2 "not a directory" --drive notes.txt
    run 2 "--drive no/such/drive: No such file" --drive no/such/drive
    run 2 "must be auto, cpu or cuda" --backend gpu
    [ "$(cat notes.txt)" = "not a machine" ] || fail "a file was overwritten"
    "$sluice" probe --quick --drive drive >out 2>err </dev/null &
    pid=$!
    sleep 2
    kill -TERM $pid
    wait $pid
    status=$?
    exits 75 "a stopped probe"
    [ ! -e machine.json ] || fail "a stopped probe wrote its file"
    [ -z "$(ls -A drive)" ] || fail "a stopped probe left a file on the drive"
else
    began=$(date +%s)
    run 0 "machine.json written" --quick --drive drive
    grep -q "memory read" out || fail "no findings"
    grep -q "% *" err || fail "no progress"
    echo "quick: $(($(date +%s) - began)) s"
    [ -s machine.json ] || fail "no machine.json"
    if grep -Eq "measure again|disturbed:" out; then
        grep -q '"disturbed": true' machine.json || fail "machine.json does not say that it was disturbed"
    else
        ! grep -q '"disturbed": true' machine.json || fail "disturbed, and nobody said why"
    fi
    [ -z "$(ls -A drive)" ] || fail "something is left on the drive"
    began=$(date +%s)
    run 0 '"dram_copy"' --quick --drive drive --json --quiet
    [ "$(head -c 1 out)" = "{" ] || fail "standard output is not JSON alone"
    cmp -s out machine.json || fail "what is printed is not what is written"
    echo "quick, as JSON: $(($(date +%s) - began)) s"
fi
finish commands
