/* GFLOP/s of attention forward and backward (causal work counts half), against a large square
 * product of the same dtype in the same run. Usage: bench_attention [THREADS [T]]; T: only shapes
 * with so many tokens. bench.h has the common options; --quick leaves out what takes long. Before
 * the timing, the last query row of the first head is checked against a loop in double.
 *
 * A window of many documents follows the same window as one document. Its FLOPs are those of the
 * documents, and the last line compares the tokens per second of both. */
#include <math.h>

#include "perf/products/bench_products.h"

struct bench {
    attention_desc desc;
    kernel_attention *attention;
    char *qkv, *grads, *output, *output_grad;
    size_t k_offset, v_offset; /* bytes from q to k and v in a packed row */
    float *lse;
    int32_t *begins;   /* NULL: one document */
    uint64_t document; /* tokens of a document */
    void *scratch;
};

/* Long sequences have a head for each of two threads. document: tokens of each, 0 for T. */
static const struct {
    uint64_t batch, tokens, heads, kv_heads, head_dim, document;
} shapes[] = {{4, 256, 8, 8, 64, 0},    {1, 1024, 16, 16, 100, 0}, {1, 1024, 25, 25, 64, 0},
              {1, 2048, 16, 4, 128, 0}, {1, 8192, 2, 2, 64, 0},    {1, 8192, 2, 2, 64, 256},
              {1, 8192, 2, 2, 128, 0},  {1, 32768, 2, 2, 64, 0}};

enum { LONG_TOKENS = 8192, LONG_WARMUP = 1, LONG_RUNS = 7 };

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
    uint64_t row = d->tokens - 1;
    double denominator = 0, output = 0;
    for (uint64_t s = row / b->document * b->document; s < d->tokens; s++) {
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

static struct bench_time measure(int (*run)(void *user), struct bench *b)
{
    if (b->desc.tokens < LONG_TOKENS)
        return bench_measure(run, b);
    return bench_measure_runs(run, b, LONG_WARMUP, bench_is_quick() ? 3 : LONG_RUNS);
}

/* Prints and keeps a pass, and returns its seconds. */
static double report(const struct bench *b, const char *pass, struct bench_time time, double flops,
                     double limit)
{
    const attention_desc *d = &b->desc;
    printf("  %-8s %9.3f ms (%.3f to %.3f)  %6.1f GFLOP/s  %3.0f%% of %.0f\n", pass,
           time.median * 1e3, time.fastest * 1e3, time.slowest * 1e3, flops / time.median * 1e-9,
           100 * flops / time.median / limit, limit * 1e-9);
    char name[112];
    int length = snprintf(name, sizeof name, "attention %s %s B=%d T=%d H=%d G=%d D=%d",
                          dtype_name(d->type), pass, (int)d->batch, (int)d->tokens, (int)d->heads,
                          (int)d->kv_heads, (int)d->head_dim);
    if (b->begins)
        snprintf(name + length, sizeof name - (size_t)length, ", documents of %d",
                 (int)b->document);
    bench_keep(name, flops / time.median * 1e-9, "GFLOP/s", limit * 1e-9, time.spread);
    return time.median;
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    kernel_context_config config = {.thread_count = bench_threads(argc, argv, 1)};
    uint64_t only = (uint64_t)bench_number(argc, argv, 2, "T", 0, 1, 1 << 20);
    kernel_context *context;
    bench_require(kernels_cpu.context_create(&config, &context));
    printf("%s\n", kernels_cpu.describe(context));
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32};
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        double limit = bench_limit(context, types[type], NULL);
        double whole = 0; /* seconds of the shape before */
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            if (is_left_out(shapes[i].tokens, types[type], only))
                continue;
            struct bench b = {.document =
                                  shapes[i].document ? shapes[i].document : shapes[i].tokens,
                              .desc = {.batch = shapes[i].batch,
                                       .tokens = shapes[i].tokens,
                                       .heads = shapes[i].heads,
                                       .kv_heads = shapes[i].kv_heads,
                                       .head_dim = shapes[i].head_dim,
                                       .type = types[type]}};
            attention_desc *d = &b.desc;
            d->qkv_stride = (d->heads + 2 * d->kv_heads) * d->head_dim;
            d->scale = 1.0f / sqrtf((float)d->head_dim);
            bench_init(&b, context);
            check(&b);
            printf("%s B=%d T=%d H=%d G=%d D=%d, documents of %d\n", dtype_name(d->type),
                   (int)d->batch, (int)d->tokens, (int)d->heads, (int)d->kv_heads, (int)d->head_dim,
                   (int)b.document);
            /* Two products forward and five backward, of T*T*D each for one document; causal
             * attention needs half. */
            double product = (double)(d->batch * d->heads * d->tokens * b.document * d->head_dim);
            double seconds = report(&b, "forward", measure(run_forward, &b), 2 * product, limit);
            seconds += report(&b, "backward", measure(run_backward, &b), 5 * product, limit);
            if (b.begins)
                printf("  tokens/s: %.1f times those of one document\n", whole / seconds);
            whole = seconds;
            bench_fini(&b);
        }
    }
    kernels_cpu.context_destroy(context);
    return 0;
}
