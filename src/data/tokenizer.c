/* Tokenizers; see tokenizer.h. */
#include "data/tokenizer.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"

struct tokenizer {
    uint64_t vocab;
};

enum { BYTE_VALUES = 256 };

int tokenizer_open(const char *name, tokenizer **out)
{
    *out = NULL;
    if (strcmp(name, "bytes") != 0)
        return err_set(ERR_CONFIG, "tokenizer %s: \"bytes\" is the only one", name);
    tokenizer *self = mem_alloc(1, sizeof *self, "tokenizer");
    if (!self)
        return -ENOMEM;
    self->vocab = BYTE_VALUES;
    *out = self;
    return 0;
}

void tokenizer_close(tokenizer *self)
{
    mem_free(self);
}

uint64_t tokenizer_vocab(const tokenizer *self)
{
    return self->vocab;
}

int32_t tokenizer_end_id(const tokenizer *self)
{
    (void)self;
    return -1;
}

int32_t tokenizer_begin_id(const tokenizer *self)
{
    (void)self;
    return -1;
}

int32_t tokenizer_find(const tokenizer *self, const char *token)
{
    (void)self;
    (void)token;
    return -1;
}

uint64_t tokenizer_hash(const tokenizer *self)
{
    return self->vocab;
}

void token_list_fini(token_list *self)
{
    mem_free(self->ids);
    *self = (token_list){0};
}

static int reserve(token_list *self, size_t more)
{
    if (self->capacity - self->count >= more)
        return 0;
    size_t capacity = size_max(2 * self->capacity, self->count + more);
    int32_t *ids = mem_alloc(capacity, sizeof *ids, "tokens");
    if (!ids)
        return -ENOMEM;
    if (self->count)
        memcpy(ids, self->ids, self->count * sizeof *ids);
    mem_free(self->ids);
    self->ids = ids;
    self->capacity = capacity;
    return 0;
}

int tokenizer_encode(const tokenizer *self, const char *text, size_t bytes,
                     const tokenize_options *options, token_list *out)
{
    (void)self;
    (void)options;
    TRY(reserve(out, bytes));
    for (size_t i = 0; i < bytes; i++)
        out->ids[out->count++] = (unsigned char)text[i];
    return 0;
}

const char *tokenizer_token_bytes(const tokenizer *self, int32_t id, bool skip_special,
                                  size_t *bytes)
{
    static char values[BYTE_VALUES];
    (void)skip_special;
    *bytes = id >= 0 && (uint64_t)id < self->vocab;
    if (!*bytes)
        return "";
    values[id] = (char)id; /* the same value whoever writes it */
    return &values[id];
}
