/* Compares identities of runs (identity_text.c), and makes those of imported checkpoints. Pure. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "config/config.h"
#include "setup/setup_internal.h"

/* The value, and its length, of the line that begins with the first `key_bytes` of `key`; NULL if
 * there is no such line. */
static const char *find_value(const char *identity, const char *key, size_t key_bytes,
                              size_t *value_bytes)
{
    for (const char *line = identity; *line;) {
        size_t length = strcspn(line, "\n");
        if (length >= key_bytes && memcmp(line, key, key_bytes) == 0) {
            *value_bytes = length - key_bytes;
            return line + key_bytes;
        }
        line += length + (line[length] == '\n');
    }
    return NULL;
}

void setupi_identity_value(const char *identity, const char *key, char *value, size_t capacity)
{
    size_t bytes = 0;
    const char *found = find_value(identity, key, strlen(key), &bytes);
    snprintf(value, capacity, "%.*s", (int)bytes, found ? found : "");
}

/* ---- the differences of two identities ---- */

/* Lists the lines of `lines` that differ in `other` or, with only_absent, that are missing in
 * `other`. */
static void list_lines(const char *lines, const char *other, bool only_absent, const char *tensors,
                       char *text, size_t capacity, size_t *used)
{
    for (const char *line = lines; *line;) {
        size_t length = strcspn(line, "\n");
        const char *equals = memchr(line, '=', length);
        size_t key_bytes = equals ? (size_t)(equals - line) + 1 : length, other_bytes = 0;
        const char *found = find_value(other, line, key_bytes, &other_bytes);
        bool is_same = found && other_bytes == length - key_bytes &&
                       memcmp(found, line + key_bytes, other_bytes) == 0;
        const char *own = line + key_bytes;
        int own_bytes = (int)(length - key_bytes);
        line += length + (line[length] == '\n');
        if (only_absent ? found != NULL : is_same)
            continue;
        if (!found) { /* formats of state have a line only if they are not fp32 */
            found = strncmp(own - key_bytes, "state.", 6) == 0 ? "fp32" : "not given";
            other_bytes = strlen(found);
        }
        const char *between = *used ? "; " : "";
        bool has_text = tensors[0] && key_bytes == sizeof SETUPI_TENSORS_KEY - 1 &&
                        memcmp(own - key_bytes, SETUPI_TENSORS_KEY, key_bytes) == 0;
        int more =
            has_text
                ? snprintf(text + *used, capacity - *used, "%s%s", between, tensors)
                : snprintf(text + *used, capacity - *used, "%s%.*s was %.*s and is %.*s", between,
                           (int)key_bytes - 1, own - key_bytes,
                           only_absent ? own_bytes : (int)other_bytes, only_absent ? own : found,
                           only_absent ? (int)other_bytes : own_bytes, only_absent ? found : own);
        if (more < 0 || (size_t)more >= capacity - *used) {
            snprintf(text + *used, capacity - *used, *used ? "; ..." : "...");
            return;
        }
        *used += (size_t)more;
    }
}

/* Writes the differences of two identities, as many as fit: "model.num_layers was 12 and is 24;
 * ...". `tensors`: what to write in place of two hashes of a module's tensors; "": these. */
static void list_differences(const char *was, const char *is, const char *tensors, char *text,
                             size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    list_lines(is, was, false, tensors, text, capacity, &used);
    /* keys that have a line only if their value is unusual */
    list_lines(was, is, true, tensors, text, capacity, &used);
}

/* Writes a tensor as "blocks.0.up.weight [64, 32] of blocks.0", or "none". */
static void show_tensor(const module_spec *spec, uint32_t u, uint32_t i, char *text,
                        size_t capacity)
{
    const module_unit *unit = u < spec->unit_count ? &spec->units[u] : NULL;
    snprintf(text, capacity, "none");
    if (!unit || i >= unit->tensor_count)
        return;
    const module_tensor *tensor = &unit->tensors[i];
    int used = snprintf(text, capacity, "%s [", tensor->name);
    for (uint32_t d = 0; d < tensor->dimension_count; d++)
        used += snprintf(text + used, capacity - (size_t)used, "%s%" PRIu64, d ? ", " : "",
                         tensor->shape[d]);
    snprintf(text + used, capacity - (size_t)used, "] of %s%s", unit->name,
             unit->is_frozen ? ", frozen" : "");
}

/* Names the first tensor that differs in two modules; "": all are equal. */
static void name_tensor(const module_spec *was, const module_spec *is, char *text, size_t capacity)
{
    enum { SHOWN_BYTES = 2 * MODULE_NAME_BYTES + MODULE_DIMENSIONS_MAX * 22 + 16 };
    char old[SHOWN_BYTES], new[SHOWN_BYTES];
    text[0] = '\0';
    for (uint32_t u = 0; u < was->unit_count || u < is->unit_count; u++) {
        uint32_t old_count = u < was->unit_count ? was->units[u].tensor_count : 0;
        uint32_t new_count = u < is->unit_count ? is->units[u].tensor_count : 0;
        for (uint32_t i = 0; i < old_count || i < new_count; i++) {
            show_tensor(was, u, i, old, sizeof old);
            show_tensor(is, u, i, new, sizeof new);
            if (strcmp(old, new) == 0)
                continue;
            text_add(text, capacity, "the first parameter that differs was %s and is %s", old, new);
            return;
        }
    }
}

/* ---- imports ---- */

/* True for a line that the weights of an import depend on: lines of the model, and the type of the
 * optimizer, whose moments begin at zero. The length of sequences, the initial weights, dropout and
 * everything that only affects how it is computed may differ. */
static bool is_of_import(const char *line, size_t length)
{
    static const char *const free_keys[] = {
        "model.seq_length=",        "model.init_std=",          "model.hidden_dropout=",
        "model.embedding_dropout=", "model.attention_dropout=", "model.router_aux_loss_coef=",
        "model.router_z_loss_coef="};
    static const char optimizer[] = "optimizer.type=";
    for (size_t i = 0; i < sizeof free_keys / sizeof free_keys[0]; i++)
        if (strncmp(line, free_keys[i], strlen(free_keys[i])) == 0)
            return false;
    return length > 6 &&
           (strncmp(line, "model.", 6) == 0 || strncmp(line, optimizer, sizeof optimizer - 1) == 0);
}

static const char import_mark[] = "imported=1\n";

/* Writes the part of an identity that an imported checkpoint keeps. */
static void import_identity(const char *identity, char text[MANIFEST_TEXT_BYTES])
{
    /* An import has constants in elements of the working dtype (model_tensor.is_exact). */
    bool has_constants = strstr(identity, "model.scoring_func=") != NULL;
    size_t used = sizeof import_mark - 1;
    memcpy(text, import_mark, used);
    for (const char *line = identity; *line;) {
        size_t length = strcspn(line, "\n"), whole = length + (line[length] == '\n');
        bool is_dtype = has_constants && strncmp(line, "dtype=", strlen("dtype=")) == 0;
        if ((is_of_import(line, length) || is_dtype) && used + whole < MANIFEST_TEXT_BYTES) {
            memcpy(text + used, line, whole);
            used += whole;
        }
        line += whole;
    }
    text[used] = '\0';
}

bool setup_is_imported(const manifest *found)
{
    return strncmp(found->identity, import_mark, sizeof import_mark - 1) == 0;
}

/* ERR_INPUT, which names what differs, if a job of this identity cannot continue from the
 * import. */
static int check_import(const manifest *found, const char *identity, const char *run_dir)
{
    char differences[640], own[MANIFEST_TEXT_BYTES];
    import_identity(identity, own);
    if (strcmp(own, found->identity) == 0)
        return 0;
    list_differences(found->identity, own, "", differences, sizeof differences);
    return err_set(ERR_INPUT,
                   "the weights in %s were imported for another model: %s; import them for this "
                   "job (sluice import --job), or name another run.dir",
                   run_dir, differences);
}

int setup_name_import(const struct job *asked, const model *net, manifest *record)
{
    const kernel_context_config config = {.thread_count = 1};
    struct setup *self = mem_alloc(1, sizeof *self, "setup");
    if (!self)
        return -ENOMEM;
    self->job = asked;
    self->net = (model *)(uintptr_t)net; /* it is only read */
    self->ops = &kernels_reference;
    int rc = self->ops->context_create(&config, &self->context);
    if (rc == 0)
        rc = setupi_make_identity(self);
    if (rc == 0) {
        import_identity(self->identity, record->identity);
        record->fingerprint = XXH3_64bits(record->identity, strlen(record->identity));
    }
    if (self->context)
        self->ops->context_destroy(self->context);
    mem_free(self);
    return rc;
}

/* ---- a run that goes on ---- */

/* Removes from the text what begins with `from` and ends before `until`. */
static void cut_out(char *text, const char *from, const char *until)
{
    char *begin = strstr(text, from), *end = begin ? strstr(begin + 1, until) : NULL;
    if (end)
        memmove(begin, end, strlen(end) + 1);
}

/* True if the identities are equal apart from lines that may differ:
 *
 *   threads     on another number of ranks each rank has other cores, and the bits differ anyway
 *   selection   a run may begin with the state of a run in which other units learned */
static bool is_same_but(const struct setup *self, const manifest *found, bool threads,
                        bool selection)
{
    char was[MANIFEST_TEXT_BYTES], is[MANIFEST_TEXT_BYTES];
    char *const texts[2] = {was, is};
    snprintf(was, sizeof was, "%s", found->identity);
    snprintf(is, sizeof is, "%s", self->identity);
    for (int i = 0; i < 2 && threads; i++) {
        cut_out(texts[i], "\nthreads=", "\n");
        /* this line begins with the number of threads */
        cut_out(texts[i], "\nkernels=cpu: ", ", ");
    }
    for (int i = 0; i < 2 && selection; i++)
        cut_out(texts[i], "\ntrain.only=", "\n");
    return strcmp(was, is) == 0;
}

/* Names the first tensor that differs in the modules of the run and of the job; "": not known. */
static void name_tensor_of_run(const struct setup *self, const manifest *found, const char *run_dir,
                               char *text, size_t capacity)
{
    const module_spec *is = self->job->module;
    job *was = is ? job_read_of_run(run_dir, (uint32_t)size_max(found->world_size, 1)) : NULL;
    text[0] = '\0';
    if (was && was->module)
        name_tensor(was->module, is, text, capacity);
    job_destroy(was);
}

int setupi_check_identity(const struct setup *self, const manifest *found, const char *run_dir,
                          bool borrows)
{
    char differences[640], tensors[640];
    bool other_ranks = size_max(found->world_size, 1) != self->ranks.world;
    if (found->fingerprint == self->fingerprint || is_same_but(self, found, other_ranks, borrows))
        return 0;
    if (setup_is_imported(found))
        return check_import(found, self->identity, run_dir);
    name_tensor_of_run(self, found, run_dir, tensors, sizeof tensors);
    list_differences(found->identity, self->identity, tensors, differences, sizeof differences);
    return err_set(ERR_INPUT,
                   "the run in %s was made with other settings: %s; go on with its own, or begin "
                   "%s",
                   run_dir, differences,
                   borrows ? "from an export of that run (model.hf)" : "in another run.dir");
}
