/* The loss of a trained model on files:
 *
 *   files ─► tokens (of text: by the model's tokenizer) ─► windows (infer_internal.h) ─► EVAL
 *         ─► losses ─► sums
 *
 * Windows fill micro-batches. The last micro-batch is filled up with padding, whose targets do not
 * count. The sum is in double, in the order of the text. One process. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "infer/infer_internal.h"

struct evaluator {
    const struct infer_evaluate_options *asked;
    struct infer_evaluate_result *result;
    infer_model from;
    eval_tokens source;
    masking mask; /* share 0: the model predicts the next token */
    eval_text text;
    uint64_t window_count;        /* windows to read */
    uint64_t done;                /* windows done */
    uint64_t tokens, tokens_done; /* tokens that the windows predict */
    uint64_t begin_ns;
};
typedef struct evaluator evaluator;

/* Chooses context, stride and micro-batch from the job, the options and the length of the text. */
static int choose_windows(evaluator *self, uint64_t token_count)
{
    const struct infer_evaluate_options *asked = self->asked;
    TRY(infer_model_lengthen(&self->from, asked->set, asked->set_count, asked->context));
    job *work = self->from.asked;
    uint64_t most = work->model.seq_length, context = asked->context ? asked->context : most;
    if (context > most)
        return err_set(ERR_USAGE,
                       "a context of %" PRIu64 " tokens was asked for, but the model has %" PRIu64
                       " (model.seq_length)",
                       context, most);
    if (asked->stride > context)
        return err_set(ERR_USAGE,
                       "a stride of %" PRIu64 " is longer than the context of %" PRIu64
                       " tokens: tokens in between would not be counted",
                       asked->stride, context);
    if (token_count < 2)
        return err_set(ERR_INPUT,
                       "the files have %" PRIu64 " tokens: a loss needs two, the one before and "
                       "the one that is predicted",
                       token_count);
    self->text = (eval_text){.token_count = token_count,
                             .window = size_min(context, token_count - 1),
                             .stride = asked->stride ? asked->stride : context};
    self->text.stride = size_min(self->text.stride, self->text.window);
    self->window_count = eval_window_count(&self->text);
    work->micro_batch = size_min(size_max(work->micro_batch, 1), self->window_count);
    if (asked->batches && asked->batches < self->window_count / work->micro_batch + 1)
        self->window_count = size_min(self->window_count, asked->batches * work->micro_batch);
    for (uint64_t w = 0; w < self->window_count; w++) {
        eval_window window = eval_window_at(&self->text, w);
        self->tokens += window.input_count - window.first_counted;
    }
    return 0;
}

/* Prepares the masking of tokens for a model that learns to fill them in. */
static int choose_masking(evaluator *self)
{
    const job *asked = self->from.asked;
    if (!model_is_bidirectional(asked->model.family))
        return 0;
    if (eval_tokens_have_marks(&self->source))
        return err_set(ERR_INPUT,
                       "the records have answers, but a model of the %s family fills in all "
                       "tokens: give plain text, or records with one text each",
                       model_family_name(asked->model.family));
    self->source.has_bytes = false; /* the masked tokens, which have losses, are few of the bytes */
    return masking_init(&self->mask, asked->data.masked, asked->model.vocab_size,
                        asked->data.mask_token, self->source.words);
}

/* Masks tokens of window number `idx`, whose inputs have been read. */
static int mask_window(evaluator *self, uint64_t idx, eval_window at, int32_t *in, int32_t *out,
                       int32_t *begins)
{
    if (self->source.is_separate)
        TRY(eval_tokens_separate(&self->source, at.begin, at.input_count, in, out, begins));
    else
        memset(begins, 0, at.input_count * sizeof *begins);
    masking_apply(&self->mask, MASKING_FIXED_SEED, idx, at.input_count, in, out);
    for (uint64_t i = 0; i < at.first_counted; i++)
        out[i] = -1;
    return 0;
}

/* Loads windows [done, done + micro_batch) into the host buffer. Returns how many there are, or an
 * error. */
static int load_batch(evaluator *self, uint64_t *count)
{
    const struct setup *setup = self->from.setup;
    uint64_t tokens = setup->net->tokens, rows = setup->net->micro_batch * tokens;
    int32_t *inputs =
        (int32_t *)(void *)engine_home(self->from.engine, setup->set.homes.tokens_host);
    int32_t *targets = inputs + rows, *begins = targets + rows;
    memset(inputs, 0, rows * sizeof *inputs);
    for (uint64_t i = 0; i < rows; i++) {
        targets[i] = -1;
        begins[i] = (int32_t)(i % tokens); /* padding looks only at itself */
    }
    /* Attention to both sides must not see the padding behind a short window. */
    self->from.engine->step.is_separate = self->source.is_separate || self->mask.share > 0;
    *count = size_min(setup->net->micro_batch, self->window_count - self->done);
    for (uint64_t w = 0; w < *count; w++) {
        eval_window at = eval_window_at(&self->text, self->done + w);
        int32_t *in = inputs + w * tokens, *out = targets + w * tokens;
        TRY(eval_tokens_read(&self->source, at.begin, at.input_count, in));
        uint64_t counted = at.input_count - at.first_counted;
        if (self->mask.share > 0) {
            TRY(mask_window(self, self->done + w, at, in, out, begins + w * tokens));
            continue;
        }
        TRY(eval_tokens_targets(&self->source, at.begin + at.first_counted + 1, counted,
                                out + at.first_counted));
        if (self->source.is_separate)
            TRY(eval_tokens_separate(&self->source, at.begin, at.input_count, in, out,
                                     begins + w * tokens));
        self->result->text_bytes +=
            eval_tokens_bytes(&self->source, out + at.first_counted, counted);
    }
    return 0;
}

static int sum_batch(evaluator *self, uint64_t count)
{
    const struct setup *setup = self->from.setup;
    uint64_t tokens = setup->net->tokens;
    const float *losses =
        (const float *)(const void *)engine_home(self->from.engine, setup->set.homes.losses_host);
    const int32_t *targets = (const int32_t *)(const void *)engine_home(
                                 self->from.engine, setup->set.homes.tokens_host) +
                             setup->net->micro_batch * tokens;
    for (uint64_t w = 0; w < count; w++) {
        eval_window at = eval_window_at(&self->text, self->done + w);
        for (uint64_t i = w * tokens + at.first_counted; i < w * tokens + at.input_count; i++) {
            self->result->nats += targets[i] < 0 ? 0 : (double)losses[i];
            self->result->tokens += targets[i] >= 0;
        }
        self->tokens_done += at.input_count - at.first_counted;
    }
    if (!isfinite(self->result->nats))
        return err_set(ERR_DIVERGED,
                       "the loss is not finite within windows %" PRIu64 " to %" PRIu64
                       " (from token %" PRIu64 " on)",
                       self->done, self->done + count - 1,
                       eval_window_at(&self->text, self->done).begin);
    self->done += count;
    return 0;
}

static void tell(const evaluator *self)
{
    const struct infer_evaluate_result *result = self->result;
    struct infer_evaluate_progress progress = {
        .tokens_done = self->tokens_done,
        .tokens = self->tokens,
        .loss = result->tokens ? result->nats / (double)result->tokens : 0,
        .seconds = (double)(clock_ns() - self->begin_ns) * 1e-9,
    };
    if (self->asked->on_progress)
        self->asked->on_progress(self->asked->user, &progress);
}

static int run_all(evaluator *self)
{
    const struct infer_evaluate_options *asked = self->asked;
    TRY(infer_model_begin(&self->from, asked->path, asked->set, asked->set_count));
    TRY(eval_tokens_open(&self->source, &self->from, asked));
    TRY(choose_masking(self));
    TRY(choose_windows(self, self->source.count));
    const model_window window = {.tokens = self->text.window};
    TRY(infer_model_start(&self->from, &window, asked->stop));
    self->begin_ns = clock_ns();
    while (self->done < self->window_count) {
        uint64_t count;
        TRY(load_batch(self, &count));
        TRY(engine_run(self->from.engine, PROGRAM_EVAL, 0, NULL));
        TRY(sum_batch(self, count));
        tell(self);
        if (asked->stop && *asked->stop && self->done < self->window_count)
            return err_set(ERR_STOPPED, "stopped on request");
    }
    if (self->result->tokens == 0 && self->mask.share > 0)
        return err_set(ERR_INPUT, "none of the tokens was masked: give more text, or a larger "
                                  "data.masked");
    if (self->result->tokens == 0)
        return err_set(ERR_INPUT, "none of the tokens that were read counts: is there an answer in "
                                  "these conversations?");
    return 0;
}

static void finish(const evaluator *self)
{
    struct infer_evaluate_result *result = self->result;
    result->loss = result->nats / (double)result->tokens;
    result->perplexity = eval_perplexity(result->loss);
    bool has_bytes = self->source.has_bytes && result->text_bytes > 0;
    if (!has_bytes)
        result->text_bytes = 0;
    result->bits_per_byte =
        has_bytes ? eval_bits_per_byte(result->nats, result->text_bytes) : (double)NAN;
    result->context = self->text.window;
    result->stride = self->text.stride;
    result->windows = self->done;
    result->seconds = (double)(clock_ns() - self->begin_ns) * 1e-9;
}

int infer_evaluate(const struct infer_evaluate_options *options,
                   struct infer_evaluate_result *result)
{
    memset(result, 0, sizeof *result);
    evaluator *self = mem_alloc(1, sizeof *self, "evaluator");
    if (!self)
        return -ENOMEM;
    self->asked = options;
    self->result = result;
    int rc = run_all(self);
    err_record first;
    err_save(&first, rc);
    if (rc == 0)
        finish(self);
    eval_tokens_close(&self->source);
    infer_model_end(&self->from);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : rc;
}
