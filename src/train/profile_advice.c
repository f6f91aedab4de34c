#include "train/profile_internal.h"
int profilei_place(profile *self, const traini_setup *setup)
{
    (void)self;
    (void)setup;
    return 0;
}
void profilei_advise(profile *self)
{
    (void)self;
}
