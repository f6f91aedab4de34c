/* Matrix products in the shapes of training, forward and both backward ones. See probe_internal.h.
 *
 * Of a layer with `in` inputs and `out` outputs on so many tokens:
 *
 *   forward    [tokens, out]  = X [tokens, in] W^T              m = tokens  n = out  k = in
 *   input      [tokens, in]   = dY [tokens, out] W              m = tokens  n = in   k = out
 *   weight     [out, in]     += dY^T X, in fp32                 m = out     n = in   k = tokens
 *
 * Activations stay where they are, as they have just been written in a run; weights, their gradients and results
 * move on through memory from call to call, as in a run each layer has its own. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "probe/probe_internal.h"

enum product_kind { FORWARD, INPUT, WEIGHT, KIND_COUNT };

static const char *const kind_names[KIND_COUNT] = {"forward", "input gradient", "weight gradient"};

struct layer {
    uint64_t in, out;
};

static const struct layer full_layers[] = {{256, 1024}, {1024, 3072}, {4096, 4096}};
static const struct layer quick_layers[] = {{256, 1024}, {1024, 3072}};
static const struct layer tiny_layers[] = {{64, 128}};
static const uint64_t full_tokens[] = {64, 512, 4096}, quick_tokens[] = {64, 512, 4096},
                      tiny_tokens[] = {32, 64};
/* Once more at a shape of the smallest published models. */
static const struct layer small_layer = {768, 768};
enum { SMALL_TOKENS = 1024 };

struct point {
    machine_product shape;
    enum product_kind kind;
    kernel_matmul *product;
    uint64_t bytes[3]; /* of A, B, C */
    uint64_t next;     /* how often it ran */
};

struct bench {
    probei *owner;
    uint32_t count;
    struct point points[MACHINE_PRODUCTS_MAX];
    unsigned char *zones[3]; /* of A, B, C; each zone_bytes */
    uint64_t zone_bytes;
    unsigned char *scratch;
};

static int add_point(struct bench *bench, enum dtype type, enum product_kind kind, uint64_t tokens,
                     const struct layer *layer)
{
    if (bench->count == MACHINE_PRODUCTS_MAX)
        return 0;
    probei *self = bench->owner;
    struct point *point = &bench->points[bench->count];
    matmul_desc desc = {.m = tokens,
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
        desc.k = tokens;
        desc.a_transposed = desc.accumulate = true;
        desc.c_type = DTYPE_FP32;
    }
    desc.a_stride = desc.a_transposed ? desc.m : desc.k;
    desc.b_stride = desc.b_transposed ? desc.k : desc.n;
    desc.c_stride = desc.n;
    *point = (struct point){
        .kind = kind,
        .shape = {
            .type = type, .accumulates = desc.accumulate, .m = desc.m, .n = desc.n, .k = desc.k}};
    uint64_t elem = dtype_bytes(type);
    point->bytes[0] = size_round_up(desc.m * desc.k * elem, 4096);
    point->bytes[1] = size_round_up(desc.k * desc.n * elem, 4096);
    point->bytes[2] = size_round_up(desc.m * desc.n * dtype_bytes(desc.c_type), 4096);
    for (int i = 0; i < 3; i++)
        if (point->bytes[i] > bench->zone_bytes)
            return 0; /* little memory: without the largest */
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
        bool moves = i == 2 || (i == 1 && point->kind != WEIGHT);
        uint64_t turns = call->bench->zone_bytes / point->bytes[i];
        places[i] = call->bench->zones[i] + (moves ? point->next % turns * point->bytes[i] : 0);
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

static int add_points(struct bench *bench)
{
    enum probei_extent extent = bench->owner->extent;
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP32};
    const struct layer *layers = extent == PROBEI_FULL    ? full_layers
                                 : extent == PROBEI_QUICK ? quick_layers
                                                          : tiny_layers;
    const uint64_t *tokens = extent == PROBEI_FULL    ? full_tokens
                             : extent == PROBEI_QUICK ? quick_tokens
                                                      : tiny_tokens;
    uint32_t layer_count = extent == PROBEI_FULL ? 3 : extent == PROBEI_QUICK ? 2 : 1;
    uint32_t token_count = extent == PROBEI_TINY ? 2 : 3;
    for (uint32_t t = 0; t < 2; t++)
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            for (uint32_t l = 0; l < layer_count; l++)
                for (uint32_t m = 0; m < token_count; m++)
                    TRY(add_point(bench, types[t], (enum product_kind)kind, tokens[m], &layers[l]));
            if (extent == PROBEI_FULL)
                TRY(add_point(bench, types[t], (enum product_kind)kind, SMALL_TOKENS,
                              &small_layer));
        }
    return 0;
}

/* Three zones, and behind them the largest scratch. */
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

static void report(probei *self, struct bench *bench, const probei_figure *figures)
{
    machine *out = self->out;
    double best[2] = {0};
    uint32_t best_idx[2] = {0};
    out->device.product_count = bench->count;
    for (uint32_t i = 0; i < bench->count; i++) {
        machine_product *shape = &out->device.products[i];
        *shape = bench->points[i].shape;
        shape->flops_per_second = figures[i].median;
        int is_fp32 = shape->type == DTYPE_FP32;
        if (shape->flops_per_second > best[is_fp32]) {
            best[is_fp32] = shape->flops_per_second;
            best_idx[is_fp32] = i;
        }
    }
    out->device.flops_16bit = best[0];
    out->device.flops_fp32 = best[1];
    out->device.peak_flops = fmax(best[0], best[1]);
    probei_say(self, "matrix products m x n x k (%s)", self->ops->describe(self->context));
    for (uint32_t i = 0; i < bench->count; i++) {
        char label[PROBEI_TEXT_BYTES];
        int is_fp32 = bench->points[i].shape.type == DTYPE_FP32;
        name_variant(bench, i, label);
        probei_found(self, label, figures[i].median * 1e-9, "GFLOP/s", &figures[i],
                     "%.0f%% of %s%s", 100 * figures[i].median / best[is_fp32],
                     is_fp32 ? "fp32's best" : "bf16's best",
                     i == best_idx[is_fp32] ? " (this one)" : "");
    }
}

int probei_products(probei *self, uint32_t unused)
{
    (void)unused;
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
