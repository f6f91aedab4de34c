/* The weights that a new run begins with: those of model.hf, or the initial weights of the model.
 * See hf.h. */
#include <inttypes.h>

#include "base/log.h"
#include "base/size.h"
#include "format/hf_checkpoint.h"
#include "hf/hf.h"

static const uint64_t report_ns = 5000000000;

/* ERR_INPUT on all ranks if one of them sees another checkpoint than rank 0. */
static int compare_weights(const struct hf_weights *from, const struct ranks *ranks,
                           const char *dir)
{
    uint64_t own = hf_weights_identity(from), first = own;
    TRY(ranks_from_rank0(ranks, "checkpoint", &first, sizeof first));
    int rc = 0;
    if (own != first)
        rc = err_set(ERR_INPUT,
                     "model.hf: %s has other tensors on %s than on rank 0's host: all ranks read "
                     "one checkpoint",
                     dir, ranks->host);
    return ranks_agree(ranks, "checkpoint", rc);
}

int hf_first_open(struct hf_first_weights *self, const struct ranks *ranks, const struct job *asked,
                  const model *net)
{
    const char *dir = asked->hf;
    if (dir[0] == '\0' || self->from)
        return 0;
    int rc = hf_weights_open(dir, net, &self->from);
    if (rc == 0 && asked->lora.from[0])
        rc = hf_weights_take_adapters(self->from, asked->lora.from);
    if (rc == 0 && ranks->rank == 0) /* which copies them when the run has begun */
        rc = hf_check_side_files(dir);
    TRY(ranks_agree(ranks, "checkpoint", rc));
    TRY(compare_weights(self->from, ranks, dir));
    if (ranks->rank == 0)
        log_info("the run begins with the weights of %s (tensors %016" PRIx64 ")", dir,
                 hf_weights_identity(self->from));
    if (ranks->rank == 0 && asked->lora.from[0])
        log_info("the run begins with the adapters of %s, rank %" PRIu64, asked->lora.from,
                 net->spec.lora.rank);
    return 0;
}

static void report(struct hf_first_weights *self, bool is_end)
{
    uint64_t now_ns = clock_ns();
    if (!self->logs_progress || (!is_end && now_ns - self->reported_ns < report_ns))
        return;
    self->reported_ns = now_ns;
    char done[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    double seconds = (double)(now_ns - self->begin_ns) * 1e-9;
    double rate = seconds > 0 ? (double)self->done_bytes * 1e-9 / seconds : 0;
    if (is_end)
        log_info("the weights are there: %s of fp32 in %.1f s (%.2f GB/s)",
                 size_format(self->done_bytes, done), seconds, rate);
    else
        log_info("reading the weights of the checkpoint: %s of %s of fp32 (%.2f GB/s)",
                 size_format(self->done_bytes, done), size_format(self->total_bytes, total), rate);
}

void hf_first_begin(struct hf_first_weights *self, const struct setup *setup, bool logs_progress)
{
    self->setup = setup;
    self->logs_progress = logs_progress;
    self->begin_ns = self->reported_ns = clock_ns();
    self->done_bytes = self->total_bytes = 0;
    for (uint32_t u = 0; u < setup->net->unit_count; u++) { /* each rank packs whole units */
        const model_unit *unit = &setup->net->units[u];
        self->total_bytes +=
            sizeof(float) * (unit->is_packed ? unit->param_count
                                             : plan_rest_elems(&setup->plan, STATE_OPTIMIZER, u));
    }
}

int hf_first_elems(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *master)
{
    struct hf_first_weights *self = user;
    const struct setup *setup = self->setup;
    if (!self->from || !hf_weights_has_all(self->from, unit))
        model_init_elems(setup->net, unit, setup->job->run.seed, begin, count, master);
    if (!self->from)
        return 0;
    TRY(hf_weights_read(self->from, unit, begin, count, master));
    self->done_bytes += sizeof(float) * count;
    report(self, false);
    return 0;
}

int hf_first_codes(void *user, uint32_t unit, uint32_t tensor, uint64_t matrix, void *codes,
                   void *scales)
{
    struct hf_first_weights *self = user;
    const model_tensor *of = &self->setup->net->units[unit].tensors[tensor];
    if (!self->from)
        return 0;
    int is_copied = hf_weights_codes(self->from, unit, tensor, matrix, codes, scales);
    TRY(is_copied);
    if (!is_copied)
        return 0;
    self->done_bytes += sizeof(float) * of->stored_rows * of->columns;
    report(self, false);
    return 1;
}

void hf_first_end(struct hf_first_weights *self)
{
    if (self->from)
        report(self, true);
    self->setup = NULL;
}

void hf_first_close(struct hf_first_weights *self)
{
    hf_weights_close(self->from);
    self->from = NULL;
}
