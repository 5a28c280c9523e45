#!/usr/bin/env bash
# Proves the project where a newcomer meets it: in a Debian with nothing in it, from a clone, with an empty environment.
# Each run has a root file system and process ids of its own and leaves nothing behind but its log.
# Needs root (it makes file systems and enters them) and mmdebstrap; the packages come over this machine's network.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/fresh.sh [--suite SUITE]… [--as root|user]… [run|check|test|ci|install|replicas]…

  --suite SUITE   bookworm (Debian 12) or trixie (Debian 13); default: both
  --as WHO        root, or user: somebody without sudo, for whom nothing but Python is installed; default: both
  run             ./dev run --exit-after-demo
  check           ./dev check
  test            ./dev test
  ci              .ci/run
  install         every line of docs/operate/install.md under a systemd of its own, and then: is a machine attested?
                  For root only; needs swtpm here
  replicas        the same with docs/operate/replicas.md: is it attested by three replicas on one PostgreSQL?

Default: run and test, one after another in the same clone. What is committed is tried (HEAD), nothing else.
Prints a line for each step: what, where, as whom, how it ended, seconds, and what pytest said last.
TEXT
}

die() {
  printf 'tools/fresh.sh: %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '                %s\n' "$line" >&2; done
  exit 1
}

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
store=$root/.tools/fresh
logs=$store/logs/$(date -u +%Y%m%dT%H%M%SZ)-$$

# A bare file system of this suite with these packages, made anew where it is older than a week.
bare() {
  local suite=$1 packages=$2 tar=$store/$1${2//[^a-z]/-}.tar
  if [ -z "$(find "$tar" -mtime -7 2>/dev/null)" ]; then
    printf 'making a bare %s\n' "$suite" >&2
    mmdebstrap --quiet --format=tar --variant=minbase --include="ca-certificates$packages" "$suite" "$tar.new" || die "mmdebstrap failed for $suite"
    mv "$tar.new" "$tar"
  fi
  printf '%s' "$tar"
}

# How this machine reaches the package indexes belongs to its network, not to the project: name servers and hosts, the
# certificates it trusts, and pip's word where those are.
connect() {
  local there=$1 bundle=/etc/ssl/certs/ca-certificates.crt
  cp -L /etc/resolv.conf "$there/etc/resolv.conf"
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$there/etc/hosts"
  [ ! -e "$bundle" ] || cp -L "$bundle" "$there$bundle"
  [ ! -e /etc/pip.conf ] || cp -L /etc/pip.conf "$there/etc/pip.conf"
}

# Run a command line inside, as somebody, with nothing of this environment; what it starts ends with it.
inside() {
  local there=$1 who=$2 line=$3
  # shellcheck disable=SC2016 # expanded by the shell inside
  unshare --mount --pid --fork --kill-child --propagation private bash -euc '
    there=$1 who=$2 line=$3
    mount -t proc proc "$there/proc"
    mount -t tmpfs -o mode=755 tmpfs "$there/dev"
    for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$there/dev/${node%:*}" c 1 "${node#*:}"; done
    mknod -m 666 "$there/dev/tty" c 5 0
    mkdir "$there/dev/pts" "$there/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$there/dev/pts"
    ln -s pts/ptmx "$there/dev/ptmx"
    ln -s /proc/self/fd "$there/dev/fd"
    mount -t tmpfs -o mode=1777 tmpfs "$there/dev/shm"
    home=/root id=0:0
    [ "$who" = root ] || home=/home/newcomer id=1000:1000
    # This shell stays: as process 1 it takes all others with it, and who changes the user would lose --kill-child.
    chroot --userspec="$id" --groups= "$there" /usr/bin/env -i \
      HOME="$home" USER="$who" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
      bash -c "cd \"\$HOME/project\" && $line" || exit
  ' inside "$there" "$who" "$line" </dev/null
}

# Run a command line as root inside, under a systemd that is process 1 there as on any computer; it ends with the line.
booted() {
  local there=$1 line=$2 home=/root
  mkdir -p "$there/old" "$there/etc/systemd/system"
  cat >"$there/etc/systemd/system/fresh.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
WorkingDirectory=$home/project
Environment=HOME=$home USER=root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=/bin/bash -c 'set -e; $line'
StandardOutput=file:$home/fresh.log
StandardError=inherit
ExecStopPost=/bin/sh -c 'journalctl --no-pager -o cat -n 60 -p notice >>$home/fresh.log; systemctl --force exit \$\$EXIT_STATUS'
UNIT
  # shellcheck disable=SC2016 # expanded by the shell inside
  unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --propagation private bash -euc '
    there=$1
    mount --bind "$there" "$there"
    cd "$there"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs dev
    for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${node%:*}" c 1 "${node#*:}"; done
    mknod -m 666 dev/tty c 5 0
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount --bind run run # what listens there for us stays
    # Not chroot: who is in one may not make the users of a unit its own (PrivateUsers=).
    pivot_root . old
    umount -l old
    exec env -i container=fresh PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=fresh.service
  ' booted "$there" </dev/null || status=$?
  cat "$there$home/fresh.log"
  return "${status:-0}"
}

# What copies a page, and the TPM of the machine there: it listens here, because nothing may be installed there for it.
prepare_page() {
  local there=$1 page=$2 home=/root
  python3 "$root/tools/install_page.py" "$page" >"$there$home/project/.page"
  mkdir "$there.tpm"
  swtpm socket --tpm2 --tpmstate "dir=$there.tpm" --server "type=unixio,path=$there/run/tpm.sock,mode=0600" \
    --flags not-need-init,startup-clear --daemon --pid "file=$there.tpm/pid"
}

clean_up() {
  [ -n "$1" ] || return 0
  [ ! -e "$1.tpm/pid" ] || kill "$(cat "$1.tpm/pid")" || true
  rm -rf --one-file-system "$1" "$1.tpm"
}

suites=() people=() steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suites+=("${2:?--suite needs a name}") && shift ;;
    --as) people+=("${2:?--as needs root or user}") && shift ;;
    run | check | test | ci | install | replicas) steps+=("$1") ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && die "unknown argument: $1" ;;
  esac
  shift
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
[ ${#people[@]} -gt 0 ] || people=(root user)
[ ${#steps[@]} -gt 0 ] || steps=(run test)
for who in "${people[@]}"; do case $who in root | user) ;; *) die "--as is root or user, not $who" ;; esac done
for suite in "${suites[@]}"; do case $suite in bookworm | trixie) ;; *) die "--suite is bookworm or trixie, not $suite" ;; esac done
[ "$(id -u)" = 0 ] || die "it makes file systems and enters them: run it as root (sudo tools/fresh.sh)"
command -v mmdebstrap >/dev/null || die "the program mmdebstrap is missing. Install it and start again:" \
  "apt-get update && apt-get install --no-install-recommends mmdebstrap"

declare -A line=([run]='./dev run --exit-after-demo' [check]='./dev check' [test]='./dev test' [ci]='.ci/run')
mkdir -p "$logs"
there=
trap 'clean_up "$there"' EXIT
status=0
printf 'commit %s\n' "$(git -C "$root" rev-parse --short HEAD)"

# One of the file systems that `bare` made, unpacked anew, with a clone in the home of whoever is root there or a newcomer.
newly() {
  local suite=$1 who=$2 packages=$3 tar home=/root
  tar=$(bare "$suite" "$packages")
  there=$(mktemp -d "$store/$suite-$who.XXXXXX")
  chmod 755 "$there"
  tar -xf "$tar" -C "$there"
  connect "$there"
  if [ "$who" = user ]; then
    home=/home/newcomer
    chroot "$there" useradd --create-home --uid 1000 --shell /bin/bash newcomer
    chroot "$there" sh -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install python3' \
      >"$logs/$suite-$who-python.log" 2>&1 || die "python3 could not be installed in $suite; see $logs/$suite-$who-python.log"
  fi
  git clone --quiet --no-hardlinks "$root" "$there$home/project"
  [ "$who" = root ] || chroot "$there" chown -R newcomer: "$home/project"
}

tell() {
  local suite=$1 who=$2 what=$3 ended=$4 seconds=$5 log=$6
  printf '%-8s %-5s %-28s %-12s %5d s  %s\n' "$suite" "$who" "$what" "$ended" "$seconds" \
    "$(grep -aE '^=* ?[0-9]+ (passed|failed|error).* in [0-9.]+s' "$log" | tr -d = | tr '\n' ';' | tr -s ' ' || true)"
}

for suite in "${suites[@]}"; do
  for who in "${people[@]}"; do
    there=
    for step in "${steps[@]}"; do
      log=$logs/$suite-$who-$step.log
      start=$SECONDS ended=ok
      case $step in
        install | replicas)
          [ "$who" = root ] || continue
          clean_up "$there"
          newly "$suite" root ,systemd-sysv,dbus,procps,man-db
          prepare_page "$there" "$step"
          booted "$there" 'FRESH_TPM=unix:/run/tpm.sock bash .page' >"$log" 2>&1 || ended="FAILED ($?)" status=1
          tell "$suite" "$who" "docs/operate/$step.md" "$ended" $((SECONDS - start)) "$log"
          clean_up "$there"
          there=
          ;;
        *)
          [ -n "$there" ] || newly "$suite" "$who" ''
          inside "$there" "$who" "${line[$step]}" >"$log" 2>&1 || ended="FAILED ($?)" status=1
          tell "$suite" "$who" "${line[$step]}" "$ended" $((SECONDS - start)) "$log"
          ;;
      esac
    done
    clean_up "$there"
    there=
  done
done
exit "$status"
