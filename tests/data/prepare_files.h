/* Shared by the tests of src/data/prepare.h: files of text and the byte tokenizer. Includes all
 * headers that they need. */
#ifndef SLUICE_TESTS_PREPARE_FILES_H
#define SLUICE_TESTS_PREPARE_FILES_H

#include "tests/data/token_files.h"

#include "data/prepare.h"
#include "data/token_file.h"
#include "text/chat.h"

static tokenizer *words;

static inline const char *write_text(const char *name, const char *text, size_t bytes)
{
    const char *path = in_directory(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline prepare_options options_of(const char *form, const char *field)
{
    return (prepare_options){.words = words,
                             .tokenizer_name = "some",
                             .chat_template = form,
                             .field = field,
                             .vocab_size = 256};
}

static inline int setup(void **state)
{
    (void)state;
    log_set_level(LOG_WARN);
    return mkdtemp(directory) ? tokenizer_open("bytes", &words) : -1;
}

static inline int teardown(void **state)
{
    (void)state;
    tokenizer_close(words);
    remove_all();
    return rmdir(directory);
}

#endif
