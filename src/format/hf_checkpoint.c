/* See hf_checkpoint.h. */
#include "format/hf_checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/size.h"
#include "format/format_json.h"

static const char whole_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static const format_json_limits index_limits = {
    .bytes_max = 100000000,
    .values_max = 4 << 20, /* for as many tensors */
    .depth_max = 8,        /* metadata may hold anything */
};

struct hf_file {
    safetensors_table table;
    int fd;             /* -1: not open */
    int direct_fd;      /* the same file, for reads without the page cache; -1: not open */
    uint64_t last_used; /* by the clock of the checkpoint */
    uint32_t readers;   /* threads that are reading from it */
    dev_t device;       /* with inode: identifies the file that was opened first */
    ino_t inode;
};

struct hf_checkpoint {
    struct hf_file *files; /* [file_count] */
    uint32_t file_count, open_count;
    uint64_t clock;
    uint64_t tensor_count;
    hf_tensor *by_name;    /* [tensor_count] sorted by name */
    uint64_t *first;       /* [file_count] index of each file's first tensor */
    pthread_mutex_t mutex; /* guards the files' fd, last_used, readers; open_count, clock */
};

/* ---- opening ---- */

static int open_table(hf_checkpoint *self, const char *path)
{
    struct hf_file *file = &self->files[self->file_count];
    file->fd = file->direct_fd = -1;
    TRY(safetensors_open(path, &file->table));
    self->file_count++;
    return 0;
}

/* True for the name of a file in the directory itself. */
static bool is_plain_name(const char *name)
{
    for (const char *at = name; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            return false;
    return name[0] != '\0' && !strchr(name, '/') && !strchr(name, '\\') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0 && strlen(name) <= NAME_MAX;
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Lists the names of the files, each once, borrowed from the map. */
static int list_shards(const char *path, const json_t *map, const char **names, size_t *count)
{
    const char *tensor;
    json_t *value;
    char shown[FORMAT_SHOWN_BYTES], shown_name[FORMAT_SHOWN_BYTES];
    size_t used = 0;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || !is_plain_name(name))
            return err_set(ERR_INPUT,
                           "%s: the file of tensor \"%s\" is \"%s\", which is no name of a file in "
                           "this directory",
                           path, format_show(tensor, shown),
                           name ? format_show(name, shown_name) : "(no text)");
        names[used++] = name;
    }
    qsort(names, used, sizeof *names, compare_texts);
    *count = 0;
    for (size_t i = 0; i < used; i++)
        if (*count == 0 || strcmp(names[*count - 1], names[i]) != 0)
            names[(*count)++] = names[i];
    if (*count > HF_FILES_MAX)
        return err_set(ERR_INPUT, "%s names %zu files; at most %d are read", path, *count,
                       HF_FILES_MAX);
    if (*count == 0)
        return err_set(ERR_INPUT, "%s: its weight_map names no tensor", path);
    return 0;
}

/* Checks that each tensor of the map is in its file. */
static int check_map(const hf_checkpoint *self, const char *path, const json_t *map,
                     const char *const *names, size_t count)
{
    char shown[FORMAT_SHOWN_BYTES];
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = json_string_value(value);
        const char *const *found =
            /* the name is always found */
            bsearch(&name, names, count, sizeof *names, compare_texts);
        if (!safetensors_find(&self->files[found - names].table, tensor))
            return err_set(ERR_INPUT, "%s names %s for tensor \"%s\", but it is not in there", path,
                           name, format_show(tensor, shown));
    }
    return 0;
}

static int open_shards(hf_checkpoint *self, const char *dir, const char *path, const json_t *map)
{
    char file[PATH_MAX];
    size_t count = 0;
    const char **names = mem_alloc(json_object_size(map), sizeof *names, "shards");
    int rc = names ? list_shards(path, map, names, &count) : -ENOMEM;
    if (rc == 0 && !(self->files = mem_alloc(count, sizeof *self->files, "shards")))
        rc = -ENOMEM;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = file_join(file, sizeof file, dir, names[i]);
        if (rc == 0 && access(file, F_OK) != 0)
            rc = err_set(ERR_INPUT,
                         "%s names %s, which is not in the directory: of %zu files it "
                         "is number %zu",
                         path, names[i], count, i + 1);
        if (rc == 0)
            rc = open_table(self, file);
    }
    if (rc == 0)
        rc = check_map(self, path, map, names, count);
    mem_free(names);
    return rc;
}

static int open_index(hf_checkpoint *self, const char *dir, const char *path)
{
    json_t *doc;
    TRY(format_json_read(path, &index_limits, &doc));
    const json_t *map = json_object_get(doc, "weight_map");
    int rc = json_is_object(map) ? open_shards(self, dir, path, map)
                                 : err_set(ERR_INPUT, "%s has no weight_map", path);
    json_decref(doc);
    return rc;
}

static int open_files(hf_checkpoint *self, const char *dir)
{
    char whole[PATH_MAX], index[PATH_MAX];
    struct stat status;
    TRY(file_join(whole, sizeof whole, dir, whole_name));
    TRY(file_join(index, sizeof index, dir, index_name));
    if (stat(dir, &status) != 0)
        return err_set(ERR_INPUT, "cannot look at %s: %s", dir, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        return err_set(ERR_INPUT, "%s is no directory", dir);
    if (access(whole, F_OK) == 0) {
        if (!(self->files = mem_alloc(1, sizeof *self->files, "shards")))
            return -ENOMEM;
        return open_table(self, whole);
    }
    if (access(index, F_OK) == 0)
        return open_index(self, dir, index);
    return err_set(ERR_INPUT, "%s has neither %s nor %s: it is no checkpoint with safetensors", dir,
                   whole_name, index_name);
}

static int compare_tensors(const void *left, const void *right)
{
    const hf_tensor *a = left, *b = right;
    int order = strcmp(a->tensor->name, b->tensor->name);
    return order != 0 ? order : (a->file_idx > b->file_idx) - (a->file_idx < b->file_idx);
}

static int list_tensors(hf_checkpoint *self)
{
    self->first = mem_alloc(self->file_count, sizeof *self->first, "shards");
    for (uint32_t f = 0; self->first && f < self->file_count; f++) {
        self->first[f] = self->tensor_count;
        self->tensor_count += self->files[f].table.count;
    }
    self->by_name = mem_alloc(self->tensor_count, sizeof *self->by_name, "tensors");
    if (!self->first || !self->by_name)
        return -ENOMEM;
    for (uint32_t f = 0; f < self->file_count; f++)
        for (uint32_t i = 0; i < self->files[f].table.count; i++)
            self->by_name[self->first[f] + i] =
                (hf_tensor){.tensor = &self->files[f].table.tensors[i], .file_idx = f};
    qsort(self->by_name, self->tensor_count, sizeof *self->by_name, compare_tensors);
    for (uint64_t i = 1; i < self->tensor_count; i++) {
        const hf_tensor *a = &self->by_name[i - 1], *b = &self->by_name[i];
        if (strcmp(a->tensor->name, b->tensor->name) == 0)
            return err_set(ERR_INPUT, "tensor \"%.100s\" is in %s and in %s", a->tensor->name,
                           hf_path(self, a->file_idx), hf_path(self, b->file_idx));
    }
    return 0;
}

static void close_file(struct hf_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    if (file->direct_fd >= 0)
        close(file->direct_fd);
    file->fd = file->direct_fd = -1;
}

int hf_open(const char *dir, hf_checkpoint **out)
{
    *out = NULL;
    hf_checkpoint *self = mem_alloc(1, sizeof *self, "checkpoint");
    if (!self)
        return -ENOMEM;
    pthread_mutex_init(&self->mutex, NULL);
    int rc = open_files(self, dir);
    if (rc == 0)
        rc = list_tensors(self);
    if (rc < 0) {
        hf_close(self);
        return rc;
    }
    *out = self;
    return 0;
}

void hf_close(hf_checkpoint *self)
{
    if (!self)
        return;
    for (uint32_t f = 0; f < self->file_count; f++) {
        close_file(&self->files[f]);
        safetensors_close(&self->files[f].table);
    }
    pthread_mutex_destroy(&self->mutex);
    mem_free(self->files);
    mem_free(self->by_name);
    mem_free(self->first);
    mem_free(self);
}

/* ---- access to tensors ---- */

static int compare_name(const void *name, const void *item)
{
    return strcmp(name, ((const hf_tensor *)item)->tensor->name);
}

bool hf_find(const hf_checkpoint *self, const char *name, hf_tensor *out)
{
    const hf_tensor *found =
        bsearch(name, self->by_name, self->tensor_count, sizeof *self->by_name, compare_name);
    if (found)
        *out = *found;
    return found != NULL;
}

uint64_t hf_count(const hf_checkpoint *self)
{
    return self->tensor_count;
}

hf_tensor hf_at(const hf_checkpoint *self, uint64_t idx)
{
    uint32_t f = self->file_count - 1;
    while (self->first[f] > idx)
        f--;
    return (hf_tensor){.tensor = &self->files[f].table.tensors[idx - self->first[f]],
                       .file_idx = f};
}

const char *hf_path(const hf_checkpoint *self, uint32_t file_idx)
{
    return self->files[file_idx].table.path;
}

static uint64_t mix(uint64_t sum, const void *data, size_t size_bytes)
{
    return XXH3_64bits_withSeed(data, size_bytes, sum);
}

uint64_t hf_identity(const hf_checkpoint *self)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < self->tensor_count; i++) {
        const hf_tensor *at = &self->by_name[i];
        const safetensors_tensor *tensor = at->tensor;
        const uint64_t places[] = {at->file_idx, tensor->file_offset, tensor->size_bytes,
                                   tensor->dim_count, self->files[at->file_idx].table.file_bytes};
        sum = mix(sum, tensor->name, strlen(tensor->name));
        sum = mix(sum, tensor->type_name, strlen(tensor->type_name));
        sum = mix(sum, tensor->shape, tensor->dim_count * sizeof tensor->shape[0]);
        sum = mix(sum, places, sizeof places);
    }
    return sum;
}

/* ---- reading ---- */

/* If too many files are open, closes the one that was not read for the longest time. Call it under
 * the mutex. */
static void make_room(hf_checkpoint *self)
{
    struct hf_file *oldest = NULL;
    if (self->open_count < HF_FILES_OPEN_MAX)
        return;
    for (uint32_t f = 0; f < self->file_count; f++) {
        struct hf_file *file = &self->files[f];
        if (file->fd >= 0 && file->readers == 0 && (!oldest || file->last_used < oldest->last_used))
            oldest = file;
    }
    if (!oldest)
        return; /* threads are reading from all of them: one more file is opened than the limit */
    close_file(oldest);
    self->open_count--;
}

/* Opens a second file description for direct reads. Not every file system has them. */
static void open_direct(struct hf_file *file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
    file->direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

/* Opens the file, and checks that it is the one whose header was read. Call it under the mutex. */
static int open_file(hf_checkpoint *self, struct hf_file *file)
{
    struct stat status;
    uint64_t file_bytes;
    make_room(self);
    TRY(file_open(file->table.path, &file->fd, &file_bytes));
    bool is_same =
        fstat(file->fd, &status) == 0 && file_bytes == file->table.file_bytes &&
        (file->inode == 0 || (file->inode == status.st_ino && file->device == status.st_dev));
    if (!is_same) {
        close(file->fd);
        file->fd = -1;
        return err_set(ERR_INPUT, "%s has been changed since its header was read",
                       file->table.path);
    }
    file->inode = status.st_ino;
    file->device = status.st_dev;
    open_direct(file);
    self->open_count++;
    /* Readers ask for far more at a time than the kernel would read ahead. */
    (void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return 0;
}

static int take_file(hf_checkpoint *self, uint32_t file_idx, int *fd)
{
    struct hf_file *file = &self->files[file_idx];
    pthread_mutex_lock(&self->mutex);
    int rc = file->fd >= 0 ? 0 : open_file(self, file);
    if (rc == 0) {
        file->readers++;
        file->last_used = ++self->clock;
        *fd = file->fd;
    }
    pthread_mutex_unlock(&self->mutex);
    return rc;
}

static void leave_file(hf_checkpoint *self, uint32_t file_idx)
{
    pthread_mutex_lock(&self->mutex);
    self->files[file_idx].readers--;
    pthread_mutex_unlock(&self->mutex);
}

int hf_read(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count,
            void *target)
{
    int fd = -1;
    TRY(take_file(self, from->file_idx, &fd));
    int rc = safetensors_read(&self->files[from->file_idx].table, fd, from->tensor, begin, count,
                              target);
    leave_file(self, from->file_idx);
    return rc;
}

/* True if the kernel has all of the range in memory; false if it does not say (before Linux
 * 6.5). */
static bool is_cached(int fd, uint64_t offset, uint64_t size_bytes)
{
    enum {
        CACHESTAT_NUMBER = 451
    }; /* older headers do not define it; the number is the same on every machine but Alpha */
    const struct {
        uint64_t offset, size_bytes;
    } range = {offset, size_bytes};
    struct {
        uint64_t cached, dirty, written_back, evicted, evicted_lately; /* pages */
    } found = {0};
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t pages = (offset + size_bytes - 1) / page - offset / page + 1;
    return syscall(CACHESTAT_NUMBER, fd, &range, &found, 0u) == 0 && found.cached >= pages;
}

/* Returns false if it could not read everything. The caller then reads through the page cache, and
 * that read reports the error if there is one. */
static bool read_direct(int fd, uint64_t offset, uint64_t size_bytes, unsigned char *room)
{
    uint64_t skipped = offset % HF_BLOCK_BYTES, wanted = skipped + size_bytes;
    uint64_t whole = size_round_up(wanted, HF_BLOCK_BYTES);
    for (uint64_t at = 0; at < wanted;) {
        ssize_t got = pread(fd, room + at, whole - at, (off_t)(offset - skipped + at));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0 || (at + (uint64_t)got < wanted && got % HF_BLOCK_BYTES != 0))
            return false;
        at += (uint64_t)got;
        progress_note();
    }
    return true;
}

int hf_read_direct(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count,
                   void *room, const void **data)
{
    int fd = -1, rc = 0;
    const struct hf_file *file = &self->files[from->file_idx];
    uint64_t offset = from->tensor->file_offset + begin;
    TRY(take_file(self, from->file_idx, &fd));
    bool is_aligned = offset % dtype_bytes((enum dtype)from->tensor->type) == 0;
    *data = (unsigned char *)room + offset % HF_BLOCK_BYTES;
    if (!is_aligned || file->direct_fd < 0 || is_cached(fd, offset, count) ||
        !read_direct(file->direct_fd, offset, count, room)) {
        rc = safetensors_read(&file->table, fd, from->tensor, begin, count, room);
        *data = room;
    }
    leave_file(self, from->file_idx);
    return rc;
}

void hf_read_ahead(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count)
{
    int fd = -1;
    if (take_file(self, from->file_idx, &fd) < 0)
        return; /* the read itself reports the error */
    (void)posix_fadvise(fd, (off_t)(from->tensor->file_offset + begin), (off_t)count,
                        POSIX_FADV_WILLNEED);
    leave_file(self, from->file_idx);
}
