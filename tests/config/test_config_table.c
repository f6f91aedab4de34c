/* The table of keys: each row is sound, has its own place in struct job, and is listed by --keys
 * and in KEYS.md. */
#include "tests/config/test_config_common.h"

#include "config/config.h"
#include "config/config_internal.h"

/* A member has room for the values of its key. */
static bool has_room(const configi_key *row)
{
    size_t bytes = row->member_bytes;
    char entry[JOB_NAME_BYTES];
    int choices = 0;
    switch (row->type) {
    case CONFIGI_BOOL:
        return bytes == sizeof(bool);
    case CONFIGI_INT:
        return bytes == sizeof(uint64_t) || (bytes == sizeof(uint32_t) && !row->is_real);
    case CONFIGI_SIZE:
        return bytes == sizeof(uint64_t);
    case CONFIGI_FLOAT:
        return bytes == sizeof(double);
    case CONFIGI_FLOATS:
        return bytes % sizeof(double) == 0;
    case CONFIGI_STRING:
    case CONFIGI_CORES:
        return bytes == JOB_NAME_BYTES || bytes == MODEL_PATTERN_BYTES || bytes == FILE_PATH_BYTES;
    case CONFIGI_SOURCES:
        return bytes == sizeof(struct job_files);
    case CONFIGI_ENUM:
        while (configi_list_entry(row->allowed, choices, entry, sizeof entry))
            choices++;
        return bytes == sizeof(int) || bytes == JOB_NAME_BYTES ||
               (bytes == sizeof(bool) && choices == 2);
    default:
        return false;
    }
}

static void table_is_sound(void **state)
{
    const configi_key *row;
    for (uint32_t i = 0; (row = configi_key_at(i)); i++) {
        bool is_list = row->type == CONFIGI_ENUM || row->type == CONFIGI_BOOL;
        assert_ptr_equal(configi_key_find(row->path), row); /* no path twice */
        assert_non_null(row->help);
        assert_true(row->type != CONFIGI_ENUM || row->allowed);
        assert_true(row->member_bytes == 0 || has_room(row));
        assert_true(row->offset + row->member_bytes <= sizeof(job));
        assert_true(row->effect == CONFIGI_USED || row->member_bytes == 0);
        if (row->fallback &&
            (row->type == CONFIGI_INT || row->type == CONFIGI_FLOAT || row->type == CONFIGI_SIZE)) {
            char *end;
            assert_true(configi_in_range(row, strtod(row->fallback, &end)));
            assert_int_equal(*end, '\0');
        }
        if (row->fallback && row->allowed && is_list)
            assert_true(configi_list_find(row->allowed, row->fallback) >= 0);
        if (row->allowed && !is_list) {
            size_t length = strlen(row->allowed);
            assert_non_null(strchr("[(", row->allowed[0]));
            assert_non_null(strchr("])", row->allowed[length - 1]));
            assert_non_null(strchr(row->allowed, ','));
        }
        /* A row is a value, never also a block of keys. */
        for (uint32_t j = 0; configi_key_at(j); j++)
            assert_true(configi_relate(configi_key_at(j)->path, row->path) != CONFIGI_ABOVE ||
                        row->type == CONFIGI_OBJECTS || row->type == CONFIGI_SOURCES);
    }
}

/* No two keys are put at the same place. */
static void members_are_apart(void **state)
{
    const configi_key *a, *b;
    for (uint32_t i = 0; (a = configi_key_at(i)); i++)
        for (uint32_t j = i + 1; a->member_bytes > 0 && (b = configi_key_at(j)); j++)
            assert_true(b->member_bytes == 0 || a->offset + a->member_bytes <= b->offset ||
                        b->offset + b->member_bytes <= a->offset);
}

/* Each choice of a key stands for its enumerator. */
static void choices_are_enumerators(void **state)
{
    static const struct {
        const char *path, *choice;
        int value;
    } rows[] = {
        {"model.rope_scaling.type", "default", ROPE_PLAIN},
        {"model.rope_scaling.type", "linear", ROPE_LINEAR},
        {"model.rope_scaling.type", "llama3", ROPE_LLAMA3},
        {"model.rope_scaling.type", "dynamic", ROPE_DYNAMIC},
        {"model.rope_scaling.type", "yarn", ROPE_YARN},
        {"model.rope_scaling.type", "longrope", ROPE_LONGROPE},
        {"data.format", "auto", DATA_AUTO},
        {"data.format", "text", DATA_TEXT},
        {"data.format", "llmc", DATA_LLMC},
        {"data.format", "u16", DATA_U16},
        {"data.format", "u32", DATA_U32},
        {"data.format", "megatron", DATA_MEGATRON},
        {"data.format", "npy", DATA_NPY},
        {"data.format", "jsonl", DATA_JSONL},
        {"data.format", "made", DATA_MADE},
        {"data.format", "messages", DATA_MESSAGES},
        {"data.format", "alpaca", DATA_ALPACA},
        {"data.format", "sharegpt", DATA_SHAREGPT},
        {"data.format", "prompt_completion", DATA_PROMPT_COMPLETION},
        {"data.shuffle", "windows", SHUFFLE_WINDOWS},
        {"data.shuffle", "documents", SHUFFLE_DOCUMENTS},
        {"data.shuffle", "none", SHUFFLE_NONE},
        {"data.documents", "separate", DOCUMENTS_SEPARATE},
        {"data.documents", "joined", DOCUMENTS_JOINED},
        {"tiers.place.inner_activations", "auto", TIER_AUTO},
        {"tiers.place.inner_activations", "device", TIER_DEVICE},
        {"tiers.place.inner_activations", "host", TIER_HOST},
        {"tiers.place.inner_activations", "nvme", TIER_NVME},
        {"tiers.place.inner_activations", "recompute", TIER_RECOMPUTE},
        {"tiers.place.inner_activations", "selective", TIER_SELECTIVE},
        {"tiers.place.inner_activations", "selective_host", TIER_SELECTIVE_HOST},
        {"tiers.place.inner_activations", "selective_nvme", TIER_SELECTIVE_NVME},
        {"tiers.place.params", "auto", TIER_AUTO},
        {"tiers.place.grads", "device", TIER_DEVICE},
        {"tiers.place.optimizer", "host", TIER_HOST},
        {"tiers.place.activations", "nvme", TIER_NVME},
        {"schedule.order", "layer_major", ORDER_LAYER_MAJOR},
        {"schedule.order", "batch_major", ORDER_BATCH_MAJOR},
        {"schedule.order", "fastest", ORDER_FASTEST},
        {"schedule.update", "auto", UPDATE_AUTO},
        {"schedule.update", "after_backward", UPDATE_AFTER_BACKWARD},
        {"schedule.update", "in_next_forward", UPDATE_IN_NEXT_FORWARD},
        {"schedule.update", "in_backward", UPDATE_IN_BACKWARD},
        {"schedule.update", "delayed_one_step", UPDATE_DELAYED_ONE_STEP},
        {"state.master", "fp32", TILE_FP32},
        {"state.master", "split", TILE_LOW16},
        {"state.moments", "fp32", TILE_FP32},
        {"state.moments", "bf16", TILE_BF16},
        {"state.moments", "8bit", TILE_INT8},
        {"communication_data_type", "fp32", DTYPE_FP32},
        {"communication_data_type", "bf16", DTYPE_BF16},
        {"data_types.grad_accum_dtype", "fp16", DTYPE_FP16},
        {"data_types.param_dtype", "bf16", DTYPE_BF16},
        {"tiers.place.rules.*.tier", "recompute", TIER_RECOMPUTE},
        {"tiers.place.rules.*.tier", "nvme", TIER_NVME},
        {"tiers.place.rules.*.tier", "selective_nvme", TIER_SELECTIVE_NVME},
        {"tiers.place.rules.*.kind", "params", STATE_PARAMS},
        {"tiers.place.rules.*.kind", "inner_activations", STATE_INNER_ACTIVATIONS},
        {"zero_optimization.offload_param.device", "cpu", TIER_HOST},
        {"scheduler.type", "WarmupLR", JOB_WARMUP_LR},
        {"scheduler.type", "WarmupDecayLR", JOB_WARMUP_DECAY_LR},
        {"scheduler.type", "WarmupCosineLR", JOB_WARMUP_COSINE_LR},
        {"scheduler.type", "OneCycle", JOB_ONE_CYCLE},
        {"scheduler.type", "LRRangeTest", JOB_LR_RANGE_TEST},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const configi_key *row = configi_key_find(rows[i].path);
        assert_non_null(row);
        int idx = configi_list_find(row->allowed, rows[i].choice);
        assert_int_equal(row->values ? row->values[idx] : idx, rows[i].value);
    }
}

/* The choices of model.family are the names of all families, in the enum's order. */
static void families_are_choices(void **state)
{
    const configi_key *row = configi_key_find("model.family");
    char entry[JOB_NAME_BYTES];
    for (int i = 0; i < MODEL_FAMILY_COUNT; i++) {
        assert_true(configi_list_entry(row->allowed, i, entry, sizeof entry));
        assert_string_equal(entry, model_family_name((enum model_family)i));
    }
    assert_false(configi_list_entry(row->allowed, MODEL_FAMILY_COUNT, entry, sizeof entry));
}

/* The table as it is printed. The caller frees the text. */
static char *printed(bool is_markdown)
{
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *stream = open_memstream(&text, &text_bytes);
    assert_non_null(stream);
    job_print_keys(stream, is_markdown);
    assert_int_equal(fclose(stream), 0);
    return text;
}

/* Each key but those below `debug` is in both lists, with its meaning. */
static void table_is_listed(void **state)
{
    char *list = printed(false), *markdown = printed(true);
    const configi_key *row;
    for (uint32_t i = 0; (row = configi_key_at(i)); i++) {
        char line[256], cell[256];
        snprintf(line, sizeof line, "\n%s  ", row->path);
        snprintf(cell, sizeof cell, "\n| `%s`", row->path);
        assert_true((strstr(list, line) == NULL) == configi_key_is_hidden(row));
        assert_true((strstr(markdown, cell) == NULL) == configi_key_is_hidden(row));
        assert_true(configi_key_is_hidden(row) || strstr(list, row->help));
    }
    assert_null(strstr(list, "debug."));
    assert_null(strstr(markdown, "debug."));
    free(list);
    free(markdown);
}

/* KEYS.md is what the table prints. */
static void keys_md_is_current(void **state)
{
    static char text[1 << 17];
    char *expected = printed(true);
    FILE *file = fopen(SLUICE_SOURCE_DIR "/src/config/KEYS.md", "rb");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    assert_int_equal(fclose(file), 0);
    text[length] = '\0';
    if (strcmp(text, expected) != 0)
        fail_msg("src/config/KEYS.md is stale: run `sluice train --keys=markdown "
                 "> src/config/KEYS.md`");
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sound),          cmocka_unit_test(members_are_apart),
        cmocka_unit_test(choices_are_enumerators), cmocka_unit_test(families_are_choices),
        cmocka_unit_test(table_is_listed),         cmocka_unit_test(keys_md_is_current),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
