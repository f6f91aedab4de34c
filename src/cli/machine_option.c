/* --machine: the figures that a plan uses. See machine_option.h. */
#include "cli/machine_option.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "probe/probe.h"

static machine cli_figures; /* large */

/* Reads machine.json of the working directory, if it was measured on this host. */
static const machine *find_own(machine *here, bool checks_cores)
{
    char why[320];
    if (access("machine.json", F_OK) != 0)
        return NULL;
    if (machine_read("machine.json", &cli_figures) < 0) {
        log_warn("machine.json is not used: %s", err_text());
        return NULL;
    }
    if (!checks_cores)
        here->host.core_count = cli_figures.host.core_count;
    if (machine_is_here(&cli_figures, here, why, sizeof why))
        return &cli_figures;
    log_warn("machine.json is not used: %s; sluice probe measures this machine, "
             "--machine machine.json takes the file as it is",
             why);
    return NULL;
}

int cli_machine_read(const char *asked, bool is_one_of_many, struct cli_machine *out)
{
    static machine here;
    memset(out, 0, sizeof *out);
    if (asked && strcmp(asked, "none") == 0)
        return 0;
    TRY(probe_name_host(&here));
    if (!asked) {
        out->figures = find_own(&here, !is_one_of_many);
        out->is_here = out->figures != NULL;
        return 0;
    }
    TRY(machine_read(asked, &cli_figures));
    out->figures = &cli_figures;
    out->is_here = machine_is_here(&cli_figures, &here, out->why, sizeof out->why);
    return 0;
}

int cli_machine_share(comm *ranks, const char *asked, const machine **out)
{
    struct cli_machine found = {.figures = NULL};
    int rc = 0;
    *out = NULL;
    if (comm_get_rank(ranks) == 0) {
        rc = cli_machine_read(asked, comm_get_world(ranks) > 1, &found);
        if (rc == 0 && found.figures && !found.is_here)
            log_warn("the plan takes the figures of machine \"%s\" as they are, but %s",
                     found.figures->name, found.why);
    }
    TRY(comm_agree(ranks, "reading the machine file", rc));
    uint8_t is_there = found.figures != NULL;
    TRY(comm_broadcast(ranks, "whether there is a machine file", &is_there, sizeof is_there));
    if (!is_there)
        return 0;
    TRY(comm_broadcast(ranks, "the machine file", &cli_figures, sizeof cli_figures));
    *out = &cli_figures;
    return 0;
}
