/* The tokenizer "bytes" as a tokenizer.json: byte-level BPE without merges. The id of a byte is the
 * byte's value. See tokenizer.h. */
#include <jansson.h>

#include "text/tokenizer_internal.h"

static json_t *make_vocab(void)
{
    uint16_t characters[TOKI_BYTE_VALUES];
    json_t *vocab = json_object();
    toki_byte_alphabet(characters);
    for (int b = 0; vocab && b < TOKI_BYTE_VALUES; b++) {
        char text[3] = {(char)characters[b], '\0', '\0'};
        if (characters[b] >= 0x80) { /* UTF-8 of two bytes */
            text[0] = (char)(0xc0 | characters[b] >> 6);
            text[1] = (char)(0x80 | (characters[b] & 0x3f));
        }
        if (json_object_set_new(vocab, text, json_integer(b)) < 0) {
            json_decref(vocab);
            vocab = NULL;
        }
    }
    return vocab;
}

json_t *tokenizer_bytes_document(void)
{
    return json_pack(
        "{s:s, s:n, s:n, s:[], s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b},"
        " s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
        "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 1,
        "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0,
        "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
        "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "vocab", make_vocab(), "merges");
}
