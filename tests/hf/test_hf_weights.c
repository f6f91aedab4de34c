/* A checkpoint's weights as a model's units see them: names with and without prefix, GPT-2's
 * transposed matrices, GPT-NeoX's rows by heads, experts in both layouts, units in parts, any
 * range, every dtype, shards; and every way in which a checkpoint is not the model's. */
#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "base/size.h"
#include "hf/weights.h"
#include "tests/hf/hf_fixture.h"
#include "tests/unit.h"

enum { SEED = 8, RANGES = 20 };

static const hf_fixture_shape gpt2 = HF_FIXTURE_GPT2(61), llama = HF_FIXTURE_LLAMA(61),
                              bert = HF_FIXTURE_BERT(61), neox = HF_FIXTURE_GPT_NEOX(61),
                              opt = HF_FIXTURE_OPT(61),
                              mixtral = HF_FIXTURE_MIXTURE(MODEL_MIXTRAL, 61),
                              qwen2_moe = HF_FIXTURE_MIXTURE(MODEL_QWEN2_MOE, 61);

static void expect_equal(const model *net, const hf_fixture_shape *shape,
                         const hf_fixture_form *form, uint32_t unit, uint64_t begin, uint64_t count,
                         const float *got)
{
    for (uint64_t i = 0; i < count; i++) {
        float wanted = hf_fixture_expected(net, shape, form, unit, begin + i);
        if (memcmp(&wanted, &got[i], sizeof wanted) != 0)
            fail_msg("unit %u, element %llu: %g, expected %g", unit,
                     (unsigned long long)(begin + i), (double)got[i], (double)wanted);
    }
}

/* The kernel forgets the file, so that it is read past the page cache. */
static void drop_cached(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return; /* of several files all stay */
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

/* hf_weights_read_alone gives the wanted values of any range, in one thread through one buffer. */
static void expect_alone(hf_weights *opened, uint32_t unit, uint64_t begin, uint64_t count,
                         const float *wanted)
{
    void *room = aligned_alloc(4096, WEIGHTS_ROOM_BYTES);
    float *got = malloc((count + 1) * sizeof *got);
    assert_non_null(room);
    assert_non_null(got);
    memset(got, 0xff, (count + 1) * sizeof *got);
    assert_int_equal(hf_weights_read_alone(opened, unit, begin, count, room, got), 0);
    assert_memory_equal(got, wanted, count * sizeof *got);
    assert_true(got[count] != got[count]); /* nothing behind it */
    free(got);
    free(room);
}

/* Every unit whole, then ranges at random, in no order. */
static void read_all(const hf_fixture_shape *shape, const hf_fixture_form *form,
                     uint64_t strip_bytes, uint64_t piece_bytes)
{
    const char *dir = hf_fixture_path("model");
    hf_weights *opened;
    hf_fixture_write(dir, shape, form);
    model *net = hf_fixture_model(shape);
    drop_cached(dir);
    assert_ok(hf_weights_open_sized(dir, net, strip_bytes, piece_bytes, &opened));
    uint64_t most = 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        most = size_max(most, net->units[u].elems);
    float *got = malloc(most * sizeof *got);
    for (uint32_t u = 0; u < net->unit_count; u++) {
        memset(got, 0xff, most * sizeof *got);
        assert_true(hf_weights_has_all(opened, u));
        assert_ok(hf_weights_read(opened, u, 0, net->units[u].elems, got));
        expect_equal(net, shape, form, u, 0, net->units[u].elems, got);
    }
    for (uint64_t i = 0; i < RANGES; i++) {
        uint32_t u = (uint32_t)(rng_u64(SEED, 1, i) % net->unit_count);
        uint64_t begin = rng_u64(SEED, 2, i) % net->units[u].elems;
        uint64_t count = rng_u64(SEED, 3, i) % (net->units[u].elems - begin + 1);
        memset(got, 0xff, most * sizeof *got);
        assert_ok(hf_weights_read(opened, u, begin, count, got));
        expect_equal(net, shape, form, u, begin, count, got);
        if (count < most)
            assert_true(got[count] != got[count]); /* nothing behind it */
        if (i % 8 == 0) {
            drop_cached(dir);
            expect_alone(opened, u, begin, count, got);
        }
    }
    free(got);
    assert_int_equal(hf_weights_type(opened), form->type);
    hf_weights_close(opened);
    model_destroy(net);
    unlink(hf_fixture_path("model/model.safetensors"));
    unlink(hf_fixture_path("model/model.safetensors.index.json"));
}

static void every_form_is_read(void **state)
{
    const hf_fixture_shape shapes[] = {gpt2, llama, bert, neox, opt};
    for (int family = 0; family < 5; family++)
        for (int cut = 0; cut < 2; cut++)
            for (uint32_t form_idx = 0; form_idx < 4; form_idx++) {
                hf_fixture_shape shape = shapes[family];
                shape.max_part_bytes = cut ? 20000 : 0;
                shape.tied = (form_idx + (uint32_t)family) % 2 == 0 || family == 2;
                const hf_fixture_form form = {.type = (enum dtype)(form_idx % 3),
                                              .is_bare = form_idx == 1,
                                              .shards = form_idx == 2 ? 3 : 0,
                                              .has_extras = form_idx % 2 == 0};
                read_all(&shape, &form, WEIGHTS_STRIP_BYTES, WEIGHTS_PIECE_BYTES);
            }
}

/* Experts with tensors of their own and in two for all of a block, in units of one, two and all. */
static void experts_are_read_from_both_layouts(void **state)
{
    static const uint64_t per_unit[] = {1, 2, 6};
    for (int family = 0; family < 2; family++)
        for (uint32_t form_idx = 0; form_idx < 6; form_idx++) {
            hf_fixture_shape shape = family ? qwen2_moe : mixtral;
            shape.experts_per_unit = per_unit[form_idx % 3];
            const hf_fixture_form form = {.type = (enum dtype)(form_idx % 3),
                                          .is_bare = form_idx == 1,
                                          .shards = form_idx == 2 ? 3 : 0,
                                          .has_extras = form_idx == 3,
                                          .is_fused = form_idx % 2 == 1};
            read_all(&shape, &form, WEIGHTS_STRIP_BYTES, form_idx < 3 ? WEIGHTS_PIECE_BYTES : 1000);
        }
}

static void expect_refusal(const hf_fixture_shape *shape, const char *dir, const char *reason)
{
    hf_weights *opened;
    model *net = hf_fixture_model(shape);
    assert_int_equal(hf_weights_open(dir, net, &opened), ERR_INPUT);
    assert_null(opened);
    if (!strstr(err_text(), reason))
        fail_msg("expected \"%s\" in \"%s\"", reason, err_text());
    model_destroy(net);
}

static void other_experts_are_refused(void **state)
{
    const char *dir = hf_fixture_path("experts");
    hf_fixture_form form = {.left = "model.layers.1.block_sparse_moe.experts.4.w3.weight"};
    hf_fixture_write(dir, &mixtral, &form);
    expect_refusal(&mixtral, dir,
                   "has no tensor model.layers.1.block_sparse_moe.experts.4.w3.weig");
    form = (hf_fixture_form){.is_fused = true};
    for (int i = 0; i < 2; i++, form.is_fused = false) {
        hf_fixture_shape shape = mixtral;
        hf_fixture_write(dir, &mixtral, &form);
        shape.ffn = 48;
        expect_refusal(&shape, dir,
                       form.is_fused ? "mlp.experts.gate_up_proj has shape [6, 100, 96], and the "
                                       "model that config.json and the job describe has [6, 96, 96]"
                                     : "experts.0.w1.weight has shape [50, 96], and the model");
    }
    hf_fixture_shape fewer = mixtral;
    fewer.experts = 5; /* published files have a tensor for each */
    form.left = NULL;
    hf_fixture_write(dir, &mixtral, &form);
    expect_refusal(&fewer, dir, "block_sparse_moe.gate.weight has shape [6, 96]");
    expect_refusal(&qwen2_moe, dir,
                   "has neither a tensor model.layers.0.mlp.experts.0.gate_proj.weight nor "
                   "model.layers.0.mlp.experts.gate_up_proj");
}

/* Strips of a few rows, requests of a few stored rows or of less than one. */
static void small_strips_and_pieces_give_the_same(void **state)
{
    static const uint64_t sizes[][2] = {{40000, 4096}, {40000, 1000}, {3000, 100}, {400, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        hf_fixture_shape shape = gpt2;
        const hf_fixture_form form = {.type = i % 2 ? DTYPE_FP16 : DTYPE_FP32};
        shape.hidden = 48;
        shape.ffn = 100;
        shape.layers = 1;
        shape.max_part_bytes = i == 2 ? 17000 : 0;
        read_all(&shape, &form, sizes[i][0], sizes[i][1]);
    }
}

static void other_models_are_refused(void **state)
{
    const char *dir = hf_fixture_path("other");
    hf_fixture_form form = {.type = DTYPE_BF16, .left = "transformer.h.1.mlp.c_fc.bias"};
    hf_fixture_write(dir, &gpt2, &form);
    expect_refusal(&gpt2, dir, "has no tensor transformer.h.1.mlp.c_fc.bias");
    expect_refusal(&llama, dir, "neither a tensor model.embed_tokens.weight nor");
    form = (hf_fixture_form){.type = DTYPE_BF16, .added = "transformer.h.0.more"};
    hf_fixture_write(dir, &gpt2, &form);
    expect_refusal(&gpt2, dir,
                   "no place for 1 of the tensors, such as transformer.h.0.more of shape [2, 3]");
    form.added = NULL;
    hf_fixture_write(dir, &gpt2, &form);
    hf_fixture_shape shape = gpt2;
    shape.tied = false;
    expect_refusal(&shape, dir, "has no tensor lm_head.weight, and model.tie_embeddings is false");
    shape = gpt2;
    shape.ffn = 192;
    expect_refusal(&shape, dir,
                   "transformer.h.0.mlp.c_fc.weight has shape [96, 200], and the model that "
                   "config.json and the job describe has [96, 192]");
    shape = gpt2;
    shape.layers = 1;
    expect_refusal(&shape, dir, "no place for 12 of the tensors");
    shape = gpt2;
    shape.positions = 16;
    expect_refusal(&shape, dir, "transformer.wpe.weight has shape [24, 96]");
}

/* A file that changes after it was opened gives an error, not other numbers. */
static void a_file_that_is_cut_short_is_an_error(void **state)
{
    const char *dir = hf_fixture_path("cut");
    const hf_fixture_form form = {.type = DTYPE_FP32};
    static float got[300000];
    hf_weights *opened;
    hf_fixture_write(dir, &llama, &form);
    model *net = hf_fixture_model(&llama);
    assert_true(net->units[1].elems < 300000);
    assert_int_equal(hf_weights_open(dir, net, &opened), 0);
    assert_ok(hf_weights_read(opened, 0, 0, 1, got));
    assert_int_equal(truncate(hf_fixture_path("cut/model.safetensors"), 20000), 0);
    assert_error(hf_weights_read(opened, 3, 0, net->units[3].elems, got), ERR_INPUT,
                 "before its header says");
    hf_weights_close(opened);
    assert_error(hf_weights_open(dir, net, &opened), ERR_INPUT, "cut short, or damaged");
    assert_ok(
        file_write(hf_fixture_path("cut/model.safetensors"), 0600, "version https://git-lfs", 23));
    assert_error(hf_weights_open(dir, net, &opened), ERR_INPUT, "git lfs pull");
    model_destroy(net);
}

/* The identity depends on names, shapes and places of the tensors and not on the directory's
 * name. */
static void the_identity_is_of_the_contents(void **state)
{
    uint64_t sums[3] = {0};
    const hf_fixture_form forms[3] = {
        {.type = DTYPE_FP32}, {.type = DTYPE_FP32}, {.type = DTYPE_FP32, .shards = 2}};
    model *net = hf_fixture_model(&llama);
    for (int i = 0; i < 3; i++) {
        char name[20];
        hf_weights *opened;
        snprintf(name, sizeof name, "same-%d", i);
        hf_fixture_write(hf_fixture_path(name), &llama, &forms[i]);
        assert_int_equal(hf_weights_open(hf_fixture_path(name), net, &opened), 0);
        sums[i] = hf_weights_identity(opened);
        hf_weights_close(opened);
    }
    assert_true(sums[0] == sums[1] && sums[0] != sums[2]);
    model_destroy(net);
}

static void numbers_that_are_none_are_refused(void **state)
{
    const char *dir = hf_fixture_path("nan");
    const hf_fixture_form form = {.type = DTYPE_BF16};
    static float got[300000];
    hf_weights *opened;
    hf_fixture_write(dir, &gpt2, &form);
    FILE *file = fopen(hf_fixture_path("nan/model.safetensors"), "r+");
    assert_non_null(file);
    const uint16_t infinity = 0x7f80;
    assert_int_equal(fseek(file, -6, SEEK_END), 0); /* third last of ln_f.bias */
    assert_int_equal(fwrite(&infinity, sizeof infinity, 1, file), 1);
    fclose(file);
    model *net = hf_fixture_model(&gpt2);
    assert_int_equal(hf_weights_open(dir, net, &opened), 0);
    assert_int_equal(hf_weights_read(opened, 3, 0, net->units[3].elems, got), ERR_INPUT);
    if (!strstr(err_text(), "tensor transformer.ln_f.bias holds a value that is not finite") ||
        !strstr(err_text(), "its element 93"))
        fail_msg("%s", err_text());
    hf_weights_close(opened);
    model_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_is_read),
        cmocka_unit_test(experts_are_read_from_both_layouts),
        cmocka_unit_test(other_experts_are_refused),
        cmocka_unit_test(small_strips_and_pieces_give_the_same),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(a_file_that_is_cut_short_is_an_error),
        cmocka_unit_test(the_identity_is_of_the_contents),
        cmocka_unit_test(numbers_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, hf_fixture_setup, hf_fixture_teardown);
}
