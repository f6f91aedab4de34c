/* sluice verify RUN: compares every committed byte with its checksum. See cli.h. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "cli/launched_ranks.h"
#include "state/verify.h"

const cli_command cli_verify_command = {
    .name = "verify",
    .operand = "RUN",
    .summary = "compares all that a run has committed with its checksums",
    .details =
        "Reads both manifests, the slabs' headers and every tile of the newest commit, at the\n"
        "speed of the drives, and changes nothing. RUN is a run directory, or that of a kept\n"
        "commit (RUN/keep/step-...). Each damage is a line on standard output: unit, tile, the\n"
        "damaged part, file, byte offset. Sizes are in bytes, speeds in GB/s (10^9 bytes). The\n"
        "weights' hash is XXH3-64 of all master weights. Exit status 1 if anything is damaged;\n"
        "2 if there is no run, if it is in use, or if slabs of ranks on other hosts cannot be\n"
        "read from here.",
    .run = cli_verify,
};

enum { PLAIN_EVERY_SECONDS = 10, SHOWN_TEXT_BYTES = 8192 };

struct verify_screen {
    const char *run_dir;
    bool shows_lines, shows_progress, is_terminal;
    double told_seconds; /* when the last plain line was written */
    json_t *damage;      /* with --json: an array of objects */
};

/* It must not log. */
static void verify_clear_line(void *user)
{
    (void)user;
    fputs("\r\033[K", stderr);
}

static void verify_show_progress(void *user, uint64_t done_bytes, uint64_t total_bytes,
                                 double seconds)
{
    struct verify_screen *screen = user;
    char left[CLI_DURATION_BYTES];
    if (!screen->shows_progress ||
        (!screen->is_terminal && seconds - screen->told_seconds < PLAIN_EVERY_SECONDS))
        return;
    screen->told_seconds = seconds;
    double speed = seconds > 0 ? (double)done_bytes / seconds : 0;
    double left_seconds = speed > 0 ? (double)(total_bytes - done_bytes) / speed : -1;
    fprintf(stderr, "%sverified %.2f of %.2f GB (%.0f%%)  %.2f GB/s  left %s%s",
            screen->is_terminal ? "\r\033[K" : "", (double)done_bytes / 1e9,
            (double)total_bytes / 1e9,
            total_bytes ? 100 * (double)done_bytes / (double)total_bytes : 100, speed / 1e9,
            cli_duration(left_seconds, left), screen->is_terminal ? "" : "\n");
    fflush(stderr);
}

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

/* Prints exactly one line, even if a path contains line breaks. */
static void verify_print_line(char *line)
{
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = '?';
    puts(line);
    fflush(stdout);
}

static void verify_show_damage(void *user, const struct state_damage *damage)
{
    struct verify_screen *screen = user;
    if (screen->damage)
        json_array_append_new(screen->damage, verify_damage_json(damage));
    if (!screen->shows_lines)
        return;
    char line[SHOWN_TEXT_BYTES], place[224] = "", sums[96] = "";
    if (damage->unit_name[0] != '\0')
        snprintf(place, sizeof place, "%s (unit %u), tile %u, %s: ", damage->unit_name,
                 damage->unit, damage->tile, damage->part);
    if (damage->expected != damage->found)
        snprintf(sums, sizeof sums, " (%016" PRIx64 " was committed, %016" PRIx64 " was read)",
                 damage->expected, damage->found);
    snprintf(line, sizeof line, "damage: %s%s at byte %" PRIu64 ", %" PRIu64 " bytes: %s%s", place,
             damage->path, damage->file_offset, damage->size_bytes, damage->reason, sums);
    if (screen->is_terminal && screen->shows_progress)
        verify_clear_line(NULL);
    verify_print_line(line);
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

static int verify_show(struct verify_screen *screen, bool json, bool quiet)
{
    struct state_verify_summary sum;
    struct state_verify_options asked = {
        .run_dir = screen->run_dir,
        .stop = cli_stop_install("stopping"),
        .on_progress = verify_show_progress,
        .on_damage = verify_show_damage,
        .user = screen,
    };
    if (screen->shows_progress && screen->is_terminal)
        log_set_hook(verify_clear_line, NULL);
    int rc = state_verify(&asked, &sum);
    err_record first;
    err_save(&first, rc);
    log_set_hook(NULL, NULL);
    if (screen->shows_progress && screen->is_terminal)
        verify_clear_line(NULL);
    if (rc < 0 && rc != ERR_CORRUPT && sum.unseen_count == 0)
        return err_restore(&first);
    int printed = 0;
    if (json) {
        printed = verify_print_json(screen->run_dir, &sum, screen->damage);
        screen->damage = NULL;
    } else if (!quiet && sum.extent_count > 0) {
        verify_print(&sum);
    }
    return rc < 0 ? err_restore(&first) : printed;
}

int cli_verify(int argc, char **argv)
{
    bool json = false, quiet = false;
    const cli_option options[] = {
        {.name = "json",
         .type = CLI_FLAG,
         .help = "one JSON object, bytes and seconds, no progress (default: lines)",
         .target = &json},
        {.name = "quiet",
         .type = CLI_FLAG,
         .help = "the lines of damage alone (default: progress and a summary, too)",
         .target = &quiet},
    };
    struct verify_screen screen = {.run_dir = NULL};
    int rc = cli_parse(&cli_verify_command, options, sizeof options / sizeof options[0], argc, argv,
                       &screen.run_dir);
    if (rc != 0)
        return rc;
    TRY(cli_ranks_refuse("verify"));
    log_set_level(LOG_WARN);
    screen.shows_lines = !json;
    screen.shows_progress = !json && !quiet;
    screen.is_terminal = isatty(STDERR_FILENO) == 1;
    if (json && !(screen.damage = json_array()))
        return err_set(-ENOMEM, "cannot print the result as JSON");
    rc = verify_show(&screen, json, quiet);
    json_decref(screen.damage);
    return rc;
}
