/* The split patterns that are known: where texts may be cut (tokenizer_cut_is_safe), and which of
 * their matches may be long (tokenizer_stream.c).
 *
 * Cuts. Let p be a place in a text, d the character before p, and c the character at p. Two kinds
 * of places are proved to be safe for every pattern below, and for their combinations as stages:
 *
 *   before a space   d is not white space, c is a space or a tab
 *   after a newline  d is a newline, neither the character before it nor c is white space, and c is
 *                    not "/"
 *
 * - No alternative looks behind. So if a match or a gap ends at p, the matches from p on depend
 *   only on the text after p.
 * - Before a space: no alternative takes a space or a tab after a character that is no white space.
 *   Only \s+(?!\S) looks ahead, and it begins with white space. So a match that begins before p
 *   ends at or before p and does not see what follows.
 * - After a newline: an alternative that can take the newline ends at p. After the newline it can
 *   take only more of [\r\n], of [\r\n/] or of \s, and c is none of these.
 * - An alternative that cannot take the newline ends before it and does not see what follows it.
 *   The only look-ahead is in \s+(?!\S). This begins with white space, which here is the newline
 *   alone, since the character before it is not white space. It fails before c, and matches at the
 *   end of a text. If it fails, \s+ is tried next and takes the same newline.
 * - So the same matches end at or before p with and without the cut. If a pattern never takes a
 *   newline, such as \p{N}, p is in a gap. The next pattern sees the two parts of that gap as if it
 *   had cut there itself.
 * - At least one stage has a pattern that takes all characters there (toki_known_takes_all), and
 *   does not join its matches: it ends a part at p. Without it, merges could reach across p.
 *
 * NFC changes nothing across p, because a newline, a space and a tab compose with nothing before
 * them. With NFKC there are no cuts: it makes "/" and spaces of other characters.
 *
 * Long matches. All repetitions without a limit are of one class of characters, or of one class and
 * then of another one. So a long match has one of the forms below: an optional beginning, the run
 * of a class, and its end. */
#include <string.h>

#include "text/tokenizer_internal.h"

/* Classes of Llama 4's pattern: what may stand in front of the lower-case letters of a word, its
 * lower-case letters, and what is in both. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BOTH  "[\\p{Lm}\\p{Lo}\\p{M}]"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define NO_LETTER   "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACES      "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define OTHER       "[^\\s\\p{L}\\p{N}]"
#define KANA        "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]"
#define ASCII_SIGN  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"

#define LLAMA3(digits) CONTRACTION "|" NO_LETTER "\\p{L}+|" digits "| ?" OTHER "+[\\r\\n]*" SPACES
#define LLAMA4(digits, end)                                                                        \
    NO_LETTER UPPER "*" LOWER "+" end "|" NO_LETTER UPPER "+" LOWER "*" end "|" digits "| ?" OTHER \
                    "+[\\r\\n/]*" SPACES

/* The end of a run of white space: its last newline, if it has any; else its last character is not
 * taken if something follows. */
#define LINES_FORM                                                                                 \
    {                                                                                              \
        .begin = "", .repeat = "\\s", .last = "[\\r\\n]", .gives_back = true                       \
    }

const char toki_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?" OTHER "+|\\s+(?!\\S)|\\s+";

const toki_known toki_known_patterns[] = {
    {toki_gpt2_pattern,
     {{.begin = " ?", .repeat = "\\p{L}"},
      {.begin = " ?", .repeat = "\\p{N}"},
      {.begin = " ?", .repeat = OTHER},
      {.begin = "", .repeat = "\\s", .gives_back = true}}},
    {"\\p{N}", {{0}}},
    {"\\p{N}{1,3}", {{0}}},
    /* Llama 3, Qwen 2 and 3 */
    {LLAMA3("\\p{N}{1,3}"),
     {{.begin = NO_LETTER, .repeat = "\\p{L}"},
      {.begin = " ?", .repeat = OTHER, .then = "[\\r\\n]"},
      LINES_FORM}},
    {LLAMA3("\\p{N}"),
     {{.begin = NO_LETTER, .repeat = "\\p{L}"},
      {.begin = " ?", .repeat = OTHER, .then = "[\\r\\n]"},
      LINES_FORM}},
    /* Llama 4 and GPT-4o; Mistral's Tekken. If no lower-case letter follows the run, LOWER+ takes
     * the last character of the run that is in both classes; if there is none, the second
     * alternative takes the run. A first mark that the optional beginning could take is such a
     * character too. */
    {LLAMA4("\\p{N}{1,3}", CONTRACTION "?"),
     {{.begin = NO_LETTER, .repeat = UPPER, .then = LOWER, .last = BOTH, .tail = CONTRACTION},
      {.begin = " ?", .repeat = OTHER, .then = "[\\r\\n/]"},
      LINES_FORM}},
    {LLAMA4("\\p{N}", ""),
     {{.begin = NO_LETTER, .repeat = UPPER, .then = LOWER, .last = BOTH},
      {.begin = " ?", .repeat = OTHER, .then = "[\\r\\n/]"},
      LINES_FORM}},
    /* DeepSeek V2 and V3: ideographs and kana; words and punctuation */
    {KANA "+", {{.begin = "", .repeat = KANA}}},
    {ASCII_SIGN "[A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
                "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     {{.begin = ASCII_SIGN, .repeat = "[A-Za-z]"},
      {.begin = "[^\\r\\n\\p{L}\\p{P}\\p{S}]?", .repeat = "[\\p{L}\\p{M}]"},
      {.begin = " ?", .repeat = "[\\p{P}\\p{S}]", .then = "[\\r\\n]"},
      LINES_FORM}},
    {NULL, {{0}}},
};

bool toki_known_takes_all(const toki_known *self)
{
    bool takes_spaces = false; /* all patterns that do take everything else, too */
    for (int i = 0; i < TOKI_FORMS_MAX; i++)
        takes_spaces = takes_spaces || self->forms[i].gives_back;
    return takes_spaces;
}

const toki_known *toki_known_find(const char *pattern, size_t bytes)
{
    for (const toki_known *at = toki_known_patterns; at->pattern; at++)
        if (strlen(at->pattern) == bytes && memcmp(at->pattern, pattern, bytes) == 0)
            return at;
    return NULL;
}
