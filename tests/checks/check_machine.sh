#!/bin/sh
# The engine on a machine with 2 NUMA nodes of 2 cores and 4 NVMe drives, which QEMU emulates:
#
#   check_machine.sh SLUICE TEST_TOPOLOGY [KERNEL]
#
# The machine runs KERNEL (default: Debian's newest cloud kernel, which apt-get downloads) and an initramfs that is made
# here of busybox, both programs and their libraries. Four sparse files with ext4 are its drives, each with two queues
# for polling. In it:
#
#   - the test of topology and binding runs with two real nodes
#   - a job trains on one drive and on four: equal losses to the bit, every drive has its share of the slab
#   - the same with polled completions, which a read must have proven
#   - while a job runs, each page of its arenas is looked up: interleaved over both nodes, and, where it computes on the
#     cores of node 1, on node 1 alone
#
# Nothing is installed, and no root is needed. Takes one to two minutes without hardware virtualization. SLUICE_QEMU_ACCEL
# names another accelerator than tcg, such as kvm. Exit 77 where a program or the kernel is missing (Debian:
# qemu-system-x86 busybox e2fsprogs).
set -u
usage='use: check_machine.sh SLUICE TEST_TOPOLOGY [KERNEL]'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
topology=$(program "${2:?$usage}") || exit 2
kernel=${3:-}
PATH=$PATH:/usr/sbin:/sbin
for name in qemu-system-x86_64 busybox mkfs.ext4; do
    command -v $name >/dev/null || skip "there is no $name"
done
[ -z "$kernel" ] || kernel=$(realpath "$kernel") || exit 2
make_scratch check_machine "${TMPDIR:-/tmp}"
cd "$scratch" || exit 2

find_kernel()
{
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
    [ -n "$package" ] || skip "apt-get knows no cloud kernel; name a kernel with NVMe and ext4 built in"
    apt-get download -q "$package" >apt.log 2>&1 || skip "apt-get cannot download $package"
    dpkg -x "$package"_*.deb kernel && kernel=$(ls kernel/boot/vmlinuz-*)
}

# Copies a program and the libraries that it loads into the initramfs, at their own paths.
add_program()
{
    cp "$1" root/bin/
    for library in $(ldd "$1" | grep -o '/[^ ]*'); do
        mkdir -p "root$(dirname "$library")"
        cp -L "$library" "root$library"
    done
}

# What runs in the machine. Each line that begins with "RESULT" is read by the check.
write_init()
{
    cat >root/init <<'INIT'
#!/bin/busybox sh
PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /job
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for d in 0 1 2 3; do
    mkdir /drive$d
    mount -t ext4 /dev/nvme${d}n1 /drive$d || echo "RESULT mount $d failed"
done
export OMP_WAIT_POLICY=passive
cd /job

test_tiers_topology >/tmp/topology 2>&1
echo "RESULT topology $?"
grep 'node [0-9]: the policy' /tmp/topology | sed 's/^ */RESULT pages /'

drives()
{
    list=
    for d in $1; do
        list="$list,{\"path\":\"/drive$d/s\",\"budget\":\"256MiB\"}"
    done
    echo "[${list#,}]"
}

# Pages of each node in the mappings that are bound or interleaved, as a line "POLICY NODE-0 NODE-1".
nodes_of()
{
    awk '$2 ~ /^(bind|interleave)/ {
        for (i = 3; i <= NF; i++) {
            if ($i ~ /^N0=/) zero[$2] += substr($i, 4)
            if ($i ~ /^N1=/) one[$2] += substr($i, 4)
        }
        all[$2]
    }
    END { for (policy in all) print policy, zero[policy] + 0, one[policy] + 0 }' /proc/$1/numa_maps 2>/dev/null
}

# train NAME DRIVES OPTIONS...
train()
{
    name=$1 over=$(drives "$2")
    shift 2
    rm -rf run /drive?/s
    sluice train job.json --set model.hidden_size=384 --set model.seq_length=8 \
        --set tiers.device.budget=64MiB --set tiers.host.budget=64MiB \
        --set run.eval_every=0 --set data.valid=[] --set "tiers.nvme=$over" "$@" >/tmp/$name.out 2>/tmp/$name.err &
    process=$!
    : >/tmp/$name.nodes
    while kill -0 $process 2>/dev/null; do
        nodes_of $process >/tmp/now
        [ -s /tmp/now ] && cp /tmp/now /tmp/$name.nodes
        du -k /drive?/s/*/*.slab >/tmp/now 2>/dev/null && cp /tmp/now /tmp/$name.slabs
        sleep 0.2
    done
    wait $process
    echo "RESULT $name exit $?"
    echo "RESULT $name losses" $(sed -n 's/.*"loss_bits": *"\([0-9a-f]*\)".*/\1/p' run/metrics.jsonl)
    sed "s/^/RESULT $name nodes /" /tmp/$name.nodes
    sed "s/^/RESULT $name slab /" /tmp/$name.slabs
    sed "s/^/RESULT $name log /" /tmp/$name.err
}

train one "0"
train four "0 1 2 3"
train polled "0 1 2 3" --set io.polled_completions=true
train bound "0 1 2 3" --set device.cores=2-3 --set update.cores=2-3
echo "RESULT end"
poweroff -f
INIT
    chmod +x root/init
}

make_machine()
{
    mkdir -p root/bin root/job root/lib64
    add_program "$(command -v busybox)"
    add_program "$sluice"
    add_program "$topology"
    write_init
    write_text root/job/text.txt 10
    write_job root/job/job.json 2 nvme unused
    (cd root && find . | busybox cpio -o -H newc 2>/dev/null) >initramfs
    for d in 0 1 2 3; do
        truncate -s 512M drive$d
        mkfs.ext4 -q -F drive$d
    done
}

boot()
{
    drives=
    for d in 0 1 2 3; do
        drives="$drives -drive file=drive$d,format=raw,if=none,id=drive$d -device nvme,serial=drive$d,drive=drive$d"
    done
    # shellcheck disable=SC2086 # the drives are words on purpose
    call timeout 900 qemu-system-x86_64 -accel "${SLUICE_QEMU_ACCEL:-tcg}" -machine q35 -cpu max -m 3G -smp 4,sockets=2 \
        -object memory-backend-ram,id=m0,size=1536M -object memory-backend-ram,id=m1,size=1536M \
        -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 $drives \
        -nographic -no-reboot -kernel "$kernel" -initrd initramfs \
        -append "console=ttyS0 panic=-1 quiet nvme.poll_queues=2"
    tr -d '\r' <out >console
    cp console out
    sed -n 's/^.*RESULT //p' console >results
    grep -qx end results || stop "the machine did not come to its end (exit $status)"
}

# of NAME WHAT: the words behind it
of()
{
    sed -n "s/^$1 $2 //p" results
}

[ -n "$kernel" ] || find_kernel
make_machine
boot
! grep '^mount' results || stop "a drive could not be mounted"
grep -qx 'topology 0' results || fail "the test of topology and binding failed in the machine"
[ "$(grep -c '^pages node [01]: the policy and 12 of 12 pages' results)" -eq 2 ] || fail "the pages of both nodes were not looked up"
for name in one four polled bound; do
    [ "$(of $name exit)" = 0 ] || fail "$name: exit $(of $name exit)"
    [ "$(of $name losses | wc -w)" -eq 2 ] || fail "$name: no losses of 2 steps"
    of $name log | grep -E 'machine:|cores:|drive|slab|polled' | sed "s/^/$name: /"
done
for name in four polled; do
    [ "$(of one losses)" = "$(of $name losses)" ] || fail "$name: other losses than on one drive"
    [ "$(of $name slab | awk '$1 > 8192' | wc -l)" -eq 4 ] || fail "$name: a drive holds no stripe"
done
! of polled log | grep 'cannot be polled' || fail "polled: the emulated drives have queues for polling"
# Pages of the host and the device arena, and of what else is bound.
of one nodes | awk '/^interleave:0-1 / && $2 > 0.4 * ($2 + $3) && $3 > 0.4 * ($2 + $3) { found = 1 } END { exit !found }' ||
    fail "one: the pages are not spread over both nodes"
of bound nodes | awk '/^bind:1 / && $2 == 0 && $3 > 4000 { found = 1 } END { exit !found }' ||
    fail "bound: the pages are not all on node 1"
finish "machines"
