/* Attention of the reference backend, with windows, soft caps, both directions, documents and
 * sinks. Its results are compared with the definition, and its gradients with finite differences.
 * And the heads of latent attention. */
#include <math.h>

#include "kernels/dropout_mask.h"
#include "tests/kernels/finite_differences.h"
#include "tests/unit.h"

enum { B = 2, T = 7, H = 4, G = 2, D = 3, E = 5, STRIDE = (H + G) * D + G * E };

/* The arguments of sinks; without sinks it changes nothing. */
static attention_sinks_args sinks_of(float *const *qkv)
{
    return (attention_sinks_args){.batch = B,
                                  .tokens = T,
                                  .heads = H,
                                  .value_dim = E,
                                  .sinks = qkv[5],
                                  .output = qkv[3],
                                  .lse = qkv[4]};
}

static int forward_attention(struct probe *self)
{
    float *const *qkv = self->object; /* q, k, v, output, lse, sinks or NULL */
    TRY(ops->attention_forward((kernel_attention *)(uintptr_t)self->args, NULL, qkv[0], qkv[1],
                               qkv[2], qkv[3], qkv[4], self->scratch));
    attention_sinks_args sinks = sinks_of(qkv);
    return qkv[5] ? ops->attention_sinks(NULL, NULL, &sinks) : 0;
}

/* Kinds of attention, and the documents of both sequences. */
static const struct attention_kind {
    uint64_t window;
    float soft_cap;
    bool is_bidirectional, has_documents;
    float dropout;
    bool has_sinks;
} attention_kinds[] = {
    {.window = 0},
    {.window = 1},
    {.window = 3},
    {.window = 20},
    {.soft_cap = 2},
    {.is_bidirectional = true},
    {.window = 2, .soft_cap = 1.5f, .has_documents = true},
    {.is_bidirectional = true, .soft_cap = 1.5f, .has_documents = true},
    {.has_documents = true},
    {.dropout = 0.3f},
    {.is_bidirectional = true, .soft_cap = 1.5f, .has_documents = true, .dropout = 0.5f},
    {.has_sinks = true},
    {.window = 2, .has_documents = true, .has_sinks = true},
    {.soft_cap = 1.5f, .dropout = 0.3f, .has_sinks = true},
};
static const uint32_t counter[2] = {5, 11};
static const attention_dropout masks = {SEED, 3, counter};
static const int32_t document_begins[B * T] = {0, 0, 0, 3, 4, 4, 4, 0, 1, 1, 1, 1, 1, 6};

static bool is_seen(const struct attention_kind *kind, int b, int t, int s)
{
    const int32_t *begins = document_begins + b * T;
    return (s <= t || kind->is_bidirectional) && (kind->window == 0 || s + (int)kind->window > t) &&
           (!kind->has_documents || begins[s] == begins[t]);
}

/* The factor of a probability. A row of a mask has T rounded up to whole quads. */
static double kept(const struct attention_kind *kind, int b, int h, int t, int s)
{
    uint32_t words[4];
    int elem = (h * T + t) * 8 + s;
    dropout_words((dropout_place){SEED, 5, 11 + (uint32_t)b, 3}, (uint64_t)elem / 4, words);
    return words[elem % 4] < (double)kind->dropout * 0x1p32 ? 0 : 1 / (1 - (double)kind->dropout);
}

/* The output of row t of a head and the logarithm of its sum, by the definition. */
static void check_attention(const struct attention_kind *kind, float *const *qkv, int b, int h,
                            int t)
{
    double sum = qkv[5] ? exp((double)qkv[5][h]) : 0.0, output[E] = {0};
    const uint64_t out = (uint64_t)((b * T + t) * H + h) * E;
    const float *q = qkv[0] + (b * T + t) * STRIDE + h * D;
    for (int s = 0; s < T; s++) {
        const float *k = qkv[1] + (b * T + s) * STRIDE + h / 2 * D;
        const float *v = qkv[2] + (b * T + s) * STRIDE + h / 2 * E;
        double score = 0.0;
        for (int d = 0; d < D; d++)
            score += (double)(q[d] * k[d]) * 0.57735;
        if (kind->soft_cap > 0)
            score = (double)kind->soft_cap * tanh(score / (double)kind->soft_cap);
        if (!is_seen(kind, b, t, s))
            continue;
        sum += exp(score);
        for (int d = 0; d < E; d++)
            output[d] += exp(score) * kept(kind, b, h, t, s) * (double)v[d];
    }
    for (int d = 0; d < E; d++)
        assert_true(fabs((double)qkv[3][out + (uint64_t)d] - output[d] / sum) < 2e-6);
    assert_true(fabs((double)qkv[4][(b * H + h) * T + t] - log(sum)) < 1e-5);
}

static void check_attention_kind(const struct attention_kind *kind)
{
    enum { N = B * T * STRIDE };
    attention_desc desc = {.batch = B,
                           .tokens = T,
                           .heads = H,
                           .kv_heads = G,
                           .head_dim = D,
                           .value_dim = E,
                           .qkv_stride = STRIDE,
                           .scale = 0.57735f,
                           .soft_cap = kind->soft_cap,
                           .window = kind->window,
                           .is_bidirectional = kind->is_bidirectional,
                           .dropout = kind->dropout};
    kernel_attention *attention;
    assert_int_equal(ops->attention_create(NULL, &desc, &attention), 0);
    ops->attention_set_dropout(attention, &masks);
    ops->attention_set_documents(attention, kind->has_documents ? document_begins : NULL);
    float *qkv = draw(N, 1), *dqkv = zeros(N), *y = zeros(B * T * H * E),
          *dy = draw(B * T * H * E, 2);
    float lse[B * H * T], sinks_grad[H] = {0}, *sinks = draw(H, 3);
    void *scratch = mem_alloc(ops->attention_backward_scratch_bytes(attention), 1, "test");
    float *parts[] = {qkv, qkv + H * D, qkv + (H + G) * D, y, lse, kind->has_sinks ? sinks : NULL};
    struct probe probe = {.forward = forward_attention,
                          .args = attention,
                          .object = parts,
                          .scratch = scratch,
                          .output = y,
                          .weight = dy,
                          .output_count = B * T * H * E};
    assert_int_equal(probe.forward(&probe), 0);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t < T; t++)
                check_attention(kind, parts, b, h, t);
    assert_int_equal(ops->attention_backward(attention, NULL, parts[0], parts[1], parts[2], y, lse,
                                             dy, dqkv, dqkv + H * D, dqkv + (H + G) * D, scratch),
                     0);
    check_gradient("attention", &probe, qkv, dqkv, N);
    if (kind->has_sinks) {
        attention_sinks_args args = sinks_of(parts);
        args.output_grad = dy;
        args.sinks_grad = sinks_grad;
        assert_int_equal(ops->attention_sinks_backward(NULL, NULL, &args), 0);
        check_gradient("sinks", &probe, sinks, sinks_grad, H);
    }
    ops->attention_destroy(attention);
    mem_free(scratch);
    mem_free(qkv);
    mem_free(dqkv);
    mem_free(sinks);
    mem_free(y);
    mem_free(dy);
}

static void attention_gradients(void **state)
{
    for (size_t i = 0; i < sizeof attention_kinds / sizeof *attention_kinds; i++)
        check_attention_kind(&attention_kinds[i]);
}

static int forward_join(struct probe *self)
{
    return ops->heads_join(NULL, NULL, self->args);
}

/* Each element of q, kv and common lies where the heads of latent attention have it. */
static void heads_gradients(void **state)
{
    enum { N = 3, OWN = 4, SHARED = 2, VALUE = 3, DIM = OWN + SHARED, STRIDED = SHARED + 1 };
    enum { Q = N * H * DIM, KV = N * H * (OWN + VALUE), PACKED = N * H * (2 * DIM + VALUE) };
    float *q = draw(Q, 1), *kv = draw(KV, 2), *common = draw(N * STRIDED, 3);
    float *packed = zeros(PACKED), *dpacked = draw(PACKED, 4);
    float *dq = zeros(Q), *dkv = zeros(KV), *dcommon = zeros(N * STRIDED);
    heads_join_args args = {.rows = N,
                            .heads = H,
                            .own = OWN,
                            .shared = SHARED,
                            .value = VALUE,
                            .q = q,
                            .kv = kv,
                            .common = common,
                            .packed = packed,
                            .common_stride = STRIDED};
    struct probe probe = {.forward = forward_join,
                          .args = &args,
                          .output = packed,
                          .weight = dpacked,
                          .output_count = PACKED};
    assert_int_equal(probe.forward(&probe), 0);
    for (int n = 0; n < N; n++)
        for (int h = 0; h < H; h++) {
            const float *row = packed + n * H * (2 * DIM + VALUE), *k = row + (H + h) * DIM;
            const float *from = kv + (n * H + h) * (OWN + VALUE);
            assert_memory_equal(row + h * DIM, q + (n * H + h) * DIM, DIM * sizeof *row);
            assert_memory_equal(k, from, OWN * sizeof *row);
            assert_memory_equal(k + OWN, common + n * STRIDED, SHARED * sizeof *row);
            assert_memory_equal(row + 2 * H * DIM + h * VALUE, from + OWN, VALUE * sizeof *row);
        }
    heads_join_args back = args;
    back.q = dq;
    back.kv = dkv;
    back.common = dcommon;
    back.packed = dpacked;
    assert_int_equal(ops->heads_split(NULL, NULL, &back), 0);
    check_gradient("q", &probe, q, dq, Q);
    check_gradient("kv", &probe, kv, dkv, KV);
    check_gradient("common", &probe, common, dcommon, N * STRIDED);
    float *all[] = {q, kv, common, packed, dpacked, dq, dkv, dcommon};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static void attention_refusals(void **state)
{
    attention_desc desc = {.batch = 1, .tokens = 4, .heads = 1, .kv_heads = 1, .head_dim = 2};
    kernel_attention *attention;
    desc.window = 2;
    desc.is_bidirectional = true;
    assert_int_equal(ops->attention_create(NULL, &desc, &attention), ERR_BACKEND);
    desc.is_bidirectional = false;
    desc.soft_cap = -1.0f;
    assert_int_equal(ops->attention_create(NULL, &desc, &attention), ERR_BACKEND);
    desc.soft_cap = 0;
    desc.dropout = 1;
    assert_int_equal(ops->attention_create(NULL, &desc, &attention), ERR_BACKEND);
    desc.dropout = 0.5f;
    desc.tokens = 1 << 21;
    assert_int_equal(ops->attention_create(NULL, &desc, &attention), ERR_BACKEND);
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_gradients),
        cmocka_unit_test(attention_refusals),
        cmocka_unit_test(heads_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
