/* Checkpoints that come quantized: codes and scales are copied as they are into packed units, whole
 * and in parts, and are expanded for everything else, in any range. Each way in which a checkpoint
 * breaks the layout is refused in one sentence. */
#include <inttypes.h>
#include <math.h>

#include "base/rng.h"
#include "base/size.h"
#include "format/safetensors.h"
#include "hf/layout.h"
#include "hf/weights.h"
#include "kernels/ops.h"
#include "model/pack.h"
#include "tests/hf/hf_fixture.h"
#include "tests/unit.h"

enum { SEED = 77, RANGES = 24, ROWS_MAX = 1024, STATE_BYTES = 256 };

/* The faults of a checkpoint. */
enum fault {
    NO_FAULT,
    NO_SCALES,
    NO_STATE,
    WRONG_BLOCK,  /* 4 bits: blocks of 128 */
    WRONG_NESTED, /* double quantization: groups of 128 scales */
    WRONG_SHAPE,  /* another shape in the quant_state, or fewer scales */
    WRONG_TABLE,  /* 4 bits: other values */
    WRONG_KIND,   /* 4 bits: another quant_type than in the tensor's name */
    NO_JSON,      /* 4 bits: a quant_state that ends too early */
    LARGE_MEAN,   /* double quantization: values overflow */
    NOT_FINITE,   /* a scale */
    WRONG_TYPE,   /* of the scales */
    EXTRA_SCALES  /* beside a tensor that is not quantized */
};

static kernel_context *context;
static enum dtype storage; /* of codes of 4 bits; DTYPE_COUNT: U8 */

/* ---- a checkpoint ---- */

struct written {
    safetensors_row rows[ROWS_MAX];
    void *data[ROWS_MAX];
    uint32_t count;
};

/* Adds a tensor, and takes a copy of its data. */
static void add(struct written *self, const char *name, const char *end, const char *byte_type,
                uint32_t dim_count, uint64_t rows, uint64_t columns, const void *data)
{
    char whole[512];
    safetensors_row *row = &self->rows[self->count];
    uint64_t elems = dim_count == 0 ? 1 : dim_count == 1 ? rows : rows * columns;
    uint64_t size_bytes = elems * (byte_type ? 1 : sizeof(float));
    snprintf(whole, sizeof whole, "%s%s", name, end);
    *row = (safetensors_row){.name = strdup(whole),
                             .type = DTYPE_FP32,
                             .byte_type = byte_type,
                             .dim_count = dim_count,
                             .shape = {rows, columns}};
    self->data[self->count] = malloc(size_bytes);
    memcpy(self->data[self->count++], data, size_bytes);
    assert_true(self->count < ROWS_MAX);
}

static bool is_4bit(enum stored_format format)
{
    return format >= STORED_NF4 && format <= STORED_FP4_DOUBLE;
}

/* The values of all codes of a format, with a scale of 1. */
static void table_of(enum stored_format format, uint64_t count, float *values)
{
    unsigned char codes[256];
    const float one = 1;
    for (uint64_t i = 0; i < count; i++)
        codes[i] = (unsigned char)(count == 256 ? i : 2 * i * 16 + 2 * i + 1);
    const stored_expand_args args = {format, 1, count, codes, &one, DTYPE_FP32, values};
    assert_int_equal(kernels_reference.stored_expand(context, NULL, &args), 0);
}

/* Codes and scales of a matrix whose values are those of the fixture. The caller frees *codes. */
static stored_layout quantize(enum stored_format format, const char *name, uint64_t rows,
                              uint64_t columns, unsigned char **codes, void **scales)
{
    stored_layout layout = stored_layout_of(format, rows, columns);
    stored_layout single = stored_layout_of(stored_single(format), rows, columns);
    float *values = malloc(rows * columns * sizeof *values);
    float *singles = malloc(single.scale_bytes);
    *codes = calloc(1, size_round_up(layout.code_bytes, 8) + layout.scale_bytes);
    *scales = *codes + size_round_up(layout.code_bytes, 8);
    for (uint64_t i = 0; i < rows * columns; i++)
        values[i] = hf_fixture_value(name, i);
    const stored_quantize_args args = {
        stored_single(format), rows, columns, DTYPE_FP32, values, *codes, singles};
    assert_int_equal(kernels_reference.stored_quantize(context, NULL, &args), 0);
    if (stored_is_double(format))
        assert_int_equal(
            kernels_reference.stored_double(context, NULL, singles, layout.scale_count, *scales),
            0);
    else
        memcpy(*scales, singles, layout.scale_bytes);
    free(values);
    free(singles);
    return layout;
}

static void add_4bit(struct written *self, enum stored_format format, const char *name,
                     uint64_t rows, uint64_t columns, enum fault fault)
{
    unsigned char *codes;
    void *scales;
    float table[256];
    char state[STATE_BYTES], nested[128] = "", end[64];
    const char *kind = stored_single(format) == STORED_NF4 ? "nf4" : "fp4";
    stored_layout layout = quantize(format, name, rows, columns, &codes, &scales);
    uint64_t groups = size_div_up(layout.scale_count, STORED_DOUBLE_GROUP);
    float *singles = scales;
    add(self, name, "", "U8", 2, layout.code_bytes, 1, codes);
    if (storage < DTYPE_COUNT) {
        safetensors_row *row = &self->rows[self->count - 1];
        row->byte_type = NULL;
        row->type = storage;
        row->shape[0] /= dtype_bytes(storage);
    }
    if (fault == NOT_FINITE)
        singles[0] = INFINITY;
    if (stored_is_double(format))
        snprintf(nested, sizeof nested,
                 ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": "
                 "%.17g",
                 fault == WRONG_NESTED ? 128 : 256,
                 fault == LARGE_MEAN ? 3e38 : (double)singles[groups]);
    snprintf(state, sizeof state,
             "{\"quant_type\": \"%s\", \"blocksize\": %d, \"dtype\": \"float32\", \"shape\": "
             "[%" PRIu64 ", %" PRIu64 "]%s}",
             fault == WRONG_KIND ? "int8" : kind, fault == WRONG_BLOCK ? 128 : 64,
             rows + (fault == WRONG_SHAPE), columns, nested);
    if (fault == NO_JSON)
        state[strlen(state) - 1] = '\0';
    snprintf(end, sizeof end, ".quant_state.bitsandbytes__%s", kind);
    if (fault != NO_STATE)
        add(self, name, end, "U8", 1, strlen(state), 0, state);
    table_of(stored_single(format), 16, table);
    table[3] += fault == WRONG_TABLE;
    add(self, name, ".quant_map", NULL, 1, 16, 0, table);
    if (fault == NO_SCALES)
        ;
    else if (stored_is_double(format))
        add(self, name, ".absmax", "U8", 1, layout.scale_count, 0, singles + groups + 1);
    else
        add(self, name, ".absmax", fault == WRONG_TYPE ? "U8" : NULL, 1, layout.scale_count, 0,
            scales);
    if (stored_is_double(format)) {
        table_of(STORED_INT8, 256, table);
        add(self, name, ".nested_quant_map", NULL, 1, 256, 0, table);
        add(self, name, ".nested_absmax", NULL, 1, groups, 0, scales);
    }
    free(codes);
}

static void add_8bit(struct written *self, enum stored_format format, const char *name,
                     uint64_t rows, uint64_t columns, enum fault fault)
{
    unsigned char *codes;
    void *scales;
    char stem[256];
    stored_layout layout = quantize(format, name, rows, columns, &codes, &scales);
    bool is_int8 = format == STORED_INT8_ROWS;
    snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - strlen("weight")), name);
    add(self, name, "", is_int8 ? "I8" : "F8_E4M3", 2, rows, columns, codes);
    if (fault == NOT_FINITE)
        *(float *)scales = NAN;
    if (is_int8)
        add(self, stem, "weight_format", "U8", 0, 0, 0, "");
    uint64_t scale_rows = layout.scale_count / layout.line_runs - (fault == WRONG_SHAPE);
    const char *type = fault == WRONG_TYPE ? "U8" : NULL;
    if (fault != NO_SCALES)
        add(self, is_int8 ? stem : name, is_int8 ? "SCB" : "_scale_inv", type, is_int8 ? 1 : 2,
            scale_rows, layout.line_runs, scales);
    free(codes);
}

static void add_tensor(struct written *self, const model *net, const model_tensor *tensor,
                       enum stored_format format, enum fault *fault)
{
    hf_layout layout = hf_layout_of(net, tensor, false);
    struct hf_stored_range range = hf_layout_range(&layout, tensor);
    for (uint64_t i = 0; i < range.count; i++) {
        char name[HF_NAME_BYTES];
        uint64_t columns = layout.dim_count == 2 ? layout.shape[1] : 0;
        hf_layout_name(net, tensor, &layout, range.first + i, name);
        if (tensor->row_begin > 0 && hf_layout_begins(&layout, tensor, range.first + i) == false)
            continue; /* a part of a matrix that is there already */
        if (tensor->stored == STORED_WORKING) {
            float *values = malloc(layout.elems * sizeof *values);
            for (uint64_t e = 0; e < layout.elems; e++)
                values[e] = hf_fixture_value(name, e);
            add(self, name, "", NULL, layout.dim_count, layout.shape[0], columns, values);
            if (*fault == EXTRA_SCALES) {
                add(self, name, ".absmax", NULL, 1, 1, 0, values);
                *fault = NO_FAULT;
            }
            free(values);
            continue;
        }
        if (is_4bit(format))
            add_4bit(self, format, name, layout.shape[0], columns, *fault);
        else
            add_8bit(self, format, name, layout.shape[0], columns, *fault);
        *fault = NO_FAULT;
    }
}

static void write_checkpoint(const model *net, enum stored_format format, enum fault fault)
{
    char path[1024];
    safetensors_writer *writer;
    struct written *self = calloc(1, sizeof *self);
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++)
            add_tensor(self, net, &net->units[u].tensors[i], format, &fault);
    snprintf(path, sizeof path, "%s/model.safetensors", hf_dir);
    assert_ok(safetensors_create(path, self->rows, self->count, &writer));
    for (uint32_t i = 0; i < self->count; i++) {
        const safetensors_row *row = &self->rows[i];
        uint64_t elems = 1;
        for (uint32_t d = 0; d < row->dim_count; d++)
            elems *= row->shape[d];
        assert_ok(safetensors_write(writer, i, 0, elems, self->data[i]));
        free((char *)(uintptr_t)row->name);
        free(self->data[i]);
    }
    assert_ok(safetensors_finish(writer));
    free(self);
}

/* ---- models ---- */

enum shape { LLAMA, EXPERTS, IN_PARTS, SHAPE_COUNT };

static model *make_model(enum shape shape, enum stored_format format)
{
    model_spec spec = {
        .family = shape == EXPERTS ? MODEL_QWEN3_MOE : MODEL_LLAMA,
        .num_layers = 2,
        .hidden_size = 96,
        .num_heads = 6,
        .num_kv_heads = 2,
        .ffn_size = 130,
        .vocab_size = 61,
        .seq_length = 24,
        .rope_theta = 10000,
        .norm_epsilon = 1e-5,
        .init_std = 0.02,
        .stored.format = format,
        .learn = {.is_given = true, .embed = true},
    };
    model *net;
    if (shape == EXPERTS) {
        spec.expert_count = 6;
        spec.experts_per_token = 2;
        spec.expert_ffn_size = 50;
        spec.experts_per_unit = 2;
    }
    if (shape == IN_PARTS) {
        spec.hidden_size = 128;
        spec.num_heads = 8;
        spec.ffn_size = 512;
        spec.max_part_bytes = 256 * 128 * 4;
    }
    assert_ok(model_create(&spec, DTYPE_FP32, 1, &net));
    return net;
}

/* The values to which the checkpoint's matrix expands, for the model's whole tensor. */
static void expected(const model *net, const model_tensor *tensor, float *values)
{
    hf_layout layout = hf_layout_of(net, tensor, false);
    uint64_t columns = tensor->columns, first = tensor->row_begin * columns, held;
    uint64_t count = tensor->rows * columns;
    char name[HF_NAME_BYTES];
    for (uint64_t done = 0; done < count; done += held) {
        struct hf_place place = hf_layout_place(&layout, first + done);
        held = size_min(place.together, count - done);
        hf_layout_name(net, tensor, &layout, place.tensor, name);
        for (uint64_t i = 0; i < held; i++)
            values[done + i] = hf_fixture_value(name, place.elem + i);
        if (tensor->stored == STORED_WORKING)
            continue;
        unsigned char *codes;
        void *scales;
        uint64_t rows = layout.shape[0];
        float *all = malloc(rows * columns * sizeof *all);
        quantize(tensor->stored, name, rows, columns, &codes, &scales);
        const stored_expand_args args = {tensor->stored, rows,       columns, codes,
                                         scales,         DTYPE_FP32, all};
        assert_int_equal(kernels_reference.stored_expand(context, NULL, &args), 0);
        memcpy(values + done, all + place.elem, held * sizeof *all);
        free(all);
        free(codes);
    }
}

static int read_values(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    return hf_weights_read(user, unit, begin, count, values);
}

/* The packed unit holds the checkpoint's codes: it expands to the same bits. */
static void check_packed(const model *net, hf_weights *from, model_packer *packer, uint32_t u,
                         const float *wanted)
{
    const model_unit *unit = &net->units[u];
    const model_source source = {.values = read_values, .codes = hf_weights_codes, .user = from};
    const void *packed;
    assert_ok(model_pack(packer, &kernels_reference, context, u, &source, &packed));
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        float *values = malloc(tensor->rows * tensor->columns * sizeof *values);
        assert_ok(model_unpack(net, &kernels_reference, context, u, i, packed, values));
        assert_memory_equal(values, wanted + tensor->offset_elems,
                            tensor->rows * tensor->columns * sizeof *values);
        free(values);
    }
    /* and they are copied: nothing is quantized */
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        if (tensor->stored == STORED_WORKING)
            continue;
        stored_layout layout =
            stored_layout_of(tensor->stored, tensor->stored_rows, tensor->columns);
        void *codes = malloc(layout.code_bytes), *scales = malloc(layout.scale_bytes);
        assert_int_equal(hf_weights_codes(from, u, i, 0, codes, scales), 1);
        assert_memory_equal(codes, (const char *)packed + tensor->rest_bytes, layout.code_bytes);
        free(codes);
        free(scales);
    }
}

static void check(enum shape shape, enum stored_format format)
{
    model *net = make_model(shape, format);
    hf_weights *from;
    model_packer *packer;
    uint32_t packed_count = 0;
    write_checkpoint(net, format, NO_FAULT);
    assert_int_equal(hf_weights_open(hf_dir, net, &from), 0);
    assert_ok(model_packer_create(net, &packer));
    for (uint32_t u = 0; u < net->unit_count; u++) {
        const model_unit *unit = &net->units[u];
        float *wanted = calloc(unit->elems, sizeof *wanted);
        float *got = malloc(unit->elems * sizeof *got);
        for (uint32_t i = 0; i < unit->tensor_count; i++)
            expected(net, &unit->tensors[i], wanted + unit->tensors[i].offset_elems);
        assert_ok(hf_weights_read(from, u, 0, unit->elems, got));
        assert_memory_equal(got, wanted, unit->elems * sizeof *got);
        for (uint64_t i = 0; i < RANGES; i++) {
            uint64_t begin = rng_u64(SEED, 1, i) % unit->elems;
            uint64_t count = rng_u64(SEED, 2, i) % (unit->elems - begin + 1);
            assert_ok(hf_weights_read(from, u, begin, count, got));
            assert_memory_equal(got, wanted + begin, count * sizeof *got);
        }
        if (unit->is_packed)
            check_packed(net, from, packer, u, wanted);
        packed_count += unit->is_packed;
        free(wanted);
        free(got);
    }
    assert_true(packed_count > 0);
    model_packer_destroy(packer);
    hf_weights_close(from);
    model_destroy(net);
}

static const enum stored_format formats[] = {STORED_NF4,       STORED_NF4_DOUBLE,
                                             STORED_FP4,       STORED_FP4_DOUBLE,
                                             STORED_INT8_ROWS, STORED_FP8_BLOCKS};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static void as_they_are(void **state)
{
    for (int f = 0; f < FORMATS; f++)
        for (int shape = 0; shape < SHAPE_COUNT; shape++)
            if (shape != IN_PARTS ||
                (!stored_is_double(formats[f]) && formats[f] != STORED_FP8_BLOCKS))
                check((enum shape)shape, formats[f]);
}

/* bnb_4bit_quant_storage: the same bytes as elements of another dtype. */
static void as_another_dtype(void **state)
{
    for (int f = 0; f < FORMATS; f++)
        for (int t = 0; t < DTYPE_COUNT && is_4bit(formats[f]); t++) {
            storage = (enum dtype)t;
            check(LLAMA, formats[f]);
            check(EXPERTS, formats[f]);
        }
    storage = DTYPE_COUNT;
}

/* A model of working params, or of another format, has the expanded values. */
static void as_other_formats(void **state)
{
    model *net = make_model(LLAMA, STORED_NF4_DOUBLE), *plain = make_model(LLAMA, STORED_FP4);
    hf_weights *from;
    unsigned char codes[96 * 96], scales[96 * 96];
    write_checkpoint(net, STORED_NF4_DOUBLE, NO_FAULT);
    assert_int_equal(hf_weights_open(hf_dir, plain, &from), 0);
    for (uint32_t i = 0; i < plain->units[1].tensor_count; i++) {
        const model_tensor *tensor = &net->units[1].tensors[i];
        uint64_t count = tensor->rows * tensor->columns;
        float *got = malloc(count * sizeof *got), *wanted = malloc(count * sizeof *wanted);
        expected(net, tensor, wanted);
        assert_ok(hf_weights_read(from, 1, plain->units[1].tensors[i].offset_elems, count, got));
        assert_memory_equal(got, wanted, count * sizeof *got);
        if (tensor->stored != STORED_WORKING && count <= sizeof codes)
            assert_ok(hf_weights_codes(from, 1, i, 0, codes, scales));
        free(got);
        free(wanted);
    }
    hf_weights_close(from);
    model_destroy(net);
    model_destroy(plain);
}

static void refuse(enum stored_format format, enum fault fault, const char *text)
{
    model *net = make_model(LLAMA, format);
    hf_weights *from = NULL;
    model_packer *packer;
    write_checkpoint(net, format, fault);
    int rc = hf_weights_open(hf_dir, net, &from);
    if (rc == 0 && fault == NOT_FINITE) {
        const model_source source = {
            .values = read_values, .codes = hf_weights_codes, .user = from};
        const void *packed;
        assert_ok(model_packer_create(net, &packer));
        rc = model_pack(packer, &kernels_reference, context, 1, &source, &packed);
        model_packer_destroy(packer);
    }
    if (rc != ERR_INPUT || !strstr(err_text(), text) || !strstr(err_text(), ".safetensors"))
        fail_msg("%s, fault %d: %d, \"%s\" lacks \"%s\"", stored_format_name(format), fault, rc,
                 rc < 0 ? err_text() : "", text);
    hf_weights_close(from);
    model_destroy(net);
}

static void refusals(void **state)
{
    refuse(STORED_NF4, NO_STATE, "quant_state.bitsandbytes__nf4, which says");
    refuse(STORED_NF4, NO_SCALES, ".absmax, which says");
    refuse(STORED_NF4, WRONG_BLOCK, "blocksize is not 64");
    refuse(STORED_NF4_DOUBLE, WRONG_NESTED, "nested_blocksize is not 256");
    refuse(STORED_FP4, WRONG_SHAPE, "another shape in its quant_state");
    refuse(STORED_FP4, WRONG_TABLE, "other values than those of fp4");
    refuse(STORED_FP4, WRONG_TYPE, "elements of U8, and the codes of");
    refuse(STORED_NF4, WRONG_KIND, "quant_type is not the one in the tensor's name");
    refuse(STORED_NF4, NO_JSON, "quant_state.bitsandbytes__nf4: no JSON");
    refuse(STORED_FP4_DOUBLE, LARGE_MEAN, "nested_offset is no number, or too large");
    refuse(STORED_NF4, NOT_FINITE, "not finite");
    refuse(STORED_NF4_DOUBLE, NOT_FINITE, "not finite");
    refuse(STORED_INT8_ROWS, NO_SCALES, "SCB, which says");
    refuse(STORED_INT8_ROWS, WRONG_SHAPE, "elements of F32, and the codes of");
    refuse(STORED_INT8_ROWS, WRONG_TYPE, "elements of U8, and the codes of");
    refuse(STORED_FP8_BLOCKS, NO_SCALES, "weight_scale_inv, which says");
    refuse(STORED_FP8_BLOCKS, WRONG_SHAPE, "the number of blocks of 128 x 128");
    refuse(STORED_FP8_BLOCKS, WRONG_TYPE, "scales are read from F32");
    refuse(STORED_FP8_BLOCKS, NOT_FINITE, "not finite");
    refuse(STORED_NF4, EXTRA_SCALES, "of the tensors, such as");
    storage = DTYPE_BF16;
    refuse(STORED_NF4, NO_STATE, "has shape"); /* of a plain tensor */
    refuse(STORED_NF4_DOUBLE, WRONG_SHAPE, "another shape in its quant_state");
    refuse(STORED_FP4, NO_SCALES, ".absmax, which says");
    storage = DTYPE_COUNT;
}

/* config.json says one format and the tensors have another: they would be quantized twice. A job
 * that names a format of its own has asked for that. */
static void another_format_in_config(void **state)
{
    static const enum stored_format said[] = {STORED_FP4, STORED_NF4_DOUBLE, STORED_INT8_ROWS};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        model *net = make_model(LLAMA, said[i]), *written = make_model(LLAMA, STORED_NF4);
        hf_weights *from = NULL;
        write_checkpoint(written, STORED_NF4, NO_FAULT);
        assert_int_equal(hf_weights_open(hf_dir, net, &from), 0);
        hf_weights_close(from);
        net->spec.stored.is_of_checkpoint = true;
        assert_error(hf_weights_open(hf_dir, net, &from), ERR_INPUT,
                     "comes as nf4, and quantization_config");
        assert_non_null(strstr(err_text(), stored_format_name(said[i])));
        written->spec.stored.is_of_checkpoint = true;
        assert_int_equal(hf_weights_open(hf_dir, written, &from), 0);
        hf_weights_close(from);
        model_destroy(net);
        model_destroy(written);
    }
}

/* Scales of a whole matrix, and blocks of rows, may not be cut: that is refused with what to do. */
static void refuse_parts(enum stored_format format)
{
    model *net = make_model(IN_PARTS, format);
    hf_weights *from;
    model_packer *packer;
    write_checkpoint(net, format, NO_FAULT);
    assert_int_equal(hf_weights_open(hf_dir, net, &from), 0);
    assert_ok(model_packer_create(net, &packer));
    const model_source source = {.values = read_values, .codes = hf_weights_codes, .user = from};
    const void *packed;
    int rc = 0;
    for (uint32_t u = 0; rc == 0 && u < net->unit_count; u++)
        if (net->units[u].is_packed)
            rc = model_pack(packer, &kernels_reference, context, u, &source, &packed);
    assert_error(rc, ERR_INPUT, "max_part_bytes");
    model_packer_destroy(packer);
    hf_weights_close(from);
    model_destroy(net);
}

static void groups_in_parts(void **state)
{
    refuse_parts(STORED_NF4_DOUBLE);
    refuse_parts(STORED_FP8_BLOCKS);
}

static int start(void **state)
{
    const kernel_context_config config = {.thread_count = 1};
    storage = DTYPE_COUNT;
    if (kernels_reference.context_create(&config, &context) < 0)
        return -1;
    return hf_fixture_setup(state);
}

static int end(void **state)
{
    kernels_reference.context_destroy(context);
    return hf_fixture_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_they_are),
        cmocka_unit_test(as_another_dtype),
        cmocka_unit_test(as_other_formats),
        cmocka_unit_test(refusals),
        cmocka_unit_test(another_format_in_config),
        cmocka_unit_test(groups_in_parts),
    };
    return cmocka_run_group_tests(tests, start, end);
}
