/* The rows of the block `model`, and of what stands beside the blocks. The columns are those of
 * keys_own.c. Constant data. */
#include "config/keys_internal.h"

/* The reasons why numbers have upper bounds. */
static const char program_blocks[] =
    "A step's program has ops for each block, and is compiled before the first step.";
static const char dimensions[] = "Products of the model's dimensions are counted in 64 bits.";
static const char token_ids[] =
    "Token ids are signed 32-bit numbers, and bytes of the matrix of logits are counted in 64 "
    "bits.";
static const char one_sequence[] = "All activations of a sequence are on the device together.";

const configi_key configi_model_keys[] = {
    KEY("description", STRING, NOWHERE, NONE, NONE, NONE, FREE, "A remark for people."),

    KEY("auto", ENUM, NOWHERE, "none", "none|hf", NONE, FREE,
        "Who fills in the values \"auto\" of DeepSpeed's keys. none: they have their defaults, and "
        "the log names those; a learning rate or batch size that is \"auto\" must be given. hf: "
        "they have the values that Hugging Face's Trainer has by default, which the log names. "
        "The option --auto sets it."),

    KEY("model.description", STRING, NOWHERE, NONE, NONE, NONE, FREE, "A remark for people."),
    KEY("model.preset", STRING, AT(preset), NONE, NONE, NONE, FREE,
        "Name of a model in configs/models.json. Other keys of the block override its keys, and "
        "the log names them."),
    KEY("model.hf", STRING, AT(hf), NONE, NONE, NONE, START,
        "Directory of a Hugging Face checkpoint (gpt2, llama, mistral, qwen2, qwen3, starcoder2, "
        "phi, phi3, gemma, gemma2, gemma3_text, olmo2, olmo3, exaone4, granite, smollm3, glm, "
        "glm4, bert, opt, gpt_neox, cohere, stablelm, mixtral, qwen2_moe, qwen3_moe, olmoe, "
        "gpt_oss, deepseek_v2, deepseek_v3, glm4_moe), relative to the current directory. Its "
        "config.json defines the model, and a new run begins with its weights. The block may add "
        "seq_length (default: 1024, or less if the model allows less), max_part_bytes, "
        "experts_per_unit and expert_parallel_size. Other keys may only repeat what config.json "
        "says."),
    KEY("model.module", ANY, NOWHERE, NONE, NONE, NONE, FIXED,
        "A model whose passes a program computes, through the Python package or sluice_module_* "
        "(src/sluice.h): its description, or the path of a JSON file with it, relative to the "
        "current directory. model.module.lends_grads: true if the program can leave gradients "
        "where they are (false). model.module.units: objects with name, tensors (name, shape) and, "
        "if they are not 0 and false, group (of optimizer numbers), frozen, matrices (which Muon "
        "updates). model.module.stages, in forward order: objects with name, units (one or two "
        "numbers), forward and backward (seconds; copy_seconds, of a backward: the part of seconds "
        "in which gradients are copied, unless they are lent; reads, adds: true or false for each "
        "unit; null: not computed). Takes the place of all other keys of the block, and of data."),
    KEY("model.family", ENUM, AT(model.family), NONE,
        "gpt2|llama|starcoder2|phi|phi3|gemma|olmo2|exaone4|glm|glm4|bert|gpt_neox|opt|cohere|"
        "stablelm|gemma2|mixtral|qwen2_moe|qwen3_moe|olmoe|gpt_oss|deepseek|glm4_moe",
        NONE, FIXED,
        "gpt2: learned positions, LayerNorm, GELU. llama: rotary positions, RMSNorm, SwiGLU, "
        "grouped keys and values. starcoder2: llama's attention, the rest as gpt2. phi: gpt2 with "
        "rotary positions, parallel branches of one norm, and a bias of the output matrix. phi3: "
        "llama with one matrix for q, k and v, and one for gate and up. gemma: llama with GELU in "
        "the gate and norms that multiply by 1 + weight. olmo2: llama with norms after the layers, "
        "and of all of q and of k. exaone4: the same with norms of q's and k's heads. glm: llama "
        "with rotary positions of neighbours and one matrix for gate and up. glm4: the same with "
        "norms after both branches, too. bert: attention to both sides, norms after the sums, "
        "token types (all tokens have type 0), and a dense layer before the tied output matrix; it "
        "learns to fill in masked tokens (data.masked). gpt_neox: gpt2 with rotary positions and "
        "exact GELU. opt: gpt2 with ReLU. cohere: llama with parallel branches of one LayerNorm "
        "without bias, and rotary positions of neighbours. stablelm: llama with LayerNorm. gemma2: "
        "gemma with norms before and after both branches. mixtral, qwen2_moe, qwen3_moe, olmoe, "
        "gpt_oss, deepseek and glm4_moe are mixtures of experts: llama with a router and "
        "num_experts feed-forward parts, of which each token has num_experts_per_tok. qwen2_moe: "
        "one more that all tokens have. olmoe: norms of all of q and of k. gpt_oss: sinks in "
        "attention, biases in router and experts, and a gate with limits. deepseek and glm4_moe: "
        "one more for all tokens, and none in the first blocks. deepseek: multi-head latent "
        "attention."),
    KEY("model.num_layers", INT, AT(model.num_layers), NONE, "[1,65536]", "blocks", FIXED,
        "Transformer blocks.", .why = program_blocks),
    KEY("model.hidden_size", INT, AT(model.hidden_size), NONE, "[1,1048576]", "elements", FIXED,
        "Width of the residual stream.", .why = dimensions),
    KEY("model.num_heads", INT, AT(model.num_heads), NONE, "[1,65536]", NONE, FIXED,
        "Attention heads; must divide hidden_size unless head_dim is given.", .why = dimensions),
    KEY("model.num_kv_heads", INT, AT(model.num_kv_heads), NONE, "[1,65536]", NONE, FIXED,
        "Heads of keys and values; must divide num_heads. Default: num_heads.", .why = dimensions),
    KEY("model.head_dim", INT, AT(model.head_dim), NONE, "[1,256]", "elements", FIXED,
        "Width of a head. Default: hidden_size / num_heads, which gpt2, bert, opt, gpt_neox and "
        "stablelm always have."),
    KEY("model.kv_latent_size", INT, AT(model.kv_latent_size), NONE, "[1,1048576]", "elements",
        FIXED,
        "Multi-head latent attention (deepseek): the columns from which keys and values of all "
        "heads are made. config.json calls it kv_lora_rank.",
        .why = dimensions),
    KEY("model.q_latent_size", INT, AT(model.q_latent_size), NONE, "[1,1048576]", "elements", FIXED,
        "The same for queries (deepseek). Default: queries are made from the block's input.",
        .why = dimensions),
    KEY("model.rope_head_dim", INT, AT(model.rope_head_dim), NONE, "[2,256]", "elements", FIXED,
        "The last elements of each head, of head_dim in all, that have rotary positions "
        "(deepseek). Those of keys are the same in all heads."),
    KEY("model.value_head_dim", INT, AT(model.value_head_dim), NONE, "[1,256]", "elements", FIXED,
        "Width of a head of values (deepseek). Default: head_dim."),
    KEY("model.rope_halves", BOOL, AT(model.rope_halves), "false", NONE, NONE, FIXED,
        "Rotary positions turn pairs (i, i + R/2) of R elements, not neighbours (deepseek)."),
    KEY("model.attention_sinks", BOOL, AT(model.attention_sinks), "false", NONE, NONE, FIXED,
        "Each head has a learned logit in the denominator of its softmax (llama). Such a run "
        "cannot be exported yet."),
    KEY("model.qkv_bias", BOOL, AT(model.qkv_bias), NONE, NONE, NONE, FIXED,
        "Whether the projections to queries, keys and values have biases, for llama, glm, glm4, "
        "cohere, stablelm, qwen2_moe, qwen3_moe, olmoe, gpt_oss, glm4_moe and deepseek (there, "
        "those of its input). Default: true for glm and glm4, else false (Qwen2: true). gpt2, "
        "bert, opt, gpt_neox and starcoder2 always have them, the others never."),
    KEY("model.qk_norm", BOOL, AT(model.qk_norm), "false", NONE, NONE, FIXED,
        "Norms over each head of queries and keys before the rotation (llama, cohere, gemma2, "
        "qwen3_moe, glm4_moe; Qwen3 and Gemma 3: true)."),
    KEY("model.parallel_residual", BOOL, AT(model.parallel_residual), "false", NONE, NONE, FIXED,
        "Attention and the feed-forward part both read the block's input, and their sum is added "
        "to it (gpt_neox, stablelm; GPT-NeoX and Pythia: true). cohere always does it."),
    KEY("model.out_bias", BOOL, AT(model.out_bias), "false", NONE, NONE, FIXED,
        "Whether the projection of attention's output has a bias (llama, cohere, qwen3_moe, "
        "olmoe, gpt_oss, deepseek)."),
    KEY("model.mlp_bias", BOOL, AT(model.mlp_bias), "false", NONE, NONE, FIXED,
        "Whether the linear layers of the feed-forward part have biases (llama; deepseek: also "
        "those of the expert that all tokens have)."),
    KEY("model.activation", ENUM, AT(model.activation), "default",
        "default|gelu|gelu_tanh|relu|silu", NONE, FIXED,
        "The function of the feed-forward part, or of its gate. default: the family's own. gelu: "
        "the exact form. relu: without a gate; silu: with one."),
    KEY("model.embedding_multiplier", FLOAT, AT(model.embedding_multiplier), NONE, "(0,]", NONE,
        FIXED,
        "Factor of the embedding's rows, rounded to the working dtype. Default: none. Gemma's is "
        "the root of model.hidden_size."),
    KEY("model.attention_multiplier", FLOAT, AT(model.attention_multiplier), NONE, "(0,]", NONE,
        FIXED, "Factor of attention's scores. Default: 1 / sqrt(head_dim)."),
    KEY("model.residual_multiplier", FLOAT, AT(model.residual_multiplier), NONE, "(0,]", NONE,
        FIXED, "Factor of what each branch adds to the residual stream (llama). Default: none."),
    KEY("model.logits_scaling", FLOAT, AT(model.logits_scaling), NONE, "(0,]", NONE, FIXED,
        "Divisor of the logits. Default: none."),
    KEY("model.hidden_dropout", FLOAT, AT(model.hidden_dropout), "0.0", "[0,1)", NONE, FIXED,
        "Share of what each branch adds to the residual stream that is dropped at random in "
        "training (gpt2, starcoder2, phi3, bert, opt, gpt_neox, stablelm). With model.hf the "
        "default is what config.json says, as in transformers. The elements depend on run.seed, "
        "the step and the sample, not on how the step is computed."),
    KEY("model.embedding_dropout", FLOAT, AT(model.embedding_dropout), "0.0", "[0,1)", NONE, FIXED,
        "The same for the rows of the embedding (gpt2, starcoder2, gpt_neox)."),
    KEY("model.attention_dropout", FLOAT, AT(model.attention_dropout), "0.0", "[0,1)", NONE, FIXED,
        "The same for attention's probabilities (every family)."),
    KEY("model.attention_soft_cap", FLOAT, AT(model.attention_soft_cap), NONE, "(0,]", NONE, FIXED,
        "A score s becomes c tanh(s / c), with this c. Default: it stays."),
    KEY("model.logits_soft_cap", FLOAT, AT(model.logits_soft_cap), NONE, "(0,]", NONE, FIXED,
        "The same for logits."),
    KEY("model.window", INT, AT(model.window), NONE, "[1,1073741824]", "tokens", FIXED,
        "Attention within a window: a token sees this many positions, of which it is the last. "
        "Default: all up to its own."),
    KEY("model.window_pattern", STRING, AT(model.window_pattern), NONE, NONE, NONE, FIXED,
        "The blocks with that window: a letter for each block, w with it and f without, repeated "
        "to the last block. wf: every second block sees all. Default: all blocks have it."),
    KEY("model.window_rope_theta", FLOAT, AT(model.window_rope_theta), NONE, "(0,]", NONE, FIXED,
        "Base of the rotary positions in those blocks, which are not stretched. Default: as in "
        "the others."),
    KEY("model.nope_interval", INT, AT(model.nope_interval), NONE, "[1,65536]", "blocks", FIXED,
        "Every block whose number, from 1 on, is a multiple of it has no rotary positions. "
        "Default: all have them.",
        .why = program_blocks),
    KEY("model.ffn_size", INT, AT(model.ffn_size), NONE, "[1,16777216]", "elements", FIXED,
        "Inner width of the feed-forward part. Default: gpt2, bert, opt and gpt_neox 4 "
        "hidden_size; others 8/3 hidden_size, rounded up to a multiple of 256.",
        .why = dimensions),
    KEY("model.num_experts", INT, AT(model.expert_count), NONE, "[1,1024]", "experts", FIXED,
        "Experts of a block, in families that are mixtures of experts (mixtral, qwen2_moe, "
        "qwen3_moe, olmoe, gpt_oss, deepseek, glm4_moe).",
        .why = dimensions),
    KEY("model.num_experts_per_tok", INT, AT(model.experts_per_token), NONE, "[1,1024]", "experts",
        FIXED, "Experts that each token has.", .why = dimensions),
    KEY("model.expert_ffn_size", INT, AT(model.expert_ffn_size), NONE, "[1,16777216]", "elements",
        FIXED, "Inner width of an expert. Default: ffn_size.", .why = dimensions),
    KEY("model.shared_ffn_size", INT, AT(model.shared_ffn_size), NONE, "[1,16777216]", "elements",
        FIXED, "Inner width of the expert that all tokens have (qwen2_moe, deepseek, glm4_moe).",
        .why = dimensions),
    KEY("model.norm_topk_prob", BOOL, AT(model.normalizes_experts), NONE, NONE, NONE, FIXED,
        "Whether the weights of a token's experts are divided by their sum (most "
        "models of Qwen3: true). Default: true for mixtral and gpt_oss, else false."),
    KEY("model.swiglu_limit", FLOAT, AT(model.swiglu_limit), NONE, "(0,1e30]", NONE, FIXED,
        "Largest value of an expert's gate, and of the magnitude of what it is multiplied with "
        "(gpt_oss). Default: 7."),
    KEY("model.routed_scaling_factor", FLOAT, AT(model.routed_scaling), NONE, "[1e-6,1e6]", NONE,
        FIXED, "Factor of the weights of a token's experts. Default: none."),
    KEY("model.scoring_func", ENUM, AT(model.sigmoid_scores), "softmax", "softmax|sigmoid", NONE,
        FIXED,
        "What makes the scores of experts of a router's logits (deepseek, glm4_moe). With sigmoid "
        "(DeepSeek-V3, GLM-4.5) a constant of each expert, its correction, is added where a "
        "token's experts are chosen."),
    KEY("model.n_group", INT, AT(model.expert_groups), NONE, "[1,1024]", "groups", FIXED,
        "Groups of neighbours into which the experts are divided (deepseek, glm4_moe): a token's "
        "experts come from its topk_group best groups. Default: none."),
    KEY("model.topk_group", INT, AT(model.groups_per_token), NONE, "[1,1024]", "groups", FIXED,
        "See n_group."),
    KEY("model.first_k_dense_replace", INT, AT(model.dense_blocks), NONE, "[1,65536]", "blocks",
        FIXED,
        "The first blocks, which have a plain feed-forward part of ffn_size in place of experts "
        "(deepseek, glm4_moe). Default: none.",
        .why = program_blocks),
    KEY("model.router_aux_loss_coef", FLOAT, AT(model.balance_coef), "0", "[0,1000]", NONE, FIXED,
        "Coefficient of the load-balancing loss, which training adds for each micro-batch, over "
        "all its tokens and blocks as in transformers (Switch Transformers, 2021). Published: "
        "0.001; olmoe 0.01. 0: not added."),
    KEY("model.router_z_loss_coef", FLOAT, AT(model.router_z_coef), "0", "[0,1000]", NONE, FIXED,
        "Coefficient of the z-loss of routers, the mean of the squared logsumexp of their logits "
        "(ST-MoE, 2022). Published: 0.001. 0: not added."),
    KEY("model.experts_per_unit", INT, AT(model.experts_per_unit), NONE, "[1,1024]", "experts",
        FIXED,
        "Experts that are fetched, placed and updated together. It changes no loss and no "
        "gradient, but sums by units: the gradient norm, and scales of state.params and of "
        "approximate moments. "
        "Default: a divisor of num_experts, as many as have about 16 million parameters."),
    KEY("model.expert_parallel_size", INT, AT(model.expert_ranks), "1", "[1,1024]", "ranks", FIXED,
        "Expert parallelism. 1: experts are cut over the ranks like all units (ZeRO), and their "
        "parameters and gradients travel. The number of ranks: each rank owns whole experts for "
        "good, and rows of tokens travel to them and back (all-to-all). \"auto\": the way that "
        "moves fewer bytes, if all choices are equally likely; sluice plan states both. "
        "Losses and gradients have the same bits (communication_data_type fp32), except where NCCL "
        "sums the gradients of ZeRO. It must divide "
        "num_experts and experts_per_unit, and is at most 32 (16 if experts have biases or "
        "adapters). With zero_optimization.stage 1 or more and schedule.order layer_major."),
    KEY("model.vocab_size", INT, AT(model.vocab_size), NONE, "[1,1000000000]", "tokens", FIXED,
        "Rows of the embedding. Default with the tokenizer \"bytes\": 256.", .why = token_ids),
    KEY("model.seq_length", INT, AT(model.seq_length), NONE, "[1,16777216]", "tokens", FIXED,
        "Tokens of one sequence in training.", .why = one_sequence),
    KEY("model.position_count", INT, AT(model.position_count), NONE, "[1,16777216]", "rows", FIXED,
        "Rows of the table of positions (gpt2, bert; opt has two more), at least seq_length. "
        "Default: seq_length."),
    KEY("model.type_count", INT, AT(model.type_count), NONE, "[1,65536]", "rows", FIXED,
        "Rows of the table of token types (bert). Default: 2.", .why = dimensions),
    KEY("model.tie_embeddings", BOOL, AT(model.tie_embeddings), NONE, NONE, NONE, FIXED,
        "Whether the output matrix is the embedding. Default: gpt2, bert, opt and cohere true, "
        "others false."),
    KEY("model.rope_theta", FLOAT, AT(model.rope_theta), "10000.0", "(0,]", NONE, FIXED,
        "Base of the rotary positions."),
    KEY("model.partial_rotary_factor", FLOAT, AT(model.partial_rotary_factor), "1.0", "(0,1]", NONE,
        FIXED,
        "Share of each head, its first elements, that has rotary positions (Phi-4-mini: 0.75, "
        "GLM-4: 0.5)."),
    KEY("model.rope_scaling.type", ENUM, AT(model.rope.scaling), "default",
        "default|linear|llama3|dynamic|yarn|longrope", NONE, FIXED,
        "How rotary frequencies are stretched. linear: all are divided by factor. llama3: those of "
        "long waves are divided, those of short waves stay, and those in between are blended. "
        "yarn: as llama3, by another ramp, and scores grow. dynamic: the base is raised if "
        "seq_length is above original_max_position_embeddings. longrope: each is divided by its "
        "number of a list: long_factor if seq_length is above that, else short_factor."),
    KEY("model.rope_scaling.factor", FLOAT, AT(model.rope.factor), NONE, "(0,]", NONE, FIXED,
        "The divisor of the frequencies. dynamic: how many times longer sequences may be. "
        "longrope: it only gives attention_factor."),
    KEY("model.rope_scaling.low_freq_factor", FLOAT, AT(model.rope.low_freq_factor), NONE, "(0,]",
        NONE, FIXED,
        "llama3: waves longer than original_max_position_embeddings / low_freq_factor are long."),
    KEY("model.rope_scaling.high_freq_factor", FLOAT, AT(model.rope.high_freq_factor), NONE, "(0,]",
        NONE, FIXED,
        "llama3: waves shorter than original_max_position_embeddings / high_freq_factor are "
        "short."),
    KEY("model.rope_scaling.original_max_position_embeddings", INT,
        AT(model.rope.original_positions), NONE, "[1,1073741824]", "tokens", FIXED,
        "All types but linear: the longest sequence before the frequencies were stretched."),
    KEY("model.rope_scaling.attention_factor", FLOAT, AT(model.rope.attention_factor), NONE, "(0,]",
        NONE, FIXED,
        "yarn, longrope: factor of q and of k. Default: it follows from factor as in "
        "transformers."),
    KEY("model.rope_scaling.beta_fast", FLOAT, AT(model.rope.beta_fast), NONE, "(0,]", "turns",
        FIXED,
        "yarn: waves that turn more often within original_max_position_embeddings stay. Default: "
        "32."),
    KEY("model.rope_scaling.beta_slow", FLOAT, AT(model.rope.beta_slow), NONE, "(0,]", "turns",
        FIXED, "yarn: waves that turn less often are divided by factor. Default: 1."),
    KEY("model.rope_scaling.mscale", FLOAT, AT(model.rope.mscale), NONE, "(0,]", NONE, FIXED,
        "yarn: gives attention_factor with mscale_all_dim."),
    KEY("model.rope_scaling.mscale_all_dim", FLOAT, AT(model.rope.mscale_all_dim), NONE, "(0,]",
        NONE, FIXED, "yarn: gives attention_factor with mscale."),
    KEY("model.rope_scaling.truncate", BOOL, AT(model.rope.truncates), "true", NONE, NONE, FIXED,
        "yarn: the bounds between the waves are rounded to whole pairs of a head's elements."),
    KEY("model.rope_scaling.short_factor", FLOATS, NOWHERE, NONE, "(0,]", NONE, FIXED,
        "longrope: a divisor for each pair of a head's rotated elements."),
    KEY("model.rope_scaling.long_factor", FLOATS, NOWHERE, NONE, "(0,]", NONE, FIXED,
        "longrope: the same for longer sequences."),
    KEY("model.norm_epsilon", FLOAT, AT(model.norm_epsilon), "1e-5", "(0,1]", NONE, FIXED,
        "Added to the variance in norms."),
    KEY("model.init_std", FLOAT, AT(model.init_std), "0.02", "[0,]", NONE, FIXED,
        "Standard deviation of initial weights; residual projections take it divided by the square "
        "root of 2 num_layers."),
    KEY("model.max_part_bytes", SIZE, AT(model.max_part_bytes), "0", NONE, "bytes", FIXED,
        "Units whose working parameters are larger are cut into parts, each fetched by itself; 0: "
        "no parts. The sizes of parts are part of the arithmetic."),
};

const uint32_t configi_model_key_count = sizeof configi_model_keys / sizeof configi_model_keys[0];
