#!/usr/bin/env python3
"""Compares the ids of `sluice data tokenize` with those of the `sentencepiece` package, id for id. Run on demand.

    tests/reference/check_sentencepiece.py --sluice build/release/src/cli/sluice --work DIR [--megabytes N]

Needs sentencepiece, and a sluice that was built with libsentencepiece. Models of both kinds, with and without byte
fallback, are trained here on text of this system: code, manual pages, locale definitions. The same texts and every code point
are compared. Exit status 1 if an id differs.

The package must have the version of the library. If two ways to cut a text have the same score, unigram models of 0.2
choose another one than those of 0.1, mostly in runs of the same character. BPE models do not differ.
"""
import argparse, array, glob, gzip, json, os, random, struct, subprocess, sys

import sentencepiece


def documents(limit):
    random.seed(7)
    result, taken = [], 0
    paths = [path for pattern in ('/usr/lib/python3*/**/*.py', '/usr/share/man/**/*.gz', '/usr/share/i18n/locales/*',
                                  '/usr/include/**/*.h') for path in glob.glob(pattern, recursive=True)]
    paths.sort()
    random.shuffle(paths)
    for path in paths:
        try:
            data = (gzip.open if path.endswith('.gz') else open)(path, 'rb').read()
        except OSError:
            continue
        result += [data[i:i + 20000].decode('utf-8', 'replace') for i in range(0, len(data), 20000)]
        taken += len(data)
        if taken > limit:
            break
    every = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    random.shuffle(every)
    return result + [''.join(map(chr, every[i:i + 2000])) for i in range(0, len(every), 2000)]


def read_pair(path):
    """A list of ids for each document of Megatron's pair."""
    index = open(path + '.idx', 'rb').read()
    kind, = struct.unpack_from('<B', index, 17)
    count, = struct.unpack_from('<Q', index, 18)
    ids = array.array('H' if kind == 8 else 'i')
    ids.frombytes(open(path + '.bin', 'rb').read())
    at, result = 0, []
    for length in struct.unpack_from('<%di' % count, index, 34):
        result.append(ids[at:at + length].tolist())
        at += length
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--sluice', required=True)
    parser.add_argument('--work', required=True)
    parser.add_argument('--megabytes', type=float, default=10)
    args = parser.parse_args()
    texts = documents(args.megabytes * 1e6)
    lines = os.path.join(args.work, 'texts.jsonl')
    with open(lines, 'w') as file:
        file.writelines(json.dumps({'text': text}) + '\n' for text in texts)
    print('%d texts, %.1f MB' % (len(texts), sum(len(t.encode()) for t in texts) / 1e6), flush=True)
    sample = [line for text in texts[::7] for line in text.split('\n') if 0 < len(line) < 400][:20000]
    wrong = 0
    for kind, fallback in ('unigram', True), ('unigram', False), ('bpe', True), ('bpe', False):
        prefix = os.path.join(args.work, '%s_%d' % (kind, fallback))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample), model_prefix=prefix, model_type=kind, vocab_size=4000,
            byte_fallback=fallback, hard_vocab_limit=False, minloglevel=2, user_defined_symbols=['<sep>'])
        library = sentencepiece.SentencePieceProcessor(model_file=prefix + '.model')
        wanted = [ids for ids in library.encode(texts) if ids]
        output = os.path.join(args.work, 'ids')
        done = subprocess.run([args.sluice, 'data', 'tokenize', lines, '--tokenizer', prefix + '.model', '--out', output,
                               '--no-document-end', '--quiet'], capture_output=True, text=True)
        if done.returncode:
            sys.exit('%s: %s' % (prefix, done.stderr.strip()))
        found = read_pair(output)
        different = sum(a != b for a, b in zip(found, wanted)) + abs(len(found) - len(wanted))
        for number, (a, b) in enumerate(zip(found, wanted)):
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                print('  text %d, id %d: library %s, here %s' % (number, at, b[at:at + 6], a[at:at + 6]))
                break
        wrong += different
        print('%-10s byte fallback %d: %s, %d texts, %d ids' % (
            kind, fallback, 'DIFFERS in %d' % different if different else 'same', len(found), sum(map(len, wanted))),
            flush=True)
    return wrong != 0


if __name__ == '__main__':
    sys.exit(main())
