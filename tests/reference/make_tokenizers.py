"""Trains small tokenizers that are not byte-level, in the forms of published ones. For check_tokenizer.py.

Needs tokenizers, and sentencepiece for those that are made of its models, as published ones are."""
import copy, json, os, random, tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BYTES = ['<0x%02X>' % b for b in range(256)]
FALLBACK = {'type': 'Sequence', 'decoders': [
    {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '}, {'type': 'ByteFallback'}, {'type': 'Fuse'},
    {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}


def save(document, path):
    with open(path, 'w') as file:
        json.dump(document, file)


def bert(lines, out):
    for name, most, options in (('bert_uncased', 100, {}), ('bert_cased', 100, {'lowercase': False}),
                                ('bert_strip', 100, {'lowercase': False, 'strip_accents': True}),
                                ('bert_raw', 20, {'clean_text': False, 'handle_chinese_chars': False,
                                                  'strip_accents': False})):
        made = Tokenizer(models.WordPiece(unk_token='[UNK]', max_input_chars_per_word=most))
        made.normalizer = normalizers.BertNormalizer(**options)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
        made.train_from_iterator(lines, trainers.WordPieceTrainer(
            vocab_size=12000, special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'], show_progress=False))
        made.post_processor = processors.BertProcessing(*((token, made.token_to_id(token)) for token in ('[SEP]', '[CLS]')))
        made.save(out(name))


def unigram(lines, out):
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(lines[:60000], trainers.UnigramTrainer(
        vocab_size=8000, unk_token='<unk>', special_tokens=['<pad>', '</s>', '<unk>'] + BYTES, show_progress=False))
    document = json.loads(made.to_str())
    document['added_tokens'] = [a for a in document['added_tokens'] if a['content'] not in BYTES]
    fallback = copy.deepcopy(document)
    fallback['model']['byte_fallback'] = True
    fallback['decoder'] = FALLBACK
    save(fallback, out('unigram_fallback'))
    document['normalizer'] = {'type': 'Sequence', 'normalizers': [
        {'type': 'Replace', 'pattern': {'String': '``'}, 'content': '"'}, {'type': 'NFKD'}, {'type': 'StripAccents'},
        {'type': 'Lowercase'}, {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '}]}
    document['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': [
        {'type': 'WhitespaceSplit'}, {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always'}]}
    save(document, out('unigram_albert'))


def train_pieces(lines, **options):
    """The pieces of a SentencePiece model, and its table of characters."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, 'm')
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for line in lines if len(line) < 400][:60000]), model_prefix=prefix,
            vocab_size=8000, hard_vocab_limit=False, minloglevel=2, split_digits=True, **options)
        proto = sentencepiece_model_pb2.ModelProto()
        with open(prefix + '.model', 'rb') as file:
            proto.ParseFromString(file.read())
    return proto.pieces, proto.normalizer_spec.precompiled_charsmap


def t5(lines, out):
    for name, rule in ('t5', 'nmt_nfkc'), ('t5_folded', 'nmt_nfkc_cf'):
        pieces, table = train_pieces(lines, model_type='unigram', normalization_rule_name=rule)
        made = Tokenizer(models.Unigram([(p.piece, p.score) for p in pieces], 0, False))
        steps = [normalizers.Precompiled(table), normalizers.Replace(Regex(' {2,}'), '▁')]
        if name != 't5':
            steps.insert(1, normalizers.Strip(left=False, right=True))
        made.normalizer = normalizers.Sequence(steps)
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='always' if name == 't5' else 'first',
                                                      split=name == 't5')
        made.decoder = decoders.Metaspace()
        made.post_processor = processors.TemplateProcessing(single='$A </s>', special_tokens=[('</s>', 2)])
        made.add_special_tokens(['</s>', '<unk>', '<extra_id_0>'])
        made.save(out(name))


def merges_of(pieces):
    """Every way in which a piece is two others is a merge; the most probable piece comes first."""
    ids = {p.piece: i for i, p in enumerate(pieces)}
    ways = [(-p.score, ids[p.piece[:i]], ids[p.piece[i:]]) for p in pieces if p.type == 1
            for i in range(1, len(p.piece)) if p.piece[:i] in ids and p.piece[i:] in ids]
    return ids, [(pieces[a].piece, pieces[b].piece) for _, a, b in sorted(ways)]


def save_bpe(name, pieces, marks, out):
    """With marks as Gemma has it, else as Llama 2."""
    made = Tokenizer(models.BPE(*merges_of(pieces), fuse_unk=True, byte_fallback=True, unk_token='<unk>'))
    made.normalizer = normalizers.Replace(' ', '▁')
    if marks:
        made.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
        made.add_tokens([AddedToken(token, normalized=False) for token in marks + ['<start_of_turn>']])
    else:
        made.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
        made.post_processor = processors.TemplateProcessing(single='<s> $A', special_tokens=[('<s>', 1)])
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ('<unk>', '<s>', '</s>')])
    document = dict(json.loads(made.to_str()), decoder=FALLBACK)
    save(document, out(name))
    return document


def bpe(lines, out):
    marks = ['\n', '\n\n', '▁▁', '▁▁▁▁']
    options = dict(model_type='bpe', byte_fallback=True, normalization_rule_name='identity',
                   remove_extra_whitespaces=False, allow_whitespace_only_pieces=True)
    save_bpe('gemma', train_pieces(lines, add_dummy_prefix=False, user_defined_symbols=marks, **options)[0], marks, out)
    vary_bpe(save_bpe('llama2', train_pieces(lines, **options)[0], [], out), out)


def published_bpe(name, data, out):
    """A published SentencePiece model of the kind of Llama 2's."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    save_bpe(name, proto.pieces, [], out)


def vary_bpe(document, out):
    metaspace = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'first', 'split': False}
    save(dict(document, normalizer=None, pre_tokenizer=metaspace), out('llama2_first'))
    save(dict(document, normalizer=None, pre_tokenizer={'type': 'Whitespace'}, decoder=None), out('bpe_whitespace'))
    for name, changed in (('llama2_unknown', {}), ('llama2_unknown_each', {'fuse_unk': False}),
                          ('llama2_drops', {'unk_token': None})):
        save(dict(document, model=dict(document['model'], byte_fallback=False, **changed)), out(name))


def make(texts, out):
    """`texts` to train on; `out` gives the path for a name."""
    lines = [line for text in texts for line in text.split('\n') if line.strip()]
    random.Random(5).shuffle(lines)
    for kind in bert, unigram, t5, bpe:
        kind(lines, out)
