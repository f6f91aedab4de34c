#!/usr/bin/env python3
"""Trains a byte-level BPE on the beginning of a text, so that no published tokenizer is needed.

    perf/training/make_tokenizer.py FOLDER MERGES TEXT      makes FOLDER/tokenizer.json

It has GPT-2's pattern, the 256 bytes, and merges by the usual rule: the most frequent pair first, and the lowest ids among
equals. The tokenizers library loads it too. Only the WORDS_MAX most frequent words of the first TEXT_BYTES count.
"""

import collections
import heapq
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import fail, main_of

WORDS_MAX, TEXT_BYTES = 16384, 4 << 20
# GPT-2's, in the classes that the standard library knows.
PATTERN = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def alphabet():
    """Returns the characters that stand for the bytes in a tokenizer.json."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) if byte in printed else chr(256 + others.index(byte)) for byte in range(256)]


def pairs_of(symbols):
    return zip(symbols, symbols[1:])


def joined(symbols, pair, made):
    """Returns the symbols with each `pair` as the symbol `made`."""
    out, at = [], 0
    while at < len(symbols):
        is_pair = tuple(symbols[at:at + 2]) == pair
        out.append(made if is_pair else symbols[at])
        at += 1 + is_pair
    return out


def train(words, most):
    """words: [(symbols, count)]. Returns the merged pairs in order, at most `most`; merge i makes the symbol 256 + i."""
    counts, places, merges = collections.Counter(), collections.defaultdict(set), []
    for place, (symbols, count) in enumerate(words):
        for pair in pairs_of(symbols):
            counts[pair] += count
            places[pair].add(place)
    queue = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(queue)
    while queue and len(merges) < most:
        count, best = heapq.heappop(queue)
        if -count != counts[best]:  # it has become rarer since
            heapq.heappush(queue, (-counts[best], best))
            continue
        if counts[best] < 2:
            break
        made, fresh = 256 + len(merges), set()
        merges.append(best)
        for place in places.pop(best):
            symbols, count = words[place]
            for pair in pairs_of(symbols):
                counts[pair] -= count
            words[place] = joined(symbols, best, made), count
            for pair in pairs_of(words[place][0]):
                counts[pair] += count
                places[pair].add(place)
                if made in pair:
                    fresh.add(pair)
        for pair in fresh:
            heapq.heappush(queue, (-counts[pair], pair))
    return merges


def write(path, merges):
    texts = alphabet()
    for left, right in merges:
        texts.append(texts[left] + texts[right])
    end = {"id": len(texts), "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {text: number for number, text in enumerate(texts + [end["content"]])},
             "merges": ["%s %s" % (texts[left], texts[right]) for left, right in merges]}
    with open(path, "w") as out:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
                   "pre_tokenizer": bytes_of, "post_processor": None, "decoder": bytes_of, "model": model}, out)


def make(folder, merges, text):
    """Makes folder/tokenizer.json of at most so many merges from the file `text`."""
    with open(text, "rb") as file:
        found = PATTERN.findall(file.read(TEXT_BYTES).decode(errors="ignore"))
    words = [(list(word.encode()), count) for word, count in collections.Counter(found).most_common(WORDS_MAX)]
    write(os.path.join(folder, "tokenizer.json"), train(words, merges))


def main():
    if len(sys.argv) != 4 or not sys.argv[2].isdigit() or not 1 <= int(sys.argv[2]) <= 60000:
        fail("use: make_tokenizer.py FOLDER MERGES TEXT, MERGES 1 to 60000", 2)
    make(sys.argv[1], int(sys.argv[2]), sys.argv[3])


if __name__ == "__main__":
    main_of(main)
