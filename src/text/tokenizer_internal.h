/* What the files of the tokenizer share: an opened tokenizer, and what one call of encode works
 * with.
 *
 *   tokenizer.c          opens by name, answers questions, lends workers
 *   tokenizer_json.c     tokenizer.json: members, types, what is refused
 *   tokenizer_model.c    model, added tokens and post-processor of tokenizer.json
 *   tokenizer_config.c   the files beside it: which tokens begin and end a document
 *   tokenizer_vocab.c    tokens by text and by bytes, merges by pair
 *   tokenizer_added.c    where added tokens stand in a text
 *   tokenizer_text.c     valid UTF-8, NFC, stand-ins for characters about which libraries disagree
 *   tokenizer_pattern.c  the patterns of other regex libraries as PCRE2's
 *   tokenizer_encode.c   text -> pieces -> words
 *   tokenizer_bpe.c      word -> ids
 *   tokenizer_sp.c       SentencePiece: vocabulary, and what is put around a text; see tokenizer_sp.h
 *   tokenizer_sp_library.cc   the calls of its own library, which is C++
 *
 * A text goes this way; each arrow cuts it into pieces, and a piece is seen by the next arrow as a
 * text of its own:
 *
 *   bytes -> UTF-8 -> added tokens (not normalized) -> NFC -> added tokens (normalized) -> stage 0 -> ... -> words -> ids */
#ifndef SLUICE_DATA_TOKENIZER_INTERNAL_H
#define SLUICE_DATA_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>

#include "text/tokenizer.h"

enum {
    TOKI_BYTE_VALUES = 256,
    TOKI_ID_MAX = (1 << 22) - 1, /* of a tokenizer.json: tables of so many tokens are made */
    TOKI_STAGES_MAX = 32,
    TOKI_CACHE_ENTRIES = 1 << 15,
    TOKI_CACHED_BYTES = 29, /* longer words are not kept */
    TOKI_CACHED_IDS = 8,    /* nor words of more tokens */
};

/* Bytes as they grow; mem_alloc'd. */
struct toki_bytes {
    char *data;
    size_t count, capacity;
};
typedef struct toki_bytes toki_bytes;
int toki_bytes_reserve(toki_bytes *self, size_t more) MUST_CHECK;

struct toki_token {
    const char *text;  /* as the file has it; NULL: no token has this id */
    const char *bytes; /* what it stands for in a text */
    uint32_t text_bytes, byte_count;
    bool is_special;
    bool is_word; /* its text is all of the byte alphabet: a word may become it */
};
typedef struct toki_token toki_token;

/* Ids by a key of bytes: open addressing, a power of two of places, at most half of them taken. */
struct toki_index {
    int32_t *ids; /* [mask + 1]; -1: empty */
    size_t mask;
};
typedef struct toki_index toki_index;

/* A pair of ids that merge; rank UINT32_MAX: an empty place. */
struct toki_merge {
    uint32_t left, right;
    uint32_t rank, id;
};
typedef struct toki_merge toki_merge;

/* A token that is found in texts before anything else happens to them. */
struct toki_added_token {
    int32_t id;
    bool single_word, lstrip, rstrip;
};
typedef struct toki_added_token toki_added_token;

/* A set of them: a trie whose edges are hashed, behind a filter of the first two bytes. */
struct toki_added {
    uint32_t count;           /* tokens in it; 0: nothing is ever found */
    uint8_t pairs[65536 / 8]; /* bit (first byte << 8 | second byte) */
    int first_byte;           /* of all tokens; -1: they differ */
    bool has_single_word;     /* one of them at least */
    uint64_t *edges;          /* [mask + 1]: node << 40 | byte << 32 | next node; 0: empty */
    size_t mask;
    int32_t *token_of_node; /* [node_count]: index into tokens, -1: none ends there */
    uint32_t node_count;
    toki_added_token *tokens;
};
typedef struct toki_added toki_added;

/* What becomes of the matches of a stage's pattern and of what lies between them. */
enum toki_behavior {
    TOKI_ISOLATED,
    TOKI_REMOVED,
    TOKI_CONTIGUOUS,
    TOKI_MERGED_WITH_PREVIOUS,
    TOKI_MERGED_WITH_NEXT,
};

struct toki_stage {
    bool adds_space;  /* no pattern: a piece that does not begin with a space gets one */
    pcre2_code *code; /* owned; NULL where adds_space */
    bool has_jit;
    bool cuts_lines; /* see tokenizer_cuts_lines */
    bool invert;     /* matches and what lies between them change places */
    enum toki_behavior behavior;
};
typedef struct toki_stage toki_stage;

/* A word and its ids, kept: words come again and again. */
struct toki_cached {
    uint8_t byte_count; /* 0: empty */
    uint8_t id_count;
    char bytes[TOKI_CACHED_BYTES + 1];
    int32_t ids[TOKI_CACHED_IDS];
};
typedef struct toki_cached toki_cached;
_Static_assert(sizeof(toki_cached) == 64, "one cache line");

/* What one call of encode works with; calls that run at once have one each. */
struct toki_worker {
    struct toki_worker *next;
    toki_bytes utf8, normal, shadow, space_text, space_shadow;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    toki_cached *cache; /* [TOKI_CACHE_ENTRIES] */
    void *word;         /* tokenizer_bpe.c's tables for a word, for `word_capacity` bytes */
    size_t word_capacity;
};
typedef struct toki_worker toki_worker;

/* Unicode's normal forms that a normalizer may ask for. */
enum toki_form { TOKI_AS_IT_IS, TOKI_NFC, TOKI_NFKC };

enum toki_kind { TOKI_BYTES, TOKI_BPE, TOKI_SENTENCEPIECE };

struct tokenizer {
    enum toki_kind kind;
    void *pieces; /* of SentencePiece */
    uint64_t token_count;
    toki_token *tokens; /* [token_count] */
    char *arena;        /* the texts and bytes of tokens */
    size_t arena_count, arena_bytes;
    toki_index by_text, by_bytes;
    toki_merge *merges; /* [merge_mask + 1] */
    size_t merge_mask;
    int32_t byte_ids[TOKI_BYTE_VALUES]; /* -1: no token is this byte alone */
    int32_t unknown_id; /* for bytes without a token; -1: they vanish, as in the library */
    bool fuses_unknown, ignores_merges;

    enum toki_form form;
    uint8_t *steady;     /* of the form, if it is one; see toki_steady_make */
    toki_added added[2]; /* found in the text as it is, found in the normalized text */
    toki_stage stages[TOKI_STAGES_MAX];
    uint32_t stage_count;
    pcre2_code *word_character; /* where a single_word token needs it */
    int32_t *prefix, *suffix;   /* what adds_special puts around a text */
    uint32_t prefix_count, suffix_count;

    int32_t begin_id, end_id;
    bool cuts_lines;
    uint64_t hash;
    pthread_mutex_t lock; /* of idle */
    toki_worker *idle;
};

/* tokenizer_vocab.c. Tokens are put in one after another, then toki_vocab_index makes them
 * known. */
void toki_byte_alphabet(uint16_t characters[TOKI_BYTE_VALUES]);
/* Room for `count` ids and `text_bytes` bytes of texts in all. */
int toki_vocab_reserve(tokenizer *self, uint64_t count, uint64_t text_bytes) MUST_CHECK;
/* The text is copied; there must be room, and the id unused. After toki_vocab_index the token is
 * found by its text at once, and is no word. */
void toki_vocab_put(tokenizer *self, int32_t id, const char *text, size_t bytes);
int toki_vocab_index(tokenizer *self) MUST_CHECK;
int32_t toki_find_text(const tokenizer *self, const char *text, size_t bytes); /* -1: none */
int32_t toki_find_word(const tokenizer *self, const char *word, size_t bytes); /* -1: none */
int toki_merges_reserve(tokenizer *self, uint64_t count) MUST_CHECK;
void toki_merges_put(tokenizer *self, toki_merge merge); /* the last one of a pair stays */
const toki_merge *toki_merge_find(const tokenizer *self, uint32_t left, uint32_t right);

/* tokenizer_added.c. `texts` are as the matcher shall see them; of equal ones the last stays. */
int toki_added_make(toki_added *self, uint32_t count, const char *const *texts,
                    const size_t *text_bytes, const toki_added_token *tokens) MUST_CHECK;
void toki_added_fini(toki_added *self);
/* The next token at or after `at`: *begin and *end in bytes, spaces that it strips included, *begin
 * not before `from` (where the token before ended). NULL: there is none. */
const toki_added_token *toki_added_next(const tokenizer *owner, const toki_added *self,
                                        const char *text, size_t bytes, size_t at, size_t from,
                                        size_t *begin, size_t *end, size_t *resume);

/* tokenizer_text.c */
uint32_t toki_decode(const char *text, size_t *bytes); /* one character of valid UTF-8 */
/* Valid UTF-8: the text itself, or a copy in *copy where bytes had to be replaced by U+FFFD. */
int toki_text_valid(const char *text, size_t bytes, toki_bytes *copy, const char **out,
                    size_t *out_bytes) MUST_CHECK;
/* Bit c: the character c is left alone by the form whatever stands before it, and begins a
 * cluster. */
int toki_steady_make(enum toki_form form, uint8_t **out) MUST_CHECK;
/* The form of valid UTF-8, the text itself where it is in it already. */
int toki_text_normal(enum toki_form form, const uint8_t *steady, const char *text, size_t bytes,
                     toki_bytes *copy, const char **out, size_t *out_bytes) MUST_CHECK;
/* The text with each character about which versions of Unicode disagree replaced by another one of
 * the same length that is, in all versions, what it is for the library. Mostly the text itself. */
int toki_text_shadow(const char *text, size_t bytes, toki_bytes *copy, const char **out) MUST_CHECK;
uint32_t toki_stand_in(uint32_t character);
bool toki_is_space(uint32_t character); /* Unicode's White_Space */

/* tokenizer_pattern.c. Oniguruma's syntax, as the library reads it; ERR_CONFIG with `where` for
 * what is not supported or no pattern at all. */
int toki_pattern_compile(const char *where, const char *pattern, size_t bytes,
                         toki_stage *out) MUST_CHECK;
int toki_pattern_literal(const char *where, const char *text, size_t bytes,
                         toki_stage *out) MUST_CHECK;
int toki_pattern_digits(bool individual, toki_stage *out) MUST_CHECK;
int toki_pattern_word_character(pcre2_code **out) MUST_CHECK;
extern const char toki_gpt2_pattern[];

/* tokenizer_bpe.c: appends the ids of one word. */
int toki_word(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
              token_list *out) MUST_CHECK;

/* tokenizer_encode.c */
int toki_encode(const tokenizer *self, toki_worker *worker, const char *text, size_t bytes,
                bool plain_text, token_list *out) MUST_CHECK;

/* tokenizer_json.c, tokenizer_model.c and tokenizer_config.c; json.h's types stay out of here. */
int toki_json_open(tokenizer *self, const char *path) MUST_CHECK;
int toki_config_read(tokenizer *self, const char *folder) MUST_CHECK;

int toki_list_reserve(token_list *self, size_t more) MUST_CHECK;

#endif
