/* A directory with one tokenizer.json, which a test writes at `path` and opens. Include it once. */
#ifndef SLUICE_TESTS_TOKENIZER_FOLDER_H
#define SLUICE_TESTS_TOKENIZER_FOLDER_H

#include "base/log.h"
#include "tests/directory.h"
#include "text/tokenizer.h"

static char path[sizeof directory + 32];

static tokenizer *open_it(void)
{
    tokenizer *self;
    assert_ok(tokenizer_open(directory, &self));
    return self;
}

/* Setup of a group of tests; directory_remove is its teardown. */
static int make_folder(void **state)
{
    log_set_level(LOG_QUIET);
    if (directory_make(state) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    return 0;
}

#endif
