/* The data of a run: its files are opened as sources; files of text and JSON records are made into
 * tokens first.
 *
 *   loop_open_data   Before anything is made. Looks at all files, and opens them unless tokens must
 *                    be made.
 *   loop_make_data   When the run directory belongs to this run. Rank 0 makes
 *                    run.dir/data/<key>.tokens, unless it exists, while the others wait; then
 *                    all ranks open the data.
 *
 * A job with only token files, or with text as bytes, needs no tokens made. On the loop's
 * thread. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/prepare.h"
#include "data/token_file.h"
#include "train/loop_internal.h"

static_assert((int)JOB_FILES_MAX <= (int)MIXTURE_SOURCES_MAX, "a source has a file");

enum { TRAIN, VALID, LISTS, MADE_PATH_BYTES = FILE_PATH_BYTES + 64 };

/* Rank 0's findings about a file, which it sends to all ranks. */
struct file_word {
    uint64_t key;
    uint8_t is_made; /* its tokens are read from run.dir/data */
};

struct loop_data {
    struct file_word words[LISTS][JOB_FILES_MAX];
    prepare_work work[LISTS][JOB_FILES_MAX]; /* on rank 0 */
    prepare_options options;                 /* on rank 0 */
    tokenizer *tokens;                       /* on rank 0, or NULL */
    char tokenizer_name[MADE_PATH_BYTES];
    int32_t end_token; /* ends documents of ids; -1: none is known */
    bool is_late;      /* tokens must be made of some file */
};

static const struct job_files *list_of(const struct job *asked, int list)
{
    return list == TRAIN ? &asked->data.train : &asked->data.valid;
}

/* True if the job may have text or JSON records that must be made into tokens. Only the job's keys
 * decide; those that model.hf stands for depend on this host. */
static bool may_make(const struct job *asked)
{
    return strcmp(asked->data.tokenizer, "bytes") != 0 || asked->data.format == DATA_AUTO ||
           corpus_is_json(asked->data.format);
}

/* ---- opening ---- */

/* The path of the tokens that are made of a file. */
static void made_path(const struct job *asked, const struct file_word *word,
                      char path[MADE_PATH_BYTES])
{
    snprintf(path, MADE_PATH_BYTES, "%s/data/%016" PRIx64 ".tokens", asked->run.dir, word->key);
}

/* Files [first, first + count) of a list as one corpus. */
static int open_corpus(const struct loop *self, int list, uint32_t first, uint32_t count,
                       corpus **out)
{
    const struct job *asked = self->run.job;
    const struct job_files *files = list_of(asked, list);
    const char *paths[JOB_FILES_MAX];
    enum data_format formats[JOB_FILES_MAX];
    char(*made)[MADE_PATH_BYTES] = mem_alloc(count, sizeof *made, "paths of token files");
    int rc = made ? 0 : -ENOMEM;
    *out = NULL;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        const struct file_word *word = self->data ? &self->data->words[list][first + i] : NULL;
        bool is_made = word && word->is_made;
        paths[i] = is_made ? made[i] : files->path[first + i];
        formats[i] = is_made ? DATA_MADE : asked->data.format;
        if (!is_made)
            continue;
        made_path(asked, word, made[i]);
        if (self->run.ranks.rank > 0 && access(made[i], R_OK) != 0)
            rc = err_set(
                ERR_INPUT,
                "rank %u does not see %s, which rank 0 has made of %s: put run.dir where all "
                "hosts see it, or give token files",
                self->run.ranks.rank, made[i], files->path[first + i]);
    }
    if (rc == 0)
        rc = corpus_open_each(paths, formats, count, asked->model.vocab_size, out);
    mem_free(made);
    TRY(rc);
    if (self->data)
        rc = corpus_set_end_token(*out, self->data->end_token);
    if (rc < 0)
        corpus_close(*out);
    return rc;
}

/* Masks tokens for a model that learns to fill them in. */
static int mask_list(const struct loop *self, const struct job_files *files, mixture *data)
{
    for (uint32_t s = 0; self->mask.share > 0 && s < mixture_source_count(data); s++)
        if (corpus_has_marks(mixture_source(data, s)))
            return err_set(ERR_INPUT,
                           "%s%s: its records have answers, but a model of the %s family learns "
                           "from all tokens: give plain text, or records with one text each",
                           files->path[0], files->count > 1 ? " and others" : "",
                           model_family_name(self->run.job->model.family));
    mixture_mask(data, &self->mask);
    return 0;
}

/* Rank 0, which has the tokenizer, finds what is masked and tells the others. */
static int choose_masking(struct loop *self)
{
    const struct job *asked = self->run.job;
    const struct ranks *ranks = &self->run.ranks;
    int rc = 0;
    if (!model_is_bidirectional(asked->model.family))
        return 0;
    if (ranks->rank == 0)
        rc = masking_init(&self->mask, asked->data.masked, asked->model.vocab_size,
                          asked->data.mask_token, self->data ? self->data->tokens : NULL);
    TRY(ranks_agree(ranks, "masked tokens", rc));
    return ranks_from_rank0(ranks, "masked tokens", &self->mask, sizeof self->mask);
}

/* Opens all sources of a list. */
static int open_list(const struct loop *self, int list, mixture **out)
{
    const struct job *asked = self->run.job;
    const struct job_files *files = list_of(asked, list);
    corpus *sources[JOB_FILES_MAX] = {NULL};
    uint32_t opened = 0;
    int rc = 0;
    for (uint32_t first = 0; rc == 0 && first < files->count; opened += rc == 0) {
        uint32_t count = 1;
        while (first + count < files->count && files->source[first + count] == files->source[first])
            count++;
        rc = open_corpus(self, list, first, count, &sources[opened]);
        first += count;
    }
    if (rc == 0) {
        TRY(mixture_create(
            sources, files->weight, opened, asked->data.seed, asked->model.seq_length,
            list == TRAIN ? asked->data.shuffle : SHUFFLE_NONE, asked->data.documents, out));
        return mask_list(self, files, *out);
    }
    for (uint32_t i = 0; i < opened; i++)
        corpus_close(sources[i]);
    return rc;
}

static int open_lists(struct loop *self)
{
    TRY(open_list(self, TRAIN, &self->train_data));
    if (self->run.job->data.valid.count == 0)
        return 0;
    TRY(open_list(self, VALID, &self->valid_data));
    bool is_text = mixture_is_text(self->train_data);
    if (is_text == mixture_is_text(self->valid_data))
        return 0;
    return err_set(ERR_INPUT,
                   "data.train holds %s and data.valid holds %s: their losses cannot be "
                   "compared; give both in one form",
                   is_text ? "text" : "token ids", is_text ? "token ids" : "text");
}

void loop_close_data(struct loop *self)
{
    mixture_destroy(self->train_data);
    mixture_destroy(self->valid_data);
    if (self->data)
        tokenizer_close(self->data->tokens);
    mem_free(self->data);
    self->train_data = self->valid_data = NULL;
    self->data = NULL;
}

/* ---- which tokens must be made ---- */

/* Names the tokenizer: the run's copy of its checkpoint's tokenizer, if there is one and the job
 * leaves the choice to model.hf; else the job's. */
static void name_tokenizer(const struct job *asked, char name[MADE_PATH_BYTES])
{
    const char *given = asked->data.tokenizer, *own = hf_job_tokenizer(asked);
    if (own) {
        snprintf(name, MADE_PATH_BYTES, "%s/hf/%s", asked->run.dir, own);
        if (access(name, F_OK) == 0)
            return;
        if (access(given, F_OK) != 0) /* the checkpoint is gone, and had no tokenizer */
            given = "bytes";
    }
    snprintf(name, MADE_PATH_BYTES, "%s", given);
}

static int look_at(const struct job *asked, struct loop_data *data, int list, uint32_t idx)
{
    const struct job_files *files = list_of(asked, list);
    prepare_work *work = &data->work[list][idx];
    data->options.field = files->field[idx];
    TRY(prepare_look(files->path[idx], asked->data.format, &data->options, work));
    data->words[list][idx] = (struct file_word){.key = work->key, .is_made = work->is_needed};
    data->is_late = data->is_late || work->is_needed;
    return 0;
}

static int look_at_all(const struct job *asked, struct loop_data *data)
{
    name_tokenizer(asked, data->tokenizer_name);
    TRY(tokenizer_open(data->tokenizer_name, &data->tokens));
    data->end_token = data->tokens ? tokenizer_document_end_id(data->tokens) : -1;
    data->options = (prepare_options){.words = data->tokens,
                                      .tokenizer_name = data->tokenizer_name,
                                      .chat_template = asked->data.chat_template,
                                      .vocab_size = asked->model.vocab_size,
                                      .mode = asked->run.mode,
                                      .memory_bytes = asked->tiers.host_budget};
    for (int list = 0; list < LISTS; list++)
        for (uint32_t i = 0; i < list_of(asked, list)->count; i++)
            TRY(look_at(asked, data, list, i));
    return 0;
}

/* True if tokens of this file must still be made. A file of tokens that exists is from an earlier
 * process, or of a file that is in both lists. */
static bool is_to_be_made(const struct job *asked, const struct loop_data *data, int list,
                          uint32_t idx)
{
    const prepare_work *work = &data->work[list][idx];
    char path[MADE_PATH_BYTES];
    made_path(asked, &data->words[list][idx], path);
    return work->is_needed && !token_file_is_made(path, work->key);
}

static int check_memory(const struct job *asked, const struct loop_data *data)
{
    for (int list = 0; list < LISTS; list++)
        for (uint32_t i = 0; i < list_of(asked, list)->count; i++)
            if (is_to_be_made(asked, data, list, i))
                TRY(prepare_check_memory(&data->work[list][i], &data->options));
    return 0;
}

int train_check_tokens(const struct job *asked)
{
    const prepare_options allowed = {.memory_bytes = asked->tiers.host_budget};
    if (asked->module || !may_make(asked) || prepare_has_memory(&allowed))
        return 0;
    struct loop_data *data = mem_alloc(1, sizeof *data, "data of the job");
    if (!data)
        return -ENOMEM;
    int rc = look_at_all(asked, data) < 0 ? 0 : check_memory(asked, data);
    tokenizer_close(data->tokens);
    mem_free(data);
    return rc;
}

/* Rank 0 looks at all files and tells the others what must be made. */
static int find_what_to_make(struct loop *self)
{
    const struct ranks *ranks = &self->run.ranks;
    self->data = mem_alloc(1, sizeof *self->data, "data of the run");
    int rc = self->data ? 0 : -ENOMEM;
    if (rc == 0 && ranks->rank == 0)
        rc = look_at_all(self->run.job, self->data);
    if (rc == 0 && ranks->rank == 0 && !self->options->is_trial) /* a trial makes no tokens */
        rc = check_memory(self->run.job, self->data);
    TRY(ranks_agree(ranks, "data", rc));
    struct loop_data *data = self->data;
    TRY(ranks_from_rank0(ranks, "files to be made into tokens", data->words, sizeof data->words));
    TRY(ranks_from_rank0(ranks, "end token", &data->end_token, sizeof data->end_token));
    for (int list = 0; list < LISTS; list++)
        for (uint32_t i = 0; i < JOB_FILES_MAX; i++)
            data->is_late = data->is_late || data->words[list][i].is_made;
    return 0;
}

/* Warns that text is read as bytes with the weights of a published model, whose ids are no bytes.
 * The user may have forgotten the tokenizer. */
static void warn_of_bytes(const struct loop *self)
{
    const struct job *asked = self->run.job;
    bool is_made = self->data && self->data->is_late;
    if (self->run.ranks.rank > 0 || asked->hf[0] == '\0' ||
        strcmp(asked->data.tokenizer, "bytes") != 0)
        return;
    if (is_made || (self->train_data && mixture_is_text(self->train_data)))
        log_warn("text is read as bytes, ids 0 to 255, but the model of %s was trained with other "
                 "tokens: set data.tokenizer to its tokenizer",
                 asked->hf);
}

int loop_check_borrowed_tokenizer(const struct loop *self)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    const struct job *asked = self->run.job;
    char dir[FILE_PATH_BYTES], file[MADE_PATH_BYTES];
    bool is_made = self->data && self->data->is_late;
    if (asked->data.tokenizer_is_given || asked->hf[0] != '\0' ||
        !(is_made || (self->train_data && mixture_is_text(self->train_data))))
        return 0;
    int there = state_hf_dir(self->options->from, dir);
    TRY(there);
    for (int i = 0; there && i < 2; i++) {
        TRY(file_join(file, sizeof file, dir, names[i]));
        if (access(file, F_OK) == 0)
            return err_set(ERR_CONFIG,
                           "data.tokenizer is not given, so that text would be cut as bytes, but "
                           "the run in %s has a tokenizer: set data.tokenizer to %s, or to bytes",
                           self->options->from, file);
    }
    return 0;
}

int loop_open_data(struct loop *self)
{
    const struct job *asked = self->run.job;
    const struct ranks *ranks = &self->run.ranks;
    if (asked->module)
        return 0; /* its program has the data */
    if (self->options->watch && asked->data.train.count == 0)
        return 0; /* random tokens */
    int rc = job_check_for_training(asked);
    uint8_t may = may_make(asked); /* from rank 0: other hosts may not see the checkpoint */
    TRY(ranks_from_rank0(ranks, "kind of data", &may, sizeof may));
    if (rc == 0 && may)
        TRY(find_what_to_make(self));
    if (rc == 0) {
        TRY(choose_masking(self));
        if (self->data && self->data->is_late) {
            warn_of_bytes(self);
            return 0;
        }
    }
    if (rc == 0)
        rc = open_lists(self);
    TRY(ranks_agree(ranks, "data", rc));
    warn_of_bytes(self);
    return loop_compare_data(self);
}

/* ---- making ---- */

static int make_files(struct loop *self)
{
    const struct job *asked = self->run.job;
    struct loop_data *data = self->data;
    char path[MADE_PATH_BYTES];
    data->options.stop = self->options->stop;
    for (int list = 0; list < LISTS; list++)
        for (uint32_t i = 0; i < list_of(asked, list)->count; i++) {
            if (!is_to_be_made(asked, data, list, i))
                continue;
            made_path(asked, &data->words[list][i], path);
            data->options.field = list_of(asked, list)->field[i];
            TRY(prepare_make(&data->work[list][i], &data->options, path));
        }
    return 0;
}

/* Makes all tokens, on rank 0. If that fails, files that are whole stay for the next start. */
static int make_all(struct loop *self)
{
    const struct job *asked = self->run.job;
    char path[MADE_PATH_BYTES];
    TRY(file_join(path, sizeof path, asked->run.dir, "data"));
    TRY(file_make_directories(path, asked->run.mode, NULL));
    int rc = make_files(self);
    if (rc < 0)
        (void)rmdir(path); /* if it is empty */
    return rc;
}

/* Logs each source, and how much of it the run will see. */
static void tell_sources(const struct loop *self)
{
    const mixture *data = self->train_data;
    uint64_t windows = self->run.job->run.steps * self->run.job->accumulation *
                       self->run.job->micro_batch * self->run.ranks.world;
    const struct job_files *files = &self->run.job->data.train;
    for (uint32_t s = 0, first = 0; s < mixture_source_count(data); s++) {
        const corpus *source = mixture_source(data, s);
        uint64_t tokens = corpus_token_count(source), counted = corpus_counted(source);
        mixture_use use = mixture_get_use(data, s, windows);
        char some[64] = "";
        if (counted < tokens)
            snprintf(some, sizeof some, ", of which %.1f%% count as targets",
                     100.0 * (double)counted / (double)tokens);
        log_info("data.train: %s: %" PRIu64 " tokens in %" PRIu64 " documents%s; %.2f%% of the "
                 "windows, %.2f epochs in %" PRIu64 " steps",
                 files->path[first], tokens, corpus_document_count(source), some, 100 * use.share,
                 use.epochs, self->run.job->run.steps);
        while (first < files->count && files->source[first] == s)
            first++;
    }
}

int loop_make_data(struct loop *self)
{
    const struct ranks *ranks = &self->run.ranks;
    if (self->data && self->data->is_late && self->options->is_trial) {
        if (ranks->rank == 0)
            log_info("the data is not made into tokens for a trial: random ones take its place");
    } else if (self->data && self->data->is_late) {
        TRY(ranks_agree(ranks, "tokens of the data", ranks->rank == 0 ? make_all(self) : 0));
        TRY(ranks_agree(ranks, "data", open_lists(self)));
        TRY(loop_compare_data(self));
    }
    const mixture *data = self->train_data;
    bool has_words = strcmp(self->run.job->data.tokenizer, "bytes") != 0;
    bool is_made = self->data && self->data->is_late;
    bool is_logged = data && (is_made || has_words || mixture_source_count(data) > 1 ||
                              self->run.job->data.shuffle == SHUFFLE_DOCUMENTS);
    if (is_logged && ranks->rank == 0 && !self->options->is_trial)
        tell_sources(self);
    return 0;
}
