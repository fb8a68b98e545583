"""Jobs on Ray Data and replicas of Ray Serve: `pip install alight[ray]`.

`Generate`, `Chat`, `Embed` and `Rerank` are classes for `map_batches`: rows in, and the same rows out with what was computed, usage, and
errors of rows. What a row becomes depends on the model, the row and the options alone, to the bit: not on its partition, its node, or how
often it was computed again. `per_host` gives `map_batches` one actor for each host. `serve_app` makes an application of Ray Serve.

Nothing here imports Ray until it is asked for something of Ray's, so the classes work without it.
"""

from ._hosts import per_host
from ._rows import row_seed
from ._serve import serve_app
from ._texts import Chat, Generate
from ._vectors import Embed, Rerank

__all__ = ["Chat", "Embed", "Generate", "Rerank", "per_host", "row_seed", "serve_app"]
