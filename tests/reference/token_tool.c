/* Writes the bytes of all tokens of a tokenizer in hexadecimal, one token a line, by id. For
 * check_tokenizer.py.
 *
 *   token-tool TOKENIZER */
#include <stdio.h>

#include "text/tokenizer.h"

int main(int argc, char **argv)
{
    tokenizer *words;
    if (argc != 2 || tokenizer_open(argv[1], &words) < 0) {
        fprintf(stderr, "token-tool: %s\n", argc == 2 ? err_text() : "TOKENIZER is missing");
        return 1;
    }
    for (uint64_t id = 0; id < tokenizer_vocab(words); id++) {
        size_t count;
        const char *bytes = tokenizer_token_bytes(words, (int32_t)id, false, &count);
        for (size_t i = 0; i < count; i++)
            printf("%02x", (unsigned char)bytes[i]);
        printf("\n");
    }
    tokenizer_close(words);
    return 0;
}
