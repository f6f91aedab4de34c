/* Finds the tokens that begin and end a document. The first of these files beside the tokenizer
 * that names the token decides:
 *
 *   tokenizer_config.json     bos_token, eos_token: a text, or an object with content
 *   config.json               bos_token_id, eos_token_id: a number, or a list; its first one counts
 *   generation_config.json    as config.json
 *   none of them              a special token with one of the usual names
 *
 * See tokenizer.h. These files may be missing. A file that exists but is not JSON is an error. */
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "text/tokenizer_json.h"

/* One of the two tokens: the names of its members, and where its id goes. */
struct wanted {
    const char *token_name, *id_name;
    const char *const *usual; /* usual names; the last entry is NULL */
    int32_t *id;
};
typedef struct wanted wanted;

static const char *const usual_begins[] = {
    "<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "[CLS]", NULL};
static const char *const usual_ends[] = {
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "</s>", "<eos>", "[SEP]", NULL};

static void by_text(const tokenizer *self, const json_t *object, wanted *what)
{
    const json_t *value = json_object_get(object, what->token_name);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (json_is_string(value))
        *what->id = toki_find_text(self, json_string_value(value), json_string_length(value));
}

static void by_id(const tokenizer *self, const json_t *object, wanted *what)
{
    const json_t *value = json_object_get(object, what->id_name);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        (uint64_t)json_integer_value(value) < self->token_count)
        *what->id = (int32_t)json_integer_value(value);
}

int toki_config_read(tokenizer *self, const char *name)
{
    static const char *const names[] = {"tokenizer_config.json", "config.json",
                                        "generation_config.json"};
    wanted both[] = {{"bos_token", "bos_token_id", usual_begins, &self->begin_id},
                     {"eos_token", "eos_token_id", usual_ends, &self->end_id}};
    char path[FILE_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *object;
        TRY(tokenizer_beside(name, names[i], path));
        if (access(path, F_OK) != 0)
            continue;
        TRY(toki_json_read(path, &object, NULL));
        for (size_t w = 0; w < 2; w++)
            if (*both[w].id < 0)
                (i == 0 ? by_text : by_id)(self, object, &both[w]);
        json_decref(object);
    }
    for (size_t w = 0; w < 2; w++)
        for (size_t i = 0; *both[w].id < 0 && both[w].usual[i]; i++) {
            int32_t id = tokenizer_find(self, both[w].usual[i]);
            if (id >= 0 && self->tokens[id].is_special)
                *both[w].id = id;
        }
    const int32_t ids[] = {self->begin_id, self->end_id};
    self->hash = XXH3_64bits_withSeed(ids, sizeof ids, self->hash);
    return 0;
}
