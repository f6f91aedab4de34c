/* tokenizer.json: the added tokens, and the post-processor. See tokenizer_json.h. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "text/tokenizer_json.h"

const char *toki_content_of(const json_t *added, size_t *bytes)
{
    const json_t *content = json_object_get(added, "content");
    *bytes = json_string_length(content);
    /* NULL if it is not a string; toki_read_added reports that */
    return json_string_value(content);
}

/* --- added tokens --- */

/* The added token with this id: its entry in the file, and how to search for it. */
struct added {
    const json_t *entry;
    toki_added_token token;
    bool is_normalized;
};
typedef struct added added;

static int read_added_token(const toki_reader *self, const json_t *entry, added *entries,
                            int32_t *next_id, uint32_t *moved)
{
    tokenizer *owner = self->self;
    added fresh = {.entry = entry};
    bool is_special;
    size_t bytes;
    int32_t written;
    if (!json_is_object(entry))
        return err_set(ERR_INPUT, "%s: an entry of added_tokens is not an object", self->path);
    const char *text = toki_content_of(entry, &bytes);
    if (!text)
        return err_set(ERR_INPUT, "%s: an entry of added_tokens has no content", self->path);
    TRY(toki_id(self, "added_tokens", json_object_get(entry, "id"), &written));
    TRY(toki_member_bool(self, "added_tokens", entry, "special", false, &is_special));
    TRY(toki_member_bool(self, "added_tokens", entry, "normalized", !is_special,
                         &fresh.is_normalized));
    TRY(toki_member_bool(self, "added_tokens", entry, "single_word", false,
                         &fresh.token.single_word));
    TRY(toki_member_bool(self, "added_tokens", entry, "lstrip", false, &fresh.token.lstrip));
    TRY(toki_member_bool(self, "added_tokens", entry, "rstrip", false, &fresh.token.rstrip));
    if (bytes == 0)
        return 0;
    int32_t id = toki_find_text(owner, text, bytes);
    if (id < 0) { /* the library numbers new tokens itself and ignores the file's ids */
        id = (*next_id)++;
        if (owner->tokens[id].text)
            return err_set(
                ERR_INPUT,
                "%s: the added token \"%.*s\" would get the id %d of \"%.*s\": model.vocab "
                "has gaps below it",
                self->path, toki_shown(bytes), text, id, toki_shown(owner->tokens[id].text_bytes),
                owner->tokens[id].text);
        toki_vocab_put(owner, id, text, bytes);
    }
    *moved += id != written;
    owner->tokens[id].is_special |= is_special;
    fresh.token.id = id;
    entries[id] = fresh;
    return 0;
}

/* Makes one of the two sets. Normalized tokens are searched in normalized text, so their own texts
 * are normalized first. */
static int make_set(tokenizer *owner, const added *entries, bool normalized)
{
    uint32_t count = 0, most = 0;
    for (uint64_t id = 0; id < owner->token_count; id++)
        most += entries[id].entry && entries[id].is_normalized == normalized;
    if (most == 0)
        return 0;
    toki_added_token *tokens = mem_alloc(most, sizeof *tokens, "tokenizer added tokens");
    toki_bytes *copies = mem_alloc(most, sizeof *copies, "tokenizer added tokens");
    toki_worker *worker = toki_worker_create();
    int rc = tokens && copies && worker ? 0 : -ENOMEM;
    for (uint64_t id = 0; rc == 0 && id < owner->token_count; id++) {
        if (!entries[id].entry || entries[id].is_normalized != normalized)
            continue;
        toki_added_token *token = &tokens[count];
        *token = entries[id].token;
        token->text = toki_content_of(entries[id].entry, &token->text_bytes);
        if (normalized) {
            rc = toki_normalize(owner, worker, token->text, token->text_bytes, &token->text,
                                &token->text_bytes);
            if (rc == 0)
                rc = toki_append(&copies[count], token->text, token->text_bytes);
            token->text = copies[count].data;
        }
        count += token->text_bytes > 0; /* the normalizer may remove all of it */
    }
    if (rc == 0)
        rc = toki_added_make(&owner->added[normalized], count, tokens);
    for (uint32_t i = 0; copies && i < most; i++)
        mem_free(copies[i].data);
    if (worker)
        toki_worker_destroy(worker);
    mem_free(copies);
    mem_free(tokens);
    return rc;
}

int toki_read_added(const toki_reader *self)
{
    tokenizer *owner = self->self;
    json_t *list, *model = json_object_get(self->root, "model");
    int32_t next_id = (int32_t)toki_vocab_size(json_object_get(model, "vocab"));
    uint32_t moved = 0;
    TRY(toki_member(self, "the document", self->root, "added_tokens", JSON_ARRAY, &list));
    added *entries = mem_alloc(owner->token_count, sizeof *entries, "tokenizer added tokens");
    int rc = entries ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++)
        rc = read_added_token(self, json_array_get(list, i), entries, &next_id, &moved);
    while (owner->token_count && !owner->tokens[owner->token_count - 1].text)
        owner->token_count--; /* room reserved for tokens that already existed */
    for (int normalized = 0; rc == 0 && normalized < 2; normalized++)
        rc = make_set(owner, entries, normalized);
    mem_free(entries);
    if (rc == 0 && (owner->added[0].has_single_word || owner->added[1].has_single_word))
        rc = toki_pattern_word_character(&owner->word_character);
    if (rc == 0 && moved)
        log_warn("%s: %u of added_tokens get other ids than the file says, as in the tokenizers "
                 "library: those follow the vocabulary",
                 self->path, moved);
    return rc;
}

/* --- the post-processor --- */

static int add_id_around(const toki_reader *self, token_list *out, const json_t *id)
{
    if (out->count == TOKI_ID_MAX)
        return err_set(ERR_INPUT, "%s: post_processor puts more than %d ids around a text",
                       self->path, (int)TOKI_ID_MAX);
    TRY(toki_list_reserve(out, 1));
    return toki_id(self, "post_processor", id, &out->ids[out->count++]);
}

/* Reads one piece of a template: the place of the text, or a special token with its ids. */
static int read_piece(const toki_reader *self, const json_t *post, const json_t *piece,
                      bool *has_text)
{
    tokenizer *owner = self->self;
    json_t *text, *special, *name, *all, *named, *ids;
    TRY(toki_member(self, "post_processor.single", piece, "Sequence", JSON_OBJECT, &text));
    TRY(toki_member(self, "post_processor.single", piece, "SpecialToken", JSON_OBJECT, &special));
    if (text) {
        TRY(toki_member(self, "post_processor.single", text, "id", JSON_STRING, &name));
        if (*has_text || !name || strcmp(json_string_value(name), "A") != 0)
            return err_set(ERR_CONFIG, "%s: post_processor.single must have exactly one text, A",
                           self->path);
        *has_text = true;
        return 0;
    }
    TRY(toki_member(self, "post_processor.single", special, "id", JSON_STRING, &name));
    TRY(toki_member(self, "post_processor", post, "special_tokens", JSON_OBJECT, &all));
    if (!name)
        return err_set(ERR_INPUT, "%s: a piece of post_processor.single has no id", self->path);
    TRY(toki_member(self, "post_processor.special_tokens", all, json_string_value(name),
                    JSON_OBJECT, &named));
    TRY(toki_member(self, "post_processor.special_tokens", named, "ids", JSON_ARRAY, &ids));
    if (!ids)
        return err_set(ERR_INPUT, "%s: post_processor.special_tokens has no ids of \"%.*s\"",
                       self->path, TOKI_SHOWN, json_string_value(name));
    for (size_t i = 0; i < json_array_size(ids); i++)
        TRY(add_id_around(self, *has_text ? &owner->suffix : &owner->prefix,
                          json_array_get(ids, i)));
    return 0;
}

static int read_template(const toki_reader *self, const json_t *post)
{
    json_t *single;
    bool has_text = false;
    TRY(toki_member(self, "post_processor", post, "single", JSON_ARRAY, &single));
    for (size_t i = 0; i < json_array_size(single); i++)
        TRY(read_piece(self, post, json_array_get(single, i), &has_text));
    if (!has_text)
        return err_set(ERR_INPUT, "%s: post_processor.single has no text", self->path);
    return 0;
}

/* RobertaProcessing and BertProcessing: ["<s>", 0] before the text, ["</s>", 2] after it. */
static int read_pair(const toki_reader *self, const json_t *post)
{
    tokenizer *owner = self->self;
    json_t *cls, *sep;
    TRY(toki_member(self, "post_processor", post, "cls", JSON_ARRAY, &cls));
    TRY(toki_member(self, "post_processor", post, "sep", JSON_ARRAY, &sep));
    TRY(add_id_around(self, &owner->prefix, json_array_get(cls, 1)));
    return add_id_around(self, &owner->suffix, json_array_get(sep, 1));
}

static int read_post(const toki_reader *self, const json_t *post, bool is_inner, bool *adds)
{
    const char *type;
    json_t *list;
    TRY(toki_type(self, "post_processor", post, &type));
    if (strcmp(type, "ByteLevel") == 0)
        return 0; /* it changes only offsets */
    if (strcmp(type, "Sequence") == 0 && !is_inner) {
        TRY(toki_member(self, "post_processor", post, "processors", JSON_ARRAY, &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(read_post(self, json_array_get(list, i), true, adds));
        return 0;
    }
    if (*adds)
        return err_set(ERR_CONFIG, "%s: two post-processors that add tokens are not supported",
                       self->path);
    *adds = true;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(self, post);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return read_pair(self, post);
    return err_set(ERR_CONFIG, "%s: the post-processor %s is not supported", self->path, type);
}

int toki_read_post_processor(const toki_reader *self)
{
    const json_t *post = json_object_get(self->root, "post_processor");
    bool adds = false;
    tokenizer *owner = self->self;
    if (post && !json_is_null(post))
        TRY(read_post(self, post, false, &adds));
    const token_list *around[] = {&owner->prefix, &owner->suffix};
    for (size_t side = 0; side < 2; side++)
        for (size_t i = 0; i < around[side]->count; i++)
            if ((uint64_t)around[side]->ids[i] >= owner->token_count)
                return err_set(ERR_INPUT, "%s: post_processor adds the id %d; the highest is %lld",
                               self->path, around[side]->ids[i], (long long)owner->token_count - 1);
    return 0;
}
