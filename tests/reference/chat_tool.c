/* Writes conversations with src/text/chat.h, so that check_chats.py can compare them with those of
 * other programs.
 *
 *   chat-tool FORM DIRECTORY BEGIN END
 *
 * FORM is a name of chat.h, or "auto": the files in DIRECTORY decide. Reads one list of messages a
 * line and writes {"form", "text", "answers": [[begin, end], ...]} or {"error"}, one a line. BEGIN
 * and END replace the tokens of those names in the template. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/chat.h"

enum { MESSAGES_MAX = 64 };

static json_t *render(const chat_form *form, const json_t *list)
{
    chat_message messages[MESSAGES_MAX];
    chat_text text = {0};
    size_t count = 0, idx;
    json_t *item, *out;
    json_array_foreach(list, idx, item)
    {
        if (count == MESSAGES_MAX)
            break;
        const json_t *content = json_object_get(item, "content");
        messages[count++] = (chat_message){
            .role = json_string_value(json_object_get(item, "role")),
            .content = json_string_value(content),
            .bytes = json_string_length(content),
            .reasoning = json_string_value(json_object_get(item, "reasoning_content")),
        };
    }
    if (chat_render(form, messages, count, false, &text) < 0) {
        out = json_pack("{s:s}", "error", err_text());
    } else {
        json_t *answers = json_array();
        for (size_t i = 0; i < text.answer_count; i++)
            json_array_append_new(answers, json_pack("[I,I]", (json_int_t)text.answers[i].begin,
                                                     (json_int_t)text.answers[i].end));
        out = json_pack("{s:s, s:s%, s:o}", "form", form->name, "text", text.bytes, text.length,
                        "answers", answers);
    }
    chat_text_fini(&text);
    return out;
}

int main(int argc, char **argv)
{
    tokenizer *words;
    chat_form form;
    if (argc != 5 || tokenizer_open("bytes", &words) < 0)
        return 2;
    int rc = chat_form_find(argv[1], argv[2], words, &form);
    if (rc == 0) {
        snprintf(form.begin, sizeof form.begin, "%s", argv[3]);
        snprintf(form.eos, sizeof form.eos, "%s", argv[4]);
        chat_form_end(&form);
    }
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t length; (length = getline(&line, &capacity, stdin)) > 0;) {
        json_t *list = json_loadb(line, (size_t)length, 0, NULL);
        json_t *out = rc < 0 ? json_pack("{s:s}", "error", err_text()) : render(&form, list);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(out);
        json_decref(list);
    }
    free(line);
    tokenizer_close(words);
    return 0;
}
