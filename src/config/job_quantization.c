/* Formats of packed parameters in the words of transformers: a block quantization_config, of a
 * checkpoint's config.json or of a job. It becomes state.params and state.rules. See
 * config_internal.h. Pure, except for the log. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "config/config_internal.h"

static const char block_name[] = "quantization_config";
static const char params_path[] = "state.params", rules_path[] = "state.rules";

/* A block, and what it means. */
struct quantization {
    const char *file;
    const json_t *block;
    enum stored_format format; /* of all matrices of blocks but those in `rules` */
    json_t *rules;             /* owned: entries of state.rules */
    bool is_overridden;        /* the job gives formats of its own; only the kind matters here */
};

__attribute__((format(printf, 3, 4))) static int refuse(const struct quantization *self,
                                                        const char *key, const char *format, ...)
{
    char text[ERR_TEXT_BYTES / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return err_set(ERR_CONFIG, "%s: %s.%s: %s", self->file, block_name, key, text);
}

static bool is_true(const struct quantization *self, const char *key)
{
    return json_is_true(json_object_get(self->block, key));
}

/* The keys of transformers' blocks. */
static const struct {
    const char *name;
    enum { READ_BOOL, READ_TEXT, READ_LIST, NOT_READ } kind;
} keys[] = {
    {"quant_method", READ_TEXT},
    {"load_in_4bit", READ_BOOL},
    {"load_in_8bit", READ_BOOL},
    {"bnb_4bit_quant_type", READ_TEXT},
    {"bnb_4bit_use_double_quant", READ_BOOL},
    {"bnb_4bit_quant_storage", READ_TEXT},
    {"llm_int8_skip_modules", READ_LIST},
    {"modules_to_not_convert", READ_LIST},
    {"fmt", READ_TEXT},
    {"weight_block_size", READ_LIST},
    {"bnb_4bit_compute_dtype", NOT_READ},
    {"llm_int8_threshold", NOT_READ},
    {"llm_int8_enable_fp32_cpu_offload", NOT_READ},
    {"llm_int8_has_fp16_weight", NOT_READ},
    {"activation_scheme", NOT_READ},
    {"_load_in_4bit", NOT_READ},
    {"_load_in_8bit", NOT_READ},
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

/* Keys that are read must have the type that they have in transformers, where null is as absent. */
static int check_types(const struct quantization *self)
{
    for (size_t i = 0; i < KEY_COUNT && !self->is_overridden; i++) {
        const json_t *value = json_object_get(self->block, keys[i].name);
        if (!value || json_is_null(value))
            continue;
        if (keys[i].kind == READ_BOOL && !json_is_boolean(value))
            return refuse(self, keys[i].name, "it is neither true nor false");
        if (keys[i].kind == READ_TEXT && !json_is_string(value))
            return refuse(self, keys[i].name, "it is no text");
        if (keys[i].kind == READ_LIST && !json_is_array(value))
            return refuse(self, keys[i].name, "it is no list");
    }
    return 0;
}

/* A job's block is written by hand: a slip in a name would be another format without a word. */
static int check_names(const struct quantization *self)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)self->block, name, value)
    {
        struct nearest nearest = {0};
        bool is_known = false;
        for (size_t i = 0; i < KEY_COUNT && !is_known; i++) {
            is_known = strcmp(name, keys[i].name) == 0;
            nearest_offer(&nearest, name, keys[i].name);
        }
        if (is_known)
            continue;
        char advice[CONFIGI_ADVICE_BYTES];
        configi_advise_among(&nearest, block_name, name, advice);
        return err_set(ERR_CONFIG, "%s: %s: unknown key \"%.64s\"; %s", self->file, block_name,
                       name, advice);
    }
    return 0;
}

/* The text of a key; `usual` if it is absent. */
static const char *text_of(const struct quantization *self, const char *key, const char *usual)
{
    const json_t *value = json_object_get(self->block, key);
    return json_is_string(value) ? json_string_value(value) : usual;
}

static int add_rule(struct quantization *self, const char *tensors, enum stored_format format)
{
    json_t *rule =
        json_pack("{s:s, s:s}", "tensors", tensors, "params", stored_format_name(format));
    if (!rule || json_array_append_new(self->rules, rule) < 0)
        return err_set(-ENOMEM, "no memory to read %s", self->file);
    return 0;
}

/* True for modules that are not packed in any case. */
static bool is_never_packed(const char *module)
{
    static const char *const names[] = {"lm_head", "embed_tokens", "gate", "shared_expert_gate",
                                        "router"};
    const char *dot = strrchr(module, '.');
    const char *last = dot ? dot + 1 : module;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(last, names[i]) == 0)
            return true;
    return strstr(last, "norm") != NULL;
}

/* Modules that are not quantized keep the working dtype. */
static int keep_modules(struct quantization *self, const char *key)
{
    const json_t *list = json_object_get(self->block, key);
    if (self->is_overridden)
        return 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *module = json_string_value(json_array_get(list, i));
        if (!module || module[0] == '\0' || strlen(module) >= JOB_NAME_BYTES)
            return refuse(self, key, "entry %zu is no name of up to %d bytes", i,
                          JOB_NAME_BYTES - 1);
        if (!is_never_packed(module))
            TRY(add_rule(self, module, STORED_WORKING));
    }
    if (json_array_size(self->rules) > MODEL_STORED_RULES_MAX)
        return refuse(self, key,
                      "it has more than %d names of matrices; give state.params \"working\", which "
                      "dequantizes all",
                      MODEL_STORED_RULES_MAX);
    return 0;
}

/* True for a dtype that bitsandbytes may give to the bytes of the codes. None changes them. */
static bool is_storage(const char *type)
{
    static const char *const names[] = {"uint8",   "int8",    "float16",
                                        "float32", "float64", "bfloat16"};
    static const char module[] = "torch.";
    if (strncmp(type, module, sizeof module - 1) == 0)
        type += sizeof module - 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(type, names[i]) == 0)
            return true;
    return false;
}

static int read_bitsandbytes(struct quantization *self)
{
    static const char four[] = "load_in_4bit", eight[] = "load_in_8bit";
    const char *type = text_of(self, "bnb_4bit_quant_type", "fp4");
    const char *storage = text_of(self, "bnb_4bit_quant_storage", "uint8");
    bool is_nf4 = strcmp(type, "nf4") == 0, is_double = is_true(self, "bnb_4bit_use_double_quant");
    if (is_true(self, four) == is_true(self, eight))
        return refuse(self, four, "one of this and %s must be true", eight);
    if (is_true(self, eight)) {
        self->format = STORED_INT8_ROWS;
        return keep_modules(self, "llm_int8_skip_modules");
    }
    if (!is_nf4 && strcmp(type, "fp4") != 0)
        return refuse(self, "bnb_4bit_quant_type", "\"%.32s\" is not nf4 or fp4", type);
    if (!is_storage(storage))
        return refuse(self, "bnb_4bit_quant_storage",
                      "\"%.32s\" is not uint8, int8, float16, float32, float64 or bfloat16",
                      storage);
    self->format = is_nf4 ? (is_double ? STORED_NF4_DOUBLE : STORED_NF4)
                          : (is_double ? STORED_FP4_DOUBLE : STORED_FP4);
    return keep_modules(self, "llm_int8_skip_modules");
}

static int read_fp8(struct quantization *self)
{
    static const char size_key[] = "weight_block_size";
    const json_t *size = json_object_get(self->block, size_key);
    const char *form = text_of(self, "fmt", "e4m3");
    if (strcmp(form, "e4m3") != 0)
        return refuse(self, "fmt", "\"%.32s\" is not read; e4m3 is", form);
    if (json_array_size(size) != 2 || json_integer_value(json_array_get(size, 0)) != 128 ||
        json_integer_value(json_array_get(size, 1)) != 128)
        return refuse(self, size_key, "only blocks of [128, 128] are read");
    self->format = STORED_FP8_BLOCKS;
    return keep_modules(self, "modules_to_not_convert");
}

/* Finds what the block means. The caller owns self->rules in any case. */
static int read_block(struct quantization *self, bool is_job)
{
    const char *method = text_of(self, "quant_method", is_job ? "bitsandbytes" : NULL);
    self->rules = json_array();
    if (!self->rules)
        return err_set(-ENOMEM, "no memory to read %s", self->file);
    if (!json_is_object(self->block))
        return err_set(ERR_CONFIG, "%s: %s: it is no object", self->file, block_name);
    TRY(check_types(self));
    if (!method)
        return refuse(self, "quant_method", "missing; it names the kind of quantization");
    if (strcmp(method, "bitsandbytes") == 0)
        return read_bitsandbytes(self);
    if (strcmp(method, "fp8") == 0)
        return read_fp8(self);
    if (strcmp(method, "mxfp4") == 0 && is_job)
        return refuse(self, "quant_method",
                      "mxfp4 is for checkpoints; give state.params \"mxfp4\"");
    if (strcmp(method, "mxfp4") == 0) { /* gpt-oss: experts alone */
        self->format = STORED_MXFP4;
        TRY(add_rule(self, "self_attn", STORED_WORKING));
        return keep_modules(self, "modules_to_not_convert");
    }
    return refuse(
        self, "quant_method",
        "\"%.32s\" is not read; bitsandbytes (nf4, fp4, int8), fp8 in blocks and mxfp4 are, and "
        "fp32, bf16 and fp16 without such a block",
        method);
}

static int put(const configi_reader *reader, const struct quantization *self)
{
    TRY(configi_put_path(reader, params_path, json_string(stored_format_name(self->format))));
    if (json_array_size(self->rules) > 0)
        TRY(configi_put_path(reader, rules_path, json_incref(self->rules)));
    return 0;
}

int configi_take_checkpoint_formats(const configi_reader *reader, const char *file,
                                    const json_t *block)
{
    bool is_given = configi_get(reader, params_path) || configi_get(reader, rules_path) ||
                    configi_bool(reader, "load_in_4bit") || configi_bool(reader, "load_in_8bit");
    bool expands = !is_given && configi_bool(reader, "debug.expands_checkpoint");
    struct quantization self = {.file = file, .block = block, .is_overridden = is_given || expands};
    int rc = read_block(&self, false);
    if (rc == 0 && expands) {
        log_info("%s: the checkpoint comes quantized; the run holds its values, expanded to fp32",
                 file);
        rc = configi_put_path(reader, params_path, json_string(stored_format_name(STORED_WORKING)));
    } else if (rc == 0 && !is_given) {
        rc = put(reader, &self);
        if (rc == 0)
            rc = configi_put_path(reader, "debug.params_of_checkpoint", json_true());
        if (rc == 0)
            log_info("%s: %s is %s because the job does not give it, as in %s", reader->file,
                     params_path, stored_format_name(self.format), file);
    }
    json_decref(self.rules);
    return rc;
}

int configi_take_quantization(const configi_reader *reader)
{
    struct quantization self = {.file = reader->file,
                                .block = json_object_get(reader->doc, block_name)};
    if (!self.block || json_is_null(self.block))
        return 0;
    int rc = read_block(&self, true);
    if (rc == 0)
        rc = check_names(&self);
    if (rc == 0 && (configi_get(reader, params_path) || configi_get(reader, rules_path)))
        rc = configi_error(reader, block_name, "given beside %s; give one of them",
                           configi_get(reader, params_path) ? params_path : rules_path);
    if (rc == 0)
        rc = put(reader, &self);
    if (rc == 0)
        rc = configi_put_path(reader, "debug.params_of_block", json_true());
    if (rc == 0) {
        log_info("%s: %s: %s %s", reader->file, block_name, params_path,
                 stored_format_name(self.format));
        json_object_del(reader->doc, block_name);
    }
    json_decref(self.rules);
    return rc;
}
