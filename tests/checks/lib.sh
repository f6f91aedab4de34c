# Shared by the shell checks: . "$(dirname "$0")/lib.sh"
#
# A check makes its scratch directory, calls commands, examines their results, and ends with `finish`. Exit
# statuses: 0 all is as expected; 1 something failed, with a line "FAILED: ..." for each; 2 wrong use; 77 skipped.
# Counters: `failures`, and `count` of what was tried. The output of the last command is in out and err of the
# scratch directory, its exit status in `status`.
# shellcheck shell=sh disable=SC2034 # the checks read these variables
failures=0
count=0
status=0

# program PATH: prints the absolute path of a program. For `sluice=$(program "$1") || exit 2`.
program()
{
    if ! path=$(realpath "$1" 2>/dev/null) || [ ! -x "$path" ]; then
        echo "no program $1" >&2
        return 2
    fi
    echo "$path"
}

# make_scratch NAME [PARENT]: a new directory, whose absolute path is in `scratch`, under the present one or
# PARENT. It is removed when the check ends, after the check's own `undo`.
make_scratch()
{
    scratch=$(mktemp -d "${2:-.}/$1.XXXXXX") || exit 2
    scratch=$(realpath "$scratch")
    trap 'undo; rm -rf "$scratch"' EXIT
    trap 'exit 1' HUP INT TERM
}
undo()
{
    :
}

# fail TEXT: counts a failure, and shows the output of the last command.
fail()
{
    echo "FAILED: $1"
    for stream in out err; do
        if [ -s "${scratch:-/nowhere}/$stream" ]; then
            head -n 30 "$scratch/$stream" | cut -c 1-300 | sed 's/^/    /'
        fi
    done
    failures=$((failures + 1))
}

# stop TEXT: fails and ends the check, because the rest would make no sense.
stop()
{
    fail "$1"
    exit 1
}

# skip TEXT
skip()
{
    echo "skipped: $1"
    exit 77
}

# finish WHAT: prints the counters and ends the check.
finish()
{
    echo "$count $1, $failures failures"
    exit $((failures > 0))
}

# call COMMAND...: runs it with an empty standard input.
call()
{
    count=$((count + 1))
    status=0
    "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
}

# exits STATUS WHAT: the last command must have ended with STATUS. WHAT names it in the message, here and below.
exits()
{
    [ "$status" -eq "$1" ] || fail "$2: exit $status, expected $1"
}

# says STREAM TEXT WHAT: its out or err must hold TEXT.
says()
{
    grep -qF -- "$2" "$scratch/$1" || fail "$3: no '$2' on $1"
}

# one_error WHAT [TEXT]: err must hold exactly one error line of sluice, with TEXT in it.
one_error()
{
    [ "$(grep -c '^sluice: error: ' "$scratch/err")" -eq 1 ] || fail "$1: not one line of error"
    [ $# -lt 2 ] || grep '^sluice: error: ' "$scratch/err" | grep -qF -- "$2" ||
        fail "$1: no '$2' in its error"
}

# one_line WHAT: err must be one line.
one_line()
{
    [ "$(grep -c '' "$scratch/err")" -eq 1 ] || fail "$1: not one line of error"
}

# until_true SECONDS COMMAND...: waits until the command succeeds; 1 if it does not within that time.
until_true()
{
    turns=$(($1 * 20))
    shift
    until "$@"; do
        turns=$((turns - 1))
        [ $turns -gt 0 ] || return 1
        sleep 0.05
    done
}

# has_line TEXT FILE
has_line()
{
    grep -q -- "$1" "$2" 2>/dev/null
}

# set_options KEY=VALUE...: the overrides as `--set` options in `sets`. Values have no blanks.
set_options()
{
    sets=
    for one in "$@"; do
        sets="$sets --set $one"
    done
}

# losses RUN: the bits of each step's loss, a line a step.
losses()
{
    sed -n 's/.*"loss_bits": *"\([0-9a-f]*\)".*/\1/p' "$1/metrics.jsonl" 2>/dev/null
}

# write_text FILE LINES: a text to train on. What it says does not matter.
write_text()
{
    awk -v lines="$2" 'BEGIN {
        for (i = 0; i < lines; i++)
            print "line " i " of a text that is long enough for a window of the sampler"
    }' >"$1"
}

# write_job FILE STEPS TIER DRIVE [MORE]: a job of a small GPT-2 that trains on text.txt into run. Its params and
# gradients rest in TIER, the rest on DRIVE. MORE: further members of the job, each with a comma behind it.
write_job()
{
    cat >"$1" <<JOB
{
  "model": {"family": "gpt2", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256,
            "seq_length": 32},
  "data": {"train": ["text.txt"], "valid": ["text.txt"]},
  "run": {"dir": "run", "steps": $2},
  "device": {"backend": "cpu"},
  "tiers": {
    "device": {"budget": "16MiB"}, "host": {"budget": "16MiB"},
    "nvme": [{"path": "$4", "budget": "64MiB"}],
    "place": {"params": "$3", "grads": "$3", "optimizer": "nvme", "activations": "nvme"}
  },
  "train_micro_batch_size_per_gpu": 2, ${5:-}
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}
}
JOB
}

# cpu_only: the CPU's tests, also where there is a GPU. Idle threads sleep: the machine has other work.
cpu_only()
{
    OMP_WAIT_POLICY=passive
    CUDA_VISIBLE_DEVICES=
    export OMP_WAIT_POLICY CUDA_VISIBLE_DEVICES
}

# allow_mpi: Open MPI 4 and 5 start more ranks than there are cores, also for root. Skips without mpirun.
allow_mpi()
{
    command -v mpirun >/dev/null || skip "there is no mpirun"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
    export PRTE_MCA_rmaps_default_mapping_policy
}

# mpi_is_absent: the last command said that this build has no MPI.
mpi_is_absent()
{
    grep -qF "this build has no MPI" "$scratch/err"
}
