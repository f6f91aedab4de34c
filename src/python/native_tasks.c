/* The functions that need no open run: train, plan, probe, generate, evaluate, export. See
 * native.h. Each takes keyword arguments alone, of types that its caller in src/python/sluice has
 * checked, and returns a dict with the fields of that module's class. */
#include <math.h>
#include <string.h>

#include "python/native.h"

PyObject *native_step_value(const struct sluice_step_info *made)
{
    return Py_BuildValue("{sK sK sd sd sd sO sd sd sd}", "step", (unsigned long long)made->step,
                         "tokens", (unsigned long long)made->tokens, "loss", made->loss,
                         "grad_norm", made->grad_norm, "learning_rate", made->learning_rate,
                         "skipped", made->skipped ? Py_True : Py_False, "seconds", made->seconds,
                         "tokens_per_second", made->tokens_per_second, "model_flops",
                         made->model_flops);
}

static PyObject *callable_or_null(PyObject *object)
{
    return object == Py_None ? NULL : object;
}

/* None for a number that is not known. */
static PyObject *real_or_none(double value)
{
    if (!isnan(value))
        return PyFloat_FromDouble(value);
    Py_INCREF(Py_None);
    return Py_None;
}

/* Begins a call. Returns the path as text, or NULL with an exception. */
static const char *begin(struct native_call *call, PyObject *path, bool computes, bool watches)
{
    const char *name = PyBytes_AsString(path);
    if (native_wait() < 0 || native_enter(computes ? NATIVE_COMPUTES : NATIVE_READS) < 0)
        return NULL;
    native_call_begin(call, watches);
    return name;
}

/* The result of a call: its value, or the exception of a callback, or that of the status. */
static int finish(struct native_call *call, int status)
{
    int rc = native_call_end(call);
    native_leave();
    if (rc < 0)
        return -1;
    if (status == SLUICE_DONE)
        return 0;
    native_raise(status);
    return -1;
}

/* ---- train ---- */

static void on_step(void *user, const struct sluice_step_info *step)
{
    struct native_call *call = user;
    (void)native_call_back(call, call->on_step, "(KKdddNddd)", (unsigned long long)step->step,
                           (unsigned long long)step->tokens, step->loss, step->grad_norm,
                           step->learning_rate, PyBool_FromLong(step->skipped), step->seconds,
                           step->tokens_per_second, step->model_flops);
}

static void on_evaluation(void *user, uint64_t step, double loss)
{
    struct native_call *call = user;
    (void)native_call_back(call, call->on_evaluation, "(Kd)", (unsigned long long)step, loss);
}

static PyObject *train_value(const struct sluice_train_result *made)
{
    return Py_BuildValue(
        "{sK sK sK sd sN sN sO sK sK sK sK}", "step", (unsigned long long)made->step, "steps_done",
        (unsigned long long)made->steps_done, "tokens", (unsigned long long)made->tokens, "seconds",
        made->seconds, "loss", real_or_none(made->loss), "valid_loss",
        real_or_none(made->valid_loss), "resumed", made->resumed ? Py_True : Py_False,
        "device_bytes", (unsigned long long)made->peak_bytes[0], "host_bytes",
        (unsigned long long)made->peak_bytes[1], "nvme_bytes",
        (unsigned long long)made->peak_bytes[2], "resident_bytes",
        (unsigned long long)made->resident_bytes);
}

static PyObject *train(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",    "text",    "set",           "start_from", "machine", "fresh",
                            "verbose", "on_step", "on_evaluation", "watch",      "share",   NULL};
    PyObject *path, *step_call, *evaluation_call, *share, *out = NULL;
    struct native_opening opening;
    struct native_call call = {.stop = 0};
    struct sluice_train_options options = {
        .stop = &call.stop, .on_step = on_step, .on_evaluation = on_evaluation, .user = &call};
    struct sluice_options *job = &options.job;
    struct sluice_train_result made;
    struct native_texts set;
    int watch;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&zO&zzppOOpO", names, PyUnicode_FSConverter,
                                     &path, &job->job_text, native_texts_convert, &set, &job->from,
                                     &job->machine, &job->fresh, &job->verbose, &step_call,
                                     &evaluation_call, &watch, &share))
        return NULL;
    job->set = set.items;
    job->set_count = set.count;
    call.on_step = callable_or_null(step_call);
    call.on_evaluation = callable_or_null(evaluation_call);
    native_opening_init(&opening, Py_None, share, job);
    const char *name = begin(&call, path, true, watch);
    if (name && finish(&call, sluice_train(name, &options, &made)) == 0)
        out = train_value(&made);
    else if (name && opening.type)
        (void)native_opening_raise(&opening); /* it says more */
    native_texts_fini(&set);
    Py_DECREF(path);
    return out;
}

/* ---- plan ---- */

static PyObject *plan(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",  "text",           "set",     "machine",
                            "ranks", "ranks_per_host", "verbose", NULL};
    PyObject *path, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_plan_options options = {.ranks = 0};
    struct native_texts set;
    unsigned int ranks, ranks_per_host;
    char *json = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&zO&zIIi", names, PyUnicode_FSConverter,
                                     &path, &options.job_text, native_texts_convert, &set,
                                     &options.machine, &ranks, &ranks_per_host, &options.verbose))
        return NULL;
    options.ranks = ranks;
    options.ranks_per_host = ranks_per_host;
    options.set = set.items;
    options.set_count = set.count;
    const char *name = begin(&call, path, false, false);
    if (name && finish(&call, sluice_plan(name, &options, &json)) == 0)
        out = PyUnicode_FromString(json);
    sluice_free(json);
    native_texts_fini(&set);
    Py_DECREF(path);
    return out;
}

/* ---- probe ---- */

/* Comes on a thread of the probe, which Python does not know. */
static void on_progress(void *user, const char *what, double done_share)
{
    struct native_call *call = user;
    PyGILState_STATE state = PyGILState_Ensure();
    if (!call->type) {
        PyObject *result = PyObject_CallFunction(call->on_progress, "sd", what, done_share);
        if (!result) {
            PyErr_Fetch(&call->type, &call->value, &call->traceback);
            call->stop = 1;
        }
        Py_XDECREF(result);
    }
    PyGILState_Release(state);
}

static PyObject *probe(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path", "drives",      "backend", "quick",
                            "tiny", "on_progress", "watch",   NULL};
    PyObject *path, *progress_call, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_probe_options options = {.stop = &call.stop, .user = &call};
    struct native_texts drives;
    int watch;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&zppOp", names, PyUnicode_FSConverter,
                                     &path, native_texts_convert, &drives, &options.backend,
                                     &options.quick, &options.tiny, &progress_call, &watch))
        return NULL;
    options.drives = drives.items;
    options.drive_count = drives.count;
    call.on_progress = callable_or_null(progress_call);
    options.on_progress = call.on_progress ? on_progress : NULL;
    const char *name = begin(&call, path, true, watch);
    if (name && finish(&call, sluice_probe(name, &options)) == 0)
        out = Py_BuildValue(""); /* None */
    native_texts_fini(&drives);
    Py_DECREF(path);
    return out;
}

/* ---- generate ---- */

static int on_text(void *user, const char *bytes, size_t count)
{
    struct native_call *call = user;
    return native_call_back(call, call->on_text, "(y#)", bytes, (Py_ssize_t)count);
}

static void on_token(void *user, int32_t id, int is_prompt)
{
    struct native_call *call = user;
    (void)native_call_back(call, call->on_token, "(iN)", (int)id, PyBool_FromLong(is_prompt));
}

static PyObject *generate_value(const struct sluice_generate_result *made)
{
    return Py_BuildValue(
        "{sK sK sK sd sd ss}", "prompt_tokens", (unsigned long long)made->prompt_tokens, "tokens",
        (unsigned long long)made->tokens, "context", (unsigned long long)made->context,
        "prefill_seconds", made->prefill_seconds, "decode_seconds", made->decode_seconds,
        "ended_by", made->ended_by);
}

static PyObject *generate(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",    "prompt", "set",        "tokens",  "temperature",
                            "top_k",   "top_p",  "seed",       "context", "stop_text",
                            "chat",    "system", "ignore_end", "on_text", "on_token",
                            "verbose", "watch",  NULL};
    PyObject *path, *text_call, *token_call, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_generate_options options = {
        .stop = &call.stop, .on_text = on_text, .on_token = on_token, .user = &call};
    struct sluice_generate_result made;
    struct native_texts set;
    unsigned long long tokens, top_k, seed, context;
    const char *prompt;
    Py_ssize_t prompt_bytes;
    int watch;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "O&y#O&KdKdKKzpzpOOpp", names, PyUnicode_FSConverter, &path, &prompt,
            &prompt_bytes, native_texts_convert, &set, &tokens, &options.temperature, &top_k,
            &options.top_p, &seed, &context, &options.stop_text, &options.chat, &options.system,
            &options.ignore_end, &text_call, &token_call, &options.verbose, &watch))
        return NULL;
    options.set = set.items;
    options.set_count = set.count;
    options.token_count = tokens;
    options.top_k = top_k;
    options.seed = seed;
    options.context = context;
    call.on_text = callable_or_null(text_call);
    call.on_token = callable_or_null(token_call);
    const char *name = begin(&call, path, true, watch);
    if (name &&
        finish(&call, sluice_generate(name, prompt, (size_t)prompt_bytes, &options, &made)) == 0)
        out = generate_value(&made);
    native_texts_fini(&set);
    Py_DECREF(path);
    return out;
}

/* ---- evaluate and export ---- */

static PyObject *evaluate(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",    "files",   "set",   "context", "stride",
                            "batches", "verbose", "watch", NULL};
    PyObject *path, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_evaluate_options options = {.stop = &call.stop};
    struct sluice_evaluate_result made;
    struct native_texts files, set;
    unsigned long long context, stride, batches;
    int watch;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&O&KKKpp", names, PyUnicode_FSConverter,
                                     &path, native_texts_convert, &files, native_texts_convert,
                                     &set, &context, &stride, &batches, &options.verbose, &watch))
        return NULL;
    options.set = set.items;
    options.set_count = set.count;
    options.context = context;
    options.stride = stride;
    options.batches = batches;
    const char *name = begin(&call, path, true, watch);
    if (name &&
        finish(&call, sluice_evaluate_files(name, files.items, files.count, &options, &made)) == 0)
        out = Py_BuildValue("{sd sd sN sK sd}", "loss", made.loss, "perplexity", made.perplexity,
                            "bits_per_byte", real_or_none(made.bits_per_byte), "tokens",
                            (unsigned long long)made.tokens, "seconds", made.seconds);
    native_texts_fini(&files);
    native_texts_fini(&set);
    Py_DECREF(path);
    return out;
}

static PyObject *export_run(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path", "directory", "dtype", "adapters", "force", NULL};
    PyObject *path = NULL, *directory = NULL, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_export_options options = {.dtype = NULL};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&zpp", names, PyUnicode_FSConverter, &path,
                                     PyUnicode_FSConverter, &directory, &options.dtype,
                                     &options.adapters, &options.force))
        return NULL;
    const char *to = PyBytes_AsString(directory), *from = begin(&call, path, true, false);
    if (from && finish(&call, sluice_export_run(from, to, &options)) == 0)
        out = Py_BuildValue(""); /* None */
    Py_DECREF(path);
    Py_DECREF(directory);
    return out;
}

static PyMethodDef functions[] = {
    {"train", NATIVE_FUNCTION(train), NATIVE_WITH_KEYWORDS, "Trains to run.steps."},
    {"plan", NATIVE_FUNCTION(plan), NATIVE_WITH_KEYWORDS, "The plan of a job, JSON."},
    {"probe", NATIVE_FUNCTION(probe), NATIVE_WITH_KEYWORDS, "Measures the machine."},
    {"generate", NATIVE_FUNCTION(generate), NATIVE_WITH_KEYWORDS, "Continues a prompt."},
    {"evaluate", NATIVE_FUNCTION(evaluate), NATIVE_WITH_KEYWORDS, "The loss on files."},
    {"export", NATIVE_FUNCTION(export_run), NATIVE_WITH_KEYWORDS,
     "Writes a Hugging Face checkpoint."},
    {NULL, NULL, 0, NULL},
};

int native_tasks_add(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
