/* GFLOP/s of attention forward and backward, and the share of a large square product's speed that
 * they reach. A product, a forward and a backward pass take turns, so that all three run under the
 * same conditions. FLOPs are those of the pairs of query and key that the mask lets through: half
 * of all for causal attention.
 *
 * Usage: bench_attention [THREADS [T]]; T: only shapes with so many tokens. Without THREADS it
 * measures one thread, in its CPU time, and then all cores. bench.h has the common options; --quick
 * leaves out what takes long. Before the timing, the last query row of the first head is checked
 * against a loop in double.
 *
 * A window of many documents follows the same window as one document. Its FLOPs are those of the
 * documents, and the last line compares the tokens per second of both. */
#include <math.h>
#include <time.h>

#include "perf/products/bench_products.h"

/* Sizes of attention_desc, and the tokens of a document. */
struct shape {
    uint64_t batch, tokens, heads, kv_heads, head_dim;
    uint64_t document; /* 0: T */
    uint64_t window;   /* 0: none */
    uint64_t stride;   /* of rows of q, k and v; 0: these heads side by side */
};

/* Long sequences have a head for each of two threads. The stride of 6144 is that of a model with 32
 * heads of 128 and 8 key/value heads; its rows lie a multiple of 4 KiB apart. */
static const struct shape shapes[] = {
    {4, 256, 8, 8, 64, 0, 0, 0},      {1, 1024, 16, 16, 100, 0, 0, 0},
    {1, 1024, 25, 25, 64, 0, 0, 0},   {1, 2048, 16, 4, 128, 0, 0, 0},
    {1, 8192, 2, 2, 64, 0, 0, 0},     {1, 8192, 2, 2, 64, 256, 0, 0},
    {1, 8192, 2, 2, 128, 0, 0, 0},    {1, 8192, 2, 2, 128, 0, 0, 6144},
    {1, 8192, 2, 2, 128, 0, 1024, 0}, {1, 32768, 2, 2, 64, 0, 0, 0},
    {1, 32768, 2, 2, 128, 0, 0, 0},
};

enum { LONG_TOKENS = 8192, RUNS = 7, QUICK_RUNS = 3 };

struct bench {
    attention_desc desc;
    int threads;
    struct bench_product product; /* the limit */
    kernel_attention *attention;
    char *qkv, *grads, *output, *output_grad;
    size_t k_offset, v_offset; /* bytes from q to k and v in a packed row */
    float *lse;
    int32_t *begins;   /* NULL: one document */
    uint64_t document; /* tokens of a document */
    void *scratch;
};

/* With --quick, and in fp32 always, 32K tokens are left out. */
static bool is_left_out(uint64_t tokens, enum dtype type, uint64_t only)
{
    if (only)
        return tokens != only;
    return tokens > LONG_TOKENS && (bench_is_quick() || type == DTYPE_FP32);
}

static int run_forward(void *user)
{
    struct bench *b = user;
    return kernels_cpu.attention_forward(b->attention, NULL, b->qkv, b->qkv + b->k_offset,
                                         b->qkv + b->v_offset, b->output, b->lse, b->scratch);
}

static int run_backward(void *user)
{
    struct bench *b = user;
    return kernels_cpu.attention_backward(
        b->attention, NULL, b->qkv, b->qkv + b->k_offset, b->qkv + b->v_offset, b->output, b->lse,
        b->output_grad, b->grads, b->grads + b->k_offset, b->grads + b->v_offset, b->scratch);
}

static void bench_init(struct bench *b, kernel_context *context)
{
    const attention_desc *d = &b->desc;
    bench_require(kernels_cpu.attention_create(context, d, &b->attention));
    uint64_t rows = d->batch * d->tokens, width = d->heads * d->head_dim;
    b->begins = NULL;
    if (b->document < d->tokens) {
        b->begins = bench_block(rows * sizeof *b->begins);
        for (uint64_t row = 0; row < rows; row++)
            b->begins[row] = (int32_t)(row % d->tokens / b->document * b->document);
        kernels_cpu.attention_set_documents(b->attention, b->begins);
    }
    size_t elem_bytes = dtype_bytes(d->type);
    b->k_offset = width * elem_bytes;
    b->v_offset = (width + d->kv_heads * d->head_dim) * elem_bytes;
    b->qkv = bench_random(d->type, rows * d->qkv_stride, 1);
    b->output_grad = bench_random(d->type, rows * width, 2);
    b->grads = bench_block(rows * d->qkv_stride * elem_bytes);
    b->output = bench_block(rows * width * elem_bytes);
    b->lse = bench_block(rows * d->heads * sizeof *b->lse);
    size_t forward_bytes = kernels_cpu.attention_forward_scratch_bytes(b->attention);
    size_t backward_bytes = kernels_cpu.attention_backward_scratch_bytes(b->attention);
    b->scratch = bench_block(forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
}

static void bench_fini(struct bench *b)
{
    kernels_cpu.attention_destroy(b->attention);
    mem_free(b->qkv);
    mem_free(b->output_grad);
    mem_free(b->grads);
    mem_free(b->output);
    mem_free(b->lse);
    mem_free(b->begins);
    mem_free(b->scratch);
}

static void check(struct bench *b)
{
    const attention_desc *d = &b->desc;
    uint64_t row = d->tokens - 1, first = row / b->document * b->document;
    if (d->window)
        first = d->tokens - d->window;
    double denominator = 0, output = 0;
    for (uint64_t s = first; s < d->tokens; s++) {
        double score = 0;
        for (uint64_t i = 0; i < d->head_dim; i++)
            score += (double)bench_value(b->qkv, d->type, row * d->qkv_stride + i) *
                     (double)bench_value(b->qkv + b->k_offset, d->type, s * d->qkv_stride + i);
        double p = exp(score * (double)d->scale);
        denominator += p;
        output += p * (double)bench_value(b->qkv + b->v_offset, d->type, s * d->qkv_stride);
    }
    bench_require(run_forward(b));
    double got = (double)bench_value(b->output, d->type, row * d->heads * d->head_dim);
    double tolerance = d->type == DTYPE_FP32 ? 1e-5 : 0x1p-8;
    if (!(fabs(got - output / denominator) <= tolerance))
        bench_require(err_set(ERR_INTERNAL, "output is %g, not %g", got, output / denominator));
}

/* ---- the turns ---- */

/* One thread works on the calling thread, whose CPU time other programs do not lengthen. */
static double now(const struct bench *b)
{
    if (b->threads > 1)
        return (double)clock_ns() * 1e-9;
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double seconds_of(int (*run)(void *user), struct bench *b, void *user)
{
    double start = now(b);
    bench_require(run(user));
    return now(b) - start;
}

static double product_seconds(void *user)
{
    struct bench *b = user;
    return seconds_of(bench_product_run, b, &b->product);
}

static double forward_seconds(void *user)
{
    return seconds_of(run_forward, user, user);
}

static double backward_seconds(void *user)
{
    return seconds_of(run_backward, user, user);
}

/* ---- the report ---- */

/* Pairs of query and key that the mask lets through, of all heads. The diagonal counts half. */
static double pairs_of(const struct bench *b)
{
    const attention_desc *d = &b->desc;
    double tokens = (double)d->tokens, seen = (double)b->document;
    if (d->window)
        seen = (double)d->window;
    double pairs = b->begins ? tokens * seen / 2 : tokens * seen - seen * seen / 2;
    return pairs * (double)(d->batch * d->heads);
}

static void describe(const struct bench *b, const char *pass, char *text, size_t room)
{
    const attention_desc *d = &b->desc;
    char of[64] = "";
    if (b->begins)
        snprintf(of, sizeof of, ", documents of %d", (int)b->document);
    else if (d->window)
        snprintf(of, sizeof of, ", window %d", (int)d->window);
    else if (d->qkv_stride != (d->heads + 2 * d->kv_heads) * d->head_dim)
        snprintf(of, sizeof of, ", stride %d", (int)d->qkv_stride);
    snprintf(text, room, "attention %s%s B=%d T=%d H=%d G=%d D=%d%s, %d thread%s",
             dtype_name(d->type), pass, (int)d->batch, (int)d->tokens, (int)d->heads,
             (int)d->kv_heads, (int)d->head_dim, of, b->threads, b->threads == 1 ? "" : "s");
}

/* Prints and keeps a pass. Both ratios are shares of the product's speed: of the medians, and of
 * the fastest run of each. */
static void report(const struct bench *b, const char *pass, double flops,
                   const struct bench_summary *time, const struct bench_summary *product)
{
    double product_flops = bench_product_flops(&b->product.desc);
    double rate = flops / time->median * 1e-9, limit = product_flops / product->median * 1e-9;
    printf("  %-8s %9.3f ms (%.3f to %.3f)  %6.1f GFLOP/s  %.2f of %.0f  fastest %.2f\n", pass + 1,
           time->median * 1e3, time->lowest * 1e3, time->highest * 1e3, rate, rate / limit, limit,
           flops / time->lowest / (product_flops / product->lowest));
    fflush(stdout);
    char name[128];
    describe(b, pass, name, sizeof name);
    bench_keep(name, rate, "GFLOP/s", limit, time->spread);
}

/* Measures a shape. Returns the seconds of both passes. */
static double bench_shape(kernel_context *context, int threads, const struct shape *shape,
                          enum dtype type)
{
    uint64_t packed = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    struct bench b = {.threads = threads,
                      .document = shape->document ? shape->document : shape->tokens,
                      .desc = {.batch = shape->batch,
                               .tokens = shape->tokens,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .head_dim = shape->head_dim,
                               .qkv_stride = shape->stride ? shape->stride : packed,
                               .window = shape->window,
                               .scale = 1.0f / sqrtf((float)shape->head_dim),
                               .type = type}};
    matmul_desc large = bench_large_product(type);
    bench_product_init(&b.product, context, &large);
    bench_init(&b, context);
    check(&b);
    char name[128];
    describe(&b, "", name, sizeof name);
    printf("%s\n", name);
    enum { PRODUCT, FORWARD, BACKWARD, BODIES };
    const struct bench_body bodies[BODIES] = {
        {product_seconds, &b}, {forward_seconds, &b}, {backward_seconds, &b}};
    struct bench_summary times[BODIES];
    bench_by_turns(bodies, BODIES, bench_is_quick() ? QUICK_RUNS : RUNS, times);
    /* Two FLOPs for each element of a head and pair in each product: two products forward and five
     * backward. */
    double product = 2 * pairs_of(&b) * (double)shape->head_dim;
    report(&b, " forward", 2 * product, &times[FORWARD], &times[PRODUCT]);
    report(&b, " backward", 5 * product, &times[BACKWARD], &times[PRODUCT]);
    bench_fini(&b);
    bench_product_fini(&b.product);
    return times[FORWARD].median + times[BACKWARD].median;
}

static void bench_shapes(int threads, uint64_t only)
{
    kernel_context_config config = {.thread_count = threads};
    kernel_context *context;
    bench_require(kernels_cpu.context_create(&config, &context));
    printf("%s\n", kernels_cpu.describe(context));
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32};
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        double whole = 0; /* seconds of the shape before */
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            if (is_left_out(shapes[i].tokens, types[type], only))
                continue;
            double seconds = bench_shape(context, threads, &shapes[i], types[type]);
            if (shapes[i].document)
                printf("  tokens/s: %.1f times those of one document\n", whole / seconds);
            whole = seconds;
        }
    }
    kernels_cpu.context_destroy(context);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    int threads = bench_threads(argc, argv, 1);
    uint64_t only = (uint64_t)bench_number(argc, argv, 2, "T", 0, 1, 1 << 20);
    if (argc < 2 && threads > 1)
        bench_shapes(1, only);
    bench_shapes(threads, only);
    return 0;
}
