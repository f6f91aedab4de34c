/* The files beside a checkpoint's weights: checks them and copies them. See hf_checkpoint.h.
 *
 * A checkpoint may come from anywhere, and what is copied from it ends in a run or an export, which
 * its user may give away. So a link must not bring in a file from elsewhere, and each file must be
 * of the kind that its name says. Allocates memory for one file at a time, and for its JSON. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/foreign_json.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"
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

/* ---- links ---- */

/* Cuts the last name off an absolute path. Returns the name that was cut; "" if there is none. */
static const char *cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return "";
    *slash = '\0';
    return slash + 1;
}

static bool lies_in(const char *path, const char *directory)
{
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && path[length] == '/';
}

/* A cache of Hugging Face's hub has models--X/snapshots/COMMIT/FILE -> ../../blobs/HASH. Turns the
 * directory of the commit into that of the blobs; false if it is none. */
static bool name_blobs(char directory[PATH_MAX])
{
    static const char blobs[] = "/blobs";
    cut_name(directory); /* COMMIT */
    if (strcmp(cut_name(directory), "snapshots") != 0 ||
        strlen(directory) + sizeof blobs > PATH_MAX)
        return false;
    strcat(directory, blobs);
    return true;
}

/* ERR_INPUT if the file is a link that leads out of the checkpoint. The directory itself may be a
 * link. */
static int check_place(const char *directory, const char *path)
{
    char whole[PATH_MAX], real[PATH_MAX];
    struct stat status;
    if (lstat(path, &status) == 0 && !S_ISLNK(status.st_mode))
        return 0;
    if (!realpath(directory, whole) || !realpath(path, real))
        return err_set(ERR_INPUT, "cannot open %s: %s", path, strerror(errno));
    if (lies_in(real, whole) || (name_blobs(whole) && lies_in(real, whole)))
        return 0;
    return err_set(ERR_INPUT,
                   "%s is a symbolic link to %s, outside of its checkpoint, and is not followed: "
                   "put the file itself there if it belongs to the model",
                   path, real);
}

/* ---- content ---- */

static int check_json(const char *path, const char *text, uint64_t text_bytes)
{
    json_error_t error;
    json_t *doc = foreign_json_parse(text, text_bytes, JSON_ALLOW_NUL, &error);
    bool is_object = json_is_object(doc);
    json_decref(doc);
    if (is_object)
        return 0;
    return err_set(ERR_INPUT,
                   "%s is no JSON object%s%s: repair it, or remove it if the model does "
                   "not need it",
                   path, doc ? "" : ": ", doc ? "" : error.text);
}

static int check_text(const char *path, const char *text, uint64_t text_bytes)
{
    for (uint64_t at = 0; at < text_bytes;) {
        int length = utf8_character(text + at, text_bytes - at);
        if (length < 1 || text[at] == '\0')
            return err_set(ERR_INPUT, "%s is no text in UTF-8: byte %llu", path,
                           (unsigned long long)at);
        at += (uint64_t)length;
    }
    return 0;
}

/* Reads a number of a protobuf message; false at the end. */
static bool read_varint(const char *text, uint64_t text_bytes, uint64_t *at, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; *at < text_bytes && shift < 64; shift += 7) {
        unsigned char byte = (unsigned char)text[(*at)++];
        *value |= (uint64_t)(byte & 0x7fu) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Checks that the fields of the message follow each other up to its end. */
static int check_protobuf(const char *path, const char *text, uint64_t text_bytes)
{
    enum { VARINT = 0, EIGHT_BYTES = 1, BYTES = 2, FOUR_BYTES = 5 };
    uint64_t at = 0, tag, length;
    bool is_good = text_bytes > 0;
    while (is_good && at < text_bytes) {
        is_good = read_varint(text, text_bytes, &at, &tag) && tag >> 3 != 0;
        length = (tag & 7) == EIGHT_BYTES ? 8 : (tag & 7) == FOUR_BYTES ? 4 : 0;
        if (is_good && ((tag & 7) == VARINT || (tag & 7) == BYTES))
            is_good = read_varint(text, text_bytes, &at, &length);
        else
            is_good = is_good && length > 0;
        if ((tag & 7) == VARINT)
            length = 0;
        is_good = is_good && length <= text_bytes - at;
        at += is_good ? length : 0;
    }
    return is_good ? 0
                   : err_set(ERR_INPUT,
                             "%s is no model of SentencePiece: its fields break off at byte %llu",
                             path, (unsigned long long)at);
}

/* Reads the file and checks it. Returns 1 with its text, or 0 if there is none. */
static int read_side_file(const char *directory, const char *name, char **text,
                          uint64_t *text_bytes)
{
    char path[PATH_MAX];
    struct stat status;
    *text = NULL;
    TRY(file_join(path, sizeof path, directory, name));
    if (lstat(path, &status) != 0)
        return 0;
    TRY(check_place(directory, path));
    TRY(file_read(path, SIDE_FILE_BYTES_MAX, text, text_bytes));
    int rc = text_ends_with(name, ".json")    ? check_json(path, *text, *text_bytes)
             : text_ends_with(name, ".model") ? check_protobuf(path, *text, *text_bytes)
                                              : check_text(path, *text, *text_bytes);
    if (rc == 0)
        return 1;
    mem_free(*text);
    *text = NULL;
    return rc;
}

/* ---- all of them ---- */

int hf_check_side_files(const char *directory)
{
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        char *text;
        uint64_t text_bytes;
        TRY(read_side_file(directory, hf_side_files[i], &text, &text_bytes));
        mem_free(text);
    }
    return 0;
}

int hf_copy_side_file(const char *source, const char *target, const char *name, int mode)
{
    char to[PATH_MAX], *text;
    uint64_t text_bytes;
    TRY(file_join(to, sizeof to, target, name));
    int found = read_side_file(source, name, &text, &text_bytes);
    if (found <= 0)
        return found;
    int rc = file_write(to, mode, text, text_bytes);
    mem_free(text);
    return rc < 0 ? rc : 1;
}

int hf_copy_side_files(const char *source, const char *target, int mode)
{
    char path[PATH_MAX];
    int count = 0;
    for (uint32_t i = 0; hf_side_files[i]; i++) {
        TRY(file_join(path, sizeof path, source, hf_side_files[i]));
        if (access(path, F_OK) != 0)
            continue;
        if (count == 0)
            TRY(file_make_directories(target, mode, NULL));
        int copied = hf_copy_side_file(source, target, hf_side_files[i], mode);
        TRY(copied);
        count += copied;
    }
    if (count > 0)
        TRY(file_sync_parent(target));
    return count;
}

int hf_remove_side_files(const char *target)
{
    for (uint32_t i = 0; hf_side_files[i]; i++)
        TRY(file_remove(target, hf_side_files[i]));
    if (rmdir(target) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST &&
        errno != ENOTDIR)
        return err_errno(errno, "cannot remove %s", target);
    return 0;
}
