#!/usr/bin/env python3
"""Compares the tokens that Sluice makes of JSON records, and which of them count as targets, with those of
transformers: check_records.py SLUICE

It makes a small tokenizer and data sets of each kind (messages, sharegpt, alpaca, prompt_completion, text), one record
a line and in an array. `sluice train` makes them into tokens. Here the tokens come from apply_chat_template with the
assistant's mask, or from the tokenizer: a prompt alone, and the prompt with its answer and the end token, as TRL and
Axolotl make them. Needs transformers, tokenizers and jinja2; exit 77 without them."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    import jinja2  # noqa: F401
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast
except ImportError:
    sys.exit(77)

# The template of ChatML, with the marks by which transformers finds the assistant's tokens.
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}"
            "{% generation %}{{message['content'] + '<|im_end|>'}}{% endgeneration %}{{'\n'}}{% else %}"
            "{{message['content'] + '<|im_end|>' + '\n'}}{% endif %}{% endfor %}")
PLAIN = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
         "{% endfor %}")
WORDS = "the water runs down a hill, and nobody asks why 17 caf\u00e9s are closed \U0001f600 \u4eca\u65e5".split(" ")


def make_tokenizer(folder, with_template):
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"] + (["<|im_start|>", "<|im_end|>"] if with_template else [])
    library.train_from_iterator([" ".join(random.choices(WORDS, k=40)) for _ in range(200)], trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>",
                                        model_max_length=4096)
    tokenizer.chat_template = PLAIN if with_template else None
    tokenizer.save_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def say():
    return " ".join(random.choices(WORDS, k=random.randrange(1, 12)))


def turns(count, roles=("user", "assistant"), names=("role", "content")):
    return [{names[0]: roles[i % 2], names[1]: say()} for i in range(count)]


def chat(tokenizer, messages, first=0):
    """Ids and marks of a conversation; answers before message `first` do not count."""
    made = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    ids, marks = list(made["input_ids"]), list(made["assistant_masks"])
    if first:
        before = tokenizer.apply_chat_template(messages[:first], tokenize=True, return_dict=True)["input_ids"]
        marks[:len(before)] = [0] * len(before)
    return ids, marks


def answered(tokenizer, prompt, answer):
    before, ids = tokenizer(prompt)["input_ids"], tokenizer(prompt + answer + tokenizer.eos_token)["input_ids"]
    assert ids[:len(before)] == before, (prompt, answer)
    return ids, [0] * len(before) + [1] * (len(ids) - len(before))


ALPACA = ("Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
          "### Instruction:\n{instruction}\n\n### Response:\n")
ALPACA_INPUT = ("Below is an instruction that describes a task, paired with an input that provides further context. Write a "
                "response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n"
                "{input}\n\n### Response:\n")


def alpaca_records():
    return [{"instruction": say(), "input": say() if i % 2 else "", "output": say()} for i in range(20)]


def cases(chatty, base):
    records = [{"messages": ([{"role": "system", "content": say()}] if i % 3 == 0 else []) + turns(2 + 2 * (i % 3))}
               for i in range(20)]
    yield "messages", chatty, records, [chat(chatty, r["messages"]) for r in records]
    records = [{"conversations": turns(4, ("human", "gpt"), ("from", "value"))} for _ in range(20)]
    yield "sharegpt", chatty, records, [chat(chatty, [
        {"role": {"human": "user", "gpt": "assistant"}[t["from"]], "content": t["value"]} for t in r["conversations"]])
        for r in records]
    records = alpaca_records()
    yield "alpaca in a chat form", chatty, records, [chat(chatty, [
        {"role": "user", "content": r["instruction"] + ("\n" + r["input"] if r["input"] else "")},
        {"role": "assistant", "content": r["output"]}]) for r in records]
    records = alpaca_records()
    yield "alpaca", base, records, [answered(base, (ALPACA_INPUT if r["input"] else ALPACA).format(**r), r["output"])
                                    for r in records]
    records = [{"prompt": say(), "completion": " " + say()} for _ in range(20)]
    yield "prompt_completion", base, records, [answered(base, r["prompt"], r["completion"]) for r in records]
    records = [{"prompt": turns(3), "completion": turns(1, ("assistant", ""))} for _ in range(20)]
    yield "prompt_completion of messages", chatty, records, [chat(chatty, r["prompt"] + r["completion"], 3) for r in records]
    records = [{"text": say()} for _ in range(20)]
    yield "text", base, records, [(ids, [1] * len(ids)) for ids in
                                  (base(r["text"] + base.eos_token)["input_ids"] for r in records)]


def prompt_ids(sluice, run, prompt):
    """The ids of a prompt that `generate --chat` gives to the model of a run."""
    done = subprocess.run([sluice, "generate", run, "--chat", "--prompt", prompt, "--tokens", "1", "--json", "--set",
                           "data.chat_template=alpaca"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["prompt_ids"]


def made_by(sluice, tokenizer_dir, path, work):
    """The run of one step, and the documents of (ids, marks) in the file that it makes."""
    run = tempfile.mkdtemp(dir=work)
    job = {"model": {"family": "llama", "num_layers": 1, "hidden_size": 32, "num_heads": 2, "ffn_size": 32,
                     "vocab_size": 512, "seq_length": 16}, "train_micro_batch_size_per_gpu": 1,
           "data": {"train": [path], "tokenizer": tokenizer_dir}, "run": {"dir": run, "steps": 1},
           "device": {"backend": "cpu"}, "tiers": {"device": {"budget": "64MiB"}, "host": {"budget": "64MiB"}}}
    with open(work + "/job.json", "w") as file:
        json.dump(job, file)
    done = subprocess.run([sluice, "train", work + "/job.json", "--quiet"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    name, = os.listdir(run + "/data")
    data = open(os.path.join(run, "data", name), "rb").read()
    width, flags = struct.unpack_from("<II", data, 12)
    count, documents = struct.unpack_from("<QQ", data, 32)
    tokens = struct.unpack_from("<%d%s" % (count, "H" if width == 2 else "I"), data, 64)
    ends = struct.unpack_from("<%dQ" % documents, data, 64 + (count * width + 7) // 8 * 8)
    result, begin = [], 0
    for end in ends:
        part = tokens[begin:end]
        result.append(([t & 0x7fffffff for t in part], [int(not (flags & 1 and t >> 31)) for t in part]))
        begin = end
    return run, result


def main():
    random.seed(1)
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        chatty = make_tokenizer(work + "/chatty", True)
        base = make_tokenizer(work + "/base", False)
        for name, tokenizer, records, wanted in cases(chatty, base):
            layouts = {"lines.jsonl": "".join(json.dumps(r) + "\n" for r in records),
                       "array.json": json.dumps(records, indent=2, ensure_ascii=False)}
            for file_name, text in layouts.items():
                path = os.path.join(work, file_name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                run, found = made_by(sys.argv[1], work + ("/chatty" if tokenizer is chatty else "/base"), path, work)
                wrong = [i for i, (a, b) in enumerate(zip(found, wanted)) if (list(a[0]), list(a[1])) != b]
                if wrong or len(found) != len(wanted):
                    failed += 1
                    at = wrong[0] if wrong else 0
                    print(f"{name}, {file_name}: {len(wrong)} of {len(wanted)} differ\n  wanted {wanted[at]}\n"
                          f"  found  {found[at]}")
            if name == "alpaca":
                ids = prompt_ids(sys.argv[1], run, "Why?")
                is_same = ids == base(ALPACA.format(instruction="Why?"))["input_ids"]
                print(f"generate --chat: a prompt of {len(ids)} tokens, {'the same' if is_same else 'which differ'}")
                failed += not is_same
            print(f"{name}: {len(records)} records, {sum(map(len, (w[0] for w in wanted)))} tokens, "
                  f"{sum(sum(w[1]) for w in wanted)} count")
    print(f"{failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
