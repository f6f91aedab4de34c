#!/bin/sh
# Checks the links between documents: check_links.sh ROOT, or check_links.sh --self-test
#
# Every relative link of every Markdown file in ROOT must name a file or folder that exists. If the link has an
# anchor (FILE.md#name), that file must have a heading whose anchor it is, as GitHub makes it: lower case, without
# punctuation, with hyphens for spaces. A path in backquotes that begins with a folder of the top level, such as
# `src/base/size.h`, must exist too, except in CHANGELOG.md. Links to the web and text in code blocks are not looked
# at. --self-test plants broken links in a scratch tree; each must be found. Exit 0: all exist; 1: one line each.
set -u

# The Markdown files of the tree $1: those that git tracks, or all outside of a clone.
list_documents()
{
    git -c safe.directory='*' -C "$1" ls-files --cached --others --exclude-standard -- '*.md' 2>/dev/null |
        grep . || (cd "$1" && find . -name '*.md' -not -path './build/*' | sed 's|^\./||')
}

# Prints the headings' anchors of the file $1.
list_anchors()
{
    awk '
    /^ *```/ { in_code = !in_code; next }
    !in_code && /^#+ / {
        sub(/^#+ +/, "")
        text = tolower($0)
        gsub(/[^a-z0-9_ -]/, "", text)
        gsub(/ /, "-", text)
        print text (count[text] ? "-" count[text] : "")
        count[text]++
    }' "$1"
}

# Prints "line target" for each link of the file $1.
list_links()
{
    awk '
    /^ *```/ { in_code = !in_code; next }
    in_code { next }
    {
        rest = $0
        gsub(/`[^`]*`/, "", rest)
        while (match(rest, /\]\([^() ]+\)/)) {
            print NR, substr(rest, RSTART + 2, RLENGTH - 3)
            rest = substr(rest, RSTART + RLENGTH)
        }
    }' "$1"
}

# Prints "line path" for each path in backquotes of the file $1.
list_paths()
{
    awk '
    /^ *```/ { in_code = !in_code; next }
    in_code { next }
    {
        rest = $0
        while (match(rest, /`(src|swap|tiers|kernels|tests|perf|configs)\/[A-Za-z0-9_.\/-]*`/)) {
            print NR, substr(rest, RSTART + 1, RLENGTH - 2)
            rest = substr(rest, RSTART + RLENGTH)
        }
    }' "$1"
}

# Prints one line for each broken link of the tree $1; exit 1 if there is one.
check_tree()
{
    root=$1
    broken=$(list_documents "$root" | LC_ALL=C sort -u | while read -r document; do
        [ -f "$root/$document" ] || continue
        list_links "$root/$document" | while read -r line target; do
            case $target in
            *://* | mailto:*) continue ;;
            esac
            path=${target%%#*}
            file=$root/$document
            [ -z "$path" ] || file=$root/$(dirname "$document")/$path
            if [ ! -e "$file" ]; then
                echo "$document:$line: $target: there is no such file"
            elif [ "$target" != "$path" ] && ! list_anchors "$file" | grep -qxF -- "${target#*#}"; then
                echo "$document:$line: $target: there is no such heading"
            fi
        done
        [ "$document" = CHANGELOG.md ] || list_paths "$root/$document" | while read -r line path; do
            [ -e "$root/$path" ] || echo "$document:$line: $path: there is no such file"
        done
    done)
    [ -z "$broken" ] && return 0
    echo "$broken"
    return 1
}

self_test()
{
    scratch=$(mktemp -d) || exit 2
    trap 'rm -rf "$scratch"' EXIT
    mkdir "$scratch/folder"
    # shellcheck disable=SC2016
    printf '# Title\n\n## Units, parts & `keys`\n\n[ok](folder/other.md#a-heading) [ok](#units-parts--keys)\n' >"$scratch/one.md"
    # shellcheck disable=SC2016
    printf '# A heading\n\n[ok](../one.md) `[code](gone)`\n\n```\n[code](gone.md)\n```\n' >"$scratch/folder/other.md"
    check_tree "$scratch" || { echo "self-test: right links were refused"; exit 1; }
    # shellcheck disable=SC2016
    for link in '[gone](gone.md)' '[gone](folder/one.md)' '[gone](folder/other.md#title)' '[gone](#no-heading)' \
        '`src/gone.c`'; do
        printf '%s\n' "$link" >"$scratch/broken.md"
        if check_tree "$scratch" >/dev/null; then
            echo "self-test: the broken link $link was not found"
            exit 1
        fi
    done
}

case ${1:?use: check_links.sh ROOT or --self-test} in
--self-test) self_test ;;
*) check_tree "$1" ;;
esac
