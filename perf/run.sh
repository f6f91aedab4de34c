#!/usr/bin/env bash
# Measures all figures on this machine, each with its limit in the same run, and prints one table.
#
#   perf/run.sh [--quick] [--out DIR] [--drive DIR] [--bin DIR] [--text FILE] [--tokenizer FILE] [FIGURE...]
#   perf/run.sh --list
#
#   --quick           small sizes and few runs: about 3 minutes for all figures, otherwise about 35
#   --out DIR         folder for FIGURE.csv, FIGURE.log and all.csv (default: runs/perf/ with date and time)
#   --drive DIR       a folder on the drive to measure (default: runs)
#   --bin DIR         the build tree of a release build (default: build/release)
#   --text FILE       text for the tokenizer (default: the sources and documents of this tree)
#   --tokenizer FILE  tokenizer.json (default: one that is trained on the text)
#   --list            prints the figures and their limits, and measures nothing
#
# Figures run one after the other, in the order of the list. Nothing else should run on the machine. A figure whose
# program or tool is missing is listed as absent; one that fails keeps the lines measured so far. Lines of CSV:
# figure,name,value,unit,limit,ratio,spread; perf/README.md explains them.
# Exit status: 0: no figure failed; 1: one failed; 2: wrong use; 130: stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
quick='' out='' drive=runs bin=build/release text='' tokenizer='' figures=() listing=''
all=(peak adam matmul attention rows stored nvme comm data tokenizer compile commit memory out-of-core out-of-core-small nvme-bound update-overlap)
wrong() {
    echo "run.sh: $1; --help says more" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --out | --drive | --bin | --text | --tokenizer) [ $# -gt 1 ] || wrong "$1 needs a value" ;;&
    --quick) quick=--quick ;;
    --out) out=$2; shift ;;
    --drive) drive=$2; shift ;;
    --bin) bin=$2; shift ;;
    --text) text=$2; shift ;;
    --tokenizer) tokenizer=$2; shift ;;
    --list) listing=yes ;;
    --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) wrong "no option $1" ;;
    *) figures+=("$1") ;;
    esac
    shift
done

describe() {
    case $1 in
    peak) echo "a large matrix product; it is the limit of others" ;;
    adam) echo "optimizers on the CPU; limit: kernels that move the same streams" ;;
    matmul) echo "products of a transformer block; limit: a large product" ;;
    attention) echo "attention forward and backward; limit: a large product" ;;
    rows) echo "norms, GELU, loss and other row kernels; limit: loops over the same bytes" ;;
    stored) echo "expanding stored formats; limit: a memory copy of the expanded bytes" ;;
    nvme) echo "read, write and mixed on the drive; limit: the best of fio on the same file system" ;;
    comm) echo "collectives between two ranks; limit: the MPI library's" ;;
    data) echo "tokens of the sampler; limit: reading and copying the same bytes" ;;
    tokenizer) echo "text to ids; limit: the split into words by PCRE2 alone" ;;
    compile) echo "making a step's programs; no limit" ;;
    commit) echo "a commit of state in memory; limit: writing and syncing the same bytes" ;;
    memory) echo "training GPT-2 in memory; limit: its FLOPs at the speed of a large product" ;;
    out-of-core) echo "the same with all states on the drive; limit: in memory" ;;
    out-of-core-small) echo "the quickstart's model with all states on the drive; limit: in memory" ;;
    nvme-bound) echo "a training that waits for the drive; limit: the drive alone" ;;
    update-overlap) echo "updates with state on the drive; limit: the slower of drive and Adam" ;;
    *) return 1 ;;
    esac
}

if [ -n "$listing" ]; then
    for figure in "${all[@]}"; do
        printf '%-17s %s\n' "$figure" "$(describe "$figure")"
    done
    exit 0
fi
for figure in "${figures[@]}"; do
    describe "$figure" >/dev/null || wrong "no figure $figure"
done
[ ${#figures[@]} -gt 0 ] || figures=("${all[@]}")
[ -d "$bin/perf" ] || {
    echo "run.sh: $bin/perf is not there: cmake --preset release && cmake --build --preset release" >&2
    exit 2
}
[ -n "$out" ] || out=runs/perf/$(date -u +%Y-%m-%d-%H%M%S)
for file in "$text" "$tokenizer"; do
    [ -z "$file" ] || [ -r "$file" ] || { echo "run.sh: $file: cannot be read" >&2; exit 2; }
done
mkdir -p "$out" "$drive" || exit 2
work=$(mktemp -d "$drive/perf.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'echo "run.sh: stopped; what was measured is in $out" >&2; exit 130' INT TERM
sluice=$bin/src/cli/sluice

# Prints the program of a figure with its arguments, or "absent: why".
command_of() {
    local program=$bin/perf/bench_${1//-/_} script=''
    case $1 in
    nvme) program=$bin/perf/drive_side script="perf/drives/bench_nvme.py --side" ;;
    tokenizer) program=$bin/perf/bench_side script="perf/training/bench_tokenizer.py --side" ;;
    commit | memory | out-of-core | out-of-core-small | nvme-bound | update-overlap)
        program=$sluice script="perf/training/bench_train.py --peak $bin/perf/bench_peak --dir $work --sluice"
        ;;
    esac
    [ -x "$program" ] || { echo "absent: $program is not built"; return; }
    [ -z "$script" ] || command -v python3 >/dev/null || { echo "absent: python3 is not installed"; return; }
    case $1 in
    nvme) echo "python3 $script $program $quick $work" ;;
    tokenizer) echo "python3 $script $program $quick $text $tokenizer" ;;
    data) echo "$program $work $quick" ;;
    comm)
        command -v mpirun >/dev/null || { echo "absent: mpirun is not installed"; return; }
        echo "mpirun --oversubscribe --allow-run-as-root -n 2 $program"
        ;;
    *) [ -z "$script" ] && echo "$program $quick" || echo "python3 $script $program $quick $1" ;;
    esac
}

if [ -z "$text" ]; then
    text=$work/text
    find README.md CHANGELOG.md CONTRIBUTING.md src kernels tiers swap tests perf configs -type f \
        \( -name '*.[ch]' -o -name '*.md' -o -name '*.sh' -o -name '*.py' -o -name '*.cu' \) -print0 |
        LC_ALL=C sort -z | xargs -0 cat >"$text"
    # Whole lines of 4 MB, so that the quick figures use a whole file.
    [ -z "$quick" ] || { head -c 4000000 "$text" | sed '$d' >"$work/head"; mv "$work/head" "$text"; }
fi

{
    date -u '+date %Y-%m-%d %H:%M UTC'
    echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    sed -n 's/^model name[[:space:]]*: /processor /p' /proc/cpuinfo | head -n 1
    echo "cores $(nproc)"
    awk '/^MemTotal/ {printf "memory %.1f GiB\n", $2 / 1048576}' /proc/meminfo
    echo "kernel $(uname -r)"
    [ -z "$quick" ] || echo "quick sizes only show that everything works; figures that count come from a run without --quick"
} | tee "$out/machine.txt"

status=0
echo 'figure,name,value,unit,limit,ratio,spread' >"$out/all.csv"
for figure in "${figures[@]}"; do
    command=$(command_of "$figure")
    csv=$out/$figure.csv
    echo 'name,value,unit,limit,ratio,spread' >"$csv"
    case $command in
    absent:*)
        echo "$figure: $command" | tee "$out/$figure.log"
        echo "$figure,,,${command//,/;},,," >>"$out/all.csv"
        continue
        ;;
    esac
    begin=$SECONDS
    # shellcheck disable=SC2086 # the words of the line are the program and its arguments
    if $command --csv "$csv" >"$out/$figure.log" 2>&1 </dev/null; then
        echo "$figure: $((SECONDS - begin)) s"
    else
        failed=$?
        echo "$figure: failed ($failed); the end of $out/$figure.log:"
        tail -n 3 "$out/$figure.log"
        echo ",,failed ($failed): see $figure.log,,," >>"$csv"
        status=1
    fi
    sed -n "2,\$s/^/$figure,/p" "$csv" >>"$out/all.csv"
done
[ ! -f "$out/peak.log" ] || sed -n 's/^cpu: /Sluice uses /p' "$out/peak.log" | tee -a "$out/machine.txt"

echo
{
    for figure in "${figures[@]}"; do
        echo "$figure: $(describe "$figure")"
        awk -F, -v figure="$figure" '
        NR == 1 { printf "  %-60s %9s %-9s %9s %6s  %s\n", "", "measured", "", "limit", "ratio", "spread"; next }
        $1 != figure { next }
        $4 ~ /^(absent|failed)/ || $3 == "" { printf "  %s%s\n", $3, $4; next }
        {
            value = $3; unit = $4; limit = $5
            if (value >= 1000 && sub(/^k/, "M", unit) + sub(/^GFLOP/, "TFLOP", unit)) { value /= 1000; limit /= 1000 }
            printf "  %-60s %9s %-9s %9s %6s  +-%.1f%%\n", $2, short(value), unit, $5 == "" ? "-" : short(limit),
                $6 == "" ? "-" : sprintf("%.2f", $6), 100 * $7
        }
        function short(x) { return x >= 1000 ? sprintf("%.0f", x) : sprintf("%.3g", x) }
        ' "$out/all.csv"
    done
} | tee "$out/table.txt"
echo
echo "kept in $out"
exit "$status"
