/* Cases of the ops of kernels/ops_heads.h, for the rigs of the CPU's and the GPU's row ops, one of
 * which is included before this file. */
#ifndef SLUICE_TESTS_KERNELS_HEADS_CASES_H
#define SLUICE_TESTS_KERNELS_HEADS_CASES_H

/* rows: T; channels: E; variant: 0 sinks of about 1, 1 sinks in the hundreds, of either sign. */
static void sinks_case(struct run *run, const struct shape *shape)
{
    enum { BATCH = 2, HEADS = 3 };
    enum dtype type = shape->type;
    uint64_t lse_count = BATCH * HEADS * shape->rows, count = lse_count * shape->channels;
    /* a tie that tips in the output changes the sum by one rounding of an element */
    float slack = type == DTYPE_FP32 ? 1e-5f : 1e-2f;
    attention_sinks_args args = {.type = type,
                                 .batch = BATCH,
                                 .tokens = shape->rows,
                                 .heads = HEADS,
                                 .value_dim = shape->channels};
    args.sinks = draw(run, type, HEADS, 1, shape->variant ? 300.0f : 1.0f);
    args.output = draw(run, type, count, 2, 1.0f);
    args.lse = draw(run, DTYPE_FP32, lse_count, 3, 2.0f);
    args.output_grad = draw(run, type, count, 4, 1.0f);
    args.sinks_grad = draw(run, DTYPE_FP32, HEADS, 5, 1.0f);
    assert_int_equal(run->ops->attention_sinks(run->context, run->stream, &args), 0);
    emit(run, type, args.output, count, 2e-6f);
    emit(run, DTYPE_FP32, args.lse, lse_count, 2e-6f);
    assert_int_equal(run->ops->attention_sinks_backward(run->context, run->stream, &args), 0);
    emit(run, DTYPE_FP32, args.sinks_grad, HEADS, slack * sqrtf((float)(count / HEADS)));
}

/* rows: N; channels: the elements of v's heads. Copies are exact, and a sum is one rounding off. */
static void heads_case(struct run *run, const struct shape *shape)
{
    static const uint64_t sizes[][3] = {{3, 5, 2}, {1, 0, 4}, {4, 16, 8}, {2, 7, 0}, {5, 128, 64}};
    enum dtype type = shape->type;
    uint64_t heads = sizes[shape->variant][0], own = sizes[shape->variant][1];
    uint64_t shared = sizes[shape->variant][2], value = shape->channels, rows = shape->rows;
    uint64_t q = rows * heads * (own + shared), kv = rows * heads * (own + value);
    uint64_t stride = shared + 3, packed = 2 * q + rows * heads * value;
    heads_join_args args = {.type = type,
                            .rows = rows,
                            .heads = heads,
                            .own = own,
                            .shared = shared,
                            .value = value,
                            .common_stride = stride};
    args.q = draw(run, type, q, 1, 1.0f);
    args.kv = draw(run, type, kv, 2, 1.0f);
    args.common = draw(run, type, rows * stride, 3, 1.0f);
    args.packed = draw(run, type, packed, 4, 1.0f);
    assert_int_equal(run->ops->heads_join(run->context, run->stream, &args), 0);
    emit(run, type, args.packed, packed, 0.0f);
    args.packed = draw(run, type, packed, 5, 1.0f);
    assert_int_equal(run->ops->heads_split(run->context, run->stream, &args), 0);
    emit(run, type, args.q, q, 0.0f);
    emit(run, type, args.kv, kv, 0.0f);
    emit(run, type, args.common, rows * stride, 2e-6f);
}

#endif
