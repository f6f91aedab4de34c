#!/bin/sh
# Checks the report of a small run, also in a browser.
#
#   check_report.sh SLUICE page       trains a few steps with states on nvme and makes the page: it must
#                                     have every part and ask for nothing from a network
#   check_report.sh SLUICE browser    opens that page in headless Chromium, light and dark, wide and as
#                                     narrow as a phone: every picture is drawn, without errors or messages on the
#                                     console; exit 77 if there is no chromium in PATH
set -u
use='use: check_report.sh SLUICE page|browser'
. "$(dirname "$0")/lib.sh"
sluice=$(program "${1:?$use}") || exit 2
what=${2:?$use}
case $what in
page) ;;
browser)
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
        skip "there is no chromium in PATH"
    ;;
*) echo "$use" >&2; exit 2 ;;
esac
make_scratch check_report

write_text "$scratch/text.txt" 2000
mkdir "$scratch/nvme"
cat >"$scratch/job.json" <<JOB
{
  "model": {"family": "llama", "num_layers": 2, "hidden_size": 64, "num_heads": 2, "num_kv_heads": 2,
            "ffn_size": 128, "vocab_size": 256, "seq_length": 32, "tie_embeddings": true},
  "data": {"train": ["$scratch/text.txt"], "valid": ["$scratch/text.txt"], "tokenizer": "bytes", "seed": 1},
  "run": {"dir": "$scratch/run", "steps": 6, "seed": 1, "eval_every": 3, "eval_batches": 1},
  "device": {"backend": "cpu"},
  "tiers": {"device": {"budget": "8MiB"}, "host": {"budget": "16MiB"},
            "nvme": [{"path": "$scratch/nvme", "budget": "256MiB"}],
            "place": {"params": "nvme", "grads": "host", "optimizer": "nvme", "activations": "nvme"}},
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 3}
}
JOB
call "$sluice" train "$scratch/job.json" --quiet
exits 0 "the run"
page=$scratch/run/report.html
call "$sluice" report "$scratch/run"
exits 0 "sluice report"
[ "$(cat "$scratch/out")" = "$page" ] || fail "sluice report does not print the page's path"
[ -s "$page" ] || stop "no page"
call "$sluice" report "$scratch/run" --output "$scratch/no/such.html"
exits 2 "--output in a folder that is not there"
says err "folder is not there" "--output in a folder that is not there"
mkdir "$scratch/damaged"
echo '{"model":' >"$scratch/damaged/plan.json"
call "$sluice" report "$scratch/damaged"
exits 2 "a directory with a damaged plan alone"
says err "plan.json is damaged" "a directory with a damaged plan alone"

if [ "$what" = page ]; then
    for part in loss speed timeline stalls lanes memory placement reasons; do
        grep -q "<section id=\"$part\">" "$page" || fail "no section $part"
    done
    for text in '6 of 6' 'held out:' ': measured ' '; predicted: ' '<td>16.0 MiB</td>' 'Lanes of the step' 'class="home nvme">nvme' 'over the whole step'; do
        grep -qF -- "$text" "$page" || fail "the page does not say '$text'"
    done
    if grep -qF 'Not in this page' "$page"; then
        fail "something is missing: $(grep -F '<li>' "$page" | head -n 3)"
    fi
    if grep -qiE 'https?://|@import|<link|<img|<iframe|url\(' "$page"; then
        fail "the page loads something"
    fi
fi

# This copy of the page writes the result into its own text after it is drawn, so that the check can read it.
if [ "$what" = browser ]; then
    awk '/<script type="application\/json"/ {
             print "<script>window.problems = [];"
             print "addEventListener(\"error\", (e) => problems.push(e.message));"
             print "addEventListener(\"securitypolicyviolation\", (e) => problems.push(e.violatedDirective));"
             print "for (const name of [\"log\", \"warn\", \"error\"]) console[name] = (...a) => problems.push(a.join());"
             print "</script>"
         }
         /<\/body>/ {
             print "<script>setTimeout(() => {" # frames need not come in a window that nobody sees
             print "const pictures = [...document.querySelectorAll(\"figure\")];"
             print "const drawn = pictures.filter((f) => !f.hidden && f.querySelector(\"svg, canvas\")).length;"
             print "const root = document.documentElement, wide = root.scrollWidth > root.clientWidth;"
             print "const dark = getComputedStyle(document.body).backgroundColor;"
             print "document.body.append(`RESULT drawn=${drawn} of=${pictures.length} wide=${wide} colour=${dark} problems=[${problems.join(\"; \")}] END`);"
             print "}, 300);</script>"
         }
         {print}' "$page" >"$scratch/watched.html"
    for width in 1280 500; do
        for scheme in 0 1; do # as Chromium numbers them: dark, light
            result=$("$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" \
                --window-size="$width,900" --blink-settings="preferredColorScheme=$scheme" \
                --virtual-time-budget=10000 --dump-dom "file://$scratch/watched.html" 2>"$scratch/browser" |
                grep -o 'RESULT drawn=[0-9].* END' | tail -n 1)
            echo "width $width, scheme $scheme: ${result:-nothing}"
            [ -n "$result" ] || tail -n 5 "$scratch/browser"
            case $scheme in
            0) colour='rgb(17, 22, 28)' ;;
            *) colour='rgb(246, 247, 249)' ;;
            esac
            [ "$result" = "RESULT drawn=5 of=5 wide=false colour=$colour problems=[] END" ] ||
                fail "width $width, scheme $scheme"
        done
    done
fi
finish commands
