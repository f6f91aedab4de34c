/* sluice import HF_DIR RUN: a run at step 0 with the weights of a checkpoint. See cli.h. */
#include <inttypes.h>
#include <jansson.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "hf/hf.h"
#include "setup/summary.h"

static int import_print_json(const char *hf_dir, const char *run_dir,
                             const struct hf_import_summary *sum)
{
    json_t *object = json_object();
    json_object_set_new(object, "checkpoint", json_string(hf_dir));
    json_object_set_new(object, "run", json_string(run_dir));
    json_object_set_new(object, "parameters", json_integer((json_int_t)sum->param_count));
    json_object_set_new(object, "units", json_integer((json_int_t)sum->unit_count));
    json_object_set_new(object, "dtype", json_string(sum->type));
    json_object_set_new(object, "read_bytes", json_integer((json_int_t)sum->read_bytes));
    json_object_set_new(object, "written_bytes", json_integer((json_int_t)sum->written_bytes));
    json_object_set_new(object, "side_files", json_integer((json_int_t)sum->side_files));
    json_object_set_new(object, "slab_directory", json_string(sum->slab_dir));
    json_object_set_new(object, "seconds", json_real(sum->seconds));
    json_object_set_new(object, "resident_bytes_max",
                        json_integer((json_int_t)sum->resident_bytes_max));
    return cli_print_json(stdout, object);
}

static void import_print(const char *run_dir, const struct hf_import_summary *sum)
{
    char size[SIZE_TEXT_BYTES];
    printf("parameters   %" PRIu64 " in %" PRIu64 " units\n", sum->param_count, sum->unit_count);
    printf("read         %s of %s\n", size_format(sum->read_bytes, size), sum->type);
    printf("written      %s to %s in %.2f s, %.2f GB/s\n", size_format(sum->written_bytes, size),
           sum->slab_dir, sum->seconds,
           sum->seconds > 0 ? (double)sum->written_bytes / sum->seconds / 1e9 : 0);
    printf("carried      %" PRIu64 " file%s to %s/hf\n", sum->side_files,
           sum->side_files == 1 ? "" : "s", run_dir);
    printf("memory       %s at most\n", size_format(sum->resident_bytes_max, size));
}

static struct {
    cli_texts set;
    const char *job_file;
    bool json, quiet;
} asked;

static const cli_option options[] = {
    {"job", CLI_TEXT, "JOB",
     "the job that the run is for: its drives, optimizer and dtype, kept as RUN/job.json;\n"
     "model.hf and run.dir become HF_DIR and RUN (default: one is made, in the dtype of\n"
     "the checkpoint)",
     .target = &asked.job_file},
    {"set", CLI_TEXTS, "KEY.PATH=VALUE",
     "overrides a key of that job; JSON or a bare word; repeatable", .target = &asked.set},
    {"json", CLI_FLAG, NULL, "one JSON object, bytes and seconds, no progress (default: lines)",
     .target = &asked.json},
    {"quiet", CLI_FLAG, NULL, "warnings and errors alone (default: progress and a summary, too)",
     .target = &asked.quiet},
};

static int import_run(const cli_texts *operands)
{
    if (asked.json || asked.quiet)
        log_set_level(LOG_WARN);
    if (asked.job_file)
        TRY(setup_keep_job_file(asked.job_file, operands->items[1]));
    cli_progress progress;
    struct hf_import_summary sum;
    const struct hf_import_options work = {
        .hf_dir = operands->items[0],
        .run_dir = operands->items[1],
        .job_path = asked.job_file,
        .set = asked.set.items,
        .set_count = asked.set.count,
        .stop = cli_stop_install("stopping"),
        .on_progress = cli_progress_show,
        .user = &progress,
    };
    cli_progress_begin(&progress, "imported", !asked.json && !asked.quiet);
    int rc = hf_import(&work, &sum);
    cli_progress_end(&progress);
    TRY(rc);
    if (asked.json)
        return import_print_json(operands->items[0], operands->items[1], &sum);
    if (!asked.quiet)
        import_print(operands->items[1], &sum);
    return 0;
}

const cli_command cli_import_command = {
    .name = "import",
    .operand = "HF_DIR RUN",
    .operands_min = 2,
    .operands_max = 2,
    .computes = true,
    .summary = "makes a run of a Hugging Face checkpoint",
    .details =
        "HF_DIR holds config.json and model.safetensors, or model.safetensors.index.json and\n"
        "the files that it names, in fp32, bf16 or fp16. Matrices that come quantized are\n"
        "expanded. Makes RUN, a run directory whose commit of step 0 holds the weights as\n"
        "fp32 masters and moments of zero. Any job of the same model can continue it, with\n"
        "run.dir RUN or with train --from RUN; generate, eval and export can read it directly.\n"
        "A job that names the checkpoint itself (model.hf) needs no import.\n"
        "The state lies in RUN/state, or on the drives that the job names in tiers.nvme: 4\n"
        "bytes per parameter; moments take no space. Files that belong to the model beside its\n"
        "weights, such as the tokenizer, are copied to RUN/hf. A checkpoint of any size streams\n"
        "through some 100 MiB of memory (GPT-2: up to 400). Sizes are in bytes, speeds in GB/s\n"
        "(10^9 bytes) of fp32.",
    CLI_OPTIONS(options),
    .run = import_run,
};
