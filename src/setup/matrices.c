/* Muon's matrices: those of the blocks, as PyTorch sees them. Embedding and head, vectors and norms
 * have AdamW. */
#include <errno.h>
#include <inttypes.h>

#include "base/mem.h"
#include "base/size.h"
#include "setup/setup_internal.h"

/* Scratch of the products on a described machine: an estimate. */
enum { DESCRIBED_PRODUCTS_MIB = 8 };

/* The work and the memory that the units' matrices take. */
struct need {
    const kernel_ops *ops;   /* those that update */
    kernel_context *context; /* NULL: of a described machine */
    uint32_t steps;
    double flops, largest_flops; /* of one unit, and of its largest matrix */
    uint64_t scratch_bytes;      /* of the largest of all */
};

static void add_matrix(struct need *need, uint64_t rows, uint64_t columns)
{
    double m = (double)size_min(rows, columns), n = (double)size_max(rows, columns);
    double flops = need->steps * (4 * m * m * n + 2 * m * m * m);
    uint64_t small = size_min(rows, columns);
    uint64_t bytes =
        need->context
            ? need->ops->orthogonalize_scratch_bytes(need->context, rows, columns)
            : sizeof(float) * (rows * columns + small * small) + DESCRIBED_PRODUCTS_MIB * MIB;
    need->flops += flops;
    need->largest_flops = need->largest_flops < flops ? flops : need->largest_flops;
    need->scratch_bytes = size_max(need->scratch_bytes, bytes);
}

/* The working params of the largest block, so that no matrix is cut. */
static uint64_t block_bytes(const struct setup *self)
{
    const model *net = self->net;
    uint64_t largest = 0;
    for (uint32_t s = 1; s <= net->spec.num_layers; s++) {
        const struct stage *stage = &net->stages[s];
        uint64_t bytes = 0;
        for (uint32_t p = 0; p < stage->pass_count[PHASE_FORWARD]; p++)
            bytes +=
                net->units[stage->passes[PHASE_FORWARD][p].units[0]].elems * dtype_bytes(net->type);
        largest = size_max(largest, bytes);
    }
    return largest;
}

static int refuse_cut(const struct setup *self, const model_tensor *tensor)
{
    return err_set(ERR_CONFIG,
                   "optimizer.type is Muon, which updates whole matrices, but model.max_part_bytes "
                   "%" PRIu64 " cuts %s: set it to %" PRIu64 " or more, or to 0",
                   self->net->spec.max_part_bytes, tensor->name, block_bytes(self));
}

static int add_unit(struct setup *self, uint32_t unit, struct need *need)
{
    const model_unit *from = &self->net->units[unit];
    need->flops = need->largest_flops = 0;
    for (uint32_t i = 0; i < from->tensor_count && !from->is_frozen; i++) {
        const model_tensor *tensor = &from->tensors[i];
        if (!model_is_matrix(tensor))
            continue;
        if (tensor->rows != tensor->whole_rows)
            return refuse_cut(self, tensor);
        add_matrix(need, tensor->rows, tensor->columns);
    }
    /* A rank does those that its shard overlaps: about one more than its share. */
    double own = need->flops;
    if (plan_is_sharded(&self->plan, STATE_OPTIMIZER, unit))
        own = need->flops / self->ranks.world + need->largest_flops;
    self->matrix_flops[unit] = own < need->flops ? own : need->flops;
    return 0;
}

static int add_units(struct setup *self, struct need *need)
{
    const model *net = self->net;
    for (uint32_t u = 0; u < net->unit_count && net->module; u++)
        TRY(add_unit(self, u, need));
    for (uint32_t s = 1; s <= net->spec.num_layers; s++) { /* BERT's last stage is of the head */
        const struct stage *stage = &net->stages[s];
        for (uint32_t p = 0; p < stage->pass_count[PHASE_FORWARD]; p++) {
            const struct pass *pass = &stage->passes[PHASE_FORWARD][p];
            for (uint32_t i = 0; i < pass->unit_count; i++)
                TRY(add_unit(self, pass->units[i], need));
        }
    }
    return 0;
}

int setupi_find_matrices(struct setup *self)
{
    const struct job *asked = self->job;
    if (asked->optimizer.type != JOB_MUON)
        return 0;
    self->matrix_flops =
        mem_alloc(self->net->unit_count, sizeof *self->matrix_flops, "plan matrices");
    if (!self->matrix_flops)
        return -ENOMEM;
    struct need need = {.ops = &kernels_cpu,
                        .context = self->context,
                        .steps = (uint32_t)asked->optimizer.ns_steps};
    /* The engine gives the update a context of its own where it has its own cores. */
    bool has_own = !self->is_described && (self->gpu || !self->cores.update_is_compute);
    kernel_context_config config = {.thread_count = (int)self->cores.update.thread_count};
    if (self->is_described)
        need.context = NULL;
    if (has_own)
        TRY(need.ops->context_create(&config, &need.context));
    int rc = add_units(self, &need);
    if (has_own)
        need.ops->context_destroy(need.context);
    self->plan.matrix_flops = self->matrix_flops;
    self->plan.matrix_scratch_bytes = need.scratch_bytes;
    return rc;
}
