/* Rows of tokens and rows of slots of a mixture of experts (kernels/ops_experts.h). Part of
 * rows_variant.c. */

static void experts_gather(int threads, const experts_rows_args *args)
{
    uint64_t row_bytes = args->channels * dtype_bytes(args->type);
#pragma omp parallel for schedule(static)                                                          \
    num_threads(team(threads, args->slot_count * args->channels))
    for (uint64_t i = 0; i < args->slot_count; i++) {
        int32_t pair = args->order[args->slot_begin + i];
        char *target = (char *)args->slot_rows + i * row_bytes;
        if (pair < 0)
            memset(target, 0, row_bytes);
        else
            memcpy(target, (const char *)args->tokens + (uint64_t)pair / args->choices * row_bytes,
                   row_bytes);
    }
}

/* sums[C] += weight * row `slot_row` of the slots. */
static void experts_add_row(const experts_rows_args *args, uint64_t slot_row, float weight,
                            float *sums)
{
    float buffer[ROWS_BLOCK];
    for (uint64_t c = 0; c < args->channels; c += ROWS_BLOCK) {
        size_t n = block_elems(args->channels, c);
        const float *x =
            load_block(args->type, args->slot_rows, slot_row * args->channels + c, n, buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            sums[c + i] += weight * x[i];
    }
}

/* Each thread has rows of tokens, and adds their choices in order. A weight of 1 changes no bit of
 * the product. */
static void experts_combine(int threads, const experts_rows_args *args)
{
    uint64_t choices = args->choices;
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->channels))
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t pair = row * choices; pair < (row + 1) * choices; pair++) {
            /* wraps around if before these slots */
            uint64_t slot_row = (uint64_t)args->slots[pair] - args->slot_begin;
            if (slot_row < args->slot_count)
                experts_add_row(args, slot_row, args->weights ? args->weights[pair] : 1.0f,
                                args->sums + row * args->channels);
        }
}

/* Columns [c, c + n) of a row: adds output * grad, or bias * grad, to *sums. Then
 * grad *= weight. */
static void experts_weigh_block(const experts_rows_args *args, uint64_t row, uint64_t c, size_t n,
                                float weight, struct row_sum *sums)
{
    float grad_buffer[ROWS_BLOCK], buffer[ROWS_BLOCK], products[ROWS_BLOCK];
    uint64_t at = row * args->channels + c;
    const float *grad = load_block(args->type, args->slot_rows, at, n, grad_buffer);
    if (args->output || args->bias) {
        const float *output = args->output ? load_block(args->type, args->output, at, n, buffer)
                                           : load_block(args->type, args->bias, c, n, buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            products[i] = output[i] * grad[i];
        row_sum_add(sums, products, n);
    }
    float *out = store_place(args->type, args->slot_rows, at, grad_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] = weight * grad[i];
    store_block(args->type, args->slot_rows, at, n, out);
}

static void experts_weights_backward(int threads, const experts_rows_args *args)
{
#pragma omp parallel for schedule(static)                                                          \
    num_threads(team(threads, args->slot_count * args->channels))
    for (uint64_t i = 0; i < args->slot_count; i++) {
        uint64_t slot = args->slot_begin + i;
        int32_t pair = args->order ? args->order[slot] : (int32_t)slot;
        struct row_sum sums = {{0}};
        if (pair < 0)
            continue;
        for (uint64_t c = 0; c < args->channels; c += ROWS_BLOCK)
            experts_weigh_block(args, i, c, block_elems(args->channels, c), args->weights[pair],
                                &sums);
        if (args->output)
            args->weights_grad[pair] = (float)row_sum_fold(&sums);
        else if (args->bias)
            args->weights_grad[pair] += (float)row_sum_fold(&sums);
    }
}
