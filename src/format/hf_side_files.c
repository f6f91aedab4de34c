/* The files beside a checkpoint's weights; see hf_checkpoint.h. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/hf_checkpoint.h"

/* A tokenizer with a million tokens takes some 100 MB. */
#define SIDE_FILE_BYTES_MAX ((uint64_t)1 << 30)

const char *const hf_side_files[] = {"config.json",
                                     "generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "tokenizer.model",
                                     "added_tokens.json",
                                     "chat_template.jinja",
                                     NULL};

int hf_copy_side_file(const char *source, const char *target, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX], *text;
    uint64_t text_bytes;
    TRY(file_join(from, sizeof from, source, name));
    TRY(file_join(to, sizeof to, target, name));
    if (access(from, F_OK) != 0)
        return 0;
    TRY(file_read(from, SIDE_FILE_BYTES_MAX, &text, &text_bytes));
    int rc = file_write(to, text, text_bytes);
    mem_free(text);
    return rc < 0 ? rc : 1;
}

int hf_copy_side_files(const char *source, const char *target)
{
    char path[PATH_MAX];
    int count = 0;
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        TRY(file_join(path, sizeof path, source, hf_side_files[i]));
        if (access(path, F_OK) != 0)
            continue;
        if (count == 0)
            TRY(file_make_directories(target, NULL));
        int copied = hf_copy_side_file(source, target, hf_side_files[i]);
        TRY(copied);
        count += copied;
    }
    if (count > 0)
        TRY(file_sync_parent(target));
    return count;
}

int hf_remove_side_files(const char *target)
{
    char path[PATH_MAX];
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        TRY(file_join(path, sizeof path, target, hf_side_files[i]));
        if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
            return err_errno(errno, "cannot remove %s", path);
    }
    if (rmdir(target) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST &&
        errno != ENOTDIR)
        return err_errno(errno, "cannot remove %s", target);
    return 0;
}
