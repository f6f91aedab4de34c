/* The files beside a checkpoint's weights; see hf_checkpoint.h. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/format_json.h"
#include "format/hf_checkpoint.h"

/* Of a tokenizer with a million tokens some 100 MB. */
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

static int join(char out[PATH_MAX], const char *dir, const char *name)
{
    int length = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    if (length < 0 || length >= PATH_MAX)
        return err_set(ERR_INPUT, "the path %.100s/%.100s is longer than %d bytes", dir, name,
                       PATH_MAX - 1);
    return 0;
}

int hf_copy_side_file(const char *source, const char *target, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX], *text;
    uint64_t text_bytes;
    TRY(join(from, source, name));
    TRY(join(to, target, name));
    if (access(from, F_OK) != 0)
        return 0;
    TRY(format_read_file(from, SIDE_FILE_BYTES_MAX, &text, &text_bytes));
    int rc = format_write_file(to, text, text_bytes);
    mem_free(text);
    return rc < 0 ? rc : 1;
}

int hf_copy_side_files(const char *source, const char *target)
{
    char path[PATH_MAX];
    int count = 0;
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        TRY(join(path, source, hf_side_files[i]));
        if (access(path, F_OK) != 0)
            continue;
        if (count == 0 && mkdir(target, 0777) != 0 && errno != EEXIST)
            return err_errno(errno, "cannot make directory %s", target);
        int copied = hf_copy_side_file(source, target, hf_side_files[i]);
        TRY(copied);
        count += copied;
    }
    if (count > 0)
        TRY(format_sync_parent(target));
    return count;
}

int hf_remove_side_files(const char *target)
{
    char path[PATH_MAX];
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        TRY(join(path, target, hf_side_files[i]));
        if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
            return err_errno(errno, "cannot remove %s", path);
    }
    if (rmdir(target) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST &&
        errno != ENOTDIR)
        return err_errno(errno, "cannot remove %s", target);
    return 0;
}
