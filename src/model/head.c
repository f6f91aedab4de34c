/* The head: final norm, output matrix, cross-entropy. It goes through the rows in chunks, so logits
 * for all tokens never exist at once. Its backward makes losses and gradients in one pass.
 *
 * A head in parts has the final norm alone, then output parts, each with its columns of the logits.
 * These run twice in the backward:
 *
 *   norm | logits .. softmax statistics; losses | [again, from last to first: gradients] | norm'
 *
 * The gradient of the normed rows is then summed in fp32 over the parts and rounded once. Allocates
 * nothing. */
#include <math.h>

#include "base/size.h"
#include "model/model_internal.h"

/* A call of a whole head, or of a pass of one of its parts. */
struct head_run {
    const model *self;
    void *stream;
    const model_call *call;
    const modeli_part *part; /* NULL: whole */
    modeli_head_layout saved;
    modeli_chunk_layout temp;
    /* The output matrix: its columns of the logits, and the place of its weights and biases. */
    uint64_t columns;
    modeli_params at;
    uint32_t unit;
    /* Backward: the gradient of the normed rows, [N,C]; fp32 in a part. NULL: not wanted. */
    void *grad;
};

static struct head_run start(const model *self, void *stream, const model_call *call,
                             const modeli_part *part)
{
    const modeli_layer *output = modeli_output_of(self);
    struct head_run run = {.self = self, .stream = stream, .call = call, .part = part};
    run.columns = part ? part->rows : self->spec.vocab_size;
    run.at = part ? part->at[0] : output->at;
    run.unit = part ? 0 : output->unit;
    modeli_head_layout_of(self, &run.saved);
    modeli_chunk_layout_of(self, run.columns, &run.temp);
    return run;
}

static const void *matrix_of(const struct head_run *run)
{
    return modeli_param(run->self, run->call->params[run->unit], run->at.weight);
}

static const void *bias_of(const struct head_run *run)
{
    return modeli_param(run->self, run->call->params[run->unit], run->at.bias);
}

static void *saved_at(const struct head_run *run, uint64_t offset_bytes)
{
    return modeli_at(run->call->saved, offset_bytes);
}

/* ---- the final norm ---- */

/* Divides rows by spec.logits_scaling: the normed rows, which then give the divided logits, and the
 * gradient of those. */
static int divide(const struct head_run *run, uint64_t rows, void *data)
{
    double by = run->self->spec.logits_scaling;
    return by == 0 ? 0
                   : modeli_scale_rows(run->self, run->stream, rows, (float)(1 / by), data, data);
}

static int norm_rows(const struct head_run *run, uint64_t rows, const void *input, void *output,
                     float *mean, float *rstd)
{
    const modeli_layer *norm = modeli_final_norm_of(run->self);
    norm_args args = modeli_norm_args(norm, run->call, norm->at);
    args.rows = rows;
    args.input = input;
    args.output = output;
    args.mean = args.kind == NORM_LAYER ? mean : NULL;
    args.rstd = rstd;
    TRY(run->self->ops->norm_forward(run->self->context, run->stream, &args));
    return divide(run, rows, output);
}

static int norm_all(const struct head_run *run)
{
    return norm_rows(run, modeli_rows(run->self), run->call->input,
                     saved_at(run, run->saved.normed), saved_at(run, run->saved.mean),
                     saved_at(run, run->saved.rstd));
}

/* The gradient, in place on `grad` [N,C]. */
static int norm_backward(const struct head_run *run, void *grad, void *scratch)
{
    const modeli_layer *norm = modeli_final_norm_of(run->self);
    norm_grad_args args = modeli_norm_grad_args(norm, run->call, norm->at);
    TRY(divide(run, args.rows, grad));
    args.input = run->call->input;
    args.mean = args.kind == NORM_LAYER ? saved_at(run, run->saved.mean) : NULL;
    args.rstd = saved_at(run, run->saved.rstd);
    args.output_grad = args.input_grad = grad;
    args.scratch = scratch;
    return run->self->ops->norm_backward(run->self->context, run->stream, &args);
}

/* ---- logits ---- */

/* The loss of a chunk of logits of a whole head, and in a backward their gradient. */
static int chunk_losses(const struct head_run *run, uint64_t row, uint64_t rows, void *logits,
                        void *logits_grad)
{
    const model *self = run->self;
    cross_entropy_args args = {
        .type = self->type,
        .rows = rows,
        .vocab = run->columns,
        .stride = modeli_logits_stride(run->columns),
        .logits = logits,
        .targets = run->call->targets + row,
        .losses = run->call->losses + row,
        .logits_grad = logits_grad,
        .grad_scale = run->call->grad_scale,
        .soft_cap = (float)self->spec.logits_soft_cap,
    };
    return self->ops->cross_entropy(self->context, run->stream, &args);
}

static softmax_part_args softmax(const struct head_run *run, uint64_t row, uint64_t rows)
{
    return (softmax_part_args){
        .type = run->self->type,
        .rows = rows,
        .targets = run->call->targets + row,
        .largest = (float *)saved_at(run, run->saved.largest) + row,
        .sum = (float *)saved_at(run, run->saved.sum) + row,
        .target_logit = (float *)saved_at(run, run->saved.target_logit) + row,
        .grad_scale = run->call->grad_scale,
        .soft_cap = (float)run->self->spec.logits_soft_cap,
    };
}

/* The same of a part: statistics of the softmax, and in a backward the gradient. */
static int part_losses(const struct head_run *run, uint64_t row, uint64_t rows, void *logits,
                       void *logits_grad)
{
    const model *self = run->self;
    softmax_part_args args = softmax(run, row, rows);
    args.columns = run->columns;
    args.column_begin = run->part->row_begin;
    args.stride = modeli_logits_stride(run->columns);
    args.is_first = run->part->is_first;
    args.logits = logits;
    args.logits_grad = logits_grad;
    return logits_grad == NULL ? self->ops->softmax_part(self->context, run->stream, &args)
                               : self->ops->cross_entropy_part(self->context, run->stream, &args);
}

/* One chunk of rows [row, row + rows). In the backward also the gradients of the output matrix and
 * of the normed rows, each only if it is wanted. */
static int run_chunk(const struct head_run *run, uint64_t row, uint64_t rows, bool backward)
{
    const model *self = run->self;
    const kernel_ops *ops = self->ops;
    const model_call *call = run->call;
    const modeli_matrix *chunks = run->part ? run->part->products : self->products->logits;
    kernel_matmul *const *products = chunks[rows == self->chunk_rows ? 0 : 1].matmul;
    uint64_t elem = row * self->spec.hidden_size, elem_bytes = dtype_bytes(self->type);
    const void *normed = saved_at(run, run->saved.normed + elem * elem_bytes);
    void *logits = modeli_at(call->temp, run->temp.logits), *logits_grad = NULL;
    void *scratch =
        modeli_at(call->temp, backward ? run->temp.backward_scratch : run->temp.forward_scratch);
    if (backward)
        logits_grad = modeli_at(call->temp, run->temp.logits_grad);
    TRY(ops->matmul(products[MODELI_FORWARD], run->stream, normed, matrix_of(run), bias_of(run),
                    logits, scratch));
    TRY((run->part ? part_losses : chunk_losses)(run, row, rows, logits, logits_grad));
    if (!backward)
        return 0;
    float *matrix_grad = modeli_grad(call->grads[run->unit], run->at.weight);
    float *bias_grad = modeli_grad(call->grads[run->unit], run->at.bias);
    if (run->grad != NULL)
        TRY(ops->matmul(products[MODELI_INPUT_GRAD], run->stream, logits_grad, matrix_of(run), NULL,
                        modeli_at(run->grad, elem * (run->part ? sizeof(float) : elem_bytes)),
                        scratch));
    if (matrix_grad == NULL)
        return 0;
    if (bias_grad != NULL)
        TRY(ops->bias_backward(self->context, run->stream, self->type, rows, run->columns,
                               modeli_logits_stride(run->columns), logits_grad, bias_grad,
                               scratch));
    bool begins = call->fresh[run->unit] && row == 0;
    return ops->matmul(products[begins ? MODELI_FIRST : MODELI_WEIGHT], run->stream, logits_grad,
                       normed, NULL, matrix_grad, scratch);
}

static int run_chunks(const struct head_run *run, bool backward)
{
    uint64_t rows = modeli_rows(run->self), chunk = run->self->chunk_rows;
    for (uint64_t row = 0; row < rows; row += chunk) {
        modeli_pause(run->call);
        TRY(run_chunk(run, row, size_min(chunk, rows - row), backward));
    }
    return 0;
}

/* ---- passes ---- */

/* The buffer for the gradient of the normed rows, and then for that of the input. It is in temp if
 * only the norm needs it, and NULL if nobody needs it. */
static void *normed_grad(const model *self, const model_call *call)
{
    if (call->input_grad != NULL)
        return call->input_grad;
    if (call->grads[modeli_final_norm_of(self)->unit] == NULL)
        return NULL;
    return modeli_at(call->temp, modeli_unwanted_grad(self, &self->products->head));
}

static int whole(struct head_run *run, bool backward)
{
    if (backward)
        run->grad = normed_grad(run->self, run->call);
    TRY(norm_all(run));
    TRY(run_chunks(run, backward));
    if (run->grad == NULL)
        return 0;
    return norm_backward(run, run->grad, modeli_at(run->call->temp, run->temp.backward_scratch));
}

static int norm_part(const struct head_run *run, bool backward)
{
    const model *self = run->self;
    if (!backward)
        return norm_all(run);
    TRY(self->ops->convert(self->context, run->stream, saved_at(run, run->saved.normed_grad),
                           DTYPE_FP32, run->call->input_grad, self->type,
                           modeli_rows(self) * self->spec.hidden_size));
    return norm_backward(run, run->call->input_grad, run->call->temp);
}

int modeli_head(model *self, void *stream, const model_call *call, const modeli_part *part,
                bool backward)
{
    struct head_run run = start(self, stream, call, part);
    if (part == NULL)
        return whole(&run, backward);
    if (part->owner == MODELI_FINAL_NORM)
        return norm_part(&run, backward);
    run.grad = saved_at(&run, run.saved.normed_grad);
    TRY(run_chunks(&run, backward));
    if (!part->is_last || backward)
        return 0;
    softmax_part_args args = softmax(&run, 0, modeli_rows(self));
    args.losses = call->losses;
    return self->ops->softmax_losses(self->context, stream, &args);
}

/* A head in parts keeps the normed row in `saved` from pass to pass. */
int modeli_row_logits(model *self, void *stream, const model_call *call, const modeli_part *part,
                      uint64_t row, float *logits)
{
    struct head_run run = start(self, stream, call, part);
    uint64_t row_bytes = self->spec.hidden_size * dtype_bytes(self->type);
    const void *input = (const char *)call->input + row * row_bytes;
    void *normed = saved_at(&run, run.saved.normed);
    const modeli_matrix *product = part ? &part->row_logits : &self->products->row_logits;
    if (part == NULL) {
        normed = modeli_at(call->temp, run.temp.row_normed);
        TRY(norm_rows(&run, 1, input, normed, modeli_at(call->temp, run.temp.row_mean),
                      modeli_at(call->temp, run.temp.row_rstd)));
    } else if (part->owner == MODELI_FINAL_NORM) {
        return norm_rows(&run, 1, input, normed, saved_at(&run, run.saved.mean),
                         saved_at(&run, run.saved.rstd));
    }
    return self->ops->matmul(product->matmul[MODELI_FORWARD], stream, normed, matrix_of(&run),
                             bias_of(&run), logits + (part ? part->row_begin : 0),
                             modeli_at(call->temp, run.temp.forward_scratch));
}

void model_cap_logits(const model *self, float *logits)
{
    float cap = (float)self->spec.logits_soft_cap;
    for (uint64_t v = 0; v < self->spec.vocab_size && cap != 0; v++)
        logits[v] = cap * tanhf(logits[v] / cap);
}

/* ---- products, scratch and costs of the output matrix ---- */

static int output_prepare(model *self, modeli_layer *layer)
{
    (void)layer;
    return modeli_make_logits(self, NULL, self->products->logits, &self->products->row_logits);
}

static void output_scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const model *self = layer->net;
    const modeli_matrix *chunks = part ? part->products : self->products->logits;
    const modeli_matrix *row = part ? &part->row_logits : &self->products->row_logits;
    modeli_product_scratch(self, &chunks[0], bytes);
    modeli_product_scratch(self, &chunks[1], bytes);
    bytes[1] = size_max(bytes[0], bytes[1]); /* a backward makes the logits again */
    if (layer->at.bias != MODELI_ABSENT)
        bytes[1] = size_max(bytes[1], self->ops->bias_backward_scratch_bytes(
                                          self->context, chunks[0].rows, chunks[0].out));
    modeli_product_scratch(self, row, bytes);
}

static uint64_t output_columns(const modeli_layer *layer)
{
    return layer->matrix_rows;
}

/* The logits, chunk by chunk of rows, and the work on them; a backward makes them again. */
static void output_costs(const modeli_layer *layer, const modeli_costing *of)
{
    const model *self = layer->net;
    bool backward = of->turn == MODELI_TURN_BACKWARD;
    for (int last = 0; last < 2 && of->turn != MODELI_TURN_RECOMPUTE; last++) {
        modeli_matrix chunk = modeli_logits_matrix(self, of->part, last);
        uint64_t count = last ? 1 : modeli_rows(self) / self->chunk_rows;
        if (chunk.rows == 0 || count == 0)
            continue;
        modeli_cost_product(self, &chunk, MODELI_FORWARD, count, of->costs);
        modeli_cost_rows(MODEL_ROWS_LOSS, chunk.rows * count, chunk.out,
                         sizeof(float) + (backward ? dtype_bytes(self->type) : 0), of->costs);
        if (backward && of->work.inner)
            modeli_cost_product(self, &chunk, MODELI_INPUT_GRAD, count, of->costs);
        if (backward && of->work.weights)
            modeli_cost_product(self, &chunk, MODELI_WEIGHT, count, of->costs);
        if (backward && of->work.weights && chunk.has_bias)
            modeli_cost_rows(MODEL_ROWS_PLAIN, chunk.rows * count, chunk.out,
                             dtype_bytes(self->type), of->costs);
    }
}

const modeli_kind modeli_output = {
    .has_matrix = true,
    .has_product = true,
    .out = output_columns,
    .prepare = output_prepare,
    .scratch = output_scratch,
    .costs = output_costs,
};
