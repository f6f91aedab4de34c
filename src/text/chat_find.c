/* Finds the form of chat.h for a tokenizer: by name, by the template beside the tokenizer, or by
 * the tokenizer's tokens. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/foreign_json.h"
#include "base/mem.h"
#include "text/chat.h"

enum { FILE_MAX_BYTES = 16 << 20 };

#define CHATML                                                                                     \
    .before = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"},           \
    .after = "<|im_end|>\n", .answer_end = "<|im_end|>", .answer_after = "\n"
#define LLAMA3(system_text)                                                                        \
    .start = "<|begin_of_text|>",                                                                  \
    .before = {"<|start_header_id|>system<|end_header_id|>\n\n" system_text,                       \
               "<|start_header_id|>user<|end_header_id|>\n\n",                                     \
               "<|start_header_id|>assistant<|end_header_id|>\n\n"},                               \
    .after = "<|eot_id|>", .answer_end = "<|eot_id|>", .strips = CHAT_ALL
#define INST(user_before, user_end, answer_before)                                                 \
    .before = {NULL, user_before, answer_before}, .user_after = user_end, .answer_end = "\2",      \
    .ask = "", .takes_turns = true, .system_after = "\n\n", .begin = "<s>", .eos = "</s>"
#define NAMED(between) .before = {"<|system|>" between, "<|user|>" between, "<|assistant|>" between}
#define GEMMA                                                                                      \
    .start = "\1", .before = {NULL, "<start_of_turn>user\n", "<start_of_turn>model\n"},            \
    .after = "<end_of_turn>\n", .answer_end = "<end_of_turn>", .answer_after = "\n",               \
    .strips = CHAT_ALL, .takes_turns = true, .begin = "<bos>", .eos = "<eos>"
#define GRANITE                                                                                    \
    .before = {"<|start_of_role|>system<|end_of_role|>", "<|start_of_role|>user<|end_of_role|>",   \
               "<|start_of_role|>assistant<|end_of_role|>"},                                       \
    .after = "<|end_of_text|>\n", .answer_end = "<|end_of_text|>", .answer_after = "\n"
#define COHERE(role) "<|START_OF_TURN_TOKEN|><|" role "_TOKEN|>"

/* The forms, with the parts that all their models share. begin and eos are those of the models, for
 * a tokenizer that names none. */
static const chat_form forms[] = {
    {.name = "chatml", CHATML},
    {.name = "qwen2", CHATML, .adds_system = true, .system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     CHATML,
     .adds_system = true,
     .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.kind = CHAT_QWEN3, .name = "qwen3", CHATML},
    {.name = "smollm2",
     CHATML,
     .adds_system = true,
     .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "llama3", LLAMA3("")},
    {.name = "llama3.1",
     LLAMA3("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"),
     .adds_system = true},
    {.name = "mistral",
     INST("[INST] ", "[/INST]", " "),
     .start = "\1",
     .strips = CHAT_ANSWERS,
     .system_place = CHAT_SYSTEM_LAST},
    {.name = "mistral-v1",
     INST(" [INST] ", " [/INST]", " "),
     .start = "\1",
     .system_place = CHAT_SYSTEM_FIRST},
    {.name = "mistral-tekken",
     INST("[INST]", "[/INST]", ""),
     .start = "\1",
     .system_place = CHAT_SYSTEM_LAST},
    {.name = "llama2",
     .before = {NULL, "\1[INST] ", " "},
     .user_after = " [/INST]",
     .answer_end = " \2",
     .ask = "",
     .takes_turns = true,
     .strips = CHAT_USERS | CHAT_ANSWERS,
     .system_place = CHAT_SYSTEM_FIRST,
     .system_before = "<<SYS>>\n",
     .system_after = "\n<</SYS>>\n\n",
     .begin = "<s>",
     .eos = "</s>"},
    {.name = "zephyr",
     NAMED("\n"),
     .after = "\2\n",
     .answer_end = "\2",
     .answer_after = "\n",
     .eos = "</s>"},
    {.name = "phi3",
     NAMED("\n"),
     .after = "<|end|>\n",
     .answer_end = "<|end|>",
     .answer_after = "\n",
     .finish = "\2",
     .eos = "<|endoftext|>"},
    {.name = "phi4-mini",
     NAMED(""),
     .after = "<|end|>",
     .answer_end = "<|end|>",
     .finish = "\2",
     .eos = "<|endoftext|>"},
    {.name = "phi4",
     .before = {"<|im_start|>system<|im_sep|>", "<|im_start|>user<|im_sep|>",
                "<|im_start|>assistant<|im_sep|>"},
     .after = "<|im_end|>",
     .answer_end = "<|im_end|>"},
    {.name = "gemma", GEMMA, .system_place = CHAT_SYSTEM_REFUSED},
    {.name = "gemma3", GEMMA, .system_place = CHAT_SYSTEM_FIRST, .system_after = "\n\n"},
    {.name = "olmo2",
     NAMED("\n"),
     .start = "\1",
     .after = "\n",
     .answer_end = "\2",
     .answer_after = "\n",
     .ends_plainly = true,
     .begin = "<|endoftext|>",
     .eos = "<|endoftext|>"},
    {.name = "tulu",
     NAMED("\n"),
     .after = "\n",
     .answer_end = "\2",
     .answer_after = "\n",
     .ends_plainly = true,
     .eos = "<|end_of_text|>"},
    {.name = "granite", GRANITE},
    {.name = "granite3.1", GRANITE, .system_place = CHAT_SYSTEM_NEEDED},
    {.name = "glm4",
     NAMED("\n"),
     .start = "[gMASK]<sop>",
     .ask = "<|assistant|>",
     .ends_with_user = true},
    {.name = "cohere",
     .start = "\1",
     .before = {COHERE("SYSTEM"), COHERE("USER"), COHERE("CHATBOT")},
     .after = "<|END_OF_TURN_TOKEN|>",
     .answer_end = "<|END_OF_TURN_TOKEN|>",
     .strips = CHAT_USERS | CHAT_ANSWERS,
     .takes_turns = true,
     .begin = "<BOS_TOKEN>"},
    {.kind = CHAT_PLAIN, .name = "plain"},
    {.kind = CHAT_ALPACA, .name = "alpaca", .is_text = true},
};

static const chat_form *form_named(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    return NULL;
}

/* ---- files beside the tokenizer ---- */

/* Reads a file in the tokenizer's directory as text; *out is NULL if there is none. */
static int read_beside(const char *tokenizer_name, const char *file_name, char **out)
{
    char path[FILE_PATH_BYTES];
    struct stat info;
    uint64_t bytes;
    *out = NULL;
    TRY(tokenizer_beside(tokenizer_name, file_name, path));
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return 0;
    return file_read(path, FILE_MAX_BYTES, out, &bytes);
}

/* The template of tokenizer_config.json: a text, or the one named "default" in a list of named
 * ones. */
static const char *template_in(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *item;
    size_t idx;
    if (!json_is_array(value))
        return json_string_value(value);
    json_array_foreach(value, idx, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(item, "template"));
    }
    return NULL;
}

static int read_template(const char *tokenizer_name, char **out)
{
    char *text;
    TRY(read_beside(tokenizer_name, "chat_template.jinja", out));
    if (*out)
        return 0;
    TRY(read_beside(tokenizer_name, "tokenizer_config.json", &text));
    if (!text)
        return 0;
    json_error_t error;
    json_t *config = foreign_json_parse(text, strlen(text), JSON_ALLOW_NUL, &error);
    mem_free(text);
    if (!config)
        return err_set(ERR_INPUT, "tokenizer_config.json beside %s: line %d: %s", tokenizer_name,
                       error.line, error.text);
    const char *found = template_in(config);
    int rc = 0;
    if (found) {
        *out = mem_string(found, "chat template");
        rc = *out ? 0 : -ENOMEM;
    }
    json_decref(config);
    return rc;
}

/* ---- the form in a template ---- */

/* Finds the text of a system message that is written in a template of ChatML. It follows "system"
 * and a newline (a real one or \n) and ends at the end of the message. False if the template
 * composes the message from parts. */
static bool find_system(const char *text, char system[CHAT_SYSTEM_BYTES])
{
    static const char begin[] = "<|im_start|>system", end[] = "<|im_end|>";
    for (const char *at = strstr(text, begin); at; at = strstr(at + 1, begin)) {
        const char *from = at + strlen(begin);
        if (strncmp(from, "\\n", 2) == 0)
            from += 2;
        else if (*from == '\n')
            from++;
        else
            continue;
        const char *to = strstr(from, end);
        size_t length = to ? (size_t)(to - from) : CHAT_SYSTEM_BYTES;
        if (length == 0 || length >= CHAT_SYSTEM_BYTES || memchr(from, '\'', length) ||
            memchr(from, '"', length) || memchr(from, '{', length) || memchr(from, '\\', length))
            continue;
        memcpy(system, from, length);
        system[length] = '\0';
        return true;
    }
    return false;
}

/* Normalizes a template, so that equal templates become equal texts: no white space or newlines,
 * one kind of quotes, one way to access members. Example:
 *   {{- '<|im_start|>' + message.role + "\n" }}  becomes  {{'<|im_start|>'+message['role']+''}}
 * The result is from mem_alloc. */
static char *normalize(const char *text)
{
    static const char *const from[] = {"\\n", "message.role", "message.content"};
    static const char *const to[] = {"", "message['role']", "message['content']"};
    char *out = mem_alloc(2 * strlen(text) + 1, 1, "chat template");
    for (char *at = out; at && *text;) {
        size_t i = 0;
        while (i < sizeof from / sizeof from[0] && strncmp(text, from[i], strlen(from[i])) != 0)
            i++;
        if (i < sizeof from / sizeof from[0]) {
            memcpy(at, to[i], strlen(to[i]));
            at += strlen(to[i]);
            text += strlen(from[i]);
        } else {
            bool is_dash = *text == '-' && ((at > out + 1 && at[-1] == '{' && at[-2] == '{') ||
                                            strncmp(text, "-}}", 3) == 0);
            if (!is_dash && !strchr(" \t\r\n", *text))
                *at++ = *text == '"' ? '\'' : *text;
            text++;
        }
    }
    return out;
}

/* The words by which a normalized template belongs to a form: all of `all`, one of `one` if there
 * are any, and none of `none`. `spaced` must stand in quotes in the original template, spaces
 * included. */
static const struct signature {
    const char *form; /* its name */
    const char *all[3], *one[2], *none[9], *spaced;
} signatures[] = {
    {.form = "chatml",
     .one = {"'<|im_start|>'+message['role']+''+message['content']+'<|im_end|>",
             "'<|im_start|>'+message['role']+''+content+'<|im_end|>"},
     .none = {"bos_token", "eos_token", "|trim", "strip(", "<|im_sep|>", "think>", "reasoning"}},
    {.form = "qwen3",
     .all = {"loop.index0>ns.last_query_index",
             "'<think>'+reasoning_content.strip('')+'</think>'+content.lstrip('')",
             "loop.lastor(notloop.lastandreasoning_content)"},
     .one = {"'<|im_start|>'+message['role']+''+message['content']+'<|im_end|>",
             "'<|im_start|>'+message['role']+''+content+'<|im_end|>"},
     .none = {"bos_token", "eos_token", "|trim"}},
    {.form = "llama3.1",
     .all = {"'<|start_header_id|>'+message['role']+'<|end_header_id|>'+message['content']|trim+'<|"
             "eot_id|>'",
             "CuttingKnowledgeDate:December2023", "bos_token"}},
    {.form = "llama3",
     .all = {"'<|start_header_id|>'+message['role']+'<|end_header_id|>'+message['content']|trim+'<|"
             "eot_id|>'",
             "bos_token"},
     .none = {"Date", "system_message", "tools"}},
    {.form = "mistral-v1",
     .all = {"{{bos_token}}"},
     .one = {"{{''+content+eos_token}}", "{{''+message['content']+eos_token}}"},
     .none = {"[SYSTEM_PROMPT]", "<<SYS>>"},
     .spaced = " [INST] "},
    {.form = "mistral",
     .all = {"{{bos_token}}"},
     .one = {"{{''+content|trim+eos_token}}", "{{''+message['content']|trim+eos_token}}"},
     .none = {"[SYSTEM_PROMPT]", "<<SYS>>"},
     .spaced = "[INST] "},
    {.form = "mistral-tekken",
     .all = {"{{bos_token}}"},
     .one = {"{{content+eos_token}}", "{{message['content']+eos_token}}"},
     .none = {"[SYSTEM_PROMPT]", "<<SYS>>"},
     .spaced = "[INST]"},
    {.form = "llama2",
     .all = {"bos_token+'[INST]'+content.strip()+'[/INST]'", "''+content.strip()+''+eos_token",
             "'<<SYS>>'+system_message+'<</SYS>>'+message['content']"},
     .none = {"tools"}},
    {.form = "phi3",
     .all = {"'<|system|>'+message['content']+'<|end|>'", "'<|user|>'+message['content']+'<|end|>'",
             "'<|assistant|>'+message['content']+'<|end|>'"},
     .one = {"{{eos_token}}"},
     .none = {"bos_token", "tools"}},
    {.form = "phi4-mini",
     .all = {"'<|'+message['role']+'|>'+message['content']+'<|end|>'", "{{eos_token}}"},
     .none = {"bos_token"}},
    {.form = "phi4",
     .all = {"'<|im_start|>system<|im_sep|>'+message['content']+'<|im_end|>'",
             "'<|im_start|>user<|im_sep|>'+message['content']+'<|im_end|>'",
             "'<|im_start|>assistant<|im_sep|>'+message['content']+'<|im_end|>'"},
     .none = {"bos_token", "eos_token", "|trim", "strip(", "think>", "reasoning", "tools"}},
    {.form = "gemma",
     .all = {"{{bos_token}}", "'<start_of_turn>'+role+''+message['content']|trim+'<end_of_turn>'",
             "raise_exception('Systemrolenotsupported')"}},
    {.form = "gemma3",
     .all = {"{{bos_token}}", "'<start_of_turn>'+role+''+(first_user_prefixifloop.first",
             "message['content']|trim"},
     .none = {"tools"}},
    {.form = "olmo2",
     .all = {"{{bos_token}}", "'<|assistant|>'+message['content']+eos_token+''", "ifnotloop.last"},
     .one = {"'<|user|>'+message['content']+''}}"},
     .none = {"tools"}},
    {.form = "tulu",
     .all = {"'<|assistant|>'+message['content']+eos_token+''",
             "'<|user|>'+message['content']+''}}", "ifnotloop.last"},
     .none = {"bos_token", "tools"}},
    {.form = "granite3.1",
     .all = {"'<|start_of_role|>'+message['role']+'<|end_of_role|>'+message['content']+'<|end_of_"
             "text|>'",
             "strftime_now"}},
    {.form = "granite",
     .all = {"'<|start_of_role|>user<|end_of_role|>'+message['content']+'<|end_of_text|>'",
             "'<|start_of_role|>assistant<|end_of_role|>'+message['content']+'<|end_of_text|>'"},
     .none = {"strftime_now"}},
    {.form = "glm4",
     .all = {"[gMASK]<sop>", "<|{{item['role']}}|>{{item['metadata']}}{{item['content']}}"}},
    {.form = "cohere",
     .all = {"'<|START_OF_TURN_TOKEN|><|USER_TOKEN|>'+content.strip()+'<|END_OF_TURN_TOKEN|>'",
             "'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'+content.strip()+'<|END_OF_TURN_TOKEN|>'",
             "bos_token"},
     .none = {"tools", "documents"}},
    {.form = "zephyr",
     .all = {"'<|user|>'+message['content']+eos_token", "'<|system|>'+message['content']+eos_token",
             "'<|assistant|>'+message['content']+eos_token"},
     .none = {"bos_token"}},
};

/* The number of the words that are in the text. */
static size_t count_words(const char *text, const char *const *words, size_t most, size_t *given)
{
    size_t found = 0;
    for (*given = 0; *given < most && words[*given]; ++*given)
        found += strstr(text, words[*given]) != NULL;
    return found;
}

static bool has_signature(const struct signature *wanted, const char *text, const char *raw)
{
    size_t given;
    if (count_words(text, wanted->all, 3, &given) < given ||
        (count_words(text, wanted->one, 2, &given) == 0 && given > 0) ||
        count_words(text, wanted->none, 9, &given) > 0)
        return false;
    if (!wanted->spaced)
        return true;
    char quoted[2][32];
    snprintf(quoted[0], sizeof quoted[0], "'%s'", wanted->spaced);
    snprintf(quoted[1], sizeof quoted[1], "\"%s\"", wanted->spaced);
    return strstr(raw, quoted[0]) || strstr(raw, quoted[1]);
}

static int form_of_template(const char *text, chat_form *out)
{
    const chat_form *found = NULL;
    char *normal = normalize(text);
    if (!normal)
        return -ENOMEM;
    for (size_t i = 0; !found && i < sizeof signatures / sizeof signatures[0]; i++)
        if (has_signature(&signatures[i], normal, text))
            found = form_named(signatures[i].form);
    mem_free(normal);
    if (!found)
        return err_set(ERR_CONFIG,
                       "data.chat_template: the tokenizer's own template is not one that Sluice "
                       "knows; set the one that its model was trained with, if it is among %s",
                       CHAT_NAMES);
    *out = *found;
    if (strcmp(out->name, "chatml") == 0)
        out->adds_system = find_system(text, out->system);
    return 0;
}

/* otherwise: the form if no token tells, or NULL */
static int form_of_tokens(const tokenizer *words, const char *otherwise, chat_form *out)
{
    const chat_form *found = otherwise ? form_named(otherwise) : NULL;
    if (tokenizer_find(words, "<|im_start|>") >= 0 && tokenizer_find(words, "<|im_end|>") >= 0)
        found = form_named("chatml");
    else if (tokenizer_find(words, "<|start_header_id|>") >= 0)
        found = form_named("llama3");
    if (!found)
        return err_set(ERR_CONFIG,
                       "data.chat_template: neither files nor tokens of the tokenizer tell how it "
                       "writes conversations; set one of %s",
                       CHAT_NAMES);
    *out = *found;
    return 0;
}

/* Copies the text of a token; what is there stays if the tokenizer has none. */
static int copy_token(const tokenizer *words, int32_t id, char text[CHAT_TOKEN_BYTES])
{
    size_t bytes = 0;
    const char *token = id >= 0 ? tokenizer_token_bytes(words, id, false, &bytes) : "";
    if (bytes >= CHAT_TOKEN_BYTES)
        return err_set(ERR_CONFIG,
                       "the tokenizer's token %d of %zu bytes is too long for a template", (int)id,
                       bytes);
    if (bytes > 0)
        snprintf(text, CHAT_TOKEN_BYTES, "%.*s", (int)bytes, token);
    return 0;
}

void chat_form_end(chat_form *form)
{
    const char *end =
        form->kind == CHAT_PLAIN || form->kind == CHAT_ALPACA ? "\2" : form->answer_end;
    const char *eos = end ? strchr(end, '\2') : NULL; /* the rest of such an end is no token */
    snprintf(form->end, sizeof form->end, "%s", eos ? form->eos : end ? end : "");
}

int chat_form_find_or(const char *name, const char *otherwise, const char *tokenizer_name,
                      const tokenizer *words, chat_form *out)
{
    const chat_form *named = form_named(name);
    char *text = NULL;
    int rc = 0;
    if (named) {
        *out = *named;
    } else if (strcmp(name, "auto") != 0) {
        return err_set(ERR_CONFIG, "data.chat_template: there is no \"%.64s\"; known are %s", name,
                       CHAT_NAMES);
    } else {
        TRY(read_template(tokenizer_name, &text));
        rc = text ? form_of_template(text, out) : form_of_tokens(words, otherwise, out);
        mem_free(text);
    }
    TRY(rc);
    TRY(copy_token(words, tokenizer_begin_id(words), out->begin));
    TRY(copy_token(words, tokenizer_end_id(words), out->eos));
    chat_form_end(out);
    return 0;
}

int chat_form_find(const char *name, const char *tokenizer_name, const tokenizer *words,
                   chat_form *out)
{
    return chat_form_find_or(name, NULL, tokenizer_name, words, out);
}
