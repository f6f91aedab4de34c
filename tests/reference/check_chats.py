#!/usr/bin/env python3
"""Compares the conversations that Sluice writes with those of transformers' apply_chat_template.

    check_chats.py CHAT_TOOL TEMPLATE...     templates: chat_template.jinja files, or tokenizer_config.json

Both get each template; Sluice gets it as a file beside a tokenizer (data.chat_template auto), and finds a form or
refuses. The form must give exactly the text of transformers for every conversation that transformers can write. A
refusal is listed and is no failure. Published templates are in PyPI packages such as trl and axolotl.
Needs transformers and jinja2; exit 77 without them."""
import json
import os
import subprocess
import sys
import tempfile

try:
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError:
    sys.exit(77)

TURNS = [("user", "Hello,  you!"), ("assistant", " Hi. \n"), ("user", "\nWhat?\n\n"), ("assistant", "That."),
         ("user", "\u3000wide\u2003"), ("assistant", "caf\u00e9 \U0001f469\u200d\U0001f680\n\n")]
SYSTEM = ("system", " Be brief. ")
THOUGHT = ("assistant", "<think>\nBecause\n of it.\n</think>\n\nSo.")


def conversations():
    for count in (1, 2, 3, 4, 6):
        yield [TURNS[0]] if count == 1 else TURNS[:count]
        yield [SYSTEM] + TURNS[:count]
    yield TURNS[:1] + [THOUGHT] + TURNS[2:4]
    yield TURNS[:3] + [THOUGHT]


def expected(template, messages, begin, end):
    """The text and, of a template that marks them, the assistant's characters; None where it raises."""
    marks = "generation %}" in template and "endgeneration" in template
    try:
        out = render_jinja_template(conversations=[messages], chat_template=template, bos_token=begin, eos_token=end,
                                    date_string="26 Jul 2024", return_assistant_tokens_mask=marks)
    except Exception:
        return None, None
    return out[0][0], out[1][0] if marks else None


def same_answers(answer, marked):
    """Whether the spans are the template's, but for newlines: one may have that of the header, or that behind the
    token that ends the answer, as well."""
    text = answer["text"].encode()
    ours = [tuple(len(text[:at].decode()) for at in span) for span in answer["answers"]]
    return len(ours) == len(marked) and all(
        answer["text"][b[0]:a[0]] in ("", "\n") and answer["text"][a[1]:b[1]] in ("", "\n")
        and b[0] <= a[0] and a[1] <= b[1] for a, b in zip(ours, marked))


def template_of(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".json"):
        text = json.loads(text)["chat_template"]
    return text


def main():
    tool, paths = sys.argv[1], sys.argv[2:]
    asked = [[{"role": role, "content": text} for role, text in turns] for turns in conversations()]
    failed, spans, same, refused = 0, 0, [], []
    for path in paths:
        template = template_of(path)
        begin, end = "<|begin_of_text|>" if "header_id" in template else "<s>", "</s>"
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
                file.write(template)
            lines = subprocess.run([tool, "auto", folder, begin, end], text=True, capture_output=True, check=True,
                                   input="".join(json.dumps(messages) + "\n" for messages in asked)).stdout
        answers = [json.loads(line) for line in lines.splitlines()]
        name = os.path.basename(path)
        if all("error" in answer for answer in answers):
            refused.append(name)
            continue
        differs = 0
        for messages, answer in zip(asked, answers):
            wanted, marked = expected(template, messages, begin, end)
            if "today's date" in answer.get("error", ""):
                continue  # such a message is refused
            is_left_out = "mistral" in str(answer.get("form")) and messages[0]["role"] == "system"
            if wanted is None or wanted == answer.get("text") or (is_left_out and messages[-1]["role"] == "assistant"):
                spans += marked is not None
                if marked is not None and not same_answers(answer, marked):
                    print(f"{name}: answers {answer['answers']}, marked {marked} in {wanted!r}")
                    failed += 1
                continue  # mistral: chat.h says why
            if differs == 0:
                print(f"{name} ({answer.get('form')}):\n  transformers {wanted!r}\n  sluice       "
                      f"{answer.get('text', answer.get('error'))!r}")
            differs += 1
        failed += differs > 0
        if differs == 0:
            same.append(f"{name} as {answers[0].get('form')}")
    print(f"{len(same)} templates to the byte: {', '.join(same)}")
    print(f"answers as templates mark them in {spans} conversations")
    print(f"{len(refused)} refused: {', '.join(refused)}")
    print(f"{failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
