/* Finds the form of chat.h for a tokenizer: by name, by the template beside the tokenizer, or by
 * the tokenizer's tokens. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/foreign_json.h"
#include "base/mem.h"
#include "base/size.h"
#include "text/chat.h"

enum { FILE_MAX_BYTES = 16 << 20 };

/* The forms, with the parts that all their models share. */
static const chat_form forms[] = {
    {.kind = CHAT_CHATML, .name = "chatml"},
    {.kind = CHAT_CHATML,
     .name = "qwen2",
     .adds_system = true,
     .system = "You are a helpful assistant."},
    {.kind = CHAT_CHATML,
     .name = "qwen2.5",
     .adds_system = true,
     .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.kind = CHAT_QWEN3, .name = "qwen3"},
    {.kind = CHAT_CHATML,
     .name = "smollm2",
     .adds_system = true,
     .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.kind = CHAT_LLAMA3, .name = "llama3", .begin = "<|begin_of_text|>"},
    {.kind = CHAT_LLAMA3, .name = "llama3.1", .begin = "<|begin_of_text|>", .has_dates = true},
    {.kind = CHAT_MISTRAL,
     .name = "mistral",
     .strips_answers = true,
     .user_before = "[INST] ",
     .user_after = "[/INST]",
     .answer_before = " "},
    {.kind = CHAT_MISTRAL,
     .name = "mistral-v1",
     .is_first = true,
     .user_before = " [INST] ",
     .user_after = " [/INST]",
     .answer_before = " "},
    {.kind = CHAT_MISTRAL,
     .name = "mistral-tekken",
     .user_before = "[INST]",
     .user_after = "[/INST]",
     .answer_before = ""},
    {.kind = CHAT_ZEPHYR, .name = "zephyr"},
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
    if (out->kind == CHAT_CHATML)
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

static int copy_token(const tokenizer *words, int32_t id, const char *otherwise,
                      char text[CHAT_TOKEN_BYTES])
{
    size_t bytes = 0;
    const char *token = id >= 0 ? tokenizer_token_bytes(words, id, false, &bytes) : "";
    if (bytes >= CHAT_TOKEN_BYTES)
        return err_set(ERR_CONFIG,
                       "the tokenizer's token %d of %zu bytes is too long for a template", (int)id,
                       bytes);
    if (bytes == 0)
        snprintf(text, CHAT_TOKEN_BYTES, "%s", otherwise);
    else
        snprintf(text, CHAT_TOKEN_BYTES, "%.*s", (int)bytes, token);
    return 0;
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
    if (out->kind == CHAT_MISTRAL)
        TRY(copy_token(words, tokenizer_begin_id(words), "<s>", out->begin));
    if (out->kind == CHAT_MISTRAL || out->kind == CHAT_ZEPHYR)
        TRY(copy_token(words, tokenizer_end_id(words), "</s>", out->end));
    if (out->kind == CHAT_PLAIN || out->kind == CHAT_ALPACA)
        TRY(copy_token(words, tokenizer_end_id(words), "", out->end));
    return 0;
}

int chat_form_find(const char *name, const char *tokenizer_name, const tokenizer *words,
                   chat_form *out)
{
    return chat_form_find_or(name, NULL, tokenizer_name, words, out);
}
