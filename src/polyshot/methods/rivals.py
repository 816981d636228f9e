"""All methods, in the order of the tables; importing a file registers its method."""

from polyshot.methods import (
    feat,
    finetune,
    finetune_all,
    pool_rules,
    protomaml,
    protonet,
    prototypes,
    simple_avg,
    tadam,
)
from polyshot.methods.method import METHODS

TABLES = (
    prototypes,
    finetune,
    finetune_all,
    protonet,
    simple_avg,
    feat,
    protomaml,
    tadam,
    pool_rules,
)
"""The files in the order of the tables."""

for module in TABLES:  # whoever imported one of them earlier has registered it earlier
    for name in [n for n, method in METHODS.items() if method.fit.__module__ == module.__name__]:
        METHODS[name] = METHODS.pop(name)
