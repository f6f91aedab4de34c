/* Jobs that only a good plan makes fast, with JSON that `sluice plan` prints. Runs the program. Its
 * searches are long, so that test_cli_plan has a program of its own, which the sanitizers run. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cli/plan_json.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* Where the link binds, a frozen base of experts in four bits makes no step slower: a pass expands
 * its unit once, not for each of the 16 micro-batches, whose tokens are few for so many experts. */
static void packed_experts_are_no_slower(void **state)
{
    static const char *const job =
        "{\"model\": {\"preset\": \"qwen3-30b-a3b\", \"num_layers\": 2, \"seq_length\": 512, "
        "\"vocab_size\": 8192}, \"data\": {\"train\": [\"x\"], \"tokenizer\": \"bytes\"}, "
        "\"run\": {\"dir\": \"x\", \"steps\": 1}, \"train\": {\"lora\": {\"rank\": 8}}, "
        "\"tiers\": {\"device\": {\"budget\": \"1GiB\"}, \"host\": {\"budget\": \"12GiB\"}}, "
        "\"bf16\": {\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 1, "
        "\"gradient_accumulation_steps\": 16, \"optimizer\": {\"type\": \"AdamW\"}}";
    static const char *const formats[] = {"working", "nf4_double"};
    double seconds[COUNT(formats)];
    for (size_t i = 0; i < COUNT(formats); i++) {
        json_t *plan = plan_json(
            0, "--machine desktop-24g --set state.params=%s - <<'JOB'\n%s\nJOB", formats[i], job);
        seconds[i] = number(plan, "step_seconds");
        json_decref(plan);
    }
    print_message("working %.4f s, nf4_double %.4f s\n", seconds[0], seconds[1]);
    assert_true(seconds[1] <= seconds[0]);
}

/* A packed base that neither the device nor the host takes alone, without drives. The program is so
 * long that its serial order takes more work than the search has for its first placements. They
 * are tried all the same. Without them activations between the parts of blocks waited in host
 * memory, and the link was busy 18 times as long as computing. */
static void packed_base_in_two_tiers(void **state)
{
    static const char *const job =
        "{\"model\": {\"preset\": \"gpt-oss-120b\", \"num_layers\": 18, \"seq_length\": 2048}, "
        "\"data\": {\"train\": [\"x\"], \"tokenizer\": \"bytes\"}, \"run\": {\"dir\": \"x\", "
        "\"steps\": 1}, \"train\": {\"lora\": {\"rank\": 16}}, \"state\": {\"params\": "
        "\"nf4_double\"}, \"tiers\": {\"device\": {\"budget\": \"12GiB\"}, \"host\": {\"budget\": "
        "\"28GiB\"}}, \"bf16\": {\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 1, "
        "\"gradient_accumulation_steps\": 8, \"optimizer\": {\"type\": \"AdamW\"}}";
    json_t *plan = plan_json(0, "--machine desktop-24g - <<'JOB'\n%s\nJOB", job);
    double step = number(plan, "step_seconds");
    double computing = number(member(member(plan, "lanes"), "compute"), "busy_seconds");
    print_message("%.4f s a step, of which %.4f s compute\n", step, computing);
    assert_true(computing > 0.9 * step);
    json_decref(plan);
}

/* Drives bind while the forward writes what the backward reads again, and computing binds the
 * backward. Some blocks that recompute balance both, but only where they are spread over the model:
 * in a row they would leave the drives idle for a part of the forward, and busy all the rest of it.
 * The mixed plan is shorter than the one in which all blocks keep theirs. */
static void recomputing_is_spread(void **state)
{
    static const char *const job =
        "{\"model\": {\"preset\": \"llama-70b\", \"num_layers\": 16, \"seq_length\": 1024}, "
        "\"data\": {\"train\": "
        "[\"x\"], \"tokenizer\": \"bytes\"}, \"run\": {\"dir\": \"x\", \"steps\": 1}, "
        "\"train\": {\"lora\": {\"rank\": 16}}, \"state\": {\"params\": \"nf4\"}, "
        "\"tiers\": {\"device\": {\"budget\": \"8GiB\"}, \"host\": {\"budget\": \"10GiB\"}, "
        "\"nvme\": [{\"path\": \"x\"}]}, \"bf16\": {\"enabled\": true}, "
        "\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 16, "
        "\"optimizer\": {\"type\": \"AdamW\"}}";
    static const char *const places[] = {"auto", "selective_nvme"};
    double seconds[COUNT(places)];
    for (size_t i = 0; i < COUNT(places); i++) {
        json_t *plan = plan_json(
            0, "--machine desktop-24g --set tiers.place.inner_activations=%s - <<'JOB'\n%s\nJOB",
            places[i], job);
        seconds[i] = number(plan, "step_seconds");
        print_message("%s %.4f s\n", places[i], seconds[i]);
        json_decref(plan);
    }
    assert_true(1.04 * seconds[0] < seconds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_experts_are_no_slower),
        cmocka_unit_test(packed_base_in_two_tiers),
        cmocka_unit_test(recomputing_is_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
