/* Adam on packed state of the CPU backend, in the instruction set of the process. It is compared
 * bit for bit with the reference variant over formats, types, counts and special values, and a
 * split master is compared with an fp32 one. The bits that round are random. */
#include <math.h>

#include "base/mem.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/optimizer/adam_state_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 20261122, STREAM_COUNT = 5, SLACK_BYTES = 64, MAX_ELEMS = 25 * 4096 + 5 };

static enum cpu_isa tested_isa;
enum stream { MASTER, M, V, GRADS, PARAMS };

/* Five streams, each in its own block, `shift` elements and more off alignment. */
struct tile {
    char *blocks[STREAM_COUNT];
    size_t bytes[STREAM_COUNT];
    update_args args;
};
typedef struct tile tile;

struct tile_form {
    uint64_t count;
    enum tile_format master, m, v;
    enum dtype grad_type, param_type;
    size_t shift;
};
typedef struct tile_form tile_form;

static const update_scalars adamw = {.learning_rate = 3e-3f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .decoupled = true,
                                     .bias_correction1 = 0.19f,
                                     .bias_correction2_sqrt = 0.3f,
                                     .grad_scale = 0.37f};

/* Streams of zero bytes between others. */
static void tile_init(tile *self, const tile_form *form, const update_scalars *scalars)
{
    const enum tile_format formats[] = {form->master, form->m, form->v};
    void *streams[STREAM_COUNT];
    for (int i = 0; i < STREAM_COUNT; i++) {
        uint64_t width = i == GRADS    ? dtype_bytes(form->grad_type)
                         : i == PARAMS ? dtype_bytes(form->param_type)
                                       : tile_format_bytes(formats[i], 1);
        uint64_t used =
            i < GRADS ? tile_format_bytes(formats[i], form->count) : width * form->count;
        if (i < GRADS && formats[i] == TILE_INT8)
            width = 4; /* codes lie on their scales' alignment */
        self->bytes[i] = used + SLACK_BYTES;
        self->blocks[i] = mem_alloc(self->bytes[i], 1, "test stream");
        assert_non_null(self->blocks[i]);
        memset(self->blocks[i], 0x5a, self->bytes[i]);
        streams[i] = self->blocks[i] + width * form->shift * (i == M ? 2 : 1);
        memset(streams[i], 0, used);
    }
    self->args = (update_args){
        .count = form->count,
        .streams = tile_streams_code(3, form->master, form->m, form->v),
        .master = streams[MASTER],
        .m = streams[M],
        .v = streams[V],
        .grads = streams[GRADS],
        .grad_type = form->grad_type,
        .params = streams[PARAMS],
        .param_type = form->param_type,
        .scalars = scalars,
        .rounding_key = SEED,
    };
}

static void tile_fini(tile *self)
{
    for (int i = 0; i < STREAM_COUNT; i++)
        mem_free(self->blocks[i]);
}

static void run(kernel_context *context, const tile *self)
{
    assert_ok(cpui_update(context, NULL, &self->args));
}

/* ---- values ---- */

static void put_master(tile *self, uint64_t i, float value)
{
    if (tile_master_is_split(self->args.streams)) {
        ((uint16_t *)self->args.master)[i] = master_low16(value);
        ((uint16_t *)self->args.params)[i] = bf16_working_copy(value);
    } else {
        ((float *)self->args.master)[i] = value;
    }
}

static float get_master(const tile *self, uint64_t i)
{
    if (!tile_master_is_split(self->args.streams))
        return ((const float *)self->args.master)[i];
    return master_join(((const uint16_t *)self->args.params)[i],
                       ((const uint16_t *)self->args.master)[i]);
}

static uint8_t *code_at(void *stream, uint64_t i)
{
    return (uint8_t *)stream + i / 4096 * TILE_CODE_BLOCK_BYTES + i % 4096;
}

static float *scale_at(void *stream, uint64_t i)
{
    return (float *)((char *)stream + i / 4096 * TILE_CODE_BLOCK_BYTES + 4096 + i % 4096 / 256 * 4);
}

/* A moment's bits, as if they were those of a value; random codes and a scale for 8 bits. */
static void put_moment_bits(tile *self, enum stream stream, uint64_t i, uint32_t bits)
{
    void *data = stream == M ? self->args.m : self->args.v;
    enum tile_format format = tile_stream_format(self->args.streams, stream);
    if (format == TILE_FP32)
        ((uint32_t *)data)[i] = bits;
    else if (format == TILE_BF16)
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    else {
        *code_at(data, i) = (uint8_t)(bits >> 24 ^ bits >> 9);
        if (i % 256 == 0)
            memcpy(scale_at(data, i), &bits, 4);
    }
}

static const uint32_t special_bits[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x33000000, 0x33000001,
    0x38800000, 0x387fffff, 0x477fe000, 0x7e800000, 0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f800000,
    0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345, 0x7fffffff, 0x3f808000, 0x3f818000,
    0x3f807fff, 0xbf808000, 0x3f801000, 0x3f803000, 0x5f000000, 0x1f000000, 0x00400000, 0x00008000,
};
enum { SPECIAL_COUNT = sizeof special_bits / sizeof special_bits[0] };

/* Numbers as in training; some blocks far apart in size. */
static void fill_random(tile *self, uint64_t step)
{
    static float draws[3][MAX_ELEMS];
    uint64_t count = self->args.count;
    assert_true(count <= MAX_ELEMS);
    rng_normals(SEED, 10 + step, 0, count, draws[0]);
    for (uint64_t i = 0; i < count; i++) {
        float size = i / 256 % 5 == 3 ? 1e-17f : i / 256 % 5 == 4 ? 1e4f : 1e-2f;
        draws[0][i] *= i % 11 == 0 ? size * 1e-6f : size;
    }
    dtype_convert(draws[0], DTYPE_FP32, (void *)(uintptr_t)self->args.grads, self->args.grad_type,
                  count);
    if (step > 0)
        return;
    rng_normals(SEED, 1, 0, count, draws[1]);
    rng_normals(SEED, 2, 0, count, draws[2]);
    for (uint64_t i = 0; i < count; i++) {
        put_master(self, i, 0.1f * draws[1][i]);
        put_moment_bits(self, M, i, fp32_bits(0.01f * draws[2][i]));
        put_moment_bits(self, V, i, fp32_bits(1e-4f * (float)rng_uniform(SEED, 3, i)));
    }
}

/* Patterns, each with others of the other streams; every third block has numbers between them. */
static void fill_special(tile *self)
{
    fill_random(self, 0);
    for (uint64_t i = 0; i < self->args.count; i++) {
        if (i / 256 % 3 == 2 && i % 64 != 0)
            continue;
        uint32_t a = special_bits[i % SPECIAL_COUNT], b = special_bits[i / 7 % SPECIAL_COUNT];
        uint32_t c = special_bits[(i / SPECIAL_COUNT + 5 * i) % SPECIAL_COUNT];
        uint16_t half = (uint16_t)(self->args.grad_type == DTYPE_BF16 ? a >> 16 : a >> 13);
        char *grads = (char *)(uintptr_t)self->args.grads;
        if (self->args.grad_type == DTYPE_FP32)
            memcpy(grads + 4 * i, &a, 4);
        else
            memcpy(grads + 2 * i, &half, 2);
        put_moment_bits(self, M, i, b);
        put_moment_bits(self, V, i, c);
        put_master(self, i, fp32_from_bits(special_bits[i / 3 % SPECIAL_COUNT]));
    }
}

/* ---- against the reference variant ---- */

static void assert_same(const tile *a, const tile *b, const char *what)
{
    static const char *const names[STREAM_COUNT] = {"master", "m", "v", "grads", "params"};
    for (int stream = 0; stream < STREAM_COUNT; stream++) {
        size_t i = 0;
        if (memcmp(a->blocks[stream], b->blocks[stream], a->bytes[stream]) == 0)
            continue;
        while (a->blocks[stream][i] == b->blocks[stream][i])
            i++;
        fail_msg("%s: streams 0x%08x, count %llu, grads %s, params %s: %s differ at byte %zu", what,
                 a->args.streams, (unsigned long long)a->args.count, dtype_name(a->args.grad_type),
                 dtype_name(a->args.param_type), names[stream], i);
    }
}

static void compare(kernel_context *a, kernel_context *b, const tile_form *form,
                    const update_scalars *scalars, bool is_special)
{
    tile left, right;
    tile_init(&left, form, scalars);
    tile_init(&right, form, scalars);
    for (uint64_t step = 0; step < 3; step++) {
        if (!is_special)
            fill_random(&left, step);
        else if (step == 0)
            fill_special(&left);
        memcpy(right.blocks[GRADS], left.blocks[GRADS], left.bytes[GRADS]);
        for (int i = 0; i < STREAM_COUNT && step == 0; i++)
            memcpy(right.blocks[i], left.blocks[i], left.bytes[i]);
        left.args.rounding_key = right.args.rounding_key = SEED + step;
        run(a, &left);
        run(b, &right);
        assert_same(&left, &right, is_special ? "special values" : "random values");
    }
    tile_fini(&left);
    tile_fini(&right);
}

/* Calls fn with every form of state and types. */
static void over_forms(void (*fn)(const tile_form *form, int idx))
{
    static const enum tile_format moments[] = {TILE_FP32, TILE_BF16, TILE_INT8};
    int idx = 0;
    for (int kind = 0; kind < 4; kind++)
        for (int m = 0; m < 3; m++)
            for (int v = 0; v < 3; v++)
                for (int grad = 0; grad < DTYPE_COUNT; grad++) {
                    tile_form form = {.master = kind == 3 ? TILE_LOW16 : TILE_FP32,
                                      .m = moments[m],
                                      .v = moments[v],
                                      .grad_type = (enum dtype)grad,
                                      .param_type = kind == 3 ? DTYPE_BF16 : (enum dtype)kind};
                    fn(&form, idx++);
                }
}

static void compare_form(const tile_form *form, int idx)
{
    static const uint64_t counts[] = {0, 1, 31, 255, 256, 257, 4096, 4096 + 300, 3 * 4096};
    kernel_context reference = adam_context_of(CPU_BASELINE, 1);
    kernel_context tested = adam_context_of(tested_isa, 1);
    update_scalars scalars = adamw;
    scalars.decoupled = idx % 2 == 0;
    tile_form shaped = *form;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        shaped.count = counts[i];
        shaped.shift = ((size_t)idx + i) % 3;
        compare(&reference, &tested, &shaped, &scalars, false);
    }
    shaped.count = 8192 + 77;
    compare(&reference, &tested, &shaped, &scalars, true);
}

static void equals_reference(void **state)
{
    over_forms(compare_form);
}

static void ignores_threads_and_tiles(void **state)
{
    tile_form form = {.count = MAX_ELEMS,
                      .master = TILE_LOW16,
                      .m = TILE_BF16,
                      .v = TILE_INT8,
                      .grad_type = DTYPE_BF16,
                      .param_type = DTYPE_BF16};
    kernel_context reference = adam_context_of(CPU_BASELINE, 1);
    for (int threads = 1; threads <= 3; threads++) {
        kernel_context tested = adam_context_of(tested_isa, threads);
        compare(&reference, &tested, &form, &adamw, false);
    }
    /* The same elements in tiles of 5 blocks, across the 2^32th element of the unit. */
    kernel_context tested = adam_context_of(tested_isa, 2);
    tile whole, cut;
    tile_init(&whole, &form, &adamw);
    tile_init(&cut, &form, &adamw);
    whole.args.first_elem = cut.args.first_elem = ((uint64_t)1 << 32) - 7 * 4096;
    fill_random(&whole, 0);
    for (int i = 0; i < STREAM_COUNT; i++)
        memcpy(cut.blocks[i], whole.blocks[i], whole.bytes[i]);
    run(&tested, &whole);
    for (uint64_t at = 0; at < form.count; at += (uint64_t)5 * 4096) {
        update_args part =
            adami_packed_part(&cut.args, at, size_min((uint64_t)5 * 4096, form.count - at));
        assert_int_equal(cpui_update(&tested, NULL, &part), 0);
    }
    assert_same(&whole, &cut, "tiles");
    /* Beyond it the bits are others. */
    adami_rounding here = adami_rounding_at(SEED, 0), there = adami_rounding_at(SEED, 1ull << 32);
    assert_true(here.first != there.first && here.second != there.second);
    tile_fini(&whole);
    tile_fini(&cut);
}

/* fp32 streams: adam's own bits. */
static void split_master_is_an_fp32_master(void **state)
{
    enum { COUNT = 4096 + 300, STEPS = 200 };
    static float master[COUNT], m[COUNT], v[COUNT], draws[COUNT];
    static uint16_t params[COUNT];
    kernel_context tested = adam_context_of(tested_isa, 1);
    tile split, plain;
    tile_form form = {
        .count = COUNT, .master = TILE_LOW16, .grad_type = DTYPE_BF16, .param_type = DTYPE_BF16};
    tile_init(&split, &form, &adamw);
    form.master = TILE_FP32;
    tile_init(&plain, &form, &adamw);
    for (uint64_t i = 0; i < COUNT; i++) {
        master[i] =
            i < SPECIAL_COUNT ? fp32_from_bits(special_bits[i]) : 0.1f * rng_normal(SEED, 4, i);
        if (master[i] != master[i])
            master[i] = 1;
        put_master(&split, i, master[i]);
        put_master(&plain, i, master[i]);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        uint16_t *grads = (uint16_t *)(uintptr_t)split.args.grads;
        rng_normals(SEED, 50 + step, 0, COUNT, draws);
        for (uint64_t i = 0; i < COUNT; i++)
            grads[i] = bf16_from_fp32(0.01f * draws[i]);
        if (step == STEPS / 2)
            grads[3000] = 0x7f80; /* infinite: m and v are then, and the weight no number */
        update_args args = {.count = COUNT,
                            .master = master,
                            .m = m,
                            .v = v,
                            .grads = grads,
                            .grad_type = DTYPE_BF16,
                            .params = params,
                            .param_type = DTYPE_BF16,
                            .scalars = &adamw};
        plain.args.grads = grads;
        run(&tested, &split);
        run(&tested, &plain);
        assert_int_equal(cpui_update(&tested, NULL, &args), 0);
        for (uint64_t i = 0; i < COUNT; i++)
            if (fp32_bits(get_master(&split, i)) != fp32_bits(master[i]))
                fail_msg("step %d, element %d: %08x, fp32 master %08x", (int)step, (int)i,
                         fp32_bits(get_master(&split, i)), fp32_bits(master[i]));
        assert_memory_equal(split.args.params, params, sizeof params);
        assert_memory_equal(split.args.m, m, sizeof m);
        assert_memory_equal(split.args.v, v, sizeof v);
        assert_memory_equal(plain.args.master, master, sizeof master);
        assert_memory_equal(plain.args.params, params, sizeof params);
    }
    assert_true(isnan(master[3000]));
    tile_fini(&split);
    tile_fini(&plain);
}

/* ---- random bits ---- */

enum { DRAWS = 1 << 16 };

/* Pearson's correlation of each bit of a with each of b, times sqrt(DRAWS): normal where they
 * are independent. */
static void assert_uncorrelated(const uint32_t *a, const uint32_t *b, bool is_same,
                                const char *what)
{
    for (int i = 0; i < 32; i++)
        for (int j = is_same ? i + 1 : 0; j < 32; j++) {
            int agree = 0;
            for (int n = 0; n < DRAWS; n++)
                agree += (a[n] >> i & 1) == (b[n] >> j & 1);
            double z = (2.0 * agree - DRAWS) / sqrt(DRAWS);
            if (fabs(z) > 5.5)
                fail_msg("%s: bit %d and bit %d agree too often or too seldom: z = %.1f", what, i,
                         j, z);
        }
}

static void random_bits_are_random(void **state)
{
    if (tested_isa != CPU_BASELINE)
        return; /* the same bits in all */
    uint32_t *a = mem_alloc(DRAWS, 4, "draws"), *b = mem_alloc(DRAWS, 4, "draws");
    assert_true(a && b);
    adami_rounding rounding = adami_rounding_at(SEED, 0), next = adami_rounding_at(SEED + 1, 0);
    for (uint32_t n = 0; n < DRAWS; n++)
        a[n] = adami_random_bits(&rounding, n);
    for (int i = 0; i < 32; i++) {
        int ones = 0;
        for (int n = 0; n < DRAWS; n++)
            ones += a[n] >> i & 1;
        assert_true(fabs(2.0 * ones - DRAWS) < 5 * sqrt(DRAWS));
    }
    assert_uncorrelated(a, a, true, "bits of an element");
    static const uint32_t distances[] = {1, 2, 16, 256, 4096};
    for (size_t d = 0; d < sizeof distances / sizeof distances[0]; d++) {
        for (uint32_t n = 0; n < DRAWS; n++)
            b[n] = adami_random_bits(&rounding, n + distances[d]);
        assert_uncorrelated(a, b, false, "neighbours");
    }
    for (uint32_t n = 0; n < DRAWS; n++)
        b[n] = adami_random_bits(&next, n);
    assert_uncorrelated(a, b, false, "the same elements under the next key");
    /* Halves: chi-square over 256 classes of the upper byte of each, 255 degrees of freedom. */
    for (int half = 0; half < 2; half++) {
        int classes[256] = {0};
        double chi = 0;
        for (int n = 0; n < DRAWS; n++)
            classes[a[n] >> (half ? 24 : 8) & 255]++;
        for (int c = 0; c < 256; c++)
            chi += pow(classes[c] - DRAWS / 256.0, 2) / (DRAWS / 256.0);
        assert_true(chi > 150 && chi < 380);
    }
    mem_free(a);
    mem_free(b);
}

static void refuses(void **state)
{
    kernel_context tested = adam_context_of(tested_isa, 1);
    tile_form form = {.count = 256, .m = TILE_BF16, .v = TILE_BF16, .param_type = DTYPE_BF16};
    tile self;
    tile_init(&self, &form, &adamw);
    update_args args = self.args;
    args.streams = tile_streams_code(2, TILE_FP32, TILE_BF16, TILE_FP32);
    assert_int_equal(cpui_update(&tested, NULL, &args), ERR_INTERNAL);
    args.streams = tile_streams_code(3, TILE_BF16, TILE_BF16, TILE_BF16);
    assert_int_equal(cpui_update(&tested, NULL, &args), ERR_INTERNAL);
    args.streams = tile_streams_code(3, TILE_FP32, TILE_LOW16, TILE_BF16);
    assert_int_equal(cpui_update(&tested, NULL, &args), ERR_INTERNAL);
    args.streams = tile_streams_code(3, TILE_LOW16, TILE_BF16, TILE_BF16);
    args.param_type = DTYPE_FP16;
    assert_error(cpui_update(&tested, NULL, &args), ERR_INTERNAL, "fp16");
    args = self.args;
    args.first_elem = 256;
    assert_int_equal(cpui_update(&tested, NULL, &args), ERR_INTERNAL);
    tile_fini(&self);
}

int main(void)
{
    int rc = isa_of_test(&tested_isa);
    if (rc != 0)
        return rc;
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(ignores_threads_and_tiles),
        cmocka_unit_test(split_master_is_an_fp32_master),
        cmocka_unit_test(random_bits_are_random),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
