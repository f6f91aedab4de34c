/* Measures matrix products in the shapes of training, forward and both backward ones. See
 * probe_internal.h. For a layer with `in` inputs and `out` outputs on `tokens` tokens they are:
 *
 *   forward    [tokens, out]  = X [tokens, in] W^T              m = tokens  n = out  k = in
 *   input      [tokens, in]   = dY [tokens, out] W              m = tokens  n = in   k = out
 *   weight     [out, in]     += dY^T X, in fp32                 m = out     n = in   k = tokens
 *
 * Each call uses the next matrices in memory, as each layer of a run has its own. Products of this
 * size that repeat on the same matrices are up to a fifth faster than in a run. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "probe/probe_internal.h"

enum product_kind { FORWARD, INPUT, WEIGHT, KIND_COUNT };

static const char *const kind_names[KIND_COUNT] = {"forward", "input gradient", "weight gradient"};

/* A layer and its number of tokens. */
struct layer {
    uint64_t tokens, in, out;
};

/* Around models of 20 million to a few billion parameters. With few tokens it is
 * the weight's bytes that take the time, and the fit of costs_of_product needs points for that. */
static const struct layer full_layers[] = {
    {256, 256, 256},   {64, 1024, 3072},   {256, 512, 2048},   {1024, 768, 768},
    {1024, 512, 2048}, {64, 2048, 8192},   {1024, 2048, 2048}, {1024, 1024, 3072},
    {4096, 512, 2048}, {4096, 1024, 3072}, {4096, 4096, 4096}};
static const struct layer quick_layers[] = {
    {256, 256, 256},   {64, 1024, 3072}, {256, 512, 2048},   {256, 1024, 3072}, {1024, 768, 768},
    {1024, 512, 2048}, {64, 2048, 8192}, {1024, 1024, 3072}, {4096, 1024, 3072}};
/* The largest take milliseconds: a GPU that computes for so long lowers its clocks. */
static const struct layer gpu_layers[] = {
    {256, 256, 256},    {256, 1024, 3072},  {64, 4096, 14336},   {1024, 1024, 3072},
    {4096, 1024, 3072}, {4096, 4096, 4096}, {16384, 2048, 8192}, {16384, 4096, 14336}};
static const struct layer tiny_layers[] = {{32, 64, 128}, {64, 64, 128}};
enum { LAYERS_MAX = 11 };
static_assert(2 * KIND_COUNT * LAYERS_MAX <= MACHINE_PRODUCTS_MAX, "all points have a place");

struct point {
    machine_product shape;
    enum product_kind kind;
    const struct layer *layer;
    kernel_matmul *product;
    uint64_t bytes[3]; /* of A, B, C */
    uint64_t next;     /* number of calls so far */
};

struct bench {
    probei *owner;
    uint32_t count;
    struct point points[MACHINE_PRODUCTS_MAX];
    unsigned char *zones[3]; /* of A, B, C; each zone_bytes */
    uint64_t zone_bytes;
    unsigned char *scratch;
};

static int add_point(struct bench *bench, enum dtype type, enum product_kind kind,
                     const struct layer *layer)
{
    if (bench->count == MACHINE_PRODUCTS_MAX)
        return 0;
    probei *self = bench->owner;
    struct point *point = &bench->points[bench->count];
    matmul_desc desc = {.m = layer->tokens,
                        .n = layer->out,
                        .k = layer->in,
                        .b_transposed = kind == FORWARD,
                        .ab_type = type,
                        .c_type = type};
    if (kind == INPUT) {
        desc.n = layer->in;
        desc.k = layer->out;
    } else if (kind == WEIGHT) {
        desc.m = layer->out;
        desc.n = layer->in;
        desc.k = layer->tokens;
        desc.a_transposed = desc.accumulate = true;
        desc.c_type = DTYPE_FP32;
    }
    desc.a_stride = desc.a_transposed ? desc.m : desc.k;
    desc.b_stride = desc.b_transposed ? desc.k : desc.n;
    desc.c_stride = desc.n;
    *point = (struct point){.kind = kind,
                            .layer = layer,
                            .shape = {.type = type,
                                      .accumulates = desc.accumulate,
                                      .b_transposed = desc.b_transposed,
                                      .m = desc.m,
                                      .n = desc.n,
                                      .k = desc.k}};
    uint64_t elem = dtype_bytes(type);
    point->bytes[0] = size_round_up(desc.m * desc.k * elem, 4096);
    point->bytes[1] = size_round_up(desc.k * desc.n * elem, 4096);
    point->bytes[2] = size_round_up(desc.m * desc.n * dtype_bytes(desc.c_type), 4096);
    for (int i = 0; i < 3; i++)
        if (point->bytes[i] > bench->zone_bytes)
            return 0; /* with little memory the largest products are left out */
    TRY(self->ops->matmul_create(self->context, &desc, &point->product));
    bench->count++;
    return 0;
}

struct call {
    struct bench *bench;
    struct point *point;
};

static int run_point(void *user)
{
    const struct call *call = user;
    struct point *point = call->point;
    unsigned char *places[3];
    for (int i = 0; i < 3; i++) {
        uint64_t turns = call->bench->zone_bytes / point->bytes[i];
        places[i] = call->bench->zones[i] + point->next % turns * point->bytes[i];
    }
    point->next++;
    probei *self = call->bench->owner;
    return self->ops->matmul(point->product, self->streams[0], places[0], places[1], NULL,
                             places[2], call->bench->scratch);
}

static double flops_of(const machine_product *shape)
{
    return 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
}

static int run_variant(void *user, uint32_t variant, double *value)
{
    struct bench *bench = user;
    struct call call = {bench, &bench->points[variant]};
    double seconds;
    TRY(probei_time(bench->owner, run_point, &call, &seconds));
    *value = flops_of(&call.point->shape) / seconds;
    return 0;
}

static void name_variant(void *user, uint32_t variant, char text[PROBEI_TEXT_BYTES])
{
    const struct bench *bench = user;
    const struct point *point = &bench->points[variant];
    snprintf(text, PROBEI_TEXT_BYTES, "%s %s %llu x %llu x %llu", dtype_name(point->shape.type),
             kind_names[point->kind], (unsigned long long)point->shape.m,
             (unsigned long long)point->shape.n, (unsigned long long)point->shape.k);
}

#define COUNT(layers) (sizeof(layers) / sizeof((layers)[0]))

static int add_points(struct bench *bench)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32};
    const probei *self = bench->owner;
    const struct layer *layers = full_layers;
    size_t count = COUNT(full_layers);
    if (self->extent == PROBEI_TINY)
        layers = tiny_layers, count = COUNT(tiny_layers);
    else if (self->gpu)
        layers = gpu_layers, count = COUNT(gpu_layers);
    else if (self->extent == PROBEI_QUICK)
        layers = quick_layers, count = COUNT(quick_layers);
    for (uint32_t t = 0; t < 2; t++)
        for (int kind = 0; kind < KIND_COUNT; kind++)
            for (size_t l = 0; l < count; l++)
                TRY(add_point(bench, types[t], (enum product_kind)kind, &layers[l]));
    return 0;
}

/* Checks that the scratch of every product fits into the space after the three zones. */
static int make_room(struct bench *bench)
{
    probei *self = bench->owner;
    uint64_t scratch = 0;
    for (uint32_t i = 0; i < bench->count; i++)
        scratch = size_max(scratch, self->ops->matmul_scratch_bytes(bench->points[i].product));
    if (scratch > self->operand_bytes / 4)
        return err_set(-ENOMEM, "the scratch of products takes %llu MiB, more than the probe has",
                       (unsigned long long)(scratch / MIB));
    return 0;
}

/* Reports the three products of a layer in one line. `forward` is the index of its forward
 * product. */
static void report_layer(probei *self, const struct bench *bench, const probei_figure *figures,
                         uint32_t forward, double best)
{
    const struct point *first = &bench->points[forward];
    double rates[KIND_COUNT] = {0};
    char label[PROBEI_TEXT_BYTES];
    for (uint32_t i = 0; i < bench->count; i++)
        if (bench->points[i].layer == first->layer &&
            bench->points[i].shape.type == first->shape.type)
            rates[bench->points[i].kind] = figures[i].median * 1e-9;
    snprintf(label, sizeof label, "%s, %llu tokens, %llu -> %llu", dtype_name(first->shape.type),
             (unsigned long long)first->layer->tokens, (unsigned long long)first->layer->in,
             (unsigned long long)first->layer->out);
    probei_found(self, label, rates[FORWARD], "GFLOP/s", &figures[forward],
                 "%.1f  %.1f; %.0f%%, %.0f%%, %.0f%% of %s's best", rates[INPUT], rates[WEIGHT],
                 100e9 * rates[FORWARD] / best, 100e9 * rates[INPUT] / best,
                 100e9 * rates[WEIGHT] / best, dtype_name(first->shape.type));
}

static void report(probei *self, struct bench *bench, const probei_figure *figures)
{
    machine *out = self->out;
    double best[2] = {0};
    out->device.product_count = bench->count;
    for (uint32_t i = 0; i < bench->count; i++) {
        machine_product *shape = &out->device.products[i];
        *shape = bench->points[i].shape;
        shape->flops_per_second = figures[i].median;
        int is_fp32 = shape->type == DTYPE_FP32;
        best[is_fp32] = fmax(best[is_fp32], shape->flops_per_second);
    }
    out->device.flops_16bit = best[0];
    out->device.flops_fp32 = best[1];
    out->device.peak_flops = fmax(best[0], best[1]);
    probei_say(self,
               "matrix products: GFLOP/s forward, of the input's gradient, of the weight's (%s)",
               self->ops->describe(self->context));
    for (int is_fp32 = 0; is_fp32 < 2; is_fp32++)
        for (uint32_t i = 0; i < bench->count; i++)
            if (bench->points[i].kind == FORWARD &&
                is_fp32 == (bench->points[i].shape.type == DTYPE_FP32))
                report_layer(self, bench, figures, i, best[is_fp32]);
}

int probei_products(probei *self)
{
    struct bench *bench = mem_alloc(1, sizeof *bench, "probe products");
    probei_figure *figures = mem_alloc(MACHINE_PRODUCTS_MAX, sizeof *figures, "probe figures");
    int rc = bench && figures ? 0 : -ENOMEM;
    if (rc == 0) {
        bench->owner = self;
        bench->zone_bytes = self->operand_bytes / 4 / 4096 * 4096;
        for (int i = 0; i < 3; i++)
            bench->zones[i] = self->operands + (uint64_t)i * bench->zone_bytes;
        bench->scratch = self->operands + 3 * bench->zone_bytes;
        rc = probei_check(self, "filling memory");
    }
    if (rc == 0)
        rc = probei_fill_operands(self);
    if (rc == 0)
        rc = add_points(bench);
    if (rc == 0)
        rc = make_room(bench);
    probei_work work = {.seconds = probei_step_left(self),
                        .warms_up = self->extent == PROBEI_FULL,
                        .is_checked = true,
                        .run = run_variant,
                        .name = name_variant,
                        .user = bench};
    work.count = bench ? bench->count : 0;
    if (rc == 0)
        rc = probei_rounds(self, &work, figures);
    if (rc == 0)
        report(self, bench, figures);
    for (uint32_t i = 0; bench && i < bench->count; i++)
        self->ops->matmul_destroy(bench->points[i].product);
    mem_free(figures);
    mem_free(bench);
    return rc;
}
