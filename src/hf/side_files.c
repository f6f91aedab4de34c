/* The files that belong to a run's model beside its weights: config.json, generation_config.json
 * and those of its tokenizer. They are copied to RUN/hf when the run begins from a checkpoint, or
 * from a run that has such files. An export copies them from there. If they lack config.json, it
 * writes one for the run's model. See hf.h and hf_internal.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/config.h"
#include "format/hf_checkpoint.h"
#include "hf/hf_internal.h"
#include "state/run_dir.h"
#include "text/tokenizer.h"

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
    const char *hf = asked->hf, *rest = asked->data.tokenizer;
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

/* ---- an export ---- */

static const char *const torch_names[DTYPE_COUNT] = {
    [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16"};

static const char config_name[] = "config.json";

/* Finds the run's own config.json. Returns false if there is none. */
static bool find_config(const char *side_dir, char source[PATH_MAX])
{
    return side_dir[0] && file_join(source, PATH_MAX, side_dir, config_name) == 0 &&
           access(source, F_OK) == 0;
}

static int write_config(const state_view *run, const char *side_dir, const char *dir,
                        enum dtype type, json_t *quantization)
{
    char source[PATH_MAX], target[PATH_MAX], *text = NULL;
    TRY(file_join(target, sizeof target, dir, config_name));
    if (!find_config(side_dir, source)) {
        TRY(config_write_hf(run->asked, torch_names[type], quantization, &text));
        int rc = file_write(target, FILE_SHARED, text, strlen(text));
        mem_free(text);
        return rc;
    }
    char *block = quantization ? json_dumps(quantization, 0) : NULL;
    int rc = quantization && !block ? err_set(-ENOMEM, "no memory for %s", target)
                                    : hfi_carry_config(source, target, torch_names[type], block);
    free(block);
    return rc;
}

int hfi_check_config(const state_view *run)
{
    char side_dir[FILE_PATH_BYTES], source[PATH_MAX], *text = NULL;
    int there = state_hf_dir(run->path, side_dir);
    TRY(there);
    if (there && find_config(side_dir, source))
        return 0;
    int rc = config_write_hf(run->asked, torch_names[DTYPE_FP32], NULL, &text);
    mem_free(text);
    return rc;
}

/* Finds the directory of the job's tokenizer; "" if it has no files, or they do not exist. */
static void find_tokenizer(const job *asked, char out[FILE_PATH_BYTES])
{
    static const char file_name[] = "/tokenizer.json";
    struct stat status;
    snprintf(out, FILE_PATH_BYTES, "%s", asked->data.tokenizer);
    size_t length = strlen(out), end = sizeof file_name - 1;
    if (length > end && strcmp(out + length - end, file_name) == 0)
        out[length - end] = '\0';
    if (strcmp(out, "bytes") == 0 || stat(out, &status) != 0 || !S_ISDIR(status.st_mode))
        out[0] = '\0';
}

/* True if the run reads text as bytes. Where the job does not say so, its data may be token files
 * of any tokenizer; only a vocabulary of 256 is certain. */
static bool reads_bytes(const job *asked)
{
    return strcmp(asked->data.tokenizer, "bytes") == 0 &&
           (asked->data.tokenizer_is_given || (!asked->hf[0] && asked->model.vocab_size == 256));
}

static int write_bytes_tokenizer(const char *dir)
{
    TRY(hfi_write_json(dir, "tokenizer.json", tokenizer_bytes_document(), JSON_INDENT(1)));
    json_t *config = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                               "clean_up_tokenization_spaces", 0);
    return hfi_write_json(dir, "tokenizer_config.json", config, JSON_INDENT(1));
}

int hfi_write_side_files(const state_view *run, const char *dir, enum dtype type,
                         json_t *quantization, uint64_t *count)
{
    char side_dir[FILE_PATH_BYTES], tokenizer_dir[FILE_PATH_BYTES];
    int there = state_hf_dir(run->path, side_dir);
    TRY(there);
    if (!there)
        side_dir[0] = '\0';
    find_tokenizer(run->asked, tokenizer_dir);
    bool is_other = hf_names_tokenizer(run->asked);
    bool is_bytes = is_other && strcmp(run->asked->data.tokenizer, "bytes") == 0;
    *count = 0;
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        const char *name = hf_side_files[i];
        bool is_tokenizers = strncmp(name, "generation_", 11) != 0;
        int copied = 0;
        if (strcmp(name, config_name) == 0)
            continue;
        if (is_bytes && is_tokenizers)
            continue; /* these files belong to a tokenizer that the run did not use */
        if (tokenizer_dir[0] && is_tokenizers && (!there || is_other))
            copied = hf_copy_side_file(tokenizer_dir, dir, name, FILE_SHARED);
        else if (there)
            copied = hf_copy_side_file(side_dir, dir, name, FILE_SHARED);
        TRY(copied);
        *count += (uint64_t)copied;
    }
    if (reads_bytes(run->asked))
        TRY(write_bytes_tokenizer(dir));
    return write_config(run, side_dir, dir, type, quantization);
}
