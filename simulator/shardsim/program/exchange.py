"""What an exchange of tokens with experts puts on the links: bytes, from who needs what and where the experts are."""

from __future__ import annotations

from shardsim.values.exchange import ExchangeVolumes
from shardsim.values.hardware import GroupShape
from shardsim.values.num import Num, where
from shardsim.values.operators import TokenExchange
from shardsim.workload.destinations import reached


def exchange_volumes(exchange: TokenExchange, shape: GroupShape) -> ExchangeVolumes:
    """Count the bytes of an exchange.

    Parameters
    ----------
    exchange : TokenExchange
    shape : GroupShape
        Of the expert-parallel group.

    Returns
    -------
    ExchangeVolumes
        The same for a dispatch and for the combine of as many bytes an element, which is its mirror: what one rank
        sends in the one it receives in the other.

    Notes
    -----
    T tokens, k experts each, h elements of E bytes, n ranks, N domains of d ranks, under uniform routing:

    - all-to-all: T k h E (n - 1)/n, of which (d - 1)/(n - 1) is near.
    - all-gather around a ring: (n - 1) T h E; a domain sends on to the next what it has, once, and its ranks share
      that.
    - in two levels (github deepseek-ai/DeepEP, README.md): a token goes to each domain that has experts of it once,
      T h E n_far with n_far the other domains that it reaches (arXiv 2412.19437 §3.2.2), and there to each rank that
      has some of them, once. A rank passes on as many tokens as it sends, and 1/d of them stays where it is.

    The busiest rank has ``imbalance`` times that, and is waited for. Weights and places of tokens, 8 bytes beside some
    thousands, are left out. Where domains hold different numbers of members, far bytes are those of the emptiest.
    """
    ranks, most = shape.ranks, shape.ranks_per_domain
    fewest = most if shape.fewest_per_domain is None else shape.fewest_per_domain
    token = exchange.tokens * exchange.hidden * exchange.element_bytes
    if exchange.dispatcher == "allgather":
        sent = (ranks - 1) * token
        far = where(shape.domains > 1, sent / fewest, sent * 0.0)
        return ExchangeVolumes(near=sent - far, far=far, whole=ranks * token)
    busiest = token * exchange.share * exchange.imbalance
    whole = busiest * exchange.top_k
    if exchange.dispatcher == "alltoall":
        return ExchangeVolumes(near=whole * (most - 1) / ranks, far=whole * (ranks - fewest) / ranks, whole=whole)
    domains = _reached(exchange, shape.domains)
    copies = _reached(exchange, ranks)
    return ExchangeVolumes(
        near=busiest * copies * (most - 1) / most,
        far=busiest * domains * (shape.domains - 1) / shape.domains,
        whole=whole,
    )


def _reached(exchange: TokenExchange, units: Num) -> Num:
    return reached(units, exchange.experts, exchange.top_k, exchange.groups, exchange.group_limit)
