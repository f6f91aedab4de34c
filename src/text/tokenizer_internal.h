/* Declarations that the files of the tokenizer share: an opened tokenizer, and the state of one
 * call of encode.
 *
 * A text takes this way. Each arrow cuts it into pieces, and the next arrow treats a piece as a
 * text of its own:
 *
 *   bytes -> UTF-8 -> added tokens (not normalized) -> NFC -> added tokens (normalized)
 *         -> stage 0 -> ... -> words -> ids
 *
 * Vocabulary:
 *   added token   found in a text before anything else happens to the text
 *   stage         a pattern (or an added space) that cuts a piece into smaller ones
 *   word          a piece after the last stage; the merges apply within it
 *   stand-in      a character that replaces, for the patterns only, one on whose class versions of
 *                 Unicode disagree; the text with stand-ins is the shadow (tokenizer_text.c)
 *   steady        a character that a normal form keeps and that begins a new cluster
 *   worker        the buffers of one call of encode */
#ifndef SLUICE_TEXT_TOKENIZER_INTERNAL_H
#define SLUICE_TEXT_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>

#include "text/tokenizer.h"

enum {
    TOKI_BYTE_VALUES = 256,
    TOKI_ID_MAX = (1 << 22) - 1, /* of a tokenizer.json; bounds the tables of tokens */
    TOKI_STAGES_MAX = 32,
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
    bool is_word; /* all characters are of the byte alphabet, so merges may give it */
};
typedef struct toki_token toki_token;

/* Ids by a key of bytes. Open addressing; the number of slots is a power of two, at most half of
 * them are used. */
struct toki_index {
    int32_t *ids; /* [mask + 1]; -1: empty */
    size_t mask;
};
typedef struct toki_index toki_index;

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

/* A set of added tokens: a trie with hashed edges, and a filter on the first two bytes before
 * it. */
struct toki_added {
    uint32_t count;           /* tokens in the set; 0: nothing is ever found */
    uint8_t pairs[65536 / 8]; /* bit (first byte << 8 | second byte) */
    int first_byte;           /* the first byte of all tokens; -1: they differ */
    bool has_single_word;     /* at least one token is single_word */
    size_t longest;           /* bytes of the longest token */
    uint64_t *edges;          /* [mask + 1]: node << 40 | byte << 32 | next node; 0: empty */
    size_t mask;
    int32_t *token_of_node; /* [node_count]: index into tokens; -1: no token ends there */
    uint32_t node_count;
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

struct toki_stage {
    bool adds_space;  /* no pattern: a piece gets a space in front if it has none */
    pcre2_code *code; /* owned; NULL if adds_space */
    bool has_jit;
    const toki_known *known; /* NULL: nothing is known of the pattern */
    bool invert;             /* exchanges the roles of matches and gaps */
    enum toki_behavior behavior;
};
typedef struct toki_stage toki_stage;

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
    toki_bytes utf8, normal, shadow, space_text, space_shadow;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    toki_cached *cache; /* [TOKI_CACHE_ENTRIES] */
    void *word;         /* tokenizer_bpe.c's tables for a word of up to `word_capacity` bytes */
    size_t word_capacity;
};
typedef struct toki_worker toki_worker;

/* The normal forms of Unicode that a normalizer may ask for. */
enum toki_form { TOKI_AS_IT_IS, TOKI_NFC, TOKI_NFKC };

enum toki_kind { TOKI_BYTES, TOKI_BPE, TOKI_SENTENCEPIECE };

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
    /* for bytes without a token; -1: such bytes are dropped, as in the library */
    int32_t unknown_id;
    bool fuses_unknown, ignores_merges;
    bool has_all_bytes; /* each byte is a token */
    /* bytes; longer words are merged window by window (tokenizer_bpe.c). It is longer than every
     * token. */
    size_t word_window;

    enum toki_form form;
    uint8_t *steady;     /* for `form`, unless TOKI_AS_IT_IS; see toki_steady_make */
    toki_added added[2]; /* [0]: searched in the original text; [1]: in the normalized text */
    toki_stage stages[TOKI_STAGES_MAX];
    uint32_t stage_count;
    pcre2_code *word_character; /* NULL unless a single_word token needs it */
    token_list prefix, suffix;  /* what adds_special puts around a text */

    int32_t begin_id, end_id;
    bool cuts_lines, cuts_spaces; /* see tokenizer_cut_is_safe */
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
void toki_byte_alphabet(uint16_t characters[TOKI_BYTE_VALUES]);
/* Makes room for `count` ids and for `text_bytes` bytes of texts in all. */
int toki_vocab_reserve(tokenizer *self, uint64_t count, uint64_t text_bytes) MUST_CHECK;
/* Copies the text. There must be room, and the id must be unused. A token put after
 * toki_vocab_index is found by its text at once, but is not a word. */
void toki_vocab_put(tokenizer *self, int32_t id, const char *text, size_t bytes);
int toki_vocab_index(tokenizer *self) MUST_CHECK;
int32_t toki_find_text(const tokenizer *self, const char *text, size_t bytes); /* -1: none */
int32_t toki_find_word(const tokenizer *self, const char *word, size_t bytes); /* -1: none */
int toki_merges_reserve(tokenizer *self, uint64_t count) MUST_CHECK;
void toki_merges_put(tokenizer *self, toki_merge merge); /* for equal pairs the last one stays */
const toki_merge *toki_merge_find(const tokenizer *self, uint32_t left, uint32_t right);
/* Lists the merges by their left sides, and chooses word_window. After all merges. */
int toki_merges_list(tokenizer *self) MUST_CHECK;

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

/* ---- tokenizer_bpe.c ----
 *
 * Appends the ids of one word. */
int toki_word(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
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
