#!/bin/sh
# Gives the program wrong job files, data, budgets and command lines. Each must end with its exit
# status and one sentence: check_bad_input.sh SLUICE
#
# A job that is refused before it starts leaves nothing behind: no run directory, no drive directory.
set -u
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?use: check_bad_input.sh SLUICE}") || exit 2
make_scratch check_bad_input
cd "$scratch" || exit 2
cpu_only

write_job good.json 2 host drive
write_text text.txt 60
: >empty.txt
printf 'short' >short.txt
mkdir directory
: >file

# refused STATUS TEXT ARGS...: it exits with STATUS, prints one line of error that holds TEXT, and makes no file.
refused()
{
    want=$1
    text=$2
    shift 2
    call "$sluice" "$@"
    exits "$want" "sluice $*"
    one_line "sluice $*"
    one_error "sluice $*" "$text"
    [ ! -e "${made:-run}" ] && [ ! -e drive ] || fail "sluice $*: something was made"
    rm -rf run drive
}

# with STATUS TEXT KEY=VALUE...: trains the good job with these overrides.
with()
{
    want=$1
    text=$2
    shift 2
    set_options "$@"
    # shellcheck disable=SC2086 # values without blanks, split on purpose
    refused "$want" "$text" train good.json $sets
}

# job STATUS TEXT JSON: trains a job file with this text.
job()
{
    printf '%s' "$3" >bad.json
    refused "$1" "$2" train bad.json
}

# The job that all others are made from must be good. Otherwise a program that refuses everything would pass.
call "$sluice" train good.json --quiet
exits 0 "the good job"
[ -s run/metrics.jsonl ] && [ -d drive ] || fail "the good job left no metrics or no slab"
rm -rf run drive
# A block quantization_config may name modules that the model lacks, and rules may not (below).
set_options bf16.enabled=true 'train.lora={"rank":2}' \
    'quantization_config={"load_in_4bit":true,"llm_int8_skip_modules":["multi_modal_projector"]}'
# shellcheck disable=SC2086 # values without blanks, split on purpose
call "$sluice" train good.json --quiet $sets
exits 0 "a job with a block of formats"
rm -rf run drive
# The log names the formats of a packed base, those of rules too.
set_options bf16.enabled=true 'train.lora={"rank":2}' \
    'state.rules=[{"tensors":"mlp","params":"int8"},{"tensors":"attn","params":"nf4"}]'
# shellcheck disable=SC2086 # values without blanks, split on purpose
call "$sluice" train good.json --quiet $sets
exits 0 "a job with rules of formats"
call "$sluice" eval run text.txt
exits 0 "the loss of a base that rules have packed"
says err "parameters in int8, nf4 and bf16, " "sluice eval"
rm -rf run drive

# Files and JSON.
refused 2 "none.json" train none.json
refused 2 "directory is a directory, no file" train directory
mkfifo pipe
refused 2 "pipe gives no text: it is a pipe that nobody writes to" train pipe
refused 2 "/dev/null gives no text" train /dev/null
call sh -c 'cat good.json | "$0" plan /dev/stdin' "$sluice"
exits 0 "a job file that is a pipe"
refused 2 "empty.txt" train empty.txt
job 2 "bad.json:" '{"model": {"family": "gpt2"'
job 2 "duplicate" '{"run": {"dir": "run"}, "run": {"dir": "run"}}'
job 2 "object" '[1, 2]'
job 2 "run.dir: missing" '{"model": {"family": "gpt2", "num_layers": 1, "hidden_size": 64, "num_heads": 4, "seq_length": 32}, "train_micro_batch_size_per_gpu": 1}'

# Keys and values: one of each kind. tests/config has the others.
with 2 'nearest known key is "num_layers"' model.num_layer=3
with 2 "model.num_layers" model.num_layers=0
with 2 "model.num_heads" model.num_heads=5
with 2 "model.num_kv_heads" model.num_kv_heads=3
with 2 "schedule.update" schedule.update=sometimes
with 2 "cuda" device.backend=cuda
with 2 "optimizer.params.betas" 'optimizer.params.betas=[0.9]'
with 2 "train_batch_size" train_batch_size=3
with 2 "all of them learn" state.params=nf4
with 2 "is for matrices of blocks that do not learn" state.params=nf4 'train.only=["blocks.0-1"]'
with 2 "has the name" state.params=nf4 'train.only=["head"]' 'state.rules=[{"tensors":"no_proj","params":"working"}]'
with 2 "there is no directory some/checkpoint; if it is a model of the Hugging Face hub" model.hf=some/checkpoint
with 2 "--set optimizer.params.lr=5e-5, or take the defaults" optimizer.params.lr=auto
with 2 "whole matrices, but model.max_part_bytes 65536 cuts" optimizer.type=Muon model.max_part_bytes=65536
with 2 "no parameter of Adagrad" optimizer.type=Adagrad 'optimizer.params.betas=[0.9,0.99]'
with 2 "elasticity" 'elasticity={"enabled":true}'
job 2 "bad.json:1:" 'eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0='
refused 2 "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0=" train eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0=

# Tiers.
with 2 "tiers.place.rules" 'tiers.place.rules=[{"units":"0-99","kind":"params","tier":"host"}]'
with 2 "tiers.nvme" 'tiers.nvme=[]'
with 2 "file/drive cannot be used" 'tiers.nvme=[{"path":"file/drive"}]'
with 3 "tiers.device.budget=" tiers.device.budget=64KiB
with 3 "tiers.host.budget=" tiers.host.budget=64KiB
with 3 "tiers.nvme[].budget=" 'tiers.nvme=[{"path":"drive","budget":"1MiB"}]'
with 3 "tiers.device.budget=" model.hidden_size=512
refused 3 "needs" plan good.json --set tiers.device.budget=64KiB
# Owned experts have no batch-major order that the refusal could advise.
refused 3 "tiers.device.budget=" plan good.json --ranks 2 --set tiers.device.budget=64KiB \
    --set model.family=mixtral --set model.num_experts=2 --set model.num_experts_per_tok=1 \
    --set model.expert_parallel_size=2 --set zero_optimization.stage=1 --set gradient_accumulation_steps=2

# Data and the run directory.
with 2 "data.train" 'data.train=[]'
with 2 "none.txt" 'data.train=["none.txt"]'
with 2 "empty.txt" 'data.train=["empty.txt"]'
with 2 "the data has 5 tokens" 'data.train=["short.txt"]'
with 2 "directory is a directory, no regular file" 'data.train=["directory"]'
with 2 "pipe is a pipe, no regular file" 'data.train=["pipe"]'
with 2 "/dev/zero is a device, no regular file" 'data.train=["/dev/zero"]'
with 2 "pipe is a pipe, no regular file" data.tokenizer=pipe
with 2 "none.txt" 'data.valid=["none.txt"]'
printf 'PAR1\025\004' >table.parquet
printf 'one\ntwo \377\n' >latin1.txt
printf '{"question": "a", "answer": "b"}\n' >unknown.jsonl
with 2 "pandas.read_parquet" 'data.train=["table.parquet"]'
with 2 "byte 8 (from 0, in line 2) is 0xff" 'data.train=["latin1.txt"]'
with 2 'the record has "question", "answer"; known are messages' 'data.train=["unknown.jsonl"]'
with 2 "the record has" 'data.train=["unknown.jsonl"]' data.format=alpaca
with 2 "byte 8 (from 0, in line 2) is 0xff" 'data.valid=["latin1.txt"]'
with 2 "the data has 5 tokens" 'data.valid=["short.txt"]'
with 2 "data.valid" run.eval_every=1 'data.valid=[]'
made=file/run
with 2 "run.dir" run.dir=file/run
made=

# A run's own copy of the job does not replace the user's file.
cp good.json job.json
mkdir state && : >state/lock # of a start that was refused
refused 2 "write its own copy of the job over job.json" train job.json --set run.dir=.
rm -rf state
cmp -s good.json job.json || fail "the user's job.json was written to"

# What a file for a trainer leaves to it, with that trainer's defaults.
printf '{"run": {"dir": "run", "steps": 1}, "data": {"train": ["text.txt"]}, "train_batch_size": "auto",
"model": {"family": "gpt2", "num_layers": 1, "hidden_size": 64, "num_heads": 4, "seq_length": 32},
"_comment": "x", "optimiser": 1, "optimizer": {"params": {"lr": "auto"}}, "fp16": {"enabled": 0}}' >trainer.json
for command in train plan "profile --steps 1 --no-advice"; do
    # shellcheck disable=SC2086 # a command with options
    call "$sluice" $command trainer.json --auto hf
    exits 0 "$command --auto hf"
    for line in "optimizer.params.lr 5e-5" "train_micro_batch_size_per_gpu 8" "taken for remarks: _comment" \
        "optimiser: an unknown key" "fp16.enabled 0 as false"; do
        says err "$line" "$command --auto hf"
    done
    rm -rf run
done
refused 2 "none|hf" plan good.json --auto huggingface

# Command lines.
refused 2 "JOB" train
refused 2 "nearest is --fresh" train good.json --frash
refused 2 "key.path=value" train good.json --set novalue
refused 2 'unknown key "nothing"' train good.json --set nothing.here=1
refused 2 "run is no run directory" generate run --prompt x
for command in verify inspect; do
    refused 2 "RUN is missing" $command
    refused 2 "run is no run directory" $command run
    refused 2 "run is no run directory" $command run --json
    refused 2 "good.json is no run directory" $command good.json
    refused 2 "directory is no run directory" $command directory
done

# A directory with a run in it: another model is refused and the run stays as it is.
call "$sluice" train good.json --quiet
exits 0 "the good job"
cp -r run kept
call "$sluice" train good.json --set model.num_layers=3
exits 2 "another model in the run directory"
says err model.num_layers "another model in the run directory"
call "$sluice" train good.json --fresh
exits 2 "--fresh in a directory with a commit"
one_error "--fresh in a directory with a commit"
diff -rq run kept >out 2>&1 || fail "the refused job changed the run"
call "$sluice" train good.json --set run.steps=4 --quiet
exits 0 "the run that goes on"

# looked STATUS TEXT ARGS...: runs verify or inspect on the run. TEXT must be on standard output, and an
# error must be one line.
looked()
{
    want=$1
    text=$2
    shift 2
    call "$sluice" "$@"
    exits "$want" "sluice $*"
    says out "$text" "sluice $*"
    lines=0
    [ "$want" -eq 0 ] || lines=1
    [ "$(grep -c '' err)" -eq $lines ] || fail "sluice $*: not $lines lines of error"
}

looked 0 "all is as it was committed" verify run
looked 0 "commit       step 4" verify run
looked 0 '"damage_count": 0' verify run --json
call "$sluice" verify run --quiet
exits 0 "verify --quiet"
[ ! -s out ] && [ ! -s err ] || fail "verify --quiet says something of a run that is whole"
looked 0 "state        committed, step 4" inspect run
looked 0 "block.1" inspect run
looked 0 '"step": 4,' inspect run --json
slab=$(ls drive/sluice-*/rank-0-drive-0.slab)
cp "$slab" whole.slab
at=$("$sluice" inspect run | awk '$1 == "embed" { print $NF + 4096 }')
printf 'x' | dd of="$slab" bs=1 seek=$((at + 1000)) conv=notrunc 2>/dev/null
looked 1 "embed (unit 0), tile 0, optimizer state: " verify run --quiet
looked 1 "rank-0-drive-0.slab at byte $at, " verify run
looked 1 '"unit_name": "embed"' verify run --json
printf 'x' | dd of="$slab" bs=1 seek=10 conv=notrunc 2>/dev/null
looked 1 "the header of the slab rank-0-drive-0.slab does not match its checksum" verify run
rm "$slab"
looked 1 "the slab is not there" verify run
looked 0 "absent" inspect run
mkfifo "$slab"
looked 1 "is not a slab: it is no regular file" verify run
rm "$slab"
cp whole.slab "$slab"
rm -f run/job.json
mkfifo run/job.json # without it, only the names of units are missing
looked 0 "all is as it was committed" verify run
# A file in the place of the manifest that is no manifest.
for manifest in run/state/manifest-*; do
    head -c 100 /dev/zero >"$manifest"
done
call "$sluice" train good.json
[ $status -eq 1 ] || [ $status -eq 2 ] || fail "damaged manifests were not refused"
one_error "damaged manifests"
looked 1 "run/state/manifest-0 at byte 0, 100 bytes: " verify run
looked 1 '"damage_count": 2' verify run --json
looked 0 "state        damaged" inspect run

finish "bad inputs"
