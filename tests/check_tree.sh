#!/bin/sh
# Checks the repository's shape: check_tree.sh ROOT
#
#  - the top level holds only what the design lists;
#  - no tracked file names a path of somebody's machine.
# Looks at what git tracks; skipped (77) outside of a clone. Exit 1: findings.
set -u
. "$(dirname "$0")/lib.sh"
cd "${1:?use: check_tree.sh ROOT}" || exit 2

files=$(git -c safe.directory='*' ls-files 2>/dev/null | LC_ALL=C sort)
[ -n "$files" ] || skip "this is no git clone"

for entry in $(printf '%s\n' "$files" | cut -d/ -f1 | uniq); do
    case $entry in
    CMakeLists.txt | CMakePresets.json | src | tiers | swap | kernels | configs | tests | perf) ;;
    README.md | CONTRIBUTING.md | CHANGELOG.md | LICENSE | quickstart.sh | test.sh) ;;
    .ci | .clang-format | .clang-tidy | .gitignore | .gitattributes | .editorconfig | .github) ;;
    *) fail "$entry: not a name of the fixed top level" ;;
    esac
done

# The brackets keep this file from naming them itself.
machine_paths='(^|[^A-Za-z0-9_.$}-])/(wor[k]|hom[e]/[a-z]+|roo[t]|User[s]/[A-Za-z]+|mn[t]/c)/'
for file in $files; do
    count=$((count + 1))
    [ -f "$file" ] || continue
    hits=$(grep -nIE "$machine_paths" "$file" | head -n 3)
    [ -z "$hits" ] || fail "$file: names a path of one machine: $hits"
done
finish files
