/* tokenizer.json: the normalizer, as a list of steps. See tokenizer_json.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_json.h"

enum { SEQUENCE_DEPTH_MAX = 8, UNIT_BYTES = 4 };

/* Adds a step; its fields are zeros. */
static int next_step(const toki_reader *self, enum toki_step_kind kind, toki_step **out)
{
    if (self->self->step_count == TOKI_STEPS_MAX)
        return err_set(ERR_CONFIG, "%s: more than %d normalizers", self->path, (int)TOKI_STEPS_MAX);
    *out = &self->self->steps[self->self->step_count++];
    (*out)->kind = kind;
    return 0;
}

static int add_map(const toki_reader *self, toki_map *map)
{
    toki_step *step = NULL;
    TRY(next_step(self, TOKI_STEP_MAP, &step));
    step->map = map;
    return 0;
}

static int add_form(const toki_reader *self, enum toki_form form)
{
    toki_step *step = NULL;
    TRY(next_step(self, TOKI_STEP_FORM, &step));
    step->form = form;
    return toki_steady_make(form, &step->steady);
}

static int set_text(toki_step *step, const char *text, size_t bytes)
{
    step->text = mem_alloc(bytes + 1, 1, "tokenizer normalizer");
    if (!step->text)
        return -ENOMEM;
    if (bytes > 0)
        memcpy(step->text, text, bytes);
    step->text_bytes = bytes;
    return 0;
}

static int read_bert(const toki_reader *self, const json_t *part)
{
    bool cleans, separates, strips, lowers;
    TRY(toki_member_bool(self, "normalizer", part, "clean_text", true, &cleans));
    TRY(toki_member_bool(self, "normalizer", part, "handle_chinese_chars", true, &separates));
    TRY(toki_member_bool(self, "normalizer", part, "lowercase", true, &lowers));
    TRY(toki_member_bool(self, "normalizer", part, "strip_accents", lowers, &strips));
    if (cleans)
        TRY(add_map(self, toki_map_clean));
    if (separates)
        TRY(add_map(self, toki_map_chinese));
    if (strips) {
        TRY(add_form(self, TOKI_NFD));
        TRY(add_map(self, toki_map_no_nonspacing));
    }
    return lowers ? add_map(self, toki_map_lower) : 0;
}

static int read_strip(const toki_reader *self, const json_t *part)
{
    toki_step *step = NULL;
    TRY(next_step(self, TOKI_STEP_STRIP, &step));
    TRY(toki_member_bool(self, "normalizer", part, "strip_left", true, &step->at_begin));
    return toki_member_bool(self, "normalizer", part, "strip_right", true, &step->at_end);
}

static int read_prepend(const toki_reader *self, const json_t *part)
{
    json_t *text;
    toki_step *step = NULL;
    TRY(next_step(self, TOKI_STEP_PREPEND, &step));
    TRY(toki_member(self, "normalizer", part, "prepend", JSON_STRING, &text));
    if (!text)
        return err_set(ERR_INPUT, "%s: a Prepend of normalizer has no text", self->path);
    return set_text(step, json_string_value(text), json_string_length(text));
}

static int read_replace(const toki_reader *self, const json_t *part)
{
    json_t *pattern, *regex, *literal, *content;
    char where[TOKI_WHERE_BYTES];
    toki_step *step = NULL;
    TRY(next_step(self, TOKI_STEP_REPLACE, &step));
    snprintf(where, sizeof where, "%s: normalizer", self->path);
    TRY(toki_member(self, "normalizer", part, "pattern", JSON_OBJECT, &pattern));
    TRY(toki_member(self, "normalizer.pattern", pattern, "Regex", JSON_STRING, &regex));
    TRY(toki_member(self, "normalizer.pattern", pattern, "String", JSON_STRING, &literal));
    TRY(toki_member(self, "normalizer", part, "content", JSON_STRING, &content));
    if (!regex == !literal || !content)
        return err_set(
            ERR_INPUT,
            "%s: a Replace of normalizer needs a pattern, Regex or String, and a content",
            self->path);
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content);
    if (regex && memchr(text, '$', bytes))
        return err_set(ERR_CONFIG,
                       "%s: a Replace of normalizer with groups of its pattern is not supported",
                       self->path);
    step->is_space_to_mark = literal && strcmp(json_string_value(literal), " ") == 0 &&
                             strcmp(text, "\xe2\x96\x81") == 0; /* U+2581 */
    TRY(set_text(step, text, bytes));
    return regex ? toki_pattern_compile(where, json_string_value(regex), json_string_length(regex),
                                        &step->pattern)
                 : toki_pattern_literal(where, json_string_value(literal),
                                        json_string_length(literal), &step->pattern);
}

/* Decodes base64 in place; -1: it is not base64. */
static int64_t decode_base64(char *text, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int held = 0;
    int64_t count = 0;
    if (bytes % 4 != 0)
        return -1;
    while (bytes > 0 && text[bytes - 1] == '=')
        bytes--;
    for (size_t i = 0; i < bytes; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return -1;
        bits = bits << 6 | (uint32_t)(digit - digits);
        held += 6;
        if (held >= 8) {
            held -= 8;
            text[count++] = (char)(bits >> held);
        }
    }
    return count;
}

/* The decoded bytes are the trie's size in bytes (4 bytes, little-endian), the trie, and texts. */
static int read_charsmap(const toki_reader *self, const json_t *part)
{
    json_t *map;
    toki_step *step = NULL;
    TRY(next_step(self, TOKI_STEP_CHARSMAP, &step));
    TRY(toki_member(self, "normalizer", part, "precompiled_charsmap", JSON_STRING, &map));
    TRY(set_text(step, json_string_value(map), json_string_length(map)));
    int64_t bytes = decode_base64(step->text, step->text_bytes);
    const unsigned char *size = (const unsigned char *)step->text;
    uint64_t trie = bytes < UNIT_BYTES ? UINT64_MAX
                                       : size[0] | (uint32_t)size[1] << 8 |
                                             (uint32_t)size[2] << 16 | (uint32_t)size[3] << 24;
    toki_bytes copy = {0};
    const char *valid = NULL;
    size_t valid_bytes;
    if (bytes >= UNIT_BYTES && trie % UNIT_BYTES == 0 && trie > 0 &&
        trie <= (uint64_t)bytes - UNIT_BYTES) {
        const char *texts = step->text + UNIT_BYTES + trie;
        TRY(toki_text_valid(texts, (size_t)bytes - UNIT_BYTES - trie, &copy, &valid, &valid_bytes));
        valid = valid == texts ? valid : NULL;
        mem_free(copy.data);
    }
    if (!valid)
        return err_set(ERR_INPUT, "%s: normalizer.precompiled_charsmap is damaged", self->path);
    step->text_bytes = (size_t)bytes - UNIT_BYTES;
    step->unit_count = trie / UNIT_BYTES;
    memmove(step->text, step->text + UNIT_BYTES, step->text_bytes);
    return 0;
}

static int read_step(const toki_reader *self, const json_t *part, int depth)
{
    static const char *const forms[] = {"NFC", "NFKC", "NFD", "NFKD"}; /* as enum toki_form */
    static const struct {
        const char *type;
        int (*read)(const toki_reader *self, const json_t *part);
    } readers[] = {{"BertNormalizer", read_bert},
                   {"Strip", read_strip},
                   {"Prepend", read_prepend},
                   {"Replace", read_replace},
                   {"Precompiled", read_charsmap}};
    const char *type;
    json_t *list;
    size_t i;
    const json_t *item;
    TRY(toki_type(self, "normalizer", part, &type));
    for (i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (strcmp(type, forms[i]) == 0)
            return add_form(self, (enum toki_form)i);
    for (i = 0; i < sizeof readers / sizeof readers[0]; i++)
        if (strcmp(type, readers[i].type) == 0)
            return readers[i].read(self, part);
    if (strcmp(type, "Lowercase") == 0)
        return add_map(self, toki_map_lower);
    if (strcmp(type, "StripAccents") == 0)
        return add_map(self, toki_map_no_marks);
    if (strcmp(type, "Sequence") != 0 || depth == SEQUENCE_DEPTH_MAX)
        return err_set(ERR_CONFIG,
                       "%s: the normalizer %s is not supported; NFC, NFD, NFKC, NFKD, "
                       "BertNormalizer, Lowercase, Precompiled, Prepend, Replace, Strip, "
                       "StripAccents and Sequence are",
                       self->path, type);
    TRY(toki_member(self, "normalizer", part, "normalizers", JSON_ARRAY, &list));
    if (!list)
        return err_set(ERR_INPUT, "%s: normalizer.normalizers is missing", self->path);
    json_array_foreach(list, i, item) TRY(read_step(self, item, depth + 1));
    return 0;
}

int toki_read_normalizer(const toki_reader *self)
{
    const json_t *part = json_object_get(self->root, "normalizer");
    return part && !json_is_null(part) ? read_step(self, part, 0) : 0;
}
