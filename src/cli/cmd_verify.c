/* sluice verify RUN: compares every committed byte with its checksum. See cli.h. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>

#include "base/log.h"
#include "base/size.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "state/verify.h"

enum { SHOWN_TEXT_BYTES = 8192 };

static struct {
    bool json, quiet;
} asked;

static json_t *damage_list; /* with --json: an array of objects */

static json_t *verify_damage_json(const struct state_damage *damage)
{
    char expected[24], found[24];
    bool is_extent = damage->unit_name[0] != '\0';
    json_t *object = json_object();
    if (is_extent) {
        json_object_set_new(object, "unit", json_integer((json_int_t)damage->unit));
        json_object_set_new(object, "unit_name", json_string(damage->unit_name));
        json_object_set_new(object, "tile", json_integer((json_int_t)damage->tile));
        json_object_set_new(object, "part", json_string(damage->part));
    }
    json_object_set_new(object, "rank", json_integer((json_int_t)damage->rank));
    json_object_set_new(object, "path", json_string(damage->path));
    json_object_set_new(object, "file_offset", json_integer((json_int_t)damage->file_offset));
    json_object_set_new(object, "size_bytes", json_integer((json_int_t)damage->size_bytes));
    if (damage->expected != damage->found) {
        snprintf(expected, sizeof expected, "%016" PRIx64, damage->expected);
        snprintf(found, sizeof found, "%016" PRIx64, damage->found);
        json_object_set_new(object, "expected", json_string(expected));
        json_object_set_new(object, "found", json_string(found));
    }
    json_object_set_new(object, "reason", json_string(damage->reason));
    return object;
}

static void verify_show_damage(void *user, const struct state_damage *damage)
{
    if (asked.json) {
        json_array_append_new(damage_list, verify_damage_json(damage));
        return;
    }
    char line[SHOWN_TEXT_BYTES], place[224] = "", sums[96] = "";
    if (damage->unit_name[0] != '\0')
        snprintf(place, sizeof place, "%s (unit %u), tile %u, %s: ", damage->unit_name,
                 damage->unit, damage->tile, damage->part);
    if (damage->expected != damage->found)
        snprintf(sums, sizeof sums, " (%016" PRIx64 " was committed, %016" PRIx64 " was read)",
                 damage->expected, damage->found);
    snprintf(line, sizeof line, "damage: %s%s at byte %" PRIu64 ", %" PRIu64 " bytes: %s%s", place,
             damage->path, damage->file_offset, damage->size_bytes, damage->reason, sums);
    cli_progress_clear(user);
    char shown[SHOWN_TEXT_BYTES];
    utf8_visible(line, strlen(line), "", shown, sizeof shown);
    puts(shown); /* also if a path contains line breaks */
    fflush(stdout);
}

static double verify_speed(const struct state_verify_summary *sum)
{
    return sum->seconds > 0 ? (double)sum->bytes / sum->seconds : 0;
}

static double verify_share(const struct state_verify_summary *sum)
{
    return sum->slab_bytes > 0 ? (double)sum->bytes / (double)sum->slab_bytes : 0;
}

static void verify_print(const struct state_verify_summary *sum)
{
    char size[SIZE_TEXT_BYTES];
    printf("commit       step %" PRIu64 ", %" PRIu64 " tiles\n", sum->step, sum->extent_count);
    printf("read         %s in %.2f s, %.2f GB/s; %.0f%% of the slabs\n",
           size_format(sum->bytes, size), sum->seconds, verify_speed(sum) / 1e9,
           100 * verify_share(sum));
    if (sum->world_size > 1)
        printf("ranks        %u, of which %u are not seen from this host\n", sum->world_size,
               sum->unseen_count);
    if (sum->weights_hash != 0)
        printf("weights      %016" PRIx64 "\n", sum->weights_hash);
    if (sum->damage_count > 0)
        printf("damaged      %" PRIu64 "\n", sum->damage_count);
    else if (sum->unseen_count == 0)
        printf("all is as it was committed\n");
}

/* Takes ownership of `damage`. */
static int verify_print_json(const char *run_dir, const struct state_verify_summary *sum,
                             json_t *damage)
{
    char hash[24];
    snprintf(hash, sizeof hash, "%016" PRIx64, sum->weights_hash);
    json_t *object = json_object();
    json_object_set_new(object, "run", json_string(run_dir));
    json_object_set_new(object, "step", json_integer((json_int_t)sum->step));
    json_object_set_new(object, "extents", json_integer((json_int_t)sum->extent_count));
    json_object_set_new(object, "bytes", json_integer((json_int_t)sum->bytes));
    json_object_set_new(object, "slab_bytes", json_integer((json_int_t)sum->slab_bytes));
    json_object_set_new(object, "slab_share", json_real(verify_share(sum)));
    json_object_set_new(object, "world_size", json_integer((json_int_t)sum->world_size));
    json_object_set_new(object, "unseen_ranks", json_integer((json_int_t)sum->unseen_count));
    json_object_set_new(object, "seconds", json_real(sum->seconds));
    json_object_set_new(object, "bytes_per_second", json_real(verify_speed(sum)));
    json_object_set_new(object, "weights_hash",
                        sum->weights_hash ? json_string(hash) : json_null());
    json_object_set_new(object, "damage_count", json_integer((json_int_t)sum->damage_count));
    json_object_set_new(object, "damage", damage);
    return cli_print_json(stdout, object);
}

static const cli_option options[] = {
    {"json", CLI_FLAG, NULL, "one JSON object, bytes and seconds, no progress (default: lines)",
     .target = &asked.json},
    {"quiet", CLI_FLAG, NULL, "the lines of damage alone (default: progress and a summary, too)",
     .target = &asked.quiet},
};

static int verify_run(const cli_texts *operands)
{
    const char *run_dir = operands->items[0];
    cli_progress progress;
    struct state_verify_summary sum;
    struct state_verify_options work = {
        .run_dir = run_dir,
        .stop = cli_stop_install("stopping"),
        .on_progress = cli_progress_show,
        .on_damage = verify_show_damage,
        .user = &progress,
    };
    log_set_level(LOG_WARN);
    if (asked.json && !(damage_list = json_array()))
        return err_set(-ENOMEM, "cannot print the result as JSON");
    cli_progress_begin(&progress, "verified", !asked.json && !asked.quiet);
    int rc = state_verify(&work, &sum);
    cli_progress_end(&progress);
    if (rc < 0 && rc != ERR_CORRUPT && sum.unseen_count == 0) {
        json_decref(damage_list);
        return rc;
    }
    err_record first;
    err_save(&first, rc);
    int printed = 0;
    if (asked.json)
        printed = verify_print_json(run_dir, &sum, damage_list);
    else if (!asked.quiet && sum.extent_count > 0)
        verify_print(&sum);
    return rc < 0 ? err_restore(&first) : printed;
}

const cli_command cli_verify_command = {
    .name = "verify",
    .operand = "RUN",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "compares all that a run has committed with its checksums",
    .details =
        "Reads both manifests, the slabs' headers and every tile of the newest commit, at the\n"
        "speed of the drives, and changes nothing. RUN is a run directory, or that of a kept\n"
        "commit (RUN/keep/step-...). Each damage is a line on standard output: unit, tile, the\n"
        "damaged part, file, byte offset. Sizes are in bytes, speeds in GB/s (10^9 bytes). The\n"
        "weights' hash is XXH3-64 of all master weights. Exit status 1 if anything is damaged;\n"
        "2 if there is no run, if it is in use, or if slabs of ranks on other hosts cannot be\n"
        "read from here.",
    CLI_OPTIONS(options),
    .run = verify_run,
};
