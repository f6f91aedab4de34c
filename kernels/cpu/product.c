/* One oneDNN matrix product; create fixes all shapes. Operands are plain row-major; strides express
 * transposition. matmul.c uses it with all threads in one product, attention.c with many
 * single-thread products side by side.
 *
 * Create does everything that oneDNN compiles and that we allocate through it: the primitive, its
 * memory objects for each slot, and the size of its scratchpad. A run sets data handles and
 * executes. oneDNN reads the OpenMP thread count of the calling thread when it creates a product
 * and again when it executes it. The callers set this count, so a product created on one thread may
 * run on another.
 *
 * API generations: oneDNN 2 has operation descriptors, and memory descriptors by value. oneDNN 3
 * has only primitive descriptors, and opaque memory descriptors. The layout_* and pd_create helpers
 * contain the whole difference. */
#include <errno.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/size.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/matmul_desc.h"

/* A memory descriptor that layout_fini releases. */
struct layout {
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t desc;
#else
    dnnl_memory_desc_t desc, *ref; /* ref is &desc after layout_init */
#endif
};

/* The memory objects of the operands, for one execution at a time. */
struct product_slot {
    dnnl_memory_t a, b, bias, c, scratch; /* bias NULL without bias */
    dnnl_stream_t stream;                 /* borrowed from the context */
};

struct cpui_product {
    matmul_desc desc;
    dnnl_primitive_t primitive;
    size_t scratch_bytes;
    int slot_count;
    struct product_slot *slots; /* [slot_count] */
};

static dnnl_data_type_t dnnl_type(enum dtype type)
{
    return type == DTYPE_FP32 ? dnnl_f32 : type == DTYPE_BF16 ? dnnl_bf16 : dnnl_f16;
}

/* ---- the two API generations ---- */

static dnnl_status_t layout_init(struct layout *layout, uint64_t rows, uint64_t cols,
                                 uint64_t row_stride, uint64_t col_stride, enum dtype type)
{
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    dnnl_dims_t strides = {(dnnl_dim_t)row_stride, (dnnl_dim_t)col_stride};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(&layout->desc, 2, dims, dnnl_type(type), strides);
#else
    layout->ref = &layout->desc;
    return dnnl_memory_desc_init_by_strides(&layout->desc, 2, dims, dnnl_type(type), strides);
#endif
}

static void layout_fini(struct layout *layout)
{
#if DNNL_VERSION_MAJOR >= 3
    if (layout->desc)
        dnnl_memory_desc_destroy(layout->desc);
#endif
    memset(layout, 0, sizeof *layout);
}

#if DNNL_VERSION_MAJOR >= 3
static const_dnnl_memory_desc_t layout_ref(const struct layout *layout)
{
    return layout->desc;
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1.0f, 0, dnnl_data_type_undef);
}
#else
static const dnnl_memory_desc_t *layout_ref(const struct layout *layout)
{
    return layout->ref;
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1.0f);
}
#endif

static dnnl_status_t pd_create(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                               const struct layout *a, const struct layout *b,
                               const struct layout *bias, const struct layout *c,
                               const_dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(pd, engine, layout_ref(a), layout_ref(b),
                                             layout_ref(bias), layout_ref(c), attr);
#else
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, layout_ref(a), layout_ref(b),
                                                 layout_ref(bias), layout_ref(c));
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(pd, &operation, attr, engine, NULL);
#endif
}

/* ---- create ---- */

/* The caller provides the scratch; fp32 arithmetic is strict whatever the environment says; C += if
 * accumulate is set. */
static dnnl_status_t attr_create(dnnl_primitive_attr_t *attr, bool accumulate)
{
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_fpmath_mode(*attr, dnnl_fpmath_mode_strict);
#if DNNL_VERSION_MAJOR > 3 || (DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR >= 4)
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_deterministic(*attr, 1);
#endif
    if (status == dnnl_success && accumulate) {
        dnnl_post_ops_t post_ops = NULL;
        status = dnnl_post_ops_create(&post_ops);
        if (status == dnnl_success)
            status = append_sum(post_ops);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(*attr, post_ops);
        if (post_ops)
            dnnl_post_ops_destroy(post_ops);
    }
    return status;
}

/* True for oneDNN's reference loop, which is hundreds of times slower than an fp32 product of
 * widened operands. */
static bool is_reference_loop(const_dnnl_primitive_desc_t pd)
{
    const char *implementation = NULL;
    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&implementation) ==
               dnnl_success &&
           implementation && strncmp(implementation, "ref", 3) == 0;
}

static dnnl_status_t slots_create(cpui_product *product, const kernel_context *context,
                                  const struct layout *layouts, const_dnnl_primitive_desc_t pd)
{
    const struct layout *a = &layouts[0], *b = &layouts[1], *bias = &layouts[2], *c = &layouts[3];
    for (int i = 0; i < product->slot_count; i++) {
        struct product_slot *slot = &product->slots[i];
        slot->stream = product->slot_count == 1 ? context->stream : context->worker_streams[i];
        dnnl_status_t status =
            dnnl_memory_create(&slot->a, layout_ref(a), context->engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = dnnl_memory_create(&slot->b, layout_ref(b), context->engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = dnnl_memory_create(&slot->c, layout_ref(c), context->engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success && product->desc.has_bias)
            status = dnnl_memory_create(&slot->bias, layout_ref(bias), context->engine,
                                        DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = dnnl_memory_create(
                &slot->scratch, dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0),
                context->engine, DNNL_MEMORY_NONE);
        if (status != dnnl_success)
            return status;
    }
    return dnnl_success;
}

static dnnl_status_t primitive_create(cpui_product *product, const kernel_context *context)
{
    const matmul_desc *desc = &product->desc;
    struct layout layouts[4] = {0}; /* a, b, bias, c */
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        layout_init(&layouts[0], desc->m, desc->k, desc->a_transposed ? 1 : desc->a_stride,
                    desc->a_transposed ? desc->a_stride : 1, desc->ab_type);
    if (status == dnnl_success)
        status = layout_init(&layouts[1], desc->k, desc->n, desc->b_transposed ? 1 : desc->b_stride,
                             desc->b_transposed ? desc->b_stride : 1, desc->ab_type);
    if (status == dnnl_success && desc->has_bias)
        status = layout_init(&layouts[2], 1, desc->n, desc->n, 1, desc->ab_type);
    if (status == dnnl_success)
        status = layout_init(&layouts[3], desc->m, desc->n, desc->c_stride, 1, desc->c_type);
    if (status == dnnl_success)
        status = attr_create(&attr, desc->accumulate);
    if (status == dnnl_success)
        status = pd_create(&pd, context->engine, &layouts[0], &layouts[1], &layouts[2], &layouts[3],
                           attr);
    if (status == dnnl_success && desc->ab_type != DTYPE_FP32 && is_reference_loop(pd))
        status = dnnl_unimplemented;
    if (status == dnnl_success)
        status = dnnl_primitive_create(&product->primitive, pd);
    if (status == dnnl_success) {
        product->scratch_bytes = dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
        status = slots_create(product, context, layouts, pd);
    }
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 4; i++)
        layout_fini(&layouts[i]);
    return status;
}

int cpui_product_create(kernel_context *context, const matmul_desc *desc, int threads, int slots,
                        cpui_product **out)
{
    *out = NULL;
    TRY(matmul_check(desc));
    TRY(limits_check_memory()); /* oneDNN crashes where the code it generates has no room */
    cpui_product *product = mem_alloc(1, sizeof *product, "matrix product");
    if (!product)
        return -ENOMEM;
    product->desc = *desc;
    product->slot_count = slots;
    product->slots = mem_alloc((size_t)slots, sizeof *product->slots, "matrix product slots");
    if (!product->slots) {
        mem_free(product);
        return -ENOMEM;
    }
    int threads_before = omp_get_max_threads();
    omp_set_num_threads(threads);
    dnnl_status_t status = primitive_create(product, context);
    omp_set_num_threads(threads_before);
    if (status != dnnl_success) {
        int rc = cpui_product_failed(product, (int)status);
        cpui_product_destroy(product);
        return rc;
    }
    *out = product;
    return 0;
}

void cpui_product_destroy(cpui_product *product)
{
    if (!product)
        return;
    for (int i = 0; i < product->slot_count; i++) {
        struct product_slot *slot = &product->slots[i];
        dnnl_memory_t memories[] = {slot->a, slot->b, slot->bias, slot->c, slot->scratch};
        for (size_t j = 0; j < sizeof memories / sizeof *memories; j++)
            if (memories[j])
                dnnl_memory_destroy(memories[j]);
    }
    if (product->primitive)
        dnnl_primitive_destroy(product->primitive);
    mem_free(product->slots);
    mem_free(product);
}

size_t cpui_product_scratch_bytes(const cpui_product *product)
{
    return size_round_up(product->scratch_bytes, 64);
}

/* ---- run ---- */

int cpui_product_run(const cpui_product *product, int slot_idx, const void *a, const void *b,
                     const void *bias, void *c, void *scratch)
{
    const struct product_slot *slot = &product->slots[slot_idx];
    dnnl_status_t status = dnnl_memory_set_data_handle(slot->a, (void *)a);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(slot->b, (void *)b);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(slot->c, c);
    if (status == dnnl_success && slot->bias)
        status = dnnl_memory_set_data_handle(slot->bias, (void *)bias);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(slot->scratch, scratch);
    if (status != dnnl_success)
        return (int)status;
    dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, slot->a},
                               {DNNL_ARG_WEIGHTS, slot->b},
                               {DNNL_ARG_DST, slot->c},
                               {DNNL_ARG_SCRATCHPAD, slot->scratch},
                               {DNNL_ARG_BIAS, slot->bias}};
    return (int)dnnl_primitive_execute(product->primitive, slot->stream, slot->bias ? 5 : 4, args);
}

int cpui_product_failed(const cpui_product *product, int status)
{
    char text[MATMUL_TEXT_BYTES];
    return err_set(ERR_BACKEND, "oneDNN: %s: %s", matmul_text(&product->desc, text),
                   dnnl_status2str((dnnl_status_t)status));
}

/* ---- engine ---- */

/* Creates a product of the usual kind, to see if bf16 operands are worth using on this CPU. With
 * AVX-512 but without its bf16 instructions they are not: oneDNN 2.6 then widens each pair inside
 * its loop. GFLOP/s on one Zen 4 core held to that set, as m x n x k: 1024x3072x768 36.9, against
 * 95.9 for the widened product; 768x3072x1024 transposed 37.0 and 97.0. */
static bool probe_bf16(kernel_context *context)
{
#if defined(__x86_64__)
    if (context->isa < CPU_AVX512_BF16)
        return false;
#endif
    matmul_desc desc = {.m = 64,
                        .n = 64,
                        .k = 64,
                        .b_transposed = true,
                        .a_stride = 64,
                        .b_stride = 64,
                        .c_stride = 64,
                        .ab_type = DTYPE_BF16,
                        .c_type = DTYPE_FP32};
    cpui_product *product;
    if (cpui_product_create(context, &desc, 1, 1, &product) < 0)
        return false;
    cpui_product_destroy(product);
    return true;
}

/* oneDNN detects the CPU by itself. If SLUICE_ISA made the choice, oneDNN must not exceed it.
 * oneDNN accepts a limit only before its first use in the process. */
static int limit_library(enum cpu_isa isa)
{
#if defined(__x86_64__)
    static const dnnl_cpu_isa_t limits[CPU_ISA_COUNT] = {
        [CPU_BASELINE] = dnnl_cpu_isa_sse41,
        [CPU_AVX2] = dnnl_cpu_isa_avx2,
        [CPU_AVX512] = dnnl_cpu_isa_avx512_core_vnni, /* VNNI only adds 8-bit products */
        [CPU_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16,
    };
    if (!cpu_isa_is_forced() || isa >= CPU_AMX)
        return 0;
    unsigned limit = limits[isa];
    /* For the second context of a process oneDNN refuses the limit; the first one stays in
     * force. */
    dnnl_status_t status = dnnl_set_max_cpu_isa(limits[isa]);
    unsigned used = dnnl_get_effective_cpu_isa();
    if (used & ~limit)
        return err_set(ERR_BACKEND,
                       "oneDNN cannot be held to %s, which SLUICE_ISA asks for: %s; it uses %#x",
                       cpu_isa_name(isa), dnnl_status2str(status), used);
#else
#endif
    return 0;
}

int cpui_engine_create(kernel_context *context)
{
    TRY(limit_library(context->isa));
    context->worker_streams =
        mem_alloc((size_t)context->thread_count, sizeof *context->worker_streams, "oneDNN streams");
    if (!context->worker_streams)
        return -ENOMEM;
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_status_t status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    context->engine = engine;
    if (status == dnnl_success) {
        status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
        context->stream = stream;
    }
    for (int i = 0; i < context->thread_count && status == dnnl_success; i++) {
        status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
        if (status == dnnl_success)
            context->worker_streams[i] = stream;
    }
    if (status != dnnl_success) {
        cpui_engine_destroy(context);
        return err_set(ERR_BACKEND, "oneDNN: cannot create a CPU engine with %d streams: %s",
                       context->thread_count, dnnl_status2str(status));
    }
    context->has_bf16_products = probe_bf16(context);
    return 0;
}

void cpui_engine_destroy(kernel_context *context)
{
    for (int i = 0; context->worker_streams && i < context->thread_count; i++)
        if (context->worker_streams[i])
            dnnl_stream_destroy(context->worker_streams[i]);
    if (context->stream)
        dnnl_stream_destroy(context->stream);
    if (context->engine)
        dnnl_engine_destroy(context->engine);
    mem_free(context->worker_streams);
    context->worker_streams = NULL;
    context->engine = context->stream = NULL;
}

const char *cpui_engine_version(void)
{
    static char text[48];
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, sizeof text, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
    return text;
}
