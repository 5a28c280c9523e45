"""Which commands there are, in which module each stands, and what their exit codes mean."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: Mapping[str, tuple[str, str]] = {
    "auth": ("attestation_cli.commands.auth", "Log in and out; who you are."),
    "machine": ("attestation_cli.commands.machine", "List, judge and explain machines."),
    "result": ("attestation_cli.commands.result", "Verify what the service says of a machine, by yourself."),
    "bundle": (
        "attestation_cli.commands.bundle",
        "Verify what was measured of a node, years later, offline.",
    ),
    "approval": ("attestation_cli.commands.approval", "What waits for the vote of another operator."),
    "approval-rule": (
        "attestation_cli.commands.approval_rule",
        "Machines that are approved without a person.",
    ),
    "token": ("attestation_cli.commands.token", "Registration tokens: admit the machine that presents one."),
    "console": (
        "attestation_cli.commands.console",
        "Approve at the console of a machine with a stock image.",
    ),
    "allow-list": ("attestation_cli.commands.allow_list", "EKs that are admitted in advance."),
    "cluster": (
        "attestation_cli.commands.cluster",
        "Clusters: what is in each, and which Talos it runs.",
    ),
    "image": ("attestation_cli.commands.image", "Images of Talos that any machine of a role can boot."),
    "audit": ("attestation_cli.commands.audit", "Read and verify the audit chain."),
    "witness": ("attestation_cli.commands.witness", "Cosign the checkpoints of somebody's audit log."),
    "query": (
        "attestation_cli.commands.query",
        "Ask the fleet anything: machines, attestations, votes, audit.",
    ),
    "policy": ("attestation_cli.commands.policy", "What machines are measured against."),
    "collateral": (
        "attestation_cli.commands.collateral",
        "What vouches for confidential hardware, and until when.",
    ),
    "ca": ("attestation_cli.commands.ca", "The CA: its keys, what they have signed, how they are rotated."),
    "acme": ("attestation_cli.commands.acme", "ACME: who may make an account, and what accounts ask for."),
    "node-csr": ("attestation_cli.commands.node_csr", "Certificate requests of Kubernetes nodes."),
    "operator-cert": (
        "attestation_cli.commands.operator_cert",
        "Client certificates of operators, viewers and auditors.",
    ),
    "trust": ("attestation_cli.commands.trust", "Whose word about TPMs the service takes."),
    "tpm-bundle": (
        "attestation_cli.commands.tpm_bundle",
        "Which manufacturers' certificates vouch for TPMs.",
    ),
    "crypto": (
        "attestation_cli.commands.crypto",
        "Which algorithms are in use, and what the suites of the NSA say.",
    ),
    "extension": (
        "attestation_cli.commands.extension",
        "Extensions of the service, and events they could not handle.",
    ),
    "stats": ("attestation_cli.commands.stats", "Count machines by status, role and trust."),
    "attention": ("attestation_cli.commands.attention", "What operators should look at, in numbers."),
    "health": ("attestation_cli.commands.health", "Ask whether the service can decide."),
    "findings": (
        "attestation_cli.commands.findings",
        "What a running service finds of itself, and what to do.",
    ),
    "settings": ("attestation_cli.commands.settings", "The settings of the service, without secrets."),
    "version": ("attestation_cli.commands.version", "Tell the versions of this program and of the service."),
    "config": (
        "attestation_cli.commands.config",
        "Settings of this program, and configurations of machines.",
    ),
    "dev": (
        "attestation_cli.commands.dev",
        "What is built for others: the agent as an extension of Talos, material for tests.",
    ),
    "man": ("attestation_cli.commands.man", "Manual pages of this program."),
    "completion": ("attestation_cli.commands.completion", "Complete commands and machines in the shell."),
}

OPEN = frozenset({"dev"})
"""Groups of ours to which a plug-in of the same name adds commands; it replaces none."""

EXIT_CODES = (
    ("0", "done; under dual control also: your vote counts, others must follow"),
    ("1", "the answer is no: not trusted, not valid, not confirmed"),
    ("2", "the command or its values are wrong; nothing was changed"),
    ("3", "what you named does not exist (any more)"),
    ("4", "you are not logged in, or you may not"),
    ("5", "it exists, but not in a state that allows this; or several are meant"),
    ("6", "no answer, or none now: unreachable, unavailable, too often; nothing was changed"),
    ("7", "the answer was lost: unknown whether it happened; the text says how to find out"),
)
