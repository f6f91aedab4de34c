/* The row ops against PyTorch's and transformers' own operations in fp32: activations, norms,
 * losses and rotary positions, with gradients (reference/rows.json, which its README describes).
 * Arguments: none; both the reference backend and the CPU's run. */
#include <jansson.h>
#include <math.h>

#include "base/rng.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 20262, ROWS = 3, WIDTH = 8, HEADS = 2, PAIRS = 8, POSITION = 700, MOST = 64 };
enum { CHOICES = 3, EXPERTS = 4, FEATURES = 5 }; /* of routers; of mixtures, with 2 choices */

static json_t *document;

static void draw(float *x, uint64_t stream, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] = rng_normal(SEED, stream, i);
}

static json_t *case_of(const char *group, const char *name)
{
    json_t *found = json_object_get(json_object_get(document, group), name);
    if (!found)
        fail_msg("rows.json has no %s %s", group, name);
    return found;
}

/* fp32's rounding of a few operations, and of PyTorch's own tails. */
static void expect(const char *name, const json_t *from, const char *key, const float *got,
                   size_t count, double slack)
{
    const json_t *list = json_object_get(from, key);
    assert_int_equal(json_array_size(list), count);
    for (size_t i = 0; i < count; i++) {
        double want = json_number_value(json_array_get(list, i));
        if (!(fabs((double)got[i] - want) <= slack * (1.0 + fabs(want))))
            fail_msg("%s %s[%zu]: %.9g, but PyTorch has %.9g", name, key, i, (double)got[i], want);
    }
}

/* A backend: the reference (context NULL) or the CPU's row ops. */
struct backend {
    kernel_ops ops;
    kernel_context *context;
};

static void activations(const struct backend *b)
{
    static const char *const names[ACTIVATION_KIND_COUNT] = {[ACTIVATION_GELU] = "gelu",
                                                             [ACTIVATION_SWIGLU] = "swiglu",
                                                             [ACTIVATION_GELU_ERF] = "gelu_erf",
                                                             [ACTIVATION_RELU] = "relu",
                                                             [ACTIVATION_GEGLU] = "geglu",
                                                             [ACTIVATION_GEGLU_ERF] = "geglu_erf",
                                                             [ACTIVATION_SWIGLU_CLAMPED] =
                                                                 "swiglu_clamped"};
    for (int kind = 0; kind < ACTIVATION_KIND_COUNT; kind++) {
        const json_t *want = case_of("activations", names[kind]);
        bool is_gated = activation_is_gated((enum activation_kind)kind);
        size_t in_count = ROWS * WIDTH * (is_gated ? 2 : 1);
        float x[MOST], dy[MOST], y[MOST], dx[MOST];
        draw(x, 1, in_count);
        draw(dy, 2, ROWS * WIDTH);
        activation_args args = {.kind = (enum activation_kind)kind,
                                .rows = ROWS,
                                .features = WIDTH,
                                .alpha = 1.702f,
                                .limit = 1.25f,
                                .input = x,
                                .output = y,
                                .output_grad = dy,
                                .input_grad = dx};
        assert_int_equal(b->ops.activation_forward(b->context, NULL, &args), 0);
        assert_int_equal(b->ops.activation_backward(b->context, NULL, &args), 0);
        expect(names[kind], want, "y", y, ROWS * WIDTH, 3e-7);
        expect(names[kind], want, "dx", dx, in_count, 1e-6);
    }
}

static void norms(const struct backend *b)
{
    static const struct {
        const char *name;
        enum norm_kind kind;
        bool has_weight, adds_one;
    } cases[] = {{"gemma", NORM_RMS, true, true},
                 {"cohere", NORM_LAYER, true, false},
                 {"olmo", NORM_LAYER, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const json_t *want = case_of("norms", cases[i].name);
        bool is_layer = cases[i].kind == NORM_LAYER, has_weight = cases[i].has_weight;
        float x[MOST], w[MOST], dy[MOST], y[MOST], dx[MOST], dw[MOST] = {0}, mean[ROWS], rstd[ROWS];
        double scratch[4 * MOST];
        draw(x, 1, ROWS * WIDTH);
        draw(w, 2, WIDTH);
        draw(dy, 3, ROWS * WIDTH);
        norm_args args = {.kind = cases[i].kind,
                          .rows = ROWS,
                          .channels = WIDTH,
                          .epsilon = 1e-5f,
                          .input = x,
                          .weight = has_weight ? w : NULL,
                          .adds_one = cases[i].adds_one,
                          .output = y,
                          .mean = is_layer ? mean : NULL,
                          .rstd = rstd};
        norm_grad_args back = {.kind = args.kind,
                               .rows = ROWS,
                               .channels = WIDTH,
                               .input = x,
                               .weight = args.weight,
                               .adds_one = args.adds_one,
                               .mean = args.mean,
                               .rstd = rstd,
                               .output_grad = dy,
                               .input_grad = dx,
                               .weight_grad = has_weight ? dw : NULL,
                               .scratch = scratch};
        assert_int_equal(b->ops.norm_forward(b->context, NULL, &args), 0);
        assert_int_equal(b->ops.norm_backward(b->context, NULL, &back), 0);
        expect(cases[i].name, want, "y", y, ROWS * WIDTH, 1e-6);
        expect(cases[i].name, want, "dx", dx, ROWS * WIDTH, 2e-6);
        if (has_weight)
            expect(cases[i].name, want, "dweight", dw, WIDTH, 1e-6);
    }
}

static void head_norms(const struct backend *b)
{
    enum { COUNT = ROWS * HEADS * WIDTH };
    const json_t *want = case_of("norms", "heads");
    float data[COUNT], before[COUNT], w[HEADS * WIDTH], dw[HEADS * WIDTH] = {0};
    float mean[ROWS * HEADS], rstd[ROWS * HEADS];
    double scratch[2 * HEADS * WIDTH];
    draw(data, 1, COUNT);
    draw(w, 2, HEADS * WIDTH);
    head_norm_args args = {.rows = ROWS,
                           .heads = HEADS,
                           .head_dim = WIDTH,
                           .stride = HEADS * WIDTH,
                           .epsilon = 1e-5f,
                           .is_layer = true,
                           .weight_per_head = true,
                           .weight = w,
                           .data = data,
                           .before = before,
                           .mean = mean,
                           .rstd = rstd,
                           .weight_grad = dw,
                           .scratch = scratch};
    assert_int_equal(b->ops.head_norm_forward(b->context, NULL, &args), 0);
    expect("heads", want, "y", data, COUNT, 1e-6);
    draw(data, 3, COUNT);
    assert_int_equal(b->ops.head_norm_backward(b->context, NULL, &args), 0);
    expect("heads", want, "dx", data, COUNT, 2e-6);
    expect("heads", want, "dweight", dw, HEADS * WIDTH, 1e-6);
}

static void losses(const struct backend *b)
{
    static const char *const names[] = {"scaled", "capped", "both"};
    static const int32_t targets[ROWS] = {1, 7, 0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *want = case_of("losses", names[i]);
        float scale = 4 * (float)json_number_value(json_object_get(want, "scale"));
        float x[MOST], got[ROWS], dx[MOST];
        draw(x, 1, ROWS * WIDTH);
        for (int k = 0; k < ROWS * WIDTH; k++)
            x[k] *= scale;
        cross_entropy_args args = {.rows = ROWS,
                                   .vocab = WIDTH,
                                   .logits = x,
                                   .targets = targets,
                                   .losses = got,
                                   .logits_grad = dx,
                                   .grad_scale = 1.0f,
                                   .soft_cap =
                                       (float)json_number_value(json_object_get(want, "cap"))};
        assert_int_equal(b->ops.cross_entropy(b->context, NULL, &args), 0);
        expect(names[i], want, "y", got, ROWS, 1e-6);
        for (int k = 0; k < ROWS * WIDTH; k++)
            dx[k] *= scale;
        expect(names[i], want, "dx", dx, ROWS * WIDTH, 2e-6);
    }
}

/* The frequencies of transformers are fp32, with an error of 2^-24 or so, which is 1e-4 at 700
 * radians. */
static void rope_tables(const struct backend *b)
{
    static const struct {
        const char *name;
        rope_table_args args;
    } cases[] = {{"dynamic", {.scaling = ROPE_DYNAMIC, .factor = 4}},
                 {"dynamic_short", {.scaling = ROPE_DYNAMIC, .factor = 4}},
                 {"yarn", {.scaling = ROPE_YARN, .factor = 8}},
                 {"yarn_given",
                  {.scaling = ROPE_YARN,
                   .factor = 8,
                   .beta_fast = 20,
                   .beta_slow = 2,
                   .mscale = 0.7,
                   .mscale_all_dim = 1.2,
                   .keeps_fraction = true}},
                 {"longrope", {.scaling = ROPE_LONGROPE, .factor = 4}},
                 {"longrope_short", {.scaling = ROPE_LONGROPE, .factor = 4}}};
    static float table[(POSITION + 1) * PAIRS * 2];
    double short_factors[PAIRS], long_factors[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        short_factors[i] = 1 + 0.25 * i;
        long_factors[i] = 3 + 0.5 * i;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const json_t *want = case_of("ropes", cases[i].name);
        rope_table_args args = cases[i].args;
        args.table = table;
        args.tokens = POSITION + 1;
        args.head_dim = (uint64_t)2 * PAIRS;
        args.theta = 10000.0;
        args.original_positions = json_number_value(json_object_get(want, "positions"));
        args.short_factors = short_factors;
        args.long_factors = long_factors;
        assert_int_equal(b->ops.rope_table(b->context, NULL, &args), 0);
        expect(cases[i].name, want, "table", table + POSITION * PAIRS * 2, (size_t)2 * PAIRS, 2e-4);
    }
}

static void rope_of_glm4(const struct backend *b)
{
    enum { DIM = 4 * PAIRS, TOKENS = POSITION + 1 };
    static float table[TOKENS * PAIRS * 2], data[TOKENS * HEADS * DIM];
    float *last = data + (size_t)POSITION * HEADS * DIM;
    rope_table_args made = {
        .table = table, .tokens = TOKENS, .head_dim = (uint64_t)2 * PAIRS, .theta = 10000.0};
    rope_args args = {.batch = 1,
                      .tokens = TOKENS,
                      .heads = HEADS,
                      .head_dim = DIM,
                      .stride = (uint64_t)HEADS * DIM,
                      .rotated = (uint64_t)2 * PAIRS,
                      .interleaved = true,
                      .data = data,
                      .table = table};
    draw(last, 1, (uint64_t)HEADS * DIM);
    assert_int_equal(b->ops.rope_table(b->context, NULL, &made), 0);
    assert_int_equal(b->ops.rope(b->context, NULL, &args), 0);
    expect("glm4", case_of("ropes", "glm4"), "y", last, (size_t)HEADS * DIM, 1e-6);
}

/* Copies [heads, TOKENS, WIDTH] side by side into rows of `stride` elements, from column `first`
 * on; or back from there. */
static void turn_heads(float *heads, int count, float *rows, int stride, int first, bool is_back)
{
    enum { TOKENS = 5 };
    for (int i = 0; i < count * TOKENS * WIDTH; i++) {
        float *one =
            &rows[i / WIDTH % TOKENS * stride + first + i / WIDTH / TOKENS * WIDTH + i % WIDTH];
        *(is_back ? &heads[i] : one) = *(is_back ? one : &heads[i]);
    }
}

/* gpt-oss's attention with sinks. Attention is that of the reference backend. */
static void sinks(const struct backend *b)
{
    enum { TOKENS = 5, H = 4, G = 2, STRIDE = (H + 2 * G) * WIDTH, COUNT = TOKENS * H * WIDTH };
    static const struct {
        const char *name;
        int heads, first;
    } parts[] = {{"dq", H, 0}, {"dk", G, H * WIDTH}, {"dv", G, (H + G) * WIDTH}};
    const json_t *want = case_of("sinks", "gpt_oss");
    float rows[TOKENS * STRIDE], grads[TOKENS * STRIDE], heads[COUNT], dy[COUNT], y[COUNT];
    float s[H], ds[H] = {0}, lse[H * TOKENS];
    double scratch[TOKENS * (2 + 2 * WIDTH)];
    for (int i = 0; i < 3; i++) {
        draw(heads, 1 + (uint64_t)i, (uint64_t)parts[i].heads * TOKENS * WIDTH);
        turn_heads(heads, parts[i].heads, rows, STRIDE, parts[i].first, false);
    }
    draw(dy, 4, COUNT);
    draw(s, 5, H);
    attention_desc desc = {.batch = 1,
                           .tokens = TOKENS,
                           .heads = H,
                           .kv_heads = G,
                           .head_dim = WIDTH,
                           .qkv_stride = STRIDE,
                           .scale = 1 / sqrtf(WIDTH),
                           .window = 2};
    attention_sinks_args args = {.batch = 1,
                                 .tokens = TOKENS,
                                 .heads = H,
                                 .value_dim = WIDTH,
                                 .sinks = s,
                                 .output = y,
                                 .lse = lse,
                                 .output_grad = dy,
                                 .sinks_grad = ds};
    const kernel_ops *whole = &kernels_reference;
    kernel_attention *attention;
    float *k = rows + parts[1].first, *v = rows + parts[2].first;
    assert_int_equal(whole->attention_create(NULL, &desc, &attention), 0);
    assert_true(whole->attention_backward_scratch_bytes(attention) <= sizeof scratch);
    assert_int_equal(whole->attention_forward(attention, NULL, rows, k, v, y, lse, scratch), 0);
    assert_int_equal(b->ops.attention_sinks(b->context, NULL, &args), 0);
    expect("sinks", want, "y", y, COUNT, 1e-6);
    assert_int_equal(b->ops.attention_sinks_backward(b->context, NULL, &args), 0);
    expect("sinks", want, "ds", ds, H, 2e-6);
    assert_int_equal(whole->attention_backward(attention, NULL, rows, k, v, y, lse, dy, grads,
                                               grads + parts[1].first, grads + parts[2].first,
                                               scratch),
                     0);
    whole->attention_destroy(attention);
    for (int i = 0; i < 3 && b->context == NULL; i++) {
        turn_heads(heads, parts[i].heads, grads, STRIDE, parts[i].first, true);
        expect("sinks", want, parts[i].name, heads, (size_t)parts[i].heads * TOKENS * WIDTH, 2e-6);
    }
}

/* Routers of transformers: the experts that each row chooses, their weights, and gradients. */
static void routers(const struct backend *b)
{
    static const struct {
        const char *name;
        router_args args;
        bool has_bias;
    } cases[] = {
        {"mixtral", {.normalizes = true, .scale = 1}, false},
        {"qwen2_moe", {.scale = 1}, false},
        {"gpt_oss", {.normalizes = true, .scale = 1}, false},
        {"deepseek_v2", {.scale = 1.5f, .groups = 4, .groups_chosen = 2, .group_best = 1}, false},
        {"deepseek_v3",
         {.score = ROUTER_SIGMOID,
          .normalizes = true,
          .scale = 2.5f,
          .groups = 4,
          .groups_chosen = 2,
          .group_best = 2},
         true},
        {"deepseek_v3_plain", {.score = ROUTER_SIGMOID, .scale = 2.5f}, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const json_t *want = case_of("routers", cases[i].name);
        const json_t *chosen_want = json_object_get(want, "chosen");
        float x[ROWS * WIDTH], dw[ROWS * CHOICES], w[ROWS * CHOICES], dx[ROWS * WIDTH], bias[WIDTH];
        int32_t chosen[ROWS * CHOICES];
        router_args args = cases[i].args;
        draw(x, 1, ROWS * WIDTH);
        draw(dw, 2, ROWS * CHOICES);
        draw(bias, 3, WIDTH);
        for (int e = 0; e < WIDTH; e++)
            bias[e] *= 0.5f;
        args.rows = ROWS;
        args.experts = WIDTH;
        args.choices = CHOICES;
        args.logits = x;
        args.bias = cases[i].has_bias ? bias : NULL;
        args.chosen = chosen;
        args.weights = w;
        args.weights_grad = dw;
        args.logits_grad = dx;
        assert_int_equal(b->ops.router_forward(b->context, NULL, &args), 0);
        assert_int_equal(b->ops.router_backward(b->context, NULL, &args), 0);
        for (size_t k = 0; k < (size_t)ROWS * CHOICES; k++)
            assert_int_equal(chosen[k], json_integer_value(json_array_get(chosen_want, k)));
        expect(cases[i].name, want, "y", w, (size_t)ROWS * CHOICES, 1e-6);
        expect(cases[i].name, want, "dx", dx, (size_t)ROWS * WIDTH, 2e-6);
    }
}

/* The losses over two layers' logits together, from the totals; gradients layer by layer. */
static void router_losses(const struct backend *b)
{
    enum { CHOSEN = 2, LAYERS = 2 };
    const double all = (double)(LAYERS * ROWS);
    float x[LAYERS][ROWS * WIDTH], dx[ROWS * WIDTH], w[ROWS * CHOSEN], dw[ROWS * CHOSEN] = {0};
    int32_t chosen[LAYERS][ROWS * CHOSEN];
    double totals[2 * WIDTH + 1] = {0}, scratch[2 * WIDTH + 1], balance = 0;
    router_args args = {.rows = ROWS,
                        .experts = WIDTH,
                        .choices = CHOSEN,
                        .scale = 1,
                        .weights = w,
                        .weights_grad = dw,
                        .totals = totals,
                        .logits_grad = dx};
    assert_true(b->ops.router_sums_scratch_bytes(b->context, ROWS, WIDTH) <= sizeof scratch);
    for (int layer = 0; layer < LAYERS; layer++) {
        draw(x[layer], 1 + (uint64_t)layer, ROWS * WIDTH);
        args.logits = x[layer];
        args.chosen = chosen[layer];
        router_sums_args sums = {.rows = ROWS,
                                 .experts = WIDTH,
                                 .choices = CHOSEN,
                                 .logits = x[layer],
                                 .chosen = chosen[layer],
                                 .totals = totals,
                                 .scratch = scratch};
        assert_int_equal(b->ops.router_forward(b->context, NULL, &args), 0);
        assert_int_equal(b->ops.router_sums(b->context, NULL, &sums), 0);
    }
    for (int e = 0; e < WIDTH; e++)
        balance += WIDTH * totals[e] / all * totals[WIDTH + e] / all;
    for (int is_z = 0; is_z < 2; is_z++) {
        const json_t *want = case_of("routers", is_z ? "z" : "balance");
        float loss = (float)(is_z ? totals[2 * WIDTH] / all : balance);
        expect("losses of routers", want, "y", &loss, 1, 1e-6);
        args.balance_scale = is_z ? 0.0f : (float)(WIDTH / (all * all));
        args.z_scale = is_z ? (float)(2 / all) : 0.0f;
        for (int layer = 0; layer < LAYERS; layer++) {
            args.logits = x[layer];
            args.chosen = chosen[layer];
            assert_int_equal(b->ops.router_backward(b->context, NULL, &args), 0);
            expect("losses of routers", want, layer ? "dx2" : "dx1", dx, ROWS * WIDTH, 1e-6);
        }
    }
}

/* out[rows, n] = in[rows, k] w[n, k]^T + bias, or, if `is_back`, out[rows, k] = in[rows, n] w. */
static void multiply(bool is_back, size_t rows, size_t n, size_t k, const float *in, const float *w,
                     const float *bias, float *out)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t to = 0; to < (is_back ? k : n); to++) {
            double sum = bias ? (double)bias[to] : 0.0;
            for (size_t from = 0; from < (is_back ? n : k); from++)
                sum += (double)in[row * (is_back ? n : k) + from] *
                       (double)w[is_back ? from * k + to : to * k + from];
            out[row * (is_back ? k : n) + to] = (float)sum;
        }
}

/* Whole mixtures, forward and backward, with products of our own: Mixtral's, and gpt-oss's with
 * biases and limited gates. Expert 1 has all rows, expert 2 none. */
static void mixture(const struct backend *b, bool is_gpt_oss)
{
    enum { CHOSEN = 2, MULTIPLE = 2, SLOTS = ROWS * CHOSEN + EXPERTS, WIDE = 2 * FEATURES };
    const char *name = is_gpt_oss ? "gpt_oss" : "mixtral";
    const int32_t chosen[ROWS * CHOSEN] = {1, 3, 0, 1, 1, 3};
    float x[ROWS * WIDTH], w[ROWS * CHOSEN], dy[ROWS * WIDTH], y[ROWS * WIDTH] = {0};
    float dx[ROWS * WIDTH] = {0}, dw[ROWS * CHOSEN], up[EXPERTS * WIDE * WIDTH];
    float down[EXPERTS * WIDTH * FEATURES], up_bias[EXPERTS * WIDE], down_bias[EXPERTS * WIDTH];
    float in[SLOTS * WIDTH], wide[SLOTS * WIDE], inner[SLOTS * FEATURES], out[SLOTS * WIDTH];
    int32_t offsets[EXPERTS + 1], order[SLOTS], slots[ROWS * CHOSEN];
    draw(x, 1, ROWS * WIDTH);
    draw(w, 2, ROWS * CHOSEN);
    draw(dy, 3, ROWS * WIDTH);
    draw(up, 4, sizeof up / sizeof *up);
    draw(down, 5, sizeof down / sizeof *down);
    draw(up_bias, 6, EXPERTS * WIDE);
    draw(down_bias, 7, EXPERTS * WIDTH);
    experts_sort_args sort = {.rows = ROWS,
                              .experts = EXPERTS,
                              .choices = CHOSEN,
                              .multiple = MULTIPLE,
                              .chosen = chosen,
                              .offsets = offsets,
                              .order = order,
                              .slots = slots};
    assert_int_equal(b->ops.experts_sort(b->context, NULL, &sort), 0);
    experts_rows_args args = {.rows = ROWS,
                              .choices = CHOSEN,
                              .channels = WIDTH,
                              .slot_count = (uint64_t)offsets[EXPERTS],
                              .order = order,
                              .slots = slots,
                              .weights = w,
                              .tokens = x,
                              .slot_rows = in};
    activation_args gate = {.kind = is_gpt_oss ? ACTIVATION_SWIGLU_CLAMPED : ACTIVATION_SWIGLU,
                            .rows = args.slot_count,
                            .features = FEATURES,
                            .alpha = 1.702f,
                            .limit = 1.25f,
                            .input = wide,
                            .output = inner,
                            .output_grad = inner,
                            .input_grad = wide};
    assert_int_equal(b->ops.experts_gather(b->context, NULL, &args), 0);
    for (size_t e = 0; e < EXPERTS; e++)
        multiply(false, (size_t)(offsets[e + 1] - offsets[e]), WIDE, WIDTH, in + offsets[e] * WIDTH,
                 up + e * WIDE * WIDTH, is_gpt_oss ? up_bias + e * WIDE : NULL,
                 wide + offsets[e] * WIDE);
    assert_int_equal(b->ops.activation_forward(b->context, NULL, &gate), 0);
    for (size_t e = 0; e < EXPERTS; e++)
        multiply(false, (size_t)(offsets[e + 1] - offsets[e]), WIDTH, FEATURES,
                 inner + offsets[e] * FEATURES, down + e * WIDTH * FEATURES,
                 is_gpt_oss ? down_bias + e * WIDTH : NULL, out + offsets[e] * WIDTH);
    args.slot_rows = out;
    args.sums = y;
    assert_int_equal(b->ops.experts_combine(b->context, NULL, &args), 0);

    args.tokens = dy;
    args.slot_rows = in;
    args.output = out;
    args.weights_grad = dw;
    assert_int_equal(b->ops.experts_gather(b->context, NULL, &args), 0);
    assert_int_equal(b->ops.experts_weights_backward(b->context, NULL, &args), 0);
    for (size_t e = 0; e < EXPERTS; e++)
        multiply(true, (size_t)(offsets[e + 1] - offsets[e]), WIDTH, FEATURES,
                 in + offsets[e] * WIDTH, down + e * WIDTH * FEATURES, NULL,
                 inner + offsets[e] * FEATURES);
    assert_int_equal(b->ops.activation_backward(b->context, NULL, &gate), 0);
    for (size_t e = 0; e < EXPERTS; e++)
        multiply(true, (size_t)(offsets[e + 1] - offsets[e]), WIDE, WIDTH, wide + offsets[e] * WIDE,
                 up + e * WIDE * WIDTH, NULL, in + offsets[e] * WIDTH);
    args.weights = NULL;
    args.sums = dx;
    assert_int_equal(b->ops.experts_combine(b->context, NULL, &args), 0);
    const json_t *want = case_of("experts", name);
    expect(name, want, "y", y, ROWS * WIDTH, 2e-6);
    expect(name, want, "dx", dx, ROWS * WIDTH, 4e-6);
    expect(name, want, "dweights", dw, ROWS * CHOSEN, 4e-6);
}

static void as_pytorch(void **state)
{
    enum cpu_isa isa = CPU_BASELINE;
    assert_int_equal(isa_of_test(&isa), 0);
    kernel_context context = rows_context_of(isa, 2);
    const struct backend backends[] = {
        {kernels_reference, NULL},
        {kernels_cpu, &context},
    };
    for (int i = 0; i < 2; i++) {
        activations(&backends[i]);
        norms(&backends[i]);
        head_norms(&backends[i]);
        losses(&backends[i]);
        rope_tables(&backends[i]);
        rope_of_glm4(&backends[i]);
        sinks(&backends[i]);
        routers(&backends[i]);
        router_losses(&backends[i]);
        mixture(&backends[i], false);
        mixture(&backends[i], true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_pytorch)};
    json_error_t error;
    document = json_load_file(FIXTURE_DIR "/rows.json", JSON_REJECT_DUPLICATES, &error);
    if (!document) {
        fprintf(stderr, "rows.json:%d: %s\n", error.line, error.text);
        return 1;
    }
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(document);
    return status;
}
