/* Runs stored inputs through a harness, without libFuzzer: replay PATH...
 *
 * A PATH is an input or a directory of inputs, which are taken in the order of their names. A directory
 * that is missing, or has no input in it, is a failure: a test that tests nothing must not pass. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

enum { INPUT_BYTES_MAX = 1 << 20 };

/* Exits on what is wrong with the stored inputs themselves. */
static void stop(const char *path, const char *what)
{
    fprintf(stderr, "replay: %s: %s\n", path, what);
    exit(1);
}

static void run_file(const char *path)
{
    static uint8_t buffer[INPUT_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    if (!file)
        stop(path, strerror(errno));
    size_t size = fread(buffer, 1, sizeof buffer, file);
    if (ferror(file) || size == sizeof buffer)
        stop(path, "cannot be read, or is no input of a fuzzer: it has 1 MiB or more");
    fclose(file);
    /* A block of just its length, so that ASan sees what reads beyond. */
    uint8_t *input = malloc(size > 0 ? size : 1);
    if (!input)
        stop(path, "no memory");
    memcpy(input, buffer, size);
    fprintf(stderr, "%s\n", path); /* the last line names what an abort is about */
    LLVMFuzzerTestOneInput(input, size);
    free(input);
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Returns how many inputs ran. */
static unsigned run_directory(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, is_input, alphasort);
    if (count < 0)
        stop(path, strerror(errno));
    for (int i = 0; i < count; i++) {
        char input_path[4096];
        int length = snprintf(input_path, sizeof input_path, "%s/%s", path, entries[i]->d_name);
        if (length >= (int)sizeof input_path)
            stop(path, "the path is too long");
        run_file(input_path);
        free(entries[i]);
    }
    free(entries);
    return (unsigned)count;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        stop("use", "replay PATH...");
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (stat(argv[i], &info) < 0)
            stop(argv[i], strerror(errno));
        unsigned count = 1;
        if (S_ISDIR(info.st_mode))
            count = run_directory(argv[i]);
        else
            run_file(argv[i]);
        if (count == 0)
            stop(argv[i], "no input in it");
        printf("%s: %u inputs\n", argv[i], count);
    }
    return 0;
}
