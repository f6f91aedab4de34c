/* Tokenizers: opens them by name, answers questions, and lends workers to calls. See tokenizer.h
 * and tokenizer_internal.h. */
#include "text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/size.h"
#include "text/tokenizer_internal.h"

enum { JIT_STACK_FIRST = 32768, JIT_STACK_MOST = 8 << 20 };

void toki_worker_destroy(toki_worker *self)
{
    toki_bytes *const texts[] = {&self->utf8,   &self->normal[0],  &self->normal[1],
                                 &self->shadow, &self->space_text, &self->space_shadow};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        mem_free(texts[i]->data);
    pcre2_match_data_free(self->match);
    pcre2_match_context_free(self->context);
    pcre2_jit_stack_free(self->stack);
    mem_free(self->cache);
    mem_free(self->word);
    mem_free(self);
}

toki_worker *toki_worker_create(void)
{
    toki_worker *self = mem_alloc(1, sizeof *self, "tokenizer worker");
    if (!self)
        return NULL;
    self->match = pcre2_match_data_create(1, NULL);
    self->context = pcre2_match_context_create(NULL);
    self->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, NULL);
    self->cache = mem_alloc(TOKI_CACHE_ENTRIES, sizeof *self->cache, "tokenizer cache");
    if (!self->match || !self->context || !self->cache) { /* the JIT stack is optional */
        toki_worker_destroy(self);
        (void)err_set(-ENOMEM, "no memory for a tokenizer's worker");
        return NULL;
    }
    if (self->stack)
        pcre2_jit_stack_assign(self->context, NULL, self->stack);
    return self;
}

static toki_worker *worker_take(tokenizer *self)
{
    pthread_mutex_lock(&self->lock);
    toki_worker *worker = self->idle;
    if (worker)
        self->idle = worker->next;
    pthread_mutex_unlock(&self->lock);
    return worker ? worker : toki_worker_create();
}

static void worker_give(tokenizer *self, toki_worker *worker)
{
    pthread_mutex_lock(&self->lock);
    worker->next = self->idle;
    self->idle = worker;
    pthread_mutex_unlock(&self->lock);
}

/* --- opening --- */

/* The token of a byte is the byte, so no texts are needed. */
static int open_bytes(tokenizer *self)
{
    self->kind = TOKI_BYTES;
    TRY(toki_vocab_reserve(self, TOKI_BYTE_VALUES, TOKI_BYTE_VALUES));
    for (int32_t id = 0; id < TOKI_BYTE_VALUES; id++) {
        self->arena[id] = (char)id;
        self->tokens[id].bytes = &self->arena[id];
        self->tokens[id].byte_count = 1;
    }
    self->hash = TOKI_BYTE_VALUES;
    self->cuts_lines = self->cuts_spaces = self->cuts_tabs = true;
    return 0;
}

int tokenizer_beside(const char *name, const char *file_name, char out[FILE_PATH_BYTES])
{
    struct stat status;
    char folder[FILE_PATH_BYTES];
    bool is_folder = stat(name, &status) == 0 && S_ISDIR(status.st_mode);
    const char *slash = strrchr(name, '/');
    if (is_folder)
        return file_join(out, FILE_PATH_BYTES, name, file_name);
    int length = !slash ? 1 : slash == name ? 1 : (int)(slash - name);
    if (length >= FILE_PATH_BYTES)
        return err_set(ERR_INPUT, "tokenizer: a path of %zu bytes is too long", strlen(name));
    snprintf(folder, sizeof folder, "%.*s", length, slash ? name : ".");
    return file_join(out, FILE_PATH_BYTES, folder, file_name);
}

static int open_file(tokenizer *self, const char *name)
{
    struct stat status;
    char path[FILE_PATH_BYTES];
    if (strlen(name) + sizeof "/tokenizer.json" > sizeof path)
        return err_set(ERR_INPUT, "tokenizer: a path of %zu bytes is too long", strlen(name));
    if (stat(name, &status) != 0)
        return err_set(ERR_INPUT,
                       "cannot open the tokenizer %s: %s; a tokenizer is \"bytes\", or the path of "
                       "a tokenizer.json, of a tokenizer.model, or of their directory",
                       name, strerror(errno));
    snprintf(path, sizeof path, "%s", name);
    if (S_ISDIR(status.st_mode)) {
        TRY(tokenizer_beside(name, "tokenizer.json", path));
        if (stat(path, &status) != 0)
            TRY(tokenizer_beside(name, "tokenizer.model", path));
        if (stat(path, &status) != 0)
            return err_set(ERR_INPUT, "%s has no tokenizer.json and no tokenizer.model", name);
    }
    const char *suffix = strrchr(path, '.');
    bool is_pieces = suffix && strcmp(suffix, ".model") == 0;
    if (is_pieces) {
        self->kind = TOKI_SENTENCEPIECE;
        self->no_stream = "is a SentencePiece model";
    }
    TRY(is_pieces ? toki_sp_open(self, path) : toki_json_open(self, path));
    return toki_config_read(self, name);
}

int tokenizer_open(const char *name, tokenizer **out)
{
    *out = NULL;
    tokenizer *self = mem_alloc(1, sizeof *self, "tokenizer");
    if (!self)
        return -ENOMEM;
    pthread_mutex_init(&self->lock, NULL);
    self->begin_id = self->end_id = self->unknown_id = -1;
    int rc = strcmp(name, "bytes") == 0 ? open_bytes(self) : open_file(self, name);
    if (rc < 0) {
        tokenizer_close(self);
        return rc;
    }
    *out = self;
    return 0;
}

void tokenizer_close(tokenizer *self)
{
    if (!self)
        return;
    while (self->idle) {
        toki_worker *next = self->idle->next;
        toki_worker_destroy(self->idle);
        self->idle = next;
    }
    for (uint32_t i = 0; i < self->stage_count; i++)
        pcre2_code_free(self->stages[i].code);
    pcre2_code_free(self->word_character);
    for (size_t i = 0; i < 2; i++)
        toki_added_fini(&self->added[i]);
    toki_sp_close(self);
    mem_free(self->tokens);
    mem_free(self->arena);
    mem_free(self->by_text.ids);
    mem_free(self->by_bytes.ids);
    mem_free(self->merges);
    mem_free(self->followers);
    mem_free(self->followers_at);
    for (uint32_t i = 0; i < self->step_count; i++)
        toki_step_fini(&self->steps[i]);
    toki_trie_fini(&self->trie);
    toki_trie_fini(&self->trie_within);
    mem_free(self->scores);
    token_list_fini(&self->prefix);
    token_list_fini(&self->suffix);
    pthread_mutex_destroy(&self->lock);
    mem_free(self);
}

/* --- questions --- */

uint64_t tokenizer_vocab(const tokenizer *self)
{
    return self->token_count;
}

int32_t tokenizer_end_id(const tokenizer *self)
{
    return self->end_id;
}

int32_t tokenizer_document_end_id(const tokenizer *self)
{
    static const char *const of_messages[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
                                              "<end_of_turn>"};
    static const char *const of_documents[] = {"<|endoftext|>", "<|end_of_text|>"};
    bool ends_messages = false;
    for (size_t i = 0; i < sizeof of_messages / sizeof of_messages[0]; i++)
        ends_messages |= self->end_id >= 0 && tokenizer_find(self, of_messages[i]) == self->end_id;
    for (size_t i = 0; ends_messages && i < sizeof of_documents / sizeof of_documents[0]; i++) {
        int32_t id = tokenizer_find(self, of_documents[i]);
        if (id >= 0 && self->tokens[id].is_special)
            return id;
    }
    return ends_messages ? -1 : self->end_id;
}

int32_t tokenizer_begin_id(const tokenizer *self)
{
    return self->begin_id;
}

int32_t tokenizer_find(const tokenizer *self, const char *token)
{
    return toki_find_text(self, token, strlen(token));
}

bool tokenizer_separates(const tokenizer *self, const char *token)
{
    int32_t id = tokenizer_find(self, token);
    for (size_t set = 0; set < 2; set++)
        for (uint32_t i = 0; id >= 0 && i < self->added[set].count; i++) {
            const toki_added_token *added = &self->added[set].tokens[i];
            if (added->id == id)
                return (set == 0 || self->step_count == 0) && !added->rstrip &&
                       !added->single_word && !self->has_first;
        }
    return false;
}

uint64_t tokenizer_hash(const tokenizer *self)
{
    return self->hash;
}

bool tokenizer_cuts_lines(const tokenizer *self)
{
    return self->cuts_lines || self->cuts_spaces;
}

const char *tokenizer_no_stream(const tokenizer *self)
{
    return self->no_stream;
}

/* True if the character that ends before `at` may be white space for some pattern. */
static bool is_blank_before(const char *text, size_t at)
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

static bool is_blank_after(const char *text, size_t at)
{
    unsigned char first = (unsigned char)text[at];
    return first <= ' ' || first == 0x7f || first == 0xc2 || first == 0xe1 || first == 0xe2 ||
           (first == 0xe3 && (unsigned char)text[at + 1] == 0x80);
}

/* Any character whose first bytes could be white space beyond ASCII counts as white space. */
bool tokenizer_cut_is_safe(const tokenizer *self, const char *text, size_t bytes, size_t at)
{
    if (at < 2 || at + 1 >= bytes)
        return false;
    if (text[at - 1] == '\n')
        return self->cuts_lines && text[at] != '/' && !is_blank_before(text, at - 1) &&
               !is_blank_after(text, at);
    return (text[at] == ' ' ? self->cuts_spaces : text[at] == '\t' && self->cuts_tabs) &&
           !is_blank_before(text, at);
}

const char *tokenizer_token_bytes(const tokenizer *self, int32_t id, bool skip_special,
                                  size_t *bytes)
{
    *bytes = 0;
    if (id < 0 || (uint64_t)id >= self->token_count)
        return "";
    const toki_token *token = &self->tokens[id];
    if (!token->bytes || (skip_special && token->is_special))
        return "";
    *bytes = token->byte_count;
    return token->bytes;
}

/* --- encoding --- */

void token_list_fini(token_list *self)
{
    mem_free(self->ids);
    *self = (token_list){0};
}

int toki_list_reserve(token_list *self, size_t more)
{
    if (self->capacity - self->count >= more)
        return 0;
    size_t capacity = size_max(2 * self->capacity, self->count + more);
    int32_t *ids = mem_resize(self->ids, capacity, sizeof *ids, "tokens");
    if (!ids)
        return -ENOMEM;
    self->ids = ids;
    self->capacity = capacity;
    return 0;
}

static int append_ids(token_list *out, const token_list *more)
{
    TRY(toki_list_reserve(out, more->count));
    if (more->count)
        memcpy(out->ids + out->count, more->ids, more->count * sizeof *more->ids);
    out->count += more->count;
    return 0;
}

static int encode_bytes(const char *text, size_t bytes, token_list *out)
{
    TRY(toki_list_reserve(out, bytes));
    for (size_t i = 0; i < bytes; i++)
        out->ids[out->count++] = (unsigned char)text[i];
    return 0;
}

static int encode_middle(const tokenizer *self, const char *text, size_t bytes, bool plain_text,
                         token_list *out)
{
    if (self->kind == TOKI_BYTES)
        return encode_bytes(text, bytes, out);
    if (self->kind == TOKI_SENTENCEPIECE)
        return toki_sp_encode(self, text, bytes, out);
    tokenizer *owner = (tokenizer *)self; /* only the list of idle workers changes, under a lock */
    toki_worker *worker = worker_take(owner);
    if (!worker)
        return -ENOMEM;
    int rc = toki_encode(self, worker, text, bytes, plain_text, out);
    worker_give(owner, worker);
    return rc;
}

int tokenizer_encode(const tokenizer *self, const char *text, size_t bytes,
                     const tokenize_options *options, token_list *out)
{
    if (options->adds_special)
        TRY(append_ids(out, &self->prefix));
    TRY(encode_middle(self, text, bytes, options->plain_text, out));
    if (options->adds_special)
        TRY(append_ids(out, &self->suffix));
    return 0;
}

/* Each byte is its token. */
static int stream_bytes(const tokenize_source *source, const tokenize_sink *sink)
{
    char text[4096];
    int32_t ids[sizeof text];
    int got;
    for (uint64_t at = 0; (got = source->read(source->user, at, text, sizeof text)) > 0;
         at += (uint64_t)got) {
        for (int i = 0; i < got; i++)
            ids[i] = (unsigned char)text[i];
        TRY(sink->add(sink->user, ids, (size_t)got));
    }
    return got;
}

int tokenizer_encode_stream(const tokenizer *self, const tokenize_source *source, bool plain_text,
                            const tokenize_sink *sink)
{
    if (self->no_stream)
        return err_set(ERR_INPUT, "the tokenizer %s: it takes texts only as a whole",
                       self->no_stream);
    if (self->kind == TOKI_BYTES)
        return stream_bytes(source, sink);
    tokenizer *owner = (tokenizer *)self; /* as in encode_middle */
    toki_worker *worker = worker_take(owner);
    if (!worker)
        return -ENOMEM;
    int rc = toki_stream(self, worker, source, plain_text, sink);
    worker_give(owner, worker);
    return rc;
}
