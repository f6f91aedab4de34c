/* Runs stored inputs through a harness, without libFuzzer:
 *
 *   replay FILE            one input
 *   replay ARCHIVE WHAT    the inputs in the folder WHAT of an archive that tests/fuzz/run.sh
 *                          made: the format ustar, regular files alone
 *
 * An archive that is missing, cut short, or has no such input is a failure: a test that tests
 * nothing must not pass. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"

enum {
    INPUT_BYTES_MAX = 1 << 20,
    BLOCK_BYTES = 512, /* Headers and contents of an archive begin at multiples of this. */
    NAME_BYTES = 100,
    SIZE_AT = 124, /* 12 octal digits */
    SIZE_BYTES = 12,
    TYPE_AT = 156, /* '0': a regular file */
    MAGIC_AT = 257
};

/* Exits because the stored inputs themselves are wrong. */
static void stop(const char *path, const char *what)
{
    fprintf(stderr, "replay: %s: %s\n", path, what);
    exit(1);
}

/* Reads `size` bytes and runs them. `name`: of the entry in an archive, or "". */
static void run_input(FILE *file, const char *path, const char *name, size_t size)
{
    /* A block of just its length, so that ASan sees what reads beyond. */
    uint8_t *input = malloc(size > 0 ? size : 1);
    if (!input)
        stop(path, "no memory");
    if (fread(input, 1, size, file) != size)
        stop(path, "it ends within an input, or cannot be read");
    fprintf(stderr, "%s %s\n", path, name); /* the last line names what an abort is about */
    LLVMFuzzerTestOneInput(input, size);
    free(input);
}

/* The size in the header. Stops at a header that is not of a regular file. */
static size_t entry_size(const char *path, const char header[BLOCK_BYTES])
{
    char digits[SIZE_BYTES + 1] = {0}, *end;
    memcpy(digits, header + SIZE_AT, SIZE_BYTES);
    unsigned long size = strtoul(digits, &end, 8);
    if (memcmp(header + MAGIC_AT, "ustar", sizeof "ustar") != 0 || header[TYPE_AT] != '0' ||
        header[NAME_BYTES - 1] != '\0' || end == digits)
        stop(path, "it is no archive of the format ustar with regular files alone");
    if (size >= INPUT_BYTES_MAX)
        stop(path, "an input of 1 MiB or more is none of a fuzzer");
    return size;
}

/* Returns how many inputs ran. */
static unsigned run_archive(FILE *file, const char *path, const char *what)
{
    char header[BLOCK_BYTES];
    unsigned count = 0;
    size_t length = strlen(what);
    /* Two blocks of zeros end the archive. */
    while (fread(header, 1, sizeof header, file) == sizeof header && header[0] != '\0') {
        size_t size = entry_size(path, header);
        size_t padding = (BLOCK_BYTES - size % BLOCK_BYTES) % BLOCK_BYTES;
        bool is_wanted = strncmp(header, what, length) == 0 && header[length] == '/';
        if (is_wanted)
            run_input(file, path, header, size);
        if (fseek(file, (long)(is_wanted ? padding : size + padding), SEEK_CUR) != 0)
            stop(path, strerror(errno));
        count += is_wanted;
    }
    if (feof(file))
        stop(path, "it ends before the end of an archive");
    return count;
}

static void run_file(FILE *file, const char *path)
{
    if (fseek(file, 0, SEEK_END) != 0)
        stop(path, strerror(errno));
    long size = ftell(file);
    if (size < 0 || size >= INPUT_BYTES_MAX)
        stop(path, "it is no input of a fuzzer: it has 1 MiB or more");
    rewind(file);
    run_input(file, path, "", (size_t)size);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3)
        stop("use", "replay FILE, or replay ARCHIVE WHAT");
    LLVMFuzzerInitialize(&argc, &argv);
    FILE *file = fopen(argv[1], "rb");
    unsigned count = 1;
    if (!file)
        stop(argv[1], strerror(errno));
    if (argc == 3)
        count = run_archive(file, argv[1], argv[2]);
    else
        run_file(file, argv[1]);
    fclose(file);
    if (count == 0)
        stop(argv[1], "no input in it");
    printf("%s: %u inputs\n", argv[1], count);
    return 0;
}
