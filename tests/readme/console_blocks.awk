# Reads the console blocks of a Markdown file, and compares what they show with what commands print. See
# check_readme.sh for the rules.
#
#   awk -v mode=list -f console_blocks.awk FILE.md               a line "LINE COMMAND" for each command
#   awk -v mode=want -v line=LINE -f console_blocks.awk FILE.md  the output that FILE.md shows for that command
#   awk -v mode=compare -v line=LINE [-v exact=1] -f console_blocks.awk WANT GOT
#       prints "LINE: what is wrong", and exits with 1, if the output GOT is not what WANT shows

# The line with each number, with the unit behind it, as "#". `exact`: the line as it is.
function plain(text)
{
    if (exact || text ~ /^exit status [0-9]+$/)
        return text
    gsub(/[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]+/, "#", text) # a checksum
    gsub(/[-+]?[0-9]+([.,][0-9]+)*(e[-+]?[0-9]+)?/, "#", text)
    gsub(/#m#s/, "#s", text)
    gsub(/# ?[KMGTP]?i?B/, "#", text)
    gsub(/# (us|ms) /, "# s ", text)
    gsub(/#[KMBTk]/, "#", text)
    gsub(/[ \t]+/, " ", text)
    sub(/ $/, "", text)
    while (sub(/ - /, " # ", text)) # none, in a table
        ;
    sub(/ -$/, " #", text)
    return text
}

# True if the text is the pattern, where "..." stands for anything.
function fits(text, pattern,    count, piece, i, at)
{
    count = split(pattern, piece, /\.\.\./)
    if (count < 2)
        return text == pattern
    if (substr(text, 1, length(piece[1])) != piece[1])
        return 0
    text = substr(text, length(piece[1]) + 1)
    for (i = 2; i < count; i++) {
        if (!(at = index(text, piece[i])))
            return 0
        text = substr(text, at + length(piece[i]))
    }
    at = length(text) - length(piece[count])
    return at >= 0 && substr(text, at + 1) == piece[count]
}

# True if the lines low to high of WANT are the lines of GOT from `at` on. `missed`: the line of WANT that stopped the
# longest try.
function lies(low, high, at,    i)
{
    for (i = low; i <= high; i++)
        if (at + i - low > got_count || !fits(got[at + i - low], want[i])) {
            if (i > missed)
                missed = i
            return 0
        }
    return 1
}

function complain(number, text)
{
    print line + number ": " text
    exit_status = 1
    exit 1
}

mode != "compare" && /^```/ {
    in_block = !in_block
    is_console = in_block && $0 == "```console"
    is_shown = 0
    next
}
mode != "compare" && is_console && /^\$ / {
    is_shown = NR == line
    if (mode == "list")
        print NR " " substr($0, 3)
    next
}
mode == "want" && is_shown { print }

mode == "compare" && FILENAME == ARGV[1] {
    want[++want_count] = $0 == "..." ? $0 : plain($0)
    shown[want_count] = $0
}
mode == "compare" && FILENAME != ARGV[1] { got[++got_count] = plain($0) }

# WANT is cut at its lines "...". Each piece must follow the one before it in GOT, and without such a line directly.
END {
    if (mode != "compare" || exit_status)
        exit exit_status
    at = 1
    for (low = 1; low <= want_count; low = high + 2) {
        for (high = low - 1; high < want_count && want[high + 1] != "..."; high++)
            ;
        if (high < low)
            continue
        missed = low
        if (low > 1 && high == want_count && got_count - (high - low) > at)
            at = got_count - (high - low) # the last piece ends the output
        while (low > 1 && at < got_count && !lies(low, high, at))
            at++
        if (!lies(low, high, at))
            complain(missed, "the output has no such line: " shown[missed])
        at += high - low + 1
    }
    if (want[want_count] != "..." && at <= got_count)
        complain(want_count, "the output goes on with: " got[at])
}
