/* Fills RUN/hf with the files that belong to a run's model beside its weights (config.json, the
 * tokenizer's files, ...). They are copied when the run begins from a checkpoint, or from a run
 * that has such files. See hf.h. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "format/hf_checkpoint.h"
#include "hf/hf.h"
#include "state/run_dir.h"

int hf_carry_side_files(const struct state_run_dir *to, const char *from_hf, const char *from_run)
{
    char source[FILE_PATH_BYTES], target[FILE_PATH_BYTES];
    TRY(file_join(target, sizeof target, to->path, "hf"));
    if (from_run) {
        int there = state_hf_dir(from_run, source);
        if (there <= 0)
            return there;
        from_hf = source;
    }
    if (from_hf[0] == '\0')
        return 0;
    int count = hf_copy_side_files(from_hf, target, to->mode);
    if (count > 0)
        log_debug("%d files of %s are in %s", count, from_hf, target);
    return count;
}

const char *hf_job_tokenizer(const struct job *asked)
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

bool hf_names_tokenizer(const struct job *asked)
{
    const char *given = asked->data.tokenizer;
    if (strcmp(given, "bytes") == 0)
        return asked->data.tokenizer_is_given;
    return !hf_job_tokenizer(asked) && access(given, R_OK) == 0;
}
