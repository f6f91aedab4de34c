/* Encodes a text that is read piece by piece, in memory that does not grow with it. The ids are
 * those of tokenizer_encode. See tokenizer.h.
 *
 * The text goes through layers: added tokens, normal form, normalized added tokens, stages, words.
 * Each has a buffer of the same size. A layer works when its buffer is full or when a piece of
 * text ends, gives what is decided to the next layer, and keeps the rest:
 *
 *   added tokens   where no token can begin any more
 *   normal form    up to the last character that begins a new cluster
 *   stage          matches that do not depend on what follows: PCRE2's partial matching reports the
 *                  others. A match that fills the buffer is long; toki_form_of_run says where it
 *                  ends.
 *   word           the front of the word (toki_word_front)
 *
 * Where the end of a long match depends on text far ahead ("last" in toki_form_of_run), the stage
 * scans: it takes the rest of the run, gives nothing to the next layer, and notes the answer. Then
 * all layers go back to their state before the last read, and the same text is read again. The
 * state of all layers is one block of memory, so that a copy of it is a place to go back to. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "text/tokenizer_internal.h"

enum {
    CHARACTER = 4, /* most bytes of a character */
    LAYERS_MAX = TOKI_STAGES_MAX + 4,
    ANSWERS_MAX = 16,
    GO_BACK = -EAGAIN, /* a scan has its answer */
    PATTERN_BYTES = 512,
    TAIL_CHARACTERS = 3, /* of a tail, at most */
};

/* The result of a scan. */
struct answer {
    uint64_t total;   /* bytes of the run with its beginning */
    uint64_t through; /* bytes up to its last character of `last`; 0: there is none */
    bool goes_on;     /* a character of `then` follows */
};
typedef struct answer answer;

enum layer_kind { ADDED_TOKENS, NORMAL_FORM, STAGE, WORD };
enum part { NO_PART, GAP, MATCH };
enum phase {
    NO_RUN,
    FIXED,  /* `left` more bytes belong to the match; then comes the phase `next` */
    REPEAT, /* in the run; its end is not known */
    THEN,
    TAIL,
};

struct layer {
    size_t count; /* bytes in the buffer */
    /* a stage: */
    enum part open; /* the part that the next layer has the beginning of */
    bool has_begun; /* a piece has begun, for a stage that adds a space */
    enum phase phase, next;
    uint32_t form; /* index of the known form, while phase is not NO_RUN */
    uint64_t left;
    /* a word: */
    bool has_front; /* its first ids are out */
};
typedef struct layer layer;

/* The state that is copied. The buffers of the layers follow it. */
struct flow {
    uint64_t offset; /* of the next byte to be read */
    utf8_stream utf8;
    uint32_t scanning; /* the layer that scans, plus 1; 0: none */
    answer scan;       /* of this scan, so far */
    uint32_t asked;    /* answers used since the copy was made */
    layer layers[LAYERS_MAX];
};
typedef struct flow flow;

struct run_patterns {
    pcre2_code *in_repeat, *in_then; /* the whole buffer is in the run, or in `then` */
    pcre2_code *repeat, *then;       /* as many as there are, also none */
    pcre2_code *then_one, *last, *tail;
};
typedef struct run_patterns run_patterns;

struct stream {
    const tokenizer *self;
    toki_worker *worker;
    flow *flow, *copy; /* each with its buffers; flow_bytes */
    size_t flow_bytes;
    uint32_t layer_count;
    size_t capacity[LAYERS_MAX], buffer_at[LAYERS_MAX]; /* after the flow */
    enum layer_kind kind[LAYERS_MAX];
    uint32_t index[LAYERS_MAX];                        /* of the stage, or of the added tokens */
    toki_bytes shadows[LAYERS_MAX];                    /* of a stage's buffer */
    run_patterns patterns[LAYERS_MAX][TOKI_FORMS_MAX]; /* of a stage's known forms */
    answer answers[ANSWERS_MAX];
    uint32_t answer_count;
    char *piece, *utf8; /* what was read, and that as valid UTF-8 */
    size_t piece_bytes;
    token_list out;
};
typedef struct stream stream;

static int push(stream *self, uint32_t idx, const char *text, size_t bytes) MUST_CHECK;
static int end(stream *self, uint32_t idx) MUST_CHECK;

static char *buffer_of(const stream *self, uint32_t idx)
{
    return (char *)(self->flow + 1) + self->buffer_at[idx];
}

static void drop(stream *self, uint32_t idx, size_t bytes)
{
    layer *at = &self->flow->layers[idx];
    char *buffer = buffer_of(self, idx);
    at->count -= bytes;
    memmove(buffer, buffer + bytes, at->count);
}

/* ---- added tokens, normal form, words ---- */

static int added_work(stream *self, uint32_t idx, bool is_end)
{
    const tokenizer *owner = self->self;
    const toki_added *added = &owner->added[self->index[idx]];
    layer *at = &self->flow->layers[idx];
    const char *text = buffer_of(self, idx);
    size_t taken = 0, from = 0, begin, stop;
    /* a token that begins before `decided` ends in the buffer */
    size_t decided = at->count - (is_end ? 0 : size_min(added->longest, at->count));
    while (decided < at->count && decided && utf8_is_inner(text[decided]))
        decided--;
    while (taken < decided) {
        const toki_added_token *token =
            toki_added_next(owner, added, text, at->count, from, taken, &begin, &stop, &from);
        if (!token || begin >= decided) {
            TRY(push(self, idx + 1, text + taken, decided - taken));
            taken = decided;
            break;
        }
        if (begin > taken)
            TRY(push(self, idx + 1, text + taken, begin - taken));
        TRY(end(self, idx + 1));
        TRY(toki_list_add(&self->out, token->id));
        taken = stop;
    }
    drop(self, idx, taken);
    return 0;
}

static int normal_work(stream *self, uint32_t idx, bool is_end)
{
    const tokenizer *owner = self->self;
    layer *at = &self->flow->layers[idx];
    const char *buffer = buffer_of(self, idx), *text;
    size_t bytes, step, cut = at->count;
    if (cut == 0)
        return 0;
    while (!is_end && cut > 0) {
        cut = utf8_before(buffer, cut);
        uint32_t character = toki_decode(buffer + cut, &step);
        if (owner->steps[0].steady[character / 8] & (1u << (character % 8)))
            break;
    }
    if (cut == 0)
        return err_set(ERR_INPUT,
                       "%zu bytes of combining characters without a letter between them: the "
                       "tokenizer's normal form would take them as one character; cut the text",
                       at->count);
    TRY(toki_text_normal(owner->steps[0].form, owner->steps[0].steady, buffer, cut,
                         &self->worker->normal[0], &text, &bytes));
    TRY(push(self, idx + 1, text, bytes));
    drop(self, idx, cut);
    return 0;
}

static int word_work(stream *self, uint32_t idx, bool is_end)
{
    layer *at = &self->flow->layers[idx];
    const char *text = buffer_of(self, idx);
    size_t done = at->count;
    if (is_end && at->has_front)
        TRY(toki_word_rest(self->self, self->worker, text, at->count, &self->out));
    else if (is_end)
        TRY(toki_word(self->self, self->worker, text, at->count, &self->out));
    else
        TRY(toki_word_front(self->self, self->worker, text, at->count, &self->out, &done));
    at->has_front = true;
    drop(self, idx, done);
    return 0;
}

/* ---- stages ---- */

/* Gives a part of the stage's buffer to the next layer. A match that is_new ends the part before
 * it. */
static int give_part(stream *self, uint32_t idx, enum part part, bool is_new, const char *text,
                     size_t bytes)
{
    layer *at = &self->flow->layers[idx];
    const toki_stage *stage = &self->self->stages[self->index[idx]];
    bool joins = at->open == part && (part == GAP || !is_new || stage->behavior == TOKI_CONTIGUOUS);
    if (bytes == 0)
        return 0;
    if (at->open != NO_PART && !joins)
        TRY(end(self, idx + 1));
    at->open = part;
    if (stage->behavior == TOKI_REMOVED && (part == MATCH) != stage->invert)
        return 0;
    return push(self, idx + 1, text, bytes);
}

/* Matches a pattern at the beginning of a text. Returns the bytes, or -1 if it does not match. */
static int64_t match_at(stream *self, const pcre2_code *code, const char *text, size_t bytes)
{
    int rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, 0, PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED,
                         self->worker->match, self->worker->context);
    return rc < 0 ? -1 : (int64_t)pcre2_get_ovector_pointer(self->worker->match)[1];
}

static const run_patterns *patterns_of(const stream *self, uint32_t idx)
{
    return &self->patterns[idx][self->flow->layers[idx].form];
}

static const toki_form_of_run *form_of(const stream *self, uint32_t idx)
{
    const toki_stage *stage = &self->self->stages[self->index[idx]];
    return &stage->known->forms[self->flow->layers[idx].form];
}

/* Adds a part of the run to the scan. If the run ends after it, `rest` follows. */
static int scan_part(stream *self, uint32_t idx, const char *shadow, size_t bytes, const char *rest,
                     size_t rest_bytes, bool is_over)
{
    const run_patterns *patterns = patterns_of(self, idx);
    flow *at = self->flow;
    int64_t last = match_at(self, patterns->last, shadow, bytes);
    if (last > 0)
        at->scan.through = at->scan.total + (uint64_t)last;
    at->scan.total += bytes;
    if (!is_over)
        return 0;
    at->scan.goes_on = patterns->then_one && rest_bytes > 0 &&
                       match_at(self, patterns->then_one, rest, rest_bytes) > 0;
    if (self->answer_count == ANSWERS_MAX)
        return err_set(ERR_INTERNAL, "a stream of text scans too often");
    self->answers[self->answer_count++] = at->scan;
    return GO_BACK;
}

/* The form of a match whose first `bytes` bytes are in the buffer; none of them is of its tail.
 * Returns REPEAT or THEN, for the last byte, or NO_RUN if no form fits. */
static enum phase find_form(stream *self, uint32_t idx, const char *shadow, size_t bytes)
{
    layer *at = &self->flow->layers[idx];
    const toki_form_of_run *forms = self->self->stages[self->index[idx]].known->forms;
    for (at->form = 0; at->form < TOKI_FORMS_MAX && forms[at->form].repeat; at->form++) {
        const run_patterns *patterns = patterns_of(self, idx);
        if (bytes < at->count && !patterns->tail)
            continue;
        if (match_at(self, patterns->in_repeat, shadow, bytes) == (int64_t)bytes)
            return REPEAT;
        if (patterns->in_then && match_at(self, patterns->in_then, shadow, bytes) == (int64_t)bytes)
            return THEN;
    }
    return NO_RUN;
}

/* The buffer is full and lies within one match. *taken: bytes that a scan takes. */
static int begin_run(stream *self, uint32_t idx, const char *shadow, size_t *taken)
{
    layer *at = &self->flow->layers[idx];
    size_t bytes = at->count;
    enum phase phase = find_form(self, idx, shadow, bytes);
    for (int i = 1; phase == NO_RUN && i < TAIL_CHARACTERS; i++) {
        bytes = utf8_before(shadow, bytes); /* the beginning of a tail */
        phase = find_form(self, idx, shadow, bytes);
    }
    if (phase == NO_RUN)
        return err_set(ERR_INTERNAL, "a match of %zu bytes has no form", at->count);
    const toki_form_of_run *form = form_of(self, idx);
    if (phase == REPEAT && form->last && self->flow->asked == self->answer_count) {
        self->flow->scanning = idx + 1;
        self->flow->scan = (answer){0};
        at->phase = REPEAT;
        *taken = bytes;
        return scan_part(self, idx, shadow, bytes, NULL, 0, false);
    }
    at->phase = FIXED;
    at->next = phase;
    at->left = form->gives_back ? utf8_before(shadow, bytes) : bytes;
    if (phase == THEN || !form->last)
        return 0;
    const answer *found = &self->answers[self->flow->asked++];
    if (found->goes_on || (found->through == 0 && !form->gives_back)) {
        at->next = found->goes_on ? THEN : TAIL;
        at->left = found->total;
    } else if (found->through > 0) {
        at->next = found->through == found->total ? TAIL : NO_RUN;
        at->left = found->through;
    }
    return 0;
}

/* One step within a long match. *taken: bytes of the buffer that it takes; `from` is the first of
 * those that are left. */
static int run_step(stream *self, uint32_t idx, bool is_end, const char *shadow, size_t from,
                    size_t *taken)
{
    layer *at = &self->flow->layers[idx];
    const run_patterns *patterns = patterns_of(self, idx);
    const toki_form_of_run *form = form_of(self, idx);
    size_t left = at->count - from, bytes = 0;
    shadow += from;
    *taken = 0;
    if (at->phase == REPEAT || at->phase == THEN) {
        bytes = (size_t)match_at(self, at->phase == REPEAT ? patterns->repeat : patterns->then,
                                 shadow, left);
        bool is_over = bytes < left || is_end;
        if (self->flow->scanning) {
            *taken = bytes;
            return scan_part(self, idx, shadow, bytes, shadow + bytes, left - bytes, is_over);
        }
        bool gives_back = at->phase == REPEAT && form->gives_back && (bytes < left || !is_end);
        if (gives_back && bytes > 0)
            bytes = utf8_before(shadow, bytes);
        if (is_over)
            at->phase = at->phase == REPEAT && form->then ? THEN : gives_back ? NO_RUN : TAIL;
    } else if (at->phase == FIXED) {
        bytes = (size_t)size_min(at->left, left);
        at->left -= bytes;
        if (at->left == 0)
            at->phase = at->next;
    } else if (!patterns->tail || left >= TOKI_TAIL_BYTES || is_end) {
        int64_t tail = patterns->tail ? match_at(self, patterns->tail, shadow, left) : 0;
        bytes = tail > 0 ? (size_t)tail : 0;
        at->phase = NO_RUN;
    }
    *taken = bytes;
    return give_part(self, idx, MATCH, at->open != MATCH, buffer_of(self, idx) + from, bytes);
}

/* Takes matches and gaps from `from` on. *taken as above. */
static int match_step(stream *self, uint32_t idx, bool is_end, const char *shadow, size_t from,
                      size_t *taken)
{
    layer *at = &self->flow->layers[idx];
    const toki_stage *stage = &self->self->stages[self->index[idx]];
    const char *buffer = buffer_of(self, idx);
    *taken = 0;
    pcre2_set_match_limit(self->worker->context, UINT32_MAX);
    uint32_t how = PCRE2_NO_UTF_CHECK | (is_end ? 0 : PCRE2_PARTIAL_HARD);
    int rc = pcre2_match(stage->code, (PCRE2_SPTR)shadow, at->count, from, how, self->worker->match,
                         self->worker->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(stage->code, (PCRE2_SPTR)shadow, at->count, from, how | PCRE2_NO_JIT,
                         self->worker->match, self->worker->context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH && rc != PCRE2_ERROR_PARTIAL)
        return toki_match_failed(rc, self->flow->offset);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(self->worker->match);
    size_t begin = rc == PCRE2_ERROR_NOMATCH ? at->count : places[0];
    size_t stop = rc >= 0 ? places[1] : begin;
    TRY(give_part(self, idx, GAP, true, buffer + from, begin - from));
    TRY(give_part(self, idx, MATCH, true, buffer + begin, stop - begin));
    *taken = stop - from;
    bool is_full = self->capacity[idx] - at->count < CHARACTER;
    if (rc == PCRE2_ERROR_PARTIAL && begin == 0 && is_full) {
        /* its part is a new one, also after another match */
        if (at->open != NO_PART && stage->behavior != TOKI_CONTIGUOUS) {
            TRY(end(self, idx + 1));
            at->open = NO_PART;
        }
        return begin_run(self, idx, shadow, taken);
    }
    return 0;
}

static int stage_work(stream *self, uint32_t idx, bool is_end)
{
    layer *at = &self->flow->layers[idx];
    const char *shadow;
    size_t from = 0, taken;
    enum phase before;
    TRY(toki_text_shadow(buffer_of(self, idx), at->count, &self->shadows[idx], &shadow));
    do {
        before = at->phase;
        TRY(before == NO_RUN ? match_step(self, idx, is_end, shadow, from, &taken)
                             : run_step(self, idx, is_end, shadow, from, &taken));
        from += taken;
    } while (at->phase != before || (taken > 0 && from < at->count));
    if (from > 0)
        drop(self, idx, from);
    return 0;
}

/* ---- layers ---- */

static bool adds_space(const stream *self, uint32_t idx)
{
    return self->kind[idx] == STAGE && self->self->stages[self->index[idx]].kind == TOKI_ADD_SPACE;
}

static int work(stream *self, uint32_t idx, bool is_end)
{
    static int (*const works[])(stream * self, uint32_t idx, bool is_end) = {
        [ADDED_TOKENS] = added_work,
        [NORMAL_FORM] = normal_work,
        [STAGE] = stage_work,
        [WORD] = word_work,
    };
    bool is_due = self->flow->layers[idx].count > 0 || is_end;
    return is_due ? works[self->kind[idx]](self, idx, is_end) : 0;
}

/* Takes whole characters. */
static int push(stream *self, uint32_t idx, const char *text, size_t bytes)
{
    layer *at = &self->flow->layers[idx];
    if (adds_space(self, idx)) {
        if (bytes > 0 && !at->has_begun && text[0] != ' ')
            TRY(push(self, idx + 1, " ", 1));
        at->has_begun |= bytes > 0;
        return push(self, idx + 1, text, bytes);
    }
    while (bytes > 0) {
        size_t part = size_min(bytes, self->capacity[idx] - at->count);
        while (part > 0 && part < bytes && utf8_is_inner(text[part]))
            part--;
        memcpy(buffer_of(self, idx) + at->count, text, part);
        at->count += part;
        text += part;
        bytes -= part;
        if (bytes > 0 || self->capacity[idx] - at->count < CHARACTER)
            TRY(work(self, idx, false));
    }
    return 0;
}

/* Ends a piece of text in this layer and in all layers after it. */
static int end(stream *self, uint32_t idx)
{
    layer *at = &self->flow->layers[idx];
    if (adds_space(self, idx)) {
        at->has_begun = false;
        return end(self, idx + 1);
    }
    TRY(work(self, idx, true));
    if (self->kind[idx] == WORD) {
        at->has_front = false;
        return 0;
    }
    at->open = NO_PART;
    return end(self, idx + 1);
}

/* ---- the stream ---- */

static void add_layer(stream *self, enum layer_kind kind, uint32_t index, size_t capacity)
{
    uint32_t idx = self->layer_count++;
    self->kind[idx] = kind;
    self->index[idx] = index;
    self->capacity[idx] = capacity;
    self->buffer_at[idx] = self->flow_bytes;
    self->flow_bytes += capacity;
}

static int compile_one(pcre2_code **out, const char *before, const char *repeat, const char *times,
                       const char *then)
{
    char text[PATTERN_BYTES];
    *out = NULL;
    if (!repeat)
        return 0;
    int length = snprintf(text, sizeof text, "(?s)%s%s%s%s%s", before, repeat, times, then,
                          then[0] ? "++" : "");
    assert(length < (int)sizeof text);
    return toki_pattern_fixed(text, out);
}

static int compile_forms(stream *self, uint32_t idx, const toki_form_of_run *forms)
{
    for (uint32_t i = 0; i < TOKI_FORMS_MAX && forms[i].repeat; i++) {
        const toki_form_of_run *form = &forms[i];
        run_patterns *out = &self->patterns[idx][i];
        TRY(compile_one(&out->in_repeat, form->begin, form->repeat, "++", ""));
        if (form->then) /* with `last`, a run may be empty */
            TRY(compile_one(&out->in_then, form->begin, form->repeat, form->last ? "*+" : "++",
                            form->then));
        TRY(compile_one(&out->repeat, "", form->repeat, "*+", ""));
        TRY(compile_one(&out->then, "", form->then, "*+", ""));
        TRY(compile_one(&out->then_one, "", form->then, "", ""));
        TRY(compile_one(&out->last, ".*", form->last, "", ""));
        TRY(compile_one(&out->tail, "", form->tail, "", ""));
    }
    return 0;
}

static int create(stream *self, bool plain_text)
{
    const tokenizer *owner = self->self;
    size_t longest = size_max(owner->added[0].longest, owner->added[1].longest);
    size_t capacity = size_max(owner->stream_window, 2 * (longest + CHARACTER));
    if (!plain_text && owner->added[0].count)
        add_layer(self, ADDED_TOKENS, 0, capacity);
    if (owner->step_count)
        add_layer(self, NORMAL_FORM, 0, capacity);
    if (!plain_text && owner->added[1].count)
        add_layer(self, ADDED_TOKENS, 1, capacity);
    for (uint32_t i = 0; i < owner->stage_count; i++) {
        if (owner->stages[i].known)
            TRY(compile_forms(self, self->layer_count, owner->stages[i].known->forms));
        add_layer(self, STAGE, i, capacity);
    }
    add_layer(self, WORD, 0, owner->word_window);
    self->piece_bytes = capacity / 2;
    self->flow_bytes += sizeof(flow);
    self->flow = mem_alloc(self->flow_bytes, 1, "stream of text");
    self->copy = mem_alloc(self->flow_bytes, 1, "stream of text");
    self->piece = mem_alloc(self->piece_bytes, 1, "stream of text");
    self->utf8 = mem_alloc(utf8_stream_room(self->piece_bytes), 1, "stream of text");
    return self->flow && self->copy && self->piece && self->utf8 ? 0 : -ENOMEM;
}

static void destroy(stream *self)
{
    for (uint32_t i = 0; i < LAYERS_MAX; i++) {
        mem_free(self->shadows[i].data);
        for (uint32_t form = 0; form < TOKI_FORMS_MAX; form++) {
            run_patterns *all = &self->patterns[i][form];
            pcre2_code *const codes[] = {all->in_repeat, all->in_then, all->repeat, all->then,
                                         all->then_one,  all->last,    all->tail};
            for (size_t c = 0; c < sizeof codes / sizeof codes[0]; c++)
                pcre2_code_free(codes[c]);
        }
    }
    mem_free(self->flow);
    mem_free(self->copy);
    mem_free(self->piece);
    mem_free(self->utf8);
    token_list_fini(&self->out);
    mem_free(self);
}

/* Gives the ids to the sink, and remembers this state as the one to go back to. */
static int settle(stream *self, const tokenize_sink *sink)
{
    if (self->out.count)
        TRY(sink->add(sink->user, self->out.ids, self->out.count));
    self->out.count = 0;
    self->answer_count = self->flow->asked = 0;
    memcpy(self->copy, self->flow, self->flow_bytes);
    return 0;
}

static int run(stream *self, const tokenize_source *source, const tokenize_sink *sink)
{
    bool has_gone_back = false;
    for (bool is_over = false; !is_over;) {
        if (!self->flow->scanning && !has_gone_back)
            TRY(settle(self, sink));
        int got = source->read(source->user, self->flow->offset, self->piece, self->piece_bytes);
        TRY(got);
        is_over = got == 0;
        self->flow->offset += (uint64_t)got;
        size_t bytes =
            is_over ? utf8_stream_end(&self->flow->utf8, self->utf8)
                    : utf8_stream_add(&self->flow->utf8, self->piece, (size_t)got, self->utf8);
        int rc = push(self, 0, self->utf8, bytes);
        if (rc == 0 && is_over)
            rc = end(self, 0);
        if (rc == GO_BACK && self->flow->scanning) {
            memcpy(self->flow, self->copy, self->flow_bytes);
            self->out.count = 0;
            is_over = false;
            has_gone_back = true;
            continue;
        }
        TRY(rc);
        has_gone_back = has_gone_back && self->flow->scanning;
    }
    return settle(self, sink);
}

int toki_stream(const tokenizer *self, toki_worker *worker, const tokenize_source *source,
                bool plain_text, const tokenize_sink *sink)
{
    stream *state = mem_alloc(1, sizeof *state, "stream of text");
    if (!state)
        return -ENOMEM;
    state->self = self;
    state->worker = worker;
    int rc = create(state, plain_text);
    if (rc == 0)
        rc = run(state, source, sink);
    destroy(state);
    return rc;
}
