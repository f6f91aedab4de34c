/* tokenizer.json: the model, that is its vocabulary with merges or scores. See tokenizer_json.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "text/tokenizer_json.h"

/* --- vocabulary --- */

/* One token of model.vocab: {"text": id}, or [["text", score], ...] with ids in order. */
struct vocab_entry {
    const char *text;
    size_t bytes;
    int32_t id;
    double score;
};
typedef struct vocab_entry vocab_entry;

/* A walk over model.vocab; all zero is the beginning. */
struct vocab_walk {
    void *at;
    size_t idx;
};
typedef struct vocab_walk vocab_walk;

/* 1: *out is the next entry; 0: there are no more; or an error. */
static int next_entry(const toki_reader *self, const json_t *vocab, vocab_walk *walk,
                      vocab_entry *out)
{
    if (json_is_object(vocab)) {
        walk->at = walk->at ? json_object_iter_next((json_t *)vocab, walk->at)
                            : json_object_iter((json_t *)vocab);
        if (!walk->at)
            return 0;
        *out = (vocab_entry){.text = json_object_iter_key(walk->at)};
        out->bytes = strlen(out->text);
        TRY(toki_id(self, "model.vocab", json_object_iter_value(walk->at), &out->id));
        return 1;
    }
    if (walk->idx == json_array_size(vocab))
        return 0;
    const json_t *pair = json_array_get(vocab, walk->idx);
    const json_t *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_string(text) || !json_is_number(score) ||
        walk->idx > TOKI_ID_MAX)
        return err_set(ERR_INPUT, "%s: model.vocab[%zu] is not a pair of a text and a number",
                       self->path, walk->idx);
    *out = (vocab_entry){json_string_value(text), json_string_length(text), (int32_t)walk->idx++,
                         json_number_value(score)};
    return 1;
}

size_t toki_vocab_size(const json_t *vocab)
{
    return json_is_object(vocab) ? json_object_size(vocab) : json_array_size(vocab);
}

/* Makes room for the model's tokens and for the added ones, all of which may be new. */
static int reserve_tokens(const toki_reader *self, const json_t *vocab, const json_t *added,
                          uint64_t *vocab_bytes)
{
    uint64_t text_bytes = 1, highest = 0;
    vocab_walk walk = {0};
    vocab_entry token;
    int rc;
    while ((rc = next_entry(self, vocab, &walk, &token)) > 0) {
        highest = size_max(highest, (uint64_t)token.id + 1);
        text_bytes += token.bytes;
    }
    TRY(rc);
    *vocab_bytes = text_bytes;
    for (size_t i = 0; i < json_array_size(added); i++) {
        size_t bytes;
        if (toki_content_of(json_array_get(added, i), &bytes))
            text_bytes += bytes;
    }
    uint64_t most = toki_vocab_size(vocab) + json_array_size(added);
    if (most > TOKI_ID_MAX)
        return err_set(ERR_INPUT, "%s: %llu tokens; at most %d are read", self->path,
                       (unsigned long long)most, (int)TOKI_ID_MAX);
    return toki_vocab_reserve(self->self, size_max(highest, most), text_bytes);
}

static int read_vocab(const toki_reader *self, const json_t *vocab)
{
    tokenizer *owner = self->self;
    vocab_walk walk = {0};
    vocab_entry listed;
    int rc;
    while ((rc = next_entry(self, vocab, &walk, &listed)) > 0) {
        const toki_token *token = &owner->tokens[listed.id];
        if (token->text)
            return err_set(ERR_INPUT, "%s: model.vocab gives the id %d to \"%.*s\" and to \"%.*s\"",
                           self->path, listed.id, toki_shown(token->text_bytes), token->text,
                           toki_shown(listed.bytes), listed.text);
        toki_vocab_put(owner, listed.id, listed.text, listed.bytes);
    }
    TRY(rc);
    return toki_vocab_index(owner);
}

/* --- merges --- */

struct side {
    const char *text;
    size_t bytes;
};

/* The two sides of an entry: ["a", "b"] or "a b". */
static int merge_sides(const toki_reader *self, const json_t *entry, size_t i, struct side sides[2])
{
    if (json_is_array(entry) && json_array_size(entry) == 2) {
        for (size_t s = 0; s < 2; s++) {
            const json_t *text = json_array_get(entry, s);
            if (!json_is_string(text))
                return err_set(ERR_INPUT, "%s: model.merges[%zu] does not hold two strings",
                               self->path, i);
            sides[s] = (struct side){json_string_value(text), json_string_length(text)};
        }
        return 0;
    }
    const char *text = json_string_value(entry);
    size_t bytes = json_string_length(entry);
    const char *space = text ? memchr(text, ' ', bytes) : NULL;
    size_t left = space ? (size_t)(space - text) : 0;
    if (!space || memchr(space + 1, ' ', bytes - left - 1))
        return err_set(ERR_INPUT, "%s: model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]",
                       self->path, i);
    sides[0] = (struct side){text, left};
    sides[1] = (struct side){space + 1, bytes - left - 1};
    return 0;
}

static int side_id(const toki_reader *self, struct side side, size_t i, uint32_t *out)
{
    int32_t id = toki_find_text(self->self, side.text, side.bytes);
    if (id < 0)
        return err_set(ERR_INPUT, "%s: model.merges[%zu] has \"%.*s\", which is not in model.vocab",
                       self->path, i, toki_shown(side.bytes), side.text);
    *out = (uint32_t)id;
    return 0;
}

static int read_merge(const toki_reader *self, const json_t *entry, size_t i, uint32_t rank,
                      toki_bytes *joined)
{
    struct side sides[2];
    toki_merge merge = {.rank = rank};
    TRY(merge_sides(self, entry, i, sides));
    TRY(side_id(self, sides[0], i, &merge.left));
    TRY(side_id(self, sides[1], i, &merge.right));
    joined->count = 0;
    TRY(toki_bytes_reserve(joined, sides[0].bytes + sides[1].bytes));
    memcpy(joined->data, sides[0].text, sides[0].bytes);
    memcpy(joined->data + sides[0].bytes, sides[1].text, sides[1].bytes);
    TRY(side_id(self, (struct side){joined->data, sides[0].bytes + sides[1].bytes}, i, &merge.id));
    toki_merges_put(self->self, merge);
    return 0;
}

static int read_merges(const toki_reader *self, const json_t *merges)
{
    toki_bytes joined = {0};
    uint32_t rank = 0;
    int rc = toki_merges_reserve(self->self, json_array_size(merges));
    bool has_pairs = json_is_array(json_array_get(merges, 0));
    for (size_t i = 0; rc == 0 && i < json_array_size(merges); i++) {
        const json_t *entry = json_array_get(merges, i);
        if (json_is_array(entry) != has_pairs)
            rc = err_set(ERR_INPUT,
                         "%s: model.merges[%zu] has another form than the entries before it",
                         self->path, i);
        else if (has_pairs || !json_is_string(entry) ||
                 strncmp(json_string_value(entry), "#version", strlen("#version")) != 0)
            rc = read_merge(self, entry, i, rank++, &joined);
    }
    mem_free(joined.data);
    return rc;
}

/* --- the model --- */

static int refuse_affix(const toki_reader *self, const json_t *model, const char *name)
{
    json_t *affix;
    TRY(toki_member(self, "model", model, name, JSON_STRING, &affix));
    if (affix && json_string_length(affix))
        return err_set(ERR_CONFIG, "%s: model.%s is not supported", self->path, name);
    return 0;
}

/* Finds the tokens of bytes ("<0x0A>") of a model that is not byte-level. */
static int read_fallback(const toki_reader *self, const json_t *model)
{
    tokenizer *owner = self->self;
    bool falls_back;
    int count = 0;
    TRY(toki_member_bool(self, "model", model, "byte_fallback", false, &falls_back));
    for (unsigned b = 0; falls_back && b < TOKI_BYTE_VALUES; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        owner->byte_ids[b] = toki_find_text(owner, text, strlen(text));
        count += owner->byte_ids[b] >= 0;
    }
    owner->has_all_bytes = count == TOKI_BYTE_VALUES;
    if (count != 0 && !owner->has_all_bytes)
        return err_set(ERR_CONFIG,
                       "%s: model.byte_fallback is supported with all 256 tokens of bytes or with "
                       "none; model.vocab has %d",
                       self->path, count);
    return 0;
}

static bool is_byte_token(const tokenizer *owner, uint32_t id)
{
    return toki_byte_token(owner->tokens[id].text, owner->tokens[id].text_bytes) >= 0;
}

/* Reads how to treat a byte or a character that is not a token. It has no effect on a byte-level
 * model whose vocabulary has all 256 bytes. */
static int read_unknown(const toki_reader *self, const json_t *model)
{
    tokenizer *owner = self->self;
    json_t *unknown;
    bool falls_back;
    TRY(toki_member_bool(self, "model", model, "fuse_unk", false, &owner->fuses_unknown));
    TRY(toki_member_bool(self, "model", model, "byte_fallback", false, &falls_back));
    TRY(toki_member(self, "model", model, "unk_token", JSON_STRING, &unknown));
    if (owner->decoder.is_byte_level) {
        owner->has_all_bytes = true;
        for (unsigned b = 0; b < TOKI_BYTE_VALUES; b++)
            owner->has_all_bytes &= owner->byte_ids[b] >= 0;
        if (owner->has_all_bytes)
            return 0;
        if (falls_back)
            return err_set(
                ERR_CONFIG,
                "%s: model.byte_fallback with bytes that are not in model.vocab is not supported",
                self->path);
    } else {
        TRY(read_fallback(self, model));
    }
    if (unknown) {
        owner->unknown_id =
            toki_find_text(owner, json_string_value(unknown), json_string_length(unknown));
        if (owner->unknown_id < 0)
            return err_set(ERR_INPUT, "%s: model.unk_token is not in model.vocab", self->path);
    }
    if (owner->decoder.is_byte_level)
        return 0;
    /* toki_word_front compares the texts of tokens with the word, and knows all tokens of a part */
    owner->takes_whole_words = !owner->has_all_bytes;
    for (size_t i = 0; i <= owner->merge_mask && !owner->takes_whole_words; i++)
        owner->takes_whole_words =
            owner->merges[i].rank != UINT32_MAX && (is_byte_token(owner, owner->merges[i].left) ||
                                                    is_byte_token(owner, owner->merges[i].right));
    return 0;
}

static int read_bpe(const toki_reader *self, const json_t *model)
{
    json_t *merges;
    TRY(toki_member(self, "model", model, "merges", JSON_ARRAY, &merges));
    if (!merges)
        return err_set(ERR_INPUT, "%s: model.merges is missing", self->path);
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return err_set(ERR_CONFIG, "%s: model.dropout is not supported: it would give random ids",
                       self->path);
    TRY(refuse_affix(self, model, "continuing_subword_prefix"));
    TRY(refuse_affix(self, model, "end_of_word_suffix"));
    TRY(toki_member_bool(self, "model", model, "ignore_merges", false,
                         &self->self->ignores_merges));
    TRY(read_merges(self, merges));
    TRY(toki_merges_list(self->self));
    return read_unknown(self, model);
}

/* Puts the tokens of the model in tries. `prefix` begins the tokens that continue a word. */
static int make_tries(const toki_reader *self, uint64_t vocab_bytes, const char *prefix)
{
    enum { PIECE_BYTES_MAX = 4096 }; /* each place of a text is compared with as many bytes */
    tokenizer *owner = self->self;
    size_t prefix_bytes = prefix ? strlen(prefix) : 0;
    TRY(toki_trie_make(&owner->trie, vocab_bytes, "model.vocab"));
    if (prefix)
        TRY(toki_trie_make(&owner->trie_within, vocab_bytes, "model.vocab"));
    for (uint64_t id = 0; id < owner->token_count; id++) {
        const toki_token *token = &owner->tokens[id];
        if (!token->text || token->text_bytes == 0)
            continue;
        if (token->text_bytes > PIECE_BYTES_MAX)
            return err_set(ERR_INPUT,
                           "%s: model.vocab has a token of %u bytes; at most %d are read",
                           self->path, token->text_bytes, (int)PIECE_BYTES_MAX);
        toki_trie_put(&owner->trie, token->text, token->text_bytes, (int32_t)id);
        if (prefix && token->text_bytes > prefix_bytes &&
            memcmp(token->text, prefix, prefix_bytes) == 0)
            toki_trie_put(&owner->trie_within, token->text + prefix_bytes,
                          token->text_bytes - prefix_bytes, (int32_t)id);
    }
    return 0;
}

static int read_wordpiece(const toki_reader *self, const json_t *model, uint64_t vocab_bytes)
{
    enum { CHARACTERS_MAX = 100 };
    tokenizer *owner = self->self;
    json_t *prefix, *unknown;
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    TRY(toki_member(self, "model", model, "continuing_subword_prefix", JSON_STRING, &prefix));
    TRY(toki_member(self, "model", model, "unk_token", JSON_STRING, &unknown));
    if (most && !(json_is_integer(most) && json_integer_value(most) >= 0))
        return err_set(ERR_INPUT, "%s: model.max_input_chars_per_word is not a count", self->path);
    owner->word_characters_max = most ? (size_t)json_integer_value(most) : CHARACTERS_MAX;
    const char *name = unknown ? json_string_value(unknown) : "[UNK]";
    owner->unknown_id = toki_find_text(owner, name, strlen(name));
    if (owner->unknown_id < 0)
        return err_set(ERR_INPUT, "%s: model.unk_token is not in model.vocab", self->path);
    return make_tries(self, vocab_bytes, prefix ? json_string_value(prefix) : "##");
}

/* A score as the library reads it from the file: the digits as an integer, times or divided by a
 * power of ten. That is not always the nearest number, and equal scores are decided by it. */
static double score_of(double value)
{
    enum { DIGITS = 17, POWER_MAX = 308 };
    char text[40], digits[DIGITS + 2];
    size_t count = 0;
    for (int precision = 15; precision <= DIGITS; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, fabs(value));
        if (strtod(text, NULL) == fabs(value))
            break;
    }
    const char *exponent = strchr(text, 'e');
    if (!exponent || value == 0)
        return value;
    for (const char *at = text; at < exponent; at++)
        if (*at != '.')
            digits[count++] = *at;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    digits[count] = '\0';
    int power = atoi(exponent + 1) - (int)(count - 1);
    double score = (double)strtoull(digits, NULL, 10);
    for (; power < -POWER_MAX; power += POWER_MAX)
        score /= 1e308;
    score = power < 0 ? score / pow(10, -power) : score * pow(10, power);
    return value < 0 ? -score : score;
}

static int read_unigram(const toki_reader *self, const json_t *model, const json_t *vocab,
                        uint64_t vocab_bytes)
{
    static const double unknown_penalty = 10; /* as in SentencePiece */
    tokenizer *owner = self->self;
    const json_t *unknown = json_object_get(model, "unk_id");
    vocab_walk walk = {0};
    vocab_entry listed;
    if (unknown && !json_is_null(unknown)) {
        TRY(toki_id(self, "model.unk_id", unknown, &owner->unknown_id));
        if ((size_t)owner->unknown_id >= toki_vocab_size(vocab))
            return err_set(ERR_INPUT, "%s: model.unk_id is not in model.vocab", self->path);
    }
    owner->scores = mem_alloc(toki_vocab_size(vocab), sizeof *owner->scores, "tokenizer scores");
    if (!owner->scores)
        return -ENOMEM;
    double least = HUGE_VAL;
    while (next_entry(self, vocab, &walk, &listed) > 0) {
        owner->scores[listed.id] = score_of(listed.score);
        least = fmin(least, owner->scores[listed.id]);
    }
    owner->unknown_score = least - unknown_penalty;
    TRY(read_fallback(self, model));
    return make_tries(self, vocab_bytes, NULL);
}

int toki_read_model(const toki_reader *self)
{
    static const char *const kinds[] = {"BPE", "WordPiece", "Unigram"};
    json_t *model, *vocab, *added, *type;
    uint64_t vocab_bytes;
    int kind = 0;
    TRY(toki_member(self, "the document", self->root, "model", JSON_OBJECT, &model));
    if (!model)
        return err_set(ERR_INPUT, "%s has no model: this is not a tokenizer.json", self->path);
    TRY(toki_member(self, "model", model, "type", JSON_STRING, &type));
    while (type && kind < 3 && strcmp(json_string_value(type), kinds[kind]) != 0)
        kind++;
    if (kind == 3 || (kind > 0 && self->self->decoder.is_byte_level))
        return err_set(
            ERR_CONFIG, "%s: a model of type %s is not supported%s; BPE, WordPiece and Unigram are",
            self->path, json_string_value(type), kind < 3 ? " together with ByteLevel" : "");
    self->self->kind = TOKI_BPE + (enum toki_kind)kind;
    TRY(toki_member(self, "model", model, "vocab", kind == 2 ? JSON_ARRAY : JSON_OBJECT, &vocab));
    if (!vocab)
        return err_set(ERR_INPUT, "%s: model.vocab is missing", self->path);
    TRY(toki_member(self, "the document", self->root, "added_tokens", JSON_ARRAY, &added));
    TRY(reserve_tokens(self, vocab, added, &vocab_bytes));
    TRY(read_vocab(self, vocab));
    return kind == 0   ? read_bpe(self, model)
           : kind == 1 ? read_wordpiece(self, model, vocab_bytes)
                       : read_unigram(self, model, vocab, vocab_bytes);
}
