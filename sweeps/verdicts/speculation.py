"""Whether the arm speculated as it says, and whose work the server's counters hold."""

from __future__ import annotations

from sweeps.verdicts.frame import INVALID, WARN, Context, Verdict


def not_speculating(c: Context) -> Verdict | None:
    e = c.evidence
    if c.speculates is not True or not e.received:
        return None
    severity = INVALID
    if e.speculates is False:
        seen = "its counters" if e.source == "counters" else "its replies"
        evidence = f"{seen} show no draft over {e.received:,} tokens"
        if e.ever_drafted:  # some servers stop drafting under load, and n-grams find nothing in some texts
            severity, evidence = WARN, f"{evidence}, though this server has drafted before"
    elif e.speculates is None and e.silent and not e.foreign_tokens and not e.unseen:
        evidence = f"a server of this kind ({e.server['engine']}) shows drafts when it speculates; it shows none"
    else:
        return None
    return Verdict(
        "not_speculating",
        severity,
        evidence,
        "an arm with speculation drafts",
        "turn speculation on at the server (its log says why it is off), or name the arm as it is",
    )


def unexpected_speculation(c: Context) -> Verdict | None:
    e = c.evidence
    if c.speculates is not False or e.speculates is not True:
        return None
    drafted = f"{e.draft_tokens:,.0f} draft tokens" if e.draft_tokens else f"{e.acceptance_length:.2f} tokens a step"
    return Verdict(
        "unexpected_speculation",
        INVALID,
        f"the server shows {drafted} in an arm that is meant to have no speculation",
        "none",
        "turn speculation off at this server, or declare the arm's speculation",
    )


def implausible_acceptance(c: Context) -> Verdict | None:
    """Real drafters are wrong now and then, the more so the further they look ahead; and nothing can be guessed from
    random words."""
    e = c.evidence
    rate, drafted = e.acceptance_rate, e.draft_tokens or 0.0
    most = e.most_per_step
    if rate is None or drafted < 100:
        return None
    if rate > 1 or (most is not None and (e.acceptance_length or 0.0) > most):
        why, limit = "more was accepted than was drafted", "no more than was drafted"
    elif c.raw_prompts and rate >= 0.5:
        why, limit = "for prompts that look random or have no chat template", "50 % on such prompts"
    elif rate >= (0.98 if most is not None and most <= 2 else 0.9):
        why, limit = "of real text", "98 % with one draft token, 90 % with more"
    else:
        return None
    return Verdict(
        "implausible_acceptance",
        WARN,
        f"{rate:.0%} of {drafted:,.0f} draft tokens were accepted {why}"
        + (f"; the server says: {c.synthetic}" if c.synthetic else ""),
        limit,
        "look whether acceptance is synthetic, the drafter is the model itself, or the answers repeat themselves; use "
        "--api chat and natural prompts",
    )


def synthetic_acceptance(c: Context) -> Verdict | None:
    if c.synthetic is None:
        return None
    return Verdict(
        "synthetic_acceptance",
        WARN,
        f"the server accepts drafts by a rule, not by its model: {c.synthetic}",
        "acceptance that the model decides",
        "take this speed for a what-if, not for a measurement of the drafter",
    )


def foreign_traffic(c: Context) -> Verdict | None:
    e = c.evidence
    if not e.foreign_tokens and not e.restless:
        return None
    if e.foreign_tokens:
        evidence = f"the server made {e.generated:,.0f} tokens, and at most {e.expected:,} of them were ours"
    else:
        evidence = "the server was at work before this point sent anything"
    return Verdict(
        "foreign_traffic",
        WARN,
        evidence,
        "5 % and 64 tokens" if e.foreign_tokens else "none",
        "measure a server that nobody else uses",
    )


def counters_broken(c: Context) -> Verdict | None:
    e = c.evidence
    if e.broken is None and not e.unseen:
        return None
    evidence = e.broken or f"the counters miss {e.unseen:.0%} of the tokens we received"
    return Verdict(
        "counters_broken",
        WARN,
        evidence,
        "counters that only grow, of every replica",
        "look whether the server was restarted; read each replica's own metrics (metrics_url) rather than a balancer's",
    )
