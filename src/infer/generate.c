/* Text from a trained model, token by token:
 *
 *   prompt ─► tokens ─► calls of up to a chunk ─► cache of keys and values, last logits ─┐
 *                                                                                        v
 *          text ◄─ bytes of the token ◄─────────────────────────────────────────── sampling
 *                         │                                                              ^
 *                         └─► a call with this one token ─► cache, logits ───────────────┘
 *
 * Both kinds of call run the one EVAL program. Its forward ops use the model for chunks or the one
 * for single tokens (setup->net, setup->single). Parameters that do not rest on the device stream
 * through it in each call. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "infer/infer_internal.h"
#include "text/chat.h"

enum {
    CHUNK_MOST = 256, /* tokens of a prompt in one call: products are near their best speed */
    FITS_STEPS = 12,  /* steps of the search for the longest context */
    CHAT_ENDS = 9,    /* tokens that end an answer in one form or another */
};

struct generator {
    const struct infer_generate_options *asked;
    struct infer_generate_result result;
    infer_model from;
    const tokenizer *words;
    int32_t ends[CHAT_ENDS]; /* tokens that end an answer in a chat; -1: none */
    token_list ids;          /* the prompt and the generated tokens */
    uint64_t kept;           /* positions in the cache: the last ids before the unread ones */
    uint64_t unread;         /* the last ids, which are not in the cache yet */
    uint64_t context;
    stop_text shown;
    float *logits;   /* [V] the engine's */
    uint32_t *order; /* [V] */
};
typedef struct generator generator;

/* ---- a text that ends the answer ---- */

int stop_text_init(stop_text *self, const char *stop,
                   int (*show)(void *user, const char *bytes, size_t count), void *user)
{
    *self = (stop_text){.stop = stop, .show = show, .user = user};
    self->stop_bytes = stop ? strlen(stop) : 0;
    if (self->stop_bytes <= STOP_TEXT_MAX)
        return 0;
    return err_set(ERR_USAGE, "the text to stop at has %zu bytes, more than %d", self->stop_bytes,
                   STOP_TEXT_MAX);
}

static int show_bytes(stop_text *self, const char *bytes, size_t count)
{
    return count ? self->show(self->user, bytes, count) : 0;
}

/* Adds one byte. The held bytes are always a beginning of the stop text. After the new byte, the
 * longest end of them that still is such a beginning is held, and the bytes before it are shown. */
static int add_byte(stop_text *self, char byte)
{
    size_t known = self->held_bytes;
    self->held[known++] = byte;
    size_t dropped = 0;
    while (memcmp(self->held + dropped, self->stop, known - dropped) != 0)
        dropped++;
    TRY(show_bytes(self, self->held, dropped));
    self->held_bytes = known - dropped;
    memmove(self->held, self->held + dropped, self->held_bytes);
    self->is_met = self->held_bytes == self->stop_bytes;
    return 0;
}

int stop_text_add(stop_text *self, const char *bytes, size_t count)
{
    if (self->stop_bytes == 0)
        return show_bytes(self, bytes, count);
    for (size_t i = 0; i < count && !self->is_met; i++)
        TRY(add_byte(self, bytes[i]));
    return 0;
}

int stop_text_end(stop_text *self)
{
    size_t count = self->is_met ? 0 : self->held_bytes;
    self->held_bytes = 0;
    return show_bytes(self, self->held, count);
}

/* ---- the prompt ---- */

static int check_ids(const generator *self)
{
    uint64_t vocab = self->from.asked->model.vocab_size;
    for (uint64_t i = 0; i < self->ids.count; i++)
        if (self->ids.ids[i] < 0 || (uint64_t)self->ids.ids[i] >= vocab)
            return err_set(ERR_INPUT,
                           "the tokenizer gives token %d, and the model has %" PRIu64
                           ": is it the model's tokenizer?",
                           self->ids.ids[i], vocab);
    return 0;
}

/* Encodes the prompt as a user's message in the format of the model's conversations (text/chat.h),
 * followed by the beginning of an answer. Finds the tokens that end an answer in such a format. */
static int read_chat(generator *self)
{
    const struct infer_generate_options *asked = self->asked;
    const chat_message messages[] = {
        {"system", asked->system, asked->system ? strlen(asked->system) : 0, NULL, false},
        {"user", asked->prompt, asked->prompt_bytes, NULL, false},
    };
    uint32_t first = asked->system ? 0 : 1;
    chat_text text = {.bytes = NULL};
    chat_form *form = mem_alloc(1, sizeof *form, "form of a conversation");
    int rc = form ? chat_form_find(self->from.asked->data.chat_template, self->from.words_name,
                                   self->words, form)
                  : -ENOMEM;
    if (rc == 0)
        rc = chat_render(form, messages + first, 2 - first, true, &text);
    const tokenize_options options = {.adds_special = form && form->is_text};
    if (rc == 0)
        rc = tokenizer_encode(self->words, text.bytes, text.length, &options, &self->ids);
    static const char *const ends[CHAT_ENDS] = {
        "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>",        "</s>",
        "<|end|>",    "<|user|>",   "<end_of_turn>",   "<|END_OF_TURN_TOKEN|>"};
    for (int i = 0; i < CHAT_ENDS; i++)
        self->ends[i] = tokenizer_find(self->words, ends[i]);
    chat_text_fini(&text);
    mem_free(form);
    return rc;
}

/* True if the token ends the model's answer. */
static bool is_end_token(const generator *self, int32_t token)
{
    bool is_end = token == tokenizer_end_id(self->words);
    for (int i = 0; self->asked->is_chat && i < CHAT_ENDS; i++)
        is_end = is_end || token == self->ends[i];
    return is_end && !self->asked->ignores_end;
}

static int read_prompt(generator *self)
{
    const struct infer_generate_options *asked = self->asked;
    const tokenize_options options = {.adds_special = true};
    TRY(infer_model_tokenizer(&self->from, &self->words));
    if (asked->is_chat)
        TRY(read_chat(self));
    else
        TRY(tokenizer_encode(self->words, asked->prompt, asked->prompt_bytes, &options,
                             &self->ids));
    if (self->ids.count == 0)
        return err_set(ERR_USAGE, "the prompt is empty: give at least one byte to continue");
    self->result.prompt_tokens = self->ids.count;
    return check_ids(self);
}

/* Reserves memory for the generated tokens, so that no token waits for memory. */
static int reserve_ids(generator *self)
{
    uint64_t all = self->ids.count + self->asked->token_count;
    int32_t *ids = mem_resize(self->ids.ids, all, sizeof *ids, "tokens of a text");
    if (!ids)
        return -ENOMEM;
    self->ids.ids = ids;
    self->ids.capacity = all;
    return 0;
}

/* ---- start ---- */

static model_window window_of(const generator *self, uint64_t context)
{
    /* the last generated token is not read */
    bool slides = self->ids.count + self->asked->token_count - 1 > context;
    uint64_t read = slides ? context : size_min(self->ids.count, context);
    return (model_window){.tokens = size_min(read, CHUNK_MOST), .cache_positions = context};
}

static bool fits(const generator *self, uint64_t context)
{
    const struct setup_options options = {.only_eval = true,
                                          .params_alone = true,
                                          .only_fits = true,
                                          .window = window_of(self, context)};
    struct setup *setup;
    int rc = setup_create(self->from.asked, &options, &setup);
    if (rc == 0)
        setup_destroy(setup);
    return rc == 0;
}

/* Returns the error, with the longest context that fits added, to a part in 2^FITS_STEPS; or with
 * the remark that none fits. */
static int advise_context(const generator *self, int refused)
{
    err_record first;
    err_save(&first, refused);
    enum log_level level = log_get_level();
    log_set_level(LOG_QUIET);
    uint64_t low = fits(self, 1) ? 1 : 0, high = self->context;
    for (int step = 0; low > 0 && high - low > 1 && step < FITS_STEPS; step++) {
        uint64_t middle = low + (high - low) / 2;
        if (fits(self, middle))
            low = middle;
        else
            high = middle;
    }
    log_set_level(level);
    if (low == 0)
        return err_set(refused, "%s; no shorter --context makes it fit", first.text);
    return err_set(refused,
                   "%s; this is for keys and values of %" PRIu64 " positions: a context of %" PRIu64
                   " fits (--context %" PRIu64 ")",
                   first.text, self->context, low, low);
}

static int choose_context(generator *self)
{
    const struct infer_generate_options *asked = self->asked;
    uint64_t wanted = size_max(asked->context, self->ids.count + asked->token_count);
    TRY(infer_model_lengthen(&self->from, asked->set, asked->set_count, wanted));
    uint64_t most = self->from.asked->model.seq_length;
    if (asked->context > most)
        return err_set(ERR_USAGE,
                       "a context of %" PRIu64
                       " positions was asked for, but the model has %" PRIu64 " (model.seq_length)",
                       asked->context, most);
    if (asked->context)
        most = asked->context;
    /* The last generated token is not read. */
    self->context = size_min(self->ids.count + asked->token_count - 1, most);
    self->result.context = self->context;
    if (self->ids.count > self->context)
        log_warn("the prompt has %zu tokens: the model sees the last %" PRIu64 " of them",
                 self->ids.count, self->context);
    return 0;
}

static int check_family(const generator *self)
{
    enum model_family family = self->from.asked->model.family;
    if (!model_is_bidirectional(family))
        return 0;
    return err_set(ERR_USAGE,
                   "%s: a model of the %s family fills in masked tokens and cannot continue a "
                   "text: sluice eval gives its loss, and sluice export its weights",
                   self->from.path, model_family_name(family));
}

static int start(generator *self)
{
    const struct infer_generate_options *asked = self->asked;
    TRY(infer_model_begin(&self->from, asked->run_dir, asked->set, asked->set_count));
    TRY(check_family(self));
    TRY(read_prompt(self));
    TRY(reserve_ids(self));
    TRY(choose_context(self));
    self->from.asked->micro_batch = 1;
    const model_window window = window_of(self, self->context);
    int rc = infer_model_start(&self->from, &window, asked->stop);
    if (rc == ERR_NO_FIT && !self->from.engine)
        return advise_context(self, rc);
    TRY(rc);
    uint64_t vocab = self->from.setup->net->spec.vocab_size;
    void *logits;
    TRY(engine_result_memory(self->from.engine, vocab * sizeof(float), &logits));
    self->logits = self->from.engine->logits = logits;
    self->order = mem_alloc(vocab, sizeof *self->order, "order of tokens");
    self->unread = size_min(self->ids.count, self->context);
    return self->order ? 0 : -ENOMEM;
}

/* ---- calls ---- */

/* Runs the next `count` unread tokens, into the cache. Computes the logits of the last one if they
 * are wanted. */
static int call(generator *self, uint64_t count, bool wants_logits)
{
    struct engine *engine = self->from.engine;
    const struct setup *setup = self->from.setup;
    int32_t *tokens = (int32_t *)(void *)engine_home(engine, setup->set.homes.tokens_host);
    memcpy(tokens, self->ids.ids + self->ids.count - self->unread, count * sizeof *tokens);
    engine->is_single = count == 1;
    engine->position = self->kept;
    engine->count = count;
    engine->logits_row = wants_logits ? (int64_t)count - 1 : ENGINE_LOGITS_NONE;
    TRY(engine_run(engine, PROGRAM_EVAL, 0, NULL));
    if (wants_logits)
        model_cap_logits(setup->net, self->logits);
    self->kept += count;
    self->unread -= count;
    return 0;
}

static bool is_stopped(const generator *self)
{
    return self->asked->stop && *self->asked->stop;
}

/* Runs all unread tokens, in chunks. */
static int read_all(generator *self)
{
    uint64_t chunk = self->from.setup->net->tokens;
    while (self->unread > 0) {
        uint64_t count = size_min(self->unread, chunk);
        TRY(call(self, count, count == self->unread));
        if (is_stopped(self))
            return err_set(ERR_STOPPED, "stopped on request");
    }
    return 0;
}

/* Called when the cache is full. It starts again with the later half of what the model saw. */
static int slide(generator *self)
{
    self->result.slides++;
    self->kept = 0;
    self->unread = size_max(self->context / 2, 1);
    return read_all(self);
}

/* ---- text ---- */

static int show(void *user, const char *bytes, size_t count)
{
    const struct infer_generate_options *asked = ((generator *)user)->asked;
    return asked->on_token(asked->user, bytes, count);
}

static void tell_id(const generator *self, int32_t id, bool is_prompt)
{
    if (self->asked->on_id)
        self->asked->on_id(self->asked->user, id, is_prompt);
}

/* Draws a token and shows it. *is_end is true if the text has ended. */
static int next_token(generator *self, uint64_t idx, bool *is_end)
{
    const struct infer_generate_options *asked = self->asked;
    const sampling how = {.temperature = asked->temperature,
                          .top_k = asked->top_k,
                          .top_p = asked->top_p > 0 ? asked->top_p : 1,
                          .seed = asked->seed};
    uint64_t token;
    TRY(sampling_draw(&how, self->logits, self->from.setup->net->spec.vocab_size, idx, self->order,
                      &token));
    self->ids.ids[self->ids.count++] = (int32_t)token;
    self->unread = 1;
    self->result.tokens++;
    tell_id(self, (int32_t)token, false);
    *is_end = is_end_token(self, (int32_t)token);
    if (*is_end) {
        self->result.ended = GENERATE_END;
        return 0;
    }
    size_t bytes;
    const char *text =
        tokenizer_token_bytes(self->words, (int32_t)token, !asked->ignores_end, &bytes);
    TRY(stop_text_add(&self->shown, text, bytes));
    *is_end = self->shown.is_met;
    if (*is_end)
        self->result.ended = GENERATE_TEXT;
    return 0;
}

/* Notes what has moved since the lanes had done `before`. */
static void note_bytes(generator *self, const metrics_lane before[LANE_COUNT])
{
    const metrics_lane *now = self->from.engine->totals;
    self->result.read_bytes = now[LANE_READ].bytes - before[LANE_READ].bytes;
    self->result.copied_bytes = now[LANE_H2D].bytes - before[LANE_H2D].bytes;
    self->result.spared_bytes = now[LANE_H2D].spared_bytes - before[LANE_H2D].spared_bytes;
}

static int generate_all(generator *self)
{
    metrics_lane before[LANE_COUNT];
    const struct infer_generate_options *asked = self->asked;
    bool is_end = false;
    if (asked->prompt_bytes == 0)
        return err_set(ERR_USAGE, "the prompt is empty: give at least one byte to continue");
    TRY(stop_text_init(&self->shown, asked->stop_text, show, self));
    TRY(start(self));
    for (uint64_t i = 0; i < self->ids.count; i++)
        tell_id(self, self->ids.ids[i], true);
    if (!asked->is_chat)
        TRY(asked->on_token(asked->user, asked->prompt, asked->prompt_bytes));
    uint64_t begin_ns = clock_ns();
    TRY(read_all(self));
    self->result.prefill_seconds = (double)(clock_ns() - begin_ns) * 1e-9;
    begin_ns = clock_ns();
    memcpy(before, self->from.engine->totals, sizeof before);
    for (uint64_t i = 0; i < asked->token_count && !is_end; i++) {
        if (i > 0)
            TRY(self->kept == self->context ? slide(self) : call(self, 1, true));
        TRY(next_token(self, i, &is_end));
        self->result.decode_seconds = (double)(clock_ns() - begin_ns) * 1e-9;
        note_bytes(self, before);
        if (is_stopped(self) && !is_end && i + 1 < asked->token_count)
            return err_set(ERR_STOPPED, "stopped on request");
    }
    return stop_text_end(&self->shown);
}

int infer_generate(const struct infer_generate_options *options)
{
    generator *self = mem_alloc(1, sizeof *self, "generator");
    if (!self)
        return -ENOMEM;
    self->asked = options;
    int rc = generate_all(self);
    err_record first;
    err_save(&first, rc);
    if (rc == ERR_STOPPED)
        self->result.ended = GENERATE_STOPPED;
    if (options->result)
        *options->result = self->result;
    token_list_fini(&self->ids);
    mem_free(self->order);
    infer_model_end(&self->from);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : rc;
}
