/* See crash_case.h. */
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/tile.h"
#include "format/manifest.h"
#include "tests/state/crash_case.h"
#include "tests/unit.h"

enum { STREAM_BITS = 501, STREAM_LAYOUT = 502, KINDS = 5 };

static const char *const kinds[KINDS] = {"params", "grads", "optimizer", "activations",
                                         "inner_activations"};
static const char *const tiers[] = {"device",    "host",           "nvme",          "recompute",
                                    "selective", "selective_host", "selective_nvme"};

uint64_t crash_draw_below(crash_draws *draws, uint64_t bound)
{
    return rng_below(draws->seed, draws->stream, draws->counter++, bound);
}

__attribute__((format(printf, 2, 3))) static void say(crash_case *self, const char *format, ...)
{
    size_t used = strlen(self->text);
    va_list args;
    va_start(args, format);
    vsnprintf(self->text + used, sizeof self->text - used, format, args);
    va_end(args);
}

/* The update mode and what it asks of the job. */
static void draw_update(crash_draws *d, crash_case *out, bool is_fp16)
{
    static const char *const updates[] = {"after_backward", "in_next_forward", "in_next_forward",
                                          "in_backward", "delayed_one_step"};
    uint64_t which = crash_draw_below(d, 5);
    if (which == 3 && is_fp16)
        which = 1;
    if (which == 3) {
        fixture_set(&out->sets, "gradient_clipping=0");
        if (out->shape.bf16)
            fixture_set(&out->sets, "bf16.check_grad_overflow=false");
    }
    fixture_set(&out->sets, "schedule.update=%s", updates[which]);
    say(out, ", %s", updates[which]);
}

/* How Adam's state is stored; by the seed itself, so that few seeds in a row have all of it. */
static void draw_state(crash_case *out, uint64_t optimizer, bool is_fp16)
{
    static const char *const moments[] = {"fp32", "bf16", "8bit"};
    uint64_t which = out->seed / 2 % 3;
    bool has_moments = optimizer != 1 && optimizer != 2; /* not Lion, Adagrad */
    bool may_split = out->shape.bf16 ? has_moments : !is_fp16;
    if (has_moments) {
        fixture_set(&out->sets, "state.moments=%s", moments[which]);
        say(out, ", moments %s", moments[which]);
    }
    if (may_split && out->seed % 5 < 3) {
        fixture_set(&out->sets, "state.master=split");
        say(out, ", split");
    }
}

/* Draws the settings that the bits depend on. */
static void draw_bits(crash_draws *d, enum crash_kind kind, crash_case *out)
{
    static const char *const optimizers[] = {
        "{\"type\":\"AdamW\",\"params\":{\"lr\":1e-3,\"weight_decay\":0.1}}",
        "{\"type\":\"Lion\",\"params\":{\"lr\":1e-4,\"weight_decay\":0.1}}",
        "{\"type\":\"Adagrad\",\"params\":{\"lr\":1e-2}}"};
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    fixture_sets *sets = &out->sets;
    uint64_t dtype = crash_draw_below(d, 3), optimizer = crash_draw_below(d, 5);
    out->shape = (fixture_model){.family = crash_draw_below(d, 2) ? "llama" : "gpt2",
                                 .bf16 = dtype == 1,
                                 .layers = 1 + (uint32_t)crash_draw_below(d, 2),
                                 .hidden = 64};
    out->steps = 12 + (uint32_t)crash_draw_below(d, 9);
    out->commit_every = 1 + (uint32_t)crash_draw_below(d, 4);
    uint64_t eval_every = crash_draw_below(d, 5);
    out->keep_every = kind != CRASH_SIMULATED && crash_draw_below(d, 3) == 0
                          ? out->commit_every * (1 + (uint32_t)crash_draw_below(d, 3))
                          : 0;
    say(out, "%s %s, %u layers, %s optimizer %u, %u steps, commit every %u", out->shape.family,
        dtypes[dtype], out->shape.layers, optimizer > 2 ? "first" : "drawn",
        optimizer > 2 ? 0 : (unsigned)optimizer, out->steps, out->commit_every);
    fixture_set(sets, "run.steps=%u", out->steps);
    fixture_set(sets, "run.commit_every=%u", out->commit_every);
    fixture_set(sets, "run.eval_every=%u", eval_every > 1 ? (unsigned)eval_every : 0);
    if (out->keep_every) {
        fixture_set(sets, "run.keep=%u", out->keep_every);
        say(out, ", keep %u", out->keep_every);
    }
    fixture_set(sets, "optimizer=%s", optimizers[optimizer > 2 ? 0 : optimizer]);
    fixture_set(sets, "model.seq_length=16");
    if (d->seed % 3 == 0) { /* the other blocks, and the embedding, do not learn */
        unsigned block = (unsigned)(d->seed / 3 % out->shape.layers);
        fixture_set(sets, "train.only=[\"blocks.%u\"]", block);
        say(out, ", only block %u", block);
    }
    fixture_set(sets, "model.tie_embeddings=%s", crash_draw_below(d, 2) ? "true" : "false");
    fixture_set(sets, "gradient_accumulation_steps=%u", 1 + (unsigned)crash_draw_below(d, 2));
    if (dtype == 2) /* the first steps overflow */
        fixture_set(sets,
                    "fp16={\"enabled\":true,\"initial_scale_power\":%u,\"hysteresis\":%u,"
                    "\"loss_scale_window\":3}",
                    19 + (unsigned)crash_draw_below(d, 3), 1 + (unsigned)crash_draw_below(d, 2));
    draw_update(d, out, dtype == 2);
    draw_state(out, optimizer, dtype == 2);
}

/* All on one tier, or each kind on its own with units apart. */
static void draw_places(crash_draws *d, crash_case *out)
{
    fixture_sets *sets = &out->sets;
    uint64_t all = crash_draw_below(d, 5);
    for (int k = 0; k < KINDS; k++) {
        uint64_t tier = all < 3 ? all : crash_draw_below(d, k == KINDS - 1 ? 7 : 3);
        fixture_set(sets, "tiers.place.%s=%s", kinds[k], tiers[tier]);
    }
    say(out, ", %s", all < 3 ? tiers[all] : "mixed");
    if (all < 3)
        return;
    char rules[1024];
    size_t used = (size_t)snprintf(rules, sizeof rules, "[");
    uint64_t units = out->shape.layers + 2, count = 1 + crash_draw_below(d, 4);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t first = crash_draw_below(d, units);
        used += (size_t)snprintf(
            rules + used, sizeof rules - used,
            "%s{\"units\":\"%u-%u\",\"kind\":\"%s\",\"tier\":\"%s\"}", i ? "," : "",
            (unsigned)first, (unsigned)(first + crash_draw_below(d, units - first)),
            kinds[i == 0 ? 2 : crash_draw_below(d, 3)], tiers[crash_draw_below(d, 3)]);
        assert_true(used < sizeof rules - 2);
    }
    fixture_set(sets, "tiers.place.rules=%s]", rules);
}

/* Draws the settings that the bits do not depend on. */
static void draw_layout(crash_draws *d, const char *name, crash_case *out)
{
    fixture_sets *sets = &out->sets;
    const char *base = fixture_path(name, ".nvme");
    char drives[3 * FIXTURE_PATH_BYTES];
    size_t used = (size_t)snprintf(drives, sizeof drives, "[");
    out->drive_count = /* another number than in the layout before */
        1 + (uint32_t)((rng_below(d->seed, d->stream, UINT32_MAX, 3) + out->layout) % 3);
    for (uint32_t i = 0; i < out->drive_count; i++)
        used += (size_t)snprintf(drives + used, sizeof drives - used,
                                 "%s{\"path\":\"%s/%c\",\"budget\":\"64MiB\"}", i ? "," : "", base,
                                 'a' + (char)i);
    assert_true(used < sizeof drives - 2);
    fixture_set(sets, "tiers.nvme=%s]", drives);
    uint64_t tiles = 1 + crash_draw_below(d, 2);
    fixture_set(sets, "schedule.tile_elems=%llu", (unsigned long long)tiles * TILE_ELEMS_STEP);
    fixture_set(sets, "schedule.order=%s",
                crash_draw_below(d, 4) == 0 ? "batch_major" : "layer_major");
    fixture_set(sets, "debug.schedule.lookahead=%u",
                crash_draw_below(d, 2) ? 0 : 1 + (unsigned)crash_draw_below(d, 20));
    const char *backend = crash_draw_below(d, 2) ? "auto" : "pool";
    fixture_set(sets, "io.backend=%s", backend);
    draw_places(d, out);
    say(out, ", %u drives, tiles of %llu, io %s", out->drive_count,
        (unsigned long long)tiles * TILE_ELEMS_STEP, backend);
}

void crash_draw(uint64_t seed, uint32_t layout, enum crash_kind kind, const char *name,
                crash_case *out)
{
    memset(out, 0, sizeof *out);
    out->seed = seed;
    out->layout = layout;
    crash_draws bits = {.seed = seed, .stream = STREAM_BITS};
    draw_bits(&bits, kind, out);
    crash_draws places = {.seed = seed, .stream = STREAM_LAYOUT, .counter = 1000 * layout};
    draw_layout(&places, name, out);
}

/* ---- what a run leaves ---- */

static bool add_line(const json_t *line, crash_trail *out)
{
    char *text = out->lines[out->count];
    unsigned long long step = (unsigned long long)json_integer_value(json_object_get(line, "step"));
    if (json_object_get(line, "event")) {
        const char *bits = json_string_value(json_object_get(line, "valid_loss_bits"));
        snprintf(text, CRASH_LINE_BYTES, "evaluation at step %llu: %s", step, bits ? bits : "-");
    } else {
        const char *bits = json_string_value(json_object_get(line, "loss_bits"));
        snprintf(text, CRASH_LINE_BYTES,
                 "step %llu: loss %s, norm %.9g, rate %.9g, scale %.9g, skipped %d, %llu tokens",
                 step, bits ? bits : "-", json_number_value(json_object_get(line, "grad_norm")),
                 json_number_value(json_object_get(line, "lr")),
                 json_number_value(json_object_get(line, "loss_scale")),
                 json_is_true(json_object_get(line, "skipped")),
                 (unsigned long long)json_integer_value(json_object_get(line, "tokens")));
    }
    out->count++;
    return step > 0;
}

bool crash_trail_read(const char *name, crash_trail *out, char why[CRASH_TEXT_BYTES])
{
    static char line[8192];
    uint64_t hash = out->hash;
    memset(out, 0, sizeof *out);
    out->hash = hash;
    const char *path = fixture_path(name, "metrics.jsonl");
    FILE *file = fopen(path, "r");
    if (!file) {
        snprintf(why, CRASH_TEXT_BYTES, "there is no %s", path);
        return false;
    }
    bool good = true;
    while (good && fgets(line, sizeof line, file)) {
        json_t *one = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        good = one && out->count < CRASH_LINES_MAX && add_line(one, out);
        json_decref(one);
        if (!good)
            snprintf(why, CRASH_TEXT_BYTES, "line %u of %s is not to be read, or is one too many",
                     out->count, path);
    }
    fclose(file);
    return good;
}

bool crash_trail_is_same(const crash_trail *wanted, const crash_trail *got,
                         char why[CRASH_TEXT_BYTES])
{
    for (uint32_t i = 0; i < wanted->count || i < got->count; i++) {
        const char *want = i < wanted->count ? wanted->lines[i] : "no more lines";
        const char *have = i < got->count ? got->lines[i] : "no more lines";
        if (strcmp(want, have) != 0) {
            snprintf(why, CRASH_TEXT_BYTES, "line %u is \"%s\" and should be \"%s\"", i + 1, have,
                     want);
            return false;
        }
    }
    if (wanted->hash != got->hash)
        snprintf(why, CRASH_TEXT_BYTES, "equal losses, but weights %016llx that should be %016llx",
                 (unsigned long long)got->hash, (unsigned long long)wanted->hash);
    return wanted->hash == got->hash && wanted->hash != 0;
}

uint64_t crash_committed_step(const char *name)
{
    manifest_slot slots[2];
    uint64_t step = 0;
    assert_ok(manifest_examine(fixture_path(name, "state"), slots, NULL));
    for (int i = 0; i < 2; i++)
        if (slots[i].outcome == MANIFEST_SLOT_VALID && slots[i].step > step)
            step = slots[i].step;
    return step;
}

uint64_t crash_slab_dirs(const char *name)
{
    glob_t found;
    char pattern[2 * FIXTURE_PATH_BYTES + 64];
    uint64_t count = 0;
    snprintf(pattern, sizeof pattern, "%s/*/sluice-*", fixture_path(name, ".nvme"));
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            count += strstr(found.gl_pathv[i], ".keep") == NULL;
        globfree(&found);
    }
    return count;
}

bool crash_ends_within(pid_t child, uint64_t ns)
{
    int fd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_true(fd >= 0);
    struct pollfd end = {.fd = fd, .events = POLLIN};
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000),
                            .tv_nsec = (long)(ns % 1000000000)};
    int rc = ppoll(&end, 1, &time, NULL);
    close(fd);
    assert_true(rc >= 0);
    return rc == 1;
}

int crash_wait(pid_t child)
{
    int status;
    bool ended = crash_ends_within(child, CRASH_HANG_SECONDS * 1000000000ull);
    if (!ended)
        kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!ended)
        fail_msg("the process did not end");
    return status;
}
