#!/bin/sh
# Checks the quickstart's baseline against losses known by hand: check_bigram.sh PROGRAM
set -u
. "$(dirname "$0")/lib.sh"
bigram=$(program "${1:?use: check_bigram.sh PROGRAM}") || exit 2
make_scratch check_bigram

# 20000 bytes of "ab": after a comes b and after b comes a, almost surely.
awk 'BEGIN { for (i = 0; i < 10000; i++) printf "ab" }' >"$scratch/ab"
# Bits of a random generator as letters: a letter says nothing about the next one, so ln 2 = 0.6931 nats.
awk 'BEGIN { x = 12345; for (i = 0; i < 40000; i++) { x = (x * 1103 + 12345) % 1048583
             printf "%s", (x > 524291) ? "a" : "b" } }' >"$scratch/coin"
# Bytes that the text does not contain: each costs about ln 20256 = 9.9 after an unseen context.
printf 'zzzzzzzz' >"$scratch/foreign"

expect() # NAME TRAIN HELDOUT LOW HIGH
{
    call "$bigram" "$scratch/$2" "$scratch/$3"
    exits 0 "$1"
    awk -v low="$4" -v high="$5" '{ exit !($1 >= low && $1 <= high) }' "$scratch/out" ||
        fail "$1: expected a loss of $4 to $5"
}
expect determined ab ab 0 0.0020
expect coin coin coin 0.6900 0.6935
expect foreign ab foreign 9.8 10.0

call "$bigram" "$scratch/ab" "$scratch/none"
[ $status -ne 0 ] || fail "a missing file was accepted"
grep -q "cannot open .*none" "$scratch/err" || fail "a missing file is not named"
finish texts
