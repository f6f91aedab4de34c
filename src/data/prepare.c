/* Converts text and JSON records to token files. See prepare.h.
 *
 *   file ── read ──► a batch: whole lines, or text up to a safe cut
 *        ──► pieces ── all threads encode ──► tokens, in order ──► sink
 *
 * The caller's thread reads and writes. In between, all threads encode the pieces of the batch. */
#include "data/prepare.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

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
    LINE_MAX_BYTES = 1 << 30, /* of a line, or of text without a safe cut */
    FORMAT_VERSION = 2,       /* version of the conversion; part of the key */
};

#define REPORT_NS ((uint64_t)5 * 1000 * 1000 * 1000)

/* The conversion of one file. */
struct maker {
    const prepare_work *work;
    const prepare_options *options;
    prepi_rules rules;
    token_list before;
    int fd;
    datai_input input;
    char *text; /* [capacity]; the file's contents from text_offset on */
    uint64_t capacity, text_bytes, text_offset, line;
    bool can_cut;        /* the tokenizer cuts wherever cut_is_safe is true */
    prepi_piece *pieces; /* [PIECE_COUNT] */
    uint32_t piece_count;
    const prepare_sink *sink;
    uint64_t token_count; /* number given to the sink */
    uint64_t begin_ns, told_ns;
};

/* ---- cuts ---- */

/* True if the character that ends before `at` may be white space for some pattern. */
static bool is_blank_before(const char *text, uint64_t at)
{
    unsigned char last = (unsigned char)text[at - 1];
    if (last < 0x80)
        return last <= ' ' || last == 0x7f;
    if (at < 3)
        return true; /* unknown, so assume that it is */
    const unsigned char *three = (const unsigned char *)text + at - 3;
    bool is_latin = three[1] == 0xc2 && (three[2] == 0x85 || three[2] == 0xa0);
    return is_latin || three[0] == 0xe1 || three[0] == 0xe2 ||
           (three[0] == 0xe3 && three[1] == 0x80);
}

static bool is_blank_after(const char *text, uint64_t at)
{
    unsigned char first = (unsigned char)text[at];
    return first <= ' ' || first == 0x7f || first == 0xc2 || first == 0xe1 || first == 0xe2 ||
           (first == 0xe3 && (unsigned char)text[at + 1] == 0x80);
}

/* True if text may be cut before byte `at`, 0 < at < bytes - 1. The byte before must be a single
 * newline between two characters that are not white space, and the second one must not be "/"; see
 * tokenizer_cuts_lines. Any character whose first bytes could be white space beyond ASCII counts as
 * white space. */
static bool cut_is_safe(const char *text, uint64_t at)
{
    return at >= 2 && text[at - 1] == '\n' && text[at] != '/' && !is_blank_before(text, at - 1) &&
           !is_blank_after(text, at);
}

/* The first place in [at, end) where a piece may end, or `end`, which is always allowed. A line
 * ends after its newline. */
static uint64_t next_cut(const struct maker *self, uint64_t at, uint64_t end)
{
    if (at >= end)
        return end;
    if (self->work->is_json) {
        const char *newline = memchr(self->text + at, '\n', end - at);
        return newline ? (uint64_t)(newline - self->text) + 1 : end;
    }
    if (!self->can_cut)
        return end;
    for (; at + 1 < end; at++)
        if (cut_is_safe(self->text, at))
            return at;
    return end;
}

/* The last place where the text read so far may end, or 0. */
static uint64_t last_cut(const struct maker *self)
{
    if (self->work->is_json) {
        const char *newline = memrchr(self->text, '\n', self->text_bytes);
        return newline ? (uint64_t)(newline - self->text) + 1 : 0;
    }
    for (uint64_t at = self->can_cut && self->text_bytes > 2 ? self->text_bytes - 2 : 0; at > 1;
         at--)
        if (cut_is_safe(self->text, at))
            return at;
    return 0;
}

/* ---- reading ---- */

static int grow_text(struct maker *self)
{
    uint64_t capacity = 2 * self->capacity;
    if (capacity > 2 * (uint64_t)LINE_MAX_BYTES)
        return err_set(ERR_INPUT,
                       self->work->is_json ? "%s:%" PRIu64 ": the line has more than %d bytes"
                                           : "%s: from line %" PRIu64
                                             " on there are %d bytes that this tokenizer must read "
                                             "at once; cut the file into smaller ones",
                       self->work->path, self->line, (int)LINE_MAX_BYTES);
    char *grown = mem_resize(self->text, capacity, 1, "text to be tokenized");
    if (!grown)
        return -ENOMEM;
    self->text = grown;
    self->capacity = capacity;
    return 0;
}

/* Reads until there is a batch. *bytes is its length; 0 means the end of the file. */
static int read_batch(struct maker *self, uint64_t *bytes)
{
    for (;;) {
        uint64_t at = self->text_offset + self->text_bytes;
        uint64_t part = size_min(self->capacity - self->text_bytes, self->work->bytes - at);
        TRY(datai_input_read(&self->input, part, self->text + self->text_bytes));
        self->text_bytes += part;
        bool is_over = at + part == self->work->bytes;
        *bytes = is_over ? self->text_bytes : last_cut(self);
        if (is_over || *bytes > 0)
            return 0;
        TRY(grow_text(self));
    }
}

/* Cuts the first `bytes` bytes of the text into pieces. */
static void cut_batch(struct maker *self, uint64_t bytes)
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
        piece->line = self->line;
        piece->begins = self->text_offset + from == self->work->begin;
        piece->ends = self->text_offset + to == self->work->bytes;
        for (const char *at = piece->text, *end = at + piece->bytes;
             (at = memchr(at, '\n', (size_t)(end - at))); at++)
            self->line++;
        from = to;
    }
}

static void drop_batch(struct maker *self, uint64_t bytes)
{
    memmove(self->text, self->text + bytes, self->text_bytes - bytes);
    self->text_bytes -= bytes;
    self->text_offset += bytes;
}

/* ---- writing ---- */

static int write_pieces(struct maker *self)
{
    for (uint32_t i = 0; i < self->piece_count; i++) {
        const prepi_piece *piece = &self->pieces[i];
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
    }
    return 0;
}

static void tell(struct maker *self, bool is_done)
{
    char did[SIZE_TEXT_BYTES], all[SIZE_TEXT_BYTES];
    uint64_t now = clock_ns();
    if (!is_done && now - self->told_ns < REPORT_NS)
        return;
    self->told_ns = now;
    double seconds = (double)(now - self->begin_ns) * 1e-9;
    log_info("%s: %s%s of %s are %" PRIu64 " tokens, after %.1f s", self->work->path,
             is_done ? "" : "the first ", size_format(self->text_offset, did),
             size_format(self->work->bytes, all), self->token_count, seconds);
}

static int make_all(struct maker *self)
{
    uint64_t bytes;
    for (;;) {
        TRY(read_batch(self, &bytes));
        if (bytes == 0)
            return 0;
        if (self->options->stop && *self->options->stop)
            return err_set(ERR_STOPPED,
                           "stopped on request while %s was tokenized; no part of it is kept",
                           self->work->path);
        cut_batch(self, bytes);
#pragma omp parallel for schedule(dynamic, 1)
        for (uint32_t i = 0; i < self->piece_count; i++)
            prepi_encode(&self->rules, &self->pieces[i]);
        TRY(write_pieces(self));
        drop_batch(self, bytes);
        tell(self, false);
    }
}

static const char *field_of(const prepare_options *options)
{
    return options->field && options->field[0] ? options->field : "text";
}

/* Finds the ids before each document: what the post-processor adds to an empty text, without an end
 * token. */
static int find_before(struct maker *self)
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
                                .field = field_of(self->options),
                                .before = self->before.ids,
                                .before_count = count,
                                .end_id = end_id,
                                .has_safe_end = end[0] && tokenizer_find(words, end) >= 0};
    return 0;
}

static int start(struct maker *self)
{
    uint64_t bytes;
    self->line = 1;
    self->begin_ns = self->told_ns = clock_ns();
    self->capacity = BATCH_BYTES;
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
    struct maker self = {.work = work, .options = options, .sink = sink, .fd = -1};
    tell_kind(work);
    int rc = start(&self);
    if (rc == 0)
        rc = make_all(&self);
    if (rc == 0)
        tell(&self, true);
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

/* ---- looking ---- */

/* Finds the kind of the records, and the form of conversations. Other defects of a record are
 * reported when all are read. */
static int look_at_records(prepare_work *self, int fd, enum data_format format,
                           const prepare_options *options)
{
    const char *field = field_of(options);
    datai_record first;
    TRY(datai_first_record(fd, self->path, self->bytes, &first));
    if (!first.is_object)
        return err_set(ERR_INPUT,
                       "%s begins with no JSON object, { ... }, and with no array of them; to read "
                       "the file as text, set data.format to text",
                       self->path);
    self->is_array = first.is_array;
    self->kind = format == DATA_JSONL ? datai_kind_of(field, &first.names) : format;
    bool is_known = self->kind != DATA_AUTO && datai_kind_fits(self->kind, field, &first.names);
    if (!is_known && !first.is_whole)
        return err_set(ERR_INPUT,
                       "%s: the first object is not well-formed JSON: it has members \"name\": "
                       "value, and names and texts stand in double quotes",
                       self->path);
    if (!is_known)
        return err_prefix(datai_refuse_kind(self->kind, field, &first.names), "%s: record 1",
                          self->path);
    if (first.spans_lines && !first.is_array)
        return err_set(ERR_INPUT,
                       "%s: the first object does not end on its line; JSON lines have one object "
                       "a line (jq -c . FILE > NEW makes them)",
                       self->path);
    self->has_marks = self->kind != DATA_JSONL;
    self->has_chat = self->has_marks && (self->kind != DATA_PROMPT_COMPLETION ||
                                         datai_names_value(&first.names, "prompt") == '[');
    if (!self->has_chat || !options->chat_template)
        return 0;
    return chat_form_find_or(options->chat_template, self->kind == DATA_ALPACA ? "alpaca" : NULL,
                             options->tokenizer_name, options->words, &self->chat);
}

/* Text whose format was named is not yet known to be text. */
static int look_at_text(prepare_work *self, int fd)
{
    unsigned char begin[DATAI_BEGIN_BYTES] = {0};
    TRY(datai_pread(fd, self->path, 0, size_min(self->bytes, sizeof begin), begin));
    TRY(datai_refuse_foreign(self->path, begin, self->bytes, 2));
    self->begin = datai_bom_bytes(begin, self->bytes);
    return 0;
}

static void add_text(XXH3_state_t *state, const char *text)
{
    XXH3_64bits_update(state, text ? text : "", strlen(text ? text : "") + 1);
}

static int find_key(prepare_work *self, const struct stat *info, const prepare_options *options)
{
    char *whole = realpath(self->path, NULL);
    if (!whole)
        return err_errno(errno, "cannot find out the whole path of %s", self->path);
    XXH3_state_t *state = XXH3_createState();
    int rc = state ? 0 : -ENOMEM;
    if (rc == 0) {
        const uint64_t numbers[] = {FORMAT_VERSION,
                                    (uint64_t)info->st_size,
                                    (uint64_t)info->st_mtim.tv_sec,
                                    (uint64_t)info->st_mtim.tv_nsec,
                                    tokenizer_hash(options->words),
                                    (uint64_t)self->kind,
                                    self->is_array,
                                    self->chat.adds_system};
        XXH3_64bits_reset(state);
        XXH3_64bits_update(state, numbers, sizeof numbers);
        add_text(state, whole);
        add_text(state, self->kind == DATA_JSONL ? options->field : "");
        const char *const form[] = {
            self->chat.name,       self->chat.system,        self->chat.user_before,
            self->chat.user_after, self->chat.answer_before, self->chat.begin,
            self->chat.end};
        for (size_t i = 0; i < sizeof form / sizeof form[0]; i++)
            add_text(state, form[i]);
        self->key = XXH3_64bits_digest(state);
    }
    XXH3_freeState(state);
    free(whole);
    return rc < 0 ? err_set(rc, "no memory to look at %s", self->path) : 0;
}

int prepare_look(const char *path, enum data_format format, const prepare_options *options,
                 prepare_work *out)
{
    *out = (prepare_work){.path = path};
    struct stat info;
    int fd;
    TRY(datai_format_of(path, format, field_of(options), &format));
    bool is_bytes = strcmp(options->tokenizer_name, "bytes") == 0;
    out->kind = format;
    out->is_json = corpus_is_json(format);
    out->is_needed = out->is_json || (format == DATA_TEXT && !is_bytes);
    if (!out->is_needed)
        return 0;
    TRY(datai_open(path, &fd, &out->bytes));
    int rc = fstat(fd, &info) == 0 ? 0 : err_errno(errno, "cannot examine %s", path);
    if (rc == 0)
        rc = out->is_json ? look_at_records(out, fd, format, options) : look_at_text(out, fd);
    if (rc == 0)
        rc = find_key(out, &info, options);
    close(fd);
    return rc;
}
