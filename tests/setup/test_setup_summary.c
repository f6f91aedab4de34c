/* The figures of a plan where they can be worked out by hand: a llama of six blocks on a machine of
 * stated speeds. Traffic by state kind, T* of each link, commits and wear, memory that adds up, the
 * buffer at the peak, and the figures that a machine file adds. No training run, no drive. */
#include <jansson.h>
#include <math.h>

#include "base/size.h"
#include "config/machine.h"
#include "setup/plan_figures.h"
#include "setup/setup.h"
#include "setup/summary.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 6, .hidden = 128};

/* A GPU whose memory costs nothing: passes take flops alone. Nothing has a fixed cost. */
static const plan_machine stated = {
    .drive_read_bytes_per_second = 2e9,
    .drive_write_bytes_per_second = 1e9,
    .h2d_bytes_per_second = 8e9,
    .d2h_bytes_per_second = 4e9,
    .dram_bytes_per_second = 100e9,
    .device_flops_per_second = 1e12,
    .device_bytes_per_second = 1e18,
    .core_count = 4,
    .comm_bytes_per_second = 3e9,
    .sync_seconds = 1e-3,
    .is_measured = true,
};

struct planned {
    job *asked;
    struct setup *setup;
    struct setup_summary sum;
};

static void plan_machine_model(struct planned *self, const plan_machine *figures,
                               const fixture_model *of, const fixture_sets *sets, uint32_t world)
{
    struct setup_options options = {.figures = figures};
    self->asked = fixture_job_ranks("figures", of, sets, world);
    assert_ok(setup_create(self->asked, &options, &self->setup));
    setup_summarize(self->setup, &self->sum);
}

static void plan_model(struct planned *self, const fixture_model *of, const fixture_sets *sets,
                       uint32_t world)
{
    plan_machine_model(self, &stated, of, sets, world);
}

static void plan(struct planned *self, const fixture_sets *sets, uint32_t world)
{
    plan_model(self, &shape, sets, world);
}

static void forget(struct planned *self)
{
    setup_destroy(self->setup);
    job_destroy(self->asked);
}

static void near(const char *what, double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%s: %.12g is not %.12g", what, found, expected);
}

static uint64_t home(const struct setup_summary *sum, enum state_kind kind)
{
    uint64_t bytes = 0;
    for (int a = 0; a < TIER_COUNT; a++)
        bytes += sum->home_bytes[kind][a];
    return bytes;
}

/* Flops of a step's passes: forward of all but the head, and backward. */
static double pass_flops(const struct planned *self)
{
    const model *net = self->setup->net;
    double flops = 0;
    for (uint32_t s = 0; s < net->stage_count; s++) {
        const struct stage *stage = &net->stages[s];
        assert_int_equal(stage->pass_count[PHASE_BACKWARD], 1);
        if (s + 1 < net->stage_count)
            flops += stage->passes[PHASE_FORWARD][0].flops;
        flops += stage->passes[PHASE_BACKWARD][0].flops;
    }
    return flops * (double)self->asked->accumulation;
}

static double rank_tokens(const struct setup_summary *sum)
{
    return (double)(sum->micro_batch_count * sum->micro_batch * sum->seq_length);
}

/* At so many tokens the link is needed as long as the device computes; `fixed_seconds` is by
 * hand. */
static void check_hidden(const struct planned *self, enum plan_resource which, double fixed_seconds)
{
    const struct setup_link *link = &self->sum.links[which];
    double computing = pass_flops(self) / stated.device_flops_per_second;
    near("computing", self->sum.computing_seconds, computing);
    near(link->name, link->seconds - link->growing_seconds, fixed_seconds);
    double left = (computing - link->growing_seconds) / rank_tokens(&self->sum);
    near(link->name, link->hidden_tokens, fixed_seconds / left);
    printf("%s: %.0f bytes, hidden from %.0f tokens (a step has %.0f)\n", link->name, link->bytes,
           link->hidden_tokens, rank_tokens(&self->sum));
}

static fixture_sets plain(void)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.commit_every=0");
    fixture_set(&sets, "schedule.update=after_backward");
    fixture_set(&sets, "tiers.place.inner_activations=recompute");
    return sets;
}

/* 12 bytes a parameter are read and 12 written; the gradient and new params pass the link to the
 * device. */
static void optimizer_on_a_drive(void **state)
{
    static struct planned it;
    fixture_sets sets = plain();
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    plan(&it, &sets, 1);
    double state_bytes = (double)home(&it.sum, STATE_OPTIMIZER);
    double params = (double)home(&it.sum, STATE_PARAMS);
    assert_true(state_bytes >= 12.0 * (double)it.sum.param_count);
    near("drive", it.sum.links[RESOURCE_DRIVE].bytes, 2 * state_bytes);
    near("read", (double)it.sum.read_bytes[STATE_OPTIMIZER], state_bytes);
    near("written", (double)it.sum.written_bytes[STATE_OPTIMIZER], state_bytes);
    near("written", (double)it.sum.drive_written_bytes, state_bytes);
    check_hidden(&it, RESOURCE_DRIVE, state_bytes / 2e9 + state_bytes / 1e9);
    check_hidden(&it, RESOURCE_H2D, params / 8e9); /* new ones: each once */
    check_hidden(&it, RESOURCE_D2H, params / 4e9); /* gradients, 2 bytes each as well */
    near("flops", it.sum.hardware_flops, pass_flops(&it));
    near("model flops", it.sum.model_flops,
         model_step_flops(it.setup->net, it.sum.tokens_per_step));
    assert_true(it.sum.hardware_flops > it.sum.model_flops); /* recomputation */
    assert_true(it.sum.step_seconds >= it.sum.bound_seconds);
    assert_true(it.sum.bound_seconds >= it.sum.busiest_seconds * (1 - 1e-6));
    forget(&it);
}

/* Blocks are fetched for the forward and, but for those that stay, for the backward; the embedding
 * once, since its backward needs no params, and the head once. */
static void params_in_memory(void **state)
{
    static struct planned it;
    fixture_sets sets = plain();
    fixture_set(&sets, "tiers.place.params=host");
    fixture_set(&sets, "model.tie_embeddings=false");
    plan(&it, &sets, 1);
    const model *net = it.setup->net;
    uint32_t last = net->stage_count - 1, held = it.setup->set.held_stages;
    double fetched = 0;
    for (uint32_t s = 0; s <= last; s++) {
        bool is_held = s < last && s + held >= last;
        double rounds = s == 0 || s == last || is_held ? 1 : 2;
        fetched += rounds * 2 * (double)it.setup->unit_elems[net->stages[s].units[0]];
    }
    printf("%u of %u stages stay on the device\n", held, net->stage_count);
    check_hidden(&it, RESOURCE_H2D, fetched / 8e9);
    check_hidden(&it, RESOURCE_D2H, (double)home(&it.sum, STATE_PARAMS) / 4e9); /* new ones */
    near("drive", it.sum.links[RESOURCE_DRIVE].bytes, 0);
    near("drive", it.sum.links[RESOURCE_DRIVE].hidden_tokens, 0);
    forget(&it);
}

/* Activations grow with the tokens: a link that they alone need is hidden at any number of them or
 * at none. */
static void activations_on_a_drive(void **state)
{
    static struct planned it;
    fixture_sets sets = plain();
    fixture_set(&sets, "tiers.place.activations=nvme");
    plan(&it, &sets, 1);
    const struct setup_link *drive = &it.sum.links[RESOURCE_DRIVE];
    double bytes = (double)home(&it.sum, STATE_ACTIVATIONS);
    assert_true(bytes > 0);
    near("written", (double)it.sum.written_bytes[STATE_ACTIVATIONS], bytes);
    near("read", (double)it.sum.read_bytes[STATE_ACTIVATIONS], bytes);
    near("growing", drive->growing_seconds, bytes / 2e9 + bytes / 1e9);
    near("all of it", drive->seconds, drive->growing_seconds);
    if (drive->seconds > it.sum.computing_seconds)
        assert_true(isinf(drive->hidden_tokens));
    else
        near("hidden", drive->hidden_tokens, 0);
    forget(&it);
}

/* State in memory is what a commit writes; state on a drive is there already. */
static void commits_and_wear(void **state)
{
    static struct planned it;
    static const struct {
        const char *tier;
        int every;
        bool saves;
    } ways[] = {{"host", 5, true},
                {"host", 1, true},
                {"host", 0, true},
                {"nvme", 5, false},
                {"nvme", 0, false}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        fixture_sets sets = {.count = 0};
        fixture_set(&sets, "tiers.place.optimizer=%s", ways[i].tier);
        fixture_set(&sets, "schedule.tile_elems=1048576"); /* each tile has padding of its own */
        fixture_set(&sets, "run.commit_every=%d", ways[i].every);
        plan(&it, &sets, 1);
        double bytes = (double)home(&it.sum, STATE_OPTIMIZER), part = 0;
        near("every", (double)it.sum.commit_every, ways[i].every);
        near("a commit", (double)it.sum.commit_bytes, ways[i].saves ? bytes : 0);
        if (ways[i].saves && ways[i].every > 0)
            part = bytes / ways[i].every;
        assert_true(fabs((double)it.sum.commit_share_bytes - part) <= 1);
        double written = ways[i].saves ? part : bytes;
        assert_true(fabs((double)it.sum.drive_written_bytes - written) <= 1);
        assert_true(it.sum.commit_seconds >= 0);
        if (ways[i].saves && ways[i].every == 0) /* by itself: nothing hides it */
            assert_true(it.sum.commit_seconds >= bytes / stated.drive_write_bytes_per_second);
        assert_true((it.sum.second_bytes > 0) == (ways[i].every > 0));
        assert_true((it.sum.save_bytes > 0) == ways[i].saves);
        forget(&it);
    }
}

/* The bytes that second places would take are right also if nothing commits. Both halves of a split
 * master have a second place. */
static void second_places_are_foretold(void **state)
{
    static struct planned it;
    static const char *const masters[] = {"fp32", "split"}, *const tiers[] = {"host", "nvme"};
    for (int i = 0; i < 4; i++) {
        uint64_t taken = 0;
        for (int every = 5; every >= 0; every -= 5) {
            fixture_sets sets = {.count = 0};
            fixture_set(&sets, "bf16.enabled=true");
            fixture_set(&sets, "state.master=%s", masters[i / 2]);
            fixture_set(&sets, "tiers.place.params=%s", tiers[i % 2]);
            fixture_set(&sets, "tiers.place.optimizer=nvme");
            fixture_set(&sets, "run.commit_every=%d", every);
            plan(&it, &sets, 1);
            taken = every > 0 ? it.sum.second_bytes : taken;
            assert_true(taken > 0);
            assert_int_equal(it.sum.kept_bytes, taken);
            forget(&it);
        }
    }
}

static void add_up(const struct planned *it)
{
    const struct setup_summary *sum = &it->sum;
    for (int a = 0; a < TIER_COUNT; a++) {
        uint64_t bytes = sum->scratch_bytes[a] + sum->padding_bytes[a] + sum->moving_bytes[a];
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            bytes += sum->home_bytes[kind][a];
        if (a == TIER_NVME)
            bytes += sum->save_bytes + sum->second_bytes;
        if (a == TIER_HOST)
            bytes += sum->copy_bytes;
        assert_int_equal(bytes, sum->peak_bytes[a]);
        assert_true(sum->peak_bytes[a] <= sum->budget_bytes[a]);
        assert_true(sum->padding_bytes[a] < sum->peak_bytes[a] / 4 + 1);
        /* The buffer named is one that ends at the peak, by its size and its unit's name. */
        const program *highest = NULL;
        for (int k = 0; k < PROGRAM_KIND_COUNT; k++) {
            const program *prog = &it->setup->set.programs[k];
            if (prog->peak_bytes[a] == sum->peak_bytes[a] &&
                (!highest || k == PROGRAM_STEADY || highest->peak_bytes[a] < sum->peak_bytes[a]))
                highest = prog;
        }
        assert_non_null(highest);
        if (sum->peak_bytes[a] == 0) {
            assert_string_equal(sum->peak_what[a], "");
            continue;
        }
        const buffer *last = &highest->buffers[highest->peak_buffer[a]];
        char size[SIZE_TEXT_BYTES];
        assert_int_equal(last->offset_bytes + last->size_bytes, sum->peak_bytes[a]);
        assert_non_null(strstr(sum->peak_what[a], size_format(last->size_bytes, size)));
        if (last->unit != PROGRAM_NONE)
            assert_non_null(strstr(sum->peak_what[a], it->setup->net->units[last->unit].name));
        if (!last->is_home)
            assert_non_null(strstr(sum->peak_what[a], program_kind_name(highest->kind)));
        printf("%s: %s\n", tier_name((enum tier)a), sum->peak_what[a]);
    }
}

static void memory_adds_up(void **state)
{
    static struct planned it;
    static const char *const tiers[] = {"device", "host", "nvme"};
    for (size_t i = 0; i < 3; i++)
        for (uint32_t world = 1; world <= 3; world += 2) {
            fixture_sets sets = {.count = 0};
            fixture_set(&sets, "tiers.place.params=%s", tiers[i]);
            fixture_set(&sets, "tiers.place.grads=%s", tiers[i]);
            fixture_set(&sets, "tiers.place.optimizer=%s", tiers[(i + 1) % 3]);
            fixture_set(&sets, "tiers.place.activations=%s", tiers[2 - i]);
            plan(&it, &sets, world);
            add_up(&it);
            forget(&it);
        }
}

/* Muon keeps two values for each parameter of a block's matrices, also in units in parts, and three
 * for all others. */
static void matrices_of_muon_have_two_values(void **state)
{
    static const char *const families[] = {"llama", "gpt2", "bert"};
    static struct planned it;
    for (size_t i = 0; i < 6; i++) {
        const fixture_model small = {.family = families[i % 3], .layers = 3, .hidden = 128};
        fixture_sets sets = {.count = 0};
        fixture_set(&sets, "optimizer.type=Muon");
        if (i >= 3)
            fixture_set(&sets, "model.max_part_bytes=%u", 4 * 4 * 128 * 128 + 65536);
        plan_model(&it, &small, &sets, 1);
        const model *net = it.setup->net;
        double values = 0, elems = 0, ends = 0;
        for (uint32_t u = 0; u < net->unit_count; u++) {
            const model_unit *unit = &net->units[u];
            bool is_end = strncmp(unit->name, "block.", 6) != 0, has_others = is_end;
            for (uint32_t t = 0; t < unit->tensor_count; t++)
                has_others = has_others || unit->tensors[t].rows == 1;
            values += (has_others ? 3.0 : 2.0) * (double)unit->elems;
            elems += (double)unit->elems;
            ends += is_end ? (double)unit->elems : 0;
        }
        near("bytes", it.sum.state_param_bytes, 4 * values / elems);
        /* Vectors are few. In parts each matrix of GPT-2 and BERT has its bias beside it. */
        if (i < 3)
            assert_true(4 * values < 8.3 * (elems - ends) + 12 * ends);
        else
            assert_true((it.sum.state_param_bytes < 12) == (i == 3));
        forget(&it);
    }
}

/* Units in parts keep all, and the plan says so. */
static void parts_are_kept_whole(void **state)
{
    static const char *const words[] = {"selective", "selective_host", "selective_nvme"};
    static struct planned it;
    for (unsigned i = 0; i < 6; i++) {
        unsigned tier = i % 3;
        fixture_sets sets = {.count = 0};
        fixture_set(&sets, "tiers.place.inner_activations=%s", words[tier]);
        if (i >= 3)
            fixture_set(&sets, "model.max_part_bytes=49152");
        plan(&it, &sets, 1);
        const struct setup *setup = it.setup;
        for (uint32_t s = 1; s + 1 < setup->plan.stage_count; s++) {
            const struct stage *stage = &setup->plan.stages[s];
            assert_int_equal(stage->is_cut, i >= 3);
            assert_int_equal(setup->homes[STATE_INNER_ACTIVATIONS][stage->units[0]],
                             tier + (i >= 3 ? 0 : TIER_SELECTIVE));
        }
        forget(&it);
    }
}

/* Figures of the machine's file that are not rates. */
static void figures_of_a_machine(void **state)
{
    static struct setup_summary sum;
    static struct machine described;
    snprintf(described.name, sizeof described.name, "two drives and four");
    described.device.peak_flops = 9.5e13;
    described.drive_count = 2;
    described.drives[0] = (struct machine_drive){
        .count = 2, .capacity_bytes = 1000000000000, .endurance_bytes = 1e15};
    described.drives[1] = (struct machine_drive){
        .count = 4, .capacity_bytes = 2000000000000, .endurance_bytes = 5e15};
    fixture_sets sets = {.count = 0};
    job *asked = fixture_job("machine", &shape, &sets);
    struct setup_plan_options options = {.machine = &described};
    assert_ok(setup_plan_on(asked, &options, &sum));
    assert_string_equal(sum.machine_name, "two drives and four");
    near("peak", sum.peak_tflops_per_rank, 95);
    near("capacity", (double)sum.drive_capacity_bytes, 10e12);
    near("endurance", sum.drive_endurance_bytes, 22e15);
    described.drives[1].endurance_bytes = 0; /* of one unknown: so is the sum */
    assert_ok(setup_plan_on(asked, &options, &sum));
    near("endurance", sum.drive_endurance_bytes, 0);
    near("capacity", (double)sum.drive_capacity_bytes, 10e12);
    assert_ok(setup_plan_on(asked, &(struct setup_plan_options){0}, &sum));
    assert_string_equal(sum.machine_name, "defaults");
    near("peak", sum.peak_tflops_per_rank, 0);
    job_destroy(asked);
}

/* On 8 cores a run computes on 7, and the probe also measures 7, so its figures are those of a run
 * and not 8/7 of them. */
static void a_cpu_is_measured_as_it_computes(void **state)
{
    static struct setup_summary whole, half;
    static machine on;
    fixture_sets sets = plain();
    fixture_set(&sets, "device.backend=cpu");
    fixture_set(&sets, "device.threads=7");
    on = (machine){.name = "of 8 cores", .host = {.core_count = 8, .memory_bytes = 64 * GIB}};
    on.drive_count = 1;
    on.drives[0] = (machine_drive){.capacity_bytes = 64 * GIB};
    on.device.flops_16bit = on.device.flops_fp32 = 1e12;
    on.device.thread_count = 7;
    struct setup_plan_options options = {.machine = &on, .is_described = true};
    struct job *asked = fixture_job("threads", &shape, &sets);
    assert_ok(setup_plan_on(asked, &options, &whole));
    assert_true(whole.computing_seconds > 0);
    near("rate", whole.hardware_flops / whole.computing_seconds, 1e12);
    on.device.thread_count = 0; /* of all 8 */
    assert_ok(setup_plan_on(asked, &options, &half));
    near("rate", half.hardware_flops / half.computing_seconds, 1e12 * 7 / 8);
    /* As many bytes as 64 bits do not hold are many, not few. */
    on.drives[0].count = 65536;
    on.drives[0].capacity_bytes = (uint64_t)1 << 50;
    assert_ok(setup_plan_on(asked, &options, &half));
    assert_true(half.drive_capacity_bytes == INT64_MAX);
    job_destroy(asked);
}

/* All states in host memory, and a device that has hardly room for the next unit: copies and passes
 * wait for each other, which the plan must tell. The parts add up to the step, and so does the work
 * of the link in them. With everything on the device there is nothing to say. */
static void waits_are_named(void **state)
{
    static struct planned it;
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
    for (int is_tight = 1; is_tight >= 0; is_tight--) {
        fixture_sets sets = plain();
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
            fixture_set(&sets, "tiers.place.%s=%s", kinds[i], is_tight ? "host" : "device");
        if (is_tight)
            fixture_set(&sets, "tiers.device.budget=2816KiB");
        plan(&it, &sets, 1);
        assert_true((it.sum.over_schedule_bound > SETUP_WAITS_OVER) == (is_tight == 1));
        assert_true((it.sum.wait_count > 0) == (is_tight == 1));
        double seconds = 0, link = 0, memory = 0;
        for (uint32_t i = 0; i < it.sum.wait_count; i++) {
            const struct setup_wait *wait = &it.sum.waits[i];
            double part = (double)(wait->of.end_ns - wait->of.begin_ns) * 1e-9;
            seconds += part;
            link += part * wait->of.busy[RESOURCE_H2D];
            memory += (double)wait->of.cause_ns[CAUSE_DEVICE_MEMORY] * 1e-9;
            print_message("%s\n", wait->text);
        }
        json_t *object = setup_plan_object(&it.sum), *waits = json_object_get(object, "waits");
        assert_int_equal(json_array_size(waits), it.sum.wait_count);
        if (is_tight) {
            json_t *first = json_array_get(waits, 0);
            near("the parts", seconds, it.sum.step_seconds);
            assert_true(fabs(link - it.sum.links[RESOURCE_H2D].seconds) < 1e-3 * link);
            assert_true(memory > 0);
            assert_string_equal(json_string_value(json_object_get(first, "first_unit")), "embed");
            assert_string_equal(json_string_value(json_object_get(first, "setting")),
                                "tiers.device.budget");
        }
        json_decref(object);
        forget(&it);
    }
}

/* The seconds of the resource that computes are those of the passes, and of the memory that the
 * other ops move: all of it is in the summary, so that a reader can check the row by hand. */
static void time_of_computing_adds_up(void **state)
{
    static struct planned it;
    plan_machine slow = stated;
    slow.device_bytes_per_second = 5e9;
    fixture_sets sets = plain();
    plan_machine_model(&it, &slow, &shape, &sets, 1);
    const struct setup_link *link = &it.sum.links[RESOURCE_DEVICE];
    const program *steady = &it.setup->set.programs[PROGRAM_STEADY];
    double bytes = 0;
    for (uint64_t i = 0; i < steady->op_count; i++) {
        uint8_t kind = steady->ops[i].kind;
        if (kind != OP_FORWARD && kind != OP_RECOMPUTE && kind != OP_BACKWARD)
            bytes += (double)steady->ops[i].demand.device_bytes;
    }
    assert_true(link->is_computing && bytes > 0);
    near("bytes", link->other_bytes, bytes);
    near("seconds", link->seconds, it.sum.computing_seconds + bytes / 5e9);
    /* The update alone reads and writes its state and reads gradients. */
    assert_true(bytes > 2 * 12.0 * (double)it.sum.param_count);
    assert_true(it.sum.links[RESOURCE_DRIVE].other_bytes == 0);
    forget(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_on_a_drive),
        cmocka_unit_test(time_of_computing_adds_up),
        cmocka_unit_test(params_in_memory),
        cmocka_unit_test(activations_on_a_drive),
        cmocka_unit_test(commits_and_wear),
        cmocka_unit_test(second_places_are_foretold),
        cmocka_unit_test(memory_adds_up),
        cmocka_unit_test(matrices_of_muon_have_two_values),
        cmocka_unit_test(parts_are_kept_whole),
        cmocka_unit_test(figures_of_a_machine),
        cmocka_unit_test(a_cpu_is_measured_as_it_computes),
        cmocka_unit_test(waits_are_named),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
