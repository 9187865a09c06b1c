"""The algorithms as pure functions over tensors: no configuration, no files, no distributed calls.

The order of a step: rewards -> ``advantages`` -> ``corrections`` and ``selection`` (factors on the advantages) ->
``masks`` -> ``weights`` (all denominators, once) -> ``objective`` per micro-batch -> ``metrics``. Import from the
modules: this package itself stays empty, because ``losses`` is read before torch is loaded.
"""
