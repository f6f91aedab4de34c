/* The rows of Sluice's own blocks. See options.h. Constant data. */
#include "config/config_internal.h"

static const char one_rank[] = "there is nobody to speak to";

const option configi_own_rows[] = {
    {.path = "description", .type = OPTION_STRING, .help = "A remark for people."},

    {.path = "model.description", .type = OPTION_STRING, .help = "A remark for people."},
    {.path = "model.preset",
     .type = OPTION_STRING,
     .help =
         "Name of a file in configs/models, without .json; other keys of the block override it. "
         "Beside \"family\" it is only a label."},
    {.path = "model.hf",
     .type = OPTION_STRING,
     .help =
         "Directory of a Hugging Face checkpoint (gpt2, llama, mistral, qwen2, qwen3), relative "
         "to the current directory: its config.json is the model, and a new run begins with its "
         "weights. Beside it stand seq_length, which is 1024 or the model's longest where absent, "
         "and max_part_bytes; other keys may only repeat what it says."},
    {.path = "model.hf_expanded",
     .type = OPTION_BOOL,
     .fallback = "false",
     .help = "Set in the job.json of a run: the block holds all that the checkpoint's config.json "
             "said, and it is not read again."},
    {.path = "model.family",
     .type = OPTION_ENUM,
     .choices = "gpt2|llama",
     .help = "gpt2: learned positions, LayerNorm, GELU. llama: rotary positions, RMSNorm, SwiGLU, "
             "grouped keys and values."},
    {.path = "model.num_layers",
     .type = OPTION_INT,
     .range = "[1,65536]",
     .unit = "blocks",
     .help = "Transformer blocks."},
    {.path = "model.hidden_size",
     .type = OPTION_INT,
     .range = "[1,1048576]",
     .unit = "elements",
     .help = "Width of the residual stream."},
    {.path = "model.num_heads",
     .type = OPTION_INT,
     .range = "[1,65536]",
     .help = "Attention heads; must divide hidden_size where head_dim is not given."},
    {.path = "model.num_kv_heads",
     .type = OPTION_INT,
     .range = "[1,65536]",
     .help = "Heads of keys and values; must divide num_heads. Default: num_heads."},
    {.path = "model.head_dim",
     .type = OPTION_INT,
     .range = "[1,256]",
     .unit = "elements",
     .help = "Width of a head (llama). Default: hidden_size / num_heads."},
    {.path = "model.qkv_bias",
     .type = OPTION_BOOL,
     .help = "Whether the projections to queries, keys and values have biases. Default: gpt2 true, "
             "which it always is; llama false (Qwen2: true)."},
    {.path = "model.qk_norm",
     .type = OPTION_BOOL,
     .fallback = "false",
     .help =
         "RMSNorm over each head of queries and keys before the rotation (llama; Qwen3: true)."},
    {.path = "model.ffn_size",
     .type = OPTION_INT,
     .range = "[1,16777216]",
     .unit = "elements",
     .help = "Inner width of the feed-forward part. Default: gpt2 4 hidden_size; llama 8/3 "
             "hidden_size, rounded up to a multiple of 256."},
    {.path = "model.vocab_size",
     .type = OPTION_INT,
     .range = "[1,2147483647]",
     .unit = "tokens",
     .help = "Rows of the embedding. Default with the tokenizer \"bytes\": 256."},
    {.path = "model.seq_length",
     .type = OPTION_INT,
     .range = "[1,16777216]",
     .unit = "tokens",
     .help = "Tokens of one sequence in training."},
    {.path = "model.position_count",
     .type = OPTION_INT,
     .range = "[1,16777216]",
     .unit = "rows",
     .help = "Rows of the table of positions (gpt2), at least seq_length. Default: seq_length."},
    {.path = "model.tie_embeddings",
     .type = OPTION_BOOL,
     .help = "Whether the output matrix is the embedding. Default: gpt2 true, llama false."},
    {.path = "model.rope_theta",
     .type = OPTION_FLOAT,
     .fallback = "10000.0",
     .range = "(0,]",
     .help = "Base of the rotary positions (llama)."},
    {.path = "model.rope_scaling.type",
     .type = OPTION_ENUM,
     .fallback = "default",
     .choices = "default|linear|llama3",
     .help =
         "How rotary frequencies are stretched (llama). linear: divided by factor. llama3: those "
         "of long waves are, those of short ones stay, and in between both are blended."},
    {.path = "model.rope_scaling.factor",
     .type = OPTION_FLOAT,
     .range = "(0,]",
     .help = "What frequencies are divided by."},
    {.path = "model.rope_scaling.low_freq_factor",
     .type = OPTION_FLOAT,
     .range = "(0,]",
     .help =
         "llama3: waves longer than original_max_position_embeddings / low_freq_factor are long."},
    {.path = "model.rope_scaling.high_freq_factor",
     .type = OPTION_FLOAT,
     .range = "(0,]",
     .help = "llama3: waves shorter than original_max_position_embeddings / high_freq_factor are "
             "short."},
    {.path = "model.rope_scaling.original_max_position_embeddings",
     .type = OPTION_INT,
     .range = "[1,1073741824]",
     .unit = "tokens",
     .help = "llama3: the longest sequence before the frequencies were stretched."},
    {.path = "model.norm_epsilon",
     .type = OPTION_FLOAT,
     .fallback = "1e-5",
     .range = "(0,1]",
     .help = "Added to the variance in norms."},
    {.path = "model.init_std",
     .type = OPTION_FLOAT,
     .fallback = "0.02",
     .range = "[0,]",
     .help = "Standard deviation of initial weights; residual projections take it divided by the "
             "square root of 2 num_layers."},
    {.path = "model.max_part_bytes",
     .type = OPTION_SIZE,
     .fallback = "0",
     .unit = "bytes",
     .help =
         "Units whose working parameters are larger are cut into parts, each fetched by itself; "
         "0: no parts. The sizes of parts are part of the arithmetic."},

    {.path = "data.train",
     .type = OPTION_SOURCES,
     .unit = "files",
     .help = "Training text, JSON lines or token files (data.format), relative to the current "
             "directory; all ranks read the same. Paths, or objects with a path each; with a "
             "weight each they are sources of their own, else one after another."},
    {.path = "data.train.*.path",
     .type = OPTION_STRINGS,
     .unit = "files",
     .help = "The files of this entry. Required."},
    {.path = "data.train.*.weight",
     .type = OPTION_FLOAT,
     .range = "(0,]",
     .help =
         "The source's share of the windows, against the sum of all weights: all entries have "
         "one, or none has. In each 1024 windows the shares are kept to one window, in an order "
         "that data.seed draws; each source counts its epochs by itself."},
    {.path = "data.train.*.field",
     .type = OPTION_STRING,
     .fallback = "text",
     .help = "Field of a JSON line that holds the text."},
    {.path = "data.valid",
     .type = OPTION_SOURCES,
     .unit = "files",
     .help = "Held-out files for evaluation, in the same form as data.train, without weights: they "
             "are read in order."},
    {.path = "data.valid.*.path",
     .type = OPTION_STRINGS,
     .unit = "files",
     .help = "The files of this entry. Required."},
    {.path = "data.valid.*.field",
     .type = OPTION_STRING,
     .fallback = "text",
     .help = "Field of a JSON line that holds the text."},
    {.path = "data.tokenizer",
     .type = OPTION_STRING,
     .fallback = "bytes",
     .help = "How text and JSON lines become tokens: bytes (each byte is a token, 256 in all), or "
             "the path of a tokenizer.json, of a directory that has one, or of a SentencePiece "
             ".model. Default with model.hf: the checkpoint's own. The tokens are made once, when "
             "the run begins, in run.dir/data. Token files need none."},
    {.path = "data.chat_template",
     .type = OPTION_ENUM,
     .fallback = "auto",
     .choices = "auto|chatml|qwen2|qwen2.5|qwen3|smollm2|llama3|llama3.1|mistral|mistral-v1|"
                "mistral-tekken|zephyr|plain",
     .help = "How conversations in JSON lines ({\"messages\": ...}) are written; the loss counts "
             "their answers alone. auto: as the files beside the tokenizer say."},
    {.path = "data.shuffle",
     .type = OPTION_ENUM,
     .fallback = "windows",
     .choices = "windows|documents|none",
     .help = "Order of the training samples, drawn anew for each epoch: windows of the files as "
             "they are; documents, packed end to end, and windows of those; or none, in order. No "
             "attention mask keeps documents of a window apart."},
    {.path = "data.seed",
     .type = OPTION_INT,
     .fallback = "1",
     .range = "[0,]",
     .help = "Order of the training samples."},
    {.path = "data.format",
     .type = OPTION_ENUM,
     .fallback = "auto",
     .choices = "auto|text|llmc|u16|u32|megatron|npy|jsonl|made",
     .help =
         "What the files hold: text, llm.c's .bin, raw 16-bit or 32-bit token ids, little-endian, "
         "Megatron's .bin beside its .idx, NumPy's arrays, JSON lines, or what run.dir/data holds "
         "(made). auto: by how a file begins and what lies beside it, JSON lines by their name "
         "(.jsonl, .ndjson), else text; raw ids must be named, and a .bin is never taken for text. "
         "Token ids need model.vocab_size."},

    {.path = "train.only",
     .type = OPTION_STRINGS,
     .help = "What learns; all else keeps its weights and has no gradient and no optimizer state: "
             "blocks.FIRST-LAST, blocks.NUMBER (from 0 on), embed, head (the final norm and an "
             "untied output matrix), norms (all of them), all. A tied embedding is embed. Default: "
             "all, or with train.lora the adapters alone."},
    {.path = "train.lora.rank",
     .type = OPTION_INT,
     .fallback = "8",
     .range = "[1,4096]",
     .help = "Low-rank adapters beside the linear layers of every block: y = W x + alpha / rank "
             "B (A x), A with so many rows. train.lora, even empty, asks for adapters."},
    {.path = "train.lora.alpha",
     .type = OPTION_FLOAT,
     .fallback = "8",
     .range = "(0,]",
     .help = "Adapters are scaled by alpha / rank."},
    {.path = "train.lora.targets",
     .type = OPTION_STRINGS,
     .help = "Layers with adapters, named as PEFT's target_modules: q_proj, k_proj, v_proj, "
             "o_proj, gate_proj, up_proj, down_proj (llama); c_attn, attn.c_proj, c_fc, "
             "mlp.c_proj, or c_proj for both of that name (gpt2). Default: q_proj and v_proj; "
             "c_attn."},
    {.path = "train.lora.dropout",
     .type = OPTION_FLOAT,
     .fallback = "0",
     .range = "[0,1)",
     .help = "0 alone: adapters learn without dropout."},

    {.path = "run.dir",
     .type = OPTION_STRING,
     .help = "Run directory: metrics, trace, plan and state; of several ranks rank 0's alone. "
             "Required."},
    {.path = "run.steps",
     .type = OPTION_INT,
     .fallback = "1000",
     .range = "[1,]",
     .unit = "steps",
     .help = "Optimizer steps in all, those before a resume included."},
    {.path = "run.seed",
     .type = OPTION_INT,
     .fallback = "1",
     .range = "[0,]",
     .help = "Initial weights."},
    {.path = "run.eval_every",
     .type = OPTION_INT,
     .fallback = "0",
     .range = "[0,]",
     .unit = "steps",
     .help = "Steps between evaluations on data.valid; 0: none."},
    {.path = "run.eval_batches",
     .type = OPTION_INT,
     .fallback = "16",
     .range = "[1,]",
     .unit = "micro-batches",
     .help = "Length of an evaluation, rounded up to whole steps; shorter where data.valid is."},
    {.path = "run.commit_every",
     .type = OPTION_INT,
     .fallback = "50",
     .range = "[0,]",
     .unit = "steps",
     .help =
         "Steps between commits; 0: one commit, when the run ends or is stopped on request, with "
         "one place per extent: 12 bytes a parameter less of nvme, but a killed run cannot be "
         "resumed."},
    {.path = "run.keep",
     .type = OPTION_STEPS,
     .fallback = "0",
     .range = "[0,]",
     .unit = "steps",
     .help = "Commits that stay when the run goes on, each a run directory under run.dir/keep: "
             "those of every so many steps, or of the steps in a list, as in [100, 2000]; 0: none. "
             "Multiples of run.commit_every, or the last step."},
    {.path = "run.log_every",
     .type = OPTION_INT,
     .fallback = "1",
     .range = "[1,]",
     .unit = "steps",
     .help = "Steps between log lines. Default: steps_per_print where given, else 1."},
    {.path = "run.fresh",
     .type = OPTION_BOOL,
     .fallback = "false",
     .help = "The run directory must be new or hold no commit; refuses otherwise."},
    {.path = "run.paranoid",
     .type = OPTION_BOOL,
     .fallback = "false",
     .help =
         "Looks for faults of this program: fresh addresses, memory filled with NaN before it is "
         "written, compared while it is only read, poisoned when released. Slow; the same bits."},

    {.path = "device.backend",
     .type = OPTION_ENUM,
     .fallback = "auto",
     .choices = "auto|cpu|cuda",
     .help = "What computes; auto: cuda where this build has it and there is a GPU, else cpu. Of "
             "the GPUs "
             "in CUDA_VISIBLE_DEVICES a rank takes that of its number on its host, modulo theirs."},
    {.path = "device.threads",
     .type = OPTION_INT,
     .fallback = "0",
     .range = "[0,65536]",
     .unit = "threads",
     .help =
         "Threads that compute (cpu backend); 0: one per physical core that this process may "
         "use, within its quota of CPU time; from 8 cores on, one core is left to I/O. Ranks of "
         "a host that may use the same cores share them out."},
    {.path = "device.cores",
     .type = OPTION_CORES,
     .help = "Cores that compute, as in \"0-7,16\". Default: all that this process may use."},

    {.path = "update.threads",
     .type = OPTION_INT,
     .fallback = "0",
     .range = "[0,65536]",
     .unit = "threads",
     .help = "Threads of the optimizer on the CPU; 0: those that compute (cpu backend), or one per "
             "physical core of the GPU's node."},
    {.path = "update.cores",
     .type = OPTION_CORES,
     .help =
         "Cores of the optimizer on the CPU, as in \"0-7,16\". Default: those that compute (cpu "
         "backend), or those of the GPU's node."},

    {.path = "tiers.device.budget",
     .type = OPTION_SIZE,
     .fallback = "0",
     .unit = "bytes",
     .help =
         "Hard limit of each rank's device memory (on the cpu backend: of an arena that stands for "
         "it); 0: a quarter of the memory that is free, shared by the ranks of a host; of a GPU "
         "all that its libraries leave."},
    {.path = "tiers.host.budget",
     .type = OPTION_SIZE,
     .fallback = "0",
     .unit = "bytes",
     .help =
         "Hard limit of each rank's host memory; 0: half of the memory that is free, shared by the "
         "ranks of a host."},
    {.path = "tiers.nvme",
     .type = OPTION_BLOCKS,
     .range = "[0,16]",
     .unit = "drives",
     .help = "Directories for slabs, one per drive; state is striped over them, by measured speed "
             "where they are on several devices."},
    {.path = "tiers.nvme.*.path",
     .type = OPTION_STRING,
     .help = "Directory on the drive. {rank}, {local_rank} and {host} in it stand for each rank's "
             "own, so "
             "that ranks of a host have drives of their own. Required."},
    {.path = "tiers.nvme.*.budget",
     .type = OPTION_SIZE,
     .fallback = "0",
     .unit = "bytes",
     .help = "Hard limit on the drive; 0: its free space less 10%, which drives of one file system "
             "share. For the ranks of a host together, or for each where the path holds {rank} or "
             "{local_rank}."},
    {.path = "tiers.place.params",
     .type = OPTION_TIER,
     .fallback = "auto",
     .choices = "auto|device|host|nvme",
     .help = "Home of the working parameters; auto: the dearest tier on which the job fits."},
    {.path = "tiers.place.grads",
     .type = OPTION_TIER,
     .fallback = "auto",
     .choices = "auto|device|host|nvme",
     .help = "Home of the gradients; auto: as above."},
    {.path = "tiers.place.optimizer",
     .type = OPTION_TIER,
     .fallback = "auto",
     .choices = "auto|device|host|nvme",
     .help = "Home of master weights and moments; auto: as above."},
    {.path = "tiers.place.activations",
     .type = OPTION_TIER,
     .fallback = "auto",
     .choices = "auto|device|host|nvme",
     .help = "Home of the activation checkpoints between blocks; auto: as above."},
    {.path = "tiers.place.inner_activations",
     .type = OPTION_TIER,
     .fallback = "auto",
     .choices = "auto|recompute|device|host|nvme",
     .help = "Activations within a block: recompute them in the backward, or keep them from the "
             "forward on this tier; auto: kept on device or host where the step is predicted to be "
             "faster by 2% or more."},
    {.path = "tiers.place.rules",
     .type = OPTION_BLOCKS,
     .range = "[0,64]",
     .unit = "rules",
     .help = "Placement of single units; a later rule wins over an earlier one and over the kind."},
    {.path = "tiers.place.rules.*.units",
     .type = OPTION_UNITS,
     .help = "\"all\", \"3\" or \"0-11\", both ends included; 0 is the embedding. Required."},
    {.path = "tiers.place.rules.*.kind",
     .type = OPTION_ENUM,
     .choices = "params|grads|optimizer|activations|inner_activations",
     .help = "What the rule places. Required."},
    {.path = "tiers.place.rules.*.tier",
     .type = OPTION_TIER,
     .choices = "recompute|device|host|nvme",
     .help = "Where it rests; recompute is for inner_activations alone. Required."},

    {.path = "schedule.order",
     .type = OPTION_ENUM,
     .fallback = "layer_major",
     .choices = "layer_major|batch_major|fastest",
     .help = "layer_major: all micro-batches pass a unit before the next unit is fetched; "
             "batch_major: each micro-batch passes all units, so that less of the activations "
             "rests. Both give the same bits. fastest: whichever of the two has the shorter "
             "planned step."},
    {.path = "schedule.update",
     .type = OPTION_ENUM,
     .fallback = "auto",
     .choices = "auto|after_backward|in_next_forward|in_backward|delayed_one_step",
     .help =
         "When the optimizer runs; in_next_forward hides its I/O behind the next forward, to the "
         "same bits. in_backward, as each gradient is complete, needs gradient_clipping 0, no fp16 "
         "and no overflow check. delayed_one_step is approximate: gradients are one step late."},
    {.path = "schedule.tile_elems",
     .type = OPTION_INT,
     .fallback = "0",
     .range = "[0,]",
     .unit = "elements",
     .help = "Elements of one optimizer tile; 0: automatic, at most "
             "zero_optimization.sub_group_size."},
    {.path = "schedule.lookahead",
     .type = OPTION_INT,
     .fallback = "0",
     .range = "[0,]",
     .unit = "ops",
     .help =
         "How many ops ahead of its use, in serial order, a buffer is given its memory when the "
         "plan is made; fewer use less memory and wait more. 0: as far as budgets allow."},

    {.path = "state.master",
     .type = OPTION_ENUM,
     .fallback = "fp32",
     .choices = "fp32|split",
     .help = "How Adam stores master weights. fp32: 4 bytes a parameter beside the working copy. "
             "split: 2 bytes, the low half, which with the bf16 working copy is all of the fp32 "
             "value: the same bits in training (needs bf16.enabled)."},
    {.path = "state.moments",
     .type = OPTION_ENUM,
     .fallback = "fp32",
     .choices = "fp32|bf16|8bit",
     .help = "How Adam stores its two moments. fp32: 8 bytes a parameter, exact. bf16 (4 bytes) "
             "and 8bit (2.03 bytes: codes with a scale for each 256) are approximate: rounded "
             "stochastically, to the same bits in every placement. Fixed for a run."},

    {.path = "io.backend",
     .type = OPTION_ENUM,
     .fallback = "auto",
     .choices = "auto|uring|pool",
     .help =
         "How drives are driven: io_uring, or threads with pread and pwrite; auto: io_uring where "
         "the kernel allows it."},
    {.path = "io.threads",
     .type = OPTION_INT,
     .fallback = "0",
     .range = "[0,1024]",
     .unit = "threads",
     .help =
         "Threads with pread and pwrite, per drive, where io_uring is not used; 0: 4. At most 64 "
         "in all."},
    {.path = "io.cores",
     .type = OPTION_CORES,
     .help = "Cores of I/O and of the scheduler, as in \"0-7,16\". Default: all of the NUMA nodes "
             "where the memory is."},
    {.path = "io.stuck_seconds",
     .type = OPTION_FLOAT,
     .fallback = "30",
     .range = "[0,1e9]",
     .unit = "seconds",
     .help = "A request to a drive that takes longer is reported, with its file and offset, and "
             "waited for until io.stop_seconds; 0: never."},
    {.path = "io.stop_seconds",
     .type = OPTION_FLOAT,
     .fallback = "600",
     .range = "[0,1e9]",
     .unit = "seconds",
     .help = "A request to a drive that takes longer stops the run, which goes on from its last "
             "commit when it is started again; above io.stuck_seconds; 0: never."},
    {.path = "io.verify_reads",
     .type = OPTION_BOOL,
     .fallback = "true",
     .help =
         "Compare what is read from the drives with the checksum of what was written; a "
         "difference stops the run and names unit, tile, file and offset. What a run that goes on "
         "begins with is compared in any case."},

    {.path = "comm.backend",
     .type = OPTION_ENUM,
     .fallback = "auto",
     .choices = "auto|mpi|staged|nccl",
     .help =
         "What carries tensors between ranks: mpi (host memory, cpu backend), nccl (between GPUs), "
         "staged (GPUs, through host memory and MPI; ranks may share a GPU; mpi with GPUs is the "
         "same). Sums of nccl are its own, in the dtype that is sent. auto: mpi on the cpu "
         "backend; nccl where this build has it and each rank has a GPU of its own, else staged.",
     .alone = one_rank},
    {.path = "comm.timeout_seconds",
     .type = OPTION_FLOAT,
     .fallback = "300",
     .range = "[2,86400]",
     .unit = "seconds",
     .help =
         "A rank that says nothing for so long counts as gone and ends the job; so does one that "
         "does "
         "not come where others wait for it while no rank gets on with anything for so long. Above "
         "the longest that a drive may take for a request.",
     .alone = one_rank},
    {.path = "comm.exit_seconds",
     .type = OPTION_FLOAT,
     .fallback = "30",
     .range = "[1,86400]",
     .unit = "seconds",
     .help = "From a rank's failure to the end of all processes, at most.",
     .alone = one_rank},
    {.path = "comm.staging_bytes",
     .type = OPTION_SIZE,
     .fallback = "8388608",
     .unit = "bytes",
     .help = "Host memory of each rank through which collectives of mpi and staged pass; at least "
             "64 KiB.",
     .alone = one_rank},
};

const uint32_t configi_own_row_count = sizeof configi_own_rows / sizeof configi_own_rows[0];
