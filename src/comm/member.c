/* One rank as all files of comm see it: who it is, its times, and the failure of its job; and which
 * rank the launcher's environment says it is (torchrun, mpirun of Open MPI, mpirun of MPICH and its
 * relatives, srun). See comm_internal.h. Allocates when a comm is made and when its ranks are
 * known; any thread may ask. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/comm_internal.h"

#define DEFAULT_TIMEOUT_SECONDS 300.0
#define DEFAULT_EXIT_SECONDS    30.0

/* ---- creation ---- */

int commi_member_create(comm **out)
{
    *out = mem_alloc(1, sizeof **out, "comm");
    if (!*out)
        return -ENOMEM;
    pthread_mutex_init(&(*out)->mutex, NULL);
    commi_member_set_timeouts(*out, 0, 0);
    return 0;
}

void commi_member_destroy(comm *self)
{
    pthread_mutex_destroy(&self->mutex);
    mem_free(self->ranks);
    mem_free(self);
}

int commi_member_set_ranks(comm *self, uint32_t rank, uint32_t world)
{
    assert(rank < world);
    assert(world <= COMM_RANKS_MAX);
    self->rank = rank;
    self->world = world;
    self->ranks = mem_alloc(world, sizeof *self->ranks, "comm ranks");
    return self->ranks ? 0 : -ENOMEM;
}

void commi_member_set_timeouts(comm *self, double timeout_seconds, double exit_seconds)
{
    double timeout = timeout_seconds > 0.0 ? timeout_seconds : DEFAULT_TIMEOUT_SECONDS;
    double ending = exit_seconds > 0.0 ? exit_seconds : DEFAULT_EXIT_SECONDS;
    atomic_store(&self->timeout_ns, (int64_t)(timeout * 1e9));
    atomic_store(&self->exit_ns, (int64_t)(ending * 1e9));
}

/* ---- who this rank is ---- */

uint32_t comm_get_rank(const comm *self)
{
    return self ? self->rank : 0;
}

uint32_t comm_get_world(const comm *self)
{
    return self ? self->world : 1;
}

const comm_rank *comm_get_ranks(const comm *self)
{
    return self->ranks;
}

bool comm_is_pretended(const comm *self)
{
    return self && self->is_pretended;
}

/* ---- the failure of the job ---- */

int commi_abort_error(comm *self)
{
    pthread_mutex_lock(&self->mutex);
    int code = err_restore(&self->failure);
    pthread_mutex_unlock(&self->mutex);
    assert(code < 0);
    return code;
}

int comm_check(comm *self)
{
    return self && commi_is_aborted(self) ? commi_abort_error(self) : 0;
}

/* ---- the launcher ---- */

struct launcher {
    const char *world_key, *rank_key;
    const char *also_key;  /* if not NULL, this variable must exist too */
    const char *local_key; /* the number of ranks on this host; NULL: there is none */
    const char *hosts_key; /* the number of hosts; NULL: there is none */
    const char *name;
};

/* The first entry that exists decides. srun may start one torchrun on each host; torchrun then says
 * how many ranks there are. A batch script of Slurm has SLURM_NTASKS and SLURM_PROCID 0 as well,
 * but only processes that srun started are in a step. */
static const struct launcher launchers[] = {
    {"WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", NULL, "torchrun"},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL, "OMPI_COMM_WORLD_LOCAL_SIZE", NULL,
     "mpirun"},
    {"PMI_SIZE", "PMI_RANK", NULL, "MPI_LOCALNRANKS", NULL, "mpirun"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", NULL, NULL, "SLURM_STEP_NUM_NODES", "srun"},
    {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", NULL, "SLURM_STEP_NUM_NODES", "srun"},
    {"MPI_LOCALNRANKS", "MPI_LOCALRANKID", NULL, NULL, NULL, "mpirun"},
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

/* True if a variable exists and has this number. */
static bool is_number(const char *key, uint32_t number)
{
    char *end;
    const char *text = key ? getenv(key) : NULL;
    return text && *text && strtoul(text, &end, 10) == number && *end == '\0';
}

static int use_launcher(const struct launcher *launcher, commi_launch *out)
{
    out->launcher = launcher->name;
    /* the rank first: it decides who prints an error */
    TRY(read_number(launcher->rank_key, &out->rank));
    TRY(read_number(launcher->world_key, &out->world));
    out->is_launched = out->world > 1;
    out->is_torchrun = strcmp(launcher->name, "torchrun") == 0;
    out->is_one_host =
        is_number(launcher->local_key, out->world) || is_number(launcher->hosts_key, 1);
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
