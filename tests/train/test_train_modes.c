/* Every mode of a step is compared with the plainest one. These are drawn together and change no
 * bit of a loss or weight: precisions, orders, exact update modes, kept or recomputed inner
 * activations, units cut in parts, one to three drives, both I/O backends, paranoid mode, split
 * masters, placements, tiles, lookahead and budgets.
 *
 * Argument: FAMILY-DTYPE[-tied|-untied][-cut][-unclipped][-lion|-adagrad|-muon][-m16|-m8]
 * [-documents][-dropout][-lora]. It names the numeric fingerprint that the runs of a group
 * share. */
#include "base/rng.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { DRAW_SEED = 41, KINDS = 5 };

static fixture_model shape = {.family = "gpt2", .layers = 3, .hidden = 128};
static const char *group = "gpt2-fp32";
static fixture_result baseline;

static const char *const kinds[KINDS] = {"params", "grads", "optimizer", "activations",
                                         "inner_activations"};
static const char *const tiers[] = {"device",    "host",           "nvme",          "recompute",
                                    "selective", "selective_host", "selective_nvme"};

static bool is_group(const char *word)
{
    return strstr(group, word) != NULL;
}

/* Where each run costs much: on the simulated GPU. */
static bool are_few(void)
{
    return getenv("SLUICE_TEST_FEW") != NULL;
}

/* Few are enough beyond the first two, whose programs the others repeat. fp16 needs more, until the
 * loss scale has found its place. */
static uint64_t step_count(void)
{
    return are_few() && !is_group("fp16") ? 6 : 10;
}

/* Sets what all runs of the group share. */
static void set_group(fixture_sets *sets)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "run.steps=%d", (int)step_count());
    fixture_set(sets, "gradient_accumulation_steps=3");
    fixture_set(sets, "model.tie_embeddings=%s", is_group("untied") ? "false" : "true");
    if (is_group("fp16")) {
        fixture_set(sets, "fp16.enabled=true");
        /* The first steps overflow, and the scale grows again. */
        fixture_set(sets, "fp16.initial_scale_power=%d", are_few() ? 18 : 20);
        fixture_set(sets, "fp16.loss_scale_window=2");
        fixture_set(sets, "fp16.hysteresis=1");
    }
    if (is_group("cut"))
        fixture_set(sets, "model.max_part_bytes=%d",
                    (is_group("fp32") ? 768 : 384) * (int)shape.hidden);
    if (is_group("unclipped")) {
        fixture_set(sets, "gradient_clipping=0");
        if (is_group("bf16"))
            fixture_set(sets, "bf16.check_grad_overflow=false");
    }
    if (is_group("documents")) { /* shorter than a window, which they cross */
        const char *path = fixture_path(NULL, "rows.npy");
        fixture_set(sets, "data.train=[\"%s\"]", path);
        fixture_set(sets, "data.valid=[\"%s\"]", path);
    }
    if (is_group("dropout"))
        fixture_set(sets, "train.dropout=0.1");
    if (is_group("lora")) {
        fixture_set(sets, "train.lora={\"rank\":4,\"alpha\":8,\"dropout\":%s}",
                    is_group("dropout") ? "0.1" : "0");
        fixture_set(sets, "optimizer.params.lr=0.02");
    }
    if (is_group("-m16") || is_group("-m8"))
        fixture_set(sets, "state.moments=%s", is_group("-m16") ? "bf16" : "8bit");
    if (is_group("lion") || is_group("adagrad")) {
        fixture_set(sets, "optimizer={\"type\":\"%s\",\"params\":{\"lr\":%s,\"weight_decay\":0.1}}",
                    is_group("lion") ? "Lion" : "Adagrad", is_group("lion") ? "3e-4" : "1e-2");
        fixture_set(sets, "scheduler={\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":4}}");
    }
    if (is_group("muon"))
        fixture_set(sets, "optimizer={\"type\":\"Muon\",\"params\":{\"lr\":3e-3,\"muon_lr\":0.02,"
                          "\"weight_decay\":0.1}}");
}

struct combination {
    fixture_sets sets;
    char text[512];
    bool is_tight;
    uint64_t seed, counter;
};

static uint64_t draw(struct combination *c, uint64_t bound)
{
    return rng_below(DRAW_SEED, c->seed, c->counter++, bound);
}

static void say(struct combination *c, const char *text)
{
    size_t used = strlen(c->text);
    snprintf(c->text + used, sizeof c->text - used, "%s%s", used ? ", " : "", text);
}

/* The setting key=one of the choices, noted in the text. */
static void choose(struct combination *c, const char *key, const char *const *choices,
                   uint64_t count)
{
    const char *taken = choices[draw(c, count)];
    fixture_set(&c->sets, "%s=%s", key, taken);
    say(c, taken);
}

static void place_kinds(struct combination *c)
{
    for (int k = 0; k < KINDS; k++) {
        char key[64];
        snprintf(key, sizeof key, "tiers.place.%s", kinds[k]);
        choose(c, key, tiers, k == KINDS - 1 ? 7 : 3);
    }
}

static void place_units(struct combination *c, uint64_t unit_count)
{
    char rules[2000];
    size_t used = (size_t)snprintf(rules, sizeof rules, "[");
    for (uint64_t i = 0; i < 16; i++) {
        uint64_t k = draw(c, KINDS), first = draw(c, unit_count);
        uint64_t last = first + draw(c, unit_count - first);
        used += (size_t)snprintf(rules + used, sizeof rules - used,
                                 "%s{\"units\":\"%u-%u\",\"kind\":\"%s\",\"tier\":\"%s\"}",
                                 i ? "," : "", (unsigned)first, (unsigned)last, kinds[k],
                                 tiers[draw(c, k == KINDS - 1 ? 7 : 3)]);
        assert_true(used < sizeof rules - 2);
    }
    fixture_set(&c->sets, "tiers.place.inner_activations=recompute");
    fixture_set(&c->sets, "tiers.place.rules=%s]", rules);
    say(c, "16 rules");
}

static void make_drives(struct combination *c)
{
    static const char *const texts[] = {"one drive", "two drives", "three drives"};
    uint64_t count = draw(c, 3);
    say(c, texts[count]);
    if (count == 0)
        return;
    const char *base = fixture_path("moved", ".nvme");
    char third[FIXTURE_PATH_BYTES + 64] = "";
    if (count == 2)
        snprintf(third, sizeof third, ",{\"path\":\"%s/c\",\"budget\":\"80MiB\"}", base);
    fixture_set(&c->sets,
                "tiers.nvme=[{\"path\":\"%s/a\",\"budget\":\"64MiB\"},"
                "{\"path\":\"%s/b\",\"budget\":\"160MiB\"}%s]",
                base, base, third);
}

/* Combination `i`. Each group draws its own. */
static void make_combination(struct combination *c, unsigned i, uint64_t unit_count)
{
    static const char *const orders[] = {"layer_major", "batch_major"};
    static const char *const updates[] = {"after_backward", "in_next_forward", "in_backward"};
    static const char *const backends[] = {"uring", "pool"};
    static const char *const tile_elems[] = {"32768", "65536", "0"};
    static const char *const lookaheads[] = {"0", "1", "8"};
    memset(c, 0, sizeof *c);
    c->seed = i;
    for (const char *at = group; *at; at++)
        c->seed = 31 * c->seed + (unsigned char)*at;
    set_group(&c->sets);
    if (draw(c, 2))
        place_kinds(c);
    else
        place_units(c, unit_count);
    /* Each order with each update comes round, whatever is drawn. */
    fixture_set(&c->sets, "schedule.order=%s", orders[i % 2]);
    const char *update = updates[i / 2 % (is_group("unclipped") ? 3 : 2)];
    fixture_set(&c->sets, "schedule.update=%s", update);
    say(c, orders[i % 2]);
    say(c, update);
    choose(c, "io.backend", backends, 2);
    choose(c, "schedule.tile_elems", tile_elems, 3);
    choose(c, "debug.schedule.lookahead", lookaheads, 3);
    make_drives(c);
    c->is_tight = draw(c, 2);
    if (c->is_tight)
        say(c, "least budgets");
    if (draw(c, 3) == 0) {
        fixture_set(&c->sets, "run.paranoid=true");
        say(c, "paranoid");
    }
    if (!is_group("fp16") && !is_group("muon") && !(is_group("bf16") && is_group("lion")) &&
        draw(c, 2)) { /* the plainest has whole masters */
        fixture_set(&c->sets, "state.master=split");
        say(c, "split masters");
    }
}

static void modes_give_equal_bits(void **state)
{
    static struct combination c;
    static fixture_result result;
    static fixture_sets plain;
    set_group(&plain);
    fixture_set(&plain, "tiers.place.inner_activations=recompute");
    fixture_set(&plain, "schedule.update=after_backward");
    fixture_train_good("baseline", &shape, &plain, &baseline);
    const uint64_t last = step_count() - 1;
    assert_int_equal(baseline.step_count, last + 1);
    assert_true(baseline.losses[last] < baseline.losses[0]);
    if (is_group("cut"))
        assert_true(baseline.plan.unit_count > 8);
    else
        assert_int_equal(baseline.plan.unit_count, is_group("lora") || is_group("muon") ? 8
                                                   : is_group("bert")                   ? 6
                                                                                        : 5);
    assert_int_equal(baseline.skipped[0], is_group("fp16"));
    assert_false(baseline.skipped[last] && baseline.skipped[last - 1]);
    /* Six have each order with each update. Few are three, with both orders and two updates. */
    unsigned step = are_few() ? 5 : 1, end = are_few() ? 11 : (unsigned)unit_draws(6, 30);
    for (unsigned i = 0; i < end; i += step) {
        make_combination(&c, i, baseline.plan.unit_count);
        if (c.is_tight)
            fixture_tighten("moved", &shape, &c.sets);
        printf("%s %2u (seed %d): %s\n", group, i, DRAW_SEED, c.text);
        fflush(stdout);
        fixture_train_good("moved", &shape, &c.sets, &result);
        fixture_assert_same(&baseline, &result);
        assert_memory_equal(baseline.skipped, result.skipped, sizeof baseline.skipped);
        fixture_remove("moved");
    }
}

/* The canary, and what is not exact: gradients one step late give other losses from step 3 on. */
static void a_late_update_gives_other_bits(void **state)
{
    static fixture_result result, again;
    static fixture_sets sets;
    set_group(&sets);
    fixture_set(&sets, "schedule.update=delayed_one_step");
    fixture_train_good("late", &shape, &sets, &result);
    fixture_remove("late");
    assert_int_equal(result.step_count, step_count());
    assert_memory_equal(result.loss_bits, baseline.loss_bits, 1 * sizeof result.loss_bits[0]);
    assert_true(result.weights_hash != baseline.weights_hash);
    if (are_few())
        return;
    /* Late, but exact in itself: where things rest changes nothing. */
    fixture_set(&sets, "schedule.order=batch_major");
    for (int k = 0; k < KINDS; k++)
        fixture_set(&sets, "tiers.place.%s=%s", kinds[k], k == 1 ? "host" : "nvme");
    fixture_train_good("late", &shape, &sets, &again);
    fixture_remove("late");
    fixture_assert_same(&result, &again);
}

/* schedule.delayed_from_step: the steps before it are exact, and so is a run that ends before. */
static void a_warm_up_is_exact(void **state)
{
    enum { DELAYED_FROM = 6 };
    static fixture_result result;
    static fixture_sets sets;
    if (are_few())
        return;
    set_group(&sets);
    fixture_set(&sets, "schedule.update=delayed_one_step");
    fixture_set(&sets, "schedule.delayed_from_step=%d", DELAYED_FROM);
    fixture_train_good("warm", &shape, &sets, &result);
    fixture_remove("warm");
    assert_int_equal(result.step_count, step_count());
    assert_memory_equal(result.loss_bits, baseline.loss_bits,
                        DELAYED_FROM * sizeof result.loss_bits[0]);
    assert_true(result.weights_hash != baseline.weights_hash);
    fixture_set(&sets, "schedule.delayed_from_step=%d", (int)step_count() + 1);
    fixture_train_good("warm", &shape, &sets, &result);
    fixture_remove("warm");
    fixture_assert_same(&baseline, &result);
}

/* The canary: without dropout, or with that of other seeds, each step has another loss. */
static void dropout_gives_other_bits(void **state)
{
    static const char *const canaries[] = {"train.dropout=0", "run.seed=2"};
    static fixture_result result;
    for (size_t i = 0; i < 2 && is_group("dropout"); i++) {
        static fixture_sets sets;
        set_group(&sets);
        fixture_set(&sets, "%s", canaries[i]);
        fixture_train_good("other", &shape, &sets, &result);
        fixture_remove("other");
        for (uint64_t step = 0; step < step_count(); step++)
            assert_true(result.loss_bits[step] != baseline.loss_bits[step]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        group = argv[1];
    shape.family = is_group("llama") ? "llama" : is_group("bert") ? "bert" : "gpt2";
    shape.bf16 = is_group("bf16");
    if (are_few())
        shape.hidden = 64;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_give_equal_bits),
        cmocka_unit_test(a_late_update_gives_other_bits),
        cmocka_unit_test(a_warm_up_is_exact),
        cmocka_unit_test(dropout_gives_other_bits),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
