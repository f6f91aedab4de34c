/* The kinds of JSON records as documents: which member is what, and which part counts as a target.
 * prepare.h has the table. Runs on any thread; see prepare_internal.h. */
#include <string.h>

#include "data/data_internal.h"
#include "data/prepare_internal.h"

/* ---- roles ---- */

/* The roles that data sets write, and those of the chat templates. NULL: no template here can write
 * such a turn. */
static const char *const roles[][2] = {
    {"user", "user"},        {"human", "user"},       {"assistant", "assistant"},
    {"gpt", "assistant"},    {"model", "assistant"},  {"chatgpt", "assistant"},
    {"system", "system"},    {"tool", NULL},          {"function", NULL},
    {"function_call", NULL}, {"observation", NULL},   {"ipython", NULL},
    {"tool_call", NULL},     {"tool_response", NULL},
};

static int find_role(size_t idx, const char *name, const char **out)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(roles[i][0], name) != 0)
            continue;
        *out = roles[i][1];
        if (*out)
            return 0;
        return err_set(
            ERR_INPUT,
            "message %zu has the role \"%s\": tools and their calls cannot be written by "
            "any template here; leave such conversations out",
            idx, name);
    }
    return err_set(ERR_INPUT,
                   "message %zu has the role \"%.32s\"; known are system, user (human) and "
                   "assistant (gpt, chatgpt, model)",
                   idx, name);
}

/* ---- messages ---- */

static int make_messages(prepi_piece *piece, size_t count)
{
    void *list = piece->messages;
    TRY(prepi_make_room(&list, &piece->message_capacity, 0, count, sizeof *piece->messages));
    piece->messages = list;
    return 0;
}

static void set_message(prepi_piece *piece, size_t idx, const char *role, const json_t *content)
{
    piece->messages[idx] = (chat_message){
        .role = role, .content = json_string_value(content), .bytes = json_string_length(content)};
}

static const json_t *either(const json_t *item, const char *name, const char *other)
{
    const json_t *value = json_object_get(item, name);
    return value ? value : json_object_get(item, other);
}

static int take_message(prepi_piece *piece, size_t idx, const json_t *item)
{
    const json_t *role = either(item, "role", "from"), *content = either(item, "content", "value");
    const json_t *weight = json_object_get(item, "weight");
    const char *name;
    if (!json_is_string(role))
        return err_set(ERR_INPUT, "message %zu has no \"role\" and no \"from\"", idx);
    if (json_array_size(json_object_get(item, "tool_calls")) > 0)
        return err_set(ERR_INPUT, "message %zu has tool_calls, which no template here can write",
                       idx);
    TRY(find_role(idx, json_string_value(role), &name));
    if (!json_is_string(content))
        return err_set(ERR_INPUT, "message %zu has no \"content\" and no \"value\" that is a text",
                       idx);
    set_message(piece, idx, name, content);
    piece->messages[idx].reasoning = json_string_value(json_object_get(item, "reasoning_content"));
    piece->messages[idx].is_context = json_is_number(weight) && json_number_value(weight) == 0;
    return 0;
}

/* Refuses a list of tools that is not empty; it may be a text. */
static int refuse_tools(const json_t *record)
{
    const json_t *tools = json_object_get(record, "tools");
    const char *text = json_string_value(tools);
    if (json_array_size(tools) == 0 && (!text || text[0] == '\0' || strcmp(text, "[]") == 0))
        return 0;
    return err_set(ERR_INPUT, "the record has \"tools\", which no template here can write; leave "
                              "such conversations out");
}

static int take_list(prepi_piece *piece, size_t first, const json_t *list)
{
    size_t idx;
    json_t *item;
    json_array_foreach(list, idx, item) TRY(take_message(piece, first + idx, item));
    return 0;
}

static int take_chat(const prepi_rules *rules, prepi_piece *piece, const json_t *record)
{
    const char *name = rules->work->kind == DATA_SHAREGPT ? "conversations" : "messages";
    const json_t *list = json_object_get(record, name), *system = json_object_get(record, "system");
    size_t count = json_array_size(list);
    if (!json_is_array(list))
        return err_set(ERR_INPUT, "the record has no list \"%s\"", name);
    TRY(refuse_tools(record));
    bool has_system = json_string_length(system) > 0;
    TRY(make_messages(piece, count + has_system));
    if (has_system)
        set_message(piece, 0, "system", system);
    TRY(take_list(piece, has_system, list));
    if (has_system && count > 0 && strcmp(piece->messages[1].role, "system") == 0)
        return err_set(ERR_INPUT, "the record has \"system\", and its first message is a system "
                                  "message as well");
    return prepi_add_chat(rules, piece, count + has_system);
}

/* ---- texts ---- */

static int text_of(const json_t *record, const char *name, const json_t **out)
{
    *out = json_object_get(record, name);
    return json_is_string(*out) ? 0 : err_set(ERR_INPUT, "the record has no text in \"%s\"", name);
}

/* Puts three texts together in piece->joined. */
static int join(prepi_piece *piece, const json_t *first, const char *between, const json_t *second)
{
    size_t parts[3] = {json_string_length(first), strlen(between), json_string_length(second)};
    void *text = piece->joined;
    TRY(prepi_make_room(&text, &piece->joined_capacity, 0, parts[0] + parts[1] + parts[2] + 1, 1));
    piece->joined = text;
    memcpy(piece->joined, json_string_value(first), parts[0]);
    memcpy(piece->joined + parts[0], between, parts[1]);
    memcpy(piece->joined + parts[0] + parts[1], json_string_value(second), parts[2]);
    piece->joined_bytes = parts[0] + parts[1] + parts[2];
    return 0;
}

/* The pairs of "history" as messages from `first` on. */
static int take_history(prepi_piece *piece, size_t first, const json_t *history)
{
    size_t idx;
    json_t *pair;
    json_array_foreach(history, idx, pair)
    {
        const json_t *asked = json_array_get(pair, 0), *answer = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(asked) || !json_is_string(answer))
            return err_set(ERR_INPUT, "entry %zu of \"history\" is no pair of texts", idx);
        set_message(piece, first + 2 * idx, "user", asked);
        set_message(piece, first + 2 * idx + 1, "assistant", answer);
    }
    return 0;
}

static int take_alpaca(const prepi_rules *rules, prepi_piece *piece, const json_t *record)
{
    const json_t *instruction, *output, *input = json_object_get(record, "input");
    const json_t *system = json_object_get(record, "system");
    const json_t *history = json_object_get(record, "history");
    TRY(text_of(record, "instruction", &instruction));
    TRY(text_of(record, "output", &output));
    if (input && !json_is_string(input) && !json_is_null(input))
        return err_set(ERR_INPUT, "the record has an \"input\" that is no text");
    bool has_input = json_string_length(input) > 0, has_system = json_string_length(system) > 0;
    bool is_alpaca = rules->work->chat.kind == CHAT_ALPACA;
    size_t count = 0;
    TRY(make_messages(piece, 3 + 2 * json_array_size(history)));
    if (has_system)
        set_message(piece, count++, "system", system);
    else if (is_alpaca && has_input)
        piece->messages[count++] = (chat_message){.role = "system",
                                                  .content = CHAT_ALPACA_WITH_INPUT,
                                                  .bytes = strlen(CHAT_ALPACA_WITH_INPUT)};
    TRY(take_history(piece, count, history));
    count += 2 * json_array_size(history);
    set_message(piece, count, "user", instruction);
    if (has_input) {
        TRY(join(piece, instruction, is_alpaca ? CHAT_ALPACA_INPUT : "\n", input));
        piece->messages[count].content = piece->joined;
        piece->messages[count].bytes = piece->joined_bytes;
    }
    set_message(piece, count + 1, "assistant", output);
    return prepi_add_chat(rules, piece, count + 2);
}

/* A prompt and a completion that are lists of messages. */
static int take_chat_completion(const prepi_rules *rules, prepi_piece *piece, const json_t *record,
                                const json_t *prompt, const json_t *completion)
{
    size_t prompt_count = json_array_size(prompt), count = json_array_size(completion);
    if (!json_is_array(prompt) || !json_is_array(completion))
        return err_set(ERR_INPUT,
                       "\"prompt\" and \"completion\" are not both lists of messages, as "
                       "in the first record of the file");
    TRY(refuse_tools(record));
    TRY(make_messages(piece, prompt_count + count));
    TRY(take_list(piece, 0, prompt));
    TRY(take_list(piece, prompt_count, completion));
    for (size_t i = 0; i < prompt_count; i++)
        piece->messages[i].is_context = true;
    return prepi_add_chat(rules, piece, prompt_count + count);
}

static int take_completion(const prepi_rules *rules, prepi_piece *piece, const json_t *record)
{
    const json_t *prompt = json_object_get(record, "prompt"), *completion;
    completion = json_object_get(record, "completion");
    if (rules->work->has_chat)
        return take_chat_completion(rules, piece, record, prompt, completion);
    TRY(text_of(record, "prompt", &prompt));
    TRY(text_of(record, "completion", &completion));
    TRY(join(piece, prompt, "", completion));
    return prepi_add_completion(rules, piece, piece->joined, json_string_length(prompt),
                                piece->joined_bytes);
}

static int take_text(const prepi_rules *rules, prepi_piece *piece, const json_t *record)
{
    const json_t *text = json_object_get(record, rules->field);
    if (!json_is_string(text))
        return err_set(ERR_INPUT,
                       "the record has no text in \"%s\"; name the member that holds it, as in "
                       "{\"path\": ..., \"field\": \"content\"}",
                       rules->field);
    return prepi_add_document(rules, piece, json_string_value(text), json_string_length(text));
}

int prepi_check_record(const prepi_rules *rules, const json_t *record)
{
    enum data_format kind = rules->work->kind;
    datai_names names = {.field = rules->field};
    const char *name;
    json_t *value;
    if (!json_is_object(record))
        return err_set(ERR_INPUT, "the record is not an object, { ... }");
    json_object_foreach((json_t *)(uintptr_t)record, name, value)
        datai_names_add(&names, name, strlen(name), json_is_array(value) ? '[' : '?');
    return datai_kind_fits(kind, rules->field, &names)
               ? 0
               : datai_refuse_kind(kind, rules->field, &names);
}

int prepi_take_record(const prepi_rules *rules, prepi_piece *piece, const json_t *record)
{
    TRY(prepi_check_record(rules, record));
    switch (rules->work->kind) {
    case DATA_MESSAGES:
    case DATA_SHAREGPT:
        return take_chat(rules, piece, record);
    case DATA_ALPACA:
        return take_alpaca(rules, piece, record);
    case DATA_PROMPT_COMPLETION:
        return take_completion(rules, piece, record);
    default:
        return take_text(rules, piece, record);
    }
}
