/* The rows of Sluice's own blocks but for `model` (keys_model.c). The columns are, in order: path,
 * type, place in struct job, default, allowed values, unit, what a change means for a resumed run,
 * help. See keys_internal.h. Constant data. */
#include "config/keys_internal.h"

/* The enumerators of choices. */
static const int homes[] = {TIER_AUTO, TIER_DEVICE, TIER_HOST, TIER_NVME};
static const int inner_homes[] = {TIER_AUTO,           TIER_RECOMPUTE,     TIER_DEVICE,
                                  TIER_HOST,           TIER_NVME,          TIER_SELECTIVE,
                                  TIER_SELECTIVE_HOST, TIER_SELECTIVE_NVME};
static const int updates[] = {UPDATE_AUTO, UPDATE_AFTER_BACKWARD, UPDATE_IN_NEXT_FORWARD,
                              UPDATE_IN_BACKWARD, UPDATE_DELAYED_ONE_STEP};
static const int fetches[] = {FETCH_AUTO, FETCH_ALL, FETCH_HIT};
static const int modes[] = {0600, 0640, 0644, 0660, 0664, 0666};
static const int masters[] = {TILE_FP32, TILE_LOW16}, moments[] = {TILE_FP32, TILE_BF16, TILE_INT8};

/* The reasons why numbers have upper bounds. */
static const char token_ids[] =
    "Token ids are signed 32-bit numbers, and bytes of the matrix of logits are counted in 64 "
    "bits.";
static const char processors[] = "No machine has more processors.";
static const char exact_steps[] =
    "Steps, and the tokens of all of them, are written as JSON numbers, which are exact to 2^53.";
static const char lookahead_most[] = "A program has fewer ops than that.";
static const char one_rank[] = "this job has one rank, so nothing is exchanged";

const configi_key configi_own_keys[] = {
    KEY("data.train", SOURCES, AT(data.train), NONE, NONE, "files", LATER,
        "Training text, JSON records or token files (data.format), relative to the current "
        "directory; all ranks read the same. Either paths, or objects with a path each. If the "
        "objects have weights, each is a source; otherwise the files are read one after another."),
    KEY("data.train.*.path", STRINGS, NOWHERE, NONE, NONE, "files", LATER,
        "The files of this entry. Required."),
    KEY("data.train.*.weight", FLOAT, NOWHERE, NONE, "(0,]", NONE, LATER,
        "The source's share of the windows, relative to the sum of all weights. Either all "
        "entries have a weight or none has. In each 1024 windows the shares are exact to one "
        "window, in an order drawn from data.seed. Each source counts its own epochs."),
    KEY("data.train.*.field", STRING, NOWHERE, "text", NONE, NONE, LATER,
        "Field of a JSON record that holds the text."),
    KEY("data.valid", SOURCES, AT(data.valid), NONE, NONE, "files", FREE,
        "Held-out files for evaluation, in the same form as data.train but without weights. They "
        "are read in order."),
    KEY("data.valid.*.path", STRINGS, NOWHERE, NONE, NONE, "files", FREE,
        "The files of this entry. Required."),
    KEY("data.valid.*.field", STRING, NOWHERE, "text", NONE, NONE, FREE,
        "Field of a JSON record that holds the text."),
    KEY("data.tokenizer", STRING, AT(data.tokenizer), "bytes", NONE, NONE, LATER,
        "How text and JSON records become tokens: bytes (each byte is a token, 256 in all), or the "
        "path of a tokenizer.json, of a directory that has one, or of a SentencePiece .model. "
        "Default with model.hf: the checkpoint's own. The tokens are made once, when the run "
        "begins, in run.dir/data. Token files need none; with one, its end token tells where the "
        "documents of plain ids end."),
    KEY("data.chat_template", ENUM, AT(data.chat_template), "auto",
        "auto|chatml|qwen2|qwen2.5|qwen3|smollm2|llama3|llama3.1|mistral|mistral-v1|mistral-tekken|"
        "zephyr|llama2|phi3|phi4-mini|phi4|gemma|gemma3|olmo2|tulu|granite|granite3.1|glm4|cohere|"
        "plain|alpaca",
        NONE, LATER,
        "How the conversations in JSON records are written. The loss counts only the answers. "
        "auto: as the files beside the tokenizer say; Alpaca's records are written with Alpaca's "
        "own prompts if these files say nothing."),
    KEY("data.shuffle", ENUM, AT(data.shuffle), "windows", "windows|documents|none", NONE, LATER,
        "Order of the training samples, drawn anew for each epoch: windows of the files as they "
        "are; documents, packed end to end, and windows of those; or none, in order."),
    KEY("data.documents", ENUM, AT(data.documents), "separate", "separate|joined", NONE, LATER,
        "Documents that share a window. separate: attention looks only at its own document, "
        "positions begin again in each, and the first token of a document is no target. joined: "
        "they are one text. Where documents are known: records, rows of an array, Megatron's "
        "index, files, and the tokenizer's end token in text and in ids."),
    KEY("data.seed", INT, AT(data.seed), "1", "[0,]", NONE, LATER,
        "Seed of the order of the training samples, and of which tokens are masked (bert)."),
    KEY("data.masked", FLOAT, AT(data.masked), "0.15", "(0,1]", NONE, LATER,
        "Share of the tokens that a bert model learns to fill in. Of these, 80 % are replaced by "
        "data.mask_token, 10 % by a random token, and 10 % stay. The loss counts only them. The "
        "choice is drawn anew in each epoch, from data.seed; in evaluation it is always the same."),
    KEY("data.mask_token", INT, NOWHERE, NONE, "[0,999999999]", "token", LATER,
        "Id of the token that stands for a masked one (bert). Default: that of the tokenizer's "
        "[MASK].",
        .why = token_ids),
    KEY("data.format", ENUM, AT(data.format), "auto",
        "auto|text|llmc|u16|u32|megatron|npy|jsonl|made|messages|alpaca|sharegpt|prompt_completion",
        NONE, LATER_SILENT,
        "What the files hold: text (UTF-8; with the tokenizer bytes, any bytes), llm.c's .bin, raw "
        "16-bit or 32-bit token ids, little-endian, Megatron's .bin beside its .idx, NumPy's "
        "arrays, what run.dir/data holds (made), or JSON records, one a line or in one array. "
        "jsonl: the first record of a file shows which kind they are; messages, alpaca, sharegpt "
        "and prompt_completion name the kind. auto: by how a file begins and what lies beside it, "
        "JSON records also by their name (.json, .jsonl, .ndjson), else text, which must be UTF-8 "
        "then; raw ids must be named, and a .bin is never taken for text. Token ids need "
        "model.vocab_size."),

    KEY("train.only", STRINGS, NOWHERE, NONE, NONE, NONE, FIXED,
        "The parameters that learn. All others keep their weights and have no gradient and no "
        "optimizer state. Values: blocks.FIRST-LAST, blocks.NUMBER (from 0 on), embed, head (the "
        "final norm and an untied output matrix), norms (all of them), all. A tied embedding is "
        "embed. In bert a block has the norm before it, head is cls.predictions.transform and the "
        "norm before that, and embed has the output's biases. Default: all, or with train.lora "
        "only the adapters."),
    KEY("train.dropout", FLOAT, NOWHERE, NONE, "[0,1)", NONE, FIXED,
        "Takes the place of all of the model's dropouts (model.hidden_dropout and the like), those "
        "of config.json too; 0 turns them off. It does not concern adapters."),
    KEY("train.lora.rank", INT, AT(model.lora.rank), "8", "[1,4096]", NONE, FIXED,
        "Low-rank adapters beside the linear layers of every block: y = W x + alpha / rank B (A "
        "x), where A has rank rows. train.lora asks for adapters, even if the block is empty."),
    KEY("train.lora.alpha", FLOAT, AT(model.lora.alpha), "8", "(0,]", NONE, FIXED,
        "Adapters are scaled by alpha / rank."),
    KEY("train.lora.dropout", FLOAT, AT(model.lora.dropout), "0.0", "[0,1)", NONE, FIXED,
        "Share of what an adapter reads that is dropped at random in training, as PEFT's "
        "lora_dropout; the layer beside it reads all. The elements depend on run.seed, the step "
        "and the sample, not on how the step is computed."),
    KEY("train.lora.targets", STRINGS, NOWHERE, NONE, NONE, NONE, FIXED,
        "Layers with adapters, named as PEFT's target_modules: q_proj, k_proj, v_proj, o_proj, "
        "gate_proj, up_proj, down_proj (llama); c_attn, attn.c_proj, c_fc, mlp.c_proj, or c_proj "
        "for both of that name (gpt2); query, key, value, attention.output.dense, "
        "intermediate.dense, output.dense (bert); mlp.gate_proj and the like (first blocks of "
        "deepseek and glm4_moe), shared_experts.gate_proj, shared_expert.gate_proj (qwen2_moe); as "
        "its target_parameters: experts.gate_up_proj, experts.down_proj (mixtures), and "
        "down_proj.weight for all layers of that name but routed experts. Default: q_proj and "
        "v_proj; c_attn; query and value."),

    KEY("train.lora.from", STRING, AT(lora.from), NONE, NONE, NONE, START,
        "Directory of adapters in the format of PEFT, with adapter_config.json and "
        "adapter_model.safetensors, that a new run begins with. They belong to the checkpoint "
        "model.hf. Rank, alpha and targets are theirs, and so is dropout where the job does not "
        "give it. eval and generate read them in the same way. Default: A begins at random and B "
        "with zeros."),

    KEY("run.dir", STRING, AT(run.dir), NONE, NONE, NONE, FREE,
        "Run directory: metrics, trace, plan and state. With several ranks, only rank 0 uses it. "
        "Required."),
    KEY("run.mode", ENUM, AT(run.mode), "0600", "0600|0640|0644|0660|0664|0666", NONE, FREE,
        "Permissions of the files that a run makes: run directory, slabs, kept commits. "
        "Directories also get x where this has r. The umask does not count. What exists keeps its "
        "own permissions, also in a run that goes on.",
        .values = modes),
    KEY("run.steps", INT, AT(run.steps), "1000", "[1,1000000000000]", "steps", FREE,
        "Number of optimizer steps, including those before a resume.", .why = exact_steps),
    KEY("run.seed", INT, AT(run.seed), "1", "[0,]", NONE, START,
        "Seed of the initial weights, of dropouts and of stochastic rounding."),
    KEY("run.eval_every", INT, AT(run.eval_every), "0", "[0,1000000000000]", "steps", FREE,
        "Steps between evaluations on data.valid; 0: none.", .why = exact_steps),
    KEY("run.eval_batches", INT, AT(run.eval_batches), "16", "[1,1000000000000]", "micro-batches",
        FREE,
        "Length of an evaluation, rounded up to whole steps; shorter if data.valid is shorter.",
        .why = exact_steps),
    KEY("run.commit_every", INT, AT(run.commit_every), "50", "[0,1000000000000]", "steps", FREE,
        "Steps between commits. 0: one commit, when the run ends or is stopped on request, with "
        "one place per extent. That takes 12 bytes per parameter less of nvme, but a killed run "
        "cannot be resumed. With schedule.update delayed_one_step, commits (and evaluations) "
        "change "
        "the steps that follow.",
        .why = exact_steps),
    KEY("run.keep", STEPS, NOWHERE, "0", "[0,1000000000000]", "steps", FREE,
        "Commits that are kept while the run continues, each as a run directory under "
        "run.dir/keep: at multiples of this number of steps, or at the steps of a list, as in "
        "[100, 2000]; 0: none. Each must be a multiple of run.commit_every, or the last step.",
        .why = exact_steps),
    KEY("run.log_every", INT, AT(run.log_every), "1", "[1,1000000000000]", "steps", FREE,
        "Steps between log lines. Default: steps_per_print if given, else 1.", .why = exact_steps),
    KEY("run.fresh", BOOL, AT(run.fresh), "false", NONE, NONE, FREE,
        "If true, the run directory must be new or hold no commit."),
    KEY("run.paranoid", BOOL, AT(run.paranoid), "false", NONE, NONE, FREE,
        "Looks for faults of this program: operands get fresh addresses, and memory is filled "
        "with NaN before it is written, compared if it is only read, and poisoned when it is "
        "released. Slow, with the same bits."),

    KEY("run.trace", BOOL, AT(run.trace), "true", NONE, NONE, FREE,
        "Whether the run writes trace.json when it ends. On a GPU this times each op by two "
        "events. Without them there are fewer calls of the driver, and busy_seconds and "
        "stall_seconds of the GPU's lanes in metrics.jsonl are coarse, because the host then knows "
        "of an op when it waits for it."),

    KEY("run.tensorboard", PATH, NOWHERE, "false", NONE, NONE, FREE,
        "Event files for TensorBoard with the numbers of metrics.jsonl: losses, gradient norm, "
        "learning rate, speed, shares of each lane, peak bytes. true: in run.dir/tensorboard; or "
        "the path of a directory. Default: as tensorboard.enabled says."),
    KEY("device.backend", ENUM, AT(device.backend), "auto", "auto|cpu|cuda", NONE, FIXED,
        "What computes. auto: cuda if this build has it and there is a GPU, else cpu. Of the "
        "GPUs in CUDA_VISIBLE_DEVICES a rank takes the one with its number on its host, modulo "
        "the number of GPUs."),
    KEY("device.threads", INT, AT(device.threads), "0", "[0,65536]", "threads", FIXED,
        "Threads that compute (cpu backend). 0: one per physical core that this process may use, "
        "within its quota of CPU time; from 8 cores on, one core is left to I/O. Ranks of a host "
        "that may use the same cores divide them.",
        .why = processors),
    KEY("device.cores", CORES, AT(device.cores), NONE, NONE, NONE, FREE,
        "Cores that compute, as in \"0-7,16\". Default: all that this process may use. If "
        "device.threads is 0, the number of cores is the number of threads."),
    KEY("device.products", ENUM, AT(device.products), "estimated", "estimated|timed", NONE, START,
        "Which of cuBLASLt's algorithms a matrix product takes on a GPU. estimated: the one that "
        "the library expects to be the fastest. timed: when a run begins, rank 0 tries those that "
        "the library proposes for each shape, and all ranks take the fastest. A run keeps its "
        "algorithms when it goes on. Two runs that were timed apart may have other bits."),
    KEY("device.graph_bytes", SIZE, AT(device.graph_bytes), "67108864", NONE, "bytes", FREE,
        "GPU memory that CUDA graphs may take beside tiers.device.budget. Each replays ops of a "
        "step with one call of the driver instead of one for each kernel. Ops that find no memory "
        "left are launched kernel by kernel, with the same bits; 0: all of them."),

    KEY("update.threads", INT, AT(update.threads), "0", "[0,65536]", "threads", FREE,
        "Threads of the optimizer on the CPU. 0: as many as compute (cpu backend), or one per "
        "physical core of the GPU's node.",
        .why = processors),
    KEY("update.cores", CORES, AT(update.cores), NONE, NONE, NONE, FREE,
        "Cores of the optimizer on the CPU, as in \"0-7,16\". Default: those that compute (cpu "
        "backend), or those of the GPU's node."),

    KEY("tiers.device.budget", SIZE, AT(tiers.device_budget), "0", NONE, "bytes", FREE,
        "Hard limit of each rank's device memory; on the cpu backend, of an arena that takes its "
        "place. 0: a quarter of the free memory, shared by the ranks of a host; on a GPU, all "
        "memory that its libraries leave."),
    KEY("tiers.host.budget", SIZE, AT(tiers.host_budget), "0", NONE, "bytes", FREE,
        "Hard limit of each rank's host memory. 0: half of the free memory, shared by the ranks "
        "of a host."),
    KEY("tiers.nvme", OBJECTS, NOWHERE, NONE, "[0,16]", "drives", FREE,
        "Directories for slabs, one per drive. State is striped over them, by measured speed if "
        "they are on several devices."),
    KEY("tiers.nvme.*.path", STRING, NOWHERE, NONE, NONE, NONE, FREE,
        "Directory on the drive. {rank}, {local_rank} and {host} in it are replaced by each "
        "rank's values, so that ranks of a host can have different drives. Required."),
    KEY("tiers.nvme.*.budget", SIZE, NOWHERE, "0", NONE, "bytes", FREE,
        "Hard limit on the drive. 0: its free space less 10%, which drives of one file system "
        "share. The limit is for all ranks of a host together, or for each rank if the path "
        "holds {rank} or {local_rank}."),
    KEY("tiers.place.params", ENUM, AT(tiers.place[STATE_PARAMS]), "auto", "auto|device|host|nvme",
        NONE, FREE,
        "Home of the working parameters; auto: the most expensive tier on which the job fits.",
        .values = homes),
    KEY("tiers.place.grads", ENUM, AT(tiers.place[STATE_GRADS]), "auto", "auto|device|host|nvme",
        NONE, FREE, "Home of the gradients; auto: as above.", .values = homes),
    KEY("tiers.place.optimizer", ENUM, AT(tiers.place[STATE_OPTIMIZER]), "auto",
        "auto|device|host|nvme", NONE, FREE, "Home of master weights and moments; auto: as above.",
        .values = homes),
    KEY("tiers.place.activations", ENUM, AT(tiers.place[STATE_ACTIVATIONS]), "auto",
        "auto|device|host|nvme", NONE, FREE,
        "Home of the activation checkpoints between blocks; auto: as above.", .values = homes),
    KEY("tiers.place.inner_activations", ENUM, AT(tiers.place[STATE_INNER_ACTIVATIONS]), "auto",
        "auto|recompute|device|host|nvme|selective|selective_host|selective_nvme", NONE, FREE,
        "Activations within a block: recompute them in the backward, or keep them from the "
        "forward on this tier. The selective values keep them on the device, the host or nvme "
        "but for the outputs of norms, gates and sums, which the backward recomputes; units in "
        "parts keep all. auto: what gives the shortest predicted step, for each unit.",
        .values = inner_homes),
    KEY("tiers.place.rules", OBJECTS, NOWHERE, NONE, "[0,64]", "rules", FREE,
        "Placement of single units; a later rule wins over an earlier one and over the kind."),
    KEY("tiers.place.rules.*.units", UNITS, NOWHERE, NONE, NONE, NONE, FREE,
        "\"all\", \"3\" or \"0-11\", both ends included; 0 is the embedding. Or words of the "
        "units' names in a row: \"3.experts\" are all experts of block 3, \"experts\" those of all "
        "blocks. Required."),
    KEY("tiers.place.rules.*.kind", ENUM, NOWHERE, NONE,
        "params|grads|optimizer|activations|inner_activations", NONE, FREE,
        "What the rule places. Required."),
    KEY("tiers.place.rules.*.tier", ENUM, NOWHERE, NONE,
        "recompute|device|host|nvme|selective|selective_host|selective_nvme", NONE, FREE,
        "The tier; recompute and the selective values are only for inner_activations. Required.",
        .values = inner_homes + 1),

    KEY("schedule.order", ENUM, AT(schedule.order), "layer_major",
        "layer_major|batch_major|fastest", NONE, FREE,
        "layer_major: all micro-batches pass a unit before the next unit is fetched. "
        "batch_major: each micro-batch passes all units, so that fewer activations rest. One "
        "rank gives the same bits in both; several ranks with several micro-batches add in another "
        "order. fastest: the order with the shorter planned step."),
    KEY("schedule.update", ENUM, AT(schedule.update), "auto",
        "auto|after_backward|in_next_forward|in_backward|delayed_one_step", NONE, LATER,
        "When the optimizer runs. in_next_forward: during the next forward, which hides its I/O, "
        "with the same bits. in_backward: as each gradient is complete; needs gradient_clipping "
        "0, no fp16 and no overflow check. delayed_one_step is approximate: gradients are one "
        "step late.",
        .values = updates),
    KEY("schedule.experts", ENUM, AT(schedule.experts), "auto", "auto|all|hit", NONE, FREE,
        "Which experts' parameters are fetched. all: those of all experts, ahead. hit: those of "
        "the units with an expert that some token chose, once the router has told so; the backward "
        "knows it from the forward. auto: what the plan finds faster. All give the same bits.",
        .values = fetches),
    KEY("schedule.delayed_from_step", INT, AT(schedule.delayed_from_step), "0", "[0,1000000000000]",
        "steps", LATER,
        "With delayed_one_step: the first step whose update is left to the next step. The steps "
        "before it are exact. ZeRO-Offload waits for 40 steps; 0 and 1 delay from the beginning.",
        .why = exact_steps),
    KEY("schedule.tile_elems", INT, AT(schedule.tile_elems), "0", "[0,]", "elements", FREE,
        "Elements of one optimizer tile; 0: automatic, at most zero_optimization.sub_group_size."),
    KEY("state.master", ENUM, AT(state.master), "fp32", "fp32|split", NONE, FIXED,
        "How Adam stores master weights. fp32: 4 bytes per parameter beside the working copy. "
        "split: 2 bytes, the low half of the fp32 value; the bf16 working copy is the high half. "
        "With an fp32 working copy, which is the master then: nothing, for Lion and Adagrad too. "
        "Training gives the same bits (not with fp16.enabled).",
        .values = masters),
    KEY("state.moments", ENUM, AT(state.moments), "fp32", "fp32|bf16|8bit", NONE, FIXED,
        "How Adam stores its two moments. fp32: 8 bytes per parameter, exact. bf16 (4 bytes) and "
        "8bit (2.03 bytes: codes with a scale for each 256) are approximate: rounded "
        "stochastically, with the same bits in every placement. Fixed for a run.",
        .values = moments),

    KEY("state.params", ENUM, AT(model.stored.format), "working",
        "working|int8|int8_rows|nf4|nf4_double|fp4|fp4_double|fp8_rows|fp8_blocks|mxfp4", NONE,
        FIXED,
        "How matrices of blocks are kept and moved that do not learn. working: in the working "
        "dtype. Others are packed when the run begins, and each pass expands them on the device. "
        "int8 (8.1 bits a parameter), nf4 and fp4 (4.5; with _double 4.13) are bitsandbytes' "
        "formats, int8_rows that of its LLM.int8(), fp8_blocks DeepSeek-V3's, mxfp4 (4.25) "
        "gpt-oss's. Embedding, router, norms, biases and head stay in the working dtype. Default: "
        "if the job has neither this nor state.rules, as the checkpoint of model.hf has them; else "
        "working."),
    KEY("state.rules", OBJECTS, NOWHERE, NONE, "[0,256]", "rules", FIXED,
        "Other formats for single matrices; a later rule wins over an earlier one and over "
        "state.params."),
    KEY("state.rules.*.tensors", STRING, NOWHERE, NONE, NONE, NONE, FIXED,
        "Words of the matrices' names in a row, with dots: \"experts\", \"self_attn\", "
        "\"layers.3.mlp\"; \"embed_tokens\" and \"lm_head\" too. Required."),
    KEY("state.rules.*.params", ENUM, NOWHERE, NONE,
        "working|int8|int8_rows|nf4|nf4_double|fp4|fp4_double|fp8_rows|fp8_blocks|mxfp4", NONE,
        FIXED, "Their format, as in state.params. Required."),
    KEY("load_in_4bit", BOOL, NOWHERE, "false", NONE, NONE, FIXED,
        "bitsandbytes' name for state.params nf4, nf4_double, fp4 or fp4_double, as the two keys "
        "below say."),
    KEY("load_in_8bit", BOOL, NOWHERE, "false", NONE, NONE, FIXED,
        "bitsandbytes' name for state.params int8_rows. Its outliers, which are a matter of "
        "activations, have no counterpart: products are those of the working dtype."),
    /* job_quantization.c takes the whole block and removes it */
    KEY("quantization_config", ANY, NOWHERE, NONE, NONE, NONE, FIXED,
        "transformers' BitsAndBytesConfig, or a block of that name in a config.json: another way "
        "to write state.params and state.rules."),
    KEY("bnb_4bit_quant_type", ENUM, NOWHERE, "fp4", "fp4|nf4", NONE, FIXED,
        "The format of load_in_4bit."),
    KEY("bnb_4bit_use_double_quant", BOOL, NOWHERE, "false", NONE, NONE, FIXED,
        "Whether the scales of load_in_4bit are quantized too."),
    IDLE_ANY("bnb_4bit_compute_dtype",
             "products are those of the working dtype, which bf16.enabled and fp16.enabled say"),
    IDLE_ANY("bnb_4bit_quant_storage", "codes are bytes in every tier"),
    IDLE_ANY("llm_int8_threshold", "outliers of activations are not treated apart"),

    KEY("io.backend", ENUM, AT(io.backend), "auto", "auto|uring|pool", NONE, FREE,
        "How drives are accessed: io_uring, or threads with pread and pwrite. auto: io_uring if "
        "the kernel allows it."),
    KEY("io.cores", CORES, AT(io.cores), NONE, NONE, NONE, FREE,
        "Cores of I/O and of the scheduler, as in \"0-7,16\". Default: all cores of the NUMA "
        "nodes that hold the memory."),
    KEY("io.stuck_seconds", FLOAT, AT(io.stuck_seconds), "30", "[0,1e9]", "seconds", FREE,
        "A drive that does not answer for longer is reported in one line, with its file and the "
        "number of requests that wait, and again when that time has doubled; 0: never. "
        "A request that takes ten minutes stops the run. When started again, the run resumes "
        "from its last commit."),
    KEY("io.polled_completions", BOOL, AT(io.polled_completions), "false", NONE, NONE, FREE,
        "The scheduler's thread asks the drives for completions without sleeping, instead of "
        "waiting for interrupts (IORING_SETUP_IOPOLL). It takes one core, so give it one that "
        "computing does not use (io.cores). A real read must prove it; where it fails, one line "
        "says why, and interrupts are used."),
    REFUSED("io.passthrough",
            "slabs are files, and NVMe commands that bypass their file system (uring_cmd on "
            "/dev/ng*) would need the files' block addresses, which the file system may change at "
            "any time: a write could then hit another file; leave it out"),
    KEY("io.verify_reads", BOOL, AT(io.verify_reads), "true", NONE, NONE, FREE,
        "Compares what is read from the drives with the checksum of what was written. A "
        "difference stops the run, and the message names unit, tile, file and offset. The state "
        "from which a run resumes is compared in any case."),

    KEY("comm.backend", ENUM, AT(comm.backend), "auto", "auto|mpi|staged|nccl", NONE, LATER_SILENT,
        "What carries tensors between ranks: mpi (host memory, cpu backend), nccl (between "
        "GPUs), staged (GPUs, through host memory and MPI; ranks may share a GPU; mpi with GPUs "
        "is the same). nccl sums in its own order, in the dtype that is sent. auto: mpi on the "
        "cpu backend; nccl if this build has it and each rank has its own GPU, else staged.",
        RANKS),
    KEY("comm.timeout_seconds", FLOAT, AT(comm.timeout_seconds), "300", "[2,86400]", "seconds",
        FREE,
        "A rank that sends nothing for this long counts as gone and ends the job. So does a rank "
        "that others wait for, if no rank makes progress for this long. Must be longer than the "
        "longest request to a drive.",
        RANKS),

    /* For tests and for debugging. They may change with any version, and no list shows them. */
    KEY("debug.model_expanded", BOOL, NOWHERE, "false", NONE, NONE, FREE,
        "Set in the job.json of a run: the block model holds all that the preset, or the "
        "checkpoint's config.json, said, and neither is read again."),
    KEY("debug.params_of_checkpoint", BOOL, AT(model.stored.is_of_checkpoint), "false", NONE, NONE,
        FREE,
        "Set beside state.params where the checkpoint gave it, so that what it has packed may not "
        "learn."),
    KEY("debug.params_of_block", BOOL, AT(model.stored.may_keep_absent), "false", NONE, NONE, FREE,
        "Set beside state.params where the job's block quantization_config gave it, so that "
        "modules which it leaves out may be absent."),
    KEY("debug.expands_checkpoint", BOOL, NOWHERE, "false", NONE, NONE, FREE,
        "Set by sluice import: where the job gives no format for a checkpoint that comes "
        "quantized, state.params is \"working\"."),
    KEY("debug.schedule.lookahead", INT, AT(schedule.lookahead), "0", "[0,1000000000]", "ops", FREE,
        "How many ops ahead of its use, in serial order, a buffer is given its memory when the "
        "plan is made; fewer use less memory and wait more. 0: as far as budgets allow.",
        .why = lookahead_most),
    KEY("debug.io.threads", INT, AT(io.threads), "0", "[0,1024]", "threads", FREE,
        "Threads with pread and pwrite, per drive, where io_uring is not used; 0: 4. At most 64 in "
        "all."),
    KEY("debug.io.stop_seconds", FLOAT, AT(io.stop_seconds), "600", "[0,1e9]", "seconds", FREE,
        "A request to a drive that takes longer stops the run, which goes on from its last commit "
        "when it is started again; above io.stuck_seconds; 0: never."),
    KEY("debug.comm.exit_seconds", FLOAT, AT(comm.exit_seconds), "30", "[1,86400]", "seconds", FREE,
        "From a rank's failure to the end of all processes, at most.", RANKS),
    KEY("debug.comm.staging_bytes", SIZE, AT(comm.staging_bytes), "8388608", NONE, "bytes", FREE,
        "Host memory of each rank through which collectives of mpi and staged pass; at least 64 "
        "KiB.",
        RANKS),

};

const uint32_t configi_own_key_count = sizeof configi_own_keys / sizeof configi_own_keys[0];
