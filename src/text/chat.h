/* Conversations as text, in the forms that published models were trained with: no template engine,
 * but the known templates by name, each giving the text that the model's own template gives for
 * system, user and assistant messages without tools.
 *
 *   name            of                       what it adds
 *   chatml          many                     nothing
 *   qwen2           Qwen1.5, Qwen2           a system message where none comes first: "You are a helpful assistant."
 *   qwen2.5         Qwen2.5                  "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
 *   qwen3           Qwen3                    to the last answers a <think> block, empty where there is no reasoning;
 *                                            of earlier answers the reasoning is left out
 *   smollm2         SmolLM2                  "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
 *   llama3          Llama 3                  the text's beginning; contents are stripped of white space
 *   llama3.1        Llama 3.1, 3.2, 3.3      the same, and a system message of two dates in any case, today being
 *                                            26 Jul 2024, as 3.1 has it
 *   mistral         tokenizer versions 2, 3  the text's beginning; answers are stripped; the system message stands
 *                                            before the last user's (where an answer follows that, as it does in
 *                                            training, the published template leaves it out: a model that answers
 *                                            has seen it there)
 *   mistral-v1      version 1                the text's beginning; the system message stands before the first user's
 *   mistral-tekken  Nemo                     as mistral, answers as they are
 *   zephyr          Zephyr                   nothing
 *   plain           none                     "user: ", "assistant: " and newlines; the document's end after an answer
 *
 * "auto" finds the form in what lies beside the tokenizer: chat_template.jinja, or "chat_template"
 * of tokenizer_config.json, by the words that make the form; a template with other ones is refused.
 * A system message that a template of ChatML adds is taken from the template itself. Without
 * templates the tokenizer's own tokens tell. Pure but for reading these files. */
#ifndef SLUICE_DATA_CHAT_H
#define SLUICE_DATA_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "text/tokenizer.h"

enum { CHAT_SYSTEM_BYTES = 2048, CHAT_TOKEN_BYTES = 128 };

/* Of the data's options: the names above. */
#define CHAT_NAMES                                                                                 \
    "auto|chatml|qwen2|qwen2.5|qwen3|smollm2|llama3|llama3.1|mistral|mistral-v1|mistral-tekken|"   \
    "zephyr|plain"

enum chat_kind { CHAT_CHATML, CHAT_QWEN3, CHAT_LLAMA3, CHAT_MISTRAL, CHAT_ZEPHYR, CHAT_PLAIN };

struct chat_form {
    enum chat_kind kind;
    const char *name; /* one of the above; constant */
    bool adds_system; /* where no system message comes first */
    char system[CHAT_SYSTEM_BYTES];
    bool has_dates;      /* llama3.1 */
    bool strips_answers; /* mistral: of white space */
    bool is_first;       /* mistral: the system message goes to the first user's */
    const char *user_before, *user_after, *answer_before; /* mistral */
    char begin[CHAT_TOKEN_BYTES],
        end[CHAT_TOKEN_BYTES]; /* of the text, as the tokenizer writes them; "" */
};
typedef struct chat_form chat_form;

/* `name` as above; tokenizer_name is data.tokenizer, in whose directory "auto" looks. ERR_CONFIG
 * for a template that is none of these, saying what to set. */
int chat_form_find(const char *name, const char *tokenizer_name, const tokenizer *words,
                   chat_form *out) MUST_CHECK;

struct chat_message {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8, may hold zeros */
    size_t bytes;
    const char *reasoning; /* of an assistant, "reasoning_content"; or NULL */
};
typedef struct chat_message chat_message;

/* Bytes [begin, end) of the text that an assistant is to say: an answer with the token that ends
 * it. */
struct chat_span {
    size_t begin, end;
};
typedef struct chat_span chat_span;

/* All zero is empty; reused from conversation to conversation, freed by chat_text_fini. */
struct chat_text {
    char *bytes;
    size_t length, capacity;
    chat_span *answers;
    size_t answer_count, answer_capacity;
};
typedef struct chat_text chat_text;
void chat_text_fini(chat_text *self);

/* Replaces what is in *out. `asks`: the beginning of an answer follows the last message, for
 * generation. ERR_INPUT for no message, a role that the form does not have, and roles in an order
 * that it cannot write. */
int chat_render(const chat_form *form, const chat_message *messages, size_t count, bool asks,
                chat_text *out) MUST_CHECK;

#endif
