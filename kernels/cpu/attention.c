/* Attention, block by block: create and scratch sizes, what the two passes share, and attention
 * over kept keys and values.
 *
 * oneDNN computes the products. If the CPU has dot products of bf16, attention_dots.h computes the
 * blocks of bf16 instead, with the same bits.
 *
 * Create makes all primitives and memory objects, for the threads of a pass. A pass allocates
 * nothing. Its scratch has the parts of one worker for each thread, and is linear in T.
 *
 * Attention over kept keys and values needs no products: each row of each head is one task. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_internal.h"

enum {
    /* Query rows of a block depend on T: short sequences lose more on the diagonal, long ones gain
     * from larger products. Key rows: the scores of a block stay in a second-level cache of 1 MiB.
     * bf16 on one Zen 5 core, forward / backward in ms, as query rows x key rows:
     *   T=256 D=64:    32x512 2.3/5.4   64x512 2.0/4.3   128x512 2.0/4.6   64x256 2.1/4.7
     *   T=1024 D=100:  32x512 7.8/18.2  64x512 7.6/17.9  128x512 7.2/17.0  64x1024 7.3/17.0
     *   T=2048 D=128:  32x512 18.2/41.6 64x512 15.8/35.7 128x512 15.3/34.8 64x1024 15.4/35.6 */
    QUERY_ROWS_SHORT = 64,
    QUERY_ROWS_LONG = 128,
    LONG_TOKENS = 1024,
    KEY_ROWS = ATTENTION_KEYS_MAX,
    HEAD_DIM_MAX = 256,
    /* Query blocks for which a key block is prepared once. Forward in ms of CPU time, bf16, T=8192,
     * 2 heads, on one Zen 5 core that other programs used too, the better of 2 medians:
     *   blocks                          1      2      4      8
     *   D=64                           56.4   54.6   53.7   51.1
     *   D=128                         106.6   98.7   92.7   88.7
     *   D=128, rows 12 KiB apart      117.4  110.8   97.6   94.3 */
    TEAM_BLOCKS_MAX = 8,
    TASKS_A_THREAD = 8, /* at least, as far as there are blocks: so that all end together */
};

const attention_rows *cpui_attention_rows(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa >= CPU_AVX512)
        return &cpui_attention_rows_avx512;
    if (isa >= CPU_AVX2)
        return &cpui_attention_rows_avx2;
#endif
    return &cpui_attention_rows_base;
}

/* ---- create ---- */

/* Describes the product of one kind over r query rows and c key rows. */
static matmul_desc product_desc(const kernel_attention *attention, enum block_product kind,
                                uint64_t r, uint64_t c)
{
    const attention_desc *desc = &attention->desc;
    bool is_of_values =
        kind == PRODUCT_OUTPUT || kind == PRODUCT_PROB_GRAD || kind == PRODUCT_VALUE_GRAD;
    uint64_t dim = is_of_values ? desc->value_dim : desc->head_dim;
    uint64_t prob_stride = attention->score_stride * 4 / dtype_bytes(attention->product_type);
    matmul_desc product = {.n = dim,
                           .c_stride = attention->head_stride,
                           .accumulate = true,
                           .ab_type = attention->product_type,
                           .c_type = DTYPE_FP32};
    product.a_transposed = kind == PRODUCT_KEY_GRAD || kind == PRODUCT_VALUE_GRAD;
    product.m = product.a_transposed ? c : r;
    product.k = product.a_transposed ? r : c;
    product.a_stride = prob_stride;
    product.b_stride = dim;
    if (kind == PRODUCT_SCORES || kind == PRODUCT_PROB_GRAD) {
        product.n = c;
        product.k = dim;
        product.a_stride = dim;
        product.b_transposed = true;
        product.c_stride = attention->score_stride;
        product.accumulate = false;
    }
    return product;
}

static int shape_create(kernel_attention *attention, uint64_t rows, uint64_t cols)
{
    if (cpui_attention_shape(attention, rows, cols))
        return 0;
    block_shape *shape = &attention->shapes[attention->shape_count++];
    shape->rows = rows;
    shape->cols = cols;
    for (int kind = 0; kind < PRODUCT_COUNT; kind++) {
        matmul_desc desc = product_desc(attention, (enum block_product)kind, rows, cols);
        TRY(cpui_product_create(attention->context, &desc, 1, attention->threads,
                                &shape->products[kind]));
        attention->product_scratch_bytes = size_max(
            attention->product_scratch_bytes, cpui_product_scratch_bytes(shape->products[kind]));
    }
    return 0;
}

/* Creates every shape that the loops visit, whatever the window and the documents: whole query
 * blocks with up to key_rows keys in whole units, and the last query block with its last key block
 * and with whole ones. If attention is bidirectional, whole query blocks also see the last keys. */
static int shapes_create(kernel_attention *attention)
{
    uint64_t unit = attention->query_rows, shapes_max = 2 * (attention->key_rows / unit) + 4;
    uint64_t last_rows = attention->desc.tokens % unit;
    attention->shapes = mem_alloc(shapes_max, sizeof *attention->shapes, "attention shapes");
    if (!attention->shapes)
        return -ENOMEM;
    for (uint64_t block = 0; block < attention->query_block_count; block++) {
        uint64_t rows = attention_block_rows(attention, block);
        uint64_t keys = block * unit + rows;
        uint64_t last =
            keys % attention->key_rows ? keys % attention->key_rows : attention->key_rows;
        TRY(shape_create(attention, rows, last));
        if (keys > attention->key_rows)
            TRY(shape_create(attention, rows, attention->key_rows));
        if (!attention->desc.is_bidirectional || rows < unit || last_rows == 0)
            continue;
        if (block == 0)
            TRY(shape_create(attention, rows, last_rows));
        if (keys + last_rows <= attention->key_rows)
            TRY(shape_create(attention, rows, keys + last_rows));
    }
    return 0;
}

int cpui_attention_create(kernel_context *context, const attention_desc *desc,
                          kernel_attention **out)
{
    *out = NULL;
    TRY(attention_desc_check(desc, HEAD_DIM_MAX));
    kernel_attention *attention = mem_alloc(1, sizeof *attention, "attention");
    if (!attention)
        return -ENOMEM;
    attention->context = context;
    attention->desc = *desc;
    attention->desc.value_dim = attention_value_dim(desc);
    desc = &attention->desc;
    double rows = (double)desc->batch * (double)desc->heads * (double)desc->tokens;
    double dims = (double)(desc->head_dim + desc->value_dim);
    attention->threads = cpui_threads_for_flops(context, 2 * rows * (double)desc->tokens * dims,
                                                2 * rows * dims * (double)dtype_bytes(desc->type));
    attention->rows = cpui_attention_rows(context->isa);
    if (context->has_amx && context->has_bf16_products && cpui_attention_amx_takes(desc)) {
        attention->by_tiles = true;
        attention->forward_bytes = cpui_attention_amx_forward_bytes(desc);
        attention->backward_bytes = cpui_attention_amx_backward_bytes(desc);
        *out = attention;
        return 0;
    }
    attention->product_type =
        desc->type == DTYPE_BF16 && context->has_bf16_products ? DTYPE_BF16 : DTYPE_FP32;
    uint64_t query_rows = desc->tokens >= LONG_TOKENS ? QUERY_ROWS_LONG : QUERY_ROWS_SHORT;
    attention->query_rows = query_rows;
    attention->key_rows = KEY_ROWS;
    attention->query_block_count = size_div_up(desc->tokens, query_rows);
    uint64_t blocks = desc->batch * desc->heads * attention->query_block_count;
    /* in a window each query block begins at its own key */
    uint64_t team_most = desc->window > 0 && desc->window < desc->tokens ? 1 : TEAM_BLOCKS_MAX;
    uint64_t tasks_least = TASKS_A_THREAD * (uint64_t)attention->threads;
    attention->team_blocks = size_max(size_min(blocks / tasks_least, team_most), 1);
    /* One vector more than the columns: rows at a distance of a power of two would share few cache
     * sets. */
    attention->score_stride =
        size_round_up(size_min(KEY_ROWS, desc->tokens), ATTENTION_LANES_MAX) + ATTENTION_LANES_MAX;
    attention->head_stride =
        size_round_up(size_max(desc->head_dim, desc->value_dim), ATTENTION_LANES_MAX);
    /* oneDNN sums a block of one row in another order, so its bits would change. */
    attention->by_dots = context->isa >= CPU_AVX512_BF16 && context->has_bf16_products &&
                         desc->tokens % query_rows != 1 && cpui_attention_dots_takes(desc);
    int rc = attention->by_dots ? 0 : shapes_create(attention);
    if (rc < 0) {
        cpui_attention_destroy(attention);
        return err_prefix(rc, "attention T=%llu D=%llu", (unsigned long long)desc->tokens,
                          (unsigned long long)desc->head_dim);
    }
    attention_worker counted;
    attention->forward_bytes = cpui_attention_worker_layout(attention, false, NULL, &counted);
    attention->backward_bytes = cpui_attention_worker_layout(attention, true, NULL, &counted);
    *out = attention;
    return 0;
}

void cpui_attention_destroy(kernel_attention *attention)
{
    if (!attention)
        return;
    for (size_t i = 0; i < attention->shape_count; i++)
        for (int kind = 0; kind < PRODUCT_COUNT; kind++)
            cpui_product_destroy(attention->shapes[i].products[kind]);
    mem_free(attention->shapes);
    mem_free(attention);
}

void cpui_attention_set_documents(kernel_attention *attention, const int32_t *begins)
{
    attention->begins = begins;
}

void cpui_attention_set_dropout(kernel_attention *attention, const attention_dropout *masks)
{
    attention->masks = masks ? *masks : (attention_dropout){0};
}

size_t cpui_attention_forward_scratch_bytes(const kernel_attention *attention)
{
    return attention->forward_bytes * (size_t)attention->threads;
}

size_t cpui_attention_backward_scratch_bytes(const kernel_attention *attention)
{
    return attention->backward_bytes * (size_t)attention->threads;
}

/* ---- shared by the passes ---- */

/* The next part of `elems` floats; NULL if only counting. */
static float *take(char *base, size_t *offset, uint64_t elems)
{
    return cpui_take(base, offset, sizeof(float) * elems);
}

size_t cpui_attention_worker_layout(const kernel_attention *attention, bool backward, char *base,
                                    attention_worker *worker)
{
    uint64_t tokens = attention->desc.tokens;
    uint64_t rows = size_min(attention->query_rows, tokens);
    uint64_t team_rows = backward ? rows : size_min(attention->team_blocks * rows, tokens);
    uint64_t keys = size_min(attention->key_rows, tokens);
    uint64_t dim = attention->desc.head_dim, value_dim = attention->desc.value_dim;
    size_t offset = 0;
    *worker = (attention_worker){0};
    worker->scores = take(base, &offset, rows * attention->score_stride);
    if (attention->desc.dropout > 0.0f)
        worker->kept = take(base, &offset, rows * attention->score_stride);
    if (backward) {
        worker->prob_grads = take(base, &offset, rows * attention->score_stride);
        worker->query_grads = take(base, &offset, tokens * attention->head_stride);
        worker->key_grads = take(base, &offset, tokens * attention->head_stride);
        worker->value_grads = take(base, &offset, tokens * attention->head_stride);
        worker->delta = take(base, &offset, tokens);
    } else {
        worker->output = take(base, &offset, team_rows * attention->head_stride);
        worker->row_max = take(base, &offset, team_rows);
        worker->row_sum = take(base, &offset, team_rows);
    }
    if (!attention->by_dots) {
        worker->dense_q = take(base, &offset, team_rows * dim);
        worker->dense_k = take(base, &offset, keys * dim);
        worker->dense_v = take(base, &offset, keys * value_dim);
        if (backward)
            worker->dense_output_grad = take(base, &offset, rows * value_dim);
    }
    if (attention->by_dots)
        offset +=
            cpui_attention_dots_layout(dim, value_dim, team_rows, keys, attention->score_stride,
                                       backward, base ? base + offset : NULL, &worker->dots);
    worker->product_scratch = base ? base + offset : NULL;
    return offset + size_round_up(attention->product_scratch_bytes, 64);
}

const block_shape *cpui_attention_shape(const kernel_attention *attention, uint64_t rows,
                                        uint64_t cols)
{
    for (size_t i = 0; i < attention->shape_count; i++)
        if (attention->shapes[i].rows == rows && attention->shapes[i].cols == cols)
            return &attention->shapes[i];
    return NULL;
}

attention_range cpui_attention_keys(const kernel_attention *attention, const attention_mask *mask,
                                    uint64_t first_row, uint64_t rows)
{
    attention_range keys = attention_keys_of_block(mask, first_row, first_row + rows);
    /* There are few shapes of the last rows, so that their key blocks begin as without a mask. */
    uint64_t unit = rows < attention->query_rows ? attention->key_rows : attention->query_rows;
    keys.begin = keys.begin / unit * unit;
    keys.end = size_min(size_round_up(keys.end, attention->query_rows), mask->tokens);
    return keys;
}

score_block cpui_attention_scores(const kernel_attention *attention, const attention_mask *mask,
                                  const attention_drop *drop, const attention_worker *worker,
                                  attention_range rows, attention_range keys)
{
    score_block block = {.rows = rows.end - rows.begin,
                         .cols = keys.end - keys.begin,
                         .stride = attention->score_stride,
                         .first_row = rows.begin,
                         .first_key = keys.begin,
                         .mask = mask,
                         .scale = attention->desc.scale,
                         .soft_cap = attention->desc.soft_cap,
                         .scores = worker->scores,
                         .store_type = attention->product_type,
                         .round_type = attention->desc.type};
    if (drop) {
        attention->rows->drop(&block, drop, worker->kept);
        block.kept = worker->kept;
    }
    return block;
}

void cpui_attention_product(attention_worker *worker, const block_shape *shape,
                            enum block_product kind, const void *a, const void *b, void *c)
{
    if (worker->status != 0)
        return;
    worker->status = cpui_product_run(shape->products[kind], worker->slot, a, b, NULL, c,
                                      worker->product_scratch);
    if (worker->status != 0)
        worker->culprit = shape->products[kind];
}

void cpui_attention_operand(const kernel_attention *attention, const void *source, uint64_t first,
                            uint64_t row_stride, uint64_t rows, uint64_t dim, float *dense)
{
    size_t row_bytes = dim * dtype_bytes(attention->product_type);
    for (uint64_t row = 0; row < rows; row++) {
        const void *from = attention_at(attention, source, first + row * row_stride);
        if (attention->product_type == attention->desc.type)
            memcpy((char *)dense + row * row_bytes, from, row_bytes);
        else
            attention->rows->widen(from, attention->desc.type, dense + row * dim, dim);
    }
}

int cpui_attention_run(const kernel_attention *attention, bool backward, void *scratch,
                       uint64_t task_count, attention_task *run, const void *args)
{
    size_t worker_bytes = backward ? attention->backward_bytes : attention->forward_bytes;
    int status = 0;
    const cpui_product *culprit = NULL;
#pragma omp parallel num_threads(attention->threads)
    {
        attention_worker worker;
        int slot = omp_get_thread_num();
        cpui_attention_worker_layout(attention, backward,
                                     (char *)scratch + (size_t)slot * worker_bytes, &worker);
        worker.slot = slot;
        /* the products of this thread use one thread, until the region ends */
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
        for (uint64_t task = 0; task < task_count; task++)
            run(attention, args, &worker, task);
        if (worker.status != 0)
#pragma omp critical(attention_fault)
        {
            status = worker.status;
            culprit = worker.culprit;
        }
    }
    omp_set_num_threads(attention->context->thread_count);
    return status == 0 ? 0 : cpui_product_failed(culprit, status);
}

void cpui_attention_prepare_keys(const kernel_attention *attention, attention_worker *worker,
                                 const void *k, const void *v, uint64_t k_elem, uint64_t v_elem,
                                 uint64_t count)
{
    const attention_desc *desc = &attention->desc;
    uint64_t stride = desc->qkv_stride;
    if (attention->by_dots) {
        dots_rows keys = attention_dots_rows(k, k_elem, stride, count);
        dots_rows values = attention_dots_rows(v, v_elem, stride, count);
        cpui_attention_dots_keys(&worker->dots, &keys, &values);
        return;
    }
    cpui_attention_operand(attention, k, k_elem, stride, count, desc->head_dim, worker->dense_k);
    cpui_attention_operand(attention, v, v_elem, stride, count, desc->value_dim, worker->dense_v);
}

/* ---- over kept keys and values; see attention_cached_args in kernels/ops.h ---- */

/* Appends heads of k or v, of head_bytes each, of the new positions to the kept ones. */
static void keep_new(const attention_cached_args *args, const void *rows, size_t head_bytes,
                     void *kept)
{
    size_t stride_bytes = args->qkv_stride * dtype_bytes(args->type);
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t group = 0; group < args->kv_heads; group++)
            memcpy((char *)kept + (group * args->capacity + args->begin + row) * head_bytes,
                   (const char *)rows + row * stride_bytes + group * head_bytes, head_bytes);
}

static float sink_of(const attention_cached_args *args, uint64_t head)
{
    float value = -INFINITY;
    if (args->sinks)
        dtype_convert((const char *)args->sinks + head * dtype_bytes(args->type), args->type,
                      &value, DTYPE_FP32, 1);
    return value;
}

int cpui_attention_cached(kernel_context *context, void *stream, const attention_cached_args *args)
{
    uint64_t value_dim = args->value_dim ? args->value_dim : args->head_dim;
    assert(args->head_dim <= ATTENTION_HEAD_DIM_MAX && args->heads % args->kv_heads == 0);
    assert(value_dim <= ATTENTION_HEAD_DIM_MAX);
    assert(args->begin + args->rows <= args->capacity);
    const attention_rows *rows = cpui_attention_rows(context->isa);
    size_t elem_bytes = dtype_bytes(args->type), stride_bytes = args->qkv_stride * elem_bytes;
    size_t key_bytes = args->head_dim * elem_bytes, value_bytes = value_dim * elem_bytes;
    uint64_t shared_by = args->heads / args->kv_heads;
    uint64_t window = args->window ? args->window : UINT64_MAX;
    keep_new(args, args->k, key_bytes, args->keys);
    keep_new(args, args->v, value_bytes, args->values);
#pragma omp parallel for schedule(static) num_threads(context->thread_count)
    for (uint64_t item = 0; item < args->rows * args->heads; item++) {
        uint64_t row = item / args->heads, head = item % args->heads, group = head / shared_by;
        uint64_t seen = args->begin + row + 1, first = seen > window ? seen - window : 0;
        uint64_t kept = group * args->capacity + first;
        const cached_row one = {
            .query = (const char *)args->q + row * stride_bytes + head * key_bytes,
            .keys = (const char *)args->keys + kept * key_bytes,
            .values = (const char *)args->values + kept * value_bytes,
            .count = seen - first,
            .head_dim = args->head_dim,
            .value_dim = value_dim,
            .scale = args->scale,
            .soft_cap = args->soft_cap,
            .sink = sink_of(args, head),
            .type = args->type,
            .output = (char *)args->output + item * value_bytes,
        };
        rows->attend(&one);
    }
    return 0;
}
