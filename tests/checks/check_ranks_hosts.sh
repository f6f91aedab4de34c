#!/bin/sh
# Ranks on several hosts: check_ranks_hosts.sh SLUICE [all | speed]
#
# Hosts are network namespaces, with names, drives and mounts of their own, on one bridge; mpirun reaches them by
# a launch agent in the place of ssh. Each host has two more interfaces that lead nowhere, one of them with the
# same address on all hosts, as containers have. Only the first host sees run.dir and the job file, and each
# host sees only its own drive. The subjects:
#
#   bits     4 ranks on 1, 2 and 3 hosts, stages 0 and 3: equal losses in every bit, equal weights
#   places   no rank but rank 0 has touched run.dir; each host's drive holds its ranks' slabs
#   resume   on the same hosts; on other ranks while all slabs are seen; refused where they are not, with the
#            sentence that names rank, host and path
#   gone     a host whose network is cut, and one that loses its power: all end within the stated time, with one
#            message that names the host; the next run goes on from the last commit, to the same bits
#
# "all" adds the stages and placements that the suite has no time for. "speed" is another subject, by itself: two hosts
# whose links take 1 and 10 Gb/s by tc. The bytes that a rank sends must be those of the plan, and at 1 Gb/s the plan must
# name comm as what binds. The step is printed beside the planned one; with SLUICE_TEST_TIMES it must be within 10 % of it
# where comm binds. It probes the machine first, so let nothing else run. All runs in namespaces of this script,
# process ids included: they and all processes in them are gone with it, however it ends. Skipped (77) where
# namespaces or bridges are not permitted, without mpirun or ip, or where this build has no MPI.
set -u
usage='use: check_ranks_hosts.sh SLUICE [all | speed]'
. "$(dirname "$0")/lib.sh"
hosts='node1 node2 node3'

# --- outside: a directory, and the namespaces -----------------------------------------------------------------

if [ "${1:-}" != --inside ]; then
    sluice=$(program "${1:?$usage}") || exit 2
    for tool in mpirun ip unshare nsenter; do
        command -v $tool >/dev/null || skip "there is no $tool"
    done
    [ "$(id -u)" -eq 0 ] && map= || map=--map-root-user
    # shellcheck disable=SC2086 # no word where there is none
    space="unshare $map --mount --net --uts --ipc --pid --fork --kill-child --mount-proc"
    $space sh -c 'mount -t tmpfs none /run && mkdir /run/netns && ip netns add try && ip link add name try0 type bridge &&
        ip link add name try1 type veth peer name try2 netns try &&
        ip netns exec try unshare --uts --mount hostname try' >/dev/null 2>&1 ||
        skip "namespaces, bridges or mounts are not permitted here"
    make_scratch check_ranks_hosts
    $space sh "$0" --inside "$scratch" "$sluice" "${2:-}" &
    wait $!
    exit $?
fi

# --- inside: three hosts --------------------------------------------------------------------------------------

scratch=$2
sluice=$3
extent=$4
allow_mpi
cpu_only

make_hosts()
{
    mount -t tmpfs none /run && mkdir /run/netns || return 1
    printf '127.0.0.1 localhost\n' >"$scratch/names"
    ip link add name bridge type bridge && ip link set bridge up || return 1
    number=0
    for host in $hosts; do
        number=$((number + 1))
        printf '10.90.0.%d %s\n' $number "$host" >>"$scratch/names"
        mkdir -p "$scratch/drives/$host"
        ip netns add "$host" &&
            ip -n "$host" link set lo up &&
            # An address that all hosts have, and one that no other host reaches: both come first.
            ip -n "$host" link add name containers type veth peer name inner &&
            ip -n "$host" addr add 172.17.0.1/16 dev containers &&
            ip -n "$host" addr add 10.91.$number.1/24 dev inner &&
            ip -n "$host" link set containers up && ip -n "$host" link set inner up &&
            ip link add name "to-$host" type veth peer name cluster netns "$host" &&
            ip link set "to-$host" master bridge up &&
            ip -n "$host" addr add 10.90.0.$number/24 dev cluster &&
            ip -n "$host" link set cluster up || return 1
    done
    mount --bind "$scratch/names" /etc/hosts
}

# Prepares a process of a host: it gets its name and its memory for ranks, and nothing of the other hosts.
cat >"$scratch/inside" <<'INSIDE'
scratch=$1
host=$2
shift 2
hostname "$host" && mount -t tmpfs none /dev/shm || exit 1
for other in $(ls "$scratch/drives"); do
    [ "$other" = "$host" ] || mount -t tmpfs -o ro none "$scratch/drives/$other" || exit 1
done
[ "$host" = node1 ] || mount -t tmpfs -o ro none "$scratch/head" || exit 1
exec "$@"
INSIDE
cat >"$scratch/agent" <<AGENT
#!/bin/sh
host=\$1
shift
# mpirun has the mounts of the first host. Go back to those of this script, from which all hosts start.
nsenter --mount=/proc/1/ns/mnt ip netns exec "\$host" unshare --uts --mount sh "$scratch/inside" "$scratch" "\$host" sh -c "\$*"
status=\$?
# ssh to a host that has lost its power gets no answer.
[ \$status -ne 137 ] || exec sleep 1000
exit \$status
AGENT
chmod +x "$scratch/agent"

# on HOST COMMAND...
on()
{
    host=$1
    shift
    ip netns exec "$host" unshare --uts --mount sh "$scratch/inside" "$scratch" "$host" "$@"
}

# launch PLACES ARGS...: sluice train on PLACES (node1:2,node2:2), rank 0 on the first; out and err.
launch()
{
    places=$1
    shift
    ranks=0
    for place in $(echo "$places" | tr ',' ' '); do
        ranks=$((ranks + ${place#*:}))
    done
    on node1 timeout "${limit:-60}" mpirun -n $ranks --host "$places" --oversubscribe --bind-to none \
        --mca plm_rsh_agent "$scratch/agent" --mca orte_tmpdir_base "$scratch/tmp" \
        --mca btl_tcp_if_include 10.90.0.0/24 --mca oob_tcp_if_include 10.90.0.0/24 \
        "$sluice" train "$scratch/head/job.json" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
    count=$((count + 1))
}
mkdir -p "$scratch/tmp" "$scratch/head" "$scratch/data" || exit 2
make_hosts || exit 2
write_text "$scratch/data/train.txt" 400
cat >"$scratch/head/job.json" <<JOB
{"model": {"family": "gpt2", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256,
           "seq_length": 32},
 "data": {"train": "$scratch/data/train.txt"},
 "run": {"steps": 6, "commit_every": 2},
 "device": {"backend": "cpu", "threads": 1},
 "tiers": {"device": {"budget": "32MiB"}, "host": {"budget": "32MiB"},
  "nvme": [{"path": "$scratch/drives/{host}/nvme", "budget": "256MiB"}],
  "place": {"params": "host", "grads": "host", "optimizer": "nvme", "activations": "device"}},
 "comm": {"timeout_seconds": 4}, "debug": {"comm": {"exit_seconds": 2}},
 "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
 "gradient_clipping": 1.0, "zero_optimization": {"stage": 3}}
JOB

# trains NAME PLACES ARGS...: trains the run NAME to its end.
trains()
{
    name=$1
    places=$2
    shift 2
    launch "$places" --set "run.dir=$scratch/head/$name" "$@"
    exits 0 "$name on $places, $*"
    return $status
}

steps() # NAME: the number and the bits of the loss of each step, a line a step
{
    sed -n 's/^{"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*/\1 \2/p' "$scratch/head/$1/metrics.jsonl"
}

weights() # NAME: their hash, which only a sound run has; from where all drives are seen
{
    "$sluice" verify --json "$scratch/head/$1" >"$scratch/out" 2>"$scratch/err" &&
        sed -n 's/.*"weights_hash": *"\{0,1\}\([0-9a-fx]*\).*/\1/p' "$scratch/out"
}

# same NAME REFERENCE: both runs must have the same losses and weights.
same()
{
    count=$((count + 1))
    steps "$1" >"$scratch/a"
    steps "$2" >"$scratch/b"
    [ -s "$scratch/a" ] || fail "$1 has no losses"
    cmp -s "$scratch/a" "$scratch/b" || fail "$1 and $2: losses differ: $(diff "$scratch/a" "$scratch/b" | head -3)"
    hash=$(weights "$1")
    [ -n "$hash" ] || fail "$1: verify gives no hash of the weights"
    [ "$hash" = "$(weights "$2")" ] || fail "$1 and $2: weights differ"
}

# slabs NAME DRIVES HOST RANKS: the host's drive must hold the slabs of these ranks of the run and no others.
slabs()
{
    count=$((count + 1))
    uuid=$("$sluice" inspect --json "$scratch/head/$1" | sed -n 's/.*"uuid": *"\([0-9a-f]*\)".*/\1/p')
    found=$(cd "$scratch/$2/$3/nvme/sluice-$uuid" && echo rank-*)
    [ "$(echo "$found" | sed 's/rank-\([0-9]*\)-drive-0.slab/\1/g')" = "$4" ] ||
        fail "$1: the drive of $3 holds '$found', expected those of ranks $4"
}

# --- speed ---

# figure FILE KEY: a number or a word of a JSON file, the first of that name.
figure()
{
    sed -n "s/.*\"$2\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$1" | head -n 1
}

# linked GBIT: a step over links of that speed. A frame of 1514 bytes has 1448 bytes of TCP's data, and 24 more on the wire
# that tc does not count. Burst: what a queue of 250 ticks a second sends in one.
linked()
{
    for host in node1 node2; do
        ip netns exec $host tc qdisc replace dev cluster root tbf rate "$1gbit" burst $(($1 * 600))kb latency 20ms ||
            skip "tc sets no rate here"
    done
    sed "s/\"between\": *[^,}]*/\"between\": $(($1 * 125000000 / 1514 * 1448))/" "$scratch/measured.json" >"$scratch/machine.json"
    set -- "$1" --machine "$scratch/machine.json" --set "run.dir=$scratch/head/speed-$1" --set run.steps=6 \
        --set run.commit_every=0 --set model.num_layers=16 --set model.hidden_size=1024 --set model.num_heads=16 \
        --set tiers.device.budget=1GiB --set tiers.host.budget=2GiB --set tiers.nvme.0.budget=2GiB \
        --set tiers.place.optimizer=host --set train_batch_size=2 --set comm.timeout_seconds=20
    gbit=$1
    limit=240
    shift
    "$sluice" plan "$scratch/head/job.json" --json --ranks 2 --ranks-per-host 1 "$@" >"$scratch/plan.json" 2>"$scratch/err" ||
        stop "plan at $gbit Gb/s: $(cat "$scratch/err")"
    launch node1:1,node2:1 --json "$@"
    exits 0 "a run at $gbit Gb/s"
    [ $status -eq 0 ] || return
    planned=$(figure "$scratch/plan.json" step_seconds)
    binds=$(figure "$scratch/plan.json" busiest_resource)
    sent=$(figure "$scratch/out" sent_bytes)
    steps=$(sed -n 's/^{"step":[3-6],.*"seconds":\([0-9.]*\),.*/\1/p' "$scratch/head/speed-$gbit/metrics.jsonl" | sort -n)
    middle=$(echo "$steps" | sed -n 2p)
    echo "$gbit Gb/s: a step of $middle s ($(echo $steps)), planned $planned s; each rank sends $sent bytes; $binds binds"
    [ "$binds" = comm ] || [ "$gbit" -gt 1 ] || fail "$gbit Gb/s: the plan names $binds"
    [ "$sent" = "$(figure "$scratch/plan.json" sent_bytes)" ] || fail "$gbit Gb/s: the plan sends $(figure "$scratch/plan.json" sent_bytes)"
    [ -z "${SLUICE_TEST_TIMES:-}" ] || [ "$binds" != comm ] || awk "BEGIN {exit !($middle < 1.1 * $planned && $middle > 0.9 * $planned)}" ||
        fail "$gbit Gb/s: the step is not within 10 % of the plan"
}

if [ "$extent" = speed ]; then
    command -v tc >/dev/null || skip "there is no tc"
    "$sluice" probe --quick --drive "$scratch/drives/node1" --out "$scratch/measured.json" >"$scratch/out" 2>"$scratch/err" ||
        stop "probe: $(cat "$scratch/err")"
    linked 1
    linked 10
    finish links
fi

# --- bits and places ---

trains one node1:4
for places in node1:2,node2:2 node1:2,node2:1,node3:1 node1:1,node2:3; do
    trains "3-$places" "$places" && same "3-$places" one
    # Stage 0 goes the same ways between hosts: of the suite on the most of them.
    [ "$extent" = all ] || [ "$places" = node1:2,node2:1,node3:1 ] || continue
    trains "0-$places" "$places" --set zero_optimization.stage=0 && same "0-$places" one
done
slabs 3-node1:2,node2:2 drives node1 '0 1'
slabs 3-node1:2,node2:2 drives node2 '2 3'
slabs 0-node1:2,node2:1,node3:1 drives node3 '3'
if [ "$extent" = all ]; then
    set -- 'zero_optimization.stage=1' 'zero_optimization.stage=2' 'schedule.order=batch_major' \
        'schedule.update=after_backward' 'tiers.place.params=nvme' 'tiers.place.params=device' \
        'tiers.place.grads=device' 'tiers.place.optimizer=host' 'debug.comm.staging_bytes=64KiB'
    for how in "$@"; do
        trains "$how" node1:1,node2:2,node3:1 --set "$how"
        case $how in
        *batch_major) trains one-major node1:4 --set "$how" && same "$how" one-major ;;
        *) same "$how" one ;;
        esac
    done
fi

# --- resume ---

# refused NAME PLACES TEXT...: it exits with 2 or 1 and prints one line of error that holds each TEXT.
refused()
{
    name=$1
    places=$2
    shift 2
    launch "$places" --set "run.dir=$scratch/head/$name" --set run.steps=6
    [ $status -eq 1 ] || [ $status -eq 2 ] || fail "$name on $places: exit $status, expected a refusal"
    for text in "$@"; do
        one_error "$name on $places" "$text"
    done
}

trains parts node1:2,node2:2 --set run.steps=4
refused parts node1:2 'rank 2' 'on host node2' "$scratch/drives/node2/nvme/sluice-"
if [ "$extent" = all ]; then
    refused parts node1:1,node2:1 'not visible from here' "$scratch/drives/node" '/nvme/sluice-'
    refused parts node1:2,node3:2 'rank 2' 'on host node2' "$scratch/drives/node2/nvme/sluice-"
    refused parts node1:1,node2:3 'rank 1' 'on host node1' "$scratch/drives/node1/nvme/sluice-"
fi
trains parts node1:2,node2:2 && same parts one

# A file system that all hosts share: every host finds all slabs.
shared="tiers.nvme=[{\"path\":\"$scratch/shared/{host}/nvme\",\"budget\":\"256MiB\"}]"
trains shared node1:2,node2:2 --set "$shared" --set run.steps=4
slabs shared shared node2 '2 3'
trains shared node1:1,node3:1 --set "$shared" && slabs shared shared node3 '1'
[ "$(steps shared | wc -l)" -eq 6 ] || fail "shared: not 6 steps"
weights shared >/dev/null || fail "shared: not sound after ranks of other hosts"

# --- gone ---

# there WHAT HOST: lists the processes of the host whose name holds WHAT.
there()
{
    for pid in $(ip netns pids "$2"); do
        grep -q "$1" "/proc/$pid/comm" 2>/dev/null && echo "$pid"
    done
}

has_steps() # NAME STEPS
{
    [ "$(steps "$1" 2>/dev/null | wc -l)" -ge "$2" ]
}

no_ranks()
{
    for one_host in $hosts; do
        [ -z "$(there sluice "$one_host")" ] || return 1
    done
}

# The kernel takes up to a second to notice a link.
is_back() # HOST
{
    ip -n "$1" -o link show cluster | grep -q 'state UP' &&
        ip -d -o link show "to-$1" | grep -q 'state UP.*state forwarding' &&
        for one_host in $hosts; do ip -n "$one_host" neigh flush all; done
}

# lost NAME PLACES HOST HOW ARGS...: during a run the host loses its network, or its power too. Then the run
# resumes on the same hosts.
lost()
{
    lost=$1
    on_places=$2
    gone=$3
    how=$4
    shift 4
    count=$((count + 1))
    launch "$on_places" --set "run.dir=$scratch/head/$lost" --set run.steps=100000 "$@" &
    until_true 20 has_steps "$lost" 7 || fail "$lost: 7 steps did not come"
    ip link set "to-$gone" down
    [ "$how" = cut ] || ip netns pids "$gone" | xargs -r kill -KILL
    # timeout_seconds and exit_seconds of the job, and as much again for a machine that has other work.
    until_true 12 no_ranks || fail "$lost: ranks are still there after $gone was lost ($how)"
    sleep 0.5 # for mpirun, to pass on what they said; it waits for its own daemon on that host, for long
    for one_host in $hosts; do
        ip netns pids "$one_host" | xargs -r kill -KILL
    done
    wait $!
    ip link set "to-$gone" up
    until_true 10 is_back "$gone" || fail "$lost: $gone did not come back"
    one_error "$lost"
    grep '^sluice: error: ' "$scratch/err" | grep -q "rank [0-9]* on host $gone.*the last good commit is of step" ||
        fail "$lost: no word of $gone and the last commit"
    steps=$(steps "$lost" | tail -1 | cut -d' ' -f1)
    trains "$lost" "$on_places" --set run.steps=$((steps + 3)) "$@"
    [ "$(steps "$lost" | wc -l)" -eq $((steps + 3)) ] || fail "$lost: not $((steps + 3)) steps"
    trains "$lost-whole" node1:4 --set run.steps=$((steps + 3)) "$@" && same "$lost" "$lost-whole"
}

lost cut node1:2,node2:2 node2 cut
lost power node1:2,node2:1,node3:1 node3 power --set zero_optimization.stage=0
if [ "$extent" = all ]; then
    lost head node1:1,node2:3 node2 cut --set schedule.update=after_backward
fi

finish checks
