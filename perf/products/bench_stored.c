/* Stored formats: GB/s of expanded bytes for each format and dtype. The limit is a memory copy of
 * as many bytes; both take turns, on one thread each unless THREADS says more. Then millions of
 * elements a second of quantizing from bf16. The matrix is that of the largest product of an 8B
 * Llama, 4096 x 14336.
 *
 *   bench_stored [THREADS [FORMAT]] [--quick] [--csv FILE]
 */
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "perf/bench.h"

enum { RUNS = 11 };

struct bench {
    kernel_context *context;
    int threads;
    stored_expand_args args;
    stored_quantize_args quantize;
    uint64_t bytes; /* expanded */
    const char *source;
};

static double seconds_of_expand(void *user)
{
    struct bench *b = user;
    uint64_t begin = clock_ns();
    bench_require(kernels_cpu.stored_expand(b->context, NULL, &b->args));
    return (double)(clock_ns() - begin) * 1e-9;
}

static double seconds_of_quantize(void *user)
{
    struct bench *b = user;
    uint64_t begin = clock_ns();
    bench_require(kernels_cpu.stored_quantize(b->context, NULL, &b->quantize));
    return (double)(clock_ns() - begin) * 1e-9;
}

static double seconds_of_copy(void *user)
{
    struct bench *b = user;
    uint64_t begin = clock_ns();
    uint64_t part = b->bytes / (uint64_t)b->threads / 64 * 64;
#pragma omp parallel for schedule(static) num_threads(b->threads)
    for (int i = 0; i < b->threads; i++) {
        uint64_t at = (uint64_t)i * part, rest = b->bytes - at;
        memcpy((char *)b->args.target + at, b->source + at, i + 1 < b->threads ? part : rest);
    }
    return (double)(clock_ns() - begin) * 1e-9;
}

static void bench_format(struct bench *b, enum stored_format format, float *values, uint16_t *half)
{
    enum stored_format single = stored_single(format);
    uint64_t rows = b->args.rows, columns = b->args.columns;
    stored_layout layout = stored_layout_of(format, rows, columns);
    void *codes = mem_alloc(layout.code_bytes, 1, "codes");
    void *scales = mem_alloc(layout.scale_bytes, 1, "scales");
    float *single_scales = mem_alloc(layout.scale_count, sizeof(float), "scales");
    if (!codes || !scales || !single_scales)
        bench_require(err_set(-ENOMEM, "no memory for a matrix"));
    bool is_double = single != format;
    b->quantize = (stored_quantize_args){.format = single,
                                         .rows = rows,
                                         .columns = columns,
                                         .type = DTYPE_BF16,
                                         .source = half,
                                         .codes = codes,
                                         .scales = is_double ? (void *)single_scales : scales};
    char name[96];
    struct bench_summary out[2];
    if (!is_double) {
        struct bench_body body = {seconds_of_quantize, b};
        bench_by_turns(&body, 1, bench_is_quick() ? 1 : 5, out);
        snprintf(name, sizeof name, "quantize %s", stored_format_name(format));
        bench_report(name, (double)(rows * columns) * 1e-6, "M/s", &out[0], NULL);
    } else {
        bench_require(kernels_cpu.stored_quantize(b->context, NULL, &b->quantize));
        bench_require(
            kernels_cpu.stored_double(b->context, NULL, single_scales, layout.scale_count, scales));
    }
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP16, DTYPE_FP32};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        b->bytes = rows * columns * dtype_bytes(types[t]);
        b->args.format = format;
        b->args.codes = codes;
        b->args.scales = scales;
        b->args.type = types[t];
        b->source = (const char *)values;
        struct bench_body bodies[] = {{seconds_of_expand, b}, {seconds_of_copy, b}};
        bench_by_turns(bodies, 2, RUNS, out);
        snprintf(name, sizeof name, "expand %s %s", stored_format_name(format),
                 dtype_name(types[t]));
        bench_report(name, (double)b->bytes * 1e-9, "GB/s", &out[0], &out[1]);
    }
    mem_free(codes);
    mem_free(scales);
    mem_free(single_scales);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    struct bench b = {.threads = bench_threads(argc, argv, 1)};
    kernel_context_config config = {.thread_count = b.threads};
    const char *wanted = argc > 2 ? argv[2] : "";
    bench_require(kernels_cpu.context_create(&config, &b.context));
    printf("%s\n", kernels_cpu.describe(b.context));
    b.args.rows = bench_is_quick() ? 512 : 4096;
    b.args.columns = 14336;
    uint64_t count = b.args.rows * b.args.columns;
    float *values = mem_alloc(count, sizeof *values, "values");
    uint16_t *half = mem_alloc(count, sizeof *half, "values");
    b.args.target = mem_alloc(count, sizeof(float), "target");
    if (!values || !half || !b.args.target)
        bench_require(err_set(-ENOMEM, "no memory for %llu values", (unsigned long long)count));
    for (uint64_t i = 0; i < count; i++)
        values[i] = i < 65536 ? 0.02f * rng_normal(1, 2, i) : values[i - 65536];
    dtype_convert(values, DTYPE_FP32, half, DTYPE_BF16, count);
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++)
        if (strncmp(stored_format_name((enum stored_format)format), wanted, strlen(wanted)) == 0)
            bench_format(&b, (enum stored_format)format, values, half);
    mem_free(values);
    mem_free(half);
    mem_free(b.args.target);
    kernels_cpu.context_destroy(b.context);
    return 0;
}
