/* Examines files before they are converted. See prepare.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/size.h"
#include "data/data_internal.h"
#include "data/prepare_internal.h"

enum { FORMAT_VERSION = 2 }; /* version of the conversion; part of the key */

/* Finds the kind of the records, and the form of conversations. Other defects of a record are
 * reported when all are read. */
static int look_at_records(prepare_work *self, int fd, enum data_format format,
                           const prepare_options *options)
{
    const char *field = prepi_field(options);
    datai_record first;
    TRY(datai_first_record(fd, self->path, self->bytes, field, &first));
    if (!first.is_object)
        return err_set(ERR_INPUT,
                       "%s begins with no JSON object, { ... }, and with no array of them; to read "
                       "the file as text, set data.format to text",
                       self->path);
    self->is_array = first.is_array;
    self->kind = format == DATA_JSONL ? datai_kind_of(field, &first.names) : format;
    bool is_known = self->kind != DATA_AUTO && datai_kind_fits(self->kind, field, &first.names);
    if (!is_known && !first.is_whole)
        return err_set(ERR_INPUT,
                       "%s: the first object is not well-formed JSON: it has members \"name\": "
                       "value, and names and texts stand in double quotes",
                       self->path);
    if (!is_known)
        return err_prefix(datai_refuse_kind(self->kind, field, &first.names), "%s: record 1",
                          self->path);
    if (first.spans_lines && !first.is_array)
        return err_set(ERR_INPUT,
                       "%s: the first object does not end on its line; JSON lines have one object "
                       "a line (jq -c . FILE > NEW makes them)",
                       self->path);
    self->has_marks = self->kind != DATA_JSONL;
    self->has_chat = self->has_marks && (self->kind != DATA_PROMPT_COMPLETION ||
                                         datai_names_value(&first.names, "prompt") == '[');
    if (!self->has_chat || !options->chat_template)
        return 0;
    return chat_form_find_or(options->chat_template, self->kind == DATA_ALPACA ? "alpaca" : NULL,
                             options->tokenizer_name, options->words, &self->chat);
}

/* Text whose format was named is not yet known to be text. */
static int look_at_text(prepare_work *self, int fd)
{
    unsigned char begin[DATAI_BEGIN_BYTES] = {0};
    TRY(datai_pread(fd, self->path, 0, size_min(self->bytes, sizeof begin), begin));
    TRY(datai_refuse_foreign(self->path, begin, self->bytes, 2));
    self->begin = datai_bom_bytes(begin, self->bytes);
    return 0;
}

static void add_text(XXH3_state_t *state, const char *text)
{
    XXH3_64bits_update(state, text ? text : "", strlen(text ? text : "") + 1);
}

static int find_key(prepare_work *self, const struct stat *info, const prepare_options *options)
{
    char *whole = realpath(self->path, NULL);
    if (!whole)
        return err_errno(errno, "cannot find out the whole path of %s", self->path);
    XXH3_state_t *state = XXH3_createState();
    int rc = state ? 0 : -ENOMEM;
    if (rc == 0) {
        const uint64_t numbers[] = {FORMAT_VERSION,
                                    (uint64_t)info->st_size,
                                    (uint64_t)info->st_mtim.tv_sec,
                                    (uint64_t)info->st_mtim.tv_nsec,
                                    tokenizer_hash(options->words),
                                    (uint64_t)self->kind,
                                    self->is_array,
                                    self->chat.adds_system};
        XXH3_64bits_reset(state);
        XXH3_64bits_update(state, numbers, sizeof numbers);
        add_text(state, whole);
        add_text(state, self->kind == DATA_JSONL ? options->field : "");
        const char *const form[] = {self->chat.name, self->chat.system, self->chat.begin,
                                    self->chat.eos};
        for (size_t i = 0; i < sizeof form / sizeof form[0]; i++)
            add_text(state, form[i]);
        self->key = XXH3_64bits_digest(state);
    }
    XXH3_freeState(state);
    free(whole);
    return rc < 0 ? err_set(rc, "no memory to look at %s", self->path) : 0;
}

int prepare_look(const char *path, enum data_format format, const prepare_options *options,
                 prepare_work *out)
{
    *out = (prepare_work){.path = path};
    struct stat info;
    int fd;
    TRY(datai_format_of(path, format, prepi_field(options), &format));
    bool is_bytes = strcmp(options->tokenizer_name, "bytes") == 0;
    out->kind = format;
    out->is_json = corpus_is_json(format);
    out->is_needed = out->is_json || (format == DATA_TEXT && !is_bytes);
    if (!out->is_needed)
        return 0;
    TRY(datai_open(path, &fd, &out->bytes));
    int rc = fstat(fd, &info) == 0 ? 0 : err_errno(errno, "cannot examine %s", path);
    if (rc == 0)
        rc = out->is_json ? look_at_records(out, fd, format, options) : look_at_text(out, fd);
    if (rc == 0)
        rc = find_key(out, &info, options);
    close(fd);
    return rc;
}
