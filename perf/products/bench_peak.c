/* The limits with which whole programs are compared: the best large matrix product in bf16 and in
 * fp32. perf/training/bench_train.py runs it between trainings.
 *
 *   bench_peak [THREADS]      default: all cores; and the common options of bench.h */
#include "perf/products/bench_products.h"

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    kernel_context_config config = {.thread_count = bench_threads(argc, argv, 1)};
    kernel_context *context;
    bench_require(kernels_cpu.context_create(&config, &context));
    printf("%s\n", kernels_cpu.describe(context));
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        double spread, limit = bench_limit(context, types[i], &spread) * 1e-9;
        char name[48];
        snprintf(name, sizeof name, "peak product %s", dtype_name(types[i]));
        printf("%-24s %8.1f GFLOP/s +-%.1f%%\n", name, limit, 100 * spread);
        bench_keep(name, limit, "GFLOP/s", 0, spread);
    }
    kernels_cpu.context_destroy(context);
    return 0;
}
