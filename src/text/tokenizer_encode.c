/* A text to ids: pieces, stages, words. tokenizer_internal.h shows the way of a text.
 *
 * A stage cuts a piece by its pattern and passes each part to the next stage at once, so memory
 * does not grow with the number of pieces. */
#include <errno.h>
#include <string.h>

#include "base/size.h"
#include "text/tokenizer_internal.h"

enum { MATCH_LIMIT = 10000000, MATCH_LIMIT_PER_BYTE = 8 };

/* One call. Pieces are offsets into text, and the same offsets into shadow. */
struct encoding {
    const tokenizer *self;
    toki_worker *worker;
    const char *text, *shadow;
    token_list *out;
    bool is_first; /* the text is the beginning of what was to be encoded */
};
typedef struct encoding encoding;

/* The parts of a piece in order: matches, and the gaps between them. The held part waits, because
 * it may be merged with the next one. */
struct parts {
    uint32_t stage_idx;
    size_t begin, end; /* of the held part */
    bool has_held, held_is_match;
};
typedef struct parts parts;

static int run_stage(encoding *self, uint32_t stage_idx, size_t begin, size_t end) MUST_CHECK;

static int release(encoding *self, parts *state)
{
    if (!state->has_held)
        return 0;
    state->has_held = false;
    return run_stage(self, state->stage_idx + 1, state->begin, state->end);
}

static int hold(encoding *self, parts *state, size_t begin, size_t end, bool is_match)
{
    TRY(release(self, state));
    state->has_held = true;
    state->held_is_match = is_match;
    state->begin = begin;
    state->end = end;
    return 0;
}

/* Takes one part, which may be empty. The rules for merging are those of the library. */
static int take_part(encoding *self, parts *state, size_t begin, size_t end, bool is_match)
{
    const toki_stage *stage = &self->self->stages[state->stage_idx];
    bool joins = false;
    is_match ^= stage->invert;
    switch (stage->behavior) {
    case TOKI_ISOLATED:
        return run_stage(self, state->stage_idx + 1, begin, end);
    case TOKI_REMOVED:
        return is_match ? 0 : run_stage(self, state->stage_idx + 1, begin, end);
    case TOKI_CONTIGUOUS:
        joins = state->has_held && is_match == state->held_is_match;
        break;
    case TOKI_MERGED_WITH_PREVIOUS:
        joins = state->has_held && is_match && !state->held_is_match;
        break;
    case TOKI_MERGED_WITH_NEXT:
        joins = state->has_held && state->held_is_match && !is_match;
        break;
    }
    if (!joins)
        return hold(self, state, begin, end, is_match);
    state->end = end;
    state->held_is_match = is_match;
    return 0;
}

/* ERR_INPUT for a match that was stopped by a limit. Only a hostile pattern comes near the
 * limits. */
int toki_match_failed(int code, size_t at)
{
    PCRE2_UCHAR text[160] = "";
    if (code == PCRE2_ERROR_NOMEMORY)
        return err_set(-ENOMEM, "no memory for the tokenizer's pattern at byte %zu of a text", at);
    pcre2_get_error_message(code, text, sizeof text);
    return err_set(ERR_INPUT,
                   "the tokenizer's split pattern gives up at byte %zu of a text: %s; the pattern "
                   "of its tokenizer.json takes too many steps",
                   at, (const char *)text);
}

/* Finds the next match at or after `at`. Returns 1, 0 if there is none, or an error. */
static int find(toki_worker *worker, const toki_stage *stage, const char *text, size_t bytes,
                size_t at, size_t *begin, size_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    uint64_t limit = size_min(MATCH_LIMIT + MATCH_LIMIT_PER_BYTE * (uint64_t)bytes, UINT32_MAX);
    pcre2_set_match_limit(worker->context, (uint32_t)limit);
    if (stage->has_jit)
        rc = pcre2_jit_match(stage->code, subject, bytes, at, 0, worker->match, worker->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(stage->code, subject, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         worker->match, worker->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return toki_match_failed(rc, at);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(worker->match);
    *begin = places[0];
    *end = places[1];
    return 1;
}

int toki_match_next(toki_worker *worker, const toki_stage *stage, const char *text, size_t bytes,
                    toki_matches *walk)
{
    walk->gap_begin = walk->end;
    while (walk->at <= bytes) {
        int found = find(worker, stage, text, bytes, walk->at, &walk->begin, &walk->end);
        if (found <= 0) {
            walk->end = walk->gap_begin;
            return found;
        }
        if (walk->begin == walk->end && walk->has_match && walk->end == walk->gap_begin) {
            size_t step = 1;
            if (walk->at < bytes)
                (void)toki_decode(text + walk->at, &step);
            walk->at += step;
            continue;
        }
        walk->at = walk->end;
        walk->has_match = true;
        return 1;
    }
    return 0;
}

/* Cuts a piece at all matches. */
static int split(encoding *self, uint32_t stage_idx, size_t begin, size_t end)
{
    const toki_stage *stage = &self->self->stages[stage_idx];
    const char *piece = self->shadow + begin;
    parts state = {.stage_idx = stage_idx};
    toki_matches walk = {0};
    int found;
    while ((found = toki_match_next(self->worker, stage, piece, end - begin, &walk)) > 0) {
        if (walk.begin != walk.gap_begin)
            TRY(take_part(self, &state, begin + walk.gap_begin, begin + walk.begin, false));
        TRY(take_part(self, &state, begin + walk.begin, begin + walk.end, true));
    }
    TRY(found);
    if (walk.gap_begin != end - begin)
        TRY(take_part(self, &state, begin + walk.gap_begin, end, false));
    return release(self, &state);
}

/* Adds a space before a piece that does not begin with one; makes a copy. */
static int add_space(encoding *self, uint32_t stage_idx, size_t begin, size_t end)
{
    toki_bytes *text = &self->worker->space_text, *shadow = &self->worker->space_shadow;
    if (self->text[begin] == ' ')
        return run_stage(self, stage_idx + 1, begin, end);
    encoding inner = *self;
    text->count = shadow->count = 0;
    TRY(toki_bytes_reserve(text, end - begin + 1));
    TRY(toki_bytes_reserve(shadow, end - begin + 1));
    text->data[0] = shadow->data[0] = ' ';
    memcpy(text->data + 1, self->text + begin, end - begin);
    memcpy(shadow->data + 1, self->shadow + begin, end - begin);
    inner.text = text->data;
    inner.shadow = shadow->data;
    return run_stage(&inner, stage_idx + 1, 0, end - begin + 1);
}

static bool is_mark_at(const toki_mark *mark, const char *text, size_t bytes)
{
    return bytes >= mark->bytes && memcmp(text, mark->text, mark->bytes) == 0;
}

/* Cuts a piece before each mark, or before each that follows another character. */
static int cut_marks(encoding *self, uint32_t stage_idx, const toki_mark *mark, bool at_each,
                     size_t begin, size_t end)
{
    size_t from = begin, after = begin; /* the end of the last mark */
    for (size_t at = begin; at < end; at++) {
        const char *found = memchr(self->text + at, mark->text[0], end - at);
        if (!found)
            break;
        at = (size_t)(found - self->text);
        if (!is_mark_at(mark, found, end - at))
            continue;
        if (at_each || at != after) {
            TRY(run_stage(self, stage_idx + 1, from, at));
            from = at;
        }
        after = at + mark->bytes;
        at = after - 1;
    }
    return run_stage(self, stage_idx + 1, from, end);
}

/* Makes marks of spaces in a copy, puts a mark in front, and cuts. */
static int add_marks(encoding *self, uint32_t stage_idx, size_t begin, size_t end)
{
    const toki_stage *stage = &self->self->stages[stage_idx];
    const toki_mark *mark = &stage->mark;
    bool has_mark = self->text[begin] == ' ' || is_mark_at(mark, self->text + begin, end - begin);
    bool is_prepended =
        !has_mark && (stage->prepend == TOKI_PREPEND_ALWAYS ||
                      (stage->prepend == TOKI_PREPEND_FIRST && self->is_first && begin == 0));
    encoding inner = *self;
    toki_bytes *const copies[] = {&self->worker->space_text, &self->worker->space_shadow};
    const char *const sources[] = {self->text, self->shadow};
    for (size_t c = 0; c < (self->text == self->shadow ? 1 : 2); c++) {
        toki_bytes *copy = copies[c];
        copy->count = 0;
        TRY(toki_bytes_reserve(copy, (end - begin + 1) * mark->bytes));
        if (is_prepended)
            TRY(toki_append(copy, mark->text, mark->bytes));
        for (size_t at = begin; at < end; at++)
            if (sources[c][at] != ' ')
                copy->data[copy->count++] = sources[c][at];
            else
                TRY(toki_append(copy, mark->text, mark->bytes));
    }
    inner.text = copies[0]->data;
    inner.shadow = self->text == self->shadow ? inner.text : copies[1]->data;
    inner.is_first = false;
    return stage->cuts_marks ? cut_marks(&inner, stage_idx, mark, true, 0, copies[0]->count)
                             : run_stage(&inner, stage_idx + 1, 0, copies[0]->count);
}

/* Removes white space, and makes each punctuation character a piece. */
static int cut_classes(encoding *self, uint32_t stage_idx, size_t begin, size_t end)
{
    const toki_stage *stage = &self->self->stages[stage_idx];
    size_t from = begin, length;
    for (size_t at = begin; at < end; at += length) {
        uint32_t character = toki_decode(self->text + at, &length);
        bool is_space = stage->takes_spaces && toki_is_space(character);
        if (!is_space && !(stage->takes_punctuation && toki_is_punctuation(character)))
            continue;
        TRY(run_stage(self, stage_idx + 1, from, at));
        if (!is_space)
            TRY(run_stage(self, stage_idx + 1, at, at + length));
        from = at + length;
    }
    return run_stage(self, stage_idx + 1, from, end);
}

static int run_stage(encoding *self, uint32_t stage_idx, size_t begin, size_t end)
{
    if (begin == end)
        return 0;
    if (stage_idx == self->self->stage_count)
        return toki_word(self->self, self->worker, self->text + begin, end - begin, self->out);
    const toki_stage *stage = &self->self->stages[stage_idx];
    switch (stage->kind) {
    case TOKI_PATTERN:
        return split(self, stage_idx, begin, end);
    case TOKI_ADD_SPACE:
        return add_space(self, stage_idx, begin, end);
    case TOKI_METASPACE:
        return add_marks(self, stage_idx, begin, end);
    case TOKI_MARKS:
        return cut_marks(self, stage_idx, &stage->mark, false, begin, end);
    case TOKI_CLASSES:
        return cut_classes(self, stage_idx, begin, end);
    }
    return err_set(ERR_INTERNAL, "there is no stage of kind %d", (int)stage->kind);
}

/* Encodes a text without added tokens, after normalization. */
static int encode_plain(encoding *self, const char *text, size_t bytes, bool is_first)
{
    self->text = text;
    self->is_first = is_first;
    TRY(toki_text_shadow(text, bytes, &self->worker->shadow, &self->shadow));
    return run_stage(self, 0, 0, bytes);
}

/* Cuts out added tokens: first those of added[0] from the original text, then those of added[1]
 * from each remaining part, after normalization. */
static int encode_part(encoding *self, uint32_t level, const char *text, size_t bytes,
                       bool is_first)
{
    const tokenizer *owner = self->self;
    size_t at = 0, taken = 0, begin, end;
    if (bytes == 0)
        return 0;
    if (level == 1)
        TRY(toki_normalize(owner, self->worker, text, bytes, &text, &bytes));
    while (true) {
        const toki_added_token *token =
            toki_added_next(owner, &owner->added[level], text, bytes, at, taken, &begin, &end, &at);
        size_t stop = token ? begin : bytes;
        bool begins = is_first && taken == 0;
        if (taken < stop)
            TRY(level == 0 ? encode_part(self, 1, text + taken, stop - taken, begins)
                           : encode_plain(self, text + taken, stop - taken, begins));
        if (!token)
            return 0;
        TRY(toki_list_add(self->out, token->id));
        taken = end;
    }
}

int toki_encode(const tokenizer *self, toki_worker *worker, const char *text, size_t bytes,
                bool plain_text, token_list *out)
{
    encoding state = {.self = self, .worker = worker, .out = out};
    TRY(toki_text_valid(text, bytes, &worker->utf8, &text, &bytes));
    if (!plain_text)
        return encode_part(&state, 0, text, bytes, true);
    TRY(toki_normalize(self, worker, text, bytes, &text, &bytes));
    return encode_plain(&state, text, bytes, true);
}
