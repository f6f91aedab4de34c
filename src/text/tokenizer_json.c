/* tokenizer.json: the document and its pre-tokenizers. See tokenizer_json.h.
 *
 * Files come from unknown sources. So every member's type is checked, every number has bounds,
 * and an unsupported feature is refused by name: wrong ids without a message would be worse than
 * an error. Members that do not affect ids here (truncation, padding, version) are ignored. */
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

int toki_read_mark(const toki_reader *self, const char *where, const json_t *part, toki_mark *out)
{
    json_t *text;
    size_t step = 0;
    TRY(toki_member(self, where, part, "replacement", JSON_STRING, &text));
    size_t bytes = text ? json_string_length(text) : 0;
    if (bytes > 0)
        (void)toki_decode(json_string_value(text), &step);
    if (bytes == 0 || step != bytes || !json_string_value(text)[0])
        return err_set(ERR_INPUT, "%s: %s.replacement is not one character", self->path, where);
    *out = (toki_mark){.bytes = (uint8_t)bytes};
    memcpy(out->text, json_string_value(text), bytes);
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
    const tokenizer *owner = self->self;
    if (literal && !stage->invert && strcmp(json_string_value(literal), " ") == 0 &&
        owner->step_count > 0 && owner->steps[owner->step_count - 1].is_space_to_mark) {
        self->self->stage_count--; /* it never matches: no space is left (Gemma) */
        return 0;
    }
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
        stage->kind = TOKI_ADD_SPACE;
    }
    if (uses_regex) {
        TRY(next_stage(self, &stage));
        return toki_pattern_compile("ByteLevel", toki_gpt2_pattern, strlen(toki_gpt2_pattern),
                                    stage);
    }
    return 0;
}

static int read_metaspace(const toki_reader *self, const json_t *part)
{
    static const char *const schemes[] = {"always", "first", "never"};
    json_t *scheme;
    bool adds_space;
    uint32_t idx = 0;
    toki_stage *stage = NULL;
    for (uint32_t i = 0; i < self->self->stage_count; i++)
        if (self->self->stages[i].kind == TOKI_METASPACE)
            return err_set(ERR_CONFIG, "%s: two pre-tokenizers Metaspace are not supported",
                           self->path);
    TRY(next_stage(self, &stage));
    stage->kind = TOKI_METASPACE;
    TRY(toki_read_mark(self, "pre_tokenizer", part, &stage->mark));
    TRY(toki_member(self, "pre_tokenizer", part, "prepend_scheme", JSON_STRING, &scheme));
    while (scheme && idx < 3 && strcmp(schemes[idx], json_string_value(scheme)) != 0)
        idx++;
    TRY(toki_member_bool(self, "pre_tokenizer", part, "add_prefix_space", true, &adds_space));
    TRY(toki_member_bool(self, "pre_tokenizer", part, "split", true, &stage->cuts_marks));
    if (idx == 3)
        return err_set(ERR_INPUT, "%s: pre_tokenizer.prepend_scheme is \"%.40s\"", self->path,
                       json_string_value(scheme));
    stage->prepend = adds_space ? (enum toki_prepend)idx : TOKI_PREPEND_NEVER;
    self->self->has_first = stage->prepend == TOKI_PREPEND_FIRST;
    return 0;
}

/* BertPreTokenizer, WhitespaceSplit and Punctuation. */
static int read_classes(const toki_reader *self, const json_t *part, const char *type)
{
    json_t *behavior;
    toki_stage *stage = NULL;
    TRY(next_stage(self, &stage));
    stage->kind = TOKI_CLASSES;
    stage->takes_spaces = strcmp(type, "Punctuation") != 0;
    stage->takes_punctuation = strcmp(type, "WhitespaceSplit") != 0;
    if (stage->takes_spaces)
        return 0;
    TRY(toki_member(self, "pre_tokenizer", part, "behavior", JSON_STRING, &behavior));
    if (behavior && strcmp(json_string_value(behavior), "Isolated") != 0)
        return err_set(ERR_CONFIG,
                       "%s: a Punctuation of pre_tokenizer has the behavior %.40s; "
                       "Isolated is supported",
                       self->path, json_string_value(behavior));
    return 0;
}

static int read_whitespace(const toki_reader *self)
{
    /* the library's own pattern, by another engine than that of Split: joiners are in words */
    static const char words[] = "[\\w\\u200c\\u200d]+|[^\\w\\s\\u200c\\u200d]+";
    toki_stage *stage = NULL;
    TRY(next_stage(self, &stage));
    stage->behavior = TOKI_REMOVED;
    stage->invert = true;
    return toki_pattern_compile("Whitespace", words, sizeof words - 1, stage);
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
    if (strcmp(type, "Whitespace") == 0)
        return read_whitespace(self);
    if (strcmp(type, "BertPreTokenizer") == 0 || strcmp(type, "WhitespaceSplit") == 0 ||
        strcmp(type, "Punctuation") == 0)
        return read_classes(self, part, type);
    if (strcmp(type, "Metaspace") == 0 && !self->self->decoder.is_byte_level)
        return read_metaspace(self, part);
    return err_set(ERR_CONFIG,
                   "%s: the pre-tokenizer %s is not supported%s; Split, Digits, ByteLevel, "
                   "Metaspace, BertPreTokenizer, Punctuation, Whitespace, WhitespaceSplit and "
                   "Sequence are",
                   self->path, type,
                   self->self->decoder.is_byte_level ? " together with ByteLevel" : "");
}

/* True if a part of the pre-tokenizer is ByteLevel: the characters of tokens stand for bytes. */
static bool has_byte_level(const json_t *part, int depth)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(part, "pretokenizers"), i,
                       item) if (depth < SEQUENCE_DEPTH_MAX &&
                                 has_byte_level(item, depth + 1)) return true;
    return type && strcmp(type, "ByteLevel") == 0;
}

/* If no merge joins a mark with a character before it, words can be cut there: merging words is
 * faster than merging the text. */
static int cut_at_marks(const toki_reader *self)
{
    static const toki_mark mark = {.text = "\xe2\x96\x81", .bytes = 3}; /* U+2581 */
    tokenizer *owner = self->self;
    toki_stage *stage = NULL;
    if (owner->kind != TOKI_BPE || owner->decoder.is_byte_level || owner->ignores_merges ||
        (owner->unknown_id < 0 && !owner->has_all_bytes) || owner->stage_count == TOKI_STAGES_MAX ||
        toki_find_text(owner, mark.text, mark.bytes) < 0)
        return 0;
    for (size_t i = 0; i <= owner->merge_mask; i++) {
        const toki_merge *merge = &owner->merges[i];
        if (merge->rank == UINT32_MAX)
            continue;
        const toki_token *left = &owner->tokens[merge->left], *right = &owner->tokens[merge->right];
        bool begins =
            right->text_bytes >= mark.bytes && memcmp(right->text, mark.text, mark.bytes) == 0;
        if (begins && (left->text_bytes < mark.bytes ||
                       memcmp(left->text + left->text_bytes - mark.bytes, mark.text, mark.bytes)))
            return 0;
    }
    TRY(next_stage(self, &stage));
    stage->kind = TOKI_MARKS;
    stage->mark = mark;
    return 0;
}

static int read_parts(const toki_reader *self)
{
    const json_t *part = json_object_get(self->root, "pre_tokenizer");
    bool is_byte_level = false;
    self->self->decoder.is_byte_level = has_byte_level(part, 0);
    TRY(toki_read_decoder(self));
    TRY(toki_read_model(self));
    TRY(toki_read_normalizer(self));
    if (part && !json_is_null(part))
        TRY(read_pre_tokenizer(self, part, 0, &is_byte_level));
    TRY(cut_at_marks(self));
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

/* By the patterns of a byte-level tokenizer (tokenizer_known.c). */
static void find_pattern_cuts(tokenizer *owner)
{
    bool splits = false; /* a stage ends a part at each place of a cut */
    for (uint32_t s = 0; s < owner->stage_count; s++) {
        const toki_stage *stage = &owner->stages[s];
        if (stage->kind == TOKI_ADD_SPACE) /* to each part of a text that was cut */
            owner->cuts_lines = owner->cuts_spaces = false;
        else if (!stage->known)
            owner->no_stream = "has a split pattern that is not one of those known";
        else if (stage->behavior == TOKI_MERGED_WITH_PREVIOUS ||
                 stage->behavior == TOKI_MERGED_WITH_NEXT)
            owner->no_stream = "has a split that merges matches with their neighbours";
        else if (stage->behavior != TOKI_CONTIGUOUS)
            splits = splits || toki_known_takes_all(stage->known);
    }
    if (owner->step_count > 1 || (owner->step_count == 1 && owner->steps[0].kind != TOKI_STEP_FORM))
        owner->no_stream = "has a normalizer that is not one normal form";
    if (owner->no_stream || !splits || (owner->step_count && owner->steps[0].form == TOKI_NFKC))
        owner->cuts_lines = owner->cuts_spaces = false;
}

/* Two kinds of tokenizers that are not byte-level can be cut:
 *
 * - The first stage removes white space, and each step of the normalizer changes characters one by
 *   one, or is a normal form without compatible characters. White space stays white space then.
 * - A space becomes a mark, at which words are cut. Nothing else is changed. */
static void find_other_cuts(tokenizer *owner)
{
    bool is_local = true, is_mark = owner->step_count <= 1;
    for (uint32_t i = 0; i < owner->step_count; i++) {
        const toki_step *step = &owner->steps[i];
        bool is_form =
            step->kind == TOKI_STEP_FORM && (step->form == TOKI_NFC || step->form == TOKI_NFD);
        is_local = is_local && (is_form || step->kind == TOKI_STEP_MAP);
        is_mark = is_mark && step->kind == TOKI_STEP_REPLACE && step->is_space_to_mark;
    }
    const toki_stage *stage = &owner->stages[0];
    if (owner->has_first || owner->added[1].count > 0) {
        owner->cuts_lines = owner->cuts_spaces = owner->cuts_tabs = false;
        return;
    }
    if (is_local && owner->stage_count > 0 && stage->kind == TOKI_CLASSES && stage->takes_spaces)
        return;
    is_mark = is_mark && owner->step_count == 1;
    owner->cuts_lines = owner->cuts_tabs = false;
    owner->cuts_spaces =
        owner->cuts_spaces && is_mark && owner->stage_count == 1 && stage->kind == TOKI_MARKS;
}

/* Finds where a text may be cut (tokenizer_cut_is_safe), and whether it can be a stream. Added
 * tokens are found before patterns cut. A token that holds a newline or a space, strips spaces or
 * looks at its neighbours could lie across a cut or depend on the text after it. */
static void find_cuts(const toki_reader *self)
{
    tokenizer *owner = self->self;
    size_t i;
    json_t *token;
    owner->cuts_lines = owner->cuts_spaces = owner->cuts_tabs = true;
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
    if (owner->no_stream)
        owner->cuts_lines = owner->cuts_spaces = false;
    if (owner->decoder.is_byte_level) {
        find_pattern_cuts(owner);
    } else {
        owner->no_stream = "is not byte-level";
        find_other_cuts(owner);
    }
    owner->cuts_tabs = owner->cuts_tabs && owner->cuts_spaces;
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
