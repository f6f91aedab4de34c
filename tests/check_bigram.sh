#!/bin/sh
# Checks the quickstart's baseline against losses known by hand: check_bigram.sh PROGRAM
set -eu
program=${1:?use: check_bigram.sh PROGRAM}
scratch=$(mktemp -d ./check_bigram.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

# 20000 bytes of "ab": after a comes b and after b comes a, almost surely.
awk 'BEGIN { for (i = 0; i < 10000; i++) printf "ab" }' >"$scratch/ab"
# A generator's bits as letters: either letter tells nothing about the next, ln 2 = 0.6931 nats.
awk 'BEGIN { x = 12345; for (i = 0; i < 40000; i++) { x = (x * 1103 + 12345) % 1048583
             printf "%s", (x > 524291) ? "a" : "b" } }' >"$scratch/coin"
# Bytes that the text never had: each costs about ln 20256 = 9.9 after an unseen context.
printf 'zzzzzzzz' >"$scratch/foreign"

expect() # NAME TRAIN HELDOUT LOW HIGH
{
    loss=$("$program" "$scratch/$2" "$scratch/$3")
    echo "$1: $loss"
    awk -v x="$loss" -v low="$4" -v high="$5" 'BEGIN { exit !(x >= low && x <= high) }' || {
        echo "$1: expected $4 to $5"
        exit 1
    }
}
expect determined ab ab 0 0.0020
expect coin coin coin 0.6900 0.6935
expect foreign ab foreign 9.8 10.0

if "$program" "$scratch/ab" "$scratch/none" 2>"$scratch/error"; then
    echo "a missing file was accepted"
    exit 1
fi
grep -q "cannot open .*none" "$scratch/error"
