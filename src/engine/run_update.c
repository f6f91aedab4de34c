/* Runs the ops of the optimizer on tiles: updates, and Muon's two ops before them.
 *
 * Muon is for the matrices of a unit. Tensors with Adam and padding lie between them: these are
 * given to Adam in runs of elements as long as they come, unless the unit has no such tensors and
 * so no third stream. The directions of a unit are fp32, one for each element of the whole unit;
 * those of Adam's elements are zero and not used.
 *
 * Lent gradients are read in the program's memory. The squares of a piece are taken for the norm
 * just before its update, so that these gradients come from memory once.
 *
 * Called by compute.c, under its rules for threads and memory. */
#include <math.h>

#include "base/size.h"
#include "base/tile.h"
#include "engine/engine_internal.h"

/* Arguments that all optimizers need: the kernels that compute, and the tile's data. */
struct update_tile {
    const kernel_ops *ops;
    kernel_context *context;
    void *stream;
    uint64_t count;
    uint64_t tile_elems, skipped; /* a part of a tile: of the whole tile, and before the part */
    unsigned char *state;         /* of the whole tile */
    uint32_t streams;             /* streams code of the state */
    const void *grads;
    void *params;
    enum dtype grad_type, param_type;
    uint32_t unit;
    uint64_t first_elem; /* index in the whole unit, not in this rank's shard */
    update_scalars scalars;
};

/* The address of stream `idx` of the tile; of a part of a tile, that of its elements. */
static void *tile_stream(const struct update_tile *tile, uint32_t idx)
{
    return tile->state + tile_stream_offset(tile->streams, tile->tile_elems, idx) +
           tile_stream_bytes(tile->streams, tile->skipped, idx);
}

static void *tile_master(const struct update_tile *tile)
{
    return tile_stream_format(tile->streams, 0) == TILE_PARAMS ? tile->params
                                                               : tile_stream(tile, 0);
}

/* Updates all elements of the tile in one way: with Muon by Adam, for tensors that are not
 * matrices. */
static int run_plain(const struct engine *self, const struct update_tile *tile)
{
    enum job_optimizer type = self->setup->job->optimizer.type;
    update_args args = {
        .rule = type == JOB_LION      ? UPDATE_LION
                : type == JOB_ADAGRAD ? UPDATE_ADAGRAD
                                      : UPDATE_ADAM,
        .count = tile->count,
        .streams = tile_kernel_streams(tile->streams),
        .master = tile_master(tile),
        .m = type == JOB_ADAGRAD ? NULL : tile_stream(tile, 1),
        .v = type == JOB_LION ? NULL : tile_stream(tile, tile_stream_count(tile->streams) - 1),
        .grads = tile->grads,
        .grad_type = tile->grad_type,
        .params = tile->params,
        .param_type = tile->param_type,
        .scalars = &tile->scalars,
        .rounding_key = setup_rounding_key(self->step.seed, self->step.applied, tile->unit),
        .first_elem = tile->first_elem,
    };
    return tile->ops->update(tile->context, tile->stream, &args);
}

/* An op on the update lane runs on that lane's own worker, always a CPU worker, or on the core
 * worker if the lane has none. An op on the compute lane runs on the device. */
const kernel_ops *enginei_worker(const struct engine *self, const op *item,
                                 kernel_context **context)
{
    bool has_own = item->lane == LANE_UPDATE && self->update_context;
    *context = has_own ? self->update_context : self->setup->context;
    return has_own ? &kernels_cpu : self->setup->ops;
}

static struct update_tile tile_of(const struct engine *self, const program *prog, const op *item,
                                  void *stream)
{
    const struct setup *setup = self->setup;
    struct update_tile tile = {
        .stream = stream,
        .count = item->elem_count,
        .tile_elems = item->elem_count,
        .state = enginei_role_address(self, prog, item, ROLE_STATE),
        .streams = plan_streams(&setup->plan, item->unit),
        .grads = enginei_role_address(self, prog, item, ROLE_SOURCE),
        .params = enginei_role_address(self, prog, item, ROLE_TARGET),
        .grad_type = setup->job->grad_dtype,
        .param_type = setup->net->type,
        .unit = item->unit,
        .first_elem = setup_state_begin(setup, item->unit) + item->elem_begin,
        .scalars = self->step.group_scalars[setup->net->units[item->unit].group],
    };
    tile.ops = enginei_worker(self, item, &tile.context);
    if (setup->job->optimizer.type == JOB_MUON) /* the scheduled rate is that of matrices */
        tile.scalars.learning_rate =
            (float)((double)tile.scalars.learning_rate *
                    (setup->job->optimizer.adam_lr / setup->job->optimizer.lr));
    return tile;
}

/* ---- Muon ---- */

/* The scalars of the tile's unit; the scheduled rate is that of matrices. */
static const update_scalars *scalars_of(const struct engine *self, uint32_t unit)
{
    return &self->step.group_scalars[self->setup->net->units[unit].group];
}

static muon_scalars muon_scalars_of(const struct engine *self, uint32_t unit)
{
    const struct job *asked = self->setup->job;
    const update_scalars *s = scalars_of(self, unit);
    return (muon_scalars){
        .learning_rate = s->learning_rate,
        .momentum = (float)asked->optimizer.momentum,
        .weight_decay = s->weight_decay,
        .nesterov = asked->optimizer.nesterov,
        .grad_scale = s->grad_scale,
    };
}

/* The learning rate of a matrix, by the shape that Hugging Face stores. */
static float rate_of(const struct engine *self, uint32_t unit, const model_tensor *tensor)
{
    const struct setup *setup = self->setup;
    bool is_transposed =
        !setup->net->module && model_is_transposed(setup->net->spec.family, tensor->name);
    double rows = (double)(is_transposed ? tensor->columns : tensor->rows);
    double columns = (double)(is_transposed ? tensor->rows : tensor->columns);
    double factor = sqrt(rows / columns);
    switch (setup->job->optimizer.adjust_lr) {
    case JOB_ADJUST_ORIGINAL:
        factor = sqrt(fmax(1.0, rows / columns));
        break;
    case JOB_ADJUST_MATCH_RMS_ADAMW:
        factor = 0.2 * sqrt(fmax(rows, columns));
        break;
    case JOB_ADJUST_SPECTRAL_UNCLAMPED:
        break;
    }
    return (float)(factor * (double)scalars_of(self, unit)->learning_rate);
}

/* The same tile, without its first `skipped` elements, and with `count`. With 8-bit streams a part
 * begins at a multiple of TILE_CODE_BLOCK_ELEMS. */
static struct update_tile part_of(const struct update_tile *tile, uint64_t skipped, uint64_t count)
{
    struct update_tile part = *tile;
    part.skipped = tile->skipped + skipped;
    part.count = count;
    if (tile->grads)
        part.grads = (const char *)tile->grads + skipped * dtype_bytes(tile->grad_type);
    part.params = (char *)tile->params + skipped * dtype_bytes(tile->param_type);
    part.first_elem = tile->first_elem + skipped;
    return part;
}

/* Elements of the tile that belong to one matrix. */
struct matrix_part {
    const model_tensor *tensor; /* NULL: there is no other */
    uint64_t skipped, count;    /* from the first element of the tile on */
};

/* The first part of a matrix at element `from` of the tile or after it. */
static struct matrix_part next_matrix(const struct engine *self, const struct update_tile *tile,
                                      uint64_t from)
{
    const model_unit *unit = &self->setup->net->units[tile->unit];
    uint64_t begin = tile->first_elem + from, end = tile->first_elem + tile->count;
    struct matrix_part found = {.skipped = tile->count};
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        uint64_t low = size_max(begin, tensor->offset_elems);
        uint64_t high = size_min(end, tensor->offset_elems + tensor->rows * tensor->columns);
        if (low < high && model_is_matrix(tensor) && low - tile->first_elem < found.skipped)
            found = (struct matrix_part){tensor, low - tile->first_elem, high - low};
    }
    return found;
}

static int run_muon_part(const struct engine *self, const struct update_tile *tile,
                         const struct matrix_part *matrix, float *direction, bool makes_direction)
{
    struct update_tile part = part_of(tile, matrix->skipped, matrix->count);
    muon_scalars scalars = muon_scalars_of(self, tile->unit);
    muon_args args = {
        .count = part.count,
        .master = tile_stream(&part, 0),
        .m = tile_stream(&part, 1),
        .grads = part.grads,
        .grad_type = part.grad_type,
        .direction = direction + matrix->skipped,
        .rate = rate_of(self, tile->unit, matrix->tensor),
        .scalars = &scalars,
    };
    return makes_direction ? part.ops->muon_direction(part.context, part.stream, &args)
                           : part.ops->muon(part.context, part.stream, &args);
}

/* `directions`: those of the whole unit. */
static int run_muon(const struct engine *self, const struct update_tile *tile, float *directions)
{
    for (uint64_t at = 0; at < tile->count;) {
        struct matrix_part matrix = next_matrix(self, tile, at);
        struct update_tile between = part_of(tile, at, matrix.skipped - at);
        if (between.count > 0 && tile_stream_count(tile->streams) == 3)
            TRY(run_plain(self, &between));
        if (matrix.tensor)
            TRY(run_muon_part(self, tile, &matrix, directions + tile->first_elem, false));
        at = matrix.skipped + matrix.count;
    }
    return tile->ops->working_copy(tile->context, tile->stream, tile_stream(tile, 0), tile->params,
                                   tile->param_type, tile->count);
}

int enginei_run_direction(struct engine *self, const program *prog, const op *item)
{
    struct update_tile tile = tile_of(self, prog, item, NULL);
    float *direction = enginei_role_address(self, prog, item, ROLE_TARGET);
    if (self->watch && self->watch->leaves_out_updates)
        return 0;
    TRY(tile.ops->zero(tile.context, NULL, direction, tile.count * sizeof *direction));
    for (uint64_t at = 0; at < tile.count;) {
        struct matrix_part matrix = next_matrix(self, &tile, at);
        if (matrix.tensor)
            TRY(run_muon_part(self, &tile, &matrix, direction, true));
        at = matrix.skipped + matrix.count;
    }
    return 0;
}

int enginei_run_orthogonalize(struct engine *self, const program *prog, const op *item)
{
    const struct setup *setup = self->setup;
    const model_unit *unit = &setup->net->units[item->unit];
    float *directions = enginei_role_address(self, prog, item, ROLE_TARGET);
    uint64_t begin = setup_state_begin(setup, item->unit);
    uint64_t end = begin + plan_rest_elems(&setup->plan, STATE_OPTIMIZER, item->unit);
    kernel_context *context;
    const kernel_ops *ops = enginei_worker(self, item, &context);
    if (self->watch && self->watch->leaves_out_updates)
        return 0;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        bool is_own = tensor->offset_elems < end &&
                      begin < tensor->offset_elems + tensor->rows * tensor->columns;
        orthogonalize_args args = {
            .rows = tensor->rows,
            .columns = tensor->columns,
            .matrix = directions + tensor->offset_elems,
            .steps = (uint32_t)setup->job->optimizer.ns_steps,
            .scratch = enginei_role_address(self, prog, item, ROLE_WORKSPACE),
        };
        if (is_own && model_is_matrix(tensor))
            TRY(ops->orthogonalize(context, NULL, &args));
    }
    return 0;
}

/* ---- lent gradients ---- */

/* A piece of a thread: its gradients stay in the thread's cache from the squares to the update. */
enum { LENT_PIECE_ELEMS = 16 * SHARD_ELEMS_STEP };

/* The sums of squares of the part's blocks. */
static int take_squares(const struct update_tile *part, double *sums)
{
    float wide[SHARD_ELEMS_STEP];
    grad_close_args args = {
        .count = part->count,
        .accumulator = part->grads,
        .grads = (void *)(uintptr_t)part->grads, /* fp32 in place: nothing is written */
        .grad_type = DTYPE_FP32,
        .block_sums = sums,
    };
    if (part->grad_type == DTYPE_FP32)
        return part->ops->grad_close(part->context, NULL, &args);
    args.count = SHARD_ELEMS_STEP;
    args.accumulator = args.grads = wide;
    for (uint64_t at = 0; at < part->count; at += SHARD_ELEMS_STEP, args.block_sums++) {
        dtype_convert((const uint16_t *)part->grads + at, part->grad_type, wide, DTYPE_FP32,
                      SHARD_ELEMS_STEP);
        TRY(part->ops->grad_close(part->context, NULL, &args));
    }
    return 0;
}

static int update_piece(const struct engine *self, const struct update_tile *tile,
                        const struct enginei_lent *lent, double *sums, uint64_t begin, uint64_t end)
{
    float block[SHARD_ELEMS_STEP];
    for (uint64_t at = begin; at < end;) {
        struct enginei_lent_part from =
            enginei_lent_part(lent, tile->first_elem + at, end - at, block);
        struct update_tile part = part_of(tile, at, from.count);
        part.grads = from.grads;
        TRY(take_squares(&part, sums + at / SHARD_ELEMS_STEP));
        TRY(run_plain(self, &part));
        at += from.count;
    }
    return 0;
}

/* Uses the worker's team, each thread on pieces of its own: kernels use no other threads then. */
static int run_lent(const struct engine *self, const program *prog, const op *item,
                    struct update_tile *tile)
{
    const struct enginei_lent lent = {
        .unit = &self->setup->net->units[item->unit],
        .grads = enginei_role_address(self, prog, item, ROLE_LENT),
        .type = self->setup->net->type,
    };
    double *sums = enginei_role_address(self, prog, item, ROLE_NORM_SUMS);
    int64_t piece_count = (int64_t)size_div_up(tile->count, LENT_PIECE_ELEMS);
    int rc = 0;
    tile->grad_type = lent.type;
#pragma omp parallel for schedule(static) reduction(min : rc)
    for (int64_t i = 0; i < piece_count; i++) {
        uint64_t begin = (uint64_t)i * LENT_PIECE_ELEMS;
        uint64_t end = size_min(begin + LENT_PIECE_ELEMS, tile->count);
        int done = update_piece(self, tile, &lent, sums, begin, end);
        rc = done < rc ? done : rc;
    }
    return rc;
}

/* ---- updates ---- */

int enginei_run_update(struct engine *self, const program *prog, const op *item, void *stream)
{
    const struct setup *setup = self->setup;
    struct update_tile tile = tile_of(self, prog, item, stream);
    if (self->watch && self->watch->leaves_out_updates)
        return tile.ops->zero(tile.context, stream, tile.params,
                              tile.count * dtype_bytes(tile.param_type));
    if (op_operand(item, ROLE_LENT))
        return run_lent(self, prog, item, &tile);
    if (plan_has_matrices(&setup->plan, item->unit))
        return run_muon(self, &tile, enginei_role_address(self, prog, item, ROLE_INPUT));
    return run_plain(self, &tile);
}
