/* Prepares the setup's models on its backend. On a GPU this chooses the algorithms of the matrix
 * products: those of the run that goes on, else as device.products says. Rank 0 chooses for all
 * ranks, because the ranks' shards of one sum must come from equal products. */
#include <string.h>

#include "setup/setup_internal.h"

static int prepare(struct setup *self)
{
    if (self->single)
        TRY(model_prepare(self->single, self->ops, self->context));
    return model_prepare(self->net, self->ops, self->context);
}

/* Rank 0 tries the candidates while the others wait; then they take its choices. */
static int prepare_by_rank0(struct setup *self)
{
    char choices[KERNEL_CHOICES_BYTES] = "";
    comm *members = self->ranks.comm;
    bool is_first = self->ranks.rank == 0;
    int rc = is_first ? self->ops->choose_products(self->context, "", true) : 0;
    if (is_first && rc == 0)
        rc = prepare(self);
    TRY(comm_agree(members, "the choice of algorithms", rc));
    if (is_first)
        snprintf(choices, sizeof choices, "%s", self->ops->product_choices(self->context));
    TRY(comm_broadcast(members, "the choice of algorithms", choices, sizeof choices));
    if (is_first)
        return 0;
    TRY(self->ops->choose_products(self->context, choices, false));
    return prepare(self);
}

int setupi_prepare_models(struct setup *self, const struct setup_options *options)
{
    char choices[KERNEL_CHOICES_BYTES] = "";
    if (!self->ops->choose_products)
        return prepare(self);
    bool tries =
        strcmp(self->job->device.products, "timed") == 0 && !options->found && !options->only_eval;
    if (tries && self->ranks.world > 1 && self->ranks.comm)
        return prepare_by_rank0(self);
    if (options->found)
        setupi_identity_value(options->found->identity, SETUPI_PRODUCTS_KEY, choices,
                              sizeof choices);
    TRY(self->ops->choose_products(self->context, choices, tries));
    return prepare(self);
}
