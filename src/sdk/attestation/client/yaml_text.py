"""Values as YAML in ASCII, which every reader takes for the same; who writes it brings `ruamel.yaml`."""

from __future__ import annotations

import re

from attestation.client.text import clean

_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\Z")
_NOT_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def yaml_text(value: object) -> str:
    """Return *value*, made of what JSON is made of, as YAML in ASCII: every control character is escaped.

    It means the same to readers of YAML 1.1 and 1.2: whatever 1.1 takes for something else (`no`, `12:30:15`, `1e3`)
    stands in quotes.
    """
    import io

    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import ScalarNode
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        def text(self, data: str) -> ScalarNode:
            word = _PLAIN_WORD.match(data) and data.lower() not in _NOT_WORDS
            style = None if word or clean(data) != data else "'"
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Representer.add_representer(str, Representer.text)
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = Representer
    yaml.default_flow_style = False
    yaml.allow_unicode = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # it is declared as None
    yaml.width = 1 << 20
    buffer = io.StringIO()
    yaml.dump(value, buffer)
    return buffer.getvalue().rstrip("\n").removesuffix("\n...")
