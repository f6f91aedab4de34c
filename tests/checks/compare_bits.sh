#!/bin/bash
# Compares the bits of two builds: compare_bits.sh OLD NEW [NAME...]
#
# OLD and NEW are programs `sluice`, for example from before and after a change. Each job below runs with
# both, in directories of its own: the bits of every step's loss and the hash of the weights in the last commit must be
# equal. NAME: only these jobs. Bits depend on the instruction set: SLUICE_ISA is passed on to both. Jobs of several ranks
# are left out, and counted, if there is no mpirun. Run by hand; some three minutes on 2 cores.
set -u
. "$(dirname "$0")/lib.sh"
old=$(program "${1:?use: compare_bits.sh OLD NEW [NAME...]}") || exit 2
new=$(program "${2:?use: compare_bits.sh OLD NEW [NAME...]}") || exit 2
shift 2
wanted=" $* "
cpu_only
OMP_NUM_THREADS=2
export OMP_NUM_THREADS
make_scratch compare_bits
write_text "$scratch/text.txt" 400
left_out=0

gpt2='{"family": "gpt2", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "seq_length": 32}'
llama='{"family": "llama", "num_layers": 3, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 160, "vocab_size": 256, "seq_length": 48}'
cut='{"family": "llama", "num_layers": 2, "hidden_size": 128, "num_heads": 4, "ffn_size": 512, "vocab_size": 256, "seq_length": 32, "max_part_bytes": 65536}'
memory='"device": {"budget": "256MiB"}, "host": {"budget": "256MiB"}, "nvme": [{"path": "DRIVE", "budget": "256MiB"}]'
on_device='"place": {"params": "device", "grads": "device", "optimizer": "device", "activations": "device"}'
on_host='"place": {"params": "host", "grads": "host", "optimizer": "host", "activations": "host"}'
on_nvme='"place": {"params": "nvme", "grads": "nvme", "optimizer": "nvme", "activations": "nvme"}'

# job NAME MODEL PLACE MORE: writes NAME.json. MORE: further members of the job. RUN and DRIVE are replaced for each build.
job()
{
    cat >"$scratch/$1.json" <<JOB
{"model": $2,
 "data": {"train": ["$scratch/text.txt"], "seed": 3},
 "run": {"dir": "RUN", "steps": ${steps:-6}, "seed": 5, "commit_every": 2},
 "device": {"backend": "cpu"},
 "tiers": {$memory${3:+, $3}},
 ${4:+$4,}
 "train_micro_batch_size_per_gpu": 2}
JOB
}

# sums PROGRAM RUN: loss bits and the hash of the weights of a run.
sums()
{
    losses "$2"
    "$1" verify "$2" --json 2>/dev/null | grep -o '"weights_hash": *"*[0-9a-fx]*'
}

# run_one PROGRAM SIDE NAME: trains job NAME into SIDE/NAME, as `ranks`, `first_steps` and `options` say.
run_one()
{
    mkdir -p "$scratch/$2/$3"
    sed "s#RUN#$scratch/$2/$3/run#; s#DRIVE#$scratch/$2/$3/drive#" "$scratch/$3.json" >"$scratch/$2/$3/job.json"
    local launch=()
    [ "$ranks" -eq 1 ] || launch=(mpirun -n "$ranks" --bind-to none)
    # A first part of the steps, and then the rest from its commit.
    if [ "$first_steps" -gt 0 ]; then
        call "${launch[@]}" "$1" train "$scratch/$2/$3/job.json" --quiet --set run.steps="$first_steps" "${options[@]}"
        [ "$status" -eq 0 ] || { fail "$3, first steps, $2"; return 1; }
    fi
    call "${launch[@]}" "$1" train "$scratch/$2/$3/job.json" --quiet "${options[@]}"
    [ "$status" -eq 0 ] || { fail "$3, $2"; return 1; }
    sums "$1" "$scratch/$2/$3/run" >"$scratch/$2/$3/sums"
}

# compare NAME MODEL PLACE MORE
compare()
{
    local name=$1
    if [ "$wanted" != "  " ] && [[ "$wanted" != *" $name "* ]]; then
        return
    fi
    if [ "$ranks" -gt 1 ] && ! command -v mpirun >/dev/null; then
        left_out=$((left_out + 1))
        return
    fi
    job "$@"
    run_one "$old" old "$name" && run_one "$new" new "$name" || return
    compared=$((compared + 1))
    if [ "$(grep -c . "$scratch/old/$name/sums")" -le "${steps:-6}" ]; then
        fail "$name: the old build left no losses or no hash"
    elif cmp -s "$scratch/old/$name/sums" "$scratch/new/$name/sums"; then
        echo "equal: $name  $(tail -n 1 "$scratch/new/$name/sums")"
    else
        fail "$name: other bits"
        diff "$scratch/old/$name/sums" "$scratch/new/$name/sums" | head -n 6
    fi
    rm -rf "$scratch/old/$name" "$scratch/new/$name"
}

compared=0 ranks=1 first_steps=0 options=()
bf16='"bf16": {"enabled": true}'
fp16='"fp16": {"enabled": true}'
adamw='"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}'
clip='"gradient_clipping": 1.0'

# Families, precisions, placements.
for family in gpt2 llama cut; do
    compare $family-fp32 "${!family}" "" "$adamw, $clip"
    compare $family-bf16-device "${!family}" "$on_device" "$adamw, $clip, $bf16"
    compare $family-bf16-host "${!family}" "$on_host" "$adamw, $clip, $bf16"
    compare $family-bf16-nvme "${!family}" "$on_nvme" "$adamw, $clip, $bf16"
    compare $family-fp16 "${!family}" "" "$adamw, $clip, $fp16"
done
tied=${llama/'"vocab'/'"tie_embeddings": true, "vocab'}
untied=${gpt2/'"vocab'/'"tie_embeddings": false, "vocab'}
compare llama-tied "$tied" "$on_nvme" "$adamw, $clip, $bf16"
compare gpt2-untied "$untied" "$on_nvme" "$adamw, $clip, $bf16"

# Orders and updates.
for order in layer_major batch_major; do
    compare order-$order "$llama" "$on_nvme" "$adamw, $clip, $bf16, \"gradient_accumulation_steps\": 3, \"schedule\": {\"order\": \"$order\"}"
done
for update in after_backward in_next_forward delayed_one_step; do
    compare update-$update "$gpt2" "$on_nvme" "$adamw, $clip, $bf16, \"schedule\": {\"update\": \"$update\"}"
done
compare update-in_backward "$gpt2" "$on_nvme" "$adamw, \"gradient_clipping\": 0, \"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}, \"schedule\": {\"update\": \"in_backward\"}"
compare tiles "$llama" "$on_nvme" "$adamw, $clip, $bf16, \"schedule\": {\"tile_elems\": 4096}"

# Optimizers and formats of their state.
compare lion "$gpt2" "" "\"optimizer\": {\"type\": \"Lion\", \"params\": {\"lr\": 1e-4}}, $bf16"
compare adagrad "$gpt2" "" "\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 1e-2}}"
compare adam "$llama" "" "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-3, \"adam_w_mode\": false}}, $bf16"
compare state-bf16 "$gpt2" "$on_nvme" "$adamw, $bf16, \"state\": {\"moments\": \"bf16\"}"
compare state-8bit "$gpt2" "$on_nvme" "$adamw, $bf16, \"state\": {\"moments\": \"8bit\"}"
compare state-split "$gpt2" "$on_nvme" "$adamw, $bf16, \"state\": {\"master\": \"split\"}"
compare grads-fp32 "$gpt2" "" "$adamw, $bf16, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}"
compare warmup "$gpt2" "" "$adamw, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 4}}"

# Which parameters learn.
compare lora "$llama" "" "$adamw, $bf16, \"train\": {\"lora\": {\"rank\": 4}}"
compare frozen "$llama" "$on_nvme" "$adamw, $bf16, \"train\": {\"only\": [\"blocks.2\", \"head\"]}"

# Resumed runs, in the same place and moved.
first_steps=3
compare resume "$llama" "$on_nvme" "$adamw, $clip, $bf16"
compare resume-fp16 "$gpt2" "$on_host" "$adamw, $clip, $fp16"
first_steps=0

# Several ranks.
if command -v mpirun >/dev/null; then
    allow_mpi
fi
ranks=2
for stage in 0 1 2 3; do
    compare ranks2-stage$stage "$llama" "$on_nvme" "$adamw, $clip, $bf16, \"zero_optimization\": {\"stage\": $stage}"
done
ranks=3
compare ranks3-stage3 "$gpt2" "" "$adamw, $clip, \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}"
first_steps=3
compare ranks3-resume "$gpt2" "$on_nvme" "$adamw, $clip, $bf16, \"zero_optimization\": {\"stage\": 3}"

echo "$compared jobs compared, $left_out left out for want of mpirun, $failures failures"
exit $((failures > 0))
