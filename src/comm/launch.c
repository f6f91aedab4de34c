/* Finds which rank this is in the launcher's environment: mpirun of Open MPI, mpirun of MPICH and
 * its relatives, srun. Called while joining; allocates nothing. */
#include "comm/comm_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct launcher {
    const char *world_key, *rank_key;
    const char *also_key; /* if not NULL, this variable must exist too */
    const char *name;
};

/* The first entry that exists decides. A batch script of Slurm has SLURM_NTASKS and SLURM_PROCID 0
 * as well, but only processes that srun started are in a step. */
static const struct launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL, "mpirun"},
    {"PMI_SIZE", "PMI_RANK", NULL, "mpirun"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", NULL, "srun"},
    {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", "srun"},
    {"MPI_LOCALNRANKS", "MPI_LOCALRANKID", NULL, "mpirun"},
};

static int read_number(const char *key, uint32_t *out)
{
    const char *text = getenv(key);
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (end == text || *end != '\0' || value > UINT32_MAX)
        return err_set(ERR_CONFIG, "the environment's %s is \"%s\", which is not a number of ranks",
                       key, text);
    *out = (uint32_t)value;
    return 0;
}

static int use_launcher(const struct launcher *launcher, commi_launch *out)
{
    out->launcher = launcher->name;
    /* the rank first: it decides who prints an error */
    TRY(read_number(launcher->rank_key, &out->rank));
    TRY(read_number(launcher->world_key, &out->world));
    out->is_launched = out->world > 1;
    /* it counts this host only; MPI knows the whole world */
    if (strcmp(launcher->world_key, "MPI_LOCALNRANKS") == 0) {
        out->world = 0;
        out->is_launched = true;
        return 0;
    }
    if (out->world > COMM_RANKS_MAX)
        return err_set(ERR_CONFIG, "%s started %u ranks; the most is %d: start fewer",
                       out->launcher, out->world, COMM_RANKS_MAX);
    if (out->rank >= out->world)
        return err_set(ERR_CONFIG, "%s says that this is rank %u of %u (%s, %s)", out->launcher,
                       out->rank, out->world, launcher->rank_key, launcher->world_key);
    return 0;
}

int commi_launch_read(commi_launch *out)
{
    memset(out, 0, sizeof *out);
    out->world = 1;
    out->launcher = "no launcher";
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const struct launcher *launcher = &launchers[i];
        if (getenv(launcher->world_key) && getenv(launcher->rank_key) &&
            (!launcher->also_key || getenv(launcher->also_key)))
            return use_launcher(launcher, out);
    }
    if (getenv("PMIX_RANK")) { /* a PMIx launcher does not say the size; MPI knows it */
        out->launcher = "a PMIx launcher";
        out->world = 0;
        out->is_launched = true;
        return read_number("PMIX_RANK", &out->rank);
    }
    return 0;
}

void commi_host_name(char host[COMM_HOST_BYTES])
{
    memset(host, 0, COMM_HOST_BYTES);
    if (gethostname(host, COMM_HOST_BYTES - 1) != 0 && host[0] == '\0')
        strcpy(host, "localhost");
}

void commi_machine_name(char machine[COMMI_MACHINE_BYTES])
{
    char host[COMM_HOST_BYTES];
    char boot[40] = "";
    commi_host_name(host);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t bytes = read(fd, boot, sizeof boot - 1);
        boot[bytes > 0 ? bytes : 0] = '\0';
        boot[strcspn(boot, "\n")] = '\0';
        close(fd);
    }
    snprintf(machine, COMMI_MACHINE_BYTES, "%s %s", host, boot);
}
