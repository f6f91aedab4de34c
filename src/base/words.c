/* The names of the shared words. See words.h. */
#include "base/words.h"

static const char *name_at(const char *const *names, unsigned count, unsigned value)
{
    return value < count ? names[value] : "unknown";
}

#define NAME_OF(names, value) name_at(names, sizeof(names) / sizeof(names)[0], (unsigned)(value))

const char *tier_name(enum tier tier)
{
    static const char *const names[] = {
        [TIER_DEVICE] = "device",
        [TIER_HOST] = "host",
        [TIER_NVME] = "nvme",
        [TIER_RECOMPUTE] = "recompute",
        [TIER_AUTO] = "auto",
        [TIER_SELECTIVE] = "selective",
        [TIER_SELECTIVE_HOST] = "selective_host",
        [TIER_SELECTIVE_NVME] = "selective_nvme",
    };
    return NAME_OF(names, tier);
}

const char *state_kind_name(enum state_kind kind)
{
    static const char *const names[STATE_KIND_COUNT] = {
        [STATE_PARAMS] = "params",
        [STATE_GRADS] = "grads",
        [STATE_OPTIMIZER] = "optimizer",
        [STATE_ACTIVATIONS] = "activations",
        [STATE_INNER_ACTIVATIONS] = "inner activations",
    };
    return NAME_OF(names, kind);
}

const char *state_kind_key(enum state_kind kind)
{
    return kind == STATE_INNER_ACTIVATIONS ? "inner_activations" : state_kind_name(kind);
}

const char *order_name(enum order order)
{
    static const char *const names[] = {
        [ORDER_LAYER_MAJOR] = "layer_major",
        [ORDER_BATCH_MAJOR] = "batch_major",
        [ORDER_FASTEST] = "fastest",
    };
    return NAME_OF(names, order);
}

const char *update_name(enum update update)
{
    static const char *const names[] = {
        [UPDATE_AFTER_BACKWARD] = "after_backward",
        [UPDATE_IN_NEXT_FORWARD] = "in_next_forward",
        [UPDATE_IN_BACKWARD] = "in_backward",
        [UPDATE_DELAYED_ONE_STEP] = "delayed_one_step",
        [UPDATE_AUTO] = "auto",
    };
    return NAME_OF(names, update);
}

const char *fetch_name(enum fetch fetch)
{
    static const char *const names[] = {
        [FETCH_ALL] = "all", [FETCH_HIT] = "hit", [FETCH_AUTO] = "auto"};
    return NAME_OF(names, fetch);
}

const char *model_family_name(enum model_family family)
{
    static const char *const names[MODEL_FAMILY_COUNT] = {
        [MODEL_GPT2] = "gpt2",
        [MODEL_LLAMA] = "llama",
        [MODEL_STARCODER2] = "starcoder2",
        [MODEL_PHI] = "phi",
        [MODEL_PHI3] = "phi3",
        [MODEL_GEMMA] = "gemma",
        [MODEL_OLMO2] = "olmo2",
        [MODEL_EXAONE4] = "exaone4",
        [MODEL_GLM] = "glm",
        [MODEL_GLM4] = "glm4",
        [MODEL_BERT] = "bert",
        [MODEL_GPT_NEOX] = "gpt_neox",
        [MODEL_OPT] = "opt",
        [MODEL_COHERE] = "cohere",
        [MODEL_STABLELM] = "stablelm",
        [MODEL_GEMMA2] = "gemma2",
        [MODEL_MIXTRAL] = "mixtral",
        [MODEL_QWEN2_MOE] = "qwen2_moe",
        [MODEL_QWEN3_MOE] = "qwen3_moe",
        [MODEL_OLMOE] = "olmoe",
        [MODEL_GPT_OSS] = "gpt_oss",
        [MODEL_DEEPSEEK] = "deepseek",
        [MODEL_GLM4_MOE] = "glm4_moe",
    };
    return NAME_OF(names, family);
}

const char *rope_scaling_name(enum rope_scaling scaling)
{
    static const char *const names[ROPE_SCALING_COUNT] = {
        [ROPE_PLAIN] = "default",   [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3",
        [ROPE_DYNAMIC] = "dynamic", [ROPE_YARN] = "yarn",     [ROPE_LONGROPE] = "longrope",
    };
    return NAME_OF(names, scaling);
}

const char *activation_name(enum activation activation)
{
    static const char *const names[ACTIVATION_NAME_COUNT] = {
        [ACTIVATION_OF_FAMILY] = "default",         [ACTIVATION_NAMED_GELU] = "gelu",
        [ACTIVATION_NAMED_GELU_TANH] = "gelu_tanh", [ACTIVATION_NAMED_RELU] = "relu",
        [ACTIVATION_NAMED_SILU] = "silu",
    };
    return NAME_OF(names, activation);
}

const char *data_format_name(enum data_format format)
{
    static const char *const names[DATA_FORMAT_COUNT] = {
        [DATA_AUTO] = "auto",
        [DATA_TEXT] = "text",
        [DATA_LLMC] = "llmc",
        [DATA_U16] = "u16",
        [DATA_U32] = "u32",
        [DATA_MEGATRON] = "megatron",
        [DATA_NPY] = "npy",
        [DATA_JSONL] = "jsonl",
        [DATA_MADE] = "made",
        [DATA_MESSAGES] = "messages",
        [DATA_ALPACA] = "alpaca",
        [DATA_SHAREGPT] = "sharegpt",
        [DATA_PROMPT_COMPLETION] = "prompt_completion",
    };
    return NAME_OF(names, format);
}
