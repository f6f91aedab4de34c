/* Declarations that the files of the tokenizer share: an opened tokenizer, and the state of one
 * call of encode.
 *
 * A text takes this way. Each arrow cuts it into pieces, and the next arrow treats a piece as a
 * text of its own:
 *
 *   bytes -> UTF-8 -> added tokens (not normalized) -> normalizer -> added tokens (normalized)
 *         -> stage 0 -> ... -> words -> ids
 *
 * Vocabulary:
 *   added token   found in a text before anything else happens to the text
 *   step          a part of the normalizer: a change of a text
 *   stage         a part of the pre-tokenizer: it cuts a piece into smaller ones
 *   mark          a character that stands for a space in the vocabulary, mostly U+2581
 *   word          a piece after the last stage; the model makes ids of it
 *   stand-in      a character that replaces, for the patterns only, one on whose class versions of
 *                 Unicode disagree; the text with stand-ins is the shadow (tokenizer_text.c)
 *   steady        a character that a normal form keeps and that begins a new cluster
 *   worker        the buffers of one call of encode */
#ifndef SLUICE_TEXT_TOKENIZER_INTERNAL_H
#define SLUICE_TEXT_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

enum {
    TOKI_BYTE_VALUES = 256,
    TOKI_ASCII = 128,
    TOKI_ID_MAX = (1 << 22) - 1, /* of a tokenizer.json; bounds the tables of tokens */
    TOKI_STAGES_MAX = 32,
    TOKI_STEPS_MAX = 32,
    TOKI_DECODER_MAX = 4, /* replacements of a decoder */
    TOKI_CACHE_ENTRIES = 1 << 15,
    TOKI_CACHED_BYTES = 29, /* longer words are not cached */
    TOKI_CACHED_IDS = 8,    /* words of more tokens are not cached */
    TOKI_WORD_WINDOW = 16 << 10,
    TOKI_STREAM_WINDOW = 64 << 10,
    TOKI_FORMS_MAX = 4,
    TOKI_TAIL_BYTES = 8,
};

/* Growing bytes; from mem_alloc. */
struct toki_bytes {
    char *data;
    size_t count, capacity;
};
typedef struct toki_bytes toki_bytes;
int toki_bytes_reserve(toki_bytes *self, size_t more) MUST_CHECK;

struct toki_token {
    const char *text;  /* as in the file; NULL: no token has this id */
    const char *bytes; /* the bytes that it stands for in a text */
    uint32_t text_bytes, byte_count;
    bool is_special;
    bool is_word; /* merges may give it; else a character is not of the byte alphabet */
};
typedef struct toki_token toki_token;

/* Ids by a key of bytes. Open addressing; the number of slots is a power of two, at most half of
 * them are used. */
struct toki_index {
    int32_t *ids; /* [mask + 1]; -1: empty */
    size_t mask;
};
typedef struct toki_index toki_index;

/* Numbers by keys of bytes, found byte by byte: a trie with hashed edges. Node 0 is the root. */
struct toki_trie {
    uint64_t *edges; /* [mask + 1]: node << 40 | byte << 32 | next node; 0: empty */
    size_t mask;
    int32_t *values; /* [node_count]; -1: no key ends there */
    uint32_t node_count;
};
typedef struct toki_trie toki_trie;

/* A pair of ids that merge; rank UINT32_MAX: an empty slot. */
struct toki_merge {
    uint32_t left, right;
    uint32_t rank, id;
};
typedef struct toki_merge toki_merge;

/* The right side of a merge, in a list of all merges with the same left side. */
struct toki_follower {
    uint32_t rank, right;
};
typedef struct toki_follower toki_follower;

/* A token that is found in texts before anything else happens to them. */
struct toki_added_token {
    int32_t id;
    bool single_word, lstrip, rstrip;
    const char *text; /* as the matcher will see it; only for toki_added_make */
    size_t text_bytes;
};
typedef struct toki_added_token toki_added_token;

/* A set of added tokens: a trie, and a filter on the first two bytes before it. */
struct toki_added {
    uint32_t count;           /* tokens in the set; 0: nothing is ever found */
    uint8_t pairs[65536 / 8]; /* bit (first byte << 8 | second byte) */
    int first_byte;           /* the first byte of all tokens; -1: they differ */
    bool has_single_word;     /* at least one token is single_word */
    size_t longest;           /* bytes of the longest token */
    toki_trie trie;           /* the values are indices into tokens */
    toki_added_token *tokens;
};
typedef struct toki_added toki_added;

/* How a stage treats the matches of its pattern and the gaps between them. */
enum toki_behavior {
    TOKI_ISOLATED,
    TOKI_REMOVED,
    TOKI_CONTIGUOUS,
    TOKI_MERGED_WITH_PREVIOUS,
    TOKI_MERGED_WITH_NEXT,
};

/* The form of matches without a limit (tokenizer_known.c): `begin`, then a run of `repeat`, then
 *
 *   if a character of `then` follows the run: all characters of `then` that follow, and `tail`
 *   else, if the run (and `begin`) has characters of `last`: the match ends after the last one
 *   else, if it gives_back: the last character of the run is not taken, unless the piece ends
 *   else: all of the run, and `tail`
 *
 * `tail` also follows if the last character of the run is one of `last`. */
struct toki_form_of_run {
    const char *begin, *repeat; /* parts of patterns; `repeat` is one character */
    const char *then, *last;    /* one character; NULL: there is none */
    const char *tail;           /* up to TOKI_TAIL_BYTES, may be missing; NULL: there is none */
    bool gives_back;
};
typedef struct toki_form_of_run toki_form_of_run;

/* A split pattern for which the proofs in tokenizer_known.c hold. */
struct toki_known {
    const char *pattern;
    toki_form_of_run forms[TOKI_FORMS_MAX]; /* the first that fits; repeat NULL: no more */
};
typedef struct toki_known toki_known;

enum toki_stage_kind {
    TOKI_PATTERN,
    TOKI_ADD_SPACE, /* a piece gets a space in front if it has none */
    TOKI_METASPACE, /* spaces become marks, a mark may be put in front; cuts before marks */
    TOKI_MARKS,     /* cuts before a mark that follows another character */
    TOKI_CLASSES,   /* removes white space, makes each punctuation character a piece */
};

/* Which pieces get a mark in front, unless they begin with one. */
enum toki_prepend { TOKI_PREPEND_ALWAYS, TOKI_PREPEND_FIRST, TOKI_PREPEND_NEVER };

/* A character in UTF-8, with a zero. */
struct toki_mark {
    char text[5];
    uint8_t bytes;
};
typedef struct toki_mark toki_mark;

struct toki_stage {
    enum toki_stage_kind kind;
    pcre2_code *code; /* owned; NULL unless TOKI_PATTERN */
    bool has_jit;
    const toki_known *known; /* NULL: nothing is known of the pattern */
    bool invert;             /* exchanges the roles of matches and gaps */
    enum toki_behavior behavior;
    toki_mark mark;                       /* TOKI_METASPACE, TOKI_MARKS */
    enum toki_prepend prepend;            /* TOKI_METASPACE */
    bool cuts_marks;                      /* TOKI_METASPACE */
    bool takes_spaces, takes_punctuation; /* TOKI_CLASSES */
};
typedef struct toki_stage toki_stage;

/* The normal forms of Unicode that a normalizer may ask for. */
enum toki_form { TOKI_NFC, TOKI_NFKC, TOKI_NFD, TOKI_NFKD };

enum toki_step_kind {
    TOKI_STEP_FORM,     /* a normal form */
    TOKI_STEP_MAP,      /* a function of each character */
    TOKI_STEP_STRIP,    /* removes white space at the ends */
    TOKI_STEP_PREPEND,  /* puts a text in front */
    TOKI_STEP_REPLACE,  /* replaces each match of a pattern by a text */
    TOKI_STEP_CHARSMAP, /* SentencePiece's rules, by a double-array trie */
};

enum { TOKI_MAPPED_MAX = 3 };
/* Writes what becomes of a character; returns the number of characters, 0 if it is removed. */
typedef int toki_map(uint32_t character, uint32_t out[TOKI_MAPPED_MAX]);

struct toki_step {
    enum toki_step_kind kind;
    enum toki_form form;   /* TOKI_STEP_FORM */
    uint8_t *steady;       /* TOKI_STEP_FORM; see toki_steady_make */
    toki_map *map;         /* TOKI_STEP_MAP */
    bool at_begin, at_end; /* TOKI_STEP_STRIP */
    toki_stage pattern;    /* TOKI_STEP_REPLACE */
    /* the text of TOKI_STEP_PREPEND and TOKI_STEP_REPLACE; the decoded charsmap, whose first bytes
     * are the trie of unit_count units, followed by texts that end with zeros */
    char *text;
    size_t text_bytes;
    size_t unit_count;     /* TOKI_STEP_CHARSMAP */
    bool is_space_to_mark; /* TOKI_STEP_REPLACE: of each space by U+2581 */
};
typedef struct toki_step toki_step;

/* How a token's text becomes the bytes that it stands for (tokenizer_decoder.c). */
struct toki_decoder {
    bool is_byte_level; /* its characters stand for bytes */
    bool joins;         /* a space comes before each token that has not the prefix */
    bool cleans;        /* WordPiece's cleanup: no space before a full stop, and so on */
    bool falls_back;    /* "<0x0A>" is a byte */
    char prefix[64];    /* of a token that continues a word; "": there is none */
    uint32_t count;     /* of replacements */
    struct {
        char from[16], to[16];
    } replacements[TOKI_DECODER_MAX];
};
typedef struct toki_decoder toki_decoder;

/* A cached word with its ids; texts repeat words. */
struct toki_cached {
    uint8_t byte_count; /* 0: empty */
    uint8_t id_count;
    char bytes[TOKI_CACHED_BYTES + 1];
    int32_t ids[TOKI_CACHED_IDS];
};
typedef struct toki_cached toki_cached;
_Static_assert(sizeof(toki_cached) == 64, "one cache line");

/* The state of one call of encode. Concurrent calls have one each. */
struct toki_worker {
    struct toki_worker *next;
    toki_bytes utf8, normal[2], shadow, space_text, space_shadow;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    toki_cached *cache; /* [TOKI_CACHE_ENTRIES] */
    void *word;         /* the model's tables for one word, from toki_word_room */
    size_t word_capacity;
};
typedef struct toki_worker toki_worker;

enum toki_kind { TOKI_BYTES, TOKI_BPE, TOKI_WORDPIECE, TOKI_UNIGRAM, TOKI_SENTENCEPIECE };

struct tokenizer {
    enum toki_kind kind;
    void *pieces; /* for SentencePiece */
    uint64_t token_count;
    toki_token *tokens; /* [token_count] */
    char *arena;        /* holds the texts and bytes of tokens */
    size_t arena_count, arena_bytes;
    toki_index by_text, by_bytes;
    toki_merge *merges; /* [merge_mask + 1] */
    size_t merge_mask;
    toki_follower *followers;           /* those of a left side lie together, by rising rank */
    uint32_t *followers_at;             /* by left side: the first; and the end of the last list */
    int32_t byte_ids[TOKI_BYTE_VALUES]; /* -1: no token is this single byte */
    int32_t ascii_ids[TOKI_ASCII];      /* tokens whose text is this character; -1: none */
    /* for bytes without a token; -1: such bytes are dropped, as in the library */
    int32_t unknown_id;
    bool fuses_unknown, ignores_merges;
    bool has_all_bytes;     /* each byte is a token */
    bool takes_whole_words; /* words are not merged window by window */
    toki_decoder decoder;
    /* Unigram: all tokens, and the pieces' scores by id; WordPiece: those that begin a word, and
     * those that continue one, without their prefix */
    toki_trie trie, trie_within;
    double *scores, unknown_score;
    size_t word_characters_max; /* WordPiece: longer words are unknown */
    /* bytes; longer words are merged window by window (tokenizer_bpe.c). It is longer than every
     * token. */
    size_t word_window;

    toki_step steps[TOKI_STEPS_MAX];
    uint32_t step_count;
    toki_added added[2]; /* [0]: searched in the original text; [1]: in the normalized text */
    toki_stage stages[TOKI_STAGES_MAX];
    uint32_t stage_count;
    pcre2_code *word_character; /* NULL unless a single_word token needs it */
    token_list prefix, suffix;  /* what adds_special puts around a text */

    int32_t begin_id, end_id;
    bool cuts_lines, cuts_spaces, cuts_tabs; /* see tokenizer_cut_is_safe */
    bool has_first;                          /* a text's first piece is treated differently */
    /* NULL if texts can be encoded as streams; else the reason why not */
    const char *no_stream;
    size_t stream_window; /* bytes of each buffer of a stream */
    uint64_t hash;
    pthread_mutex_t lock; /* protects idle */
    toki_worker *idle;
};

/* ---- tokenizer_vocab.c ----
 *
 * First all tokens are put in one after another, then toki_vocab_index makes them searchable. */
/* Makes room for `count` ids and for `text_bytes` bytes of texts in all. */
int toki_vocab_reserve(tokenizer *self, uint64_t count, uint64_t text_bytes) MUST_CHECK;
/* Copies the text. There must be room, and the id must be unused. A token put after
 * toki_vocab_index is found by its text at once, but is not a word. */
void toki_vocab_put(tokenizer *self, int32_t id, const char *text, size_t bytes);
int toki_vocab_index(tokenizer *self) MUST_CHECK;
int32_t toki_find_text(const tokenizer *self, const char *text, size_t bytes); /* -1: none */
int32_t toki_find_word(const tokenizer *self, const char *word, size_t bytes); /* -1: none */
/* The bytes of a word that is this token. */
const char *toki_word_of(const tokenizer *self, const toki_token *token, size_t *bytes);
int toki_merges_reserve(tokenizer *self, uint64_t count) MUST_CHECK;
void toki_merges_put(tokenizer *self, toki_merge merge); /* for equal pairs the last one stays */
const toki_merge *toki_merge_find(const tokenizer *self, uint32_t left, uint32_t right);
/* Lists the merges by their left sides, and chooses word_window. After all merges. */
int toki_merges_list(tokenizer *self) MUST_CHECK;

/* ---- tokenizer_trie.c ----
 *
 * A trie for keys of up to `bytes` bytes in all. ERR_INPUT with `what` if they are too many. For
 * equal keys the last value stays. */
int toki_trie_make(toki_trie *self, size_t bytes, const char *what) MUST_CHECK;
void toki_trie_put(toki_trie *self, const char *key, size_t bytes, int32_t value);
void toki_trie_fini(toki_trie *self);
/* The node after `node` and a byte; 0: there is none. */
static inline uint32_t toki_trie_next(const toki_trie *self, uint32_t node, uint8_t byte)
{
    uint64_t key = (uint64_t)node << 8 | byte;
    size_t place = (key * 0x9e3779b97f4a7c15u) >> 32 & self->mask;
    for (; self->edges[place]; place = (place + 1) & self->mask)
        if (self->edges[place] >> 32 == key)
            return (uint32_t)self->edges[place];
    return 0;
}
/* The value of the longest key at the beginning of a text, and its bytes; -1: there is none. */
int32_t toki_trie_longest(const toki_trie *self, const char *text, size_t bytes, size_t *length);

/* ---- tokenizer_added.c ----
 *
 * If texts are equal, the last token stays. */
int toki_added_make(toki_added *self, uint32_t count, const toki_added_token *tokens) MUST_CHECK;
void toki_added_fini(toki_added *self);
/* The next token at or after `at`, or NULL. *begin and *end (bytes) include the spaces
 * that the token strips; *begin is not before `from`, the end of the token before. The caller
 * continues the search at *resume. */
const toki_added_token *toki_added_next(const tokenizer *owner, const toki_added *self,
                                        const char *text, size_t bytes, size_t at, size_t from,
                                        size_t *begin, size_t *end, size_t *resume);

/* ---- tokenizer_text.c ---- */
uint32_t toki_decode(const char *text, size_t *bytes); /* one character of valid UTF-8 */
/* Valid UTF-8: the text itself, or a copy in *copy if bytes had to be replaced by U+FFFD. */
int toki_text_valid(const char *text, size_t bytes, toki_bytes *copy, const char **out,
                    size_t *out_bytes) MUST_CHECK;
int toki_append(toki_bytes *self, const void *text, size_t bytes) MUST_CHECK;
/* Makes a bit set; bit c is 1 if the form keeps the character c, whatever is before it, and c
 * begins a cluster. */
int toki_steady_make(enum toki_form form, uint8_t **out) MUST_CHECK;
/* The normal form of valid UTF-8. It is the text itself if that is already in the form, else a
 * copy. */
int toki_text_normal(enum toki_form form, const uint8_t *steady, const char *text, size_t bytes,
                     toki_bytes *copy, const char **out, size_t *out_bytes) MUST_CHECK;
/* The shadow of a text: each character on which versions of Unicode disagree is replaced by its
 * stand-in. The stand-in has the same length in bytes, and in all versions the class that the
 * library gives to the original. Mostly the text itself. */
int toki_text_shadow(const char *text, size_t bytes, toki_bytes *copy, const char **out) MUST_CHECK;
uint32_t toki_stand_in(uint32_t character);
bool toki_is_space(uint32_t character); /* Unicode's White_Space */
/* True if the library's normal forms keep the character because their Unicode is older than it. */
bool toki_is_unknown(uint32_t character);

/* ---- tokenizer_classes.c: classes of characters as the library's own tables have them ---- */
bool toki_is_punctuation(uint32_t character);
/* Functions for TOKI_STEP_MAP. */
toki_map toki_map_clean, toki_map_chinese, toki_map_lower, toki_map_no_nonspacing,
    toki_map_no_marks;

/* ---- tokenizer_normalize.c ----
 *
 * All steps of the normalizer on valid UTF-8. The result is the text itself or lies in the
 * worker. */
int toki_normalize(const tokenizer *self, toki_worker *worker, const char *text, size_t bytes,
                   const char **out, size_t *out_bytes) MUST_CHECK;
void toki_step_fini(toki_step *self);

/* ---- tokenizer_decoder.c ---- */
void toki_byte_alphabet(uint16_t characters[TOKI_BYTE_VALUES]);
int toki_byte_token(const char *text, size_t bytes); /* the byte of "<0x0A>"; -1: it is none */
/* Writes the bytes that a token's text stands for; there must be room for toki_decoded_most(bytes)
 * of them. True if merges may give the token. */
bool toki_decode_token(const toki_decoder *self, const char *text, size_t text_bytes, char *out,
                       size_t *count);
static inline size_t toki_decoded_most(size_t text_bytes)
{
    return text_bytes + 1;
}

/* ---- tokenizer_pattern.c ----
 *
 * Compiles a pattern in Oniguruma's syntax, as the library reads it. ERR_CONFIG, with `where`, if
 * the pattern is invalid or not supported. */
int toki_pattern_compile(const char *where, const char *pattern, size_t bytes,
                         toki_stage *out) MUST_CHECK;
int toki_pattern_literal(const char *where, const char *text, size_t bytes,
                         toki_stage *out) MUST_CHECK;
int toki_pattern_digits(bool individual, toki_stage *out) MUST_CHECK;
int toki_pattern_word_character(pcre2_code **out) MUST_CHECK;
int toki_pattern_fixed(const char *pattern, pcre2_code **out) MUST_CHECK; /* in PCRE2's syntax */

/* ---- tokenizer_known.c ---- */
extern const char toki_gpt2_pattern[];
extern const toki_known toki_known_patterns[]; /* the last one has no pattern */
const toki_known *toki_known_find(const char *pattern, size_t bytes); /* NULL: not known */
/* True if the matches of the pattern leave no gaps where a text may be cut. */
bool toki_known_takes_all(const toki_known *self);

/* ---- tokenizer_word.c ----
 *
 * Appends the ids of one word. ERR_INPUT for a character that has no token. */
int toki_word(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
              token_list *out) MUST_CHECK;
/* Memory for a word's tables; it stays until the next call. */
void *toki_word_room(toki_worker *worker, size_t bytes) MUST_CHECK;

/* ---- tokenizer_bpe.c ----
 *
 * Appends the ids that the merges give for a word. */
int toki_bpe_word(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
                  token_list *out) MUST_CHECK;
/* Appends the ids with which every word begins that begins with these bytes. *done: the bytes of
 * these ids. ERR_INPUT if they are too few to be worth it. */
int toki_word_front(const tokenizer *self, toki_worker *worker, const char *text, size_t bytes,
                    token_list *out, size_t *done) MUST_CHECK;
/* Appends the ids of the rest of a word whose front is done. */
int toki_word_rest(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
                   token_list *out) MUST_CHECK;

/* ---- tokenizer_encode.c ---- */
int toki_match_failed(int code, size_t at); /* for an error of PCRE2, at a byte of a text */
/* A walk over the matches of a pattern; all zero is the beginning. The gap before a match begins at
 * gap_begin; after the last match it ends with the text. */
struct toki_matches {
    size_t gap_begin, begin, end, at;
    bool has_match;
};
typedef struct toki_matches toki_matches;
/* Finds the next match. An empty match counts if it does not touch the match before it, as in the
 * library. Returns 1, 0 if there is none, or an error. */
int toki_match_next(toki_worker *worker, const toki_stage *stage, const char *text, size_t bytes,
                    toki_matches *walk) MUST_CHECK;
int toki_encode(const tokenizer *self, toki_worker *worker, const char *text, size_t bytes,
                bool plain_text, token_list *out) MUST_CHECK;

/* ---- tokenizer_stream.c ---- */
int toki_stream(const tokenizer *self, toki_worker *worker, const tokenize_source *source,
                bool plain_text, const tokenize_sink *sink) MUST_CHECK;

/* ---- tokenizer_json.c, tokenizer_model.c, tokenizer_config.c ----
 *
 * The types of the JSON library stay out of this header. */
int toki_json_open(tokenizer *self, const char *path) MUST_CHECK;
int toki_config_read(tokenizer *self, const char *name) MUST_CHECK;

int toki_list_reserve(token_list *self, size_t more) MUST_CHECK;
static inline int toki_list_add(token_list *self, int32_t id)
{
    if (self->count == self->capacity)
        TRY(toki_list_reserve(self, 1));
    self->ids[self->count++] = id;
    return 0;
}
toki_worker *toki_worker_create(void) MUST_CHECK;
void toki_worker_destroy(toki_worker *self);

/* ---- tokenizer_sp.c; tokenizer_sp_absent.c if libsentencepiece was not there at build time ----
 *
 * Fills tokens, begin_id, end_id, prefix, suffix and hash of *self. ERR_INPUT if the file is not a
 * SentencePiece model; ERR_CONFIG, with what to install, in a build without the library. */
int toki_sp_open(tokenizer *self, const char *path) MUST_CHECK;
void toki_sp_close(tokenizer *self); /* allowed also if nothing was opened */
/* Appends the ids of a text. -ENOMEM; ERR_BACKEND with the library's message. */
int toki_sp_encode(const tokenizer *self, const char *text, size_t bytes,
                   token_list *out) MUST_CHECK;

#endif
