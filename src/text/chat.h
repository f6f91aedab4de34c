/* Conversations as text, in the forms with which published models were trained. There is no
 * template engine: each known template has a name, and gives the same text as the model's own
 * template for system, user and assistant messages without tools.
 *
 *   name            models                   what the form adds
 *   chatml          many                     nothing
 *   qwen2           Qwen1.5, Qwen2           a system message [1]
 *   qwen2.5         Qwen2.5                  a system message [2]
 *   qwen3           Qwen3                    a <think> block in the last answers [4]
 *   smollm2         SmolLM2                  a system message [3]
 *   llama3          Llama 3                  the text's beginning; contents are stripped
 *   llama3.1        Llama 3.1, 3.2, 3.3      as llama3, and always a system message with dates [5]
 *   mistral         tokenizer versions 2, 3  the text's beginning; answers are stripped [6]
 *   mistral-v1      version 1                the text's beginning [7]
 *   mistral-tekken  Nemo                     as mistral, but answers are not stripped
 *   zephyr          Zephyr, StableLM 2       nothing
 *   llama2          Llama 2                  as mistral-v1, and the beginning at each user
 *   phi3            Phi-3, Phi-3.5           the document's end after the last message
 *   phi4-mini       Phi-4-mini               as phi3, without newlines
 *   phi4            Phi-4                    nothing
 *   gemma           Gemma, Gemma 2           the text's beginning; contents are stripped [9]
 *   gemma3          Gemma 3                  as gemma [7]
 *   olmo2           OLMo 2                   the text's beginning
 *   tulu            Tulu 2, Tulu 3           nothing
 *   granite         Granite 3.0              nothing
 *   granite3.1      Granite 3.1 to 3.3       a system message must be there [10]
 *   glm4            GLM-4                    "[gMASK]<sop>" [11]
 *   cohere          Command R                the text's beginning; contents are stripped
 *   plain           none                     "user: ", "assistant: ", newlines; the document's end
 *                                            after an answer
 *   alpaca          Stanford Alpaca          its prompt; the document's end after an answer [8]
 *
 * To strip means to remove white space at both ends. The notes:
 *
 *   [1] if the first message is not a system message: "You are a helpful assistant."
 *   [2] as [1]: "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
 *   [3] as [1]: "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
 *   [4] It is empty if the answer has no reasoning. Reasoning of earlier answers is left out.
 *   [5] It has two dates. Today's date is 26 Jul 2024, as in the template of 3.1.
 *   [6] The system message stands before the last user's message. If an answer follows that
 *       message, as in training, the published template leaves the system message out. We keep it,
 *       because a model that answers has seen it there.
 *   [7] The system message stands in the first user's message, before its text.
 *   [8] A system message takes the place of the prompt's first sentences. A newline follows
 *       "### Response:", as in Axolotl, LLaMA-Factory and Alpaca-LoRA; Stanford's code has none.
 *   [9] It refuses system messages, as the published template does.
 *   [10] Without one, the published template writes one with the date of the day.
 *   [11] The next user's "<|user|>" ends an answer, and is a target with it.
 *
 * "auto" finds the form from the tokenizer's directory: from chat_template.jinja, or
 * "chat_template" of tokenizer_config.json, by the words that are characteristic of each form. A
 * template that matches no form is refused. If a template of ChatML adds a system message, its text
 * is taken from the template. Without templates the tokenizer's own tokens decide. Pure, except
 * that it reads these files. */
#ifndef SLUICE_TEXT_CHAT_H
#define SLUICE_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "text/tokenizer.h"

enum { CHAT_SYSTEM_BYTES = 2048, CHAT_TOKEN_BYTES = 128 };

/* The names above, as choices of an option. */
#define CHAT_NAMES                                                                                 \
    "auto|chatml|qwen2|qwen2.5|qwen3|smollm2|llama3|llama3.1|mistral|mistral-v1|mistral-tekken|"   \
    "zephyr|llama2|phi3|phi4-mini|phi4|gemma|gemma3|olmo2|tulu|granite|granite3.1|glm4|cohere|"    \
    "plain|alpaca"

/* Parts of Alpaca's prompt for an instruction with an input. The first sentences are a system
 * message of the form alpaca. The heading stands between the instruction and the input. */
#define CHAT_ALPACA_WITH_INPUT                                                                     \
    "Below is an instruction that describes a task, paired with an input that provides further "   \
    "context. Write a response that appropriately completes the request."
#define CHAT_ALPACA_INPUT "\n\n### Input:\n"

enum chat_kind { CHAT_TURNS, CHAT_QWEN3, CHAT_PLAIN, CHAT_ALPACA };

/* The roles of messages, and sets of them. */
enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES };
enum { CHAT_USERS = 1 << CHAT_USER, CHAT_ANSWERS = 1 << CHAT_ASSISTANT, CHAT_ALL = 7 };

/* Where the system message goes. */
enum chat_system {
    CHAT_SYSTEM_TURN,    /* a message of its own */
    CHAT_SYSTEM_NEEDED,  /* the same, and it must be there */
    CHAT_SYSTEM_FIRST,   /* into the first user's message */
    CHAT_SYSTEM_LAST,    /* into the last user's message */
    CHAT_SYSTEM_REFUSED, /* nowhere */
};

/* In the texts of a form, \1 is the token that begins a text, and \2 the one that ends it. */
struct chat_form {
    enum chat_kind kind;
    const char *name; /* one of the above; constant */
    bool adds_system; /* adds `system` if no system message comes first */
    char system[CHAT_SYSTEM_BYTES];
    bool is_text; /* alpaca: what the tokenizer puts before a text stands before it */

    /* CHAT_TURNS; texts that are NULL are empty */
    const char *start;              /* before all messages */
    const char *before[CHAT_ROLES]; /* before a content */
    const char *after;              /* after the content of system and user */
    const char *user_after;         /* instead of `after`, of the user; NULL: `after` */
    const char *answer_end;         /* after an answer, which it ends */
    const char *answer_after;       /* after answer_end */
    const char *finish;             /* after all messages, unless an answer is asked for */
    const char *ask;                /* begins an answer that is asked for; NULL: as other answers */
    unsigned strips;     /* set of roles: white space around their contents is left out */
    bool takes_turns;    /* user and assistant must alternate */
    bool ends_plainly;   /* no answer_after after the last message */
    bool ends_with_user; /* the first line of before[CHAT_USER] ends an answer */
    enum chat_system system_place;
    const char *system_before, *system_after; /* around one that is in a user's message */

    /* The tokens \1 and \2 as the tokenizer writes them; "" if there is none. */
    char begin[CHAT_TOKEN_BYTES], eos[CHAT_TOKEN_BYTES];
    /* The text that ends an answer; "" if there is none. */
    char end[CHAT_TOKEN_BYTES];
};
typedef struct chat_form chat_form;

/* Finds the form. `name` is one of the above. tokenizer_name is data.tokenizer; "auto" looks in
 * its directory. ERR_CONFIG for a template that is none of the known ones; the text says what to
 * set. */
int chat_form_find(const char *name, const char *tokenizer_name, const tokenizer *words,
                   chat_form *out) MUST_CHECK;
/* The same, but the form `otherwise` if the name is "auto" and neither files nor tokens of the
 * tokenizer show a form. */
int chat_form_find_or(const char *name, const char *otherwise, const char *tokenizer_name,
                      const tokenizer *words, chat_form *out) MUST_CHECK;

/* Writes `end` after a change of `eos`. */
void chat_form_end(chat_form *form);

struct chat_message {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8, may hold zeros */
    size_t bytes;
    const char *reasoning; /* of an assistant: "reasoning_content", or NULL */
    bool is_context;       /* of an assistant: the answer is no target */
};
typedef struct chat_message chat_message;

/* Bytes [begin, end) of the text: what the assistant must say, that is an answer with the token
 * that ends it. Answers that are context have none. */
struct chat_span {
    size_t begin, end;
};
typedef struct chat_span chat_span;

/* A rendered conversation. All zero is empty. One object may be reused for many conversations;
 * chat_text_fini frees it. */
struct chat_text {
    char *bytes;
    size_t length, capacity;
    chat_span *answers;
    size_t answer_count, answer_capacity;
};
typedef struct chat_text chat_text;
void chat_text_fini(chat_text *self);

/* Renders the messages and replaces the contents of *out. `asks`: adds the beginning of an answer
 * after the last message, for generation. ERR_INPUT if there is no message, for a role that the
 * form does not have, and for an order of roles that it cannot write. */
int chat_render(const chat_form *form, const chat_message *messages, size_t count, bool asks,
                chat_text *out) MUST_CHECK;

#endif
