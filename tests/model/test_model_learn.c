/* Models of which a part learns: every tensor that learns gets the bits of gradient that it gets
 * where everything learns, whole and in parts, losses are the same, and nothing is run for the
 * others: frozen units are given no gradients (the harness gives a pass what it says that it uses),
 * stages before the first that learns have no backward, and that one makes no gradient of its
 * input. Argument: the family or variant. */
#include "base/error.h"
#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 11, LAYERS = 3 };

static const char *instance = "gpt2";
static enum model_family family;

static model_spec small(bool tied, uint64_t max_part_bytes)
{
    bool is_llama = family == MODEL_LLAMA;
    model_spec spec = {
        .num_layers = LAYERS,
        .hidden_size = 48,
        .ffn_size = is_llama ? 88 : 160,
        .vocab_size = 101,
        .seq_length = 12,
        .tie_embeddings = tied,
        .init_std = 0.15,
        .max_part_bytes = max_part_bytes,
    };
    harness_complete(instance, &spec);
    return spec;
}

/* ---- selections ---- */

static const model_learn selections[] = {
    {.is_given = true, .range_count = 1, .blocks = {{1, 1}}},
    {.is_given = true, .range_count = 2, .blocks = {{2, 2}, {0, 0}}},
    {.is_given = true, .embed = true},
    {.is_given = true, .head = true},
    {.is_given = true, .embed = true, .head = true},
    {.is_given = true, .norms = true},
    {.is_given = true, .norms = true, .head = true},
    {.is_given = true, .norms = true, .embed = true},
    {.is_given = true, .norms = true, .range_count = 1, .blocks = {{2, 2}}},
    {.is_given = true, .norms = true, .range_count = 1, .blocks = {{0, 2}}},
    {.is_given = true,
     .embed = true,
     .head = true,
     .norms = true,
     .range_count = 1,
     .blocks = {{0, 2}}},
};
enum { SELECTIONS = sizeof selections / sizeof selections[0] };

static bool is_norm(const char *name)
{
    return strstr(name, "norm") != NULL || strstr(name, ".ln_") != NULL ||
           strncmp(name, "ln_f", 4) == 0 || strstr(name, "LayerNorm") != NULL;
}

/* The block of a tensor, by its name; LAYERS: none. In bert the norm that ends a block belongs to
 * the block after it. */
static unsigned long long block_of(const char *name)
{
    unsigned long long block = LAYERS;
    char end;
    if (strncmp(name, "bert.embeddings.LayerNorm.", 26) == 0)
        return 0;
    if (sscanf(name, "bert.encoder.layer.%llu.output.LayerNorm%c", &block, &end) == 2)
        return block + 1;
    if (!harness_block(name, &block))
        (void)sscanf(name, "bert.encoder.layer.%llu.", &block);
    return block;
}

/* True if the selection includes the tensor, judged by its name alone. */
static bool should_learn(const model_learn *learn, const char *name, bool is_tied)
{
    unsigned long long block = block_of(name);
    for (uint32_t i = 0; i < learn->range_count; i++)
        if (block >= learn->blocks[i].first && block <= learn->blocks[i].last)
            return true;
    if (is_norm(name) && learn->norms)
        return true;
    if (block < LAYERS)
        return false;
    bool is_head = is_norm(name) || harness_is_output(name) ||
                   strncmp(name, "cls.predictions.transform.", 26) == 0 ||
                   strcmp(name, "cls.predictions.decoder.weight") == 0 ||
                   (!is_tied && strcmp(name, "cls.predictions.bias") == 0);
    return is_head ? learn->head : learn->embed;
}

/* ---- running ---- */

static void start(harness *h, const kernel_ops *ops, const model_spec *spec, enum dtype type)
{
    harness_create(h, ops, spec, type, 2, 16);
    harness_init_weights(h, SEED);
    harness_copy_params(h);
    harness_random_tokens(h, SEED, true);
    harness_forget_grads(h);
}

static const model_tensor *find_tensor(const model *self, const model_tensor *like, uint32_t *unit)
{
    for (*unit = 0; *unit < self->unit_count; (*unit)++)
        for (uint32_t i = 0; i < self->units[*unit].tensor_count; i++) {
            const model_tensor *found = &self->units[*unit].tensors[i];
            if (strcmp(found->name, like->name) == 0 && found->row_begin == like->row_begin)
                return found;
        }
    fail_msg("there is no tensor %s", like->name);
    return NULL;
}

/* Gradients, initial weights and frozenness of every tensor. */
static void compare(const harness *all, const harness *some, const model_learn *learn)
{
    const model *self = some->self;
    for (uint32_t u = 0; u < self->unit_count; u++)
        for (uint32_t i = 0; i < self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &self->units[u].tensors[i];
            uint32_t from;
            const model_tensor *same = find_tensor(all->self, tensor, &from);
            uint64_t elems = tensor->rows * tensor->columns;
            assert_int_equal(elems, same->rows * same->columns);
            assert_memory_equal(some->masters[u] + tensor->offset_elems,
                                all->masters[from] + same->offset_elems, elems * 4);
            assert_int_equal(self->units[u].is_frozen,
                             !should_learn(learn, tensor->name, self->spec.tie_embeddings));
            if (self->units[u].is_frozen)
                continue;
            assert_memory_equal(some->grads[u] + tensor->offset_elems,
                                all->grads[from] + same->offset_elems, elems * 4);
        }
    assert_int_equal(self->param_count, all->self->param_count);
    assert_memory_equal(some->losses, all->losses, self->micro_batch * self->tokens * 4);
}

static bool stage_learns(const model *self, uint32_t stage)
{
    const struct stage *of = &self->stages[stage];
    for (uint32_t p = 0; p < of->pass_count[PHASE_FORWARD]; p++)
        for (uint32_t i = 0; i < of->passes[PHASE_FORWARD][p].unit_count; i++)
            if (!self->units[of->passes[PHASE_FORWARD][p].units[i]].is_frozen)
                return true;
    return false;
}

static void check_passes(const model *self)
{
    uint32_t first = 0;
    while (!stage_learns(self, first))
        first++;
    assert_int_equal(self->first_learning, first);
    for (uint32_t s = 0; s < self->stage_count; s++) {
        const struct stage *of = &self->stages[s];
        assert_int_equal(of->pass_count[PHASE_BACKWARD] > 0, s >= first);
        if (s < first)
            assert_int_equal(of->pass_count[PHASE_RECOMPUTE], 0);
        if (s == first && !of->is_cut)
            assert_int_equal(of->passes[PHASE_BACKWARD][0].input_grad, ACCESS_NONE);
        for (uint32_t p = 0; p < of->pass_count[PHASE_BACKWARD]; p++) {
            const struct pass *pass = &of->passes[PHASE_BACKWARD][p];
            for (uint32_t i = 0; i < pass->unit_count; i++)
                assert_false(pass->adds_grads[i] && self->units[pass->units[i]].is_frozen);
        }
    }
}

static void check_selection(const kernel_ops *ops, bool tied, enum dtype type,
                            uint64_t max_part_bytes, const model_learn *learn, enum kept kept)
{
    harness all, some;
    model_spec spec = small(tied, max_part_bytes);
    start(&all, ops, &spec, type);
    spec.learn = *learn;
    spec.splits_vectors = tied;
    start(&some, ops, &spec, type);
    harness_step(&all, 0.05f, kept);
    harness_step(&some, 0.05f, kept);
    compare(&all, &some, learn);
    check_passes(some.self);
    harness_destroy(&all);
    harness_destroy(&some);
}

static bool splits(const model_learn *learn, bool tied)
{
    return learn->norms && !(learn->range_count == 1 && learn->blocks[0].first == 0 &&
                             learn->blocks[0].last == LAYERS - 1);
}

static void check_all(const kernel_ops *ops, enum dtype type)
{
    for (int i = 0; i < SELECTIONS; i++)
        for (int tied = 0; tied < 2; tied++) {
            check_selection(ops, tied, type, 0, &selections[i], (enum kept)(i % KEPT_COUNT));
            if (!splits(&selections[i], tied))
                check_selection(ops, tied, type, 5000 * dtype_bytes(type), &selections[i],
                                (enum kept)((i + 1) % KEPT_COUNT));
        }
}

static void test_reference(void **state)
{
    check_all(&kernels_reference, DTYPE_FP32);
}

static void test_cpu(void **state)
{
#ifdef HAVE_KERNELS_CPU
    check_all(&kernels_cpu, DTYPE_BF16);
#else
    skip();
#endif
}

/* ---- what is refused, and what is the same ---- */

static void refuse(const model_spec *spec, const char *text)
{
    model *self;
    assert_int_equal(model_create(spec, DTYPE_FP32, 1, &self), ERR_CONFIG);
    assert_null(self);
    if (strstr(err_text(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err_text(), text);
}

static void test_refusals(void **state)
{
    model_spec spec = small(true, 0);
    spec.learn = (model_learn){.is_given = true};
    refuse(&spec, "train.only selects nothing");
    spec.learn = (model_learn){.is_given = true, .range_count = 1, .blocks = {{1, LAYERS}}};
    refuse(&spec, "blocks.1-3 is outside the model, whose blocks are 0 to 2");
    spec.learn.blocks[0] = (model_range){7, 7};
    refuse(&spec, "blocks.7 is outside");
    spec = small(true, 20000);
    spec.learn = (model_learn){.is_given = true, .norms = true};
    refuse(&spec, "model.max_part_bytes 20000 cuts blocks");
}

/* A list of everything, in any order, is no list. */
static void test_everything(void **state)
{
    model_spec spec = small(false, 0);
    model *self;
    spec.learn = (model_learn){.is_given = true,
                               .embed = true,
                               .head = true,
                               .norms = true,
                               .range_count = 3,
                               .blocks = {{2, 2}, {0, 1}, {1, 1}}};
    assert_ok(model_create(&spec, DTYPE_FP32, 1, &self));
    assert_false(self->spec.learn.is_given);
    assert_int_equal(self->unit_count, self->stage_count);
    model_destroy(self);
    spec.learn.embed = false;
    assert_ok(model_create(&spec, DTYPE_FP32, 1, &self));
    assert_int_equal(self->spec.learn.range_count, 1);
    assert_int_equal(self->spec.learn.blocks[0].last, LAYERS - 1);
    assert_int_equal(self->first_learning, 1);
    model_destroy(self);
}

/* FLOPs of a step as they are counted: 2 for each matrix element and token forward, 2 for the
 * gradient that goes on, 2 for its own. */
static void test_step_flops(void **state)
{
    static const struct {
        model_learn learn;
        /* blocks of 2, 4 and 6 FLOPs an element; the matrices of the head */
        int block_count[3], head;
    } cases[] = {
        {{.is_given = false}, {0, 0, 3}, 6},
        {{.is_given = true, .range_count = 1, .blocks = {{1, 1}}}, {1, 1, 1}, 4},
        {{.is_given = true, .range_count = 1, .blocks = {{0, 0}}}, {0, 2, 1}, 4},
        {{.is_given = true, .embed = true}, {0, 3, 0}, 4},
        {{.is_given = true, .head = true}, {3, 0, 0}, 6},
        {{.is_given = true, .norms = true}, {0, 3, 0}, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int cut = 0; cut < 2; cut++) {
            model_spec spec = small(false, cut && !cases[i].learn.norms ? 20000 : 0);
            model *net;
            spec.window = 0; /* all blocks attend alike */
            uint64_t matrices = 0, head = 0;
            assert_ok(model_create(&spec, DTYPE_FP32, 2, &net));
            for (uint32_t u = 0; u < net->unit_count; u++)
                for (uint32_t t = 0; t < net->units[u].tensor_count; t++) {
                    const model_tensor *tensor = &net->units[u].tensors[t];
                    bool is_matrix = tensor->rows > 1 && tensor->columns > 1;
                    if (is_matrix && (harness_is_output(tensor->name) ||
                                      strncmp(tensor->name, "cls.predictions.", 16) == 0))
                        head += tensor->rows * tensor->columns;
                    else if (is_matrix && block_of(tensor->name) == 0)
                        matrices += tensor->rows * tensor->columns;
                }
            double attention = /* heads times their width, over half of the positions before it */
                model_step_flops(net, 1) - 6.0 * (3.0 * (double)matrices + (double)head);
            model_destroy(net);
            spec.learn = cases[i].learn;
            assert_ok(model_create(&spec, DTYPE_FP32, 2, &net));
            const int *count = cases[i].block_count;
            double thirds = (double)count[0] + 3.0 * (double)(count[1] + count[2]);
            double expected =
                (2.0 * count[0] + 4.0 * count[1] + 6.0 * count[2]) * (double)matrices +
                cases[i].head * (double)head + attention * thirds / 9;
            assert_true(attention > 0);
            assert_float_equal(model_step_flops(net, 10) / 10, expected, 1e-9 * expected);
            model_destroy(net);
        }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    family = harness_family(instance);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),  cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_everything),
        cmocka_unit_test(test_step_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
