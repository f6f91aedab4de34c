/* sluice list [DIR...]: runs below a directory, and slabs that no run names. See cli.h. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "state/runs.h"

static struct {
    cli_texts drives;
    bool json;
} asked;

static const cli_option options[] = {
    {"drive", CLI_TEXTS, "PATH",
     "also looks for slabs in the drive's directory PATH (tiers.nvme[].path of a\n"
     "job); repeatable",
     .target = &asked.drives},
    {"json", CLI_FLAG, NULL, "one JSON object, sizes in bytes (default: tables)",
     .target = &asked.json},
};

static void list_print_runs(const state_found *found)
{
    char size[SIZE_TEXT_BYTES], slabs[SIZE_TEXT_BYTES];
    if (found->run_count > 0)
        printf("%10s %10s %12s %12s %6s %5s  %s\n", "step", "state", "files", "slabs", "number",
               "kept", "run");
    for (uint32_t i = 0; i < found->run_count; i++) {
        const state_found_run *run = &found->runs[i];
        char absent[48] = "";
        if (run->absent_count > 0)
            snprintf(absent, sizeof absent, "  (%" PRIu32 " slab%s not there)", run->absent_count,
                     run->absent_count == 1 ? " is" : "s are");
        printf("%10" PRIu64 " %10s %12s %12s %6" PRIu32 " %5" PRIu32 "  %s%s\n", run->step,
               run->state, size_format(run->bytes, size), size_format(run->slab_bytes, slabs),
               run->slab_count, run->kept_count, run->path, absent);
    }
}

static const char *list_reason(const state_found_slabs *slabs)
{
    if (slabs->owner[0] == '\0')
        return "no note says whose they are; a run that is not listed may name them";
    return access(slabs->owner, F_OK) == 0 ? "this run does not name them any more: "
                                           : "their run is not there, or not mounted: ";
}

static void list_print_slabs(const state_found *found)
{
    char size[SIZE_TEXT_BYTES];
    if (found->slabs_count > 0)
        printf("%sslabs that no run here names (if none will need them, rm -r removes them):\n",
               found->run_count ? "\n" : "");
    for (uint32_t i = 0; i < found->slabs_count; i++) {
        const state_found_slabs *slabs = &found->slabs[i];
        printf("%12s  %s\n%14s%s%s\n", size_format(slabs->bytes, size), slabs->path, "",
               list_reason(slabs), slabs->owner);
    }
}

static int list_print_json(const state_found *found)
{
    json_t *runs = json_array(), *slabs = json_array();
    for (uint32_t i = 0; i < found->run_count; i++) {
        const state_found_run *run = &found->runs[i];
        json_array_append_new(
            runs, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "run", run->path, "state",
                            run->state, "step", (json_int_t)run->step, "bytes",
                            (json_int_t)run->bytes, "slab_bytes", (json_int_t)run->slab_bytes,
                            "slabs", (json_int_t)run->slab_count, "slabs_absent",
                            (json_int_t)run->absent_count, "kept", (json_int_t)run->kept_count));
    }
    for (uint32_t i = 0; i < found->slabs_count; i++)
        json_array_append_new(slabs, json_pack("{s:s, s:s, s:I}", "path", found->slabs[i].path,
                                               "note", found->slabs[i].owner, "bytes",
                                               (json_int_t)found->slabs[i].bytes));
    return cli_print_json(stdout, json_pack("{s:o, s:o}", "runs", runs, "slabs_of_no_run", slabs));
}

static int list_run(const cli_texts *operands)
{
    static const char *const here[] = {"."};
    /* Drives alone are asked for: the present directory is not searched. */
    bool is_default = operands->count == 0 && asked.drives.count == 0;
    state_found found;
    log_set_level(LOG_QUIET); /* the warnings of a manifest concern its run */
    int rc = state_find(is_default ? here : operands->items, is_default ? 1 : operands->count,
                        asked.drives.items, asked.drives.count, &found);
    if (rc == 0 && asked.json) {
        rc = list_print_json(&found);
    } else if (rc == 0) {
        list_print_runs(&found);
        list_print_slabs(&found);
        if (found.run_count == 0 && found.slabs_count == 0)
            printf("no runs and no slabs\n");
    }
    state_found_fini(&found);
    return rc;
}

const cli_command cli_list_command = {
    .name = "list",
    .operand = "DIR...",
    .operands_max = CLI_TEXTS_MAX,
    .summary = "shows runs, their step and size, and slabs that no run names",
    .details =
        "Looks for run directories in each DIR (default: the present directory), at most four\n"
        "levels deep, without following links. Slabs are looked for in DIR, on the drives that\n"
        "these runs name, and in each --drive. It takes no lock: runs may be in use. Columns:\n"
        "the step and the state of the newest commit; the space that the run directory takes,\n"
        "and its slabs, those of kept commits (run.keep) included; the number of these slabs\n"
        "and of kept commits. A run \"in removal\" was removed by half: sluice remove goes on.\n"
        "Slabs belong to no run if neither a listed run names them nor the run that the note\n"
        "beside them names.",
    CLI_OPTIONS(options),
    .run = list_run,
};
