/* GB/s of the CPU's row ops (activations, norms, additions, bias gradients, embedding, cross-entropy), each held
 * against a loop that reads and writes as many streams of as many bytes and computes next to nothing, timed by
 * turns with it. Shapes of GPT-2 124M at B=4, T=1024; the loss over 512 rows.
 * Usage: bench_rows [THREADS] [--quick] [--csv FILE]. */
#include <errno.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "perf/bench.h"

enum { STREAMS_MAX = 4, RUNS = 15, CHANNELS = 768, HIDDEN = 3072, VOCAB = 50257, LOSS_ROWS = 512 };

/* The arrays of a case; streams[0..reads) are read, streams[reads..reads + writes) written. */
struct bench {
    kernel_context *context;
    int threads;
    enum dtype type;
    uint64_t tokens; /* rows of all but the loss */
    void *in[STREAMS_MAX], *out[STREAMS_MAX], *scratch;
    float *stats, *grads; /* [2, tokens] and [V, C] fp32 */
    int32_t *token_ids;
    /* what the limit does */
    uint64_t read_bytes[STREAMS_MAX], write_bytes[STREAMS_MAX];
    int reads, writes;
    int (*run)(struct bench *bench);
};

static int gelu_forward(struct bench *b)
{
    activation_args args = {.kind = ACTIVATION_GELU,
                            .type = b->type,
                            .rows = b->tokens,
                            .features = HIDDEN,
                            .input = b->in[0],
                            .output = b->out[0]};
    return kernels_cpu.activation_forward(b->context, NULL, &args);
}

static int gelu_backward(struct bench *b)
{
    activation_args args = {.kind = ACTIVATION_GELU,
                            .type = b->type,
                            .rows = b->tokens,
                            .features = HIDDEN,
                            .input = b->in[0],
                            .output_grad = b->in[1],
                            .input_grad = b->out[0]};
    return kernels_cpu.activation_backward(b->context, NULL, &args);
}

static int swiglu_forward(struct bench *b)
{
    activation_args args = {.kind = ACTIVATION_SWIGLU,
                            .type = b->type,
                            .rows = b->tokens,
                            .features = HIDDEN / 2,
                            .input = b->in[0],
                            .output = b->out[0]};
    return kernels_cpu.activation_forward(b->context, NULL, &args);
}

static int swiglu_backward(struct bench *b)
{
    activation_args args = {.kind = ACTIVATION_SWIGLU,
                            .type = b->type,
                            .rows = b->tokens,
                            .features = HIDDEN / 2,
                            .input = b->in[0],
                            .output_grad = b->in[1],
                            .input_grad = b->out[0]};
    return kernels_cpu.activation_backward(b->context, NULL, &args);
}

static int norm_forward(struct bench *b)
{
    norm_args args = {.kind = NORM_LAYER,
                      .type = b->type,
                      .rows = b->tokens,
                      .channels = CHANNELS,
                      .epsilon = 1e-5f,
                      .input = b->in[0],
                      .residual = b->in[1],
                      .sum = b->out[1],
                      .weight = b->in[2],
                      .bias = b->in[3],
                      .output = b->out[0],
                      .mean = b->stats,
                      .rstd = b->stats + b->tokens};
    return kernels_cpu.norm_forward(b->context, NULL, &args);
}

static int norm_backward(struct bench *b)
{
    norm_grad_args args = {.kind = NORM_LAYER,
                           .type = b->type,
                           .rows = b->tokens,
                           .channels = CHANNELS,
                           .input = b->in[0],
                           .weight = b->in[3],
                           .mean = b->stats,
                           .rstd = b->stats + b->tokens,
                           .output_grad = b->in[1],
                           .residual_grad = b->in[2],
                           .input_grad = b->out[0],
                           .weight_grad = b->grads,
                           .bias_grad = b->grads + CHANNELS,
                           .scratch = b->scratch};
    return kernels_cpu.norm_backward(b->context, NULL, &args);
}

static int add(struct bench *b)
{
    return kernels_cpu.add(b->context, NULL, b->type, b->tokens * CHANNELS, b->in[0], b->in[1],
                           b->out[0]);
}

static int bias_backward(struct bench *b)
{
    return kernels_cpu.bias_backward(b->context, NULL, b->type, b->tokens, HIDDEN, b->in[0],
                                     b->grads, b->scratch);
}

static int embedding_forward(struct bench *b)
{
    embedding_args args = {.type = b->type,
                           .batch = 4,
                           .tokens = b->tokens / 4,
                           .channels = CHANNELS,
                           .vocab = HIDDEN,
                           .token_ids = b->token_ids,
                           .token_table = b->in[0],
                           .position_table = b->in[1],
                           .output = b->out[0]};
    return kernels_cpu.embedding_forward(b->context, NULL, &args);
}

static int embedding_backward(struct bench *b)
{
    embedding_grad_args args = {.type = b->type,
                                .batch = 4,
                                .tokens = b->tokens / 4,
                                .channels = CHANNELS,
                                .vocab = HIDDEN,
                                .token_ids = b->token_ids,
                                .output_grad = b->in[0],
                                .token_table_grad = b->grads,
                                .position_table_grad = b->grads + (uint64_t)HIDDEN * CHANNELS,
                                .scratch = b->scratch};
    return kernels_cpu.embedding_backward(b->context, NULL, &args);
}

static int cross_entropy(struct bench *b)
{
    cross_entropy_args args = {.type = b->type,
                               .rows = LOSS_ROWS,
                               .vocab = VOCAB,
                               .logits = b->grads,
                               .targets = b->token_ids,
                               .grad_scale = 1.0f,
                               .logits_grad = b->out[0],
                               .losses = b->stats};
    return kernels_cpu.cross_entropy(b->context, NULL, &args);
}

static double seconds_of_op(void *user)
{
    struct bench *b = user;
    uint64_t start = clock_ns();
    bench_require(b->run(b));
    return (double)(clock_ns() - start) * 1e-9;
}

/* Reads every read stream, in 4 KiB pieces side by side, and writes what it xors of them into the write
 * streams. Streams lie where the op's do. */
static double seconds_of_limit(void *user)
{
    enum { PIECES = 4096 };
    struct bench *b = user;
    uint64_t start = clock_ns(), kept = 0;
    const uint64_t *source[STREAMS_MAX];
    uint64_t *target[STREAMS_MAX];
    for (int i = 0; i < b->reads; i++)
        source[i] = b->run == cross_entropy && i == 0 ? (const uint64_t *)b->grads : b->in[i];
    for (int i = 0; i < b->writes; i++)
        target[i] = b->out[i];
#pragma omp parallel for schedule(static) num_threads(b->threads) reduction(^ : kept)
    for (uint64_t piece = 0; piece < PIECES; piece++) {
        uint64_t all = piece;
        for (int i = 0; i < b->reads; i++) {
            uint64_t words = b->read_bytes[i] / 8 / PIECES;
            const uint64_t *at = source[i] + piece * words;
            for (uint64_t word = 0; word < words; word++)
                all ^= at[word];
        }
        for (int i = 0; i < b->writes; i++) {
            uint64_t words = b->write_bytes[i] / 8 / PIECES;
            uint64_t *at = target[i] + piece * words;
            for (uint64_t word = 0; word < words; word++)
                at[word] = all;
        }
        kept ^= all;
    }
    b->token_ids[b->tokens] = (int32_t)(kept & 1); /* or the loop were dropped */
    return (double)(clock_ns() - start) * 1e-9;
}

/* Streams of each case in elements of the working type; -1: logits, fp32. */
static const struct {
    const char *name;
    int (*run)(struct bench *bench);
    int reads, writes, width;
} cases[] = {
    {"gelu forward", gelu_forward, 1, 1, HIDDEN},
    {"gelu backward", gelu_backward, 2, 1, HIDDEN},
    {"swiglu forward", swiglu_forward, 1, 1, 0},
    {"swiglu backward", swiglu_backward, 2, 1, 0},
    {"layer norm forward, with residual", norm_forward, 2, 2, CHANNELS},
    {"layer norm backward, with residual", norm_backward, 3, 1, CHANNELS},
    {"add", add, 2, 1, CHANNELS},
    {"bias backward", bias_backward, 1, 0, HIDDEN},
    {"embedding forward", embedding_forward, 1, 1, CHANNELS},
    {"embedding backward", embedding_backward, 1, 2, CHANNELS},
    {"cross-entropy with gradient", cross_entropy, 1, 1, -1},
};

/* Bytes of the streams of a case, for its limit; returns their sum. */
static uint64_t case_streams(struct bench *b, size_t index)
{
    uint64_t elem_bytes = dtype_bytes(b->type), total = 0;
    b->reads = cases[index].reads;
    b->writes = cases[index].writes;
    for (int i = 0; i < STREAMS_MAX; i++)
        b->read_bytes[i] = b->write_bytes[i] = b->tokens * (uint64_t)HIDDEN * elem_bytes;
    if (cases[index].width > 0)
        for (int i = 0; i < STREAMS_MAX; i++)
            b->read_bytes[i] = b->write_bytes[i] =
                b->tokens * (uint64_t)cases[index].width * elem_bytes;
    if (b->run == swiglu_forward)
        b->write_bytes[0] /= 2;
    if (b->run == swiglu_backward)
        b->read_bytes[1] /= 2;
    if (b->run == embedding_backward) /* the sums of tokens and positions: in and out */
        b->write_bytes[0] = b->write_bytes[1] = 2 * b->tokens * CHANNELS * sizeof(float);
    if (b->run == cross_entropy) {
        b->read_bytes[0] = (uint64_t)LOSS_ROWS * VOCAB * sizeof(float);
        b->write_bytes[0] = (uint64_t)LOSS_ROWS * VOCAB * elem_bytes;
    }
    for (int i = 0; i < b->reads; i++)
        total += b->read_bytes[i];
    for (int i = 0; i < b->writes; i++)
        total += b->write_bytes[i];
    return total;
}

static void *block(uint64_t bytes)
{
    void *data = mem_alloc(bytes, 1, "benchmark operand");
    if (!data)
        bench_require(-ENOMEM);
    return data;
}

static void bench_init(struct bench *b)
{
    uint64_t loss_bytes = (uint64_t)LOSS_ROWS * VOCAB * sizeof(float);
    uint64_t bytes = b->tokens * (uint64_t)HIDDEN * sizeof(float);
    for (int i = 0; i < STREAMS_MAX; i++) {
        b->in[i] = block(bytes);
        b->out[i] = block(bytes > loss_bytes ? bytes : loss_bytes);
        for (uint64_t e = 0; e < b->tokens * HIDDEN; e++) {
            float value = 2.0f * ((float)rng_uniform(1, (uint64_t)i, e) - 0.5f);
            dtype_convert(&value, DTYPE_FP32, (char *)b->in[i] + e * dtype_bytes(b->type), b->type,
                          1);
        }
    }
    uint64_t table = (uint64_t)(HIDDEN + b->tokens) * CHANNELS * sizeof(float);
    b->grads = block(table > loss_bytes ? table : loss_bytes);
    b->stats = block(2 * b->tokens * sizeof *b->stats);
    b->token_ids = block((b->tokens + 1) * sizeof *b->token_ids);
    for (uint64_t i = 0; i < b->tokens; i++)
        b->token_ids[i] = (int32_t)(rng_uniform(2, 0, i) * (HIDDEN - 1));
    size_t norm_bytes = kernels_cpu.norm_grad_scratch_bytes(b->context, b->tokens, CHANNELS);
    size_t bias_bytes = kernels_cpu.bias_backward_scratch_bytes(b->context, b->tokens, HIDDEN);
    b->scratch = block(norm_bytes > bias_bytes ? norm_bytes : bias_bytes);
}

static void bench_fini(struct bench *b)
{
    for (int i = 0; i < STREAMS_MAX; i++) {
        mem_free(b->in[i]);
        mem_free(b->out[i]);
    }
    mem_free(b->grads);
    mem_free(b->stats);
    mem_free(b->token_ids);
    mem_free(b->scratch);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    kernel_context_config config = {.thread_count = bench_threads(argc, argv, 1)};
    kernel_context *context;
    bench_require(kernels_cpu.context_create(&config, &context));
    printf("%s\n", kernels_cpu.describe(context));
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32};
    for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
        struct bench b = {.context = context,
                          .threads = config.thread_count,
                          .type = types[type],
                          .tokens = bench_is_quick() ? 1024 : 4096};
        bench_init(&b);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            b.run = cases[i].run;
            uint64_t bytes = case_streams(&b, i);
            struct bench_body bodies[] = {{seconds_of_op, &b}, {seconds_of_limit, &b}};
            struct bench_summary out[2];
            bench_by_turns(bodies, 2, RUNS, out);
            char name[96];
            snprintf(name, sizeof name, "rows %s %s", dtype_name(b.type), cases[i].name);
            bench_report(name, (double)bytes * 1e-9, "GB/s", &out[0], &out[1]);
        }
        bench_fini(&b);
    }
    kernels_cpu.context_destroy(context);
    return 0;
}
