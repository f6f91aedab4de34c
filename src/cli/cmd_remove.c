/* sluice remove RUN: removes a run with its slabs, on all its drives. See cli.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "cli/cli.h"
#include "state/runs.h"

static struct {
    bool yes, force, quiet;
} asked;

static const cli_option options[] = {
    {"yes", CLI_FLAG, NULL, "removes without asking (default: asks on the terminal)",
     .target = &asked.yes},
    {"force", CLI_FLAG, NULL,
     "removes the rest if slabs cannot be seen from here: they stay on their drives,\n"
     "where sluice list --drive finds them (default: nothing is removed then)",
     .target = &asked.force},
    {"quiet", CLI_FLAG, NULL, "prints no line when it is done (default: one)",
     .target = &asked.quiet},
};

static void remove_print(FILE *out, const state_removal *removal)
{
    char size[SIZE_TEXT_BYTES], slabs[SIZE_TEXT_BYTES];
    const state_found_run *run = &removal->run;
    fprintf(out, "%s %s: %s, step %" PRIu64 "; %s of files",
            removal->is_kept ? "kept commit" : "run", removal->path, run->state, run->step,
            size_format(run->bytes, size));
    if (removal->owner[0] == '\0')
        fprintf(out, ", %s in %" PRIu32 " slab%s", size_format(run->slab_bytes, slabs),
                run->slab_count, run->slab_count == 1 ? "" : "s");
    if (run->kept_count > 0)
        fprintf(out, ", %" PRIu32 " kept commit%s", run->kept_count,
                run->kept_count == 1 ? "" : "s");
    fputc('\n', out);
    if (removal->owner[0] != '\0')
        fprintf(out, "it is a copy: its slabs are those of %s, and stay\n", removal->owner);
}

/* Asks on the terminal. Returns 0 if the answer is yes. */
static int remove_confirm(const state_removal *removal)
{
    char answer[16] = "";
    if (asked.yes)
        return 0;
    if (isatty(STDIN_FILENO) != 1)
        return err_set(ERR_USAGE,
                       "remove: standard input is no terminal, so nobody can be asked: --yes "
                       "removes %s without asking",
                       removal->path);
    remove_print(stdout, removal);
    printf("remove it? [y/N] ");
    fflush(stdout);
    if (fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
        return 0;
    return err_set(-ECANCELED, "nothing was removed");
}

static int remove_checked(state_removal *removal)
{
    char rest[FILE_PATH_BYTES];
    if (removal->missing[0] != '\0' && removal->owner[0] == '\0' && !asked.force)
        return err_set(-ENOENT,
                       "nothing was removed: %s. --force removes the rest, and leaves what cannot "
                       "be seen where it is",
                       removal->missing);
    TRY(remove_confirm(removal));
    TRY(state_removal_run(removal, rest));
    if (rest[0] != '\0')
        log_warn("%s stays: it holds files that are not the run's, such as %s", removal->path,
                 rest);
    if (!asked.quiet)
        remove_print(stdout, removal);
    if (!asked.quiet)
        printf("removed\n");
    return 0;
}

static int remove_run(const cli_texts *operands)
{
    state_removal *removal = mem_alloc(1, sizeof *removal, "a run to remove");
    if (!removal)
        return -ENOMEM;
    int rc = state_removal_open(removal, operands->items[0]);
    if (rc == 0)
        rc = remove_checked(removal);
    state_removal_close(removal);
    mem_free(removal);
    return rc;
}

const cli_command cli_remove_command = {
    .name = "remove",
    .operand = "RUN",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "removes a run with its slabs, on all its drives",
    .details =
        "RUN is a run directory, or that of a kept commit (RUN/keep/step-...). Says what it is\n"
        "about to remove and asks. Removes the slabs first and the record of the run last: if\n"
        "it is killed, the same command goes on. Refuses a run that is in use, and a directory\n"
        "that is no run. It removes only files of the run, each by its name, and follows no\n"
        "link out of it; a directory with other files stays. If a drive is not mounted, or\n"
        "slabs lie on another host, it says so, removes nothing, and the exit status is 1. If\n"
        "the directory is a copy of a run, the slabs are the other's and stay.",
    CLI_OPTIONS(options),
    .run = remove_run,
};
