/* Makes all ranks plan alike: rank 0 reads the job and the others get its text, they compare what
 * their programs say of a module, exchange the inputs of the plan, and later compare the compiled
 * programs. Collective, on the thread that sets up. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "config/config.h"
#include "setup/setup_internal.h"

/* ---- the job ---- */

int setup_keep_job_file(const char *path, const char *run_dir)
{
    char copy[FILE_PATH_BYTES], first[FILE_PATH_BYTES], second[FILE_PATH_BYTES];
    struct stat given, written;
    TRY(file_join(copy, sizeof copy, run_dir, "job.json"));
    TRY(file_join(first, sizeof first, run_dir, "state/manifest-0"));
    TRY(file_join(second, sizeof second, run_dir, "state/manifest-1"));
    if (stat(path, &given) < 0 || stat(copy, &written) < 0 || access(first, F_OK) == 0 ||
        access(second, F_OK) == 0 || given.st_dev != written.st_dev ||
        given.st_ino != written.st_ino)
        return 0;
    return err_set(
        ERR_CONFIG,
        "run.dir: a run in %s would write its own copy of the job over %s, and there is no "
        "run's state in it yet, or any more: name another run.dir, or rename that file",
        run_dir, path);
}

/* Rank 0 sends this before the job's text. */
struct job_head {
    uint64_t text_bytes;
    uint64_t fresh; /* 0 or 1: run.fresh, which is not part of the text */
};

/* Sends rank 0's text to all ranks; the others read the job from it. */
static int share_text(comm *ranks, const char *path, uint64_t text_bytes, char *text, job **out)
{
    bool is_first = comm_get_rank(ranks) == 0;
    TRY(comm_broadcast(ranks, "the job", text, text_bytes));
    int rc = 0;
    if (!is_first) {
        enum log_level level = log_get_level();
        log_set_level(LOG_QUIET); /* rank 0 has already logged the warnings */
        rc = job_read(path, text, NULL, 0, comm_get_world(ranks), out);
        log_set_level(level);
    }
    return comm_agree(ranks, "reading the job", rc);
}

int setup_read_job(comm *ranks, const char *path, const char *given, const char *const *set,
                   uint32_t set_count, job **out, bool *fresh)
{
    bool is_first = comm_get_rank(ranks) == 0;
    struct job_head head = {.text_bytes = 0};
    job *asked = NULL;
    char *text = NULL;
    int rc = 0;
    *out = NULL;
    *fresh = false;
    if (is_first)
        rc = job_read(path, given, set, set_count, comm_get_world(ranks), &asked);
    if (rc == 0 && is_first && !given)
        rc = setup_keep_job_file(path, asked->run.dir);
    TRY_GOTO(rc, comm_agree(ranks, "reading the job", rc), failed);
    if (is_first)
        head = (struct job_head){.text_bytes = strlen(asked->text), .fresh = asked->run.fresh};
    TRY_GOTO(rc, comm_broadcast(ranks, "the job", &head, sizeof head), failed);
    text = mem_alloc(head.text_bytes + 1, 1, "job text");
    TRY_GOTO(rc, comm_agree(ranks, "reading the job", text ? 0 : -ENOMEM), failed);
    if (is_first)
        memcpy(text, asked->text, head.text_bytes);
    TRY_GOTO(rc, share_text(ranks, path, head.text_bytes, text, &asked), failed);
    mem_free(text);
    comm_set_timeouts(ranks, asked->comm.timeout_seconds, asked->comm.exit_seconds);
    *fresh = head.fresh != 0;
    *out = asked;
    return 0;
failed:
    mem_free(text);
    job_destroy(asked);
    return rc;
}

/* ---- what the programs of the ranks must have alike ---- */

static int compare_lines(uint32_t rank, const char *own, const char *first)
{
    enum { SHOWN_BYTES = 300 };
    while (*own || *first) {
        uint64_t own_bytes = strcspn(own, "\n"), first_bytes = strcspn(first, "\n");
        if (own_bytes != first_bytes || memcmp(own, first, own_bytes) != 0)
            return err_set(ERR_INPUT,
                           "rank %u has %.*s, and rank 0 has %.*s: all ranks must train the same "
                           "parameters in the same units and the same order, which is that of the "
                           "first batch",
                           rank, (int)size_min(*own ? own_bytes : SHOWN_BYTES, SHOWN_BYTES),
                           *own ? own : "nothing more",
                           (int)size_min(*first ? first_bytes : SHOWN_BYTES, SHOWN_BYTES),
                           *first ? first : "nothing more");
        own += own_bytes + (own[own_bytes] != '\0');
        first += first_bytes + (first[first_bytes] != '\0');
    }
    return 0;
}

int setup_compare_lines(comm *ranks, const char *lines)
{
    static const char what[] = "comparing the modules";
    uint64_t bytes = strlen(lines) + 1;
    TRY(comm_broadcast(ranks, what, &bytes, sizeof bytes));
    char *first = mem_alloc(bytes, 1, "rank 0's lines");
    int rc = comm_agree(ranks, what, first ? 0 : -ENOMEM);
    if (rc == 0 && comm_get_rank(ranks) == 0)
        memcpy(first, lines, bytes);
    if (rc == 0)
        rc = comm_broadcast(ranks, what, first, bytes);
    if (rc == 0)
        rc = comm_agree(ranks, what, compare_lines(comm_get_rank(ranks), lines, first));
    mem_free(first);
    return rc;
}

/* ---- the inputs of the plan ---- */

struct plan_inputs {
    uint64_t budget_bytes[TIER_COUNT];
    /* differs between ranks whose kernels or thread counts differ */
    uint64_t workspace_bytes, matrix_scratch_bytes;
    plan_machine machine;
    uint64_t kernels_hash; /* hash of the backend's description */
    uint64_t stage_count, pass_count;
};

/* Takes budgets that hold on every rank, a workspace that is large enough for each rank, and rank
 * 0's figures of the machine. */
static void join_inputs(const struct plan_inputs *all, uint32_t world, plan_job *plan)
{
    for (int a = 0; a < TIER_COUNT; a++)
        for (uint32_t r = 0; r < world; r++)
            plan->budget_bytes[a] = size_min(plan->budget_bytes[a], all[r].budget_bytes[a]);
    for (uint32_t r = 0; r < world; r++) {
        plan->workspace_bytes = size_max(plan->workspace_bytes, all[r].workspace_bytes);
        plan->matrix_scratch_bytes =
            size_max(plan->matrix_scratch_bytes, all[r].matrix_scratch_bytes);
    }
    plan->machine = all[0].machine;
}

/* False if the ranks have different models. That is reported later, when their programs are
 * compared. */
static bool have_equal_passes(const struct plan_inputs *all, uint32_t world)
{
    for (uint32_t r = 1; r < world; r++)
        if (all[r].stage_count != all[0].stage_count || all[r].pass_count != all[0].pass_count)
            return false;
    return true;
}

static void copy_time(double *own, double **list, bool to_list)
{
    *(to_list ? *list : own) = *(to_list ? own : *list);
    ++*list;
}

/* Copies the times of all stages, two each, and then of all passes, to the list or from it. */
static void copy_times(struct setup *self, double *list, bool to_list)
{
    for (uint32_t s = 0; s < self->plan.stage_count; s++) {
        copy_time(&self->stages[s].recompute_seconds, &list, to_list);
        copy_time(&self->stages[s].selective_seconds, &list, to_list);
    }
    for (uint64_t p = 0; p < self->net->pass_count; p++)
        copy_time(&self->net->passes[p].seconds, &list, to_list);
}

/* Gives all ranks rank 0's times of the passes. Ranks with another machine file, other cores or
 * another math library have others. */
static int share_times(struct setup *self)
{
    uint64_t count = 2 * (uint64_t)self->plan.stage_count + self->net->pass_count;
    double *list = mem_alloc(count, sizeof *list, "times of the passes");
    int rc = comm_agree(self->ranks.comm, "times of the passes", list ? 0 : -ENOMEM);
    if (rc == 0) {
        copy_times(self, list, true);
        rc = comm_broadcast(self->ranks.comm, "times of the passes", list, count * sizeof *list);
        copy_times(self, list, false);
    }
    mem_free(list);
    return rc;
}

int setupi_share_inputs(struct setup *self)
{
    const struct ranks *ranks = &self->ranks;
    /* without a comm the plan is not run: this process's figures hold */
    if (ranks->world == 1 || !ranks->comm)
        return 0;
    const char *kernels = self->ops->describe(self->context);
    struct plan_inputs own, *all = mem_alloc(ranks->world, sizeof *all, "plan inputs");
    if (!all)
        return -ENOMEM;
    memset(&own, 0, sizeof own);
    memcpy(own.budget_bytes, self->plan.budget_bytes, sizeof own.budget_bytes);
    own.workspace_bytes = self->plan.workspace_bytes;
    own.matrix_scratch_bytes = self->plan.matrix_scratch_bytes;
    own.machine = self->plan.machine;
    own.kernels_hash = XXH3_64bits(kernels, strlen(kernels));
    own.stage_count = self->plan.stage_count;
    own.pass_count = self->net->pass_count;
    int rc = comm_exchange(ranks->comm, "budgets", &own, sizeof own, all);
    if (rc == 0) {
        join_inputs(all, ranks->world, &self->plan);
        if (own.kernels_hash != all[0].kernels_hash)
            log_warn(
                "rank %u computes with %s, rank 0 with other kernels: if the ranks change places, "
                "the run gives other bits",
                ranks->rank, kernels);
        rc = comm_broadcast(ranks->comm, "identity", self->identity, sizeof self->identity);
        self->fingerprint = XXH3_64bits(self->identity, strlen(self->identity));
    }
    if (rc == 0 && have_equal_passes(all, ranks->world))
        rc = share_times(self);
    mem_free(all);
    return rc;
}

int setupi_compare_programs(const struct setup *self)
{
    const struct ranks *ranks = &self->ranks;
    uint64_t own[PROGRAM_KIND_COUNT], all[PROGRAM_KIND_COUNT];
    if (ranks->world == 1 || !ranks->comm)
        return 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        all[k] = own[k] = program_hash(&self->set.programs[k]);
    TRY(comm_broadcast(ranks->comm, "program hashes", all, sizeof all));
    int rc = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++)
        if (own[k] != all[k])
            rc = err_set(
                ERR_INTERNAL,
                "the program \"%s\" differs from rank 0's (%016llx, not %016llx), so their "
                "collectives would not meet: start all ranks with the same sluice and the same job",
                program_kind_name((enum program_kind)k), (unsigned long long)own[k],
                (unsigned long long)all[k]);
    return comm_agree(ranks->comm, "program hashes", rc);
}
