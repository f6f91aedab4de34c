/* Split patterns. The library reads them as Oniguruma does (its own syntax, Unicode); here PCRE2
 * matches them. Syntax that means the same in both is copied, other syntax is translated, and
 * syntax without a counterpart is refused:
 *
 *   Oniguruma                                   for PCRE2
 *   ^ $ at every line                           PCRE2_MULTILINE, a line ends with \n alone
 *   X{1,3}+   one or more of X{1,3}             (?:X{1,3})+     (X{1,3}+ would be possessive)
 *   X{,3}     none to three                     X{0,3}
 *   \w \W \b \B  letters, marks, digits, ...    a class of properties (PCRE2's \w has no marks)
 *   \h \v     a hexadecimal digit; U+000B       [0-9A-Fa-f]; \x0B
 *   \uHHHH                                      \x{HHHH}
 *   [a[bc]]   union                             [abc]
 *   [a&&b], [a[^b]], (?m), (?~..), \K, \G, ...  refused
 *
 * \s, \d, \p{..}, (?i:..) mean the same after characters have been replaced by their stand-ins
 * (tokenizer_text.c).
 *
 * A pattern may be hostile. PCRE2's limits on compiling apply, and each match has a limit that
 * grows with the text (tokenizer_encode.c), so nothing recurses or runs without bound. */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

enum {
    PATTERN_BYTES_MAX = 65536,
    DEPTH_MAX = 200, /* of groups; PCRE2's own limit is 250 */
    ATOM_NONE = -1,
};

/* Oniguruma's word characters, as members of a class. Alphabetic is spelled out, because PCRE2 has
 * that property only since 10.40. Circled and squared letters are symbols, but alphabetic. */
#define WORD                                                                                       \
    "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"

struct rewrite {
    const char *where, *pattern;
    size_t bytes, at;
    toki_bytes out;
    int64_t atom; /* offset in `out` of what a quantifier would repeat, or ATOM_NONE */
    int64_t groups[DEPTH_MAX];
    int depth;
};
typedef struct rewrite rewrite;

static int refuse(const rewrite *self, const char *what)
{
    return err_set(ERR_CONFIG, "%s: the pattern has %s at byte %zu, which is not supported",
                   self->where, what, self->at);
}

static char peek(const rewrite *self, size_t ahead)
{
    return self->at + ahead < self->bytes ? self->pattern[self->at + ahead] : '\0';
}

static int put(rewrite *self, const char *text, size_t bytes)
{
    TRY(toki_bytes_reserve(&self->out, bytes));
    memcpy(self->out.data + self->out.count, text, bytes);
    self->out.count += bytes;
    return 0;
}

static int put_text(rewrite *self, const char *text)
{
    return put(self, text, strlen(text));
}

/* Copies `bytes` bytes of the pattern. */
static int pass(rewrite *self, size_t bytes)
{
    TRY(put(self, self->pattern + self->at, bytes));
    self->at += bytes;
    return 0;
}

static int insert(rewrite *self, size_t at, const char *text)
{
    size_t bytes = strlen(text);
    TRY(toki_bytes_reserve(&self->out, bytes));
    memmove(self->out.data + at + bytes, self->out.data + at, self->out.count - at);
    memcpy(self->out.data + at, text, bytes);
    self->out.count += bytes;
    return 0;
}

/* Copies \p{..}, \P{..}, \x{..} or \xHH. */
static int pass_braced(rewrite *self)
{
    size_t length = 2;
    if (peek(self, 2) != '{') {
        if (peek(self, 1) != 'x')
            return refuse(self, "\\p without braces");
        while (length < 4 && isxdigit((unsigned char)peek(self, length)))
            length++;
        if (length == 4 && peek(self, 2) >= '8')
            return refuse(self, "\\x of a byte that is no ASCII");
        return pass(self, length);
    }
    while (peek(self, length) != '}') {
        if (self->at + length >= self->bytes || peek(self, length) == '\0')
            return refuse(self, "a { that is not closed");
        length++;
    }
    return pass(self, length + 1);
}

/* Translates an escape; it begins with a backslash. */
static int escape(rewrite *self, bool in_class)
{
    char kind = peek(self, 1);
    if (self->at + 1 >= self->bytes)
        return refuse(self, "a lone backslash");
    if (!isalnum((unsigned char)kind)) {
        size_t bytes = 2;
        while (self->at + bytes < self->bytes && utf8_is_inner(peek(self, bytes)))
            bytes++;
        return pass(self, bytes);
    }
    if (strchr("sSdDrntfae", kind))
        return pass(self, 2);
    if (strchr("pPx", kind))
        return pass_braced(self);
    self->at += 2;
    switch (kind) {
    case 'v':
        return put_text(self, "\\x0B");
    case 'h':
        return put_text(self, in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]");
    case 'w':
        return put_text(self, in_class ? WORD : "[" WORD "]");
    case 'W':
        if (!in_class)
            return put_text(self, "[^" WORD "]");
        break;
    case 'b':
        if (!in_class)
            return put_text(self,
                            "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
        break;
    case 'B':
        if (!in_class)
            return put_text(self,
                            "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
        break;
    case 'A':
    case 'z':
        if (!in_class) {
            self->at -= 2;
            return pass(self, 2);
        }
        break;
    case 'u':
        for (size_t i = 0; i < 4; i++)
            if (!isxdigit((unsigned char)peek(self, i)))
                return refuse(self, "\\u without four hexadecimal digits");
        TRY(put_text(self, "\\x{"));
        TRY(pass(self, 4));
        return put_text(self, "}");
    default:
        break;
    }
    self->at -= 2;
    char what[] = "the escape \\?";
    what[sizeof what - 2] = kind;
    return refuse(self, what);
}

/* Translates a class, from its opening bracket to the closing one. */
static int character_class(rewrite *self)
{
    int nested = 0;
    TRY(pass(self, 1));
    if (peek(self, 0) == '^')
        TRY(pass(self, 1));
    if (peek(self, 0) == ']') {
        self->at++;
        TRY(put_text(self, "\\]"));
    }
    while (self->at < self->bytes) {
        char byte = peek(self, 0);
        if (byte == '\\') {
            TRY(escape(self, true));
        } else if (byte == '&' && peek(self, 1) == '&') {
            return refuse(self, "an intersection of classes (&&)");
        } else if (byte == '[' && peek(self, 1) == ':') {
            size_t length = 2;
            while (isalpha((unsigned char)peek(self, length)) || peek(self, length) == '^')
                length++;
            if (peek(self, length) != ':' || peek(self, length + 1) != ']')
                return refuse(self, "[: in a class");
            TRY(pass(self, length + 2));
        } else if (byte == '[') {
            if (peek(self, 1) == '^' || peek(self, 1) == ']' ||
                (self->at && self->pattern[self->at - 1] == '-'))
                return refuse(self, "this kind of class within a class");
            nested++;
            self->at++;
        } else if (byte == ']' && nested) {
            if (peek(self, 1) == '-')
                return refuse(self, "this kind of class within a class");
            nested--;
            self->at++;
        } else {
            TRY(pass(self, 1));
            if (byte == ']')
                return 0;
        }
    }
    return refuse(self, "a [ that is not closed");
}

/* Translates "(" and the characters that belong to it. */
static int group(rewrite *self)
{
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (self->depth == DEPTH_MAX)
        return refuse(self, "groups nested so deeply");
    self->groups[self->depth++] = (int64_t)self->out.count;
    self->atom = ATOM_NONE;
    if (peek(self, 1) == '*')
        return refuse(self, "(*");
    if (peek(self, 1) != '?')
        return pass(self, 1);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        size_t length = strlen(plain[i]);
        if (self->bytes - self->at >= length &&
            memcmp(self->pattern + self->at, plain[i], length) == 0)
            return pass(self, length);
    }
    size_t length = 2;
    while (peek(self, length) == 'i' || peek(self, length) == '-')
        length++;
    if (length > 2 && peek(self, length) == ':')
        return pass(self, length + 1);
    if (length > 2 &&
        peek(self, length) == ')') { /* an option up to the end of the enclosing group */
        self->depth--;
        return pass(self, length + 1);
    }
    return refuse(self, "a group of that kind");
}

/* The length in bytes of {n}, {n,}, {n,m} or {,m} at this place; 0 if the brace is an ordinary
 * character. */
static size_t interval_bytes(const rewrite *self)
{
    size_t length = 1, digits = 0;
    bool has_comma = false;
    for (; isdigit((unsigned char)peek(self, length)) || (peek(self, length) == ',' && !has_comma);
         length++) {
        has_comma |= peek(self, length) == ',';
        digits += peek(self, length) != ',';
    }
    return digits && peek(self, length) == '}' ? length + 1 : 0;
}

static int interval(rewrite *self, size_t length)
{
    size_t atom = (size_t)self->atom;
    if (peek(self, 1) == ',') {
        self->at++;
        length--;
        TRY(put_text(self, "{0"));
    }
    TRY(pass(self, length));
    if (peek(self, 0) == '+') {
        TRY(insert(self, atom, "(?:"));
        return put_text(self, ")");
    }
    if (peek(self, 0) == '?' && memchr(self->pattern + self->at - length, ',', length) == NULL)
        return refuse(self, "{n}?");
    return 0;
}

static int item(rewrite *self)
{
    char byte = peek(self, 0);
    int64_t begin = (int64_t)self->out.count;
    size_t length = byte == '{' ? interval_bytes(self) : 0;
    if (length) {
        if (self->atom == ATOM_NONE)
            return refuse(self, "{ with nothing to repeat");
        return interval(self, length); /* the atom does not change, because + may follow */
    }
    switch (byte) {
    case '\\':
        TRY(escape(self, false));
        break;
    case '[':
        TRY(character_class(self));
        break;
    case '(':
        return group(self);
    case ')':
        if (self->depth == 0)
            return refuse(self, "an extra )");
        TRY(pass(self, 1));
        begin = self->groups[--self->depth];
        break;
    case '*':
    case '+':
    case '?':
        if (self->atom == ATOM_NONE)
            return refuse(self, "nothing to repeat");
        return pass(self, 1);
    case '|':
    case '^':
    case '$':
        self->atom = ATOM_NONE;
        return pass(self, 1);
    case '{':
        self->at++;
        TRY(put_text(self, "\\{"));
        break;
    default: {
        size_t bytes = 1;
        while (self->at + bytes < self->bytes && utf8_is_inner(peek(self, bytes)))
            bytes++;
        TRY(pass(self, bytes));
    }
    }
    self->atom = begin;
    return 0;
}

static int compile(const char *where, const char *pattern, size_t bytes, toki_stage *out)
{
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return err_set(-ENOMEM, "%s: no memory for a pattern", where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    out->code = pcre2_compile((PCRE2_SPTR)pattern, bytes, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                              &code, &at, context);
    pcre2_compile_context_free(context);
    if (!out->code) {
        PCRE2_UCHAR text[160] = "";
        pcre2_get_error_message(code, text, sizeof text);
        return err_set(ERR_CONFIG, "%s: the pattern is not understood: %s (at byte %zu of %zu)",
                       where, (const char *)text, (size_t)at, bytes);
    }
    out->has_jit = pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    return 0;
}

int toki_pattern_fixed(const char *pattern, pcre2_code **out)
{
    toki_stage stage = {0};
    int rc = compile("a known pattern", pattern, strlen(pattern), &stage);
    *out = stage.code;
    return rc;
}

int toki_pattern_compile(const char *where, const char *pattern, size_t bytes, toki_stage *out)
{
    rewrite self = {.where = where, .pattern = pattern, .bytes = bytes, .atom = ATOM_NONE};
    if (bytes > PATTERN_BYTES_MAX)
        return err_set(ERR_CONFIG, "%s: a pattern of %zu bytes; at most %d are supported", where,
                       bytes, (int)PATTERN_BYTES_MAX);
    int rc = toki_bytes_reserve(&self.out, bytes + 1);
    while (rc == 0 && self.at < self.bytes)
        rc = item(&self);
    if (rc == 0 && self.depth)
        rc = refuse(&self, "a ( that is not closed");
    if (rc == 0)
        rc = compile(where, self.out.data, self.out.count, out);
    mem_free(self.out.data);
    out->known = toki_known_find(pattern, bytes);
    return rc;
}

int toki_pattern_literal(const char *where, const char *text, size_t bytes, toki_stage *out)
{
    toki_bytes pattern = {0};
    int rc = toki_bytes_reserve(&pattern, 2 * bytes + 1);
    for (size_t i = 0; rc == 0 && i < bytes; i++) {
        if (text[i] == '\0') { /* \0 with a digit after it would mean something else */
            rc = err_set(ERR_CONFIG, "%s: a NUL in a string pattern is not supported", where);
            break;
        }
        if (ispunct((unsigned char)text[i]))
            pattern.data[pattern.count++] = '\\';
        pattern.data[pattern.count++] = text[i];
    }
    if (rc == 0)
        rc = compile(where, pattern.data, pattern.count, out);
    mem_free(pattern.data);
    return rc;
}

int toki_pattern_digits(bool individual, toki_stage *out)
{
    static const char digit[] = "[\\p{N}\\x{1fffe}]"; /* the stand-in for Unicode 17's numbers */
    out->behavior = individual ? TOKI_ISOLATED : TOKI_CONTIGUOUS;
    out->known = toki_known_find("\\p{N}", strlen("\\p{N}"));
    return compile("the pre-tokenizer Digits", digit, sizeof digit - 1, out);
}

int toki_pattern_word_character(pcre2_code **out)
{
    static const char word[] = "[" WORD "\\x{200c}\\x{200d}]";
    return toki_pattern_fixed(word, out);
}
