/* sluice export RUN HF_DIR: a run's weights as a Hugging Face checkpoint. See cli.h. */
#include <inttypes.h>
#include <jansson.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "hf/hf.h"

static int export_print_json(const char *run_dir, const char *hf_dir,
                             const struct hf_export_summary *sum)
{
    json_t *object = json_object();
    json_object_set_new(object, "run", json_string(run_dir));
    json_object_set_new(object, "checkpoint", json_string(hf_dir));
    json_object_set_new(object, "step", json_integer((json_int_t)sum->step));
    json_object_set_new(object, "parameters", json_integer((json_int_t)sum->param_count));
    json_object_set_new(object, "tensors", json_integer((json_int_t)sum->tensor_count));
    json_object_set_new(object, "dtype", json_string(sum->type));
    json_object_set_new(object, "files", json_integer((json_int_t)sum->file_count));
    json_object_set_new(object, "read_bytes", json_integer((json_int_t)sum->read_bytes));
    json_object_set_new(object, "written_bytes", json_integer((json_int_t)sum->written_bytes));
    json_object_set_new(object, "side_files", json_integer((json_int_t)sum->side_files));
    json_object_set_new(object, "seconds", json_real(sum->seconds));
    json_object_set_new(object, "resident_bytes_max",
                        json_integer((json_int_t)sum->resident_bytes_max));
    return cli_print_json(stdout, object);
}

static void export_print(const struct hf_export_summary *sum)
{
    char size[SIZE_TEXT_BYTES];
    printf("commit       step %" PRIu64 ", %" PRIu64 " parameters in %" PRIu64 " tensors\n",
           sum->step, sum->param_count, sum->tensor_count);
    printf("read         %s, all as it was committed\n", size_format(sum->read_bytes, size));
    printf("written      %s of %s in %u file%s\n", size_format(sum->written_bytes, size), sum->type,
           sum->file_count, sum->file_count == 1 ? "" : "s");
    printf("carried      %" PRIu64 " file%s\n", sum->side_files, sum->side_files == 1 ? "" : "s");
    printf("time         %.2f s, %.2f GB/s read\n", sum->seconds,
           sum->seconds > 0 ? (double)sum->read_bytes / sum->seconds / 1e9 : 0);
    printf("memory       %s at most\n", size_format(sum->resident_bytes_max, size));
}

/* Reads --shard-size as a number of bytes; 0: not given. */
static int export_shard_bytes(const char *text, uint64_t *bytes)
{
    *bytes = 0;
    if (!text)
        return 0;
    if (size_parse(text, bytes) < 0 || *bytes == 0)
        return err_set(ERR_USAGE,
                       "export: --shard-size is \"%s\", and must be a number of bytes such as 5GB",
                       text);
    return 0;
}

static struct {
    const char *type, *shard_size;
    bool adapters, fused_experts, quantized, force, json, quiet;
} asked;

static const cli_option options[] = {
    {"dtype", CLI_TEXT, "bf16|fp16|fp32",
     "dtype of the tensors; bf16 is rounded as training rounds working copies,\n"
     "fp16 to nearest even (default: the run's working dtype)",
     .target = &asked.type},
    {"shard-size", CLI_TEXT, "SIZE",
     "most bytes of tensors in a file, above which there are several; one tensor is\n"
     "never cut (default: 5GB, which is 5 * 10^9 bytes)",
     .target = &asked.shard_size},
    {"adapters", CLI_FLAG, NULL,
     "for a run with train.lora: only the adapters, adapter_config.json and\n"
     "adapter_model.safetensors, which PEFT loads (default: the base with the adapters "
     "added)",
     .target = &asked.adapters},
    {"fused-experts", CLI_FLAG, NULL,
     "for mixtures of experts: one tensor for all experts of a block, as transformers\n"
     "has them in memory (default: tensors for each expert, as they are published)",
     .target = &asked.fused_experts},
    {"quantized", CLI_FLAG, NULL,
     "matrices that the run keeps packed (state.params) stay so, as checkpoints of\n"
     "bitsandbytes, of fp8 in blocks or of gpt-oss (mxfp4) have them, and are quantized\n"
     "again where adapters are added (default: expanded)",
     .target = &asked.quantized},
    {"force", CLI_FLAG, NULL,
     "writes into a directory that is not empty, replacing files of these names\n"
     "(default: it must be new or empty)",
     .target = &asked.force},
    {"json", CLI_FLAG, NULL, "one JSON object, bytes and seconds, no progress (default: lines)",
     .target = &asked.json},
    {"quiet", CLI_FLAG, NULL, "warnings and errors alone (default: progress and a summary, too)",
     .target = &asked.quiet},
};

static int export_run(const cli_texts *operands)
{
    uint64_t shard_bytes;
    TRY(export_shard_bytes(asked.shard_size, &shard_bytes));
    if (asked.fused_experts && asked.quantized)
        return err_set(ERR_USAGE, "export: --quantized writes a tensor for each expert, and "
                                  "--fused-experts one for all: give one of them");
    if (asked.adapters && asked.quantized)
        return err_set(ERR_USAGE,
                       "export: --adapters writes no base, and --quantized says how it is "
                       "written: give one of them");
    if (asked.json || asked.quiet)
        log_set_level(LOG_WARN);
    cli_progress progress;
    struct hf_export_summary sum;
    const struct hf_export_options work = {
        .run_dir = operands->items[0],
        .hf_dir = operands->items[1],
        .type = asked.type,
        .shard_bytes = shard_bytes,
        .adapters = asked.adapters,
        .fused_experts = asked.fused_experts,
        .quantized = asked.quantized,
        .force = asked.force,
        .stop = cli_stop_install("stopping"),
        .on_progress = cli_progress_show,
        .user = &progress,
    };
    cli_progress_begin(&progress, "exported", !asked.json && !asked.quiet);
    int rc = hf_export(&work, &sum);
    cli_progress_end(&progress);
    TRY(rc);
    if (asked.json)
        return export_print_json(operands->items[0], operands->items[1], &sum);
    if (!asked.quiet)
        export_print(&sum);
    return 0;
}

const cli_command cli_export_command = {
    .name = "export",
    .operand = "RUN HF_DIR",
    .operands_min = 2,
    .operands_max = 2,
    .computes = true,
    .summary = "writes a run's weights as a Hugging Face checkpoint",
    .details =
        "RUN is a run directory, or that of a kept commit (RUN/keep/step-...). Exports the\n"
        "weights of its last commit, from any number of ranks, and compares every byte that it\n"
        "reads with its checksum. Makes HF_DIR with model.safetensors (or, beyond --shard-size,\n"
        "several files and model.safetensors.index.json) and config.json, which transformers\n"
        "can load. Also copies the tokenizer's files and all other files of RUN/hf. Each file\n"
        "is complete or not there under its name, and config.json comes last. Memory is limited\n"
        "to one matrix of the model. Sizes are in bytes, speeds in GB/s (10^9 bytes). Exit\n"
        "status 1 if the commit is damaged.",
    CLI_OPTIONS(options),
    .run = export_run,
};
