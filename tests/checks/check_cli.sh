#!/bin/sh
# Runs the binary as a user would and checks exit statuses and messages: check_cli.sh SLUICE VERSION
#
# It does not train. It checks the messages for wrong command lines; each error is exactly one line.
set -u
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?use: check_cli.sh SLUICE VERSION}") || exit 2
version=$2
make_scratch check_cli

# run STATUS TEXT ARGS...: TEXT must be on standard output, or on standard error if STATUS is not 0.
run()
{
    want=$1
    text=$2
    shift 2
    call "$sluice" "$@"
    exits "$want" "sluice $*"
    if [ "$want" -eq 0 ]; then
        says out "$text" "sluice $*"
    else
        one_error "sluice $*" "$text"
        one_line "sluice $*"
    fi
}

run 0 "sluice $version" --version

# A wrong SLUICE_ISA is refused, never ignored.
SLUICE_ISA=avx1024
export SLUICE_ISA
run 2 'SLUICE_ISA is "avx1024", which is not the name of an instruction set; this CPU has: baseline' --version
SLUICE_ISA=baseline
run 0 "sluice $version" --version
unset SLUICE_ISA
run 0 "sluice train" help
run 0 "sluice train" --help
for command in train plan generate eval verify inspect remove; do
    run 0 "options:" "$command" --help
    run 0 "options:" help "$command"
    run 2 "is missing" "$command"
    run 2 "unknown option" "$command" x --no-such-option
done
run 0 "default" train --help
run 0 "schedule.order" train --keys
run 0 "zero_optimization.stage" plan --keys
run 2 "unknown option" generate --keys
run 0 "default" generate --help
run 0 "default" verify --help
run 0 "default" inspect --help
run 0 "GB/s (10^9 bytes)" verify --help
run 0 "from its last commit" train --help
run 0 "hold no commit; refuses otherwise" train --help
run 0 "run.keep" train --keys
run 0 "io.stuck_seconds" train --keys
run 0 "\`io.stuck_seconds\`" train --keys=markdown
run 0 "sluice inspect" help
run 0 "options:" list --help
run 2 "cannot look into" list "$scratch/none"
run 2 "unknown option" verify --keys
run 2 "a command is missing"
run 2 'nearest is train' trian
run 2 'unknown command "frobnicate"' frobnicate
run 2 '"--set" is no option of sluice itself' --set run.steps=1 plan job.json
run 2 'plan: an argument is empty; it takes JOB' plan ''
run 2 'nearest is --fresh' train job.json --fersh
run 2 'nearest is --set' plan job.json --sett a=b
run 0 "ranks-per-host" plan --help
run 0 "Under mpirun or srun" train --help
run 0 "comm.timeout_seconds" plan --keys
run 0 "On one rank it has no effect" plan --keys
run 2 'whole number from 1 to 1024' plan job.json --ranks 0
run 2 'is more than --ranks 2' plan job.json --ranks 2 --ranks-per-host 3
run 2 'needs a value' plan job.json --ranks
run 2 'several with commas' plan job.json --ranks 1,,2
run 2 'several with commas' plan job.json --ranks 4,
run 2 'several with commas' plan job.json --ranks 1,2000
run 2 'for one number of ranks alone' plan - --ranks 1,2
run 0 'plan [JOB] [options]' plan --help
run 0 '121.6B' plan --table zero
run 0 '"shown": "0.5T"' plan --table zero --json
run 2 'the tables are "zero" and "published"' plan --table one
run 2 '--table zero takes no job' plan job.json --table zero
run 2 '--table published takes no job' plan job.json --table published
run 2 '--set needs a value' train job.json --set
run 2 'takes no value' train job.json --fresh=1
run 2 'takes one JOB' train a.json b.json
run 2 'takes one RUN' verify a b
run 2 'takes no value' inspect x --json=1
run 2 'nearest is verify' verfiy x
run 2 'nearest is inspect' inspct x
run 2 'nearest is --quiet' verify x --quite
run 2 "$scratch/none.json" train "$scratch/none.json"
run 2 "$scratch/none.json" plan "$scratch/none.json"
run 2 "$scratch/none is no run directory and no checkpoint: there is no such directory" generate "$scratch/none" --prompt x
for command in verify inspect; do
    run 2 "$scratch/none is no run directory: there is no such directory" $command "$scratch/none"
    run 2 "$scratch is no run directory" $command "$scratch"
    run 2 "$scratch is no run directory" $command --json "$scratch"
done
mkdir "$scratch/state"
run 2 "it has no manifest" verify "$scratch"
run 2 "it has no manifest" inspect "$scratch"
rm -rf "$scratch/state"
run 2 'whole number from' generate "$scratch" --tokens 0
run 2 'number from' generate "$scratch" --temperature -1
run 2 'number from' generate "$scratch" --top-p 0
run 2 'are both given' generate "$scratch" --prompt x --prompt-file y
run 2 "the prompt: cannot open $scratch/none" generate "$scratch" --prompt-file "$scratch/none"
run 2 'give --chat too' generate "$scratch" --prompt x --system y
run 2 'needs what the user says' generate "$scratch" --chat
run 2 'more than 256' generate "$scratch" --prompt x --stop "$(printf '%0300d' 0)"
run 2 "$scratch is no run directory: it has no job.json; and no checkpoint" generate "$scratch" --prompt x
run 2 "$scratch is no run directory: it has no job.json; and no checkpoint" eval "$scratch" x
run 2 'eval: takes RUN|HF_DIR FILE..., at least 2 arguments, and was given 1' eval "$scratch"
run 2 'number from' eval "$scratch" x --stride 0

# Commands that compute start themselves again once, so that idle OpenMP threads sleep soon. They never do
# it twice, or if the user has set the variable, or if the running program is the loader.
# environment TEXT ASSIGNMENTS...: the environment of the process must hold TEXT while it reads its job.
environment()
{
    pattern=$1
    shift
    count=$((count + 1))
    rm -f "$scratch/job"
    mkfifo "$scratch/job"
    exec 3<>"$scratch/job" # a writer: the process waits for its text until this is closed
    env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT -u KMP_BLOCKTIME "$@" "$sluice" train "$scratch/job" \
        >"$scratch/out" 2>"$scratch/err" 3>&- &
    pid=$!
    tries=0
    # The shell's own child holds the writer too, until it becomes the program.
    until { [ "/proc/$pid/exe" -ef "$sluice" ] &&
        ls -l "/proc/$pid/fd" 2>/dev/null | grep -qF "$scratch/job"; } || [ $tries -ge 1000 ]; do
        tries=$((tries + 1))
        sleep 0.02
    done
    tr '\0' '\n' <"/proc/$pid/environ" >"$scratch/environ"
    exec 3>&-
    wait "$pid"
    status=$?
    exits 2 "an empty job with $*"
    found=$(grep -E '^(GOMP_SPINCOUNT|OMP_WAIT_POLICY|SLUICE_RESTARTED)=' "$scratch/environ" | sort |
        tr '\n' ' ')
    [ "$found" = "$pattern" ] || fail "with $*: environment '$found', expected '$pattern'"
}

if [ -r /proc/self/environ ]; then
    environment "GOMP_SPINCOUNT=3000 SLUICE_RESTARTED=1 " HOME=/
    environment "OMP_WAIT_POLICY=active " OMP_WAIT_POLICY=active
    environment "GOMP_SPINCOUNT=77 " GOMP_SPINCOUNT=77
    environment "SLUICE_RESTARTED=1 " SLUICE_RESTARTED=1
fi
for loader in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do
    [ -x "$loader" ] || continue
    call "$loader" "$sluice" train "$scratch/none.json"
    exits 2 "$loader sluice train"
    says err "$scratch/none.json" "$loader sluice train"
done

# SLUICE_FAILPOINTS is checked first, in every command.
call env SLUICE_FAILPOINTS="commit.begin=nonsense" "$sluice" help
exits 2 "a point with a wrong action"
one_error "a point with a wrong action"

# Conversations have marks, which no token file can hold, so they are refused. The input stays unchanged.
echo '{"messages": [{"role": "user", "content": "a"}]}' >"$scratch/chat.jsonl"
echo '{"text": "abc"}' >"$scratch/text.jsonl"
cp "$scratch/text.jsonl" "$scratch/kept"
bytes="data tokenize --tokenizer bytes --no-document-end"
run 2 'only the answers count as targets (messages)' $bytes --out "$scratch/new" "$scratch/chat.jsonl"
run 2 'is an input and would be written' $bytes --format u16 --out "$scratch/text.jsonl" "$scratch/text.jsonl"
cmp -s "$scratch/kept" "$scratch/text.jsonl" || fail "data tokenize has changed what it read"
run 0 'documents  1' $bytes --out "$scratch/new" "$scratch/text.jsonl"
run 2 '--stop is empty' generate "$scratch" --stop ""

# It is an error if the output cannot be written. It is none if the reader ends first.
if [ -c /dev/full ]; then
    "$sluice" help >/dev/full 2>"$scratch/err"
    [ $? -eq 1 ] || fail "help to a full device succeeded"
fi
{
    "$sluice" help
    echo $? >"$scratch/status"
} | true
[ "$(cat "$scratch/status")" -eq 0 ] || fail "a closed pipe is an error"

finish "command lines"
