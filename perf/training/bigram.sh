#!/bin/sh
# The loss of a bigram model of bytes, as a baseline for a trained model: bigram.sh TRAIN HELDOUT
#
# Counts pairs of neighbouring bytes in TRAIN and prints the mean of -ln p(byte | byte before) over HELDOUT, in nats
# per byte, with four digits. A context's counts are smoothed towards the frequencies of the bytes with the weight of
# one observation, and those frequencies by one observation of each byte, so that no probability is 0.
set -eu
LC_ALL=C
export LC_ALL
train=${1:?use: bigram.sh TRAIN HELDOUT} heldout=${2:?use: bigram.sh TRAIN HELDOUT}
for file in "$train" "$heldout"; do
    [ -f "$file" ] && [ -r "$file" ] || { echo "bigram.sh: cannot open $file" >&2; exit 2; }
done
{ od -An -v -tu1 "$train"; echo fitted; od -An -v -tu1 "$heldout"; } | awk '
    BEGIN { before = -1 }
    $1 == "fitted" { is_fitted = 1; before = -1; next }
    {
        for (i = 1; i <= NF; i++) {
            byte = $i
            if (!is_fitted) {
                bytes[byte]++
                total++
            }
            if (!is_fitted && before >= 0) {
                pairs[before, byte]++
                contexts[before]++
            } else if (before >= 0) {
                alone = (bytes[byte] + 1) / (total + 256)
                sum -= log((pairs[before, byte] + alone) / (contexts[before] + 1))
                count++
            }
            before = byte
        }
    }
    END {
        if (total < 2 || count == 0) {
            print "bigram.sh: both files must have two bytes at least" >"/dev/stderr"
            exit 2
        }
        printf "%.4f\n", sum / count
    }'
