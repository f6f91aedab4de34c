/* Encodes one piece of a file: JSON lines, conversations, text. See prepare_internal.h. Runs on any
 * thread; each piece has its own memory.
 *
 * Which tokens of a conversation count: its text is encoded in parts, each from the end of one
 * answer to the end of the next. The part up to the beginning of the answer is also encoded alone.
 * The tokens that both encodings have in common at their beginning do not belong to the answer; all
 * others do. So a token that holds the end of the question and the beginning of the answer counts.
 * Every tokenizer cuts after the token that ends an answer. */
#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "base/size.h"
#include "data/data_internal.h"
#include "data/prepare_internal.h"

void prepi_piece_fini(prepi_piece *self)
{
    mem_free(self->tokens);
    mem_free(self->ends_at);
    mem_free(self->messages);
    token_list_fini(&self->ids);
    token_list_fini(&self->prefix_ids);
    chat_text_fini(&self->chat);
}

/* Makes room for `more` entries after the `count` of a list. */
static int make_room(void **list, size_t *capacity, size_t count, size_t more, size_t elem_bytes)
{
    if (*capacity - count >= more)
        return 0;
    size_t wanted = size_max(2 * *capacity, count + more);
    void *grown = mem_resize(*list, wanted, elem_bytes, "tokens of a piece");
    if (!grown)
        return -ENOMEM;
    *list = grown;
    *capacity = wanted;
    return 0;
}

/* Appends ids [0, count). Those from `counted` on count as targets. */
static int add_ids(const prepi_rules *rules, prepi_piece *piece, const int32_t *ids, size_t count,
                   size_t counted)
{
    void *list = piece->tokens;
    TRY(make_room(&list, &piece->token_capacity, piece->token_count, count, sizeof *piece->tokens));
    piece->tokens = list;
    for (size_t i = 0; i < count; i++) {
        if ((uint64_t)ids[i] >= rules->options->vocab_size) /* a negative id too */
            return err_set(
                ERR_INPUT,
                "the tokenizer gives token %d, but model.vocab_size is %llu: set it to the "
                "tokenizer's vocabulary, %llu, or more",
                (int)ids[i], (unsigned long long)rules->options->vocab_size,
                (unsigned long long)tokenizer_vocab(rules->options->words));
        piece->tokens[piece->token_count++] =
            (uint32_t)ids[i] | (i < counted ? TOKEN_UNCOUNTED : 0);
    }
    return 0;
}

static int end_document(prepi_piece *piece)
{
    void *list = piece->ends_at;
    TRY(make_room(&list, &piece->end_capacity, piece->end_count, 1, sizeof *piece->ends_at));
    piece->ends_at = list;
    piece->ends_at[piece->end_count++] = piece->token_count;
    return 0;
}

static int encode(const prepi_rules *rules, const char *text, size_t bytes, token_list *ids)
{
    static const tokenize_options plain = {.adds_special = false};
    ids->count = 0;
    return tokenizer_encode(rules->options->words, text, bytes, &plain, ids);
}

static int add_text(const prepi_rules *rules, prepi_piece *piece, const char *text, size_t bytes)
{
    TRY(encode(rules, text, bytes, &piece->ids));
    return add_ids(rules, piece, piece->ids.ids, piece->ids.count, 0);
}

static int add_end(const prepi_rules *rules, prepi_piece *piece)
{
    if (rules->end_id >= 0 && !rules->options->has_no_end)
        TRY(add_ids(rules, piece, &rules->end_id, 1, 0));
    return end_document(piece);
}

/* ---- text ---- */

static int encode_text(const prepi_rules *rules, prepi_piece *piece)
{
    if (piece->begins)
        TRY(add_ids(rules, piece, rules->before, rules->before_count, 0));
    TRY(encode(rules, piece->text, piece->bytes, &piece->ids));
    const token_list *ids = &piece->ids;
    size_t from = 0;
    for (size_t i = 0; i < ids->count; i++) {
        if (ids->ids[i] != rules->end_id)
            continue;
        TRY(add_ids(rules, piece, ids->ids + from, i + 1 - from, 0));
        TRY(end_document(piece));
        from = i + 1;
    }
    TRY(add_ids(rules, piece, ids->ids + from, ids->count - from, 0));
    if (!piece->ends)
        return 0;
    bool is_ended =
        piece->end_count > 0 && piece->ends_at[piece->end_count - 1] == piece->token_count;
    return is_ended ? 0 : add_end(rules, piece);
}

/* ---- conversations ---- */

/* The number of tokens that a text has in common with the encoding of its first `bytes` bytes. */
static int count_before(const prepi_rules *rules, prepi_piece *piece, const char *text,
                        size_t bytes, size_t *out)
{
    const token_list *all = &piece->ids, *first = &piece->prefix_ids;
    TRY(encode(rules, text, bytes, &piece->prefix_ids));
    *out = 0;
    while (*out < all->count && *out < first->count && all->ids[*out] == first->ids[*out])
        ++*out;
    return 0;
}

/* Adds the conversation's bytes [begin, end). Only the answers in it count as targets. */
static int add_part(const prepi_rules *rules, prepi_piece *piece, size_t begin, size_t end,
                    const chat_span *answers, size_t answer_count)
{
    const char *text = piece->chat.bytes + begin;
    TRY(encode(rules, text, end - begin, &piece->ids));
    size_t done = 0;
    for (size_t i = 0; i < answer_count; i++) {
        size_t first, last = piece->ids.count;
        TRY(count_before(rules, piece, text, answers[i].begin - begin, &first));
        if (answers[i].end < end)
            TRY(count_before(rules, piece, text, answers[i].end - begin, &last));
        first = size_min(size_max(first, done), last);
        TRY(add_ids(rules, piece, piece->ids.ids + done, last - done, first - done));
        done = last;
    }
    size_t rest = piece->ids.count - done;
    return add_ids(rules, piece, piece->ids.ids + done, rest, rest);
}

static int add_chat(const prepi_rules *rules, prepi_piece *piece, size_t message_count)
{
    chat_text *chat = &piece->chat;
    TRY(chat_render(&rules->work->chat, piece->messages, message_count, false, chat));
    const chat_span *answers = chat->answers; /* the answers that are left */
    size_t begin = 0, left = chat->answer_count;
    for (; rules->has_safe_end && left > 0; left--) {
        TRY(add_part(rules, piece, begin, answers->end, answers, 1));
        begin = answers->end;
        answers++;
    }
    if (begin < chat->length)
        TRY(add_part(rules, piece, begin, chat->length, answers, left));
    return end_document(piece);
}

static int take_message(prepi_piece *piece, size_t idx, const json_t *item)
{
    const json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    const json_t *calls = json_object_get(item, "tool_calls");
    if (!json_is_string(role))
        return err_set(ERR_INPUT, "message %zu has no \"role\"", idx);
    if (json_array_size(calls) > 0)
        return err_set(ERR_INPUT, "message %zu has tool_calls, which no template here can write",
                       idx);
    if (!json_is_string(content))
        return err_set(ERR_INPUT, "message %zu has no \"content\" that is a text", idx);
    piece->messages[idx] = (chat_message){
        .role = json_string_value(role),
        .content = json_string_value(content),
        .bytes = json_string_length(content),
        .reasoning = json_string_value(json_object_get(item, "reasoning_content")),
    };
    return 0;
}

static int take_messages(const prepi_rules *rules, prepi_piece *piece, const json_t *messages)
{
    size_t count = json_array_size(messages), idx;
    json_t *item;
    if (!json_is_array(messages))
        return err_set(
            ERR_INPUT,
            "the line has no list \"messages\", but the file begins with a conversation");
    void *list = piece->messages;
    TRY(make_room(&list, &piece->message_capacity, 0, count, sizeof *piece->messages));
    piece->messages = list;
    json_array_foreach(messages, idx, item) TRY(take_message(piece, idx, item));
    return add_chat(rules, piece, count);
}

/* ---- JSON lines ---- */

static int take_document(const prepi_rules *rules, prepi_piece *piece, const json_t *line)
{
    const json_t *text = json_object_get(line, rules->field);
    if (!json_is_string(text) && json_object_get(line, "messages"))
        return err_set(ERR_INPUT, "the line is a conversation, but the file begins with lines of "
                                  "text: put each kind into its own file");
    if (!json_is_string(text))
        return err_set(ERR_INPUT,
                       "the line has no text in \"%s\"; name the field that holds it, as in "
                       "{\"path\": ..., \"field\": \"content\"}",
                       rules->field);
    TRY(add_ids(rules, piece, rules->before, rules->before_count, 0));
    TRY(add_text(rules, piece, json_string_value(text), json_string_length(text)));
    return add_end(rules, piece);
}

static int take_line(const prepi_rules *rules, prepi_piece *piece, const char *text, size_t bytes)
{
    json_error_t error;
    json_t *line = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!line)
        return err_set(ERR_INPUT, "column %d: %s", error.column, error.text);
    int rc;
    if (!json_is_object(line))
        rc = err_set(ERR_INPUT, "the line is not an object, { ... }");
    else if (rules->work->is_chat)
        rc = take_messages(rules, piece, json_object_get(line, "messages"));
    else
        rc = take_document(rules, piece, line);
    json_decref(line);
    return rc;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

static int encode_lines(const prepi_rules *rules, prepi_piece *piece)
{
    const char *at = piece->text, *end = at + piece->bytes;
    for (uint64_t line = piece->line; at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((newline ? newline : end) - at);
        int rc = is_blank(at, bytes) ? 0 : take_line(rules, piece, at, bytes);
        if (rc < 0)
            return err_prefix(rc, "%s:%llu", rules->work->path, (unsigned long long)line);
        at += bytes + (newline != NULL);
    }
    return 0;
}

void prepi_encode(const prepi_rules *rules, prepi_piece *piece)
{
    piece->token_count = piece->end_count = 0;
    int rc = rules->work->is_json ? encode_lines(rules, piece) : encode_text(rules, piece);
    if (rc < 0 && !rules->work->is_json)
        rc = err_prefix(rc, "%s", rules->work->path);
    piece->failed.code = 0;
    if (rc < 0)
        err_save(&piece->failed, rc);
}
