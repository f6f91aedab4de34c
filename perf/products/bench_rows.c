/* GB/s of the CPU's row ops: activations, norms, additions, bias gradients, embedding,
 * cross-entropy, zeroing. The limit of each is the better of two loops that read, write or update
 * the same streams and compute almost nothing. One loop has ordinary stores and the other has
 * stores that bypass the caches. Op and loops take turns. The shapes are those of GPT-2 124M at
 * B=4, T=1024; the loss has 768 rows, the head's chunk. Operands are on huge pages, as in training,
 * if the system provides them.
 *
 *   bench_rows [THREADS [CASE]] [--quick] [--csv FILE]
 *
 * CASE is the beginning of "bf16 gelu forward" or of another line's name. */
#include <errno.h>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/rng.h"
#include "base/size.h"
#include "kernels/ops.h"
#include "perf/bench.h"

enum { STREAMS_MAX = 4, RUNS = 15, CHANNELS = 768, HIDDEN = 3072, VOCAB = 50257, LOSS_ROWS = 768 };

/* A stream that the limit's loop moves: memory at `at`, in whole cache lines. */
struct stream {
    void *at;
    uint64_t bytes;
    enum { STREAM_READ, STREAM_WRITE, STREAM_UPDATE } kind;
};

struct bench {
    kernel_context *context;
    int threads;
    enum dtype type;
    uint64_t tokens; /* rows of all ops except the loss */
    void *in[STREAMS_MAX], *out[2], *scratch;
    float *stats, *grads; /* [2, tokens] and [V, C] fp32 */
    int32_t *token_ids;
    struct stream streams[STREAMS_MAX]; /* the streams that the limit moves */
    int stream_count;
    uint64_t mapping_bytes;
    char *mapping, *free; /* mapping holds all arrays; the next one begins at free */
    int (*run)(struct bench *bench);
};

static int activation(struct bench *b, enum activation_kind kind, uint64_t features,
                      bool is_backward)
{
    activation_args args = {
        .kind = kind, .type = b->type, .rows = b->tokens, .features = features, .input = b->in[0]};
    if (!is_backward) {
        args.output = b->out[0];
        return kernels_cpu.activation_forward(b->context, NULL, &args);
    }
    args.output_grad = b->in[1];
    args.input_grad = b->out[0];
    return kernels_cpu.activation_backward(b->context, NULL, &args);
}

static int gelu_forward(struct bench *b)
{
    return activation(b, ACTIVATION_GELU, HIDDEN, false);
}

static int gelu_backward(struct bench *b)
{
    return activation(b, ACTIVATION_GELU, HIDDEN, true);
}

static int swiglu_forward(struct bench *b)
{
    return activation(b, ACTIVATION_SWIGLU, HIDDEN / 2, false);
}

static int swiglu_backward(struct bench *b)
{
    return activation(b, ACTIVATION_SWIGLU, HIDDEN / 2, true);
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
    return kernels_cpu.bias_backward(b->context, NULL, b->type, b->tokens, HIDDEN, HIDDEN, b->in[0],
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

static int zero(struct bench *b)
{
    return kernels_cpu.zero(b->context, NULL, b->out[0],
                            b->tokens * (uint64_t)HIDDEN * dtype_bytes(b->type));
}

static double seconds_of_op(void *user)
{
    struct bench *b = user;
    uint64_t start = clock_ns();
    bench_require(b->run(b));
    return (double)(clock_ns() - start) * 1e-9;
}

static uint64_t move_piece(const struct stream *stream, uint64_t begin, uint64_t end, uint64_t all,
                           bool is_past)
{
    uint64_t *at = stream->at;
    if (stream->kind == STREAM_READ) {
        for (uint64_t word = begin; word < end; word++)
            all ^= at[word];
    } else if (stream->kind == STREAM_UPDATE) {
        for (uint64_t word = begin; word < end; word++)
            at[word] ^= all;
    } else if (is_past) {
#if defined(__SSE2__)
        __m128i both = _mm_set1_epi64x((long long)all);
        for (uint64_t word = begin; word < end; word += 2)
            _mm_stream_si128((__m128i *)(at + word), both);
#endif
    } else {
        for (uint64_t word = begin; word < end; word++)
            at[word] = all;
    }
    return all;
}

/* Moves all streams side by side, in pieces of at most 4 KiB. */
static double seconds_of_streams(struct bench *b, bool is_past)
{
    enum { PIECE_BYTES = 4096, LINE_WORDS = 8 };
    uint64_t start = clock_ns(), kept = 0, pieces = 1;
    for (int i = 0; i < b->stream_count; i++)
        pieces = size_max(pieces, b->streams[i].bytes / PIECE_BYTES);
#pragma omp parallel for schedule(static) num_threads(b->threads) reduction(^ : kept)
    for (uint64_t piece = 0; piece < pieces; piece++) {
        uint64_t all = piece;
        for (int i = 0; i < b->stream_count; i++) {
            uint64_t lines = b->streams[i].bytes / sizeof(uint64_t) / LINE_WORDS;
            all = move_piece(&b->streams[i], piece * lines / pieces * LINE_WORDS,
                             (piece + 1) * lines / pieces * LINE_WORDS, all, is_past);
        }
        kept ^= all;
    }
    b->token_ids[b->tokens] = (int32_t)(kept & 1); /* keeps the compiler from removing the loop */
    return (double)(clock_ns() - start) * 1e-9;
}

static double seconds_of_stores(void *user)
{
    return seconds_of_streams(user, false);
}

static double seconds_of_stores_past(void *user)
{
    return seconds_of_streams(user, true);
}

static void add_stream(struct bench *b, void *at, int kind, uint64_t bytes)
{
    b->streams[b->stream_count].at = at;
    b->streams[b->stream_count].bytes = bytes;
    b->streams[b->stream_count++].kind = kind;
}

static const struct {
    const char *name;
    int (*run)(struct bench *bench);
    int reads, writes,
        width; /* streams are [tokens, width] of the working type; 0: see case_streams */
} cases[] = {
    {"gelu forward", gelu_forward, 1, 1, HIDDEN},
    {"gelu backward", gelu_backward, 2, 1, HIDDEN},
    {"swiglu forward", swiglu_forward, 0, 0, 0},
    {"swiglu backward", swiglu_backward, 0, 0, 0},
    {"layer norm forward, with residual", norm_forward, 2, 2, CHANNELS},
    {"layer norm backward, with residual", norm_backward, 3, 1, CHANNELS},
    {"add", add, 2, 1, CHANNELS},
    {"bias backward", bias_backward, 1, 0, HIDDEN},
    {"embedding forward", embedding_forward, 1, 1, CHANNELS},
    {"embedding backward", embedding_backward, 0, 0, 0},
    {"cross-entropy with gradient", cross_entropy, 0, 0, 0},
    {"zero", zero, 0, 1, HIDDEN},
};

/* Sets the streams of a case for its limit. Returns their bytes; updates count twice. */
static uint64_t case_streams(struct bench *b, size_t index)
{
    uint64_t elem_bytes = dtype_bytes(b->type), total = 0;
    uint64_t hidden_bytes = b->tokens * (uint64_t)HIDDEN * elem_bytes;
    b->stream_count = 0;
    for (int i = 0; i < cases[index].reads; i++)
        add_stream(b, b->in[i], STREAM_READ, b->tokens * (uint64_t)cases[index].width * elem_bytes);
    for (int i = 0; i < cases[index].writes; i++)
        add_stream(b, b->out[i], STREAM_WRITE,
                   b->tokens * (uint64_t)cases[index].width * elem_bytes);
    if (b->run == swiglu_forward || b->run == swiglu_backward)
        add_stream(b, b->in[0], STREAM_READ, hidden_bytes);
    if (b->run == swiglu_forward)
        add_stream(b, b->out[0], STREAM_WRITE, hidden_bytes / 2);
    if (b->run == swiglu_backward) {
        add_stream(b, b->in[1], STREAM_READ, hidden_bytes / 2);
        add_stream(b, b->out[0], STREAM_WRITE, hidden_bytes);
    }
    if (b->run == embedding_backward) { /* positions stay in the caches between sequences */
        uint64_t row_bytes = CHANNELS * sizeof(float);
        add_stream(b, b->in[0], STREAM_READ, b->tokens * CHANNELS * elem_bytes);
        add_stream(b, b->grads, STREAM_UPDATE, size_min(b->tokens, HIDDEN) * row_bytes);
        add_stream(b, b->grads + (uint64_t)HIDDEN * CHANNELS, STREAM_UPDATE,
                   b->tokens / 4 * row_bytes);
    }
    if (b->run == cross_entropy) {
        add_stream(b, b->grads, STREAM_READ, (uint64_t)LOSS_ROWS * VOCAB * sizeof(float));
        add_stream(b, b->out[0], STREAM_WRITE, (uint64_t)LOSS_ROWS * VOCAB * elem_bytes);
    }
    for (int i = 0; i < b->stream_count; i++)
        total += b->streams[i].bytes * (b->streams[i].kind == STREAM_UPDATE ? 2 : 1);
    return total;
}

/* Returns zeroed memory. Each array lies 16 KiB further from a multiple of 64 KiB than the one
 * before. */
static void *block(struct bench *b, uint64_t bytes)
{
    void *data = b->free;
    b->free += size_round_up(bytes, 64 * KIB) + 16 * KIB;
    if (b->free > b->mapping + b->mapping_bytes)
        bench_require(err_set(-ENOMEM, "the benchmark's operands need more than %llu bytes",
                              (unsigned long long)b->mapping_bytes));
    return data;
}

static void bench_init(struct bench *b)
{
    uint64_t loss_bytes = (uint64_t)LOSS_ROWS * VOCAB * sizeof(float);
    uint64_t bytes = b->tokens * (uint64_t)HIDDEN * sizeof(float);
    b->mapping_bytes = 4 * bytes + 4 * size_max(bytes, loss_bytes) + 64 * MIB;
    b->mapping =
        mmap(NULL, b->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->mapping == MAP_FAILED)
        bench_require(
            err_set(-ENOMEM, "no memory for %llu bytes", (unsigned long long)b->mapping_bytes));
    madvise(b->mapping, b->mapping_bytes, MADV_HUGEPAGE);
    b->free = (char *)size_round_up((uint64_t)(uintptr_t)b->mapping, 2 * MIB);
    for (int i = 0; i < STREAMS_MAX; i++) {
        b->in[i] = block(b, bytes);
        for (uint64_t e = 0; e < b->tokens * HIDDEN; e++) {
            float value = 2.0f * ((float)rng_uniform(1, (uint64_t)i, e) - 0.5f);
            dtype_convert(&value, DTYPE_FP32, (char *)b->in[i] + e * dtype_bytes(b->type), b->type,
                          1);
        }
    }
    for (int i = 0; i < 2; i++)
        b->out[i] = block(b, size_max(bytes, loss_bytes));
    b->grads =
        block(b, size_max((uint64_t)(HIDDEN + b->tokens) * CHANNELS * sizeof(float), loss_bytes));
    b->stats = block(b, 2 * b->tokens * sizeof *b->stats);
    b->token_ids = block(b, (b->tokens + 1) * sizeof *b->token_ids);
    for (uint64_t i = 0; i < b->tokens; i++)
        b->token_ids[i] = (int32_t)(rng_uniform(2, 0, i) * (HIDDEN - 1));
    b->scratch =
        block(b, size_max(kernels_cpu.norm_grad_scratch_bytes(b->context, b->tokens, CHANNELS),
                          kernels_cpu.bias_backward_scratch_bytes(b->context, b->tokens, HIDDEN)));
}

/* Fills logits with values as a model has them, since earlier cases have left gradients there. */
static void draw_logits(struct bench *b)
{
    for (uint64_t i = 0; i < (uint64_t)LOSS_ROWS * VOCAB; i++)
        b->grads[i] = 12.0f * ((float)rng_uniform(3, 0, i) - 0.5f);
}

static void bench_case(struct bench *b, size_t index, const char *name)
{
    b->run = cases[index].run;
    if (b->run == cross_entropy)
        draw_logits(b);
    uint64_t bytes = case_streams(b, index);
    struct bench_body bodies[] = {
        {seconds_of_op, b}, {seconds_of_stores, b}, {seconds_of_stores_past, b}};
    struct bench_summary out[3];
#if defined(__SSE2__)
    int count = 3;
#else
    int count = 2;
#endif
    bench_by_turns(bodies, count, RUNS, out);
    int best = count == 3 && out[2].median < out[1].median ? 2 : 1;
    bench_report(name, (double)bytes * 1e-9, "GB/s", &out[0], &out[best]);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    kernel_context_config config = {.thread_count = bench_threads(argc, argv, 1)};
    const char *wanted = argc > 2 ? argv[2] : "";
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
            char name[96];
            snprintf(name, sizeof name, "rows %s %s", dtype_name(b.type), cases[i].name);
            if (strncmp(name + strlen("rows "), wanted, strlen(wanted)) == 0)
                bench_case(&b, i, name);
        }
        munmap(b.mapping, b.mapping_bytes);
    }
    kernels_cpu.context_destroy(context);
    return 0;
}
