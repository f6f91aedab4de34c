/* tokenizer.json: the document, its normalizer and its pre-tokenizers. See tokenizer_json.h.
 *
 * Files come from unknown sources. So every member's type is checked, every number has bounds,
 * and an unsupported feature is refused by name: wrong ids without a message would be worse than
 * an error. Members that do not affect ids here (truncation, padding, decoder, version) are
 * ignored. */
#include "text/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/foreign_json.h"
#include "base/mem.h"

enum { SEQUENCE_DEPTH_MAX = 8 };

int toki_json_read(const char *path, json_t **out, uint64_t *hash)
{
    char *text = NULL;
    uint64_t bytes = 0;
    json_error_t error;
    *out = NULL;
    TRY(file_read(path, TOKI_FILE_BYTES_MAX, &text, &bytes));
    *out = foreign_json_parse(text, bytes, JSON_ALLOW_NUL, &error);
    if (hash)
        *hash = XXH3_64bits(text, bytes);
    mem_free(text);
    if (!*out)
        return err_set(ERR_INPUT, "%s:%d:%d: this is not JSON: %s", path, error.line, error.column,
                       error.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return err_set(ERR_INPUT, "%s is not a JSON object", path);
    }
    return 0;
}

/* --- members --- */

int toki_member(const toki_reader *self, const char *where, const json_t *object, const char *name,
                json_type type, json_t **out)
{
    *out = json_object_get(object, name);
    if (json_is_null(*out))
        *out = NULL;
    if (*out && json_typeof(*out) != type)
        return err_set(ERR_INPUT, "%s: %s.%s is not %s", self->path, where, name,
                       type == JSON_STRING  ? "a string"
                       : type == JSON_ARRAY ? "a list"
                                            : "an object");
    return 0;
}

int toki_member_bool(const toki_reader *self, const char *where, const json_t *object,
                     const char *name, bool preset, bool *out)
{
    const json_t *value = json_object_get(object, name);
    *out = preset;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_boolean(value))
        return err_set(ERR_INPUT, "%s: %s.%s is neither true nor false", self->path, where, name);
    *out = json_is_true(value);
    return 0;
}

int toki_type(const toki_reader *self, const char *where, const json_t *object, const char **out)
{
    json_t *type;
    *out = "";
    if (!json_is_object(object))
        return err_set(ERR_INPUT, "%s: %s is not an object", self->path, where);
    TRY(toki_member(self, where, object, "type", JSON_STRING, &type));
    if (!type)
        return err_set(ERR_INPUT, "%s: %s has no \"type\"", self->path, where);
    *out = json_string_value(type);
    return 0;
}

int toki_id(const toki_reader *self, const char *where, const json_t *value, int32_t *out)
{
    if (!json_is_integer(value))
        return err_set(ERR_INPUT, "%s: an id in %s is not an integer", self->path, where);
    json_int_t id = json_integer_value(value);
    if (id < 0 || id > TOKI_ID_MAX)
        return err_set(ERR_INPUT, "%s: %s has the id %lld; ids are 0 to %d", self->path, where,
                       (long long)id, (int)TOKI_ID_MAX);
    *out = (int32_t)id;
    return 0;
}

/* --- the normalizer --- */

static int read_normalizer(const toki_reader *self, const json_t *part, int depth)
{
    const char *type;
    json_t *list;
    size_t i;
    const json_t *item;
    if (!part || json_is_null(part))
        return 0;
    TRY(toki_type(self, "normalizer", part, &type));
    if (strcmp(type, "NFC") == 0 ||
        strcmp(type, "NFKC") == 0) { /* after NFKC, NFC changes nothing */
        if (self->self->form != TOKI_NFKC)
            self->self->form = strcmp(type, "NFC") == 0 ? TOKI_NFC : TOKI_NFKC;
        return 0;
    }
    if (strcmp(type, "Sequence") != 0 || depth == SEQUENCE_DEPTH_MAX)
        return err_set(
            ERR_CONFIG,
            "%s: the normalizer %s is not supported; byte-level tokenizers have none, NFC or NFKC",
            self->path, type);
    TRY(toki_member(self, "normalizer", part, "normalizers", JSON_ARRAY, &list));
    if (!list)
        return err_set(ERR_INPUT, "%s: normalizer.normalizers is missing", self->path);
    json_array_foreach(list, i, item) TRY(read_normalizer(self, item, depth + 1));
    return 0;
}

/* --- pre-tokenizers --- */

/* Adds a stage; its fields are zeros. */
static int next_stage(const toki_reader *self, toki_stage **out)
{
    if (self->self->stage_count == TOKI_STAGES_MAX)
        return err_set(ERR_CONFIG, "%s: more than %d pre-tokenizers", self->path,
                       (int)TOKI_STAGES_MAX);
    *out = &self->self->stages[self->self->stage_count++];
    return 0;
}

static int read_behavior(const toki_reader *self, const json_t *part, toki_stage *stage)
{
    static const struct {
        const char *name;
        enum toki_behavior behavior;
    } names[] = {
        {"Isolated", TOKI_ISOLATED},
        {"Removed", TOKI_REMOVED},
        {"Contiguous", TOKI_CONTIGUOUS},
        {"MergedWithPrevious", TOKI_MERGED_WITH_PREVIOUS},
        {"MergedWithNext", TOKI_MERGED_WITH_NEXT},
    };
    json_t *behavior;
    TRY(toki_member(self, "pre_tokenizer", part, "behavior", JSON_STRING, &behavior));
    for (size_t i = 0; behavior && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, json_string_value(behavior)) == 0) {
            stage->behavior = names[i].behavior;
            return 0;
        }
    return err_set(ERR_INPUT, "%s: a Split of pre_tokenizer has the behavior %s", self->path,
                   behavior ? json_string_value(behavior) : "null");
}

static int read_split(const toki_reader *self, const json_t *part)
{
    json_t *pattern, *regex, *literal;
    char where[TOKI_WHERE_BYTES];
    toki_stage *stage = NULL;
    TRY(next_stage(self, &stage));
    snprintf(where, sizeof where, "%s: pre_tokenizer", self->path);
    TRY(read_behavior(self, part, stage));
    TRY(toki_member_bool(self, "pre_tokenizer", part, "invert", false, &stage->invert));
    TRY(toki_member(self, "pre_tokenizer", part, "pattern", JSON_OBJECT, &pattern));
    TRY(toki_member(self, "pre_tokenizer.pattern", pattern, "Regex", JSON_STRING, &regex));
    TRY(toki_member(self, "pre_tokenizer.pattern", pattern, "String", JSON_STRING, &literal));
    if (!regex == !literal)
        return err_set(ERR_INPUT, "%s: a Split of pre_tokenizer needs a pattern: Regex or String",
                       self->path);
    return regex ? toki_pattern_compile(where, json_string_value(regex), json_string_length(regex),
                                        stage)
                 : toki_pattern_literal(where, json_string_value(literal),
                                        json_string_length(literal), stage);
}

static int read_digits(const toki_reader *self, const json_t *part)
{
    bool individual;
    toki_stage *stage = NULL;
    TRY(next_stage(self, &stage));
    TRY(toki_member_bool(self, "pre_tokenizer", part, "individual_digits", false, &individual));
    return toki_pattern_digits(individual, stage);
}

static int read_byte_level(const toki_reader *self, const json_t *part)
{
    bool adds_space, uses_regex;
    toki_stage *stage = NULL;
    TRY(toki_member_bool(self, "pre_tokenizer", part, "add_prefix_space", true, &adds_space));
    TRY(toki_member_bool(self, "pre_tokenizer", part, "use_regex", true, &uses_regex));
    if (adds_space) {
        TRY(next_stage(self, &stage));
        stage->adds_space = true;
    }
    if (uses_regex) {
        TRY(next_stage(self, &stage));
        return toki_pattern_compile("ByteLevel", toki_gpt2_pattern, strlen(toki_gpt2_pattern),
                                    stage);
    }
    return 0;
}

static int read_pre_tokenizer(const toki_reader *self, const json_t *part, int depth,
                              bool *is_byte_level)
{
    const char *type;
    json_t *list;
    size_t i;
    const json_t *item;
    TRY(toki_type(self, "pre_tokenizer", part, &type));
    if (strcmp(type, "Sequence") == 0 && depth < SEQUENCE_DEPTH_MAX) {
        TRY(toki_member(self, "pre_tokenizer", part, "pretokenizers", JSON_ARRAY, &list));
        if (!list)
            return err_set(ERR_INPUT, "%s: pre_tokenizer.pretokenizers is missing", self->path);
        json_array_foreach(list, i, item)
            TRY(read_pre_tokenizer(self, item, depth + 1, is_byte_level));
        return 0;
    }
    if (*is_byte_level)
        return err_set(ERR_CONFIG, "%s: the pre-tokenizer %s after ByteLevel is not supported",
                       self->path, type);
    if (strcmp(type, "ByteLevel") == 0) {
        *is_byte_level = true;
        return read_byte_level(self, part);
    }
    if (strcmp(type, "Split") == 0)
        return read_split(self, part);
    if (strcmp(type, "Digits") == 0)
        return read_digits(self, part);
    return err_set(
        ERR_CONFIG,
        "%s: the pre-tokenizer %s is not supported; Split, Digits, ByteLevel and Sequence are",
        self->path, type);
}

static int read_pre_tokenizers(const toki_reader *self)
{
    const json_t *part = json_object_get(self->root, "pre_tokenizer");
    bool is_byte_level = false;
    if (part && !json_is_null(part))
        TRY(read_pre_tokenizer(self, part, 0, &is_byte_level));
    if (!is_byte_level)
        return err_set(ERR_CONFIG,
                       "%s: the pre-tokenizer ByteLevel is missing: only byte-level tokenizers are "
                       "supported (for SentencePiece, give its .model file)",
                       self->path);
    return 0;
}

static int read_parts(const toki_reader *self)
{
    TRY(toki_read_model(self));
    TRY(read_normalizer(self, json_object_get(self->root, "normalizer"), 0));
    if (self->self->form)
        TRY(toki_steady_make(self->self->form, &self->self->steady));
    TRY(read_pre_tokenizers(self));
    TRY(toki_read_added(self));
    return toki_read_post_processor(self);
}

/* True if a space or a tab follows another character of a token. */
static bool has_space_within(const char *text, size_t bytes)
{
    for (size_t i = 1; i < bytes; i++)
        if ((text[i] == ' ' || text[i] == '\t') && text[i - 1] != ' ' && text[i - 1] != '\t')
            return true;
    return false;
}

/* Finds where a text may be cut (tokenizer_cut_is_safe), and whether it can be a stream. Added
 * tokens are found before patterns cut. A token that holds a newline or a space, strips spaces or
 * looks at its neighbours could lie across a cut or depend on the text after it. */
static void find_cuts(const toki_reader *self)
{
    tokenizer *owner = self->self;
    size_t i;
    json_t *token;
    bool splits = false; /* a stage ends a part at each place of a cut */
    owner->cuts_lines = owner->cuts_spaces = true;
    owner->stream_window = TOKI_STREAM_WINDOW;
    json_array_foreach(json_object_get(self->root, "added_tokens"), i, token)
    {
        const json_t *content = json_object_get(token, "content");
        const char *text = json_string_value(content);
        size_t bytes = json_string_length(content);
        if (json_is_true(json_object_get(token, "lstrip")) ||
            json_is_true(json_object_get(token, "rstrip")) ||
            json_is_true(json_object_get(token, "single_word")))
            owner->no_stream = "has an added token with lstrip, rstrip or single_word";
        if (bytes > TOKI_STREAM_WINDOW)
            owner->no_stream = "has an added token of more than 64 KiB";
        owner->cuts_lines = owner->cuts_lines && !memchr(text, '\n', bytes);
        owner->cuts_spaces = owner->cuts_spaces && !has_space_within(text, bytes);
    }
    for (uint32_t s = 0; s < owner->stage_count; s++) {
        const toki_stage *stage = &owner->stages[s];
        if (stage->adds_space) /* to each part of a text that was cut */
            owner->cuts_lines = owner->cuts_spaces = false;
        else if (!stage->known)
            owner->no_stream = "has a split pattern that is not one of those known";
        else if (stage->behavior == TOKI_MERGED_WITH_PREVIOUS ||
                 stage->behavior == TOKI_MERGED_WITH_NEXT)
            owner->no_stream = "has a split that merges matches with their neighbours";
        else if (stage->behavior != TOKI_CONTIGUOUS)
            splits = splits || toki_known_takes_all(stage->known);
    }
    if (owner->no_stream || !splits || owner->form == TOKI_NFKC)
        owner->cuts_lines = owner->cuts_spaces = false;
}

int toki_json_open(tokenizer *self, const char *path)
{
    toki_reader reader = {.path = path, .self = self};
    TRY(toki_json_read(path, &reader.root, &self->hash));
    int rc = read_parts(&reader);
    if (rc == 0)
        find_cuts(&reader);
    json_decref(reader.root);
    return rc;
}
