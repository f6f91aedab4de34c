/* The drives of a run, and how many of their bytes the plan may use. Makes nothing on the
 * drives. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "setup/setup_internal.h"
#include "tiers/slab.h"

/* Makes a path absolute, so that it is valid from any directory. */
int setup_make_absolute(char path[FILE_PATH_BYTES])
{
    char given[FILE_PATH_BYTES], base[FILE_PATH_BYTES];
    if (path[0] == '/' || path[0] == '\0')
        return 0;
    snprintf(given, sizeof given, "%s", path);
    if (!getcwd(base, sizeof base))
        return err_errno(errno, "the working directory");
    int rc = file_join(path, FILE_PATH_BYTES, base, given);
    return rc < 0 ? err_prefix(ERR_CONFIG, "a drive") : 0;
}

/* The directories of the slabs: the job's drives, or the run directory. */
int setup_job_drives(const struct job *asked, slab_drive drives[DRIVES_MAX], uint32_t *count)
{
    *count = asked->tiers.nvme_count;
    for (uint32_t d = 0; d < *count; d++) {
        snprintf(drives[d].path, sizeof drives[d].path, "%s", asked->tiers.nvme[d].path);
        drives[d].budget_bytes = asked->tiers.nvme[d].budget_bytes;
    }
    if (*count == 0) {
        *count = 1;
        int length = snprintf(drives[0].path, sizeof drives[0].path, "%s/state", asked->run.dir);
        if (length < 0 || (size_t)length >= sizeof drives[0].path)
            return err_set(ERR_CONFIG, "run.dir is longer than %d bytes", FILE_PATH_BYTES - 7);
    }
    for (uint32_t d = 0; d < *count; d++)
        TRY(setup_make_absolute(drives[d].path));
    return 0;
}

/* Replaces the placeholders of ranks in the drives' paths by this rank's numbers. */
static int expand_drives(struct setup *self)
{
    const struct ranks *ranks = &self->ranks;
    for (uint32_t d = 0; d < self->drive_count; d++) {
        char *path = self->drives[d].path;
        memcpy(self->drive_names[d], path, sizeof self->drive_names[d]);
        if (!manifest_expand_path(self->drive_names[d], ranks->rank, ranks->local_rank, ranks->host,
                                  path, FILE_PATH_BYTES))
            return err_set(ERR_CONFIG, "the path of a drive, %.100s..., is longer than %d bytes",
                           self->drive_names[d], FILE_PATH_BYTES - 1);
    }
    return 0;
}

uint32_t setup_drive_sharers(const struct ranks *ranks, const char *path)
{
    return strstr(path, "{rank}") || strstr(path, "{local_rank}") ? 1 : ranks->local_world;
}

/* If several ranks of the host share a drive, each one's budget is an equal part: of the stated
 * budget, or of the free space if that is less or no budget is stated. The free space is read now,
 * because the ranks that make their slabs first change it. */
static int divide_drives(struct setup *self)
{
    for (uint32_t d = 0; d < self->drive_count; d++) {
        uint64_t bytes, sharers = setup_drive_sharers(&self->ranks, self->drive_names[d]);
        if (sharers == 1)
            continue;
        TRY(slab_capacity(&self->drives[d], 1, &bytes));
        self->drives[d].budget_bytes = (bytes + SLAB_HEADER_BYTES) / sharers;
        self->plan.nvme_sharers = (uint32_t)sharers;
    }
    return 0;
}

void setupi_fill_overhead(struct setup *self)
{
    self->plan.nvme_stripe_bytes = SLAB_STRIPE_BYTES;
    self->plan.nvme_overhead_bytes = self->drive_count * (uint64_t)SLAB_HEADER_BYTES +
                                     (self->drive_count - 1) * (uint64_t)SLAB_STRIPE_BYTES;
}

int setupi_make_drives(struct setup *self, const struct setup_options *options)
{
    const struct job *asked = self->job;
    if (options->found && options->as_it_lies) {
        self->drive_count = options->found->slabs.drive_count;
        for (uint32_t d = 0; d < self->drive_count; d++)
            snprintf(self->drives[d].path, sizeof self->drives[d].path, "%s",
                     options->found->slabs.drives[d]);
        self->plan.budget_bytes[TIER_NVME] = options->found->total_bytes;
        return expand_drives(self);
    }
    if (options->params_alone && asked->tiers.nvme_count == 0)
        return 0;
    TRY(setup_job_drives(asked, self->drives, &self->drive_count));
    TRY(expand_drives(self));
    uint64_t capacity;
    TRY(divide_drives(self));
    TRY(slab_capacity(self->drives, self->drive_count, &capacity));
    /* A slab's header and up to a stripe per drive cannot be used. The budget itself is not lowered
     * by them: it stays the figure that the user knows, so that a refusal names a figure to set. */
    uint64_t header_bytes = (uint64_t)self->drive_count * SLAB_HEADER_BYTES;
    uint64_t bytes = capacity + header_bytes, stated = 0;
    bool is_stated = asked->tiers.nvme_count > 0;
    for (uint32_t d = 0; d < asked->tiers.nvme_count; d++) {
        stated += asked->tiers.nvme[d].budget_bytes /
                  setup_drive_sharers(&self->ranks, self->drive_names[d]);
        is_stated = is_stated && asked->tiers.nvme[d].budget_bytes > 0;
    }
    if (options->test && options->test->keeps_no_bytes)
        bytes = stated;
    self->plan.budget_bytes[TIER_NVME] = is_stated ? size_min(bytes, stated) : bytes;
    if (!is_stated || bytes < stated) /* their free space is the limit, not their budgets */
        self->plan.nvme_advice = "the drives of tiers.nvme have no more free space: free some, or "
                                 "name another drive";
    setupi_fill_overhead(self);
    return 0;
}
