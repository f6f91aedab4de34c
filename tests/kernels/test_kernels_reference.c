/* The reference backend against itself: each backward op against finite differences of its forward
 * op, in fp32, so that a backend which agrees with the reference has the right gradients. Attention
 * is in test_kernels_reference_attention.c. */
#include <math.h>

#include "tests/kernels/finite_differences.h"
#include "tests/unit.h"

static int forward_norm(struct probe *self)
{
    return ops->norm_forward(NULL, NULL, self->args);
}

static void norm_gradients(void **state)
{
    enum { ROWS = 3, C = 7, N = ROWS * C };
    /* By the bits of `form`: RMSNorm; the weight adds 1; there is no bias. */
    for (int form = 0; form < 8; form++) {
        enum norm_kind kind = form & 1 ? NORM_RMS : NORM_LAYER;
        bool has_bias = kind == NORM_LAYER && !(form & 4);
        float *x = draw(N, 1), *residual = draw(N, 2), *w = draw(C, 3), *b = draw(C, 4);
        float *sum = zeros(N), *y = zeros(N), *mean = zeros(ROWS), *rstd = zeros(ROWS);
        float *dy = draw(N, 5), *skip = draw(N, 6), *dx = zeros(N), *dw = draw(C, 7);
        float *db = draw(C, 8), *scratch = zeros(4 * C), *zero = zeros(N);
        norm_args args = {.kind = kind,
                          .adds_one = form & 2,
                          .rows = ROWS,
                          .channels = C,
                          .epsilon = 0.1f,
                          .input = x,
                          .residual = residual,
                          .sum = sum,
                          .weight = w,
                          .bias = has_bias ? b : NULL,
                          .output = y,
                          .mean = kind == NORM_LAYER ? mean : NULL,
                          .rstd = rstd};
        struct probe probe = {
            .forward = forward_norm, .args = &args, .output = y, .weight = dy, .output_count = N};
        assert_int_equal(probe.forward(&probe), 0);
        norm_grad_args back = {.kind = args.kind,
                               .adds_one = args.adds_one,
                               .rows = ROWS,
                               .channels = C,
                               .input = sum,
                               .weight = w,
                               .mean = args.mean,
                               .rstd = rstd,
                               .output_grad = dy,
                               .residual_grad = zero,
                               .input_grad = dx,
                               .weight_grad = dw,
                               .bias_grad = has_bias ? db : NULL,
                               .scratch = scratch};
        memset(dw, 0, C * sizeof *dw);
        memset(db, 0, C * sizeof *db);
        assert_true(ops->norm_grad_scratch_bytes(NULL, ROWS, C) <= 4 * C * sizeof *scratch);
        assert_int_equal(ops->norm_backward(NULL, NULL, &back), 0);
        check_gradient("norm input", &probe, x, dx, N);
        check_gradient("norm residual", &probe, residual, dx, N);
        check_gradient("norm weight", &probe, w, dw, C);
        if (has_bias)
            check_gradient("norm bias", &probe, b, db, C);
        /* The skip connection is added, and the parameters' gradients accumulate. */
        float *dx_skip = zeros(N), *dw_once = zeros(C);
        memcpy(dw_once, dw, C * sizeof *dw);
        back.residual_grad = skip;
        back.input_grad = dx_skip;
        assert_int_equal(ops->norm_backward(NULL, NULL, &back), 0);
        for (int i = 0; i < N; i++)
            assert_true(fabsf(dx_skip[i] - dx[i] - skip[i]) < 1e-5f);
        for (int i = 0; i < C; i++)
            assert_true(fabsf(dw[i] - 2 * dw_once[i]) < 1e-5f);
        float *all[] = {x,    residual, w,  b,  sum,     y,    mean,    rstd,   dy,
                        skip, dx,       dw, db, scratch, zero, dx_skip, dw_once};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            mem_free(all[i]);
    }
}

/* In place: forward on a copy of the input. */
static int forward_head_norm(struct probe *self)
{
    const head_norm_args *args = self->args;
    memcpy(args->data, self->object, self->output_count * sizeof(float));
    return ops->head_norm_forward(NULL, NULL, args);
}

static void head_norm_gradients(void **state)
{
    enum { ROWS = 2, H = 2, D = 5, STRIDE = 12, N = ROWS * STRIDE };
    /* By the bits of `form`: LayerNorm; the weight adds 1; each head has its own. */
    for (int form = 0; form < 8; form++) {
        float *x = draw(N, 1), *y = zeros(N), *w = draw(H * D, 2), *dy = draw(N, 3);
        float *dx = zeros(N), *dw = zeros(H * D), before[ROWS * H * D];
        float mean[ROWS * H], rstd[ROWS * H];
        double scratch[H * D];
        head_norm_args args = {.rows = ROWS,
                               .heads = H,
                               .head_dim = D,
                               .stride = STRIDE,
                               .epsilon = 0.1f,
                               .is_layer = form & 1,
                               .adds_one = form & 2,
                               .weight_per_head = form & 4,
                               .weight = w,
                               .data = y,
                               .before = before,
                               .mean = mean,
                               .rstd = rstd,
                               .weight_grad = dw,
                               .scratch = scratch};
        struct probe probe = {.forward = forward_head_norm,
                              .args = &args,
                              .object = x,
                              .output = y,
                              .weight = dy,
                              .output_count = N};
        assert_int_equal(probe.forward(&probe), 0);
        head_norm_args back = args;
        memcpy(dx, dy, N * sizeof *dx);
        back.data = dx;
        assert_int_equal(ops->head_norm_backward(NULL, NULL, &back), 0);
        check_gradient("head norm", &probe, x, dx, N);
        check_gradient("head norm weight", &probe, w, dw, form & 4 ? H * D : D);
        float *all[] = {x, y, w, dy, dx, dw};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            mem_free(all[i]);
    }
}

static int forward_activation(struct probe *self)
{
    return ops->activation_forward(NULL, NULL, self->args);
}

static void activation_gradients(void **state)
{
    enum { ROWS = 3, F = 5 };
    const float limit = 0.75f;
    static const char *const names[ACTIVATION_KIND_COUNT] = {
        "gelu", "swiglu", "gelu erf", "relu", "geglu", "geglu erf", "clamped swiglu"};
    for (int kind = 0; kind < ACTIVATION_KIND_COUNT; kind++) {
        bool is_gated = activation_is_gated((enum activation_kind)kind);
        uint64_t in_count = (uint64_t)ROWS * F * (is_gated ? 2 : 1);
        float *x = draw(in_count, 1), *y = zeros(ROWS * F), *dy = draw(ROWS * F, 2);
        float *dx = zeros(in_count);
        for (uint64_t i = 0; i < in_count; i++) { /* away from where the slope jumps */
            if (kind == ACTIVATION_RELU)
                x[i] += x[i] < 0.0f ? -0.1f : 0.1f;
            else if (kind == ACTIVATION_SWIGLU_CLAMPED && fabsf(fabsf(x[i]) - limit) < 0.1f)
                x[i] += x[i] < 0.0f ? -0.2f : 0.2f;
        }
        activation_args args = {.kind = (enum activation_kind)kind,
                                .rows = ROWS,
                                .features = F,
                                .alpha = 1.702f,
                                .limit = limit,
                                .input = x,
                                .output = y,
                                .output_grad = dy,
                                .input_grad = dx};
        struct probe probe = {.forward = forward_activation,
                              .args = &args,
                              .output = y,
                              .weight = dy,
                              .output_count = ROWS * F};
        assert_int_equal(ops->activation_backward(NULL, NULL, &args), 0);
        check_gradient(names[kind], &probe, x, dx, in_count);
        mem_free(x);
        mem_free(y);
        mem_free(dy);
        mem_free(dx);
    }
}

/* rope works in place: forward on a copy of the input. */
static int forward_rope(struct probe *self)
{
    const rope_args *args = self->args;
    memcpy(args->data, self->object, self->output_count * sizeof(float));
    return ops->rope(NULL, NULL, args);
}

static void rope_gradients(void **state)
{
    enum { B = 2, T = 3, H = 2, D = 4, STRIDE = 10, N = B * T * STRIDE };
    float *x = draw(N, 1), *y = zeros(N), *dy = draw(N, 2), *dx = zeros(N);
    float table[T * D];
    rope_table_args made = {.table = table, .tokens = T, .head_dim = D, .theta = 10000.0};
    assert_int_equal(ops->rope_table(NULL, NULL, &made), 0);
    assert_true(table[0] == 1.0f && table[1] == 0.0f); /* position 0 does not turn */
    assert_true(fabsf(table[D] - cosf(1.0f)) < 1e-6f && fabsf(table[D + 3] - 0.01f) < 1e-6f);
    /* Frequencies 1 and 1/100, waves of 6.28 and 628 positions: linear turns both by less; llama3
     * keeps the first, divides the second, and blends it where it lies in between. */
    made = (rope_table_args){.table = table, .tokens = T, .head_dim = D, .theta = 10000.0};
    made.scaling = ROPE_LINEAR;
    made.factor = 4;
    assert_int_equal(ops->rope_table(NULL, NULL, &made), 0);
    assert_true(fabsf(table[D] - cosf(0.25f)) < 1e-6f && fabsf(table[D + 3] - 0.0025f) < 1e-7f);
    made.scaling = ROPE_LLAMA3;
    made.low_freq_factor = 1;
    made.high_freq_factor = 3;
    made.original_positions = 100;
    assert_int_equal(ops->rope_table(NULL, NULL, &made), 0);
    assert_true(fabsf(table[D] - cosf(1.0f)) < 1e-6f && fabsf(table[D + 3] - 0.0025f) < 1e-7f);
    made.original_positions = 2 * 628.318530717959; /* a share of (2 - 1) / (3 - 1) stays */
    assert_int_equal(ops->rope_table(NULL, NULL, &made), 0);
    assert_true(fabsf(table[D + 3] - (0.5f * 0.0025f + 0.5f * 0.01f)) < 1e-7f);
    made.scaling = ROPE_PLAIN;
    assert_int_equal(ops->rope_table(NULL, NULL, &made), 0);
    /* By the bits of `form`: pairs lie side by side; two of four elements turn; two documents. */
    const int32_t begins[B * T] = {0, 1, 1, 0, 0, 2};
    for (int form = 0; form < 8; form++) {
        made.head_dim = form & 2 ? 2 : D;
        assert_int_equal(ops->rope_table(NULL, NULL, &made), 0);
        rope_args args = {.batch = B,
                          .tokens = T,
                          .heads = H,
                          .head_dim = D,
                          .stride = STRIDE,
                          .rotated = form & 2 ? 2 : 0,
                          .interleaved = form & 1,
                          .begins = form & 4 ? begins : NULL,
                          .data = y,
                          .table = table};
        struct probe probe = {.forward = forward_rope,
                              .args = &args,
                              .object = x,
                              .output = y,
                              .weight = dy,
                              .output_count = N};
        rope_args back = args;
        memcpy(dx, dy, N * sizeof *dx);
        back.data = dx;
        back.inverse = true;
        assert_int_equal(ops->rope(NULL, NULL, &back), 0);
        check_gradient("rope", &probe, x, dx, N);
        /* The first elements of token 2 turn by 2, or by its place in its document. */
        float angle = form & 4 ? 1.0f : 2.0f;
        uint64_t at = 2 * STRIDE, other = at + (form & 3 ? 1 : 2);
        assert_true(fabsf(y[at] - (x[at] * cosf(angle) - x[other] * sinf(angle))) < 1e-5f);
        assert_true(!(form & 2) || (y[at + 2] == x[at + 2] && y[at + 3] == x[at + 3]));
    }
    mem_free(x);
    mem_free(y);
    mem_free(dy);
    mem_free(dx);
}

static int forward_cross_entropy(struct probe *self)
{
    return ops->cross_entropy(NULL, NULL, self->args);
}

static void cross_entropy_gradients(void **state)
{
    enum { ROWS = 4, V = 9 };
    const int32_t targets[ROWS] = {0, -1, 8, 3};
    const float weight[ROWS] = {0.25f, 0.25f, 0.25f, 0.25f};
    float *x = draw(ROWS * V, 1), *grad = zeros(ROWS * V), losses[ROWS];
    for (int is_capped = 0; is_capped < 2; is_capped++) {
        cross_entropy_args args = {.rows = ROWS,
                                   .vocab = V,
                                   .soft_cap = is_capped ? 2.0f : 0.0f,
                                   .logits = x,
                                   .targets = targets,
                                   .losses = losses,
                                   .grad_scale = 0.25f};
        struct probe probe = {.forward = forward_cross_entropy,
                              .args = &args,
                              .output = losses,
                              .weight = weight,
                              .output_count = ROWS};
        cross_entropy_args back = args;
        back.logits_grad = grad;
        assert_int_equal(ops->cross_entropy(NULL, NULL, &back), 0);
        check_gradient("cross-entropy", &probe, x, grad, ROWS * V);
        assert_true(losses[1] == 0.0f && grad[V] == 0.0f);
    }
    mem_free(x);
    mem_free(grad);
}

static int forward_embedding(struct probe *self)
{
    return ops->embedding_forward(NULL, NULL, self->args);
}

static void embedding_gradients(void **state)
{
    enum { B = 2, T = 3, C = 4, V = 5 };
    const int32_t ids[B * T] = {1, 4, 1, 0, 1, 4};
    float *table = draw(V * C, 1), *positions = draw(T * C, 2), *y = zeros(B * T * C);
    float *dy = draw(B * T * C, 3), *dtable = zeros(V * C), *dpositions = zeros(T * C);
    embedding_args args = {.batch = B,
                           .tokens = T,
                           .channels = C,
                           .vocab = V,
                           .token_ids = ids,
                           .token_table = table,
                           .position_table = positions,
                           .output = y};
    struct probe probe = {.forward = forward_embedding,
                          .args = &args,
                          .output = y,
                          .weight = dy,
                          .output_count = B * T * C};
    embedding_grad_args back = {.batch = B,
                                .tokens = T,
                                .channels = C,
                                .vocab = V,
                                .token_ids = ids,
                                .output_grad = dy,
                                .token_table_grad = dtable,
                                .position_table_grad = dpositions};
    assert_int_equal(ops->embedding_backward(NULL, NULL, &back), 0);
    check_gradient("token table", &probe, table, dtable, V * C);
    check_gradient("position table", &probe, positions, dpositions, T * C);
    float *all[] = {table, positions, y, dy, dtable, dpositions};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static int forward_matmul(struct probe *self)
{
    float *const *abc = self->object; /* a, b, bias, c */
    return ops->matmul((kernel_matmul *)(uintptr_t)self->args, NULL, abc[0], abc[1], abc[2], abc[3],
                       NULL);
}

/* y = x w^T + bias, as in a Linear layer. The gradients: dx = dy w, dw = dy^T x (accumulated),
 * dbias = column sums. */
static void matmul_gradients(void **state)
{
    enum { M = 3, N = 5, K = 4, X_STRIDE = 6 };
    float *x = draw(M * X_STRIDE, 1), *w = draw(N * K, 2), *bias = draw(N, 3), *y = zeros(M * N);
    float *dy = draw(M * N, 4), *dx = zeros(M * X_STRIDE), *dw = zeros(N * K), *dbias = zeros(N);
    float *abc[] = {x, w, bias, y};
    matmul_desc descs[] = {
        {.m = M,
         .n = N,
         .k = K,
         .b_transposed = true,
         .a_stride = X_STRIDE,
         .b_stride = K,
         .c_stride = N,
         .has_bias = true},
        {.m = M, .n = K, .k = N, .a_stride = N, .b_stride = K, .c_stride = X_STRIDE},
        {.m = N,
         .n = K,
         .k = M,
         .a_transposed = true,
         .a_stride = N,
         .b_stride = X_STRIDE,
         .c_stride = K,
         .accumulate = true},
    };
    kernel_matmul *products[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(ops->matmul_create(NULL, &descs[i], &products[i]), 0);
    struct probe probe = {.forward = forward_matmul,
                          .args = products[0],
                          .object = abc,
                          .output = y,
                          .weight = dy,
                          .output_count = M * N};
    assert_int_equal(ops->matmul(products[1], NULL, dy, w, NULL, dx, NULL), 0);
    assert_int_equal(ops->matmul(products[2], NULL, dy, x, NULL, dw, NULL), 0);
    assert_int_equal(ops->bias_backward(NULL, NULL, DTYPE_FP32, M, N, N, dy, dbias, NULL), 0);
    check_gradient("matmul a", &probe, x, dx, M * X_STRIDE);
    check_gradient("matmul b", &probe, w, dw, N * K);
    check_gradient("matmul bias", &probe, bias, dbias, N);
    float once = dw[1];
    assert_int_equal(ops->matmul(products[2], NULL, dy, x, NULL, dw, NULL), 0);
    assert_true(fabsf(dw[1] - 2 * once) < 1e-5f);
    descs[2].c_type = DTYPE_BF16;
    kernel_matmul *refused;
    assert_true(ops->matmul_create(NULL, &descs[2], &refused) < 0);
    for (int i = 0; i < 3; i++)
        ops->matmul_destroy(products[i]);
    float *all[] = {x, w, bias, y, dy, dx, dw, dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static void optimizer_by_hand(void **state)
{
    float master = 1.0f, m = 0.0f, v = 0.0f, grad = 0.5f;
    uint16_t param;
    update_scalars scalars = {.learning_rate = 0.1f,
                              .beta1 = 0.9f,
                              .beta2 = 0.99f,
                              .epsilon = 0.0f,
                              .weight_decay = 0.01f,
                              .decoupled = true,
                              .bias_correction1 = 0.1f,
                              .bias_correction2_sqrt = 0.1f,
                              .grad_scale = 2.0f};
    update_args args = {.count = 1,
                        .master = &master,
                        .m = &m,
                        .v = &v,
                        .grads = &grad,
                        .params = &param,
                        .param_type = DTYPE_BF16,
                        .scalars = &scalars};
    assert_int_equal(ops->update(NULL, NULL, &args), 0);
    /* First step: m/bc1 = g = 1, sqrt(v)/bc2 = 1, so the step is lr * (1 + 0.01). */
    assert_true(fabsf(master - 0.899f) < 1e-6f && fabsf(m - 0.1f) < 1e-6f);
    assert_int_equal(param, bf16_working_copy(master));

    double sums[5] = {1.0, 2.0, 3.0, 4.0, 5.0}, total = 0.0, block_sum = 0.0;
    assert_int_equal(ops->norm_reduce(NULL, NULL, sums, 5, &total), 0);
    assert_true(total == 15.0);
    float *accumulator = zeros(4096);
    uint16_t *grads = mem_alloc(4096, sizeof *grads, "test");
    accumulator[7] = 3.0f;
    accumulator[4095] = -4.0f;
    grad_close_args close = {.count = 4096,
                             .accumulator = accumulator,
                             .grads = grads,
                             .grad_type = DTYPE_BF16,
                             .block_sums = &block_sum};
    assert_int_equal(ops->grad_close(NULL, NULL, &close), 0);
    assert_true(block_sum == 25.0 && grads[7] == bf16_from_fp32(3.0f));
    mem_free(accumulator);
    mem_free(grads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_gradients),          cmocka_unit_test(head_norm_gradients),
        cmocka_unit_test(activation_gradients),    cmocka_unit_test(rope_gradients),
        cmocka_unit_test(cross_entropy_gradients), cmocka_unit_test(embedding_gradients),
        cmocka_unit_test(matmul_gradients),        cmocka_unit_test(optimizer_by_hand),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
