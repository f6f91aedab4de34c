/* Wrong job files: each with its code and what the message must name (place, key, value, rule or
 * nearest name). A case without text uses the small right job, so that the --set alone is wrong. */
#include "tests/config/test_config_common.h"

#include <stdbool.h>

#include "config/config_internal.h"

enum { SAYS_MAX = 4 };

struct wrong {
    const char *job;            /* a job file, or else a --set of the small job */
    const char *says[SAYS_MAX]; /* each must be in the message */
    const char *set;            /* of the job file, or NULL */
};

static const struct wrong cases[] = {
    /* syntax, with its place */
    {"{\n  'run': {'dir' 'x'}\n}", {"job.json:2:", "':' expected"}},
    {"{\n  // \xc3\xa4\xc3\xb6\n  /* \xc3\xa4 */ 'run': tru }", {"job.json:3:20: "}},
    {"{ 'run': {} ", {"job.json:1:", "end of file"}},
    {"{\n /* never ends", {"job.json:2:2:", "*/"}},
    {"{'a': [1,,2]}", {"job.json:1:"}},
    {"{'a': [,]}", {"job.json:1:"}},
    {"{'a': 'x\ny'}", {"job.json:1:"}},
    {"{'a': 1} x", {"job.json:1:", "end of file expected"}},
    {"", {"job.json:"}},
    {"[1, 2]", {"job.json: ", "must be an object"}},
    {"{'run': {'steps': 1, 'steps': 2}}", {"job.json:1:", "duplicate", "steps"}},
    {"{'gradient_clipping': 1e999}", {"job.json:1:", "real number overflow"}},
    /* unknown keys, with the nearest */
    {SMALL_WITH("'modle': {},"), {"\"modle\"", "nearest", "\"model\""}},
    {SMALL_WITH("'dta': {},"), {"\"dta\"", "nearest", "\"data\""}},
    {SMALL_WITH("'Tier': {},"), {"\"Tier\"", "nearest", "\"tiers\""}},
    {SMALL_WITH("'optimizer': {'params': {'beta': [0, 0]}},"),
     {"optimizer.params.beta: ", "\"betas\""}},
    {SMALL_WITH("'optimizer': {'lr': 1},"), {"unknown key \"lr\"", "optimizer.params.lr"}},
    /* names and words of other programs, before names that are spelt alike */
    {SMALL_WITH("'optimizer': {'params': {'learning_rate': 1}},"),
     {"\"learning_rate\"", "called optimizer.params.lr"}},
    {SMALL_WITH("'tiers': {'gpu': {}},"), {"\"gpu\"", "called tiers.device"}},
    {SMALL_WITH("'tiers': {'cpu': {}},"), {"\"cpu\"", "called tiers.host"}},
    {"tiers.place.optimizer=cpu", {"\"cpu\" is called \"host\" here"}},
    {"tiers.place.params=gpu", {"\"gpu\" is called \"device\" here"}},
    {"device.backend=gpu", {"\"gpu\" is called \"cuda\" here", "auto|cpu|cuda"}},
    {"zero_optimization.offload_param.device=host", {"\"host\" is called \"cpu\" here"}},
    {"run.fresh=True", {"run.fresh", "\"True\"", "write true"}},
    {"run.steps='5'", {"run.steps", "\"5\"", "without quotes"}},
    {"{'fp16': {'enabled': True}}", {"job.json:1:", "True", "JSON writes true"}},
    {"{'run': None}", {"job.json:1:", "JSON writes null"}},
    {"tiers.host.budget=64", {"tiers.host.budget", "64 bytes", "\"64GiB\""}},
    {"tiers.host.budget='64'", {"tiers.host.budget", "64 bytes", "\"64GiB\""}},
    {"auto=huggingface", {"auto", "none|hf"}},
    /* "auto" where it cannot be meant as a default */
    {SMALL_WITH("'optimizer': {'params': {'lr': 'auto'}},"),
     {"optimizer.params.lr: \"auto\"", "--set optimizer.params.lr=5e-5", "--auto hf"}},
    {SMALL_WITH("'scheduler': {'type': 'WarmupLR', 'params': {'warmup_max_lr': 'auto'}},"),
     {"scheduler.params.warmup_max_lr: \"auto\"", "--auto hf"}},
    {"train_micro_batch_size_per_gpu=auto",
     {"\"auto\"", "--set train_micro_batch_size_per_gpu=8", "--auto hf"}},
    /* bounds of counts, with their reasons */
    {"gradient_accumulation_steps=1000000000", {"[1,65536]", "compiled before the first"}},
    {"train_micro_batch_size_per_gpu=2000000", {"[1,1048576]", "on the device together"}},
    {"run.steps=1e15", {"[1,1000000000000]", "exact to 2^53"}},
    {"model.num_layers=100000", {"[1,65536]", "compiled before the first"}},
    {"model.vocab_size=3e9", {"[1,1000000000]", "32-bit"}},
    {"device.threads=100000", {"[0,65536]", "processors"}},
    {SMALL_WITH("'gradient_accumulation_steps': 65536,"),
     {"gradient_accumulation_steps", "65536", "131072"},
     "model.num_layers=65536"},
    {SMALL_WITH("'train_batch_size': 1000000000000,"),
     {"gradient_accumulation_steps: 1000000000000", "[1,65536]"}},
    {"{'train_micro_batch_size_per_gpu': 128, " SMALL_MODEL ", 'run': {'dir': 'd'}}",
     {"train_micro_batch_size_per_gpu: 128", "2147483647 tokens", "raise gradient_accum"},
     "model.seq_length=16777216"},
    {SMALL_WITH("'zero_optimization': {'aio': {}},"), {"zero_optimization.aio", "at aio"}},
    {SMALL_WITH("'zero_optimization': {'stag': 3},"), {"stag", "\"stage\""}},
    {SMALL_WITH("'tiers': {'nvme': [{'pth': '/x'}]},"), {"tiers.nvme.0.pth", "\"path\""}},
    {SMALL_WITH("'run.steps': 5,"), {"\"run.steps\"", "nested"}},
    {SMALL_WITH("'': 5,"), {"unknown key \"\""}},
    {SMALL_WITH("'tiers': {'a\\u001bb': 5},"), {"unknown key \"a\\u001bb\""}},
    /* wrong types */
    {"run.steps=many", {"--set: run.steps: ", "\"many\"", "whole number", "1000"}},
    {"run.steps=1.5", {"run.steps", "1.5", "whole number"}},
    {"run.fresh=1", {"run.fresh", "1 is not true or false"}},
    {"run.fresh='true'", {"run.fresh", "\"true\"", "true or false"}},
    {SMALL_WITH("'tiers': 5,"), {"job.json: tiers: ", "5 is not an object"}},
    {SMALL_WITH("'tiers': {'nvme': {'path': '/x'}},"), {"tiers.nvme", "array"}},
    {"tiers.nvme=[3]", {"tiers.nvme.0", "3 is not an object"}},
    {"tiers.nvme=['/x']", {"tiers.nvme.0", "write {\"path\": \"/x\"}"}},
    {"bf16=true", {"bf16: true is not an object; write {\"enabled\": true}"}},
    {"optimizer=AdamW", {"write {\"type\": \"AdamW\"}"}},
    {"zero_optimization.offload_param=cpu", {"write {\"device\": \"cpu\"}"}},
    {"dtype=bf16", {"here it is called bf16.enabled"}},
    {SMALL_WITH("'train_batch_size': 7,"),
     {"7 is not a multiple of train_micro_batch_size_per_gpu 2 times 1 rank"},
     "train_micro_batch_size_per_gpu=2"},
    {"optimizer.params.betas=0.9", {"betas", "0.9", "array of numbers"}},
    {"optimizer.params.betas=[0.9]", {"betas", "[0.9]", "two numbers"}},
    {"optimizer.params.betas=[0.9, 'x']", {"betas", "\"x\"", "a number"}},
    {"data.train=['a', 3]", {"data.train", "3 is not a path"}},
    {"data.train=['']", {"data.train", "file 0"}},
    {"run.dir={}", {"run.dir", "{}", "a string"}},
    {"run.dir=", {"run.dir", "empty"}},
    {"aio.single_submit=maybe", {"aio.single_submit", "\"maybe\""}},
    {"schedule.update=3", {"schedule.update", "3", "after_backward"}},
    /* ranges */
    {"run.steps=0", {"run.steps", "0 is out of range", "in [1,1000000000000] steps"}},
    {"run.commit_every=-1", {"run.commit_every", "-1", "in [0,1000000000000] steps"}},
    {"run.tensorboard=3", {"run.tensorboard", "3 is not true, false or a path"}},
    {"run.tensorboard=''", {"run.tensorboard", "empty"}},
    {"run.keep=-1", {"run.keep", "-1", "in [0,1000000000000] steps"}},
    {"run.keep=all", {"run.keep", "\"all\"", "whole number or an array of whole numbers"}},
    {"run.keep=1.5", {"run.keep", "1.5", "whole number"}},
    {"run.keep=[50, null]", {"run.keep", "null", "whole number"}},
    {"run.keep=[50, '100']", {"run.keep", "\"100\"", "whole number"}},
    {"run.keep=[50, -50]", {"run.keep", "-50", "in [0,"}},
    {"run.keep=[50, 0]", {"run.keep", "entry 1 is 0", "at least 1"}},
    /* what is kept must be committed */
    {"run.keep=70", {"--set: run.keep", "step 70", "run.commit_every, 50", "such as 10"}},
    {"run.keep=[50, 75, 100]", {"run.keep", "step 75", "last step, 1000", "such as 25"}},
    {"run.keep=[1001]", {"run.keep", "step 1001", "such as 1"}},
    {"{" SMALL_MODEL ", 'run': {'dir': 'd', 'commit_every': 0, 'keep': [1000]}, "
     "'train_micro_batch_size_per_gpu': 1}",
     {"job.json: run.keep", "run.commit_every 0", "set run.commit_every to 1000 or a divisor"}},
    {"{" SMALL_MODEL ", 'run': {'dir': 'd', 'keep': 300}, 'train_micro_batch_size_per_gpu': 1}",
     {"run.keep", "set run.commit_every to 300"},
     "run.commit_every=0"},
    {"train_micro_batch_size_per_gpu=0", {"train_micro_batch_size_per_gpu", "in [1,"}},
    {"gradient_accumulation_steps=-2", {"gradient_accumulation_steps", "-2", "in [1,"}},
    {"optimizer.params.betas=[0.9, 1.0]", {"betas", "1.0", "[0,1)"}},
    {"optimizer.params.lr=-1e-3", {"optimizer.params.lr", "-0.001", "at least 0"}},
    {"optimizer.params.eps=-1", {"optimizer.params.eps", "-1", "at least 0"}},
    {"gradient_clipping=-1", {"gradient_clipping", "-1", "at least 0"}},
    {"zero_optimization.stage=4", {"zero_optimization.stage", "4", "[0,3]"}},
    {"aio.block_size=5000", {"aio.block_size", "5000", "4096"}},
    {"aio.queue_depth=0", {"aio.queue_depth", "0", "[1,32768]"}},
    {"model.rope_theta=0", {"model.rope_theta", "0", "above 0"}},
    {"model.num_layers=0", {"model.num_layers", "0", "[1,65536]"}},
    {SMALL_WITH("'data': {'format': 'text'},"),
     {"model.vocab_size", "255", "bytes", "256"},
     "model.vocab_size=255"},
    {"optimizer.params.eps=1e-50", {"optimizer.params.eps", "1e-50", "0 in fp32"}},
    {"optimizer.params.lr=1e39", {"optimizer.params.lr", "1e+39", "infinite in fp32"}},
    {"optimizer.params.betas=[0.9999999999, 0.999]",
     {"optimizer.params.betas", "in fp32, in which one of them is 1"}},
    {"fp16={'enabled': true, 'loss_scale': 1e-46}", {"fp16.loss_scale", "infinite"}},
    {"model.init_std=1e39", {"model.init_std", "infinite in fp32"}},
    {"scheduler={'type': 'OneCycle', 'params': {'cycle_min_lr': 1e-4, 'cycle_max_lr': 1e-3, "
     "'cycle_first_step_size': 4, 'decay_step_size': 1, 'decay_mom_rate': 0.2}}",
     {"cycle_momentum", "decay_mom_rate", "[0, 1)"}},
    {"tiers.nvme=[{'path': 'd'}, {'path': './d//'}]", {"tiers.nvme.1.path", "twice"}},
    {"zero_optimization.sub_group_size=-1", {"sub_group_size", "at least 0"}},
    {"schedule.tile_elems=2000000000", {"schedule.tile_elems", "2000000000", "1000000000"}},
    /* sizes */
    {"tiers.host.budget=12 parsecs", {"tiers.host.budget", "12 parsecs", "GiB"}},
    {"tiers.device.budget=-5", {"tiers.device.budget", "-5", "at least 0"}},
    {"tiers.device.budget=9e9TiB", {"tiers.device.budget", "9e9TiB", "2^63"}},
    {"tiers.device.budget=1180591620717411303424", {"tiers.device.budget", "below 2^63"}},
    /* choices, and what is not built */
    {"model.family=gtp2", {"model.family", "\"gtp2\"", "gpt2|llama", "\"gpt2\""}},
    {"data.tokenizer=['gpt2']", {"data.tokenizer", "not a string", "bytes"}},
    {"data.shuffle=document", {"data.shuffle", "the nearest is \"documents\""}},
    {"data.chat_template=chatlm", {"data.chat_template", "the nearest is \"chatml\""}},
    {"data.train={'path':'a'}", {"data.train", "is not a path, or a list"}},
    {"data.train=[{'weight':1}]", {"data.train.0.path", "missing"}},
    {"data.train=[{'path':[],'weight':1}]", {"data.train.0.path", "missing"}},
    {"data.train=[{'path':'a','weight':0}]", {"data.train.0.weight", "above 0"}},
    {"data.train=[{'path':'a','weight':1},'b']", {"data.train", "entry 1 has no weight"}},
    {"data.train=[{'path':'a','wieght':1}]", {"data.train.0.wieght", "nearest", "weight"}},
    {"data.valid=[{'path':'a','weight':1}]", {"data.valid.0.weight", "unknown key"}},
    {"schedule.order=sideways", {"schedule.order", "\"sideways\"", "layer_major"}},
    {"schedule.update=sometimes", {"schedule.update", "delayed_one_step"}},
    {"data.format=parquet", {"data.format", "\"parquet\"", "auto|text|llmc|u16|u32|megatron"}},
    {"data.format=u16", {"model.vocab_size", "missing"}},
    {"model.max_part_bytes=-1", {"model.max_part_bytes", "at least 0 bytes"}},
    {"io.stuck_seconds=-1", {"io.stuck_seconds", "[0,1e9] seconds"}},
    {"train.only=[]", {"train.only", "the list is empty", "leave it out"}},
    {"train.only=block.3", {"train.only", "\"block.3\" is none of blocks.FIRST-LAST"}},
    {"train.only=['blocks.3-']", {"train.only", "\"blocks.3-\" is none"}},
    {"train.only=['blocks.1-2x']", {"train.only", "is none of"}},
    {"train.only=['norms', 'blocks.3-2']", {"\"blocks.3-2\" ends before it begins"}},
    {"train.only=['blocks.12345678901']", {"train.only", "is none of"}},
    {"train.lora.rank=0", {"train.lora.rank", "[1,4096]"}},
    {"train.lora.targets=[]", {"train.lora.targets", "the list is empty"}},
    {"train.lora={'dropout': 1}", {"train.lora.dropout", "[0,1)"}},
    {"train.lora.bias=none", {"unknown key \"bias\""}},
    {"debug.io.stop_seconds=-1", {"debug.io.stop_seconds", "[0,1e9] seconds"}},
    {"debug.io.stop_seconds=30", {"debug.io.stop_seconds", "30 is not above io.stuck_seconds, 30"}},
    {"io.stuck_seconds=700", {"debug.io.stop_seconds", "600", "io.stuck_seconds, 700"}},
    {"io.passthrough=true", {"io.passthrough", "slabs are files", "leave it out"}},
    {"io.verify_reads=0", {"io.verify_reads", "true or false"}},
    {"debug.io.threads=2000", {"debug.io.threads", "[0,1024]"}},
    {"update.threads=-1", {"update.threads", "[0,65536]"}},
    {"run.paranoid=1", {"run.paranoid", "true or false"}},
    /* core sets */
    {"device.cores=7-0", {"device.cores", "\"7-0\"", "7-0 runs backwards"}},
    {"device.cores=0-7,", {"device.cores", "\"0-7,\"", "no core set", "0-7,16"}},
    {"update.cores=,1", {"update.cores", "no core set"}},
    {"io.cores=0 - 7", {"io.cores", "no core set"}},
    {"io.cores=1-2-3", {"io.cores", "no core set"}},
    {"io.cores=0-", {"io.cores", "no core set"}},
    {"io.cores=all", {"io.cores", "\"all\"", "no core set"}},
    {"device.cores=[0, 1]", {"device.cores", "[0,1]"}},
    {SMALL_WITH("'device': {'cores': 3},"), {"device.cores", "3 is not a core set"}},
    {"device.cores=123456", {"device.cores", "no core set"}},
    {"device.cores=0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46",
     {"device.cores", "at most 63"}},
    /* updates that would not be exact */
    {"schedule.update=in_backward",
     {"schedule.update", "gradient_clipping to 0 (it is 1 by default)", "after_backward"}},
    {SMALL_WITH("'bf16': {'enabled': true}, 'gradient_clipping': 0.5,"),
     {"gradient_clipping to 0 (it is 0.5)", " and bf16.check_grad_overflow to false",
      "(it is true by default)"},
     "schedule.update=in_backward"},
    {SMALL_WITH("'bf16': {'enabled': true}, 'gradient_clipping': 0,"),
     {"known: set bf16.check_grad_overflow to false"},
     "schedule.update=in_backward"},
    {SMALL_WITH("'fp16': {'enabled': true}, 'gradient_clipping': 0,"),
     {"fp16.enabled", "overflow"},
     "schedule.update=in_backward"},
    {"tiers.place.grads=cpu", {"tiers.place.grads", "\"cpu\"", "device|host|nvme"}},
    {SMALL_WITH("'optimizer': {'params': {'freeze_step': 2}, 'type': 'OneBitAdam'},"),
     {"optimizer.type", "OneBitAdam", "not built yet", "Adam|AdamW|Adagrad|Lion|"}},
    {"optimizer.type=Adamm", {"optimizer.type", "nearest", "\"Adam\""}},
    {"optimizer={'type':'Muon','params':{'lr':0}}", {"optimizer.params.lr", "Muon"}},
    {"optimizer={'type':'Muon','params':{'momentum':0.99999999}}",
     {"optimizer.params.momentum", "1 in fp32"}},
    {"optimizer={'type':'Muon','params':{'ns_steps':100}}", {"optimizer.params.ns_steps", "99"}},
    {"optimizer.params.momentum=0.9", {"optimizer.params.momentum", "no parameter of AdamW"}},
    {SMALL_WITH("'optimizer': {'type': 'Lion', 'params': {'eps': 1e-8}},"),
     {"optimizer.params.eps", "no parameter of Lion", "betas"}},
    {SMALL_WITH("'optimizer': {'type': 'Adagrad', 'params': {'betas': [0, 0]}},"),
     {"optimizer.params.betas", "no parameter of Adagrad", "eps"}},
    {SMALL_WITH("'optimizer': {'type': 'Lion', 'params': {'adam_w_mode': true}},"),
     {"optimizer.params.adam_w_mode", "no parameter of Lion"}},
    {SMALL_WITH("'optimizer': {'type': 'Adagrad', 'params': {'max_grad_norm': 1}},"),
     {"optimizer.params.max_grad_norm", "gradient_clipping"}},
    {"optimizer.params.fp32_optimizer_states=false",
     {"fp32_optimizer_states", "this job's are fp32", "state.moments"}},
    {"state.moments=fp16", {"state.moments", "\"fp16\"", "fp32|bf16|8bit"}},
    {"state.params=nf5", {"state.params", "\"nf5\"", "nf4"}},
    {"bnb_4bit_quant_type=int4", {"bnb_4bit_quant_type", "\"int4\"", "fp4|nf4"}},
    {SMALL_WITH("'load_in_8bit': true,"),
     {"load_in_4bit", "load_in_8bit", "give one"},
     "load_in_4bit=true"},
    {"bnb_4bit_quant_type=nf4", {"bnb_4bit_quant_type", "given without load_in_4bit"}},
    {"bnb_4bit_use_double_quant=true", {"bnb_4bit_use_double_quant", "without load_in_4bit"}},
    {"state.rules=[{'tensors': 'mlp'}]", {"state.rules.0.params", "missing"}},
    {"state.rules=[{'params': 'nf4'}]", {"state.rules.0.tensors", "missing"}},
    {"state.rules=[{'tensors': 'mlp', 'params': 'q4'}]", {"\"q4\"", "nf4_double"}},
    {"quantization_config={'quant_method': 'gptq'}",
     {"quantization_config.quant_method", "\"gptq\" is not read"}},
    {"quantization_config={'load_in_4bit': true, 'bnb_4bit_quant_typ': 'nf4'}",
     {"quantization_config", "bnb_4bit_quant_typ\"",
      "nearest known key is \"bnb_4bit_quant_type\""}},
    {"quantization_config={'load_in_4bit': true, 'lr': 1}",
     {"quantization_config", "unknown key \"lr\"", "belongs at optimizer.params.lr"}},
    {"quantization_config={'load_in_4bit': true, 'llm_int8_skip_modules': 'lm_head'}",
     {"quantization_config.llm_int8_skip_modules", "it is no list"}},
    {SMALL_WITH("'quantization_config': {'load_in_4bit': true}, 'state': {'params': 'nf4'},"),
     {"quantization_config", "give one of them"}},
    {SMALL_WITH("'load_in_4bit': true, 'bnb_4bit_quant_type': 'nf4',"),
     {"load_in_4bit", "state.params nf4", "\"int8\""},
     "state.params=int8"},
    {SMALL_WITH("'fp16': {'enabled': true},"),
     {"state.master", "in bf16", "are fp16"},
     "state.master=split"},
    {SMALL_WITH("'optimizer': {'type': 'Muon'},"),
     {"state.master", "Adam", "Muon"},
     "state.master=split"},
    {"state.masters=split", {"state.masters", "state.master"}},
    {SMALL_WITH("'optimizer': {'type': 'Lion'},"),
     {"state.moments", "Adam", "Lion"},
     "state.moments=bf16"},
    {SMALL_WITH("'bf16': {'enabled': true}, 'optimizer': {'type': 'Adagrad'},"),
     {"state.master", "Adam", "Adagrad"},
     "state.master=split"},
    {SMALL_WITH("'bf16': {'enabled': true}, 'optimizer': {'type': 'Lion'},"),
     {"bf16.bf16_optimizer_states", "Adam", "Lion"},
     "bf16.bf16_optimizer_states=true"},
    {SMALL_WITH("'bf16': {'enabled': true}, 'state': {'moments': 'fp32'},"),
     {"bf16.bf16_optimizer_states", "state.moments bf16", "\"fp32\""},
     "bf16.bf16_optimizer_states=true"},
    {SMALL_WITH("'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0}},"),
     {"scheduler.params.cycle_max_lr", "missing", "OneCycle"}},
    {SMALL_WITH("'scheduler': {'type': 'OneCycle'},"),
     {"scheduler.params.cycle_min_lr", "missing", "OneCycle"}},
    {SMALL_WITH("'scheduler': {'type': 'OneCycle', 'params': {'warmup_num_steps': 1}},"),
     {"scheduler.params.warmup_num_steps", "no parameter of OneCycle", "cycle_first_step_size"}},
    {"scheduler.params.cycle_first_step_size=0", {"cycle_first_step_size", "at least 1"}},
    {"scheduler.params.cycle_max_mom=1", {"cycle_max_mom", "[0,1)"}},
    {"scheduler.params.lr_range_test_step_size=0", {"step_size", "at least 1"}},
    {"scheduler.params.warmup_num_steps=-1", {"warmup_num_steps", "at least 0"}},
    {"scheduler.params.warmup_type=cubic", {"warmup_type", "\"cubic\"", "log|linear"}},
    {"scheduler.type=StepLR", {"scheduler.type", "\"StepLR\"", "OneCycle|LRRangeTest"}},
    {SMALL_WITH("'bf16': {'enabled': true},"),
     {"fp16.enabled", "bf16.enabled", "one of them"},
     "fp16.enabled=true"},
    {SMALL_WITH("'fp16': {'loss_scale_window': 0},"),
     {"fp16.loss_scale_window", "0 is out of range", "dynamic"},
     "fp16.enabled=true"},
    {SMALL_WITH("'fp16': {'min_loss_scale': -1},"),
     {"fp16.min_loss_scale", "-1", "dynamic"},
     "fp16.enabled=true"},
    {"fp16.min_loss_scale=0.5", {"fp16.min_loss_scale", "0.5", "whole number"}},
    {"fp16.loss_scale=-1", {"fp16.loss_scale", "-1", "at least 0"}},
    {"fp16.loss_scale=true", {"fp16.loss_scale", "true is not a number"}},
    {"fp16.initial_scale_power=128", {"fp16.initial_scale_power", "128", "[0,127]"}},
    {"fp16.hysteresis=0", {"fp16.hysteresis", "at least 1"}},
    {"fp16.loss_scale_window=1.5", {"fp16.loss_scale_window", "1.5", "whole number"}},
    {"data_types.param_dtype=bf16", {"data_types.param_dtype", "\"bf16\"", "fp32"}},
    {SMALL_WITH("'bf16': {'enabled': true},"),
     {"grad_accum_dtype", "\"fp16\"", "\"bf16\""},
     "data_types.grad_accum_dtype=fp16"},
    {"bf16.bf16_optimizer_states=true", {"bf16_optimizer_states", "bf16.enabled"}},
    {"data_types.grad_accum_dtype=fp16", {"grad_accum_dtype", "fp16.enabled"}},
    {"data_types.grad_accum_dtype=bf16", {"grad_accum_dtype", "bf16.enabled"}},
    {"model.hf=/no/dir", {"model.hf", "/no/dir/config.json", "No such file", "checkpoint"}},
    {"model.hf=org/Model-1B", {"model.hf", "hf download org/Model-1B", "huggingface-cli"}},
    /* relations */
    {"{" SMALL_MODEL ", 'run': {'dir': 'r'}}", {"train_micro_batch_size_per_gpu"}},
    {"{" SMALL_MODEL ", 'train_batch_size': 1}", {"run.dir", "missing"}},
    {"{" SMALL_REST "}", {"model: missing", "preset"}},
    {"{'model': {'num_layers': 2}, " SMALL_REST "}", {"model.family", "missing"}},
    {"{'model': {'family': 'llama'}, " SMALL_REST "}", {"model.num_layers", "missing"}},
    {SMALL_WITH("'train_batch_size': 7, 'gradient_accumulation_steps': 3,"),
     {"train_batch_size", "7", "1", "3"}},
    {"scheduler.params.warmup_min_lr=0", {"scheduler.type", "missing"}},
    {SMALL_WITH("'scheduler': {'type': 'WarmupDecayLR'},"),
     {"scheduler.params.total_num_steps", "WarmupDecayLR"}},
    {SMALL_WITH("'scheduler': {'type': 'WarmupLR', 'params': {'cos_min_ratio': 0}},"),
     {"scheduler.params.cos_min_ratio", "WarmupLR", "warmup_max_lr"}},
    {SMALL_WITH("'bf16': {}, 'bfloat16': {},"), {"bfloat16", "bf16"}},
    {SMALL_WITH("'zero_optimization': {'offload_optimizer': {'device': 'cpu'}},"),
     {"--set: tiers.place.optimizer", "zero_optimization.offload_optimizer.device", "\"cpu\"",
      "\"host\""},
     "tiers.place.optimizer=device"},
    {SMALL_WITH(
         "'zero_optimization': {'cpu_offload': true, 'offload_optimizer': {'device': 'none'}},"),
     {"zero_optimization.cpu_offload", "offload_optimizer"}},
    {"tiers.place.params=nvme", {"tiers.place.params", "drive", "tiers.nvme"}},
    {"zero_optimization.offload_param.device=nvme", {"offload_param.device", "nvme_path"}},
    {"tiers.place.rules=[{'units': 'all', 'kind': 'grads', 'tier': 'nvme'}]",
     {"tiers.place.rules.0.tier", "drive"}},
    {"tiers.place.rules=[{'units': '5-2', 'kind': 'grads', 'tier': 'host'}]",
     {"tiers.place.rules.0.units", "\"5-2\""}},
    {"tiers.place.rules=[{'units': '1,2', 'kind': 'grads', 'tier': 'host'}]",
     {"tiers.place.rules.0.units", "\"1,2\"", "0-11", "3.experts"}},
    {"tiers.place.rules=[{'units': 1, 'kind': 'params', 'tier': 'recompute'}]",
     {"tiers.place.rules.0.tier", "recompute", "inner_activations", "params"}},
    {"tiers.place.rules=[{'units': 1, 'kind': 'grads', 'tier': 'selective'}]",
     {"tiers.place.rules.0.tier", "selective", "inner_activations", "grads"}},
    {"tiers.place.params=selective", {"tiers.place.params", "selective"}},
    {"tiers.place.inner_activations=nvme", {"inner_activations", "drive"}},
    {"tiers.place.inner_activations=selective_nvme", {"selective_nvme", "drive"}},
    {"tiers.place.rules=[{'units': 1}]", {"tiers.place.rules.0.kind", "missing"}},
    {"tiers.nvme=[{'budget': 5000}]", {"tiers.nvme.0.path", "missing"}},
    {"tiers.nvme=[{'path': '/x'}, {'path': '/x'}]", {"tiers.nvme.1.path", "\"/x\"", "twice"}},
    /* --set itself */
    {"run.steps", {"--set run.steps", "key.path=value"}},
    {"=5", {"--set =5", "key.path=value"}},
    {"run.stps=5", {"--set: run.stps", "\"steps\""}},
    {"runn.steps=5", {"--set: runn", "\"run\""}},
    {"run..steps=5", {"--set: run.", "unknown key \"\""}},
    {"run.steps.x=5", {"run.steps.x", "unknown key \"x\""}},
    {"run.steps={", {"--set: run.steps", "not JSON"}},
    {"tiers.nvme.2.path=/x", {"tiers.nvme", "no entry 2", "the list has 0"}},
    {"tiers.nvme.*.path=/x", {"--set: tiers.nvme.*", "is a list", "tiers.nvme.0"}},
    {"run.dir=\xff", {"run.dir", "UTF-8"}},
};

/* Whether one case ends as it should; prints what is wrong. */
static bool case_is_refused(const struct wrong *wrong)
{
    bool is_file = strchr("{[", wrong->job[0]); /* also an empty one */
    job *self = (job *)&self;
    int rc = read_text(is_file ? wrong->job : SMALL_JOB, is_file ? wrong->set : wrong->job, &self);
    if (rc != ERR_CONFIG || self) {
        print_error("%s: %s\n", wrong->job, rc == 0 ? "accepted" : err_name(rc));
        return false;
    }
    for (int i = 0; i < SAYS_MAX && wrong->says[i]; i++) {
        if (!strstr(err_text(), wrong->says[i])) {
            print_error("%s: '%s' does not say '%s'\n", wrong->job, err_text(), wrong->says[i]);
            return false;
        }
    }
    return true;
}

static void wrong_is_refused(void **state)
{
    size_t count = sizeof cases / sizeof cases[0], refused = 0;
    for (size_t i = 0; i < count; i++)
        refused += case_is_refused(&cases[i]);
    print_message("%zu of %zu wrong jobs refused\n", refused, count);
    assert_int_equal(refused, count);
}

/* The table's canary: what the cases are built on is right. */
static void base_is_right(void **state)
{
    job_destroy(read_good(SMALL_JOB, NULL));
    job_destroy(read_good(SMALL_WITH("'description': 'x',"), "run.steps=5"));
}

static void presets_are_refused(void **state)
{
    job *self;
    assert_error(read_text("{'model': {'preset': 'gpt2-1.5'}, " SMALL_REST "}", NULL, &self),
                 ERR_CONFIG, "model.preset");
    assert_non_null(strstr(err_text(), "\"gpt2-1.5b\""));
    assert_error(read_text("{'model': {'preset': '../secret'}, " SMALL_REST "}", NULL, &self),
                 ERR_CONFIG, "\"../secret\" is not the name of a preset");
}

static void files_are_refused(void **state)
{
    job *self;
    assert_error(job_read("no/such/file.json", NULL, NULL, 0, 1, &self), ERR_INPUT,
                 "no/such/file.json");
    assert_int_equal(job_read(".", NULL, NULL, 0, 1, &self), ERR_INPUT);
    write_job("{}", 2);
    assert_int_equal(truncate(test_file, (off_t)CONFIGI_FILE_BYTES_MAX + 1), 0);
    assert_int_equal(job_read(test_file, NULL, NULL, 0, 1, &self), ERR_INPUT);
    write_job("{'run': \0}", 10);
    assert_int_equal(job_read(test_file, NULL, NULL, 0, 1, &self), ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base_is_right),
        cmocka_unit_test(wrong_is_refused),
        cmocka_unit_test(presets_are_refused),
        cmocka_unit_test(files_are_refused),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
