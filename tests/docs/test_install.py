"""docs/operate/install.md and replicas.md, their units and their sample, as far as they can be judged here.

`tools/fresh.sh install` and `replicas` copy every line of them into a bare Debian.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from attestation.machines import Role
from attestation.talos.completion import Own
from attestation_agent.kubelet.proxy import NGINX, OPENSSL
from attestation_agent.kubelet.settings import KUBELET_OPTIONS
from attestation_agent.settings import OPTIONS
from attestation_service.configs.files import load_base
from attestation_service.configs.rendering import Texts, completed
from attestation_service.settings import Settings
from tests.docs.pages import ROOT, text
from tools import install_page

PAGES = {name: text(f"docs/operate/{name}.md") for name in install_page.AFTER}
COPIED = {name: install_page.lines(page) for name, page in PAGES.items()}
LINES = COPIED["install"]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
TEMPLATE = ROOT / "deploy/systemd/attestation-service@.service"
(KUBELET_DIR,) = (option.default for option in KUBELET_OPTIONS if option.name == "kubelet_dir")
WEB_UNIT = ROOT / "deploy/systemd/attestation-web.service"
KUBELET_UNITS = sorted((ROOT / "deploy/systemd").glob("itl-kubelet-*.service"))


def _unit(path: Path) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)  # a word may stand twice
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as configparser documents it
    unit.read(path)
    return unit["Service"]


def _environment(page: str, name: str) -> set[str]:
    """Return the variables of a file that a page writes."""
    found = re.search(
        rf"^cat > /etc/itl-attestation/{name} <<'?ENV'?\n(.*?)^ENV$", COPIED[page], re.MULTILINE | re.DOTALL
    )
    assert found is not None, name
    return set(re.findall(r"^(ITL_\w+)=", found[1], flags=re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_what_is_copied_is_a_script(page: str) -> None:
    """With what stands around it on trial; and nothing of it is left to be filled in."""
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-n"], input=install_page.script(page), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert COPIED[page].count(" install --require-hashes -r deploy/locks/") == 4
    assert not re.search(r"…|\bTODO\b|<[a-z-]+>", COPIED[page])
    # What pip gets by its name alone is what was built here, and only without anything that it needs.
    for line in COPIED[page].splitlines():
        if "/bin/pip" in line and " install " in line:
            assert "--require-hashes -r deploy/locks/" in line or "--no-deps dist/" in line, line


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_checkout_that_it_takes_exist(page: str) -> None:
    """Units, locks, the sample."""
    taken = set(re.findall(r"\bdeploy/[\w./@-]+\w", COPIED[page]))
    assert len(taken) >= 7
    for name in taken:
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"`([\w-]+\.lock)`", PAGES[page]):
        assert (ROOT / "deploy/locks" / name).is_file() or name == "requirements.lock", name


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_that_it_writes_are_known(page: str) -> None:
    """By the service and by the agent; an unknown one would stop the start."""
    assert _environment(page, "service.env") <= {f"ITL_{name.upper()}" for name in Settings.model_fields}
    assert _environment(page, "agent.env") <= {option.variable for option in OPTIONS}


def test_a_replica_is_the_service_on_another_port() -> None:
    """Its unit has the same rules; only where it listens and what it waits for is its own."""
    alone, replica = (
        (ROOT / f"deploy/systemd/{name}").read_text("utf-8").splitlines()
        for name in ("attestation-service.service", TEMPLATE.name)
    )
    own = {"Description", "After", "Environment", "EnvironmentFile", "ExecStart"}
    assert {line.partition("=")[0] for line in set(alone) ^ set(replica) if not line.startswith("#")} == own
    assert f"install -m 0644 deploy/systemd/{TEMPLATE.name} /etc/systemd/system/" in COPIED["replicas"]
    (started,) = re.findall(
        r"^systemctl enable --now (attestation-service@.*)$", COPIED["replicas"], re.MULTILINE
    )
    proxied = re.findall(r"server 127\.0\.0\.1:(\d+);", COPIED["replicas"])
    assert [f"attestation-service@{port}" for port in proxied] == started.split()


@pytest.mark.parametrize(
    "path", sorted({*UNITS} - {TEMPLATE, WEB_UNIT, *KUBELET_UNITS}), ids=lambda path: path.name
)
def test_a_unit_starts_what_the_page_installs(path: Path) -> None:
    """Its program, user, settings and directories are those that the page makes, and those that are the defaults."""
    unit = _unit(path)
    program = unit["ExecStart"].split()[0]
    place, _, script = program.rpartition("/bin/")
    assert f"python3 -m venv --without-pip {place}\n" in LINES
    member = place.rpartition("/")[2]
    assert script in tomllib.loads(text(f"src/{member}/pyproject.toml"))["project"]["scripts"]
    assert f"cat > {unit['EnvironmentFile']} <<" in LINES
    assert f"install -m 0644 deploy/systemd/{path.name} /etc/systemd/system/" in LINES
    assert f"systemctl enable --now {path.stem}\n" in LINES
    state = Path("/var/lib") / unit["StateDirectory"]
    if member == "service":
        settings = Settings.model_construct()
        assert re.search(rf"^useradd .* {unit['User']}$", LINES, flags=re.MULTILINE)
        assert settings.shutdown_seconds < int(unit["TimeoutStopSec"])
        for place_ in (settings.enrollment_ca_dir, settings.config_cache_dir):
            assert place_.is_relative_to(state)
            assert f" {place_}" in LINES
        assert settings.db_url.startswith(f"sqlite:///{state}/")
        assert unit["ProtectSystem"] == "strict"
    else:
        defaults = {option.variable: str(option.default) for option in OPTIONS}
        assert defaults["ITL_STATE_DIR"] == str(state)
        assert Path(defaults["ITL_CONFIG_PATH"]).parent == Path("/run") / unit["RuntimeDirectory"]


def test_the_units_of_a_kubernetes_node() -> None:
    """They run what the install page installs, with its settings, in the folder that is the default, before kubelet."""
    page = text("docs/kubernetes/kubelet.md")
    assert len(KUBELET_UNITS) == 3
    for path in KUBELET_UNITS:
        unit = _unit(path)
        assert f"install -m 0644 deploy/systemd/{path.name} /etc/systemd/system/" in page
        assert "\nBefore=kubelet.service\n" in path.read_text("utf-8")
        program = unit["ExecStart"].split()[0]
        if program == "/usr/sbin/nginx":
            assert f"-c {KUBELET_DIR}/{NGINX}" in unit["ExecStart"]
            assert f"OPENSSL_CONF={KUBELET_DIR}/{OPENSSL}" in path.read_text("utf-8")
        else:
            assert program == "/opt/itl-attestation/agent/bin/attestation-agent"
            assert f"cat > {unit['EnvironmentFile']} <<" in LINES
            assert Path("/run") / unit["RuntimeDirectory"] == KUBELET_DIR
            assert (unit["RuntimeDirectoryMode"], unit["Type"]) == ("0700", "notify")
            assert unit["ExecStart"].endswith(f"kubelet {path.stem.rpartition('-')[2]} --stay")


def test_the_unit_of_the_dashboard() -> None:
    """Its program, user and settings are those that its page makes; it may write nothing."""
    page, unit = text("docs/operate/dashboard.md"), _unit(WEB_UNIT)
    program = unit["ExecStart"].split()[0]
    place, _, script = program.rpartition("/bin/")
    assert f"python3 -m venv --without-pip {place}\n" in page
    assert script in tomllib.loads(text("src/web/pyproject.toml"))["project"]["scripts"]
    assert f"cat > {unit['EnvironmentFile']} <<" in page
    assert f"install -m 0644 deploy/systemd/{WEB_UNIT.name} /etc/systemd/system/" in page
    assert re.search(rf"^useradd .* {unit['User']}$", page, flags=re.MULTILINE)
    assert unit["ProtectSystem"] == "strict"
    assert "StateDirectory" not in unit


def test_systemd_understands_the_units() -> None:
    """Every word of them; that the programs are not installed here is no fault of theirs."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    done = subprocess.run(
        [analyze, "verify", "--man=no", *map(str, UNITS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert [
        line for line in done.stderr.splitlines() if "deploy/systemd" in line and "not executable" not in line
    ] == []


# systemd's own measure, 0 (nothing is open to it) to 10: the service may have 3, the agent is root beside a TPM.
EXPOSED = {
    "attestation-service.service": 3.0,
    TEMPLATE.name: 3.0,
    WEB_UNIT.name: 3.0,
    "itl-tpm-register.service": 3.0,
    **{path.name: 3.0 for path in KUBELET_UNITS},
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_shuts_out_what_its_program_does_not_need(path: Path) -> None:
    """By what systemd says of it."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    said = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert said is not None, done.stderr
    assert float(said[1]) <= EXPOSED[path.name]


def test_the_sample_is_a_configuration_that_is_delivered() -> None:
    """The service finds it under its name and writes a machine's own values into it."""
    own = Own(
        machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        ek_fingerprint="7f" * 48,
        hostname="app-1",
        assigned_ip=None,
        installer_image="",
    )
    base = load_base(ROOT / "deploy/configs", Role.WORKER_APP, "default")
    merged = completed(
        Texts(talos_version="v1.9.5", base=base, patch=None), own, Role.WORKER_APP, "default", Settings()
    )
    assert b"app-1" in merged
