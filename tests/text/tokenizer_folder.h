/* A folder with one tokenizer.json, which a test writes at `path` and opens. Include it
 * once. */
#ifndef SLUICE_TESTS_TOKENIZER_FOLDER_H
#define SLUICE_TESTS_TOKENIZER_FOLDER_H

#include <unistd.h>

#include "base/log.h"
#include "tests/unit.h"
#include "text/tokenizer.h"

enum { PATH_BYTES = 64 };

static char folder[PATH_BYTES], path[PATH_BYTES + 32];

static tokenizer *open_it(void)
{
    tokenizer *self;
    assert_ok(tokenizer_open(folder, &self));
    return self;
}

/* Setup and teardown of a group of tests. */
static int make_folder(void **state)
{
    log_set_level(LOG_QUIET);
    snprintf(folder, sizeof folder, "/tmp/sluice-text-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    unlink(path);
    return rmdir(folder);
}

#endif
