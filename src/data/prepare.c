/* Converts text and JSON records to token files. See prepare.h.
 *
 *   file ── read ──► a batch: whole lines, or text up to a safe cut
 *        ──► pieces ── all threads encode ──► tokens, in order ──► sink
 *
 * The caller's thread reads and writes. In between, all threads encode the pieces of the batch.
 * A line that is longer than a batch, and text without a safe cut, go through prepare_long.c.
 *
 * Memory. A byte of a batch takes up to MEMORY_PER_BYTE: itself, its part of a JSON tree, and its
 * ids in two lists, which grow by doubling. Each thread has a worker of the tokenizer. */
#include "data/prepare.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <omp.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "data/data_internal.h"
#include "data/prepare_internal.h"
#include "data/token_file.h"

enum {
    PIECE_COUNT = 128,       /* of a batch */
    PIECE_BYTES = 128 << 10, /* of a piece; more if no cut is possible there */
    BATCH_BYTES = PIECE_COUNT * PIECE_BYTES,
    BATCH_BYTES_LEAST = 64 << 10,
    MEMORY_PER_BYTE = 16,
    WORKER_BYTES = 3 << 20,
    FILE_BYTES = 3 << 20, /* the buffers of the token file */
    FIXED_BYTES = TOKENIZE_STREAM_BYTES + FILE_BYTES,
};

#define REPORT_NS ((uint64_t)5 * 1000 * 1000 * 1000)

/* ---- cuts ---- */

/* True if whole lines are read: JSON records. False for text, also for a text in a record. */
static bool has_lines(const prepi_maker *self)
{
    return self->work->is_json && !self->record;
}

static bool is_cut(const prepi_maker *self, uint64_t at, uint64_t bytes)
{
    return tokenizer_cut_is_safe(self->options->words, self->text, bytes, at);
}

/* The first place in [at, end) where a piece may end, or `end`, which is always allowed. A line
 * ends after its newline. */
static uint64_t next_cut(const prepi_maker *self, uint64_t at, uint64_t end)
{
    if (at >= end)
        return end;
    if (has_lines(self)) {
        const char *newline = memchr(self->text + at, '\n', end - at);
        return newline ? (uint64_t)(newline - self->text) + 1 : end;
    }
    for (; self->can_cut && at + 1 < end; at++)
        if (is_cut(self, at, end))
            return at;
    return end;
}

/* The last place where the text read so far may end, or 0. */
static uint64_t last_cut(const prepi_maker *self)
{
    if (has_lines(self)) {
        const char *newline = memrchr(self->text, '\n', self->text_bytes);
        return newline ? (uint64_t)(newline - self->text) + 1 : 0;
    }
    for (uint64_t at = self->can_cut && self->text_bytes > 2 ? self->text_bytes - 2 : 0; at > 1;
         at--)
        if (is_cut(self, at, self->text_bytes))
            return at;
    return 0;
}

/* ---- reading ---- */

/* Text that must be in memory as a whole. */
static int grow_text(prepi_maker *self)
{
    const char *why = tokenizer_no_stream(self->options->words);
    uint64_t capacity = size_min(2 * self->capacity, self->capacity_most);
    if (self->capacity == self->capacity_most && has_lines(self))
        return err_set(ERR_INPUT,
                       "%s:%" PRIu64 ": the record has more than %" PRIu64
                       " bytes, which must be in memory at once%s%s: give a larger "
                       "tiers.host.budget, or cut it",
                       self->work->path, self->line, self->capacity, why ? ": the tokenizer " : "",
                       why ? why : "");
    if (self->capacity == self->capacity_most)
        return err_set(ERR_INPUT,
                       "%s:%" PRIu64 ": from this line on more than %" PRIu64
                       " bytes must be in memory at once: the tokenizer %s; give a larger "
                       "tiers.host.budget, or cut the file into smaller ones",
                       self->work->path, prepi_line(self), self->capacity, why);
    char *grown = mem_resize(self->text, capacity, 1, "text to be tokenized");
    if (!grown)
        return -ENOMEM;
    self->text = grown;
    self->capacity = capacity;
    return 0;
}

/* Reads until there is a batch. *bytes: its length. 0: the end, or, unless is_over, the buffer is
 * full of a part of a line or of text without a safe cut. */
static int read_batch(prepi_maker *self, uint64_t *bytes)
{
    bool needs_whole = has_lines(self) && self->work->kind != DATA_JSONL;
    needs_whole = needs_whole || tokenizer_no_stream(self->options->words);
    for (;;) {
        while (!self->is_over && self->text_bytes < self->capacity) {
            int64_t got =
                prepi_read(self, self->text_offset + self->text_bytes,
                           self->text + self->text_bytes, self->capacity - self->text_bytes);
            if (got < 0)
                return (int)got;
            self->text_bytes += (uint64_t)got;
            self->is_over = got == 0;
        }
        *bytes = self->is_over ? self->text_bytes : last_cut(self);
        if (self->is_over || *bytes > 0 || !needs_whole)
            return 0;
        TRY(grow_text(self));
    }
}

/* Cuts the first `bytes` bytes of the text into pieces. */
static void cut_batch(prepi_maker *self, uint64_t bytes)
{
    uint64_t piece_bytes = size_max(size_div_up(bytes, PIECE_COUNT), PIECE_BYTES);
    uint64_t from = 0;
    self->piece_count = 0;
    while (from < bytes) {
        bool is_last = self->piece_count + 1 == PIECE_COUNT;
        uint64_t to = is_last ? bytes : next_cut(self, from + piece_bytes, bytes);
        prepi_piece *piece = &self->pieces[self->piece_count++];
        piece->text = self->text + from;
        piece->bytes = to - from;
        piece->line = prepi_line(self);
        piece->is_record = self->record != NULL;
        piece->begins = self->text_offset + from == prepi_begin(self);
        piece->ends = self->is_over && to == self->text_bytes;
        for (const char *at = piece->text, *end = at + piece->bytes;
             (at = memchr(at, '\n', (size_t)(end - at))); at++)
            self->line++;
        from = to;
    }
}

static void drop_batch(prepi_maker *self, uint64_t bytes)
{
    memmove(self->text, self->text + bytes, self->text_bytes - bytes);
    self->text_bytes -= bytes;
    self->text_offset += bytes;
}

/* ---- writing ---- */

int prepi_write(prepi_maker *self, const prepi_piece *piece)
{
    size_t done = 0;
    if (piece->failed.code < 0)
        return err_restore(&piece->failed);
    for (size_t e = 0; e < piece->end_count; e++) {
        TRY(self->sink->add(self->sink->user, piece->tokens + done, piece->ends_at[e] - done));
        TRY(self->sink->end_document(self->sink->user));
        done = piece->ends_at[e];
    }
    TRY(self->sink->add(self->sink->user, piece->tokens + done, piece->token_count - done));
    self->token_count += piece->token_count;
    return 0;
}

void prepi_tell(prepi_maker *self, bool is_done)
{
    char did[SIZE_TEXT_BYTES], all[SIZE_TEXT_BYTES];
    uint64_t now = clock_ns();
    if (!is_done && now - self->told_ns < REPORT_NS)
        return;
    self->told_ns = now;
    double seconds = (double)(now - self->begin_ns) * 1e-9;
    log_info("%s: %s%s of %s are %" PRIu64 " tokens, after %.1f s", self->work->path,
             is_done ? "" : "the first ", size_format(prepi_progress(self), did),
             size_format(self->work->bytes, all), self->token_count, seconds);
}

int prepi_check_stop(const prepi_maker *self)
{
    if (!self->options->stop || !*self->options->stop)
        return 0;
    return err_set(ERR_STOPPED, "stopped on request while %s was tokenized; no part of it is kept",
                   self->work->path);
}

int prepi_make(prepi_maker *self)
{
    uint64_t bytes = 0;
    while (!self->is_over || self->text_bytes > 0) {
        TRY(read_batch(self, &bytes));
        TRY(prepi_check_stop(self));
        if (bytes == 0 && !self->is_over) {
            TRY(has_lines(self) ? prepi_long_record(self) : prepi_stream(self));
            continue;
        }
        cut_batch(self, bytes);
#pragma omp parallel for schedule(dynamic, 1) num_threads(self->threads)
        for (uint32_t i = 0; i < self->piece_count; i++)
            prepi_encode(&self->rules, &self->pieces[i]);
        for (uint32_t i = 0; i < self->piece_count; i++)
            TRY(prepi_write(self, &self->pieces[i]));
        drop_batch(self, bytes);
        prepi_tell(self, false);
    }
    return 0;
}

const char *prepi_field(const prepare_options *options)
{
    return options->field && options->field[0] ? options->field : "text";
}

/* Finds the ids before each document: what the post-processor adds to an empty text, without an end
 * token. */
static int find_before(prepi_maker *self)
{
    static const tokenize_options special = {.adds_special = true};
    const tokenizer *words = self->options->words;
    int32_t end_id = tokenizer_end_id(words), begin_id = tokenizer_begin_id(words);
    TRY(tokenizer_encode(words, "", 0, &special, &self->before));
    size_t count = self->before.count;
    if (count > 0 && self->before.ids[count - 1] == end_id && (count > 1 || end_id != begin_id))
        count--;
    const char *end = self->work->chat.end;
    self->rules = (prepi_rules){.work = self->work,
                                .options = self->options,
                                .field = prepi_field(self->options),
                                .before = self->before.ids,
                                .before_count = count,
                                .end_id = end_id,
                                .cut_id = tokenizer_document_end_id(words),
                                .has_safe_end = end[0] && tokenizer_separates(words, end)};
    return 0;
}

/* With less no text can be worked on. */
static const uint64_t memory_least =
    FIXED_BYTES + WORKER_BYTES + MEMORY_PER_BYTE * (uint64_t)BATCH_BYTES_LEAST;

static uint64_t memory_of(const prepare_options *options)
{
    uint64_t half = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
    return options->memory_bytes ? options->memory_bytes : half;
}

bool prepare_has_memory(const prepare_options *options)
{
    return memory_of(options) >= memory_least;
}

int prepare_check_memory(const prepare_work *work, const prepare_options *options)
{
    uint64_t memory = memory_of(options);
    char has[SIZE_TEXT_BYTES], needs[SIZE_TEXT_BYTES];
    if (prepare_has_memory(options))
        return 0;
    return err_set(ERR_NO_FIT,
                   "does not fit: making tokens of %s needs %" PRIu64 " bytes (%s) of host, and "
                   "has %" PRIu64 " (%s); fits with tiers.host.budget=%" PRIu64
                   "; token files need no such memory (sluice data tokenize)",
                   work->path, memory_least, size_format(memory_least, needs), memory,
                   size_format(memory, has), memory_least);
}

/* Sizes of the buffers and the number of threads, by the memory that is allowed. */
static int choose_sizes(prepi_maker *self)
{
    uint64_t memory = memory_of(self->options);
    TRY(prepare_check_memory(self->work, self->options));
    uint64_t threads =
        size_max(1, size_min((uint64_t)omp_get_max_threads(), memory / 4 / WORKER_BYTES));
    self->threads = (int)threads;
    self->capacity_most = (memory - FIXED_BYTES - threads * WORKER_BYTES) / MEMORY_PER_BYTE;
    self->capacity = size_min(BATCH_BYTES, self->capacity_most);
    return 0;
}

static int start(prepi_maker *self)
{
    uint64_t bytes;
    self->line = 1;
    self->begin_ns = self->told_ns = clock_ns();
    TRY(choose_sizes(self));
    self->text = mem_alloc(self->capacity, 1, "text to be tokenized");
    self->pieces = mem_alloc(PIECE_COUNT, sizeof *self->pieces, "pieces of text");
    if (!self->text || !self->pieces)
        return -ENOMEM;
    TRY(datai_open(self->work->path, &self->fd, &bytes));
    if (bytes != self->work->bytes)
        return err_set(ERR_INPUT,
                       "%s has changed since it was examined: it had %" PRIu64
                       " bytes and has %" PRIu64,
                       self->work->path, self->work->bytes, bytes);
    datai_input_start(&self->input, self->work->path, self->fd, bytes,
                      self->work->is_array  ? DATAI_ARRAY
                      : self->work->is_json ? DATAI_RECORDS
                                            : DATAI_UTF8,
                      self->work->begin);
    self->text_offset = self->work->begin;
    TRY(find_before(self));
    self->can_cut = tokenizer_cuts_lines(self->options->words);
    return 0;
}

/* Says what the file was taken for, so that a wrong guess is seen. */
static void tell_kind(const prepare_work *work)
{
    if (work->begin > 0)
        log_info("%s: the byte order mark at its beginning is left out", work->path);
    if (work->is_json)
        log_info("%s: records of %s%s%s%s%s", work->path,
                 work->kind == DATA_JSONL ? "text" : data_format_name(work->kind),
                 work->is_array ? " in one array" : ", one a line",
                 work->has_chat ? ", written in the form " : "",
                 work->has_chat ? work->chat.name : "",
                 work->has_marks ? "; only the answers count as targets" : "");
}

int prepare_run(const prepare_work *work, const prepare_options *options, const prepare_sink *sink)
{
    prepi_maker self = {.work = work, .options = options, .sink = sink, .fd = -1};
    tell_kind(work);
    int rc = start(&self);
    if (rc == 0)
        rc = prepi_make(&self);
    if (rc == 0)
        prepi_tell(&self, true);
    if (self.fd >= 0)
        close(self.fd);
    for (uint32_t i = 0; self.pieces && i < PIECE_COUNT; i++)
        prepi_piece_fini(&self.pieces[i]);
    mem_free(self.pieces);
    mem_free(self.text);
    token_list_fini(&self.before);
    return rc;
}

static int add_to_file(void *user, const uint32_t *tokens, uint64_t count)
{
    return token_file_add(user, tokens, count);
}

static int end_in_file(void *user)
{
    return token_file_end_document(user);
}

prepare_sink prepare_to_file(struct token_file *out)
{
    return (prepare_sink){.user = out, .add = add_to_file, .end_document = end_in_file};
}

int prepare_make(const prepare_work *work, const prepare_options *options, const char *path)
{
    const token_file_options made = {.format = DATA_MADE,
                                     .key = work->key,
                                     .vocab_size = tokenizer_vocab(options->words),
                                     .mode = options->mode,
                                     .has_marks = work->has_marks,
                                     .is_bytes = strcmp(options->tokenizer_name, "bytes") == 0};
    token_file *out;
    TRY(token_file_create(path, &made, &out));
    const prepare_sink sink = prepare_to_file(out);
    int rc = prepare_run(work, options, &sink);
    if (rc < 0) {
        token_file_abandon(out);
        return rc;
    }
    rc = token_file_finish(out);
    return rc == ERR_INPUT ? err_set(ERR_INPUT, "%s holds no tokens", work->path) : rc;
}
