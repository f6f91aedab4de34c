/* Encodes one piece of a file: text, JSON lines. See prepare_internal.h. Runs on any thread; each
 * piece owns its memory.
 *
 * Which tokens of a text with answers count: it is encoded in parts, each from the end of one
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
    mem_free(self->joined);
    token_list_fini(&self->ids);
    token_list_fini(&self->prefix_ids);
    chat_text_fini(&self->chat);
}

int prepi_make_room(void **list, size_t *capacity, size_t count, size_t more, size_t elem_bytes)
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
    TRY(prepi_make_room(&list, &piece->token_capacity, piece->token_count, count,
                        sizeof *piece->tokens));
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
    TRY(prepi_make_room(&list, &piece->end_capacity, piece->end_count, 1, sizeof *piece->ends_at));
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

int prepi_begin_text(const prepi_rules *rules, prepi_piece *piece)
{
    return add_ids(rules, piece, rules->before, rules->before_count, 0);
}

bool prepi_is_end(const prepi_rules *rules, int32_t id)
{
    return id >= 0 && (id == rules->end_id || id == rules->cut_id);
}

int prepi_add_ids(const prepi_rules *rules, prepi_piece *piece, const int32_t *ids, size_t count)
{
    size_t from = 0;
    for (size_t i = 0; !piece->is_record && i < count; i++) {
        if (ids[i] != rules->cut_id)
            continue;
        TRY(add_ids(rules, piece, ids + from, i + 1 - from, 0));
        TRY(end_document(piece));
        from = i + 1;
    }
    return add_ids(rules, piece, ids + from, count - from, 0);
}

int prepi_end_text(const prepi_rules *rules, prepi_piece *piece, bool is_ended)
{
    return is_ended && !piece->is_record ? end_document(piece) : add_end(rules, piece);
}

static int encode_text(const prepi_rules *rules, prepi_piece *piece)
{
    if (piece->begins)
        TRY(prepi_begin_text(rules, piece));
    TRY(encode(rules, piece->text, piece->bytes, &piece->ids));
    TRY(prepi_add_ids(rules, piece, piece->ids.ids, piece->ids.count));
    if (!piece->ends)
        return 0;
    const token_list *ids = &piece->ids;
    return prepi_end_text(rules, piece,
                          ids->count > 0 && prepi_is_end(rules, ids->ids[ids->count - 1]));
}

/* ---- texts with answers ---- */

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

/* Adds bytes [begin, end) of a text. Only the answers in it count as targets. */
static int add_part(const prepi_rules *rules, prepi_piece *piece, const char *text, size_t begin,
                    size_t end, const chat_span *answers, size_t answer_count)
{
    const char *part = text + begin;
    TRY(encode(rules, part, end - begin, &piece->ids));
    size_t done = 0;
    for (size_t i = 0; i < answer_count; i++) {
        size_t first, last = piece->ids.count;
        TRY(count_before(rules, piece, part, answers[i].begin - begin, &first));
        if (answers[i].end < end)
            TRY(count_before(rules, piece, part, answers[i].end - begin, &last));
        first = size_min(size_max(first, done), last);
        TRY(add_ids(rules, piece, piece->ids.ids + done, last - done, first - done));
        done = last;
    }
    size_t rest = piece->ids.count - done;
    return add_ids(rules, piece, piece->ids.ids + done, rest, rest);
}

/* Adds the ids before a document that are no targets. */
static int add_before(const prepi_rules *rules, prepi_piece *piece)
{
    return add_ids(rules, piece, rules->before, rules->before_count, rules->before_count);
}

int prepi_add_chat(const prepi_rules *rules, prepi_piece *piece, size_t message_count)
{
    chat_text *chat = &piece->chat;
    TRY(chat_render(&rules->work->chat, piece->messages, message_count, false, chat));
    if (rules->work->chat.is_text)
        TRY(add_before(rules, piece));
    const chat_span *answers = chat->answers; /* the answers that are left */
    size_t begin = 0, left = chat->answer_count;
    for (; rules->has_safe_end && left > 0; left--) {
        TRY(add_part(rules, piece, chat->bytes, begin, answers->end, answers, 1));
        begin = answers->end;
        answers++;
    }
    if (begin < chat->length)
        TRY(add_part(rules, piece, chat->bytes, begin, chat->length, answers, left));
    return end_document(piece);
}

int prepi_add_completion(const prepi_rules *rules, prepi_piece *piece, const char *text,
                         size_t prompt_bytes, size_t bytes)
{
    const chat_span completion = {prompt_bytes, bytes};
    TRY(add_before(rules, piece));
    TRY(add_part(rules, piece, text, 0, bytes, &completion, 1));
    const token_list *ids = &piece->ids;
    bool is_ended = ids->count > 0 && ids->ids[ids->count - 1] == rules->end_id;
    return is_ended ? end_document(piece) : add_end(rules, piece);
}

/* ---- JSON lines ---- */

int prepi_add_document(const prepi_rules *rules, prepi_piece *piece, const char *text, size_t bytes)
{
    TRY(prepi_begin_text(rules, piece));
    TRY(add_text(rules, piece, text, bytes));
    return add_end(rules, piece);
}

static int take_line(const prepi_rules *rules, prepi_piece *piece, const char *text, size_t bytes,
                     size_t *error_at)
{
    json_error_t error;
    json_t *line = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    *error_at = line ? strspn(text, " \t\r") : size_max(error.position, 1) - 1;
    if (!line && rules->work->is_array)
        return err_set(ERR_INPUT, "%s", error.text);
    if (!line)
        return err_set(ERR_INPUT, "column %d: %s", error.column, error.text);
    int rc = prepi_take_record(rules, piece, line);
    json_decref(line);
    return rc;
}

int prepi_prefix_place(const prepi_rules *rules, uint64_t line, size_t error_at, int rc)
{
    err_record why;
    const char *path = rules->work->path;
    if (!rules->work->is_array)
        return err_prefix(rc, "%s:%llu", path, (unsigned long long)line);
    err_save(&why, rc);
    uint64_t file_line = datai_array_line(path, line - 1, error_at);
    return err_set(rc, "%s:%llu: record %llu of the array: %s", path, (unsigned long long)file_line,
                   (unsigned long long)line, why.text);
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
        size_t error_at = 0;
        int rc = is_blank(at, bytes) ? 0 : take_line(rules, piece, at, bytes, &error_at);
        if (rc < 0)
            return prepi_prefix_place(rules, line, error_at, rc);
        at += bytes + (newline != NULL);
    }
    return 0;
}

void prepi_encode(const prepi_rules *rules, prepi_piece *piece)
{
    piece->token_count = piece->end_count = 0;
    bool has_lines = rules->work->is_json && !piece->is_record;
    int rc = has_lines ? encode_lines(rules, piece) : encode_text(rules, piece);
    if (rc < 0 && piece->is_record)
        rc = prepi_prefix_place(rules, piece->line, 0, rc);
    else if (rc < 0 && !has_lines)
        rc = err_prefix(rc, "%s", rules->work->path);
    piece->failed.code = 0;
    if (rc < 0)
        err_save(&piece->failed, rc);
}
