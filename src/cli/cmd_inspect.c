/* sluice inspect RUN: what a run directory holds. See cli.h. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "state/verify.h"

static void inspect_print_slots(const struct state_inspect_summary *sum)
{
    for (int i = 0; i < 2; i++) {
        const manifest_slot *slot = &sum->slots[i];
        printf("manifest-%d   ", i);
        if (slot->outcome == MANIFEST_SLOT_ABSENT)
            printf("absent\n");
        else if (slot->outcome == MANIFEST_SLOT_VALID)
            printf("generation %" PRIu64 ", step %" PRIu64 "\n", slot->generation, slot->step);
        else
            printf("damaged: %s\n", slot->reason);
    }
}

static void inspect_print_identity(const char *identity)
{
    printf("\nmade with\n");
    for (const char *line = identity; *line;) {
        size_t length = strcspn(line, "\n");
        printf("  %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static void inspect_print_lists(const struct state_inspect_summary *sum)
{
    char size[SIZE_TEXT_BYTES], allocated[SIZE_TEXT_BYTES];
    printf("\n%-24s %14s %8s %14s %16s\n", "unit", "elements", "tiles", "size", "at byte");
    for (uint32_t i = 0; i < sum->unit_count; i++) {
        const struct state_inspect_unit *unit = &sum->units[i];
        printf("%-24s %14" PRIu64 " %8" PRIu64 " %14s %16" PRIu64 "%s\n", unit->name, unit->elems,
               unit->tile_count, size_format(unit->size_bytes, size), unit->offset_bytes,
               unit->is_packed   ? "  frozen: packed params"
               : unit->is_frozen ? "  frozen: params alone"
                                 : "");
    }
    for (uint32_t r = 0; sum->record.world_size > 1 && r < sum->record.world_size; r++)
        printf("%srank %-6u host %s\n", r ? "" : "\n", r, sum->record.slabs.ranks[r].host);
    printf("\n%14s %14s  %s\n", "size", "allocated", "slab");
    for (uint32_t i = 0; i < sum->file_count; i++) {
        const struct state_inspect_file *file = &sum->files[i];
        if (file->size_bytes == 0)
            printf("%14s %14s  %s%s\n", "absent", "-", file->path,
                   file->is_unmounted ? "  (its drive is not mounted, or is empty)" : "");
        else
            printf("%14s %14s  %s\n", size_format(file->size_bytes, size),
                   size_format(file->allocated_bytes, allocated), file->path);
    }
    if (sum->kept_count > 0)
        printf("\n%14s  %s\n", "kept step", "run directory");
    for (uint32_t i = 0; i < sum->kept_count; i++)
        printf("%14" PRIu64 "  %s\n", sum->kept[i].step, sum->kept[i].path);
}

static void inspect_print(const char *run_dir, const struct state_inspect_summary *sum)
{
    char size[SIZE_TEXT_BYTES], stripe[SIZE_TEXT_BYTES], extents[SIZE_TEXT_BYTES];
    printf("run          %s\n", run_dir);
    printf("state        %s, step %" PRIu64 ", generation %" PRIu64 "\n", sum->state,
           sum->record.point.step, sum->record.generation);
    inspect_print_slots(sum);
    if (strcmp(sum->state, "damaged") != 0) {
        printf("uuid         %s\n", sum->uuid);
        printf("samples      %" PRIu64 " windows; seed of the weights %" PRIu64 "\n",
               sum->record.point.window_count, sum->record.point.seed);
        printf("loss scale   %g; %" PRIu64 " steps skipped\n", sum->record.point.loss_scale,
               sum->record.point.skipped_count);
        printf("tiles        %" PRIu64 ", %s; up to %" PRIu64 " elements of ",
               sum->record.extent_count, size_format(sum->extents_bytes, extents),
               sum->record.tile_elems);
        if (sum->state_streams > 0)
            printf("%" PRIu64 " streams: %s\n", sum->state_streams, sum->state_formats);
        else
            printf("an unknown number of streams\n");
        if (sum->matrix_tiles > 0)
            printf("             %" PRIu64 " tiles hold only matrices and lack the last stream\n",
                   sum->matrix_tiles);
        if (sum->record.world_size > 1)
            printf("ranks        %u, ZeRO stage %u; %s\n", sum->record.world_size,
                   sum->record.zero_stage,
                   sum->record.is_replicated ? "each has the whole state: places are those of each"
                                             : "each has its part of every unit");
        printf("drives       %u%s; %s in stripes of %s\n", sum->file_count / sum->record.world_size,
               sum->record.world_size > 1 ? " of each rank" : "",
               size_format(sum->record.total_bytes, size),
               size_format(sum->record.stripe_bytes, stripe));
        inspect_print_identity(sum->record.identity);
        inspect_print_lists(sum);
    }
}

/* ---- JSON ---- */

static json_t *inspect_slot_json(const manifest_slot *slot)
{
    json_t *object = json_object();
    json_object_set_new(object, "present", json_boolean(slot->outcome != MANIFEST_SLOT_ABSENT));
    json_object_set_new(object, "valid", json_boolean(slot->outcome == MANIFEST_SLOT_VALID));
    if (slot->outcome == MANIFEST_SLOT_VALID) {
        json_object_set_new(object, "generation", json_integer((json_int_t)slot->generation));
        json_object_set_new(object, "step", json_integer((json_int_t)slot->step));
    } else if (slot->outcome == MANIFEST_SLOT_DAMAGED) {
        json_object_set_new(object, "reason", json_string(slot->reason));
    }
    return object;
}

/* Turns "key=value" lines into an object of texts. */
static json_t *inspect_identity_json(const char *identity)
{
    json_t *object = json_object();
    for (const char *line = identity; *line;) {
        char key[256];
        size_t length = strcspn(line, "\n");
        const char *equals = memchr(line, '=', length);
        if (equals) {
            snprintf(key, sizeof key, "%.*s", (int)(equals - line), line);
            json_object_set_new(object, key,
                                json_stringn(equals + 1, length - (size_t)(equals + 1 - line)));
        }
        line += length + (line[length] == '\n');
    }
    return object;
}

static json_t *inspect_lists_json(json_t *object, const struct state_inspect_summary *sum)
{
    json_t *units = json_array(), *files = json_array(), *kept = json_array(),
           *ranks = json_array();
    for (uint32_t i = 0; i < sum->unit_count; i++) {
        const struct state_inspect_unit *unit = &sum->units[i];
        json_array_append_new(
            units,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:b}", "name", unit->name, "elems",
                      (json_int_t)unit->elems, "tiles", (json_int_t)unit->tile_count, "bytes",
                      (json_int_t)unit->size_bytes, "offset_bytes", (json_int_t)unit->offset_bytes,
                      "frozen", (int)unit->is_frozen, "packed", (int)unit->is_packed));
    }
    for (uint32_t i = 0; i < sum->file_count; i++)
        json_array_append_new(
            files, json_pack("{s:I, s:s, s:I, s:I}", "rank", (json_int_t)sum->files[i].rank, "path",
                             sum->files[i].path, "bytes", (json_int_t)sum->files[i].size_bytes,
                             "allocated_bytes", (json_int_t)sum->files[i].allocated_bytes));
    for (uint32_t r = 0; r < sum->record.world_size; r++)
        json_array_append_new(ranks, json_pack("{s:s, s:I}", "host",
                                               sum->record.slabs.ranks[r].host, "local_rank",
                                               (json_int_t)sum->record.slabs.ranks[r].local_rank));
    for (uint32_t i = 0; i < sum->kept_count; i++)
        json_array_append_new(kept, json_pack("{s:I, s:s}", "step", (json_int_t)sum->kept[i].step,
                                              "path", sum->kept[i].path));
    json_object_set_new(object, "units", units);
    json_object_set_new(object, "ranks", ranks);
    json_object_set_new(object, "slabs", files);
    json_object_set_new(object, "kept", kept);
    return object;
}

static int inspect_print_json(const char *run_dir, const struct state_inspect_summary *sum)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"step", sum->record.point.step},
        {"world_size", sum->record.world_size},
        {"zero_stage", sum->record.zero_stage},
        {"generation", sum->record.generation},
        {"window_count", sum->record.point.window_count},
        {"skipped_count", sum->record.point.skipped_count},
        {"seed", sum->record.point.seed},
        {"state_streams", sum->state_streams},
        {"matrix_tiles", sum->matrix_tiles},
        {"tile_elems", sum->record.tile_elems},
        {"extents", sum->record.extent_count},
        {"extents_bytes", sum->extents_bytes},
        {"total_bytes", sum->record.total_bytes},
        {"stripe_bytes", sum->record.stripe_bytes},
    };
    json_t *object = json_object();
    json_object_set_new(object, "run", json_string(run_dir));
    json_object_set_new(object, "state", json_string(sum->state));
    json_object_set_new(object, "uuid", json_string(sum->uuid));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        json_object_set_new(object, numbers[i].key, json_integer((json_int_t)numbers[i].value));
    json_object_set_new(object, "state_formats", json_string(sum->state_formats));
    json_object_set_new(object, "replicated", json_boolean(sum->record.is_replicated));
    json_object_set_new(object, "loss_scale", json_real(sum->record.point.loss_scale));
    json_object_set_new(
        object, "slots",
        json_pack("[o, o]", inspect_slot_json(&sum->slots[0]), inspect_slot_json(&sum->slots[1])));
    json_object_set_new(object, "identity", inspect_identity_json(sum->record.identity));
    return cli_print_json(stdout, inspect_lists_json(object, sum));
}

static bool asks_json, is_raw;

static const cli_option options[] = {
    {"json", CLI_FLAG, NULL, "one JSON object, sizes in bytes (default: tables)",
     .target = &asks_json},
    {"raw", CLI_FLAG, NULL,
     "names reach a terminal unchanged (default: control characters as \\u001b)",
     .target = &is_raw},
};

static int inspect_run(const cli_texts *operands)
{
    const char *run_dir = operands->items[0];
    int rc = 0;
    if (is_raw)
        cli_terminal_raw();
    log_set_level(LOG_QUIET);                /* the warnings of a job concern its training */
    static struct state_inspect_summary sum; /* large */
    TRY(state_inspect(run_dir, &sum));
    if (asks_json)
        rc = inspect_print_json(run_dir, &sum);
    else
        inspect_print(run_dir, &sum);
    state_inspect_fini(&sum);
    return rc;
}

const cli_command cli_inspect_command = {
    .name = "inspect",
    .operand = "RUN",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "says what a run directory holds: step, shapes, places, sizes",
    .details =
        "Reads only the manifests, not the state, and takes no lock, so it also works on a run\n"
        "that is in use. RUN is a run directory, or that of a kept commit (RUN/keep/step-...).\n"
        "Sizes are in bytes. A unit's place is that of its first tile in the address space of\n"
        "the drives.",
    CLI_OPTIONS(options),
    .run = inspect_run,
};
