/* Prints libFuzzer's dictionary of the job file, from the table of keys: every key as JSON has it,
 * every
 * path as --set has it, every choice. Run by the build of the fuzzers. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *const others[] = {
    "//",       "/*",
    "*/",       "#",
    "\x1e",     "null",
    "true",     "false",
    "\"auto\"", "\"all\"",
    "1e999",    "-1",
    "5e8",      "\"16GiB\"",
    "0-7,16",   "\\u0000",
    "\\ud800",  "\xef\xbb\xbf",
    "[[",       "{}",
    "[]",       "18446744073709551615",
    "1e-45",    "0.5",
};

static void print_word(const char *before, const char *word, size_t length, const char *after)
{
    printf("\"");
    for (const char *byte = before; *byte != '\0'; byte++)
        printf("\\x%02x", (unsigned char)*byte);
    for (size_t i = 0; i < length; i++)
        printf("\\x%02x", (unsigned char)word[i]);
    for (const char *byte = after; *byte != '\0'; byte++)
        printf("\\x%02x", (unsigned char)*byte);
    printf("\"\n");
}

/* The entries of a list "a|b|c". */
static void print_list(const char *list)
{
    while (list && *list != '\0') {
        size_t length = strcspn(list, "|");
        print_word("\"", list, length, "\"");
        list += length + (list[length] == '|');
    }
}

/* Whether an earlier row has the same last key. */
static bool is_repeated(uint32_t idx, const char *key)
{
    for (uint32_t i = 0; i < idx; i++) {
        const char *path = configi_key_at(i)->path, *dot = strrchr(path, '.');
        if (strcmp(dot ? dot + 1 : path, key) == 0)
            return true;
    }
    return false;
}

int main(void)
{
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        const char *dot = strrchr(row->path, '.');
        const char *key = dot ? dot + 1 : row->path;
        print_word("\x1e", row->path, strlen(row->path), "=");
        if (is_repeated(idx, key))
            continue;
        print_word("\"", key, strlen(key), "\": ");
        if (row->type == CONFIGI_ENUM || row->type == CONFIGI_BOOL)
            print_list(row->allowed);
        print_list(row->later);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        print_word("", others[i], strlen(others[i]), "");
    return 0;
}
