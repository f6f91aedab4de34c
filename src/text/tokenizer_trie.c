/* Tries of bytes: added tokens, and the pieces of WordPiece and Unigram models. See
 * tokenizer_internal.h. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

enum { NODES_MAX = (1 << 24) - 1, NODE_BITS = 40, BYTE_BITS = 32 };

int toki_trie_make(toki_trie *self, size_t bytes, const char *what)
{
    if (bytes >= NODES_MAX)
        return err_set(ERR_INPUT, "%s: texts of %zu bytes in all; at most %d are read", what, bytes,
                       NODES_MAX);
    self->mask = 15;
    while (self->mask < 2 * bytes)
        self->mask = 2 * self->mask + 1;
    self->edges = mem_alloc(self->mask + 1, sizeof *self->edges, "tokenizer trie");
    self->values = mem_alloc(bytes + 1, sizeof *self->values, "tokenizer trie");
    if (!self->edges || !self->values)
        return -ENOMEM;
    memset(self->values, 0xff, (bytes + 1) * sizeof *self->values);
    self->node_count = 1;
    return 0;
}

void toki_trie_fini(toki_trie *self)
{
    mem_free(self->edges);
    mem_free(self->values);
    *self = (toki_trie){0};
}

static void put_edge(toki_trie *self, uint32_t node, uint8_t byte, uint32_t next)
{
    uint64_t key = (uint64_t)node << 8 | byte;
    size_t place = (key * 0x9e3779b97f4a7c15u) >> 32 & self->mask;
    while (self->edges[place])
        place = (place + 1) & self->mask;
    self->edges[place] = (uint64_t)node << NODE_BITS | (uint64_t)byte << BYTE_BITS | next;
}

void toki_trie_put(toki_trie *self, const char *key, size_t bytes, int32_t value)
{
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t next = toki_trie_next(self, node, (uint8_t)key[i]);
        if (!next) {
            next = self->node_count++;
            put_edge(self, node, (uint8_t)key[i], next);
        }
        node = next;
    }
    self->values[node] = value;
}

int32_t toki_trie_longest(const toki_trie *self, const char *text, size_t bytes, size_t *length)
{
    int32_t found = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        node = toki_trie_next(self, node, (uint8_t)text[i]);
        if (!node)
            break;
        if (self->values[node] >= 0) {
            found = self->values[node];
            *length = i + 1;
        }
    }
    return found;
}
