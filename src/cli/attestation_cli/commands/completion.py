"""`attestation completion`: complete commands, options and machines in the shell."""

from __future__ import annotations

import click

from attestation_cli.session import Session, pass_session

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@pass_session
@click.pass_context
def group(ctx: click.Context, session: Session, shell: str) -> None:
    """Print the script that makes a shell complete commands, options and machines.

    Names of machines are asked of the service while you type, within a second or not at all.

    \b
    Examples:
      source <(attestation completion bash)                      # in ~/.bashrc
      source <(attestation completion zsh)                       # in ~/.zshrc
      attestation completion fish > ~/.config/fish/completions/attestation.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root()
    name = "attestation"
    # Filled in here: `source()` would first ask the bash that is installed for its version, which need not be there.
    made = kind(root.command, {}, name, f"_{name.upper()}_COMPLETE")
    session.emit((made.source_template % made.source_vars()).strip())
