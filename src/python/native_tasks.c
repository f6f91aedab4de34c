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
    PyObject *path, *set, *step_call, *evaluation_call, *share;
    struct native_opening opening;
    struct native_call call = {.stop = 0};
    struct sluice_train_options options = {
        .stop = &call.stop, .on_step = on_step, .on_evaluation = on_evaluation, .user = &call};
    struct sluice_options *job = &options.job;
    struct sluice_train_result made;
    struct native_texts texts;
    int watch;
    PyObject *out = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&zOzzppOOpO", names, PyUnicode_FSConverter,
                                     &path, &job->job_text, &set, &job->from, &job->machine,
                                     &job->fresh, &job->verbose, &step_call, &evaluation_call,
                                     &watch, &share))
        return NULL;
    if (native_texts_init(&texts, set, "set") == 0) {
        job->set = texts.items;
        job->set_count = texts.count;
        call.on_step = callable_or_null(step_call);
        call.on_evaluation = callable_or_null(evaluation_call);
        native_opening_init(&opening, Py_None, share, job);
        if (native_enter(true, false) == 0) {
            const char *name = PyBytes_AsString(path);
            native_call_begin(&call, watch);
            int status = sluice_train(name, &options, &made);
            int rc = finish(&call, status);
            if (rc == 0)
                out = train_value(&made);
            else if (opening.type)
                (void)native_opening_raise(&opening); /* it says more */
        }
        native_texts_fini(&texts);
    }
    Py_DECREF(path);
    return out;
}

/* ---- plan ---- */

static PyObject *plan(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",  "text",           "set",     "machine",
                            "ranks", "ranks_per_host", "verbose", NULL};
    PyObject *path, *set, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_plan_options options = {.ranks = 0};
    struct native_texts texts;
    unsigned int ranks, ranks_per_host;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&zOzIIp", names, PyUnicode_FSConverter,
                                     &path, &options.job_text, &set, &options.machine, &ranks,
                                     &ranks_per_host, &options.verbose))
        return NULL;
    options.ranks = ranks;
    options.ranks_per_host = ranks_per_host;
    if (native_texts_init(&texts, set, "set") == 0) {
        options.set = texts.items;
        options.set_count = texts.count;
        if (native_enter(false, false) == 0) {
            const char *name = PyBytes_AsString(path);
            char *json;
            native_call_begin(&call, false);
            int status = sluice_plan(name, &options, &json);
            if (finish(&call, status) == 0)
                out = PyUnicode_FromString(json);
            sluice_free(json);
        }
        native_texts_fini(&texts);
    }
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
    PyObject *path, *drives, *progress_call, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_probe_options options = {.stop = &call.stop, .user = &call};
    struct native_texts texts;
    int watch;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&OzppOp", names, PyUnicode_FSConverter,
                                     &path, &drives, &options.backend, &options.quick,
                                     &options.tiny, &progress_call, &watch))
        return NULL;
    if (native_texts_init(&texts, drives, "drives") == 0) {
        options.drives = texts.items;
        options.drive_count = texts.count;
        call.on_progress = callable_or_null(progress_call);
        options.on_progress = call.on_progress ? on_progress : NULL;
        if (native_enter(true, false) == 0) {
            const char *name = PyBytes_AsString(path);
            native_call_begin(&call, watch);
            int status = sluice_probe(name, &options);
            if (finish(&call, status) == 0) {
                Py_INCREF(Py_None);
                out = Py_None;
            }
        }
        native_texts_fini(&texts);
    }
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
    PyObject *path, *set, *text_call, *token_call, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_generate_options options = {
        .stop = &call.stop, .on_text = on_text, .on_token = on_token, .user = &call};
    struct sluice_generate_result made;
    struct native_texts texts;
    unsigned long long tokens, top_k, seed, context;
    const char *prompt;
    Py_ssize_t prompt_bytes;
    int watch;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "O&y#OKdKdKKzpzpOOpp", names, PyUnicode_FSConverter, &path, &prompt,
            &prompt_bytes, &set, &tokens, &options.temperature, &top_k, &options.top_p, &seed,
            &context, &options.stop_text, &options.chat, &options.system, &options.ignore_end,
            &text_call, &token_call, &options.verbose, &watch))
        return NULL;
    if (native_texts_init(&texts, set, "set") == 0) {
        options.set = texts.items;
        options.set_count = texts.count;
        options.token_count = tokens;
        options.top_k = top_k;
        options.seed = seed;
        options.context = context;
        call.on_text = callable_or_null(text_call);
        call.on_token = callable_or_null(token_call);
        if (native_enter(true, false) == 0) {
            const char *name = PyBytes_AsString(path);
            native_call_begin(&call, watch);
            int status = sluice_generate(name, prompt, (size_t)prompt_bytes, &options, &made);
            if (finish(&call, status) == 0)
                out = generate_value(&made);
        }
        native_texts_fini(&texts);
    }
    Py_DECREF(path);
    return out;
}

/* ---- evaluate and export ---- */

static PyObject *evaluate(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",    "files",   "set",   "context", "stride",
                            "batches", "verbose", "watch", NULL};
    PyObject *path, *files, *set, *out = NULL;
    struct native_call call = {.stop = 0};
    struct sluice_evaluate_options options = {.stop = &call.stop};
    struct sluice_evaluate_result made;
    struct native_texts sets, paths;
    unsigned long long context, stride, batches;
    int watch;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&OOKKKpp", names, PyUnicode_FSConverter,
                                     &path, &files, &set, &context, &stride, &batches,
                                     &options.verbose, &watch))
        return NULL;
    if (native_texts_init(&sets, set, "set") == 0) {
        if (native_texts_init(&paths, files, "files") == 0) {
            options.set = sets.items;
            options.set_count = sets.count;
            options.context = context;
            options.stride = stride;
            options.batches = batches;
            if (native_enter(true, false) == 0) {
                const char *name = PyBytes_AsString(path);
                native_call_begin(&call, watch);
                int status = sluice_evaluate_files(name, paths.items, paths.count, &options, &made);
                if (finish(&call, status) == 0)
                    out = Py_BuildValue("{sd sd sN sK sd}", "loss", made.loss, "perplexity",
                                        made.perplexity, "bits_per_byte",
                                        real_or_none(made.bits_per_byte), "tokens",
                                        (unsigned long long)made.tokens, "seconds", made.seconds);
            }
            native_texts_fini(&paths);
        }
        native_texts_fini(&sets);
    }
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
    if (native_enter(true, false) == 0) {
        const char *from = PyBytes_AsString(path), *to = PyBytes_AsString(directory);
        native_call_begin(&call, false);
        int status = sluice_export_run(from, to, &options);
        if (finish(&call, status) == 0) {
            Py_INCREF(Py_None);
            out = Py_None;
        }
    }
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
