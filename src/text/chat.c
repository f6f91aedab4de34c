/* Renders conversations as text, in the forms of chat.h. */
#include "text/chat.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/utf8.h"

void chat_text_fini(chat_text *self)
{
    mem_free(self->bytes);
    mem_free(self->answers);
    *self = (chat_text){0};
}

/* ---- a text that grows ---- */

static int add_bytes(chat_text *self, const char *bytes, size_t count)
{
    if (self->capacity - self->length < count) {
        size_t capacity = size_max(2 * self->capacity, self->length + count);
        char *grown = mem_resize(self->bytes, capacity, 1, "conversation");
        if (!grown)
            return -ENOMEM;
        self->bytes = grown;
        self->capacity = capacity;
    }
    if (count > 0)
        memcpy(self->bytes + self->length, bytes, count);
    self->length += count;
    return 0;
}

static int add(chat_text *self, const char *text)
{
    return add_bytes(self, text, strlen(text));
}

/* Adds before, text and after, in this order. */
static int add_between(chat_text *self, const char *before, const char *text, const char *after)
{
    TRY(add(self, before));
    TRY(add(self, text));
    return add(self, after);
}

/* Notes that the text since `begin` belongs to the assistant. */
static int note_answer(chat_text *self, size_t begin)
{
    if (self->answer_count == self->answer_capacity) {
        size_t capacity = size_max(2 * self->answer_capacity, 8);
        chat_span *grown = mem_resize(self->answers, capacity, sizeof *grown, "answers");
        if (!grown)
            return -ENOMEM;
        self->answers = grown;
        self->answer_capacity = capacity;
    }
    self->answers[self->answer_count++] = (chat_span){begin, self->length};
    return 0;
}

/* ---- pieces of text ---- */

struct piece {
    const char *at;
    size_t bytes;
};

static struct piece content_of(const chat_message *message)
{
    return (struct piece){message->content, message->bytes};
}

/* Bytes of the white-space character at the beginning of a text, by the definition of Python's
 * str.strip; 0 if there is none. */
static size_t blank_at(const unsigned char *at, size_t bytes)
{
    static const char *const wide[] = {
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80",
    };
    if (bytes == 0)
        return 0;
    if ((at[0] >= 9 && at[0] <= 13) || (at[0] >= 28 && at[0] <= 32))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        size_t length = strlen(wide[i]);
        if (bytes >= length && memcmp(at, wide[i], length) == 0)
            return length;
    }
    return 0;
}

static struct piece strip_end(struct piece text)
{
    while (text.bytes > 0) {
        size_t length = 1;
        while (length < 3 && length < text.bytes && utf8_is_inner(text.at[text.bytes - length]))
            length++;
        const char *last = text.at + text.bytes - length;
        if (blank_at((const unsigned char *)last, length) != length)
            break;
        text.bytes -= length;
    }
    return text;
}

static struct piece strip(struct piece text)
{
    for (size_t blank; (blank = blank_at((const unsigned char *)text.at, text.bytes)) > 0;) {
        text.at += blank;
        text.bytes -= blank;
    }
    return strip_end(text);
}

static struct piece strip_newlines(struct piece text, bool at_begin, bool at_end)
{
    while (at_begin && text.bytes > 0 && text.at[0] == '\n') {
        text.at++;
        text.bytes--;
    }
    while (at_end && text.bytes > 0 && text.at[text.bytes - 1] == '\n')
        text.bytes--;
    return text;
}

static bool begins_with(struct piece text, const char *begin)
{
    size_t length = strlen(begin);
    return text.bytes >= length && memcmp(text.at, begin, length) == 0;
}

static bool ends_with(struct piece text, const char *end)
{
    size_t length = strlen(end);
    return text.bytes >= length && memcmp(text.at + text.bytes - length, end, length) == 0;
}

/* The first or last occurrence of a word, or NULL. */
static const char *find(struct piece text, const char *word, bool is_last)
{
    size_t length = strlen(word);
    const char *found = NULL;
    for (size_t i = 0; i + length <= text.bytes && (is_last || !found); i++)
        if (memcmp(text.at + i, word, length) == 0)
            found = text.at + i;
    return found;
}

static bool is_role(const chat_message *message, const char *role)
{
    return strcmp(message->role, role) == 0;
}

/* ---- the forms ---- */

static enum chat_role role_of(const chat_message *message)
{
    return is_role(message, "system") ? CHAT_SYSTEM
           : is_role(message, "user") ? CHAT_USER
                                      : CHAT_ASSISTANT;
}

/* Adds a text of a form, in which \1 and \2 are tokens. */
static int add_part(const chat_form *form, chat_text *out, const char *text)
{
    for (size_t run; text && *text; text += run) {
        run = strcspn(text, "\1\2");
        TRY(add_bytes(out, text, run));
        if (text[run])
            TRY(add(out, text[run++] == '\1' ? form->begin : form->eos));
    }
    return 0;
}

static int add_turn(const chat_form *form, chat_text *out, enum chat_role role,
                    struct piece content, bool is_last)
{
    bool is_answer = role == CHAT_ASSISTANT;
    if (role == CHAT_USER && form->ends_with_user && out->answer_count > 0 &&
        out->answers[out->answer_count - 1].end == out->length)
        out->answers[out->answer_count - 1].end += strcspn(form->before[role], "\n");
    TRY(add_part(form, out, form->before[role]));
    size_t begin = out->length;
    TRY(add_bytes(out, content.at, content.bytes));
    if (!is_answer)
        return add_part(form, out,
                        role == CHAT_USER && form->user_after ? form->user_after : form->after);
    TRY(add_part(form, out, form->answer_end));
    TRY(note_answer(out, begin));
    return is_last && form->ends_plainly ? 0 : add_part(form, out, form->answer_after);
}

/* Adds a user's message with the system message in it. */
static int add_both(const chat_form *form, chat_text *out, const chat_message *system,
                    struct piece content)
{
    TRY(add_part(form, out, form->before[CHAT_USER]));
    size_t begin = out->length;
    TRY(add_part(form, out, form->system_before));
    TRY(add_bytes(out, system->content, system->bytes));
    TRY(add_part(form, out, form->system_after));
    TRY(add_bytes(out, content.at, content.bytes));
    if (form->system_before) /* llama2: both are stripped as one text */
        out->length =
            begin + strip_end((struct piece){out->bytes + begin, out->length - begin}).bytes;
    return add_part(form, out, form->user_after ? form->user_after : form->after);
}

/* Checks the order of the roles. *first: the first message after a system message that goes into a
 * user's; *taker: that user's message. */
static int check_turns(const chat_form *form, const chat_message *messages, size_t count,
                       size_t *first, size_t *taker)
{
    bool has_system = is_role(&messages[0], "system");
    *first = has_system && form->system_place >= CHAT_SYSTEM_FIRST;
    *taker = SIZE_MAX;
    if (has_system && form->system_place == CHAT_SYSTEM_REFUSED)
        return err_set(ERR_INPUT,
                       "message 0 is of \"system\", which the chat template %s does not have",
                       form->name);
    if (!has_system && form->system_place == CHAT_SYSTEM_NEEDED)
        return err_set(ERR_INPUT,
                       "a conversation begins without a system message: the chat template %s would "
                       "write one with today's date; add one",
                       form->name);
    size_t turns = has_system; /* the first message that takes turns */
    for (size_t i = turns; form->takes_turns && i < count; i++)
        if (!is_role(&messages[i], (i - turns) % 2 == 0 ? "user" : "assistant"))
            return err_set(ERR_INPUT,
                           "message %zu is of \"%s\": the chat template %s needs user and "
                           "assistant in turn, after at most one system message",
                           i, messages[i].role, form->name);
    for (size_t i = *first; *first > 0 && i < count; i++)
        if (is_role(&messages[i], "user") &&
            (form->system_place == CHAT_SYSTEM_LAST || *taker == SIZE_MAX))
            *taker = i;
    return 0;
}

static int render_turns(const chat_form *form, const chat_message *messages, size_t count,
                        bool asks, chat_text *out)
{
    size_t first, taker;
    TRY(check_turns(form, messages, count, &first, &taker));
    TRY(add_part(form, out, form->start));
    if (form->adds_system && !is_role(&messages[0], "system"))
        TRY(add_turn(form, out, CHAT_SYSTEM, (struct piece){form->system, strlen(form->system)},
                     false));
    for (size_t i = first; i < count; i++) {
        enum chat_role role = role_of(&messages[i]);
        struct piece content = content_of(&messages[i]);
        bool joins = i == taker && form->system_before;
        if ((form->strips >> role & 1) && !joins)
            content = strip(content);
        TRY(i == taker ? add_both(form, out, &messages[0], content)
                       : add_turn(form, out, role, content, i + 1 == count));
    }
    if (!asks)
        return add_part(form, out, form->finish);
    return add_part(form, out, form->ask ? form->ask : form->before[CHAT_ASSISTANT]);
}

/* ---- forms with a way of their own ---- */

/* Index of the last user message that is not a tool's answer, or count - 1 if there is none. */
static size_t last_query(const chat_message *messages, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        struct piece content = content_of(&messages[i]);
        if (is_role(&messages[i], "user") &&
            !(begins_with(content, "<tool_response>") && ends_with(content, "</tool_response>")))
            return i;
    }
    return count - 1;
}

/* Separates reasoning and answer. The reasoning comes from its own field, else from between the
 * tags of the content. */
static void split_reasoning(const chat_message *message, struct piece *reasoning,
                            struct piece *content)
{
    static const char begin[] = "<think>", end[] = "</think>";
    *content = content_of(message);
    *reasoning = (struct piece){"", 0};
    if (message->reasoning) {
        *reasoning = (struct piece){message->reasoning, strlen(message->reasoning)};
        return;
    }
    const char *first = find(*content, end, false), *last = find(*content, end, true);
    if (!first)
        return;
    *reasoning =
        strip_newlines((struct piece){content->at, (size_t)(first - content->at)}, false, true);
    const char *open = find(*reasoning, begin, true);
    if (open) {
        reasoning->bytes -= (size_t)(open - reasoning->at) + strlen(begin);
        reasoning->at = open + strlen(begin);
    }
    *reasoning = strip_newlines(*reasoning, true, false);
    content->bytes -= (size_t)(last - content->at) + strlen(end);
    content->at = last + strlen(end);
    *content = strip_newlines(*content, true, false);
}

static int render_qwen3(const chat_form *form, const chat_message *messages, size_t count,
                        chat_text *out)
{
    size_t query = last_query(messages, count);
    for (size_t i = 0; i < count; i++) {
        struct piece reasoning, content;
        if (!is_role(&messages[i], "assistant")) {
            TRY(add_turn(form, out, role_of(&messages[i]), content_of(&messages[i]), false));
            continue;
        }
        split_reasoning(&messages[i], &reasoning, &content);
        TRY(add(out, form->before[CHAT_ASSISTANT]));
        size_t begin = out->length;
        if (i > query && (i + 1 == count || reasoning.bytes > 0)) {
            reasoning = strip_newlines(reasoning, true, true);
            content = strip_newlines(content, true, false);
            TRY(add(out, "<think>\n"));
            TRY(add_bytes(out, reasoning.at, reasoning.bytes));
            TRY(add(out, "\n</think>\n\n"));
        }
        TRY(add_bytes(out, content.at, content.bytes));
        TRY(add(out, form->answer_end));
        TRY(note_answer(out, begin));
        TRY(add(out, form->answer_after));
    }
    return 0;
}

/* The role's name, the content, a newline. */
static int render_plain(const chat_form *form, const chat_message *messages, size_t count,
                        chat_text *out)
{
    for (size_t i = 0; i < count; i++) {
        bool is_answer = is_role(&messages[i], "assistant");
        TRY(add_between(out, "", messages[i].role, ": "));
        size_t begin = out->length;
        TRY(add_bytes(out, messages[i].content, messages[i].bytes));
        if (is_answer)
            TRY(add(out, form->end));
        if (is_answer && form->end[0])
            TRY(note_answer(out, begin));
        TRY(add(out, "\n"));
        if (is_answer && !form->end[0]) /* the newline ends the answer */
            TRY(note_answer(out, begin));
    }
    return 0;
}

static int render_alpaca(const chat_form *form, const chat_message *messages, size_t count,
                         chat_text *out)
{
    static const char prompt[] = "Below is an instruction that describes a task. Write a response "
                                 "that appropriately completes the request.";
    if (!is_role(&messages[0], "system"))
        TRY(add_between(out, prompt, "\n\n", ""));
    for (size_t i = 0; i < count; i++) {
        bool is_user = is_role(&messages[i], "user"), is_last = i + 1 == count;
        TRY(add(out, is_user ? "### Instruction:\n" : ""));
        size_t begin = out->length;
        TRY(add_bytes(out, messages[i].content, messages[i].bytes));
        if (is_role(&messages[i], "assistant")) {
            TRY(add(out, form->end[0] ? form->end : "\n")); /* the newline ends the answer */
            TRY(note_answer(out, begin));
            TRY(add(out, is_last ? "" : "\n\n"));
        } else {
            TRY(add(out, is_user ? "\n\n### Response:\n" : "\n\n"));
        }
    }
    return 0;
}

/* Takes out the answers that are context. The forms note each assistant's message once, in
 * order. */
static void drop_context(const chat_message *messages, size_t count, chat_text *out)
{
    size_t answer = 0, kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_role(&messages[i], "assistant"))
            continue;
        if (!messages[i].is_context)
            out->answers[kept++] = out->answers[answer];
        answer++;
    }
    assert(answer == out->answer_count);
    out->answer_count = kept;
}

int chat_render(const chat_form *form, const chat_message *messages, size_t count, bool asks,
                chat_text *out)
{
    out->length = out->answer_count = 0;
    if (count == 0)
        return err_set(ERR_INPUT, "a conversation has no messages");
    for (size_t i = 0; i < count; i++)
        if (!is_role(&messages[i], "system") && !is_role(&messages[i], "user") &&
            !is_role(&messages[i], "assistant"))
            return err_set(ERR_INPUT,
                           "message %zu has the role \"%.32s\"; the known roles are system, user "
                           "and assistant",
                           i, messages[i].role);
    int rc = 0;
    const char *asked = "";
    switch (form->kind) {
    case CHAT_TURNS:
        rc = render_turns(form, messages, count, asks, out);
        break;
    case CHAT_QWEN3:
        rc = render_qwen3(form, messages, count, out);
        asked = form->before[CHAT_ASSISTANT];
        break;
    case CHAT_PLAIN:
        rc = render_plain(form, messages, count, out);
        asked = "assistant:";
        break;
    case CHAT_ALPACA: /* the end of the user's message is enough */
        rc = render_alpaca(form, messages, count, out);
        break;
    }
    if (rc == 0)
        drop_context(messages, count, out);
    return rc == 0 && asks ? add(out, asked) : rc;
}
