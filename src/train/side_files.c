/* RUN/hf: what belongs to a run's model beside its weights (config.json, the tokenizer's files, ...), copied when
 * the run begins from a checkpoint or from a run that has such files. Declared in train_internal.h. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "format/hf_checkpoint.h"
#include "train/train_internal.h"

/* Whether the directory is RUN/keep/step-...: a commit that was kept. */
static bool is_kept(const char *path)
{
    char parent[FILE_PATH_BYTES], whole[PATH_MAX];
    if (file_join(parent, sizeof parent, path, "..") < 0 || !realpath(parent, whole))
        return false;
    const char *slash = strrchr(whole, '/');
    return slash && strcmp(slash, "/keep") == 0;
}

int traini_side_dir(const char *run_dir, char out[FILE_PATH_BYTES])
{
    TRY(file_join(out, FILE_PATH_BYTES, run_dir, "hf"));
    if (access(out, F_OK) == 0)
        return 1;
    if (!is_kept(run_dir))
        return 0;
    char above[FILE_PATH_BYTES];
    TRY(file_join(above, sizeof above, run_dir, "../../hf"));
    if (access(above, F_OK) != 0)
        return 0;
    return file_join(out, FILE_PATH_BYTES, run_dir, "../../hf") < 0 ? ERR_INPUT : 1;
}

int traini_carry_side_files(const char *run_dir, const char *from_hf, const char *from_run)
{
    char source[FILE_PATH_BYTES], target[FILE_PATH_BYTES];
    TRY(file_join(target, sizeof target, run_dir, "hf"));
    if (from_run) {
        int there = traini_side_dir(from_run, source);
        if (there <= 0)
            return there;
        from_hf = source;
    }
    if (from_hf[0] == '\0')
        return 0;
    int count = hf_copy_side_files(from_hf, target);
    if (count > 0)
        log_debug("%d files of %s are in %s", count, from_hf, target);
    return count;
}

int traini_remove_side_files(const char *run_dir)
{
    char target[FILE_PATH_BYTES];
    TRY(file_join(target, sizeof target, run_dir, "hf"));
    return hf_remove_side_files(target);
}

const char *traini_hf_tokenizer(const struct job *asked)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    const char *hf = asked->model.hf, *rest = asked->data.tokenizer;
    size_t hf_bytes = strlen(hf);
    if (hf_bytes == 0 || strncmp(rest, hf, hf_bytes) != 0)
        return NULL;
    rest += hf_bytes;
    if (rest[0] == '\0')
        return names[0];
    for (int i = 0; i < 2; i++)
        if (rest[0] == '/' && strcmp(rest + 1, names[i]) == 0)
            return names[i];
    return NULL;
}

bool traini_names_tokenizer(const struct job *asked)
{
    const char *given = asked->data.tokenizer;
    if (strcmp(given, "bytes") == 0)
        return asked->data.tokenizer_is_given;
    return !traini_hf_tokenizer(asked) && access(given, R_OK) == 0;
}
