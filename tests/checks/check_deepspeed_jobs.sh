#!/bin/sh
# Trains unchanged job files of DeepSpeed for two steps: check_deepspeed_jobs.sh SLUICE REPOSITORY
#
# Each file in tests/reference/deepspeed_jobs.txt gets by --set what it lacks (model, run, data) and, where it
# names a drive, a directory that exists here. It must end with status 0 and a finite loss for each step,
# and each of its keys either has an effect (the list below) or is named in the log exactly once.
set -u
usage='use: check_deepspeed_jobs.sh SLUICE REPOSITORY'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$usage}") || exit 2
repository=$(realpath "${2:?$usage}")
make_scratch check_deepspeed_jobs
cd "$scratch" || exit 2
cpu_only
files=0

# A real text: this project's own documents.
cat "$repository/README.md" "$repository/LICENSE" "$repository/CONTRIBUTING.md" >text.txt

model='{"family": "gpt2", "num_layers": 4, "hidden_size": 64, "num_heads": 4, "seq_length": 32}'

# Keys of these files that have an effect on this job, alone or through the keys in them; blocks that are
# switched off, with all their keys; and old spellings, which the log names by the present ones.
effective='train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
tensorboard output_path job_name
steps_per_print stage enabled zero_optimization sub_group_size gradient_allreduce_op
offload_optimizer offload_param device nvme_path ratio cpu_offload cpu_offload_param cpu_checkpointing
optimizer scheduler type params lr betas eps weight_decay adam_w_mode torch_adam
warmup_min_lr warmup_max_lr warmup_num_steps warmup_type total_num_steps cos_min_ratio
cycle_min_lr cycle_max_lr cycle_first_step_size cycle_second_step_size cycle_first_stair_count
cycle_second_stair_count decay_step_size decay_lr_rate cycle_min_mom cycle_max_mom decay_mom_rate
lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase
fp16 bf16 bfloat16 loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis
min_loss_scale check_grad_overflow data_types grad_accum_dtype param_dtype
aio block_size queue_depth'
off='amp opt_level torch_autocast elasticity max_train_batch_size micro_batch_sizes curriculum_learning
curriculum_type progressive_layer_drop theta gamma eigenvalue max_iter data_efficiency seed data_sampling
compression_training weight_quantization shared_parameters different_groups zenflow
zero_quantized_weights zero_quantized_gradients zeropp_loco_param output_file deepcompile'

# today KEY: prints the present spelling of a key, which the log uses.
today()
{
    case $1 in
    stage3_gather_fp16_weights_on_model_save) echo stage3_gather_16bit_weights_on_model_save ;;
    prefetch_bucket_size) echo stage3_prefetch_bucket_size ;;
    param_persistence_threshold) echo stage3_param_persistence_threshold ;;
    thread_count) echo intra_op_parallelism ;;
    *) echo "$1" ;;
    esac
}

# The keys of FILE, without its comments.
keys_of()
{
    sed -e 's@^ *#.*@@' -e 's@ # .*@@' -e 's@^ *//.*@@' -e 's@, *//.*@,@' -e 's@ // .*@@' \
        -e 's@/\*[^*]*\*/@@g' "$1" | grep -o '"[A-Za-z_0-9]*" *:' | tr -d '": ' | sort -u
}

# Prints the key paths that the log names after "no effect here:", one per line.
named_in()
{
    sed -n 's/^sluice: .*: no effect here: \(.*\) (.*/\1/p' "$1" | tr ',' '\n' | tr -d ' '
}

check_keys()
{
    file=$1
    named_in err | sort | uniq -d >twice
    [ -s twice ] && fail "$file: named twice: $(cat twice)"
    named_in err | tr '.' '\n' | sort -u >named
    for key in $(keys_of "jobs/$file"); do
        for known in $effective $off; do
            [ "$key" != "$known" ] || continue 2
        done
        grep -qx -- "$(today "$key")" named || fail "$file: nothing is said of $key"
    done
    # A key that does something is not said to do nothing.
    for key in train_batch_size gradient_clipping lr betas nvme_path sub_group_size loss_scale \
        warmup_num_steps grad_accum_dtype queue_depth block_size; do
        ! grep -qx -- "$key" named || fail "$file: $key is said to have no effect"
    done
}

# losses FILE: there must be two steps. Each loss must be finite and not much above that of random guessing.
check_losses()
{
    sed -n 's/.*"loss": *\([-0-9.e+a-zA-Z]*\).*/\1/p' run/metrics.jsonl >losses
    awk '!($1 + 0 > 0.1 && $1 + 0 < 7) { bad = 1 } END { exit bad || NR != 2 }' losses ||
        fail "$1: losses $(tr '\n' ' ' <losses)"
}

# train PATH ARGUMENTS...
train()
{
    path=$1
    shift
    call "$sluice" train "$path" --set "model=$model" --set 'run={"dir": "run", "steps": 2}' \
        --set data.train=text.txt "$@"
}

mkdir jobs
awk '/^==> .* <==$/ { path = "jobs/" $2; next } { print >path }' "$repository/tests/reference/deepspeed_jobs.txt"
for path in jobs/*.json; do
    file=$(basename "$path")
    files=$((files + 1))
    rm -rf run drives
    set --
    for block in offload_optimizer offload_param; do
        # A file names the drive in the block itself or on the same line.
        if tr -d '\n' <"$path" | grep -q "\"$block\": *{[^}]*\"nvme_path\""; then
            drive=drives/a
            [ $block = offload_param ] && [ "$file" = 08-two-drives.json ] && drive=drives/b
            set -- "$@" --set "zero_optimization.$block.nvme_path=$drive"
        fi
    done
    drive_count=$(($# / 2))
    # A learning rate that is "auto" is asked for.
    if grep -q '"lr": *"auto"' "$path"; then
        train "$path"
        exits 2 "$file without --auto"
        one_error "$file without --auto" '"auto"'
        set -- "$@" --auto hf
    fi
    cksum <"$path" >before
    train "$path" "$@"
    cksum <"$path" >after
    exits 0 "$file"
    [ $status -eq 0 ] || continue
    cmp -s before after || fail "$file was changed"
    ! grep -q 'sluice: error' err || fail "$file: an error, but exit 0"
    check_losses "$file"
    check_keys "$file"
    if [ $drive_count -gt 0 ]; then
        [ "$(find drives -name '*.slab' | wc -l)" -ge 1 ] || fail "$file: no slab on its drive"
        # The drive as it stands in the file, where there is none: refused, and nothing is made.
        rm -rf run drives
        : >drives
        train "$path" "$@"
        exits 2 "$file where its drive is a file"
        [ "$(grep -c '^sluice: error: .*drives' err)" -eq 1 ] || fail "$file: no error names the drive"
        [ ! -e run ] || fail "$file: was refused and left a run directory"
    fi
done

[ "$files" -ge 25 ] || fail "$files files"
finish runs
