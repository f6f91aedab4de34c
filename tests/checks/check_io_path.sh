#!/bin/sh
# Checks which system calls move the bytes of the slab, what happens without io_uring, and how the slab is
# spread over several drives: check_io_path.sh trace|denied|drives SLUICE DENY_URING
#
#   trace   a small job under strace: io_uring alone, pread and pwrite alone, or these in place of an
#           io_uring that is forbidden; and that new directories are made durable. Exit 77 where no
#           process may be traced.
#   denied  the same job with io_uring forbidden by a seccomp filter, as unknown to the kernel (ENOSYS)
#           and as not permitted (EPERM, the answer of kernel.io_uring_disabled=2 too): one warning that
#           says what it costs, and the losses of every step to the bit.
#   drives  the slab on one drive, on two directories of a device, on two devices that are measured and
#           share it by speed, also after a stop: the same losses to the bit. Exit 77 where no second
#           device can be written.
set -u
usage='use: check_io_path.sh trace|denied|drives SLUICE DENY_URING'
. "$(dirname "$0")/lib.sh"
mode=${1:?$usage}
sluice=$(program "${2:?$usage}") || exit 2
deny=$(program "${3:?$usage}") || exit 2
make_scratch check_io_path
other=
undo()
{
    [ -z "$other" ] || rm -rf "$other"
}
cd "$scratch" || exit 2
cpu_only

write_job job.json 3 nvme new/drive
write_text text.txt 60

polled=false

# train NAME BACKEND LAUNCHER...: a fresh run; its log in NAME.log, its losses in NAME.bits.
train()
{
    name=$1
    backend=$2
    shift 2
    rm -rf run new
    call "$@" "$sluice" train job.json --set "io.backend=$backend" --set "io.polled_completions=$polled"
    cp err "$name.log"
    losses run >"$name.bits"
}

# The run NAME must have succeeded, with a loss for each step.
trained()
{
    exits 0 "$1"
    [ "$(grep -c . "$1.bits")" -eq 3 ] || fail "$1: no loss_bits of three steps"
}

# Without io_uring on this machine, its parts of both modes cannot run.
train uring uring env
if [ $status -eq 0 ]; then
    has_uring=yes
else
    has_uring=no
    grep -qE 'error: io_uring_setup: (Function not implemented|Operation not permitted)' err ||
        fail "io.backend=uring: exit $status"
    echo "this machine has no io_uring: $(grep -m 1 'error:' err)"
fi

# NAME.log must hold one warning about io_uring, with the REASON of the kernel, the cost and ADVICE.
warned_once()
{
    [ "$(grep -c 'warning: .*io_uring' "$1.log")" -eq 1 ] || fail "$1: not one warning of io_uring"
    grep 'warning: io_uring cannot be used' "$1.log" | grep -F "$2" | grep -q 'CPU time' ||
        fail "$1: the warning lacks '$2' or what it costs"
    grep 'warning: io_uring cannot be used' "$1.log" | grep -qF -- "$3" || fail "$1: the warning lacks '$3'"
}

check_denied()
{
    "$deny" ENOSYS true
    [ $? -ne 77 ] || exit 77
    reference=uring
    if [ $has_uring = no ]; then
        reference=pool
        train pool pool env
        trained pool
    fi
    for error in ENOSYS EPERM; do
        reason='Function not implemented'
        advice='need Linux 5.6 or later'
        [ $error = EPERM ] && reason='Operation not permitted' && advice='io_uring_disabled'
        train "$error" auto "$deny" "$error"
        trained "$error"
        warned_once "$error" "$reason" "$advice"
        cmp -s "$reference.bits" "$error.bits" ||
            fail "$error: other losses than with io.backend=$reference"
        # Asked for by name it is not replaced in silence.
        train "$error-uring" uring "$deny" "$error"
        exits 1 "io.backend=uring with $error"
        grep '^sluice: error: ' err | grep -F io_uring | grep -qF "$reason" ||
            fail "io.backend=uring with $error: the error lacks io_uring or '$reason'"
        # The pool by name needs no warning.
        train "$error-pool" pool "$deny" "$error"
        trained "$error-pool"
        ! grep -q 'io_uring' err || fail "io.backend=pool with $error: speaks of io_uring"
        cmp -s "$reference.bits" "$error-pool.bits" || fail "$error-pool: other losses"
    done
    # Limits that are reached: each has advice of its own.
    train EMFILE auto "$deny" EMFILE
    trained EMFILE
    warned_once EMFILE 'raise that limit (ulimit -n)' 'that it may have'
    train ENOMEM auto "$deny" ENOMEM
    trained ENOMEM
    warned_once ENOMEM 'Cannot allocate memory' 'transfers'
}

# traced NAME BACKEND LAUNCHER...: the run under strace. Sets enters (of io_uring that went through),
# reads and writes (of slab data by system calls: all but the header at offset 0).
traced()
{
    name=$1
    backend=$2
    shift 2
    train "$name" "$backend" strace -f -y -q -o "$name.trace" \
        -e trace=io_uring_setup,io_uring_enter,io_uring_register,pread64,pwrite64,preadv,pwritev,preadv2,pwritev2,read,write,fsync \
        "$@"
    trained "$name"
    enters=$(grep -c 'io_uring_enter(.*= [0-9]' "$name.trace")
    setups=$(grep -c 'io_uring_setup(' "$name.trace")
    # A call that another thread's call interrupts is printed in two lines, the first with its file.
    header=', 0(\) +=| <unfinished)'
    reads=$(grep -E '[ ]p?read(64|v2?)?\([0-9]+<[^>]*\.slab>' "$name.trace" | grep -vcE "$header")
    writes=$(grep -E '[ ]p?write(64|v2?)?\([0-9]+<[^>]*\.slab>' "$name.trace" | grep -vcE "$header")
    echo "$name: $enters io_uring_enter, $reads reads and $writes writes of slab data by system call"
}

# NAME: the directory that holds the slab, the drive's and all that was made above it, are synced.
synced_directories()
{
    for directory in "$scratch/new/drive/sluice-[0-9a-f]*" "$scratch/new/drive" "$scratch/new" "$scratch"; do
        grep -qE "fsync\([0-9]+<$directory>\)" "$1.trace" || fail "$1: no fsync of $directory"
    done
}

check_traced()
{
    command -v strace >/dev/null || skip "strace is not installed"
    strace -f -o /dev/null true 2>err || skip "no process may be traced here: $(head -n 1 err)"
    if [ $has_uring = yes ]; then
        for backend in uring auto; do
            traced "$backend-traced" $backend
            [ "$enters" -gt 0 ] || fail "io.backend=$backend: no io_uring_enter"
            [ "$reads" -eq 0 ] && [ "$writes" -eq 0 ] ||
                fail "io.backend=$backend: slab data goes by system calls too"
        done
        # The advised set-up is tried first; a kernel that lacks it answers EINVAL and gets the next.
        header=/usr/include/liburing/io_uring.h
        ! grep -qs IORING_SETUP_DEFER_TASKRUN $header || grep 'io_uring_setup(' uring-traced.trace | head -n 1 |
            grep -qE 'TASKRUN_FLAG.*(SINGLE_ISSUER.*DEFER_TASKRUN|0x3000)' || fail "uring: set up as $(
                grep -m 1 'io_uring_setup(' uring-traced.trace)"
        synced_directories uring-traced
        # Whether or not the drive can be polled, the first ring is one that is polled.
        polled=true
        traced polled-traced uring
        polled=false
        grep -m 1 'io_uring_setup(' polled-traced.trace | grep -q IORING_SETUP_IOPOLL ||
            fail "io.polled_completions: $(grep -m 1 'io_uring_setup(' polled-traced.trace)"
        cmp -s uring-traced.bits polled-traced.bits || fail "io.polled_completions: other losses"
    fi
    traced pool-traced pool
    [ "$setups" -eq 0 ] && [ "$enters" -eq 0 ] || fail "io.backend=pool: io_uring is in use"
    [ "$reads" -gt 0 ] && [ "$writes" -gt 0 ] || fail "io.backend=pool: no pread or no pwrite"
    synced_directories pool-traced
    "$deny" ENOSYS true
    if [ $? -ne 77 ]; then
        traced denied-traced auto "$deny" ENOSYS
        [ "$setups" -gt 0 ] && [ "$enters" -eq 0 ] || fail "denied: io_uring was not tried, or worked"
        [ "$reads" -gt 0 ] && [ "$writes" -gt 0 ] || fail "denied: no pread or no pwrite"
        cmp -s pool-traced.bits denied-traced.bits || fail "denied: other losses than the pool's"
    fi
    [ $has_uring = no ] || cmp -s uring-traced.bits pool-traced.bits ||
        fail "pool: other losses than io_uring's"
}

# A directory on another device than the scratch directory's, as `other`; none: empty.
find_other_device()
{
    for place in /dev/shm /tmp /run /var/tmp; do
        if [ -d $place ] && [ -w $place ] && [ "$(stat -c %d $place)" != "$(stat -c %d .)" ] &&
            [ "$(df -k --output=avail $place | tail -n 1)" -gt 200000 ]; then
            other=$(mktemp -d $place/check_io_path.XXXXXX) && return
            other=
        fi
    done
}

# over NAME STEPS DRIVES: resumes the run in ./run for so many steps, with the slab on these drives.
over()
{
    call "$sluice" train job.json --set model.hidden_size=256 --set run.steps="$2" --set "tiers.nvme=$3"
    exits 0 "$1"
    losses run >"$1.bits"
    [ "$(grep -c . "$1.bits")" -eq "$2" ] || fail "$1: no loss_bits of $2 steps"
}

# NAME DIRECTORY...: each holds a part of the slab, and nothing else was left in it.
holds_slab()
{
    name=$1
    shift
    for directory in "$@"; do
        [ "$(find "$directory" -name '*.slab' -size +64k | wc -l)" -eq 1 ] || fail "$name: no slab in $directory"
        [ "$(find "$directory" -mindepth 1 ! -name owner | wc -l)" -eq 2 ] || fail "$name: something was left in $directory"
    done
}

check_drives()
{
    find_other_device
    rm -rf run new
    over one 5 '[{"path": "one", "budget": "128MiB"}]'
    ! grep -q 'by speed\|one device' err || fail "one drive: its speed was of interest"
    rm -rf run

    over same 3 '[{"path": "same-a", "budget": "64MiB"}, {"path": "same-b", "budget": "64MiB"}]'
    grep -q 'the 2 drive directories are on one device' err || fail "same: not told to be one device"
    over same 5 '[{"path": "same-a", "budget": "64MiB"}, {"path": "same-b", "budget": "64MiB"}]'
    holds_slab same same-a same-b
    cmp -s one.bits same.bits || fail "two directories: other losses than on one drive"
    rm -rf run same-a same-b one

    [ -n "$other" ] || return
    drives='[{"path": "here", "budget": "128MiB"}, {"path": "'$other/there'", "budget": "32MiB"}]'
    over two 3 "$drives"
    [ "$(grep -c 'drive .*: reads [0-9.]*, writes [0-9.]*, both mixed [0-9.]* GB/s .* of the stripes by speed' err)" -eq 2 ] ||
        fail "two: not one line of speed for each drive"
    sed -n 's/.*: \([0-9.]*\)% of the stripes by speed.*/\1/p' err |
        awk '{ sum += $1 } END { exit !(sum > 99.7 && sum < 100.3) }' || fail "two: shares are not 100%"
    over two 5 "$drives"
    ! grep -q 'by speed' err || fail "two: a slab that is there was weighed again"
    holds_slab two here "$other/there"
    cmp -s one.bits two.bits || fail "two devices: other losses than on one drive"
}

case $mode in
drives) check_drives ;;
trace) check_traced ;;
denied) check_denied ;;
*)
    echo "unknown mode $mode"
    exit 2
    ;;
esac
[ "$failures" -gt 0 ] || [ "$mode" != drives ] || [ -n "$other" ] ||
    skip "no second device can be written; all other checks passed"
[ "$failures" -gt 0 ] || [ "$mode" != trace ] || [ $has_uring = yes ] ||
    skip "what io_uring does; all other checks passed"
finish runs
