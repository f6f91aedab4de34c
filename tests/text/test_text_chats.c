/* Conversations: the text of each form, the form that lies beside a tokenizer, and which tokens of
 * one that merges bytes count as targets. */
#include "tests/data/token_files.h"

/* ---- the forms ---- */

static void forms_are_exact(void **state)
{
    static const chat_message four[] = {{"system", " S ", 3, NULL, false},
                                        {"user", "Q1\n", 3, NULL, false},
                                        {"assistant", " A1 ", 4, NULL, false},
                                        {"user", "Q2", 2, NULL, false},
                                        {"assistant", "A2", 2, NULL, false}};
    static const struct {
        const char *name, *all, *without_system; /* NULL: refused, or not tried */
    } forms[] = {
        {"chatml",
         "<|im_start|>system\n S "
         "<|im_end|>\n<|im_start|>user\nQ1\n<|im_end|>\n<|im_start|>assistant\n "
         "A1 <|im_end|>\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\nA2<|im_end|>\n",
         "<|im_start|>user\nQ1\n<|im_end|>\n"},
        {"qwen2.5", NULL,
         "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
         "assistant.<|im_end|>\n<|im_start|>user\nQ1\n<|im_end|>\n"},
        {"smollm2", NULL,
         "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
         "Face<|im_end|>\n<|im_start|>user\nQ1\n<|im_end|>\n"},
        {"qwen2", NULL,
         "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nQ1\n"
         "<|im_end|>\n"},
        {"qwen3",
         "<|im_start|>system\n S "
         "<|im_end|>\n<|im_start|>user\nQ1\n<|im_end|>\n<|im_start|>assistant\n "
         "A1 "
         "<|im_end|>\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
         "think>\n\n"
         "A2<|im_end|>\n",
         "<|im_start|>user\nQ1\n<|im_end|>\n"},
        {"llama3",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nQ1<|eot_id|><|start_header_id|>assistant"
         "<|end_header_id|>\n\nA1<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nQ2<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\nA2<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nQ1<|eot_id|>"},
        {"llama3.1",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul 2024\n\nS<|eot_id|><|start_header_id|>user"
         "<|end_header_id|>\n\nQ1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA1"
         "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nQ2<|eot_id|><|start_header_id|>"
         "assistant<|end_header_id|>\n\nA2<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user"
         "<|end_header_id|>\n\nQ1<|eot_id|>"},
        {"mistral", "<s>[INST] Q1\n[/INST] A1</s>[INST]  S \n\nQ2[/INST] A2</s>",
         "<s>[INST] Q1\n[/INST]"},
        {"mistral-v1", "<s> [INST]  S \n\nQ1\n [/INST]  A1 </s> [INST] Q2 [/INST] A2</s>",
         "<s> [INST] Q1\n [/INST]"},
        {"mistral-tekken", "<s>[INST]Q1\n[/INST] A1 </s>[INST] S \n\nQ2[/INST]A2</s>",
         "<s>[INST]Q1\n[/INST]"},
        {"zephyr",
         "<|system|>\n S </s>\n<|user|>\nQ1\n</s>\n<|assistant|>\n A1 </s>\n<|user|>\nQ2</s>\n"
         "<|assistant|>\nA2</s>\n",
         "<|user|>\nQ1\n</s>\n"},
        {"llama2",
         "<s>[INST] <<SYS>>\n S \n<</SYS>>\n\nQ1 [/INST] A1 </s><s>[INST] Q2 [/INST] A2 </s>",
         "<s>[INST] Q1 [/INST]"},
        {"phi3",
         "<|system|>\n S <|end|>\n<|user|>\nQ1\n<|end|>\n<|assistant|>\n A1 "
         "<|end|>\n<|user|>\nQ2<|end|>\n<|assistant|>\nA2<|end|>\n<|endoftext|>",
         "<|user|>\nQ1\n<|end|>\n<|endoftext|>"},
        {"phi4-mini",
         "<|system|> S <|end|><|user|>Q1\n<|end|><|assistant|> A1 <|end|><|user|>Q2<|end|>"
         "<|assistant|>A2<|end|><|endoftext|>",
         "<|user|>Q1\n<|end|><|endoftext|>"},
        {"phi4",
         "<|im_start|>system<|im_sep|> S <|im_end|><|im_start|>user<|im_sep|>Q1\n<|im_end|>"
         "<|im_start|>assistant<|im_sep|> A1 <|im_end|><|im_start|>user<|im_sep|>Q2<|im_end|>"
         "<|im_start|>assistant<|im_sep|>A2<|im_end|>",
         "<|im_start|>user<|im_sep|>Q1\n<|im_end|>"},
        {"gemma", NULL, "<bos><start_of_turn>user\nQ1<end_of_turn>\n"},
        {"gemma3",
         "<bos><start_of_turn>user\n S \n\nQ1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
         "<start_of_turn>user\nQ2<end_of_turn>\n<start_of_turn>model\nA2<end_of_turn>\n",
         "<bos><start_of_turn>user\nQ1<end_of_turn>\n"},
        {"olmo2",
         "<|endoftext|><|system|>\n S \n<|user|>\nQ1\n\n<|assistant|>\n A1 <|endoftext|>\n"
         "<|user|>\nQ2\n<|assistant|>\nA2<|endoftext|>",
         "<|endoftext|><|user|>\nQ1\n\n"},
        {"tulu",
         "<|system|>\n S \n<|user|>\nQ1\n\n<|assistant|>\n A1 <|end_of_text|>\n"
         "<|user|>\nQ2\n<|assistant|>\nA2<|end_of_text|>",
         "<|user|>\nQ1\n\n"},
        {"granite",
         "<|start_of_role|>system<|end_of_role|> S <|end_of_text|>\n<|start_of_role|>user"
         "<|end_of_role|>Q1\n<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|> A1 "
         "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Q2<|end_of_text|>\n"
         "<|start_of_role|>assistant<|end_of_role|>A2<|end_of_text|>\n",
         "<|start_of_role|>user<|end_of_role|>Q1\n<|end_of_text|>\n"},
        {"granite3.1",
         "<|start_of_role|>system<|end_of_role|> S <|end_of_text|>\n<|start_of_role|>user"
         "<|end_of_role|>Q1\n<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|> A1 "
         "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Q2<|end_of_text|>\n"
         "<|start_of_role|>assistant<|end_of_role|>A2<|end_of_text|>\n",
         NULL},
        {"glm4",
         "[gMASK]<sop><|system|>\n S <|user|>\nQ1\n<|assistant|>\n A1 "
         "<|user|>\nQ2<|assistant|>\nA2",
         "[gMASK]<sop><|user|>\nQ1\n"},
        {"cohere",
         "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|> S <|END_OF_TURN_TOKEN|>"
         "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Q1<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
         "<|CHATBOT_TOKEN|>A1<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Q2"
         "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A2<|END_OF_TURN_TOKEN|>",
         "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Q1<|END_OF_TURN_TOKEN|>"},
        {"plain", "system:  S \nuser: Q1\n\nassistant:  A1 \nuser: Q2\nassistant: A2\n",
         "user: Q1\n\n"},
        {"alpaca",
         " S \n\n### Instruction:\nQ1\n\n\n### Response:\n A1 \n\n\n### Instruction:\nQ2\n\n"
         "### Response:\nA2\n",
         "Below is an instruction that describes a task. Write a response that appropriately "
         "completes the request.\n\n### Instruction:\nQ1\n\n\n### Response:\n"},
    };
    chat_text text = {0};
    chat_form form;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        assert_int_equal(chat_form_find(forms[i].name, "none", words, &form), 0);
        int rc = chat_render(&form, four, 5, false, &text);
        assert_int_equal(rc, strcmp(forms[i].name, "gemma") == 0 ? ERR_INPUT : 0);
        if (forms[i].all && (text.length != strlen(forms[i].all) ||
                             memcmp(text.bytes, forms[i].all, text.length) != 0))
            fail_msg("%s: %.*s", forms[i].name, (int)text.length, text.bytes);
        if (rc == 0) {
            assert_int_equal(text.answer_count, 2);
            const chat_span *last = &text.answers[1];
            size_t after = text.length - last->end; /* at most a newline and a last token */
            assert_true(
                after == 0 || text.bytes[last->end] == '\n' ||
                (after > 1 && strncmp(text.bytes + last->end, "<|endoftext|>", after) == 0));
            assert_true(last->end > last->begin + 1);
        }
        rc = chat_render(&form, four + 1, 1, false, &text);
        assert_int_equal(rc, forms[i].without_system ? 0 : ERR_INPUT);
        if (rc == 0 && (text.length != strlen(forms[i].without_system) ||
                        memcmp(text.bytes, forms[i].without_system, text.length) != 0))
            fail_msg("%s: %.*s", forms[i].name, (int)text.length, text.bytes);
        assert_int_equal(text.answer_count, 0);
    }
    assert_error(chat_form_find("auto", "none", words, &form), ERR_CONFIG, "data.chat_template");
    chat_text_fini(&text);
}

/* Order of roles, what begins an answer, and what ends it. */
static void turns_are_checked(void **state)
{
    static const chat_message said[] = {{"user", "Q", 1, NULL, false},
                                        {"assistant", " A ", 3, NULL, false},
                                        {"user", "R", 1, NULL, false},
                                        {"user", "S", 1, NULL, false}};
    static const struct {
        const char *name, *asked;
    } rows[] = {{"phi3", "<|end|>\n<|assistant|>\n"},   {"phi4-mini", "<|end|><|assistant|>"},
                {"gemma", "\n<start_of_turn>model\n"},  {"glm4", "\nR<|assistant|>"},
                {"llama2", "<s>[INST] R [/INST]"},      {"mistral", "[INST] R[/INST]"},
                {"cohere", "<|CHATBOT_TOKEN|>"},        {"zephyr", "</s>\n<|assistant|>\n"},
                {"granite", "assistant<|end_of_role|>"}};
    static const char *const strict[] = {"gemma", "gemma3", "llama2", "cohere", "mistral"};
    chat_text text = {0};
    chat_form form;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(chat_form_find(rows[i].name, "none", words, &form), 0);
        assert_int_equal(chat_render(&form, said, 3, true, &text), 0);
        size_t bytes = strlen(rows[i].asked);
        if (text.length < bytes || memcmp(text.bytes + text.length - bytes, rows[i].asked, bytes))
            fail_msg("%s: %.*s", rows[i].name, (int)text.length, text.bytes);
    }
    for (size_t i = 0; i < sizeof strict / sizeof strict[0]; i++) {
        assert_int_equal(chat_form_find(strict[i], "none", words, &form), 0);
        assert_error(chat_render(&form, said, 4, false, &text), ERR_INPUT, "message 3");
    }
    assert_int_equal(chat_form_find("glm4", "none", words, &form), 0);
    assert_int_equal(chat_render(&form, said, 3, false, &text), 0);
    static const char answer[] = " A <|user|>"; /* with what ends it */
    assert_int_equal(text.answer_count, 1);
    assert_int_equal(text.answers[0].end - text.answers[0].begin, sizeof answer - 1);
    assert_memory_equal(text.bytes + text.answers[0].begin, answer, sizeof answer - 1);
    chat_text_fini(&text);
}

static void reasoning_of_qwen3(void **state)
{
    static const chat_message said[] = {
        {"user", "Q", 1, NULL, false},
        {"assistant", "<think>\nwhy\n</think>\n\nA", 23, NULL, false},
        {"user", "R", 1, NULL, false},
        {"assistant", "<think>\nso\n</think>\n\nB", 22, NULL, false},
    };
    static const chat_message field[] = {{"user", "Q", 1, NULL, false},
                                         {"assistant", "A", 1, "\nwell\n", false}};
    chat_text text = {0};
    chat_form form;
    assert_int_equal(chat_form_find("qwen3", "none", words, &form), 0);
    assert_int_equal(chat_render(&form, said, 4, false, &text), 0);
    static const char all[] = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
                              "<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n<think>\nso\n"
                              "</think>\n\nB<|im_end|>\n";
    assert_int_equal(text.length, sizeof all - 1);
    assert_memory_equal(text.bytes, all, text.length);
    assert_int_equal(chat_render(&form, field, 2, true, &text), 0);
    static const char other[] =
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n<think>\nwell\n"
        "</think>\n\nA<|im_end|>\n<|im_start|>assistant\n";
    assert_int_equal(text.length, sizeof other - 1);
    assert_memory_equal(text.bytes, other, text.length);
    chat_text_fini(&text);
}

/* The form that a tokenizer's directory tells. */
static void forms_are_found(void **state)
{
    static const struct {
        const char *config, *name, *system;
    } rows[] = {
        {"{\"chat_template\": \"{% for m in messages %}{% if loop.first and messages[0]['role'] != "
         "'system' %}{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained "
         "by "
         "Hugging Face<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
         "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\"}",
         "chatml", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
        {"{\"chat_template\": \"{{- '<|im_start|>system\\n' }}{%- if messages[0]['role'] == "
         "'system' "
         "%}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else "
         "%}{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
         "assistant.<|im_end|>\\n' }}{{- '<|im_start|>' + message.role + '\\n' + message.content + "
         "'<|im_end|>' + '\\n' }}\"}",
         "chatml", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
        {"{\"chat_template\": \"{{ \\\"<|im_start|>\\\" + message['role'] + \\\"\\n\\\" + "
         "message['content'] + \\\"<|im_end|>\\\" }}\"}",
         "chatml", NULL},
        {"{\"chat_template\": \"{{ bos_token + '<|im_start|>' + message['role'] + '\\n' + "
         "message['content'] + '<|im_end|>' }}\"}",
         NULL, NULL},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"[INST]\"}, {\"name\": "
         "\"default\", \"template\": \"{{- bos_token }}{{- 'Cutting Knowledge Date: December 2023' "
         "}}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
         "message['content'] | trim + '<|eot_id|>' }}\"}]}",
         "llama3.1", ""},
        {"{\"chat_template\": \"{% set content = '<|start_header_id|>' + message['role'] + "
         "'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% set content = "
         "bos_token + content %}\"}",
         "llama3", NULL},
        {"{\"chat_template\": \"{% set content = '<|start_header_id|>' + message['role'] + "
         "'<|end_header_id|>\\n\\n'+ message['content'] + '<|eot_id|>' %}\"}",
         NULL, NULL},
        {"{\"chat_template\": \"{{- bos_token }}{{- '[INST]' + content + '[/INST]' }}{{- content + "
         "eos_token }}\"}",
         "mistral-tekken", NULL},
        {"{\"chat_template\": \"{{ bos_token }}{{ \\\"[INST] \\\" + content + \\\"[/INST]\\\" }}{{ "
         "\\\" \\\" + message.content | trim + eos_token }}\"}",
         "mistral", NULL},
        {"{\"chat_template\": \"{{- bos_token }}{{- ' [INST] ' + content + ' [/INST]' }}{{- ' ' + "
         "content + eos_token }}\"}",
         "mistral-v1", NULL},
        {"{\"chat_template\": \"{{ bos_token }}{{ '[INST] <<SYS>>' }}{{ ' ' + content|trim + "
         "eos_token }}\"}",
         NULL, NULL},
        {"{\"chat_template\": \"<|im_start|> reasoning_content\"}", NULL, NULL},
        {"{\"chat_template\": \"{{ '<|user|>\\n' + message['content'] + eos_token }}{{ "
         "'<|system|>\\n' + "
         "message['content'] + eos_token }}{{ '<|assistant|>\\n' + message['content'] + eos_token "
         "}}\"}",
         "zephyr", NULL},
        {"{\"chat_template\": \"Human: \"}", NULL, NULL},
        {"{\"chat_template\": \"\"}", NULL, NULL},
        {"{\"chat_template\": \"-}}-}}{{-{{{{-\"}", NULL, NULL},
        {"{\"chat_template\": 7}", NULL, NULL},
        {"{\"chat", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        chat_form form;
        write_text("tokenizer_config.json", rows[i].config, strlen(rows[i].config));
        const char *names[] = {directory, in_directory("tokenizer.json")};
        for (int n = 0; n < 2; n++) {
            int rc = chat_form_find("auto", names[n], words, &form);
            if ((rc == 0) != (rows[i].name != NULL))
                fail_msg("case %zu: %d, %s", i, rc, err_text());
            if (rc < 0)
                continue;
            assert_string_equal(form.name, rows[i].name);
            assert_int_equal(form.adds_system, rows[i].system != NULL);
            assert_string_equal(form.system, rows[i].system ? rows[i].system : "");
        }
    }
    static const char jinja[] =
        "{{bos_token + '<|start_header_id|>' + message['role'] + "
        "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>'}}";
    write_text("chat_template.jinja", jinja, sizeof jinja - 1); /* it comes first */
    chat_form form;
    assert_int_equal(chat_form_find("auto", directory, words, &form), 0);
    assert_string_equal(form.name, "llama3");
    remove_all();
}

/* ---- a tokenizer of merges ---- */

/* A character of a byte-level vocabulary: printable bytes are themselves, the others follow from
 * 256 on. */
static void put_symbol(FILE *file, unsigned byte)
{
    unsigned code = 256, other = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool is_own = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        if (b == byte)
            code = is_own ? b : 256 + other;
        other += !is_own;
    }
    if (code == '"' || code == '\\')
        fprintf(file, "\\%c", (int)code);
    else if (code < 0x80)
        fputc((int)code, file);
    else
        fprintf(file, "%c%c", (int)(0xc0 | code >> 6), (int)(0x80 | (code & 0x3f)));
}

/* 256 bytes, some pairs of them, and the tokens of ChatML. */
static tokenizer *open_merging(void)
{
    static const char *const pairs[] = {"\n\n", " a", "as", "he", "\na", "lo", "  ", "b\n"};
    enum { PAIRS = sizeof pairs / sizeof pairs[0] };
    FILE *file = fopen(in_directory("tokenizer.json"), "w");
    assert_non_null(file);
    fprintf(file, "{\"version\": \"1.0\", \"added_tokens\": [");
    static const char *const added[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 3; i++)
        fprintf(file,
                "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                i ? ", " : "", 256 + PAIRS + i, added[i]);
    fprintf(file, "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                  "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
                  "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": "
                  "{\"type\": \"BPE\", \"vocab\": {");
    for (unsigned b = 0; b < 256; b++) {
        fputc('"', file);
        put_symbol(file, b);
        fprintf(file, "\": %u, ", b);
    }
    for (unsigned i = 0; i < PAIRS; i++) {
        fputc('"', file);
        put_symbol(file, (unsigned char)pairs[i][0]);
        put_symbol(file, (unsigned char)pairs[i][1]);
        fprintf(file, "\": %u%s", 256 + i, i + 1 < PAIRS ? ", " : "}, \"merges\": [");
    }
    for (unsigned i = 0; i < PAIRS; i++) {
        fputc('"', file);
        put_symbol(file, (unsigned char)pairs[i][0]);
        fputc(' ', file);
        put_symbol(file, (unsigned char)pairs[i][1]);
        fprintf(file, "\"%s", i + 1 < PAIRS ? ", " : "]}}");
    }
    assert_int_equal(fclose(file), 0);
    static const char config[] = "{\"eos_token\": \"<|endoftext|>\", "
                                 "\"model_max_length\": 1000000000000000019884624838656}";
    write_text("tokenizer_config.json", config, sizeof config - 1);
    tokenizer *merging;
    assert_ok(tokenizer_open(directory, &merging));
    return merging;
}

/* Makes a conversation's text from pieces that meet across the borders of messages. With `is_json`
 * the text is escaped as JSON. */
static void make_content(uint64_t seed, char *text, bool is_json)
{
    static const char *const some[] = {"\n", "\n\n",       " ", "a",       "hello",
                                       "b",  "<|im_end|>", ".", "\xc3\xa9"};
    text[0] = '\0';
    for (uint64_t i = 0; i < rng_below(SEED, 31, seed, 7); i++) {
        const char *next = some[rng_below(SEED, 32, 64 * seed + i, sizeof some / sizeof some[0])];
        if (is_json && next[0] == '\n')
            next = next[1] ? "\\n\\n" : "\\n";
        strcat(text, next);
    }
}

/* A conversation's tokens are those of its whole text, and those count that hold a byte of an
 * answer. */
static void answers_of_merged_tokens(void **state)
{
    enum { CHATS = 200, TURNS = 4, LENGTH = 4096 };
    tokenizer *merging = open_merging();
    char content[TURNS][256];
    FILE *file = fopen(in_directory("many.jsonl"), "w");
    for (uint64_t c = 0; c < CHATS; c++)
        for (uint64_t t = 0; t < TURNS; t++) {
            make_content(TURNS * c + t, content[t], true);
            fprintf(file, "%s{\"role\": \"%s\", \"content\": \"%s\"}%s",
                    t ? ", " : "{\"messages\": [", t % 2 ? "assistant" : "user", content[t],
                    t + 1 < TURNS ? "" : "]}\n");
        }
    assert_int_equal(fclose(file), 0);
    prepare_options options = options_of("chatml", NULL);
    options.words = merging;
    options.vocab_size = tokenizer_vocab(merging);
    prepare_work work;
    const char *made = in_directory("merged.tokens");
    assert_int_equal(prepare_look(in_directory("many.jsonl"), DATA_AUTO, &options, &work), 0);
    assert_ok(prepare_make(&work, &options, made));
    corpus *source = open_good(&made, 1, DATA_AUTO, options.vocab_size);
    assert_int_equal(corpus_document_count(source), CHATS);
    static int32_t tokens[LENGTH], targets[LENGTH];
    static const tokenize_options plain = {.adds_special = false};
    token_list ids = {0};
    chat_text text = {0};
    uint64_t straddling = 0;
    for (uint64_t c = 0; c < CHATS; c++) {
        uint64_t begin, count;
        chat_message messages[TURNS];
        for (uint64_t t = 0; t < TURNS; t++) {
            make_content(TURNS * c + t, content[t], false);
            messages[t] = (chat_message){t % 2 ? "assistant" : "user", content[t],
                                         strlen(content[t]), NULL, false};
        }
        assert_int_equal(chat_render(&work.chat, messages, TURNS, false, &text), 0);
        ids.count = 0;
        assert_int_equal(tokenizer_encode(merging, text.bytes, text.length, &plain, &ids), 0);
        assert_int_equal(corpus_document(source, c, &begin, &count), 0);
        assert_int_equal(count, ids.count);
        assert_int_equal(corpus_read(source, begin, count, tokens), 0);
        assert_int_equal(corpus_read_targets(source, begin, count, targets), 0);
        assert_memory_equal(tokens, ids.ids, count * sizeof *tokens);
        for (size_t i = 0, at = 0, bytes; i < count; i++, at += bytes) {
            bool counts = false;
            (void)tokenizer_token_bytes(merging, tokens[i], false, &bytes);
            for (size_t a = 0; a < text.answer_count; a++) {
                counts = counts || (at + bytes > text.answers[a].begin && at < text.answers[a].end);
                straddling += at < text.answers[a].begin && at + bytes > text.answers[a].begin;
            }
            assert_int_equal(targets[i] >= 0, counts);
        }
    }
    assert_true(straddling > 10);
    chat_text_fini(&text);
    token_list_fini(&ids);
    corpus_close(source);
    /* Text with the same tokenizer: a document ends where its end token is written, and at the
     * end. */
    static const char words_of[] = "hello<|endoftext|>as\n\nb<|endoftext|>lo";
    assert_int_equal(prepare_look(write_text("a.txt", words_of, sizeof words_of - 1), DATA_AUTO,
                                  &options, &work),
                     0);
    assert_int_equal(prepare_make(&work, &options, made), 0);
    source = open_good(&made, 1, DATA_AUTO, options.vocab_size);
    assert_int_equal(corpus_document_count(source), 3);
    assert_int_equal(corpus_token_count(source), 4 + 1 + 3 + 1 + 1 + 1);
    assert_int_equal(corpus_read(source, 10, 1, tokens), 0);
    assert_int_equal(tokens[0], tokenizer_end_id(merging));
    corpus_close(source);
    tokenizer_close(merging);
    remove_all();
}

/* ---- a tokenizer that puts marks in front ---- */

/* Writes a tokenizer.json of Llama 2's kind with added tokens. `normalizer` makes marks; `more`
 * goes to each added token. */
static tokenizer *open_marking(const char *normalizer, const char *const added[], const char *more)
{
    enum { FIRST_ADDED = 263 };
    FILE *file = fopen(in_directory("tokenizer.json"), "w");
    assert_non_null(file);
    fprintf(
        file,
        "{\"normalizer\": %s, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
        "\"Replace\", \"pattern\": {\"String\": \"\xe2\x96\x81\"}, \"content\": \" \"}, {\"type\": "
        "\"ByteFallback\"}]}, \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"merges\": "
        "[[\"a\", \"b\"], [\"ab\", \"ab\"], [\"\xe2\x96\x81\", \"abab\"]], \"vocab\": "
        "{\"<unk>\": 256, \"\xe2\x96\x81\": 257, \"a\": 258, \"b\": 259, \"ab\": 260, \"abab\": "
        "261, \"\xe2\x96\x81"
        "abab\": 262",
        normalizer);
    for (unsigned b = 0; b < 256; b++)
        fprintf(file, ", \"<0x%02X>\": %u", b, b);
    fprintf(file, "}}, \"added_tokens\": [");
    for (int i = 0; added[i]; i++)
        fprintf(file,
                "%s{\"id\": %d, \"content\": \"%s\", \"normalized\": false, \"special\": true%s}",
                i ? ", " : "", FIRST_ADDED + i, added[i], more);
    fprintf(file, "]}");
    assert_int_equal(fclose(file), 0);
    tokenizer *self;
    assert_ok(tokenizer_open(directory, &self));
    return self;
}

#define MARKS                                                                                      \
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}"
#define MARK_FIRST                                                                                 \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": "             \
    "\"\xe2\x96\x81\"}, " MARKS "]}"

/* Exactly the tokens of the answers count, with the one that ends each. */
static void answers_of_marked_tokens(void **state)
{
    static const char *const phi3[] = {"<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>",
                                       NULL};
    static const char *const gemma[] = {"<bos>", "<start_of_turn>", "<end_of_turn>", NULL};
    static const char *const llama2[] = {"<s>", "</s>", NULL};
    static const struct {
        const char *form, *normalizer, *more;
        const char *const *added;
        const char *counted; /* the bytes of the tokens that count */
    } rows[] = {
        {"phi3", MARK_FIRST, ", \"rstrip\": true", phi3, " abab<|end|> x<|end|>"},
        {"phi3", MARKS, "", phi3, "abab<|end|>x<|end|>"},
        {"gemma", MARKS, "", gemma, "abab<end_of_turn>x<end_of_turn>"},
        {"llama2", MARK_FIRST, "", llama2, " abab </s>x </s>"},
    };
    static const char line[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}, {\"role\": "
        "\"assistant\", \"content\": \"abab\"}, {\"role\": \"user\", "
        "\"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"x\"}]}\n";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum { LENGTH = 256 };
        tokenizer *marking = open_marking(rows[i].normalizer, rows[i].added, rows[i].more);
        prepare_options options = options_of(rows[i].form, NULL);
        prepare_work work;
        char counted[LENGTH] = "";
        int32_t tokens[LENGTH], targets[LENGTH];
        const char *made = in_directory("marked.tokens");
        options.words = marking;
        options.vocab_size = tokenizer_vocab(marking);
        assert_int_equal(prepare_look(write_text("one.jsonl", line, sizeof line - 1), DATA_AUTO,
                                      &options, &work),
                         0);
        assert_ok(prepare_make(&work, &options, made));
        corpus *source = open_good(&made, 1, DATA_AUTO, options.vocab_size);
        uint64_t count = corpus_token_count(source);
        assert_in_range(count, 1, LENGTH);
        assert_int_equal(corpus_read(source, 0, count, tokens), 0);
        assert_int_equal(corpus_read_targets(source, 0, count, targets), 0);
        for (uint64_t t = 0; t < count; t++) {
            size_t bytes;
            const char *token = tokenizer_token_bytes(marking, tokens[t], false, &bytes);
            if (targets[t] >= 0)
                strncat(counted, token, bytes);
        }
        assert_string_equal(counted, rows[i].counted);
        corpus_close(source);
        tokenizer_close(marking);
        remove_all();
    }
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_are_exact),          cmocka_unit_test(turns_are_checked),
        cmocka_unit_test(reasoning_of_qwen3),       cmocka_unit_test(forms_are_found),
        cmocka_unit_test(answers_of_merged_tokens), cmocka_unit_test(answers_of_marked_tokens),
    };
    return cmocka_run_group_tests(tests, prepare_setup, prepare_teardown);
}
