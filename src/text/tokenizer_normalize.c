/* The steps of a normalizer. Each takes a text and gives the text itself or a changed copy in one
 * of the worker's two buffers. See tokenizer_internal.h. */
#include <string.h>

#include <utf8proc.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

enum {
    GRAPHEME_BYTES_MAX =
        5, /* longer ones are looked up character by character, as in the library */
    CHARACTER_BYTES_MAX = 4,
    GROWTH_MAX = 64, /* a normalizer that makes more of a text is hostile */
    GROWTH_BYTES = 4096,
};

/* A text that is changed; `copy` has the result of the text before `taken`. */
struct change {
    const char *text;
    size_t bytes, taken;
    toki_bytes *copy;
    size_t bytes_max; /* of the result */
    bool is_changed;
};
typedef struct change change;

/* Replaces text [begin, end) by other bytes, after all replacements so far. */
static int replace(change *self, size_t begin, size_t end, const char *by, size_t by_bytes)
{
    if (self->copy->count + by_bytes > self->bytes_max)
        return err_set(ERR_INPUT,
                       "the tokenizer's normalizer makes more than %zu bytes of a text: more than "
                       "%d times as many",
                       self->bytes_max, (int)GROWTH_MAX);
    TRY(toki_append(self->copy, self->text + self->taken, begin - self->taken));
    TRY(toki_append(self->copy, by, by_bytes));
    self->taken = end;
    self->is_changed = true;
    return 0;
}

static int run_map(const toki_step *step, change *state)
{
    size_t length;
    for (size_t at = 0; at < state->bytes; at += length) {
        uint32_t character = toki_decode(state->text + at, &length), mapped[TOKI_MAPPED_MAX];
        int count = step->map(character, mapped);
        if (count == 1 && mapped[0] == character)
            continue;
        char bytes[TOKI_MAPPED_MAX * CHARACTER_BYTES_MAX];
        utf8proc_ssize_t filled = 0;
        for (int i = 0; i < count; i++)
            filled += utf8proc_encode_char((utf8proc_int32_t)mapped[i],
                                           (utf8proc_uint8_t *)bytes + filled);
        TRY(replace(state, at, at + length, bytes, (size_t)filled));
    }
    return 0;
}

static int run_strip(const toki_step *step, change *state)
{
    size_t begin = 0, end = state->bytes, length;
    while (step->at_begin && begin < end &&
           toki_is_space(toki_decode(state->text + begin, &length)))
        begin += length;
    while (step->at_end && end > begin) {
        size_t at = utf8_before(state->text, end);
        if (!toki_is_space(toki_decode(state->text + at, &length)))
            break;
        end = at;
    }
    if (begin > 0)
        TRY(replace(state, 0, begin, "", 0));
    return end < state->bytes ? replace(state, end, state->bytes, "", 0) : 0;
}

static int run_replace(const toki_step *step, toki_worker *worker, change *state)
{
    toki_matches walk = {0};
    const char *shadow;
    int found;
    TRY(toki_text_shadow(state->text, state->bytes, &worker->shadow, &shadow));
    while ((found = toki_match_next(worker, &step->pattern, shadow, state->bytes, &walk)) > 0)
        TRY(replace(state, walk.begin, walk.end, step->text, step->text_bytes));
    return found;
}

/* --- SentencePiece's charsmap --- */

static uint32_t unit_at(const toki_step *step, size_t idx)
{
    const unsigned char *at = (const unsigned char *)step->text + 4 * idx;
    if (idx >= step->unit_count)
        return 0; /* a damaged file */
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* Finds the text that replaces a key; NULL: the key stays. As in the library, the shortest rule
 * that fits the beginning of the key decides for all of it. */
static const char *find_rule(const toki_step *step, const char *key, size_t bytes, size_t *length)
{
    const char *texts = step->text + 4 * step->unit_count;
    size_t texts_bytes = step->text_bytes - 4 * step->unit_count;
    size_t at = offset_of(unit_at(step, 0));
    for (size_t i = 0; i < bytes && key[i]; i++) {
        at ^= (unsigned char)key[i];
        uint32_t unit = unit_at(step, at);
        if ((unit & ((1u << 31) | 0xff)) != (unsigned char)key[i])
            return NULL;
        at ^= offset_of(unit);
        if (unit >> 8 & 1) {
            size_t place = unit_at(step, at) & ((1u << 31) - 1);
            if (place > texts_bytes || (place < texts_bytes && utf8_is_inner(texts[place])))
                return NULL; /* a damaged file */
            *length = strnlen(texts + place, texts_bytes - place);
            return texts + place;
        }
    }
    return NULL;
}

/* The character as which a version of Unicode before 17 sees the boundaries of another one. */
static utf8proc_int32_t boundary_of(uint32_t character)
{
    static const uint32_t young_marks[][2] = {
        {0x1ACF, 0x1ADD},   {0x1AE0, 0x1AEB},   {0x10EFA, 0x10EFB}, {0x11B60, 0x11B67},
        {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}};
    for (size_t i = 0; i < sizeof young_marks / sizeof young_marks[0]; i++)
        if (character >= young_marks[i][0] && character <= young_marks[i][1])
            return 0x300;
    return (utf8proc_int32_t)toki_stand_in(character);
}

/* The end of the grapheme cluster at a place. */
static size_t grapheme_end(const char *text, size_t bytes, size_t at)
{
    size_t length;
    utf8proc_int32_t state = 0;
    utf8proc_int32_t before = boundary_of(toki_decode(text + at, &length));
    for (at += length; at < bytes; at += length) {
        utf8proc_int32_t next = boundary_of(toki_decode(text + at, &length));
        if (utf8proc_grapheme_break_stateful(before, next, &state))
            break;
        before = next;
    }
    return at;
}

static int run_charsmap(const toki_step *step, change *state)
{
    const char *text = state->text;
    size_t length, by_bytes;
    for (size_t at = 0, end; at < state->bytes; at = end) {
        bool is_plain = (signed char)text[at] >= 0 && text[at] != '\r' &&
                        (at + 1 == state->bytes || (signed char)text[at + 1] >= 0);
        end = is_plain ? at + 1 : grapheme_end(text, state->bytes, at);
        const char *by =
            end - at > GRAPHEME_BYTES_MAX ? NULL : find_rule(step, text + at, end - at, &by_bytes);
        if (by) {
            TRY(replace(state, at, end, by, by_bytes));
            continue;
        }
        for (; at < end && !is_plain; at += length) {
            (void)toki_decode(text + at, &length);
            by = find_rule(step, text + at, length, &by_bytes);
            if (by)
                TRY(replace(state, at, at + length, by, by_bytes));
        }
    }
    return 0;
}

/* --- all steps --- */

static int run_step(const toki_step *step, toki_worker *worker, size_t bytes_max, const char *text,
                    size_t bytes, const char **out, size_t *out_bytes)
{
    toki_bytes *copy = &worker->normal[text == worker->normal[0].data];
    change state = {.text = text, .bytes = bytes, .copy = copy, .bytes_max = bytes_max};
    int rc = 0;
    copy->count = 0;
    *out = text;
    *out_bytes = bytes;
    switch (step->kind) {
    case TOKI_STEP_FORM:
        return toki_text_normal(step->form, step->steady, text, bytes, copy, out, out_bytes);
    case TOKI_STEP_MAP:
        rc = run_map(step, &state);
        break;
    case TOKI_STEP_STRIP:
        rc = run_strip(step, &state);
        break;
    case TOKI_STEP_PREPEND:
        rc = bytes > 0 ? replace(&state, 0, 0, step->text, step->text_bytes) : 0;
        break;
    case TOKI_STEP_REPLACE:
        rc = run_replace(step, worker, &state);
        break;
    case TOKI_STEP_CHARSMAP:
        rc = run_charsmap(step, &state);
        break;
    }
    if (rc < 0 || !state.is_changed)
        return rc;
    TRY(toki_append(copy, text + state.taken, bytes - state.taken));
    *out = copy->count > 0 ? copy->data : "";
    *out_bytes = copy->count;
    return 0;
}

int toki_normalize(const tokenizer *self, toki_worker *worker, const char *text, size_t bytes,
                   const char **out, size_t *out_bytes)
{
    *out = text;
    *out_bytes = bytes;
    for (uint32_t i = 0; i < self->step_count; i++)
        TRY(run_step(&self->steps[i], worker, GROWTH_MAX * bytes + GROWTH_BYTES, *out, *out_bytes,
                     out, out_bytes));
    return 0;
}

void toki_step_fini(toki_step *self)
{
    mem_free(self->steady);
    mem_free(self->text);
    pcre2_code_free(self->pattern.code);
}
