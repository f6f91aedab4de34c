/* Products that find their weights packed beside products that pack them: GPT-2 124M's linear layers and its head, forward
 * and gradient of the input, by turns, every weight from memory as in a step of many layers; and what packing alone
 * takes. Usage: bench_packed [TYPE [THREADS]], TYPE bf16, fp32 or fp16 (bf16); bench.h has the common options. The results
 * of both are compared to the bit first. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"
#include "perf/products/bench_products.h"

enum {
    WEIGHT_BYTES = 192 * 1024 * 1024,
    MAPPED_BYTES = 2000 * 1024 * 1024, /* most of it is not touched */
    PLACE_BYTES = 4096,
    COPIES_MAX = 96,
    ROUNDS = 11,
    QUICK_ROUNDS = 3
};

/* Huge pages, as a run's memory has them: operands one behind the other, of one shape after the other. */
static char *mapping;
static uint64_t used_bytes;

static void map_memory(void)
{
    mapping = mmap(NULL, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        bench_require(err_errno(errno, "mapping %d MiB", MAPPED_BYTES / (1024 * 1024)));
    madvise(mapping, MAPPED_BYTES, MADV_HUGEPAGE);
}

static void *place(uint64_t bytes)
{
    void *at = mapping + used_bytes;
    used_bytes += size_round_up(bytes, PLACE_BYTES);
    if (used_bytes > MAPPED_BYTES)
        bench_require(-ENOMEM);
    return at;
}

static void *place_random(enum dtype type, uint64_t count, uint64_t stream)
{
    void *block = bench_random(type, count, stream), *at = place(count * dtype_bytes(type));
    memcpy(at, block, count * dtype_bytes(type));
    mem_free(block);
    return at;
}

struct layer {
    const char *name;
    uint64_t in, out;
};
static const struct layer layers[] = {
    {"qkv", 768, 2304}, {"proj", 768, 768}, {"up", 768, 3072}, {"down", 3072, 768}};
static const struct layer logits = {"logits", 768, 50257};
static const uint64_t rows_of_layers[] = {64, 128, 256, 512, 1024, 4096};
static const uint64_t rows_of_logits[] = {256, 768};

/* One shape with as many weights as WEIGHT_BYTES are, and their packed forms. */
struct bench {
    matmul_desc desc;
    kernel_matmul *product;
    uint32_t copies, next;
    char *a, *b[COPIES_MAX], *packed[COPIES_MAX], *c[2], *scratch;
};

static void init(struct bench *self, kernel_context *context, const struct layer *layer,
                 enum dtype type, bool is_forward, uint64_t rows)
{
    matmul_desc desc = {.m = rows,
                        .n = is_forward ? layer->out : layer->in,
                        .k = is_forward ? layer->in : layer->out,
                        .b_transposed = is_forward,
                        .ab_type = type,
                        .c_type = type};
    desc.a_stride = desc.k;
    desc.b_stride = layer->in;
    desc.c_stride = desc.n;
    *self = (struct bench){.desc = desc};
    uint64_t elems = desc.n * desc.k, bytes = elems * dtype_bytes(type);
    bench_require(kernels_cpu.matmul_create(context, &desc, &self->product));
    self->copies = (uint32_t)size_min(size_div_up(WEIGHT_BYTES, bytes), COPIES_MAX);
    used_bytes = 0;
    self->a = place_random(type, desc.m * desc.k, 1);
    for (uint32_t i = 0; i < self->copies; i++) {
        self->b[i] = i == 0 ? place_random(type, elems, 2) : place(bytes);
        if (i > 0)
            memcpy(self->b[i], self->b[0], bytes);
        self->packed[i] = place(kernels_cpu.matmul_packed_bytes(self->product));
    }
    for (int i = 0; i < 2; i++)
        self->c[i] = place(desc.m * desc.n * dtype_bytes(type));
    self->scratch = place(kernels_cpu.matmul_scratch_bytes(self->product));
}

enum turn { PLAIN, PACKED, PACK, TURN_COUNT };

/* Over all weights once: seconds of one. */
static double run(struct bench *self, enum turn turn)
{
    uint64_t begin_ns = clock_ns();
    for (uint32_t i = 0; i < self->copies; i++)
        if (turn == PLAIN)
            bench_require(kernels_cpu.matmul(self->product, NULL, self->a, self->b[i], NULL,
                                             self->c[0], self->scratch));
        else if (turn == PACKED)
            bench_require(kernels_cpu.matmul_packed(self->product, NULL, self->a, self->packed[i],
                                                    NULL, self->c[1], self->scratch));
        else
            bench_require(kernels_cpu.matmul_pack(self->product, NULL, self->a, self->b[i],
                                                  self->packed[i], NULL, self->c[1],
                                                  self->scratch));
    return (double)(clock_ns() - begin_ns) * 1e-9 / self->copies;
}

static void measure(kernel_context *context, const struct layer *layer, enum dtype type,
                    bool is_forward, uint64_t rows)
{
    struct bench self;
    double seconds[TURN_COUNT][ROUNDS];
    int rounds = bench_is_quick() ? QUICK_ROUNDS : ROUNDS;
    init(&self, context, layer, type, is_forward, rows);
    if (kernels_cpu.matmul_packed_bytes(self.product) == 0) {
        printf("%-6s %-7s %5llu rows  nothing is packed\n", layer->name,
               is_forward ? "forward" : "input", (unsigned long long)rows);
        kernels_cpu.matmul_destroy(self.product);
        return;
    }
    run(&self, PACK);
    run(&self, PLAIN);
    run(&self, PACKED);
    if (memcmp(self.c[0], self.c[1], self.desc.m * self.desc.n * dtype_bytes(type)) != 0)
        bench_require(err_set(ERR_INTERNAL, "%s of %llu rows: packed weights give other bits",
                              layer->name, (unsigned long long)rows));
    for (int round = 0; round < rounds; round++) {
        bench_require(bench_stopped());
        for (int t = 0; t < TURN_COUNT; t++) {
            enum turn turn = (enum turn)((t + round) % TURN_COUNT);
            seconds[turn][round] = run(&self, turn);
        }
    }
    struct bench_summary of[TURN_COUNT];
    for (int t = 0; t < TURN_COUNT; t++)
        of[t] = bench_summarize(seconds[t], rounds);
    double flops = bench_product_flops(&self.desc) * 1e-9;
    printf("%-6s %-7s %5llu rows  packs its weight %7.1f GFLOP/s, finds it packed %7.1f (%.3f): "
           "spares "
           "%6.1f us of %.1f, leaving it so costs %6.1f\n",
           layer->name, is_forward ? "forward" : "input", (unsigned long long)rows,
           flops / of[PLAIN].median, flops / of[PACKED].median,
           of[PLAIN].median / of[PACKED].median, 1e6 * (of[PLAIN].median - of[PACKED].median),
           1e6 * of[PLAIN].median, 1e6 * (of[PACK].median - of[PACKED].median));
    char name[80];
    snprintf(name, sizeof name, "packed %s %s %s %llu rows", dtype_name(type), layer->name,
             is_forward ? "forward" : "input", (unsigned long long)rows);
    bench_keep(name, flops / of[PACKED].median, "GFLOP/s", flops / of[PLAIN].median,
               of[PACKED].spread);
    kernels_cpu.matmul_destroy(self.product);
}

static enum dtype type_of(int argc, char **argv)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32, DTYPE_FP16};
    for (int i = 0; argc > 1 && i < 3; i++)
        if (strcmp(argv[1], dtype_name(types[i])) == 0)
            return types[i];
    if (argc > 1)
        bench_usage("TYPE is bf16, fp32 or fp16");
    return DTYPE_BF16;
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    enum dtype type = type_of(argc, argv);
    kernel_context_config config = {.thread_count = bench_threads(argc, argv, 2)};
    kernel_context *context;
    bench_require(kernels_cpu.context_create(&config, &context));
    map_memory();
    printf("%s, %s\n", kernels_cpu.describe(context), dtype_name(type));
    for (int is_input = 0; is_input < 2; is_input++) {
        for (size_t l = 0; l < sizeof layers / sizeof *layers; l++)
            for (size_t r = 0; r < sizeof rows_of_layers / sizeof *rows_of_layers; r++)
                measure(context, &layers[l], type, !is_input, rows_of_layers[r]);
        for (size_t r = 0; r < sizeof rows_of_logits / sizeof *rows_of_logits; r++)
            measure(context, &logits, type, !is_input, rows_of_logits[r]);
    }
    kernels_cpu.context_destroy(context);
    return 0;
}
