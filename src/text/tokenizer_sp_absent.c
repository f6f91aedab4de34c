/* Replaces tokenizer_sp.c if libsentencepiece was not found when this program was built. */
#include "text/tokenizer_internal.h"

int toki_sp_open(tokenizer *self, const char *path)
{
    (void)self;
    return err_set(
        ERR_CONFIG,
        "%s is a SentencePiece model, and this program was built without libsentencepiece: "
        "install it (Debian, Ubuntu: libsentencepiece-dev), run cmake again and build, or "
        "give a tokenizer.json",
        path);
}

void toki_sp_close(tokenizer *self)
{
    (void)self;
}

int toki_sp_encode(const tokenizer *self, const char *text, size_t bytes, token_list *out)
{
    (void)self;
    (void)text;
    (void)bytes;
    (void)out;
    return err_set(ERR_INTERNAL, "this build has no SentencePiece");
}
