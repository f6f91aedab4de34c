/* Checkpoints of gpt-oss. All experts of a block lie in one tensor: each matrix transposed, with
 * the rows of gate and up by turns; or in mxfp4, where matrices are not transposed. Any range of a
 * unit is read, in strips of at most one matrix. The test computes each expected element itself. */
#include <math.h>

#include "base/rng.h"
#include "format/safetensors.h"
#include "hf/layout.h"
#include "hf/weights.h"
#include "tests/hf/hf_fixture.h"
#include "tests/unit.h"

enum { SEED = 5, RANGES = 40, EXPERTS = 3, WIDTH = 32, HIDDEN = 64, TENSORS_MAX = 64 };

static model *make_model(uint64_t experts_per_unit)
{
    const model_spec spec = {
        .family = MODEL_GPT_OSS,
        .num_layers = 2,
        .hidden_size = HIDDEN,
        .num_heads = 4,
        .num_kv_heads = 2,
        .ffn_size = WIDTH,
        .vocab_size = 61,
        .seq_length = 24,
        .rope_theta = 10000,
        .norm_epsilon = 1e-5,
        .init_std = 0.02,
        .qkv_bias = true,
        .out_bias = true,
        .expert_count = EXPERTS,
        .experts_per_token = 2,
        .experts_per_unit = experts_per_unit,
    };
    model *net;
    assert_ok(model_create(&spec, DTYPE_FP32, 1, &net));
    return net;
}

/* ---- what a checkpoint holds ---- */

static unsigned char code_at(const char *name, uint64_t byte)
{
    return (unsigned char)rng_u64(SEED, strlen(name) * 1000 + (unsigned char)name[13], byte);
}

static unsigned char all_scales; /* 0: they are drawn */

static unsigned char scale_at(const char *name, uint64_t idx)
{
    if (all_scales > 0)
        return all_scales;
    return (unsigned char)(118 + code_at(name, idx) % 8);
}

/* Element `at` of stored rows of `columns`. */
static float mxfp4_value(const char *name, uint64_t at)
{
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    char blocks[HF_NAME_BYTES], scales[HF_NAME_BYTES];
    snprintf(blocks, sizeof blocks, "%s_blocks", name);
    snprintf(scales, sizeof scales, "%s_scales", name);
    unsigned byte = code_at(blocks, at / 2), code = at % 2 ? byte >> 4 : byte & 15;
    float value = ldexpf(values[code & 7], scale_at(scales, at / 32) - 127);
    return code & 8 ? -value : value;
}

/* Element `at` of a whole tensor of the model. */
static float expected(const char *name, uint64_t at, bool is_packed)
{
    const char *of = strstr(name, ".experts.");
    if (!of)
        return hf_fixture_value(name, at);
    bool is_up = strstr(of, "gate_up") != NULL, is_bias = strstr(of, "_bias") != NULL;
    uint64_t rows = is_up ? 2 * WIDTH : HIDDEN, columns = is_bias ? 1 : is_up ? HIDDEN : WIDTH;
    uint64_t expert = at / (rows * columns), row = at / columns % rows, column = at % columns;
    uint64_t stored = is_up ? row % WIDTH * 2 + row / WIDTH : row; /* gate 0, up 0, gate 1, .. */
    if (is_packed && !is_bias)
        return mxfp4_value(name, (expert * rows + stored) * columns + column);
    return hf_fixture_value(name, (expert * columns + column) * rows + stored);
}

/* ---- a checkpoint ---- */

struct written {
    safetensors_row rows[TENSORS_MAX];
    char names[TENSORS_MAX][HF_NAME_BYTES];
    uint32_t count;
};

static void add(struct written *self, const char *name, const char *end, const hf_layout *layout,
                const char *byte_type)
{
    safetensors_row *row = &self->rows[self->count];
    snprintf(self->names[self->count], HF_NAME_BYTES, "%s%s", name, end);
    *row = (safetensors_row){.name = self->names[self->count++],
                             .type = DTYPE_FP32,
                             .byte_type = byte_type,
                             .dim_count = layout->dim_count};
    memcpy(row->shape, layout->shape, sizeof layout->shape);
    assert_true(self->count < TENSORS_MAX);
}

static void write_checkpoint(const model *net, bool is_packed)
{
    char path[1024];
    safetensors_writer *writer;
    struct written *self = calloc(1, sizeof *self);
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++) {
            const model_tensor *tensor = &net->units[u].tensors[i];
            hf_layout layout = hf_layout_of(net, tensor, false), blocks;
            if (!is_packed || !hf_layout_of_blocks(net, tensor, &blocks)) {
                add(self, tensor->name, "", &layout, NULL);
                continue;
            }
            add(self, tensor->name, "_blocks", &blocks, "U8");
            blocks.dim_count = 3;
            add(self, tensor->name, "_scales", &blocks, "U8");
        }
    snprintf(path, sizeof path, "%s/model.safetensors", hf_dir);
    assert_ok(safetensors_create(path, self->rows, self->count, &writer));
    for (uint32_t t = 0; t < self->count; t++) {
        const safetensors_row *row = &self->rows[t];
        uint64_t elems = 1;
        for (uint32_t d = 0; d < row->dim_count; d++)
            elems *= row->shape[d];
        float *values = malloc(elems * sizeof *values);
        unsigned char *bytes = (unsigned char *)values;
        for (uint64_t k = 0; k < elems; k++)
            if (!row->byte_type)
                values[k] = hf_fixture_value(row->name, k);
            else
                bytes[k] =
                    strstr(row->name, "_scales") ? scale_at(row->name, k) : code_at(row->name, k);
        assert_ok(safetensors_write(writer, t, 0, elems, values));
        free(values);
    }
    assert_ok(safetensors_finish(writer));
    free(self);
}

/* ---- reading ---- */

static void check_range(const model *net, hf_weights *from, uint32_t u, uint64_t begin,
                        uint64_t count, bool is_packed)
{
    const model_unit *unit = &net->units[u];
    float *values = malloc(count * sizeof *values);
    assert_ok(hf_weights_read(from, u, begin, count, values));
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        uint64_t first = tensor->row_begin * tensor->columns;
        for (uint64_t k = 0; k < tensor->rows * tensor->columns; k++) {
            uint64_t at = tensor->offset_elems + k;
            if (at < begin || at >= begin + count)
                continue;
            float wanted = expected(tensor->name, first + k, is_packed);
            if (values[at - begin] != wanted)
                fail_msg("%s: element %llu is %g, not %g", tensor->name,
                         (unsigned long long)(first + k), (double)values[at - begin],
                         (double)wanted);
        }
    }
    free(values);
}

static void check_reads(bool is_packed)
{
    model *whole = make_model(EXPERTS);
    write_checkpoint(whole, is_packed);
    model_destroy(whole);
    for (uint64_t per_unit = 1; per_unit <= EXPERTS; per_unit++) {
        model *net = make_model(per_unit);
        hf_weights *from;
        assert_ok(hf_weights_open_sized(hf_dir, net, 512, 64, &from));
        assert_true(hf_weights_has_strips(from));
        for (uint32_t u = 0; u < net->unit_count; u++)
            check_range(net, from, u, 0, net->units[u].elems, is_packed);
        for (uint64_t i = 0; i < RANGES; i++) {
            uint32_t u = (uint32_t)(rng_u64(SEED, per_unit, 3 * i) % net->unit_count);
            uint64_t elems = net->units[u].elems,
                     begin = rng_u64(SEED, per_unit, 3 * i + 1) % elems;
            uint64_t count = 1 + rng_u64(SEED, per_unit, 3 * i + 2) % (elems - begin);
            check_range(net, from, u, begin, count, is_packed);
        }
        hf_weights_close(from);
        model_destroy(net);
    }
}

static void transposed(void **state)
{
    check_reads(false);
}

static void in_mxfp4(void **state)
{
    check_reads(true);
}

/* Scales of 2^125 are the largest ones with which no value overflows; 255 is NaN. */
static void large_scales(void **state)
{
    static const unsigned char scales[] = {252, 253, 254, 255};
    for (size_t i = 0; i < sizeof scales; i++) {
        model *net = make_model(EXPERTS);
        hf_weights *from;
        int rc = 0;
        all_scales = scales[i];
        write_checkpoint(net, true);
        assert_int_equal(hf_weights_open(hf_dir, net, &from), 0);
        for (uint32_t u = 0; u < net->unit_count && rc == 0; u++) {
            float *values = malloc(net->units[u].elems * sizeof *values);
            rc = hf_weights_read(from, u, 0, net->units[u].elems, values);
            for (uint64_t e = 0; e < net->units[u].elems && rc == 0; e++)
                assert_true(isfinite(values[e]));
            free(values);
        }
        assert_int_equal(rc, scales[i] == 252 ? 0 : ERR_INPUT);
        assert_true(rc == 0 ||
                    strstr(err_text(), "_scales holds a scale that is not finite, or so "));
        hf_weights_close(from);
        model_destroy(net);
    }
    all_scales = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposed),
        cmocka_unit_test(in_mxfp4),
        cmocka_unit_test(large_scales),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, hf_fixture_setup, hf_fixture_teardown);
}
